"""Checks of multiple choice by made-up log-likelihoods: which choice wins, ties, tiny values, leading blanks.

What is scored is the task's own: its metrics, or the `process_results` that it brings along.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pytest_promptfmt.answers.completions import SECONDS_FOR_CODE
from pytest_promptfmt.answers.scorer_findings import ScorerFinding
from pytest_promptfmt.core.errors import LimitExceededError, Position
from pytest_promptfmt.core.limits import time_limit
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.systems.lm_eval.scoring.metrics import TaskMetric
from pytest_promptfmt.systems.lm_eval.scoring.results import Question, score_doc

_UNDERFLOW: Final = -1000.0
_FAR: Final = -9000.0
"""So much less that no length makes up for it."""
_LENGTHS: Final[Mapping[str, Callable[[str], int]]] = {
    "acc_norm": len,
    "acc_bytes": lambda choice: len(choice.encode()),
}

Results = list[tuple[float, bool]]


def check_likelihoods(
    task: Task,
    metrics: Sequence[TaskMetric],
    instance: Instance,
    question: Question,
    golds: Sequence[int],
    *,
    synthetic: bool,
) -> Iterator[ScorerFinding]:
    """Yield what is wrong with the scores of one doc, whose gold choices are these.

    A `synthetic` doc lacks the columns that only a function of the task reads, so its exceptions say nothing.
    """
    count = len(question.choices)
    own = len(instance.requests)
    doc = f"doc {instance.index + 1}"
    at = task.position("process_results") if task.process_results is not None else task.position("metric_list")
    gold, right = golds[0], set(golds)

    def score(results: Results, asked: Question = question) -> Mapping[str, Any]:
        with time_limit(SECONDS_FOR_CODE if callable(task.process_results) else 0, "scoring one doc", at):
            return score_doc(task, metrics, copy.deepcopy(instance.doc), asked, results)

    scores: dict[str, Results] = {
        "gold best": [(-0.01, True) if index % count in right else (_FAR, False) for index in range(own)],
        "another best": [(_FAR, False) if index % count in right else (-0.01, True) for index in range(own)],
        "all tiny": [(_UNDERFLOW - index, False) for index in range(own)],
        "all alike": [(-1.0, False)] * own,
    }
    values: dict[str, Mapping[str, Any]] = {}
    for name, results in scores.items():
        try:
            values[name] = score(results)
        except LimitExceededError:
            raise
        except Exception as error:
            if synthetic and callable(task.process_results):
                return
            mutual = "acc_mutual_info" in {metric.name for metric in metrics} and question.has_several_targets
            yield ScorerFinding(
                name="scorer-crashes",
                message=f"{doc}: scoring ends with {type(error).__name__}: {error}",
                hint="acc_mutual_info takes one gold answer" if mutual else None,
                position=at,
            )
            return
    for name in ("acc", "acc_norm", "acc_bytes"):
        best, other = _number(values["gold best"].get(name)), _number(values["another best"].get(name))
        if best is None or other is None:
            continue
        if best < 1 and question.choices[gold]:
            yield ScorerFinding(
                name="gold-does-not-win",
                message=f"{doc}: {name} is {best:g} when the gold choice is by far the most likely",
                position=at,
            )
        if other > 0 and len(right) < count and question.choices.count(question.choices[gold]) == 1:
            yield ScorerFinding(
                name="another-choice-wins",
                message=f"{doc}: {name} is {other:g} when another choice is by far the most likely",
                position=at,
            )
    yield from _ties(values["all alike"], values["another best"], right, doc, at)
    for name, value in values["all tiny"].items():
        number = _number(value)
        if number is not None and math.isnan(number):
            yield ScorerFinding(
                name="underflow",
                message=f"{doc}: {name} is NaN for log-likelihoods around {_UNDERFLOW:g}",
                hint="subtract the largest before exp()",
                position=at,
            )
    if not callable(task.process_results) and len(right) == 1:
        yield from _blanks(task, score, question, gold, own, doc)


def _ties(
    alike: Mapping[str, Any], other: Mapping[str, Any], right: set[int], doc: str, at: Position | None
) -> Iterator[ScorerFinding]:
    """Look at equal log-likelihoods; of equals the first wins, so a gold choice that is the first tells nothing."""
    if 0 in right or _number(alike.get("acc")) != 1 or _number(other.get("acc")) != 0:
        return
    yield ScorerFinding(
        name="tie-counts-as-right",
        message=f"{doc}: acc is 1 when all choices are equally likely, and the gold choice is not the first",
        hint="a model that tells no choice from another gets full marks: of equals count the first, as lm-eval does",
        position=at,
    )


def _blanks(
    task: Task,
    score: Callable[[Results, Question], Mapping[str, Any]],
    question: Question,
    gold: int,
    own: int,
    doc: str,
) -> Iterator[ScorerFinding]:
    """Score the same log-likelihoods with and without a blank that all choices begin with."""
    choices = list(question.choices)
    if not all(choice[:1].isspace() and choice.strip() for choice in choices):
        return
    bare = replace(question, choices=[choice[1:] for choice in choices], target=gold)
    for name, length in _LENGTHS.items():
        lengths, short = [length(choice) for choice in choices], [length(choice) for choice in bare.choices]
        other = max(range(len(choices)), key=lambda index: abs(lengths[index] - lengths[gold]))
        if lengths[other] == lengths[gold]:
            continue
        # Halfway between the two log-likelihoods at which the gold choice and the other one are even.
        even = (lengths[other] / lengths[gold] + short[other] / short[gold]) / 2
        results: Results = [(_FAR, False)] * own
        results[gold], results[other] = (-1.0, False), (-even, False)
        with_blank, without = (_number(score(results, asked).get(name)) for asked in (question, bare))
        if with_blank is not None and with_blank != without:
            yield ScorerFinding(
                name="blank-counts-as-length",
                message=f"{doc}: all choices begin with a blank, which {name} counts: the same log-likelihoods score "
                f"{with_blank:g} with it and {without:g} without it",
                hint="write the choices without it, and target_delimiter with it: the requests stay the same",
                position=task.position("doc_to_choice"),
            )


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
