"""From a raw completion to its score, stage by stage: stop sequences, reasoning tags, filters, metrics."""

from __future__ import annotations

import math
import os
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from pytest_promptfmt.answers.starting import starts_processes
from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.errors import (
    LimitExceededError,
    MetricUnavailableError,
    Position,
    ScoringError,
    TooSlowError,
    did_you_mean,
)
from pytest_promptfmt.core.limits import time_limit
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.systems.lm_eval.scoring.filters import FilterPipeline, pipelines_of
from pytest_promptfmt.systems.lm_eval.scoring.metrics import METRICS, TaskMetric, metrics_of
from pytest_promptfmt.systems.lm_eval.scoring.regexes import BUDGET_SECONDS, require_speed, within_budget
from pytest_promptfmt.systems.lm_eval.scoring.results import Question, aggregated, process_results, score_doc

THINK_END: Final = "</think>"
"""The reasoning tag that is stripped when it occurs; `metadata.promptfmt.think_end_token` names another, or none."""

NONSENSE: Final = "⁂ zxqv ⁂"
"""A completion that answers nothing."""


SECONDS_FOR_CODE: Final = 10.0
"""Seconds of processor time that scoring functions of a task have for one completion."""

_MOST_REPEATS: Final = 64
_MOST_GOLDS: Final = 10_000
_MOST_READ: Final = 2_000
_MOST_SHOWN: Final = 40
_MOST_SLOW: Final = 10
"""So many slow completions, when they are most of all, end a trial or a replay."""


class _Started:
    """How many processes this one has forked: a metric that runs generated code in them takes long for each answer."""

    def __init__(self) -> None:
        self.count = 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._one_more)

    def _one_more(self) -> None:
        self.count += 1


_started: Final = _Started()


@dataclass(frozen=True, slots=True)
class Stages:
    """What became of one completion: `answer` is what follows its reasoning, `stopped` what stop sequences leave of it.

    `problem` tells why there is no extraction: `CRASH …` or `SLOW …`.
    """

    raw: str
    answer: str
    stopped: str
    extracted: Any = None
    problem: str | None = None


class Chain:
    """A task's stops, tag stripping, filters and metrics, ready to be tried; functions must be bound already.

    A metric that runs generated code `scores_nothing` of synthetic docs, in which no code is: texts are compared.

    It `only_compares` where patterns of exact_match are all that may take its time.

    Raises ScoringError on construction for filters and metrics that do not exist, MetricUnavailableError for a metric
    that Hugging Face evaluate does not give here. Every method that filters or scores raises TooSlowError once most
    completions were too slow.
    """

    def __init__(self, task: Task, stops: Sequence[str], *, is_synthetic: bool = False) -> None:
        self.task = task
        self.stops = tuple(stop for stop in stops if isinstance(stop, str) and stop)
        self.pipelines = pipelines_of(task)
        self.metrics = metrics_of(task)
        if not callable(task.process_results):
            _refuse_missing(task, self.metrics)
        self._repeats = max(1, min(task.repeats, _MOST_REPEATS)) if isinstance(task.repeats, int) else 1
        self._think_end = _think_end_of(task)
        self._ranges: dict[tuple[str, str, int], tuple[float | None, float | None]] = {}  # of the golds met last
        self._patterns = tuple(
            pattern
            for metric in (() if callable(task.process_results) else self.metrics)
            for pattern in metric.arguments.get("regexes_to_ignore") or ()
        )
        self.only_compares = bool(self._patterns) and {metric.name for metric in self.metrics} == {"exact_match"}
        functions = [task.process_results, *(entry.get("metric") for entry in task.metric_list or ())]
        own = [function for function in functions if callable(function)]
        self._has_code = bool(own)
        self.scores_nothing = is_synthetic and any(map(starts_processes, own))
        self.processes = 0
        self._tried = self._slow = 0

    def begun(self, raw: str) -> Stages:
        """Return what is left after reasoning and stop sequences are cut off, in lm-eval 0.4.13's order."""
        answer = raw
        if self._think_end and self._think_end in raw:
            answer = raw.split(self._think_end)[-1].lstrip()
        stopped = answer
        for stop in self.stops:
            stopped = stopped.split(stop)[0]
        return Stages(raw, answer, stopped)

    def read(self, pipeline: FilterPipeline, raw: str, doc: Doc, what: str) -> Stages:
        """Return what a pipeline makes of a completion, within its time budget."""
        stages = self._read(pipeline, raw, doc, what)
        slow = stages.problem if stages.problem is not None and stages.problem.startswith("SLOW") else None
        self._count(slow, self.task.position("filter_list"))
        return stages

    def _count(self, slow: str | None, position: Position | None) -> None:
        """Count a completion; raises TooSlowError where the time that the others would take is not worth it."""
        self._tried += 1
        self._slow += slow is not None
        if slow is not None and self._slow >= _MOST_SLOW and 2 * self._slow > self._tried:
            others = f"nor did {self._slow - 1} others of {self._tried}: nothing more is tried"
            raise TooSlowError(
                f"{slow.removeprefix('SLOW: ')}, {others}",
                position=position,
                hint="look for a regular expression that backtracks without end",
            )

    def _read(self, pipeline: FilterPipeline, raw: str, doc: Doc, what: str) -> Stages:
        stages = self.begun(raw)
        about = f"the filters {pipeline.name!r}" + "".join(f" (regex {one!r})" for one in pipeline.patterns)
        try:
            value = within_budget(
                lambda text: pipeline.extract(text, doc, self._repeats), stages.stopped, what=f"{about} on {what}"
            )
        except LimitExceededError as error:
            return replace(stages, problem=f"SLOW: {error.message}")
        except Exception as error:
            return replace(stages, problem=f"CRASH: {type(error).__name__}: {error}")
        return replace(stages, extracted=value)

    def read_once(self, pipeline: FilterPipeline, raw: str, doc: Doc, what: str) -> Stages:
        """Return the same as `read`, remembered for all tasks of the process that filter alike.

        For completions that are long, and the same for every task.
        """
        fingerprint = pipeline.fingerprint
        if fingerprint is None:
            return self._read(pipeline, raw, doc, what)
        key = (pipeline.name, fingerprint, self._repeats, self.stops, repr(self._think_end), what)
        if key not in _read_before:
            if len(_read_before) >= _MOST_READ:
                _read_before.clear()
            _read_before[key] = self._read(pipeline, raw, doc, what)
        return _read_before[key]

    def read_all(
        self, pipeline: FilterPipeline, raws: Sequence[str], docs: Sequence[Doc], whats: Sequence[str]
    ) -> list[Stages]:
        """Return what a pipeline makes of many completions at once, as lm-eval applies it; one by one if that fails."""
        begun = [self.begun(raw) for raw in raws]
        responses = [[one.stopped] * self._repeats for one in begun]
        try:
            with time_limit(2 * BUDGET_SECONDS, "many completions"):
                values = pipeline.apply(responses, docs)
            if len(values) != len(begun):
                raise ValueError
        except Exception:
            return [self.read(pipeline, *one) for one in zip(raws, docs, whats, strict=True)]
        return [replace(stages, extracted=value) for stages, value in zip(begun, values, strict=True)]

    def compared(self, extracted: Any) -> str | None:
        """Return what exact_match compares of an extraction by its arguments; None where another metric judges."""
        metric = next((metric for metric in self.metrics if metric.name == "exact_match"), None)
        if metric is None or callable(self.task.process_results) or not isinstance(extracted, str):
            return None
        try:
            return normalised(extracted, metric.arguments)
        except LimitExceededError:
            return None

    def score(self, question: Question, doc: Doc, extracted: Any) -> float | None:
        """Return the value of the first metric for one doc, better when higher; None for no number and where not tried.

        Raises whatever the metric raises, and LimitExceededError for a pattern or function that takes too long.
        """
        if self.scores_nothing:
            return None
        if self._patterns:
            values = self._within_budget(question, extracted)
        elif self._has_code:
            before = _started.count
            with time_limit(SECONDS_FOR_CODE, "scoring one completion", self._scored_at):
                values = score_doc(self.task, self.metrics, doc, question, [extracted])
            self.processes += _started.count - before
        else:
            values = score_doc(self.task, self.metrics, doc, question, [extracted])
        return number_of(self.metrics, values)

    @property
    def _scored_at(self) -> Position | None:
        return self.task.position("process_results" if callable(self.task.process_results) else "metric_list")

    def _within_budget(self, question: Question, extracted: Any) -> Mapping[str, Any]:
        patterns = f"regexes_to_ignore {', '.join(map(repr, self._patterns))}"
        what = f"the metrics ({patterns}) on {short_repr(extracted)}"

        def score(text: Any) -> Mapping[str, Any]:
            return process_results(self.metrics, question, [text])

        try:
            if self.only_compares and isinstance(extracted, str):
                require_speed(self._patterns, extracted, what)
                with time_limit(SECONDS_FOR_CODE, what):
                    values = score(extracted)
            else:
                values = within_budget(score, extracted, what=what)
        except LimitExceededError as error:
            self._count(error.message, self._scored_at)
            raise LimitExceededError(error.message, position=self._scored_at, hint=error.hint) from None
        self._count(None, None)
        return values

    def is_right(self, question: Question, doc: Doc, extracted: Any) -> bool:
        """Return whether an extraction scores as the gold answer itself does.

        Where that scores as nonsense does, a function of the task has to like the extraction better than nonsense, and
        by other metrics texts are compared. Raises whatever the metric raises.
        """
        score = self.score(question, doc, extracted)
        gold = _gold_text(question)
        count = len(extracted) if self._has_code and isinstance(extracted, list | tuple) else 0
        best, worst = self._range(question, doc, gold, count)
        if score is None or best is None or worst is None:
            return str(extracted).strip() == gold.strip()
        if best > worst:
            return math.isclose(score, best, abs_tol=1e-9) or score > best
        if callable(self.task.process_results):
            return score > worst
        return str(extracted).strip() == gold.strip()

    def _range(self, question: Question, doc: Doc, gold: str, count: int) -> tuple[float | None, float | None]:
        """Return what the gold answer and what nonsense scores: as texts, or as lists of `count` unless that is 0."""
        key = (repr(question.target), gold, count)
        if key not in self._ranges:
            if len(self._ranges) >= _MOST_GOLDS:
                self._ranges.clear()
            best, worst = ([text] * count if count else text for text in (gold, NONSENSE))
            self._ranges[key] = (self.score(question, doc, best), self.score(question, doc, worst))
        return self._ranges[key]

    def puts_doc_in(self, pipeline: FilterPipeline, raw: str, docs: Sequence[Doc]) -> bool:
        """Return whether what a pipeline reads of a completion holds something of the doc, as code to be run does."""
        if pipeline.fingerprint is not None:
            return False  # it has no code of the task
        read = {repr(self._read(pipeline, raw, doc, "a completion").extracted) for doc in docs}
        return len(read) > 1


def _think_end_of(task: Task) -> str | None:
    told: Any = task.own_metadata.get("think_end_token", THINK_END)
    if told is None or isinstance(told, str):
        return told
    raise ScoringError(
        f"think_end_token is {told!r}, and must be the closing tag, or null for none",
        position=task.position("metadata", "promptfmt", "think_end_token"),
    )


_read_before: dict[tuple[Any, ...], Stages] = {}


def number_of(metrics: Sequence[TaskMetric], values: Mapping[str, Any]) -> float | None:
    """Return the first value of a doc that is a number, better when higher; None where there is none."""
    by_name = {metric.name: metric for metric in metrics}
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
        close = did_you_mean(metric.name, METRICS) if metric.name not in METRICS else None  # Hugging Face's namesake
        message = f"the metric {metric.name!r} is not lm-eval's, and Hugging Face evaluate does not give it here"
        kind = ScoringError if close else MetricUnavailableError
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


def normalised(text: str, arguments: Mapping[str, Any]) -> str:
    """Return what exact_match compares of a text, by its arguments (lm-eval 0.4.13).

    Raises LimitExceededError for a pattern that backtracks without end.
    """
    for pattern in arguments.get("regexes_to_ignore") or ():
        what = f"the pattern {pattern!r} on {short_repr(text)}"
        text = within_budget(partial(re.sub, pattern, ""), text, what=what)
    if arguments.get("ignore_case"):
        text = text.lower()
    dropped = string.punctuation if arguments.get("ignore_punctuation") else ""
    dropped += string.digits if arguments.get("ignore_numbers") else ""
    return text.translate(str.maketrans("", "", dropped))


def short_repr(value: Any) -> str:
    """Return a value as a message shows it: of a long text only its beginning."""
    text = value if isinstance(value, str) else repr(value)
    return repr(text) if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]!r}… ({len(text):,} characters)"


def is_nothing(extracted: Any, pipeline: FilterPipeline | None = None) -> bool:
    """Return whether an extraction says that no answer was found: empty, or a fallback, usual or of the pipeline."""
    text = str(extracted).strip()
    if pipeline is not None and text in pipeline.fallbacks:
        return True
    return text.lower() in ("", "[invalid]", "invalid", "none", "[]", "['invalid']")


def with_gold(question: Question, target: Any, index: int) -> Question:
    """Return the question with another right answer: its index where the task has choices, else its target."""
    return replace(question, target=index if question.choices is not None else target)
