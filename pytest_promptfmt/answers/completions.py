"""From a raw completion to its score, stage by stage: stop sequences, reasoning tags, filters, metrics."""

from __future__ import annotations

import math
import os
import re
import string
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Final

from pytest_promptfmt.answers.metric_values import aggregated_in_time, number_of
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
from pytest_promptfmt.core.limits import are_applied, time_limit
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.tasks import (
    BUDGET_SECONDS,
    METRICS,
    FilterPipeline,
    Question,
    TaskMetric,
    ValueCache,
    key_of_metrics,
    key_of_question,
    metrics_of,
    pipelines_of,
    process_results,
    require_speed,
    score_doc,
    within_budget,
)

THINK_END: Final = "</think>"
"""The reasoning tag that is stripped when it occurs; `metadata.promptfmt.think_end_token` names another, or none."""

NONSENSE: Final = "⁂ zxqv ⁂"
"""A completion that answers nothing."""


SECONDS_FOR_CODE: Final = 10.0
"""Seconds of processor time that scoring functions of a task have for one completion."""

_SLOW: Final = "SLOW: "
_MOST_REPEATS: Final = 64
_MOST_GOLDS: Final = 10_000
_MOST_READ: Final = 24_000_000
"""Characters of what was read before that a process keeps."""

_MOST_SCORED: Final = 8_000_000
"""Characters of what was scored before."""

_MOST_SHOWN: Final = 40
_LONG: Final = 1_000
"""Characters of a completion from which it takes time to cut it; the longest are the same for many tasks."""

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
        self._fingerprints: dict[int, tuple[FilterPipeline, Hashable | None]] = {}  # of pipelines that live as long
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
        self._metrics_key = None if own else key_of_metrics(self.metrics)
        self._questions: dict[int, tuple[Question, Hashable | None]] = {}  # those met last
        self.scores_nothing = is_synthetic and any(map(starts_processes, own))
        self.processes = 0
        self._tried = self._slow = 0

    def begun(self, raw: str) -> Stages:
        """Return what is left after reasoning and stop sequences are cut off, in lm-eval 0.4.13's order."""
        return Stages(raw, *_cut(raw, self._think_end, self.stops))

    def read(self, pipeline: FilterPipeline, raw: str, doc: Doc, what: str) -> Stages:
        """Return what a pipeline makes of a completion, within its time budget."""
        stages = self.read_uncounted(pipeline, raw, doc, what)
        slow = stages.problem if stages.problem is not None and stages.problem.startswith(_SLOW) else None
        self._count(slow, self.task.position("filter_list"))
        return stages

    def _count(self, slow: str | None, position: Position | None) -> None:
        """Count a completion; raises TooSlowError where the time that the others would take is not worth it."""
        self._tried += 1
        self._slow += slow is not None
        if slow is not None and self._slow >= _MOST_SLOW and 2 * self._slow > self._tried:
            others = f"nor did {self._slow - 1} others of {self._tried}: nothing more is tried"
            raise TooSlowError(
                f"{slow.removeprefix(_SLOW)}, {others}",
                position=position,
                hint="look for a regular expression that backtracks without end",
            )

    def read_uncounted(self, pipeline: FilterPipeline, raw: str, doc: Doc, what: str) -> Stages:
        """Return the same as `read`; a slow completion does not bring the end of all trials nearer."""
        answer, stopped = (_cut_once if len(raw) > _LONG else _cut)(raw, self._think_end, self.stops)
        if id(pipeline) not in self._fingerprints:
            self._fingerprints[id(pipeline)] = pipeline, pipeline.fingerprint
        _, fingerprint = self._fingerprints[id(pipeline)]
        if fingerprint is None:
            extracted, problem = self._filtered(pipeline, stopped, doc, _about(pipeline, what))
        else:
            extracted, problem = self._filtered_once(fingerprint, pipeline, stopped, doc)
            if problem is not None and problem.startswith(_SLOW):
                problem = f"{_SLOW}{_about(pipeline, what)}{problem.removeprefix(_SLOW)}"
        return Stages(raw, answer, stopped, extracted, problem)

    def _filtered_once(
        self, fingerprint: Hashable, pipeline: FilterPipeline, text: str, doc: Doc
    ) -> tuple[Any, str | None]:
        """Return what any pipeline of this fingerprint gives, tried once in this process: no doc has a say."""
        key = fingerprint, self._repeats, are_applied(), text
        known = _read_before.get(key)
        if known is not None:
            return known
        extracted, problem = filtered = self._filtered(pipeline, text, doc, "")
        if type(extracted) is str or extracted is None:  # what could be changed is not shared
            _read_before.keep(key, filtered, len(text) + len(extracted or "") + len(problem or ""))
        return filtered

    def _filtered(self, pipeline: FilterPipeline, text: str, doc: Doc, what: str) -> tuple[Any, str | None]:
        """Return what a pipeline extracts of a text, and the problem if there is one, which begins with `what`."""
        try:
            return within_budget(lambda part: pipeline.extract(part, doc, self._repeats), text, what=what), None
        except LimitExceededError as error:
            return None, f"{_SLOW}{error.message}"
        except Exception as error:
            return None, f"CRASH: {type(error).__name__}: {error}"

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
        key = self._score_key(question, extracted)
        known = None if key is None else _scored_before.get(key)
        if known is None:
            known = (number_of(self.metrics, self._values(question, doc, extracted)),)
            if key is not None:
                _scored_before.keep(key, known, len(extracted))
        elif self._patterns:
            self._count(None, None)
        return known[0]

    def _score_key(self, question: Question, extracted: Any) -> Hashable | None:
        """Return all that a score depends on; None where code of the task has a say, or what could be changed."""
        if self._metrics_key is None or type(extracted) is not str:
            return None
        if id(question) not in self._questions:
            if len(self._questions) >= _MOST_GOLDS:
                self._questions.clear()
            self._questions[id(question)] = question, key_of_question(question)
        _, asked = self._questions[id(question)]
        return None if asked is None else (self._metrics_key, asked, are_applied(), extracted)

    def _values(self, question: Question, doc: Doc, extracted: Any) -> Mapping[str, Any]:
        if self._patterns:
            return self._within_budget(question, extracted)
        if not self._has_code:
            return score_doc(self.task, self.metrics, doc, question, [extracted])
        before = _started.count
        with time_limit(SECONDS_FOR_CODE, "scoring one completion", self._scored_at):
            values = score_doc(self.task, self.metrics, doc, question, [extracted])
        self.processes += _started.count - before
        return values

    def try_scoring(self, question: Question, doc: Doc, extracted: Any, what: str) -> None:
        """Score an extraction as `is_right` does, only to see whether that ends, and with what exception.

        Raises LimitExceededError where the time of the metrics grows too fast with its length, or of what aggregates
        their values; the latter is tried once in this process for equal values.
        """
        if self.only_compares:  # which has a budget of its own
            self.is_right(question, doc, extracted)
        elif not self.scores_nothing:
            values = within_budget(partial(self._values, question, doc), extracted, what=what)
            number_of(self.metrics, values, partial(aggregated_in_time, what=what))
            self._range(question, doc, _gold_text(question), self._count_of(extracted))

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
        best, worst = self._range(question, doc, gold, self._count_of(extracted))
        if score is None or best is None or worst is None:
            return str(extracted).strip() == gold.strip()
        if best > worst:
            return math.isclose(score, best, abs_tol=1e-9) or score > best
        if callable(self.task.process_results):
            return score > worst
        return str(extracted).strip() == gold.strip()

    def _count_of(self, extracted: Any) -> int:
        return len(extracted) if self._has_code and isinstance(extracted, list | tuple) else 0

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
        read = {repr(self.read_uncounted(pipeline, raw, doc, "a completion").extracted) for doc in docs}
        return len(read) > 1


def _cut(raw: str, think_end: str | None, stops: tuple[str, ...]) -> tuple[str, str]:
    answer = raw.split(think_end)[-1].lstrip() if think_end and think_end in raw else raw
    stopped = answer
    for stop in stops:
        stopped = stopped.split(stop)[0]
    return answer, stopped


_cut_once: Final = lru_cache(maxsize=256)(_cut)


def _about(pipeline: FilterPipeline, what: str) -> str:
    patterns = "".join(f" (regex {one!r})" for one in pipeline.patterns)
    return f"the filters {pipeline.name!r}{patterns} on {what}"


def _think_end_of(task: Task) -> str | None:
    told: Any = task.own_metadata.get("think_end_token", THINK_END)
    if told is None or isinstance(told, str):
        return told
    raise ScoringError(
        f"think_end_token is {told!r}, and must be the closing tag, or null for none",
        position=task.position("metadata", "promptfmt", "think_end_token"),
    )


_read_before: Final[ValueCache[tuple[Any, str | None]]] = ValueCache(_MOST_READ)
_scored_before: Final[ValueCache[tuple[float | None]]] = ValueCache(_MOST_SCORED)


def _refuse_missing(task: Task, metrics: Sequence[TaskMetric]) -> None:
    for metric in metrics:
        if metric.function is not None:
            continue
        close = did_you_mean(metric.name, METRICS) if metric.name not in METRICS else None  # Hugging Face's namesake
        message = f"the metric {metric.name!r} is not lm-eval's, and Hugging Face evaluate does not give it here"
        kind = ScoringError if close else MetricUnavailableError
        raise kind(message, position=task.position("metric_list"), hint=close)


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
