"""The metrics and aggregations that lm-eval 0.4.13 registers, and the ones that a task's `metric_list` names.

BLEU, chrF and TER are sacrebleu's, F1 and MCC scikit-learn's; both are an extra (`pytest-promptfmt[metrics]`).
"""

from __future__ import annotations

import inspect
import math
import operator
import os
import re
import string
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import Position, ScoringError, did_you_mean, shortened
from pytest_promptfmt.core.files import hub_caches
from pytest_promptfmt.core.task import FunctionRef, Task
from pytest_promptfmt.tasks.scoring.budget import plain_key

MetricFunction = Callable[..., Any]


def exact_match(
    predictions: Any,
    references: Any,
    regexes_to_ignore: Sequence[str] | None = None,
    ignore_case: bool = False,
    ignore_punctuation: bool = False,
    ignore_numbers: bool = False,
) -> dict[str, Any]:
    """Return `{"exact_match": share of equal pairs}` after dropping what is to be ignored, in the order of arguments.

    Compared as numpy arrays: trailing NULs do not count, numbers equal numbers. Punctuation and digits are ASCII's.
    """
    sides = [predictions, references]
    if all(type(side) is list and side and all(type(text) is str for text in side) for side in sides):
        drops = ((ignore_punctuation and string.punctuation) or "") + ((ignore_numbers and string.digits) or "")
        reading = partial(_compared, patterns=regexes_to_ignore or (), lower=ignore_case, drops=drops)
        first, second = ([reading(text) for text in side] for side in sides)
        if len(first) == len(second):
            return {"exact_match": sum(map(operator.eq, first, second)) / len(first)}
    import numpy as np  # not needed for texts

    if regexes_to_ignore is None:
        sides = [np.asarray(side) for side in sides]
    else:
        for pattern in regexes_to_ignore:
            sides = [np.array([re.sub(pattern, "", text) for text in side]) for side in sides]
    if ignore_case:
        sides = [np.char.lower(side) for side in sides]
    for wanted, characters in ((ignore_punctuation, string.punctuation), (ignore_numbers, string.digits)):
        if wanted:
            table: Any = str.maketrans("", "", characters)
            sides = [np.char.translate(side, table=table) for side in sides]
    return {"exact_match": np.mean(sides[0] == sides[1])}


def _compared(text: str, patterns: Sequence[str], lower: bool, drops: str) -> str:
    """Return what is compared of a text; an array has no trailing NULs, after each step."""
    for pattern in patterns:
        text = re.sub(pattern, "", text).rstrip("\0")
    text = text.rstrip("\0")
    text = text.lower().rstrip("\0") if lower else text
    return text.translate(str.maketrans("", "", drops)).rstrip("\0") if drops else text


def _exact_match_by_name(**arguments: Any) -> dict[str, Any]:
    return exact_match(**arguments)


def acc_all(items: Sequence[tuple[Any, Mapping[str, Any]]]) -> Any:
    """Return the share of questions whose answers are all judged rightly; items are (prediction, doc) (MultiRC)."""
    questions: dict[tuple[Any, Any], list[bool]] = {}
    columns = list(zip(*items, strict=False))  # lm-eval takes what is common to all
    for prediction, doc in zip(columns[0], columns[1], strict=False):
        key = (doc["idx"]["paragraph"], doc["idx"]["question"])
        questions.setdefault(key, []).append((doc["label"] == 1) == prediction)
    return sum(map(all, questions.values())) / len(questions) if questions else math.nan


@dataclass(frozen=True, slots=True)
class Metric:
    """A registered metric: its function, the name of its default aggregation, and which way is better.

    `compares_text`: it compares the whole completion with the right answer.
    """

    function: MetricFunction
    aggregation: str = "mean"
    higher_is_better: bool = True
    compares_text: bool = False


_FUNCTIONS: Final[Mapping[str, MetricFunction]] = {
    "acc_all": acc_all,
    "bypass": lambda _items: None,
    "exact_match": _exact_match_by_name,
}

METRICS: Final[Mapping[str, Metric]] = {
    name: Metric(_FUNCTIONS.get(name, lambda items: items), **registered)
    for name, registered in data_table("metrics")["metrics"].items()
}
"""Every metric of lm-eval 0.4.13 by the name it is registered under."""

DEFAULT_METRICS: Final[Mapping[str, Sequence[str]]] = data_table("metrics")["defaults"]
"""The metrics of a task without `metric_list`, by output type."""

_OWN_KEYS: Final = frozenset({"metric", "aggregation", "higher_is_better", "hf_evaluate"})


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskMetric:
    """One metric as a task uses it. `function` is None where it cannot be had: scoring with it fails.

    `aggregation` is None for a name that lm-eval does not know.
    """

    name: str
    function: MetricFunction | None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    aggregation: Aggregation | None = None
    higher_is_better: Any = True


def metrics_of(task: Task) -> tuple[TaskMetric, ...]:
    """Return the task's metrics, in order; of two entries of one name the last counts.

    With `process_results` the entries only name and aggregate. Raises ScoringError for an entry that lm-eval refuses
    when it builds the task, and for a function that is not bound yet.
    """
    if task.metric_list is None:
        return tuple(_by_default(name) for name in DEFAULT_METRICS.get(task.output_type, ()))
    found = {}
    for index, entry in enumerate(task.metric_list):
        metric = _metric(task, entry, task.position("metric_list", index))
        found[metric.name] = metric
    return tuple(found.values())


def _by_default(name: str) -> TaskMetric:
    known = METRICS[name]
    return TaskMetric(
        name=name,
        function=known.function,
        aggregation=AGGREGATIONS[known.aggregation],
        higher_is_better=known.higher_is_better,
    )


def _metric(task: Task, entry: Mapping[str, Any], position: Position | None) -> TaskMetric:
    named, refusal = entry["metric"], partial(ScoringError, position=position)
    arguments = {key: value for key, value in entry.items() if key not in _OWN_KEYS}
    function: MetricFunction | None = None
    if task.process_results is not None:
        name, arguments = _name_of(named), {}
    elif isinstance(named, FunctionRef):
        raise refusal(f"the metric !function {named} was not imported")
    elif callable(named):
        name, function = _name_of(named), named
    elif not isinstance(named, str):
        hint = "write `metric: exact_match`, and its arguments as further keys of the entry"
        raise refusal(f"{shortened(repr(named))} is not the name of a metric", hint=hint)
    else:
        name = named
        function = _function(name, entry.get("hf_evaluate") is True)
    known = METRICS.get(name)
    aggregation: Aggregation | None = None
    if "aggregation" in entry:
        written = entry["aggregation"]
        aggregation = AGGREGATIONS.get(written) if isinstance(written, str) else written if callable(written) else None
    elif known is not None:
        aggregation = AGGREGATIONS[known.aggregation]
    else:
        message = f"set `aggregation` for the metric {name!r}, because lm-eval 0.4.13 has no default for it"
        raise refusal(message, hint=did_you_mean(name, METRICS) or "write `aggregation: mean`")
    better = entry.get("higher_is_better", known.higher_is_better if known is not None else None)
    return TaskMetric(
        name=name, function=function, arguments=arguments, aggregation=aggregation, higher_is_better=better
    )


def _name_of(named: Any) -> str:
    if isinstance(named, FunctionRef):
        return named.name
    return str(getattr(named, "__name__", named)) if callable(named) else str(named)


def _function(name: str, from_evaluate: bool) -> MetricFunction | None:
    known = METRICS.get(name)
    if known is not None and not from_evaluate:
        return known.function
    if not gate.allows_code():
        return None  # it is a Python file, which may be next to the task
    if not _may_be_had(name):
        return None
    try:
        import evaluate

        compute: MetricFunction = evaluate.load(name).compute
    except Exception:  # lm-eval 0.4.13 continues without it after any error
        return None
    return compute


def _may_be_had(name: str) -> bool:
    """Return whether evaluate can have a metric: it takes seconds to import, mostly for nothing where it is offline."""
    if os.environ.get("HF_EVALUATE_OFFLINE") != "1" or "evaluate" in sys.modules:
        return True
    modules = Path(os.environ.get("HF_MODULES_CACHE") or Path(hub_caches()[0], "modules")).expanduser()
    return Path(name).exists() or Path(f"{name}.py").exists() or (modules / "evaluate_modules" / "metrics").exists()


def key_of_metrics(metrics: Sequence[TaskMetric]) -> Hashable | None:
    """Return what is equal for metrics that give equal scores for equal answers; None if they depend on code."""
    parts = [
        (metric.name, metric.aggregation, arguments, better)
        for metric in metrics
        if metric.name in METRICS
        and metric.function is METRICS[metric.name].function
        and gives_the_same(metric.aggregation)
        and (arguments := plain_key(metric.arguments)) is not None
        and (better := plain_key(metric.higher_is_better)) is not None
    ]
    return tuple(parts) if len(parts) == len(metrics) else None


def gives_the_same(aggregation: Aggregation | None) -> bool:
    """Return whether an aggregation is lm-eval's own, so that it gives the same for the same values.

    Not scikit-learn's: its warnings belong to each task.
    """
    return any(aggregation is one for one in AGGREGATIONS.values()) and aggregation not in (f1, matthews_corrcoef)


def takes_arguments(metric: TaskMetric) -> bool:
    """Return whether the metric's function takes the arguments of its entry; True if its signature is unknown."""
    if metric.function is None or not metric.arguments:
        return True
    function = exact_match if metric.function is _exact_match_by_name else metric.function
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in signature.parameters.values())
    # One that takes the gold answer and the response as a list is called again without arguments.
    takes_list = signature.parameters.keys().isdisjoint(("references", "predictions"))
    return takes_any or takes_list or set(metric.arguments) <= set(signature.parameters)


# -- aggregations: from the values of all docs to one number ----------------------------------------------------------

Aggregation = Callable[[Any], Any]


def mean(values: Sequence[Any]) -> Any:
    """Return the mean; raises ZeroDivisionError for no values."""
    return sum(values) / len(values)


def nanmean(values: Sequence[Any]) -> Any:
    """Return the mean of what is a number; NaN when nothing is."""
    numbers = [value for value in values if not math.isnan(value)]
    return sum(numbers) / len(numbers) if numbers else math.nan


def median(values: Sequence[Any]) -> Any:
    """Return the upper median."""
    return sorted(values)[len(values) // 2]


def perplexity(values: Sequence[Any]) -> float:
    """Return e to the negated mean of log-likelihoods (nats)."""
    return math.exp(-mean(values))


def weighted_perplexity(pairs: Sequence[tuple[Any, Any]]) -> float:
    """Return e to the negated log-likelihood (nats) per unit of weight (words or bytes)."""
    return math.exp(-_weighted_mean(pairs))


def bits_per_byte(pairs: Sequence[tuple[Any, Any]]) -> Any:
    """Return the negated log-likelihood per unit of weight, in bits."""
    return -_weighted_mean(pairs) / math.log(2)


def f1(pairs: Sequence[tuple[Any, Any]]) -> Any:
    """Return scikit-learn's binary F1 of (gold, prediction) pairs."""
    golds, predictions = _columns(pairs)
    return _library("sklearn.metrics", "scikit-learn", "f1").f1_score(golds, predictions)


def matthews_corrcoef(pairs: Sequence[tuple[Any, Any]]) -> Any:
    """Return scikit-learn's Matthews correlation of (gold, prediction) pairs."""
    golds, predictions = _columns(pairs)
    return _library("sklearn.metrics", "scikit-learn", "mcc").matthews_corrcoef(golds, predictions)


def corpus_score(name: str, pairs: Sequence[tuple[Any, Any]], **arguments: Any) -> float:
    """Return the score of sacrebleu's `bleu`, `chrf` or `ter` (lower is better) of (reference, prediction) pairs."""
    sacrebleu = _library("sacrebleu", "sacrebleu", name)
    references, predictions = _columns(pairs)
    if not _is_list(references[0]):
        references = [[reference] for reference in references]
    if _is_list(predictions[0]):
        assert len(predictions[0]) == 1, f"a prediction must be one text, not {predictions[0]}"
        predictions = [prediction[0] for prediction in predictions]
    streams = list(zip(*references, strict=False))  # as many references as the doc with the fewest has
    score: float = getattr(sacrebleu, f"corpus_{name}")(predictions, streams, **arguments).score
    return score


def brier_score(pairs: Sequence[tuple[Any, Any]]) -> Any:
    """Return the mean squared distance of the probabilities from the gold choice, summed over choices."""
    if len({len(probabilities) for _, probabilities in pairs}) != 1:
        raise ValueError("all docs must have the same number of choices")
    distances = []
    for gold, probabilities in pairs:
        right = [0.0] * len(probabilities)
        right[gold] = 1.0  # IndexError for a gold that is not a choice
        distances.append(sum((share - best) ** 2 for share, best in zip(probabilities, right, strict=True)))
    return sum(distances) / len(distances)


AGGREGATIONS: Final[Mapping[str, Aggregation]] = {
    "bypass": lambda _values: 999,  # lm-eval's mark for a metric that was not computed
    "nanmean": nanmean,
    "mean": mean,
    "median": median,
    "perplexity": perplexity,
    "weighted_perplexity": weighted_perplexity,
    "bits_per_byte": bits_per_byte,
    "f1": f1,
    "matthews_corrcoef": matthews_corrcoef,
    "bleu": partial(corpus_score, "bleu"),
    "chrf": partial(corpus_score, "chrf"),
    "chrf++": partial(corpus_score, "chrf", word_order=2),
    "ter": partial(corpus_score, "ter"),
    "brier_score": brier_score,
}
"""Every aggregation of lm-eval 0.4.13 by the name it is registered under."""

OF_NUMBERS: Final = frozenset({mean, median, nanmean, perplexity, weighted_perplexity, bits_per_byte})
"""Those that only need the numbers of a doc, so that one doc shows whether they work."""


def _weighted_mean(pairs: Sequence[tuple[Any, Any]]) -> Any:
    values, weights = zip(*pairs, strict=False)
    return sum(values) / sum(weights)


def _columns(pairs: Sequence[tuple[Any, Any]]) -> tuple[Sequence[Any], Sequence[Any]]:
    columns = list(zip(*pairs, strict=False))  # lm-eval takes what is common to all
    return columns[0], columns[1]


def _is_list(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str)


def _library(module: str, package: str, metric: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ScoringError(
            f"the metric {metric} needs {package}, which is not installed",
            hint="pip install 'pytest-promptfmt[metrics]'",
        ) from error
