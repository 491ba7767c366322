"""Checks of multiple choice without a model: the gold answer is a choice, none of them is empty or there twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_promptfmt.answers.likelihood_checks import check_likelihoods
from pytest_promptfmt.answers.scorer_findings import ScorerFinding
from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.systems.lm_eval.scoring.metrics import TaskMetric
from pytest_promptfmt.systems.lm_eval.scoring.results import OUTSIDE, Question, gold_of


def check_choices(
    task: Task, metrics: Sequence[TaskMetric], instance: Instance, question: Question, *, synthetic: bool
) -> Iterator[ScorerFinding]:
    """Yield what is wrong with the choices of one doc, and with what they score; `synthetic` docs are made up."""
    choices = question.choices
    doc = f"doc {instance.index + 1}"
    at = task.position("doc_to_target")
    if not isinstance(choices, list | tuple) or not all(isinstance(choice, str) for choice in choices):
        return
    yield from _odd_choices(task, choices, doc)
    gold = gold_of(question)
    golds = gold if isinstance(gold, list) else [gold]
    if OUTSIDE in golds or not golds:
        yield _outside(question, choices, doc, at)
        return
    if not all(isinstance(index, int) for index in golds):
        yield ScorerFinding(
            name="gold-outside-choices", message=f"{doc}: the target {gold!r} is no index and no choice", position=at
        )
        return
    if any(index < 0 for index in golds):
        yield ScorerFinding(
            name="gold-outside-choices",
            message=f"{doc}: the target {gold} is negative: accuracy is 0 whatever the model says",
            hint="count choices from 0",
            position=at,
        )
        return
    yield from check_likelihoods(task, metrics, instance, question, golds, synthetic=synthetic)


def _odd_choices(task: Task, choices: Sequence[str], doc: str) -> Iterator[ScorerFinding]:
    at = task.position("doc_to_choice")
    for index, choice in enumerate(choices):
        if not choice.strip():
            yield ScorerFinding(
                name="empty-choice",
                message=f"{doc}: choice {index} is {choice!r}; length-normalised scores divide by its length",
                position=at,
            )
    seen: dict[str, int] = {}
    for index, choice in enumerate(choices):
        first = seen.setdefault(choice, index)
        if first != index and choice.strip():
            yield ScorerFinding(
                name="duplicate-choices",
                message=f"{doc}: choices {first} and {index} are both {choice!r}; of equals the first wins",
                position=at,
            )


def _outside(question: Question, choices: Sequence[str], doc: str, at: Position | None) -> ScorerFinding:
    target = question.text if question.has_several_inputs else question.target
    hint = "let doc_to_target give an index, or one of the texts of doc_to_choice"
    if isinstance(target, str):
        alike = [choice for choice in choices if choice.strip().casefold() == target.strip().casefold()]
        if alike:
            only_blank = alike[0].strip() == target.strip()
            return ScorerFinding(
                name="gold-differs-by-a-blank" if only_blank else "gold-differs-by-case",
                message=f"{doc}: the target {target!r} is none of the choices; {alike[0]!r} differs from it only by "
                + ("blanks" if only_blank else "letter case"),
                hint="every answer scores 0 here: write target and choices alike",
                position=at,
            )
        if target.strip().isdigit():
            hint = f"a text is looked up among the choices; for the choice at that position give {target.strip()}|int"
    shown = [choice if len(choice) <= 30 else f"{choice[:29]}…" for choice in choices]
    return ScorerFinding(
        name="gold-outside-choices",
        message=f"{doc}: the target {target!r} is none of the {len(choices)} choices {shown!r}: it always scores 0",
        hint=hint,
        position=at,
    )
