"""The aggregations that lm-eval 0.4.13 registers: from the values of all docs to one number.

BLEU, chrF and TER are sacrebleu's, F1 and MCC scikit-learn's; both are an extra (`pytest-promptfmt[metrics]`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

from pytest_promptfmt.core.errors import ScoringError

Aggregation = Callable[[Any], Any]


def mean(values: Sequence[Any]) -> Any:
    """Return the mean; raises ZeroDivisionError for no values."""
    return sum(values) / len(values)


def nanmean(values: Sequence[Any]) -> Any:
    """Return the mean of what is a number; NaN when nothing is."""
    import numpy as np

    return np.nan if len(values) == 0 or all(np.isnan(values)) else np.nanmean(values)


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


def bleu(pairs: Sequence[tuple[Any, Any]]) -> float:
    """Return sacrebleu's corpus BLEU (0 to 100) of (reference, prediction) pairs."""
    return _corpus_score("corpus_bleu", pairs)


def chrf(pairs: Sequence[tuple[Any, Any]]) -> float:
    """Return sacrebleu's corpus chrF (0 to 100)."""
    return _corpus_score("corpus_chrf", pairs)


def chrf_plus_plus(pairs: Sequence[tuple[Any, Any]]) -> float:
    """Return sacrebleu's corpus chrF++ (word order 2)."""
    return _corpus_score("corpus_chrf", pairs, word_order=2)


def ter(pairs: Sequence[tuple[Any, Any]]) -> float:
    """Return sacrebleu's corpus TER (lower is better)."""
    return _corpus_score("corpus_ter", pairs)


def brier_score(pairs: Sequence[tuple[Any, Any]]) -> Any:
    """Return the mean squared distance of the probabilities from the gold choice, summed over choices."""
    import numpy as np

    golds, probabilities = zip(*pairs, strict=False)
    _, choices = np.array(probabilities).shape
    right = np.eye(choices)[list(golds)]
    return np.mean(np.sum((np.array(probabilities) - right) ** 2, axis=1))


def bypass(_values: Any) -> int:
    """Return 999, lm-eval's mark for a metric that was not computed."""
    return 999


AGGREGATIONS: Final[Mapping[str, Aggregation]] = MappingProxyType(
    {
        "bypass": bypass,
        "nanmean": nanmean,
        "mean": mean,
        "median": median,
        "perplexity": perplexity,
        "weighted_perplexity": weighted_perplexity,
        "bits_per_byte": bits_per_byte,
        "f1": f1,
        "matthews_corrcoef": matthews_corrcoef,
        "bleu": bleu,
        "chrf": chrf,
        "chrf++": chrf_plus_plus,
        "ter": ter,
        "brier_score": brier_score,
    }
)
"""Every aggregation of lm-eval 0.4.13 by the name it is registered under."""

OF_NUMBERS: Final = frozenset({mean, median, nanmean, perplexity, weighted_perplexity, bits_per_byte})
"""Those that need no more than the numbers of a doc, so that one doc shows whether they work."""


def _weighted_mean(pairs: Sequence[tuple[Any, Any]]) -> Any:
    values, weights = zip(*pairs, strict=False)
    return sum(values) / sum(weights)


def _columns(pairs: Sequence[tuple[Any, Any]]) -> tuple[Sequence[Any], Sequence[Any]]:
    columns = list(zip(*pairs, strict=False))  # lm-eval takes what is common to all
    return columns[0], columns[1]


def _corpus_score(name: str, pairs: Sequence[tuple[Any, Any]], **arguments: Any) -> float:
    sacrebleu = _library("sacrebleu", "sacrebleu", name.removeprefix("corpus_"))
    references, predictions = _columns(pairs)
    if not _is_list(references[0]):
        references = [[reference] for reference in references]
    if _is_list(predictions[0]):
        assert len(predictions[0]) == 1, f"a prediction must be one text, not {predictions[0]}"
        predictions = [prediction[0] for prediction in predictions]
    streams = list(zip(*references, strict=False))  # as many references as the doc with the fewest has
    score: float = getattr(sacrebleu, name)(predictions, streams, **arguments).score
    return score


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
