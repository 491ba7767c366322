"""eval-framework's log-likelihood metrics, read from 0.15.4: scores of candidates by their text.

Formulas are the papers'. Where upstream deviates, `upstream=True` gives upstream's number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from pytest_promptfmt.core.errors import ScoringError

Scores = Mapping[str, float]
"""Candidate text to summed log-probability (nats)."""

Golds = str | Sequence[str]


def accuracy(scores: Scores, golds: Golds) -> float:
    """Return 1.0 when the best candidate (of equals the first) is a gold text, byte for byte, else 0.0."""
    return float(_best(scores) in _listed(golds))


def accuracy_norm(scores: Scores, golds: Golds) -> float:
    """Return the accuracy of scores divided by the number of characters."""
    return float(_best(_per_character(scores)) in _listed(golds))


def confidence_weighted_accuracy(scores: Scores, golds: Golds) -> float:
    """Return the probability of the winner when it is right, else 0; per character, blanks and case not counted."""
    chances = _softmax(_per_character(scores))
    winner = _best(chances)
    return chances[winner] if _plain(winner) in _plain_set(golds) else 0.0


def probability_mass(scores: Scores, golds: Golds, *, upstream: bool = False) -> float:
    """Return the probability of all gold candidates together.

    Upstream does not subtract the maximum (NaN for very small scores) and refuses a gold that is one text.
    """
    if upstream and isinstance(golds, str):
        raise ScoringError("eval-framework's probability mass takes a list of golds, not one text")
    chances = _softmax_without_shift(scores) if upstream else _softmax(scores)
    return sum(chance for candidate, chance in chances.items() if candidate in _listed(golds))


def probability_mass_norm(scores: Scores, golds: Golds, *, upstream: bool = False) -> float:
    """Return the probability mass of scores divided by the number of characters."""
    return probability_mass(_per_character(scores), golds, upstream=upstream)


def ternary_score(scores: Scores, golds: Golds, *, right: float = 1.0, wrong: float = 1.0) -> float:
    """Return `right`, 0 for the last candidate (which must be "I don't know"), or -`wrong`; lengths normalised."""
    winner = _best(_per_character(scores))
    if _plain(winner) in _plain_set(golds):
        return right
    return 0.0 if _plain(winner) == _plain(list(scores)[-1]) else -wrong


def distributional_correctness(
    scores: Scores, golds: Golds, *, right: float = 1.0, wrong: float = 1.0, upstream: bool = False
) -> float:
    """Return (right·p(gold) - wrong·p(others)) · (1 - p(don't know)), the last candidate being "I don't know".

    Lengths are normalised as upstream does. Upstream looks the last candidate up by a key without blanks and capitals
    in a table that keeps them: for " I don't know." it finds nothing, and the last factor is 1 there.
    """
    if not right >= wrong >= 0:
        raise ScoringError("distributional correctness needs right >= wrong >= 0")
    chances = _softmax(_per_character(scores))
    golden = _plain_set(golds)
    last = list(scores)[-1]
    ignorance = chances.get(_plain(last), 0.0) if upstream else chances[last]
    gold = sum(chance for candidate, chance in chances.items() if _plain(candidate) in golden)
    wrongs = (one for one in chances if _plain(one) not in golden and _plain(one) != _plain(last))
    others = sum(chances[one] for one in wrongs)
    return (right * gold - wrong * others) * (1 - ignorance)


def bits_per_byte(scores: Scores, golds: Golds) -> float:
    """Return the bits per UTF-8 byte of the first gold that is a candidate; raises ScoringError when none is."""
    for gold in _listed(golds):
        if gold in scores:
            return -scores[gold] / (len(gold.encode()) * math.log(2))
    raise ScoringError(f"none of the golds {list(_listed(golds))!r} is one of the candidates {list(scores)!r}")


LIKELIHOOD_METRICS: Final[Mapping[str, Callable[..., float]]] = MappingProxyType(
    {
        "accuracy": accuracy,
        "accuracy_norm": accuracy_norm,
        "confidence_weighted_accuracy": confidence_weighted_accuracy,
        "probability_mass": probability_mass,
        "probability_mass_norm": probability_mass_norm,
        "ternary_score": ternary_score,
        "distributional_correctness": distributional_correctness,
        "bits_per_byte": bits_per_byte,
    }
)
"""The metrics by name."""


def _best(scores: Scores) -> str:
    if not scores:
        raise ScoringError("there are no candidates to score")
    return max(scores, key=lambda candidate: scores[candidate])


def _per_character(scores: Scores) -> dict[str, float]:
    if "" in scores:
        raise ScoringError("an empty candidate has no length to divide by")
    return {candidate: score / len(candidate) for candidate, score in scores.items()}


def _softmax(scores: Scores) -> dict[str, float]:
    highest = max(scores.values())
    weights = {candidate: math.exp(score - highest) for candidate, score in scores.items()}
    total = sum(weights.values())
    return {candidate: weight / total for candidate, weight in weights.items()}


def _softmax_without_shift(scores: Scores) -> dict[str, float]:
    weights = {candidate: math.exp(score) for candidate, score in scores.items()}
    total = sum(weights.values())
    return {candidate: weight / total if total else math.nan for candidate, weight in weights.items()}


def _listed(golds: Golds) -> Sequence[str]:
    return (golds,) if isinstance(golds, str) else golds


def _plain(text: str) -> str:
    return text.strip().lower()


def _plain_set(golds: Golds) -> frozenset[str]:
    return frozenset(_plain(gold) for gold in _listed(golds))
