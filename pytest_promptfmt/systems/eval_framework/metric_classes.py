"""The metrics of eval-framework 0.15.4, by the names of their classes.

Log-likelihood metrics follow the formulas of their papers. eval-framework deviates from them in two places: probability
masses do not subtract the maximum (NaN for very small scores) and refuse a gold that is one text, and the
distributional correctness score finds no probability for an "I don't know" with a leading space or capitals. Metrics of
completions are few: the others run code, ask a judge or need models, and are left out.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from pytest_promptfmt.core.errors import ScoringError

Scores = Mapping[str, float]
"""Candidate text to summed log-probability (nats)."""

Golds = str | Sequence[str]


# -- log-likelihoods ---------------------------------------------------------------------------------------------------


def accuracy(scores: Scores, golds: Golds) -> float:
    """Return 1.0 when the best candidate (of equals the first) is a gold text, byte for byte, else 0.0."""
    return float(_best(scores) in _listed(golds))


def accuracy_norm(scores: Scores, golds: Golds) -> float:
    """Return the accuracy of scores divided by the number of characters."""
    return float(_best(_per_character(scores)) in _listed(golds))


def confidence_weighted_accuracy(scores: Scores, golds: Golds) -> float:
    """Return the probability of the winner when it is right, else 0; per character, ignoring outer spaces and case."""
    chances = _softmax(_per_character(scores))
    winner = _best(chances)
    return chances[winner] if _plain(winner) in _plain_set(golds) else 0.0


def probability_mass(scores: Scores, golds: Golds) -> float:
    """Return the probability of all gold candidates together."""
    return sum(chance for candidate, chance in _softmax(scores).items() if candidate in _listed(golds))


def probability_mass_norm(scores: Scores, golds: Golds) -> float:
    """Return the probability mass of scores divided by the number of characters."""
    return probability_mass(_per_character(scores), golds)


def ternary_score(scores: Scores, golds: Golds) -> float:
    """Return 1 for a right winner, 0 for the last candidate (which must be "I don't know"), -1 for any other.

    Scores are divided by the number of characters.
    """
    winner = _plain(_best(_per_character(scores)))
    if winner in _plain_set(golds):
        return 1.0
    return 0.0 if winner == _plain(list(scores)[-1]) else -1.0


def distributional_correctness(scores: Scores, golds: Golds) -> float:
    """Return (p(gold) - p(others)) · (1 - p(don't know)), the last candidate being "I don't know".

    Scores are divided by the number of characters.
    """
    chances = _softmax(_per_character(scores))
    golden = _plain_set(golds)
    last = list(scores)[-1]
    gold = sum(chance for candidate, chance in chances.items() if _plain(candidate) in golden)
    others = (one for one in chances if _plain(one) not in golden and _plain(one) != _plain(last))
    return (gold - sum(chances[one] for one in others)) * (1 - chances[last])


def bits_per_byte(scores: Scores, golds: Golds) -> float:
    """Return the bits per UTF-8 byte of the first gold that is a candidate; raises ScoringError when none is."""
    for gold in _listed(golds):
        if gold in scores:
            return -scores[gold] / (len(gold.encode()) * math.log(2))
    raise ScoringError(f"none of the golds {list(_listed(golds))!r} is one of the candidates {list(scores)!r}")


LIKELIHOOD_METRICS: Final[Mapping[str, Callable[[Scores, Golds], float]]] = MappingProxyType(
    {
        "AccuracyLoglikelihood": accuracy,
        "AccuracyNormLoglikelihood": accuracy_norm,
        "ConfidenceWeightedAccuracy": confidence_weighted_accuracy,
        "ProbabilityMass": probability_mass,
        "ProbabilityMassNorm": probability_mass_norm,
        "TernaryScore": ternary_score,
        "DistributionalCorrectnessScore": distributional_correctness,
        "BitsPerByteLoglikelihood": bits_per_byte,
    }
)


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


def _listed(golds: Golds) -> Sequence[str]:
    return (golds,) if isinstance(golds, str) else golds


def _plain(text: str) -> str:
    return text.strip().lower()


def _plain_set(golds: Golds) -> frozenset[str]:
    return frozenset(_plain(gold) for gold in _listed(golds))


# -- completions -------------------------------------------------------------------------------------------------------

_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_OLMES: Final = (",", r"\$", r"(?s).*#### ", r"\.$")


def accuracy_completion(completion: str, golds: Sequence[str]) -> float:
    """Return 1.0 when the completion is a gold text, byte for byte."""
    return float(completion in golds)


def accuracy_completion_olmes(completion: str, golds: Sequence[str]) -> float:
    """Return the share of golds equal to the completion without commas, dollar signs, `####` and a last full stop."""
    stripped = [_without_signs(gold) for gold in golds]
    return stripped.count(_without_signs(completion)) / len(stripped) if stripped else 0.0


def f1(completion: str, golds: Sequence[str]) -> float:
    """Return the best F1 of lower-case words over the golds."""
    return _best_f1(completion, golds, str.lower)


def f1_squad_normalized(completion: str, golds: Sequence[str]) -> float:
    """Return the best F1 over the golds without punctuation and articles."""
    return _best_f1(completion, golds, lambda text: _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)))


COMPLETION_METRICS: Final[Mapping[str, Callable[[str, Sequence[str]], float]]] = MappingProxyType(
    {
        "AccuracyCompletion": accuracy_completion,
        "AccuracyCompletionOLMES": accuracy_completion_olmes,
        "F1": f1,
        "F1SquadNormalized": f1_squad_normalized,
    }
)


def _without_signs(text: str) -> str:
    for pattern in _OLMES:
        text = re.sub(pattern, "", text)
    return text


def _best_f1(completion: str, golds: Sequence[str], normalise: Callable[[str], str]) -> float:
    words = normalise(completion).split()
    return max((_f1(normalise(gold).split(), words) for gold in golds), default=0.0)


def _f1(gold: list[str], found: list[str]) -> float:
    if not gold and not found:
        return 1.0
    shared = (Counter(gold) & Counter(found)).total()
    return 2 * shared / (len(gold) + len(found)) if shared else 0.0
