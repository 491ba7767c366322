"""HELM's scores of references that are asked one by one (0.5.16): log-likelihoods by token, and rankings.

A reference's score is its log-likelihood divided by its tokens or, calibrated, less its log-likelihood after only
`Answer:`. Rankings are judged by the measures of trec_eval, as HELM calls it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.errors import ScoringError, did_you_mean
from pytest_promptfmt.tasks import LogLikelihood

REFERENCE_METRIC: Final = "exact_match"
"""The metric of `score_references` for whether the answer is right."""

MISSING: Final = "missing"
"""The answer that HELM assumes for a request without completions."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The log-likelihood of a reference (nats), and how many tokens it has."""

    total: float
    tokens: int


def reference_scores(originals: Sequence[Measured], calibrations: Sequence[Measured] = ()) -> list[float]:
    """Return the score of each reference: per token, or less its calibration where there are calibrations."""
    if calibrations:
        return [one.total - bare.total for one, bare in zip(originals, calibrations, strict=True)]
    return [one.total / one.tokens for one in originals]


def score_references(scores: Sequence[float], correct: Sequence[int]) -> dict[str, float]:
    """Return HELM's metrics of one instance, by name.

    `exact_match` is the share of right references among those with the highest score, `predicted_index` the first of
    these, `max_prob` the largest of the scores' softmax.
    """
    highest = max(scores)
    best = [index for index, score in enumerate(scores) if score >= highest]
    return {
        REFERENCE_METRIC: len(set(correct) & set(best)) / len(best),
        "predicted_index": float(best[0]),
        "max_prob": 1 / sum(math.exp(score - highest) for score in scores),
    }


def helm_reference_results(is_calibrated: bool, doc: Doc, results: Sequence[Any]) -> dict[str, float]:
    """Return the metrics of one doc from the results of its requests, the mean over its trials.

    Requests come trial by trial, those of the calibration after all others. A result without its tokens
    counts as one of one token.
    """
    references, correct = doc.get("references") or (), doc.get("correct") or ()
    measured = [
        Measured(pair[0], max(len(pair.logprobs), 1) if isinstance(pair, LogLikelihood) else 1) for pair in results
    ]
    size = len(references)
    asked = len(measured) // 2 if is_calibrated else len(measured)
    if not size or not asked or asked % size:
        raise ScoringError(f"{len(results)} log-likelihoods cannot be divided among {size} references")
    found = [
        score_references(
            reference_scores(
                measured[start : start + size],
                measured[asked + start : asked + start + size] if is_calibrated else (),
            ),
            correct,
        )
        for start in range(0, asked, size)
    ]
    return {name: sum(one[name] for one in found) / len(found) for name in found[0]}


# -- ranking -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RankedReference:
    """A reference as a model ranks it: its answer with the answer's log-probability, and the numbers in its tags.

    `relevance` and `rank` are the numbers of the tags `relevance=…` and `rank=…`, None without one.
    """

    index: int
    answer: str
    logprob: float
    relevance: int | None = None
    rank: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RankingSpec:
    """The arguments of HELM's RankingMetric."""

    measures: tuple[str, ...]
    correct_output: str = "Yes"
    wrong_output: str = "No"
    rank: int | None = None
    multiple_relevance_values: bool = False


def ranking_spec(arguments: Mapping[str, Any]) -> RankingSpec:
    """Return the arguments of a RankingMetric as a run has them; raises ScoringError for measures unknown here."""
    names = arguments.get("measure_names")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ScoringError(f"measure_names is {names!r:.80}", hint=f"a list of {', '.join(MEASURES)}")
    for name in names:
        _measure_of(name)
    rank = arguments.get("rank")
    return RankingSpec(
        measures=tuple(names),
        correct_output=str(arguments.get("correct_output", "Yes")),
        wrong_output=str(arguments.get("wrong_output", "No")),
        rank=rank if isinstance(rank, int) and rank > 0 else None,
        multiple_relevance_values=arguments.get("multiple_relevance_values") is True,
    )


def ranked(references: Sequence[RankedReference], spec: RankingSpec) -> list[RankedReference]:
    """Return the references as the model ranks them, the best first.

    Those answered with Yes come first, the surest first, then those with No, the surest last, then the others;
    equal ones as they were.
    """

    def key(one: RankedReference) -> tuple[int, float]:
        answer = one.answer.strip().lower()
        if answer == spec.correct_output.strip().lower():
            return 2, one.logprob
        return int(answer == spec.wrong_output.strip().lower()), -one.logprob

    return sorted(references, key=key, reverse=True)


def score_ranking(references: Sequence[RankedReference], spec: RankingSpec) -> dict[str, float]:
    """Return HELM's ranking metrics of one instance, by name: the measures, then `ref<index>_rank` from 0.

    With a `rank` the measures are also given for only the references of up to that rank. Raises ScoringError where no
    reference is relevant, as there is nothing to find.
    """
    order = ranked(references, spec)
    relevance = {one.index: one.relevance for one in references if one.relevance}
    if not relevance:
        raise ScoringError("no reference has a tag relevance=…, and HELM's ranking metrics fail without one")
    found: dict[str, float] = {}
    limited = [one.index for one in order if one.rank and spec.rank and one.rank <= spec.rank]
    runs = [("", [one.index for one in order])]
    runs += [(f" (topk={spec.rank})", limited)] if spec.rank else []
    for suffix, run in runs:
        for name in spec.measures:
            found[f"{_shown(name)}{suffix}"] = _measured(name, relevance, run, spec)
    return {**found, **{f"ref{one.index}_rank": float(place) for place, one in enumerate(order)}}


Measure = Callable[[Mapping[int, int], Sequence[int], int | None], float]


def _reciprocal_rank(relevance: Mapping[int, int], run: Sequence[int], most: int | None) -> float:
    """Return one over the place of the first relevant one; a limit cuts the ranking before it is judged."""
    return next((1 / place for place, one in enumerate(run[:most], start=1) if relevance.get(one, 0) > 0), 0.0)


def _success(relevance: Mapping[int, int], run: Sequence[int], most: int | None) -> float:
    return float(any(relevance.get(one, 0) > 0 for one in run[: most or 1]))


def _recall(relevance: Mapping[int, int], run: Sequence[int], most: int | None) -> float:
    relevant = sum(value > 0 for value in relevance.values())
    return sum(relevance.get(one, 0) > 0 for one in run[: most or 5]) / relevant if relevant else 0.0


def _discounted_gain(relevance: Mapping[int, int], run: Sequence[int], most: int | None) -> float:
    """Return the discounted cumulative gain, of that of the best order there can be."""

    def gain(values: Sequence[int]) -> float:
        return sum(max(value, 0) / math.log2(place + 1) for place, value in enumerate(values[: most or 5], start=1))

    best = gain(sorted(relevance.values(), reverse=True))
    return gain([relevance.get(one, 0) for one in run]) / best if best else 0.0


MEASURES: Final[Mapping[str, Measure]] = MappingProxyType(
    {
        "recip_rank": _reciprocal_rank,
        "success": _success,
        "recall": _recall,
        "ndcg_cut": _discounted_gain,
    }
)
"""The measures by trec_eval's names; `.k` behind one judges the first k. Without it trec_eval's first cut counts."""

_NAMES: Final[Mapping[str, str]] = MappingProxyType({"ndcg_cut": "NDCG", "recip_rank": "RR"})


def _measure_of(name: str) -> tuple[str, int | None]:
    bare, dot, cut = name.partition(".")
    if bare not in MEASURES or (dot and not (cut.isdigit() and int(cut) > 0)):
        known = [*MEASURES, *(f"{one}.10" for one in MEASURES)]
        raise ScoringError(f"unknown measure {name!r}; known: {', '.join(known)}", hint=did_you_mean(name, known))
    return bare, int(cut) if dot else None


def _shown(name: str) -> str:
    bare, most = _measure_of(name)
    return _NAMES.get(bare, bare.capitalize()) + (f"@{most}" if most else "")


def _measured(name: str, relevance: Mapping[int, int], run: Sequence[int], spec: RankingSpec) -> float:
    bare, most = _measure_of(name)
    if spec.multiple_relevance_values and bare != "ndcg_cut":
        relevance = {index: 0 if value == 1 else value for index, value in relevance.items()}
    return MEASURES[bare](relevance, run, most)
