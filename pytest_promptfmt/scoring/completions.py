"""From a raw completion to its score, stage by stage: stop sequences, reasoning tags, filters, metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pytest_promptfmt.errors import LimitExceededError, MetricWithheldError, ScoringError, did_you_mean
from pytest_promptfmt.scoring.filters import FilterPipeline, pipelines_of
from pytest_promptfmt.scoring.metrics import METRICS, TaskMetric, metrics_of
from pytest_promptfmt.scoring.regexes import within_budget
from pytest_promptfmt.scoring.results import Question, aggregated, score_doc
from pytest_promptfmt.tasks import Doc, Task

THINK_END: Final = "</think>"
"""The reasoning tag that is stripped when it occurs; `metadata.promptfmt.think_end_token` names another, or none."""

NONSENSE: Final = "⁂ zxqv ⁂"
"""A completion that answers nothing."""


_MOST_REPEATS: Final = 64


@dataclass(frozen=True, slots=True)
class Stages:
    """What became of one completion. `problem` tells why there is no extraction: `CRASH …` or `SLOW …`."""

    raw: str
    stopped: str
    extracted: Any = None
    problem: str | None = None


class Chain:
    """A task's stops, tag stripping, filters and metrics, ready to be tried; functions must be bound already.

    Raises ScoringError on construction for filters and metrics that do not exist, MetricWithheldError for a metric
    that Hugging Face evaluate does not give here.
    """

    def __init__(self, task: Task, stops: Sequence[str]) -> None:
        self.task = task
        self.stops = tuple(stop for stop in stops if isinstance(stop, str) and stop)
        self.pipelines = pipelines_of(task)
        self.metrics = metrics_of(task)
        if not callable(task.process_results):
            _refuse_missing(task, self.metrics)
        self._repeats = max(1, min(task.repeats, _MOST_REPEATS)) if isinstance(task.repeats, int) else 1
        self._think_end = task.own_metadata.get("think_end_token", THINK_END)
        self._best: dict[tuple[str, str], float | None] = {}

    def stopped(self, raw: str) -> str:
        """Return what is left after reasoning and stop sequences are cut off, in lm-eval 0.4.13's order."""
        if self._think_end and self._think_end in raw:
            raw = raw.split(self._think_end)[-1].lstrip()
        for stop in self.stops:
            raw = raw.split(stop)[0]
        return raw

    def read(self, pipeline: FilterPipeline, raw: str, doc: Doc, what: str) -> Stages:
        """Return what a pipeline makes of a completion, within its time budget."""
        stopped = self.stopped(raw)
        try:
            what = f"the filters {pipeline.name!r} on {what}"
            value = within_budget(pipeline.extract, stopped, doc, self._repeats, what=what)
        except LimitExceededError as error:
            return Stages(raw, stopped, problem=f"SLOW: {error.message}")
        except Exception as error:
            return Stages(raw, stopped, problem=f"CRASH: {type(error).__name__}: {error}")
        return Stages(raw, stopped, extracted=value)

    def score(self, question: Question, doc: Doc, extracted: Any) -> float | None:
        """Return the value of the first metric for one doc, better when higher; None when it is no number.

        Raises whatever the metric raises.
        """
        values = score_doc(self.task, self.metrics, doc, question, [extracted])
        return self._number(values)

    def is_right(self, question: Question, doc: Doc, extracted: Any) -> bool:
        """Return whether an extraction scores as the gold answer itself does.

        Where the metric gives both the same as nonsense, texts are compared. Raises whatever the metric raises.
        """
        score = self.score(question, doc, extracted)
        gold = _gold_text(question)
        best = self._best_score(question, doc, gold)
        if score is None or best is None:
            return str(extracted).strip() == gold.strip()
        return math.isclose(score, best, abs_tol=1e-9) or score > best

    def _best_score(self, question: Question, doc: Doc, gold: str) -> float | None:
        key = (repr(question.target), gold)
        if key not in self._best:
            best = self.score(question, doc, gold)
            worst = self.score(question, doc, NONSENSE)
            self._best[key] = None if best is None or worst is None or not best > worst else best
        return self._best[key]

    def _number(self, values: Mapping[str, Any]) -> float | None:
        by_name = {metric.name: metric for metric in self.metrics}
        for name, value in values.items():
            metric = by_name.get(name)
            number = _as_number(metric, value)
            if number is None or (metric is not None and metric.name == "bypass"):
                continue
            return -number if metric is not None and metric.higher_is_better is False else number
        return None


def _refuse_missing(task: Task, metrics: Sequence[TaskMetric]) -> None:
    for metric in metrics:
        if metric.function is not None:
            continue
        close = did_you_mean(metric.name, METRICS)
        message = f"the metric {metric.name!r} is not lm-eval's, and Hugging Face evaluate does not give it here"
        kind = ScoringError if close else MetricWithheldError
        raise kind(message, position=task.position("metric_list"), hint=close)


def _as_number(metric: TaskMetric | None, value: Any) -> float | None:
    if isinstance(value, tuple | list) and metric is not None and metric.aggregation is not None:
        value = aggregated(metric, [value])
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return None if math.isnan(number) else number


def _gold_text(question: Question) -> str:
    gold = question.target
    if question.choices is not None and isinstance(gold, int):
        gold = question.choices[gold]
    if isinstance(gold, list | tuple) and gold:
        gold = gold[0]
    return str(gold)


def is_nothing(extracted: Any) -> bool:
    """Return whether an extraction says that no answer was found: empty, or one of the usual fallbacks."""
    return str(extracted).strip().lower() in ("", "[invalid]", "invalid", "none", "[]", "['invalid']")


def with_gold(question: Question, target: Any, index: int) -> Question:
    """Return the question with another right answer: its index where the task has choices, else its target."""
    return replace(question, target=index if question.choices is not None else target)
