"""From extractions to scores: a task's metrics, within their time, with equal values scored once in a process."""

from __future__ import annotations

import math
import os
import re
import string
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any, Final

from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.errors import (
    LimitExceededError,
    Position,
    ScoringError,
    TooSlowError,
    UnavailableScoringError,
    did_you_mean,
)
from pytest_promptfmt.core.limits import are_applied, time_limit
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.tasks import (
    METRICS,
    Question,
    TaskMetric,
    ValueCache,
    aggregated,
    functions_reached,
    gives_the_same,
    key_of_metrics,
    key_of_question,
    metrics_of,
    plain_key,
    process_results,
    require_speed,
    score_doc,
    within_budget,
)

NONSENSE: Final = "⁂ zxqv ⁂"
"""A completion that answers nothing."""

SECONDS_FOR_CODE: Final = 10.0
"""Seconds of processor time that scoring functions of a task have for one completion."""

BACKTRACKS: Final = "simplify the regular expression: it probably backtracks too much"
SLOW_PROBLEM: Final = "SLOW: "
"""The beginning of a problem of time."""

_MOST_GOLDS: Final = 10_000
_MOST_SCORED: Final = 8_000_000
"""Characters of scored texts, and of aggregated ones, whose values a process keeps."""

_MOST_SHOWN: Final = 40
_MOST_SLOW: Final = 10
"""So many slow completions, when they are most of all, end a trial or a replay."""

Aggregate = Callable[[TaskMetric, Sequence[Any]], Any]


class _ForkCount:
    """How many processes this one has forked: a metric that runs generated code in them takes long for each answer."""

    def __init__(self) -> None:
        self.count = 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._one_more)

    def _one_more(self) -> None:
        self.count += 1


_forked: Final = _ForkCount()


class Patience:
    """Counts the completions of a task, and the slow ones among them."""

    def __init__(self) -> None:
        self._tried = self._slow = 0

    def count(self, slow: str | None, position: Position | None) -> None:
        """Count a completion, a slow one with its problem; raises TooSlowError once most are slow."""
        self._tried += 1
        self._slow += slow is not None
        if slow is not None and self._slow >= _MOST_SLOW and 2 * self._slow > self._tried:
            others = f"and {self._slow - 1} more of {self._tried} completions are too slow; the others were not tried"
            raise TooSlowError(
                f"{slow.removeprefix(SLOW_PROBLEM)}, {others}",
                position=position,
                hint=BACKTRACKS,
            )


class MetricScores:
    """A task's metrics, ready to score extractions; functions must be bound already.

    A metric that runs generated code `scores_nothing` of synthetic docs, which contain none: texts are compared.
    `only_compares` is whether patterns of exact_match are all that may take time, `processes` how many were started.

    Raises ScoringError on construction for metrics that do not exist, UnavailableScoringError for a metric that
    Hugging Face evaluate does not give here. Every method that scores raises TooSlowError once most completions were
    too slow.
    """

    def __init__(self, task: Task, *, is_synthetic: bool = False) -> None:
        self.task = task
        self.metrics = metrics_of(task)
        if not callable(task.process_results):
            _refuse_missing(task, self.metrics)
        self.patience = Patience()
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
        self._questions: dict[int, tuple[Question, Hashable | None]] = {}  # the latest ones
        self._ranges: dict[tuple[str, str, int], tuple[float | None, float | None]] = {}  # of the latest golds
        self.scores_nothing = is_synthetic and any(map(starts_processes, own))
        self.processes = 0

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

        Raises what the metric raises, and LimitExceededError for a pattern or function that takes too long.
        """
        if self.scores_nothing:
            return None
        key = self._score_key(question, extracted)
        known = None if key is None else _scored_before.get(key)
        if known is None:
            known = (number_of(self.metrics, self.values(question, doc, extracted)),)
            if key is not None:
                _scored_before.keep(key, known, len(extracted))
        elif self._patterns:
            self.patience.count(None, None)
        return known[0]

    def _score_key(self, question: Question, extracted: Any) -> Hashable | None:
        """Return all that a score depends on; None where code of the task scores, and for mutable values."""
        if self._metrics_key is None or type(extracted) is not str:
            return None
        if id(question) not in self._questions:
            if len(self._questions) >= _MOST_GOLDS:
                self._questions.clear()
            self._questions[id(question)] = question, key_of_question(question)
        _, asked = self._questions[id(question)]
        return None if asked is None else (self._metrics_key, asked, are_applied(), extracted)

    def values(self, question: Question, doc: Doc, extracted: Any) -> Mapping[str, Any]:
        """Return the value of each metric for one doc, before aggregation; raises as `score`."""
        if self._patterns:
            return self._within_budget(question, extracted)
        if not self._has_code:
            return score_doc(self.task, self.metrics, doc, question, [extracted])
        before = _forked.count
        with time_limit(SECONDS_FOR_CODE, "scoring one completion", self._scored_at):
            values = score_doc(self.task, self.metrics, doc, question, [extracted])
        self.processes += _forked.count - before
        return values

    def try_scoring(self, question: Question, doc: Doc, extracted: Any, what: str) -> None:
        """Score an extraction as `is_right` does, only to see whether that ends, and with what exception.

        Raises LimitExceededError where the time of the metrics grows too fast with its length, or of what aggregates
        their values; the latter is tried once in this process for equal values.
        """
        if self.only_compares:  # which has a separate budget
            self.is_right(question, doc, extracted)
        elif not self.scores_nothing:
            values = within_budget(partial(self.values, question, doc), extracted, what=what)
            number_of(self.metrics, values, partial(aggregated_in_time, what=what))
            self._range(question, doc, _gold_text(question), self._count_of(extracted))

    @property
    def _scored_at(self) -> Position | None:
        return self.task.position("process_results" if callable(self.task.process_results) else "metric_list")

    def _within_budget(self, question: Question, extracted: Any) -> Mapping[str, Any]:
        patterns = f"regexes_to_ignore {', '.join(map(repr, self._patterns))}"
        what = f"scoring {short_repr(extracted)} with {patterns}"

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
            self.patience.count(error.message, self._scored_at)
            raise LimitExceededError(error.message, position=self._scored_at, hint=error.hint) from None
        self.patience.count(None, None)
        return values

    def is_right(self, question: Question, doc: Doc, extracted: Any) -> bool:
        """Return whether an extraction scores as the gold answer itself does.

        Where that scores as nonsense does, a function of the task has to like the extraction better than nonsense. By
        other metrics texts are compared, unless one that reads an answer itself likes a text better that holds it.
        Raises what the metric raises.
        """
        score = self.score(question, doc, extracted)
        gold = _gold_text(question)
        best, worst = self._range(question, doc, gold, self._count_of(extracted))
        if score is None or best is None or worst is None:
            return str(extracted).strip() == gold.strip()
        if best > worst:
            return math.isclose(score, best, abs_tol=1e-9) or score > best
        text = str(extracted).strip()
        if callable(self.task.process_results) or (score > worst and gold.strip() in text):
            return score > worst
        return text == gold.strip()

    def knows_gold(self, question: Question, doc: Doc, extracted: Any) -> bool:
        """Return whether the gold answer scores better than nonsense; a synthetic one may lack a number to measure."""
        best, worst = self._range(question, doc, _gold_text(question), self._count_of(extracted))
        return best is None or worst is None or best > worst

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


_scored_before: Final[ValueCache[tuple[float | None]]] = ValueCache(_MOST_SCORED)


def _refuse_missing(task: Task, metrics: Sequence[TaskMetric]) -> None:
    for metric in metrics:
        if metric.function is not None:
            continue
        close = did_you_mean(metric.name, METRICS) if metric.name not in METRICS else None  # Hugging Face's namesake
        message = f"{metric.name!r} is not a metric of lm-eval, and the package evaluate cannot load it"
        if close:
            raise task.error(ScoringError, message, "metric_list", hint=close)
        refusal = task.error(UnavailableScoringError, message, "metric_list")
        raise refusal.because("a metric of the package evaluate is not available")


def gold_text(question: Question) -> str | None:
    """Return the gold answer as it is written: of several the first, of choices their text; None for other values."""
    gold, choices = question.target, question.choices
    if choices is not None and isinstance(gold, int) and 0 <= gold < len(choices):
        gold = choices[gold]
    if isinstance(gold, list | tuple):
        gold = gold[0] if gold else None
    return str(gold) if isinstance(gold, str | int | float) else None


def _gold_text(question: Question) -> str:
    text = gold_text(question)
    return str(question.target) if text is None else text


def normalised(text: str, arguments: Mapping[str, Any]) -> str:
    """Return what exact_match compares of a text, by its arguments (lm-eval 0.4.13).

    Raises LimitExceededError for a pattern that backtracks without end.
    """
    for pattern in arguments.get("regexes_to_ignore") or ():
        what = f"applying the pattern {pattern!r} to {short_repr(text)}"
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


def with_gold(question: Question, target: Any, index: int) -> Question:
    """Return the question with another right answer: its index where the task has choices, else its target."""
    return replace(question, target=index if question.choices is not None else target)


# -- values as numbers ---------------------------------------------------------------------------------------------

_aggregated_before: Final[ValueCache[tuple[Any, str]]] = ValueCache(_MOST_SCORED)


def number_of(
    metrics: Sequence[TaskMetric], values: Mapping[str, Any], aggregate: Aggregate = aggregated
) -> float | None:
    """Return the first value of a doc that is a number, better when higher; None without one."""
    by_name = {metric.name: metric for metric in metrics}
    for name, value in values.items():
        metric = by_name.get(name)
        number = _as_number(metric, value, aggregate)
        if number is None or (metric is not None and metric.name == "bypass"):
            continue
        return -number if metric is not None and metric.higher_is_better is False else number
    return None


def _as_number(metric: TaskMetric | None, value: Any, aggregate: Aggregate) -> float | None:
    if isinstance(value, tuple | list) and metric is not None and metric.aggregation is not None:
        value = aggregate(metric, [value])
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return None if math.isnan(number) else number


def aggregated_in_time(metric: TaskMetric, values: Sequence[Any], *, what: str) -> Any:
    """Return the aggregate of one doc's value, a list or tuple.

    Raises LimitExceededError where its time grows too fast with the longest text in it; for an aggregation of lm-eval
    that is tried once in this process for equal values.
    """
    (value,) = values
    lengths = [len(part) if isinstance(part, str) else 0 for part in value]
    longest = lengths.index(max(lengths)) if lengths else 0

    text = value[longest] if value else None

    def with_text(part: Any) -> Any:
        if part is text:
            return aggregated(metric, values)
        parts = [*value[:longest], part, *value[longest + 1 :]]
        return aggregated(metric, [parts if isinstance(value, list) else tuple(parts)])

    key = plain_key(value) if gives_the_same(metric.aggregation) else None
    if key is None:
        return within_budget(with_text, text, what=what)
    known_by = metric.aggregation, are_applied(), key
    known = _aggregated_before.get(known_by)
    if known is None:
        try:
            known = within_budget(with_text, text, what=""), ""
        except LimitExceededError as error:
            known = None, error.message
        _aggregated_before.keep(known_by, known, sum(lengths))
    result, slow = known
    if slow:
        raise LimitExceededError(f"{what}{slow}")
    return result


# -- functions that start processes: trying such a metric costs much --------------------------------------------------

_MODULES: Final = ("multiprocessing", "subprocess", "concurrent.futures")
_PREFIXES: Final = tuple(f"{module}." for module in _MODULES)
_OF_OS: Final = frozenset({"fork", "forkpty", "popen", "posix_spawn", "posix_spawnp", "spawnl", "spawnv", "system"})


def starts_processes(function: object) -> bool:
    """Return whether code that a function may come to, outside of libraries, names a way to start processes."""
    return any(
        reached.names.intersection(_MODULES)
        or ("os" in reached.names and reached.names & _OF_OS)
        or any(map(_belongs_to, reached.values))
        for reached in functions_reached(function)
    )


def _belongs_to(value: Any) -> bool:
    names = [getattr(type(value), "__module__", None), getattr(value, "__module__", None)]
    if isinstance(value, ModuleType):
        names = [value.__name__]
    return any(isinstance(name, str) and f"{name}.".startswith(_PREFIXES) for name in names)
