"""HELM's metrics and its output mapping (0.5.16), also in the shape of lm-eval's filters and metrics.

Metrics of completions take one gold text and one completion; a doc's score is the best over its golds. A reference
that is asked by itself is scored by its log-likelihood divided by its tokens or, calibrated, less its log-likelihood
after only `Answer:`.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.errors import ScoringError
from pytest_promptfmt.systems.helm.instances import Completion, HelmInstance, most_likely_first
from pytest_promptfmt.tasks import LogLikelihood

_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_FINAL_NUMBER: Final = re.compile(r"-?[\d,]+(?:.\d+)?")


def mapped_output(text: str, mapping: Mapping[str, str] | None, pattern: str | None = None) -> str | None:
    """Return what a completion means: stripped, cut to the pattern's first match, looked up; None if it is not a label.

    Without a mapping the stripped completion itself.
    """
    return mapping.get(_label(text, pattern)) if mapping else text.strip()


def _label(text: str, pattern: str | None) -> str:
    text = text.strip()
    if pattern is None:
        return text
    match = re.search(pattern, text)
    return "" if match is None else match[1] if match.re.groups else match[0]


def normalised(text: str, *, keep_articles: bool = False) -> str:
    """Return the text in small letters, without ASCII punctuation, articles and repeated spaces."""
    text = text.lower().translate(_NO_PUNCTUATION)
    return " ".join((text if keep_articles else _ARTICLES.sub(" ", text)).split())


def exact_match(gold: str, completion: str) -> float:
    """Return 1.0 for equal texts without outer whitespace; an empty completion is never right."""
    return float(bool(completion) and gold.strip() == completion.strip())


def quasi_exact_match(gold: str, completion: str) -> float:
    """Return 1.0 for equal normalised texts."""
    return float(bool(completion) and normalised(gold) == normalised(completion))


def quasi_leave_articles_exact_match(gold: str, completion: str) -> float:
    """Return 1.0 for equal texts normalised with their articles kept."""
    same = normalised(gold, keep_articles=True) == normalised(completion, keep_articles=True)
    return float(bool(completion) and same)


def prefix_exact_match(gold: str, completion: str) -> float:
    """Return 1.0 when the completion begins with the gold text."""
    return float(bool(completion) and completion.strip().startswith(gold.strip()))


def quasi_prefix_exact_match(gold: str, completion: str) -> float:
    """Return 1.0 when the normalised completion begins with the normalised gold: always, where that is empty."""
    return float(bool(completion) and normalised(completion).startswith(normalised(gold)))


def f1_score(gold: str, completion: str) -> float:
    """Return the F1 of the two sets of normalised words; 0.0 where one is empty."""
    golds, found = set(normalised(gold).split()), set(normalised(completion).split())
    shared = len(golds & found)
    return 2 * shared / (len(golds) + len(found)) if shared else 0.0


def exact_match_indicator(gold: str, completion: str, indicator: str = " ") -> float:
    """Return 1.0 for equal texts after the last indicator."""
    return exact_match(gold.split(indicator)[-1], completion.split(indicator)[-1].strip())


def final_number_exact_match(gold: str, completion: str) -> float:
    """Return 1.0 when the last number of both is the same text, commas not counted."""
    numbers = [_FINAL_NUMBER.findall(text) for text in (gold, completion)]
    if not all(numbers):
        return 0.0
    return exact_match(numbers[0][-1].replace(",", ""), numbers[1][-1].replace(",", ""))


def _set_of(text: str) -> set[str]:
    if text == "Nothing.":
        return set()
    return set(text.replace(".", "").split(" is ")[-1].split(" and "))


def _of_sets(judge: Callable[[set[str], set[str]], float], gold: str, completion: str) -> float:
    """Return how alike two sets are: what follows the last " is ", split at " and ", in the first line."""
    golds, found = _set_of(gold), _set_of(completion.split("\n")[0])
    return judge(golds, found) if golds else float(not found)


_METRICS: Final[Sequence[Callable[[str, str], float]]] = (
    *(exact_match, quasi_exact_match, quasi_leave_articles_exact_match, prefix_exact_match, quasi_prefix_exact_match),
    *(f1_score, exact_match_indicator, final_number_exact_match),
)
HELM_METRICS: Final[Mapping[str, Callable[[str, str], float]]] = {
    **{metric.__name__: metric for metric in _METRICS},
    "exact_set_match": partial(_of_sets, lambda golds, found: float(golds == found)),
    "iou_set_match": partial(_of_sets, lambda golds, found: len(golds & found) / len(golds | found)),
    "f1_set_match": partial(_of_sets, lambda golds, found: 2 * len(golds & found) / (len(golds) + len(found))),
}
"""The metrics by name."""


def best_over_golds(metric: str, golds: Sequence[str], completion: str | None) -> float:
    """Return the score of a doc: the best over its golds, 0.0 for a completion that maps to nothing."""
    if completion is None:
        return 0.0
    return max((HELM_METRICS[metric](gold, completion) for gold in golds), default=0.0)


def score_completions(
    metrics: Sequence[str],
    golds: Sequence[str],
    completions: Sequence[Completion],
    *,
    mapping: Mapping[str, str] | None = None,
    pattern: str | None = None,
    num_outputs: int = 1,
) -> dict[str, float]:
    """Return the metrics of one instance, by name; with `num_outputs` other than 1 also `name@num_outputs`.

    `completions` are texts with their log-probabilities. `name` is the best over the golds for the most probable
    completion, `name@k` the best over all of them; what maps to nothing scores 0.
    """
    answers = [mapped_output(text, mapping, pattern) for text, _ in most_likely_first(completions)]
    scores: dict[str, float] = {}
    for name in metrics:
        each = [best_over_golds(name, golds, answer) for answer in answers]
        scores[name] = each[0] if each else 0.0
        if num_outputs != 1:
            scores[f"{name}@{num_outputs}"] = max(each, default=0.0)
    return scores


class HelmOutput:
    """lm-eval's filter that reads a completion as HELM does: stripped; with labels, the one that it is.

    A completion that is not a label gives an empty text.
    """

    def __init__(self, pattern: str | None = None) -> None:
        self._pattern = pattern

    def apply(self, resps: Any, docs: Sequence[Doc]) -> Iterable[Any]:
        """Return one list for each doc."""
        return [[self._read(text, doc) for text in repeats] for repeats, doc in zip(resps, docs, strict=True)]

    def _read(self, text: str, doc: Doc) -> str:
        mapping = doc.get("output_mapping")
        if not isinstance(mapping, Mapping):
            return text.strip()
        label = _label(text, self._pattern)
        return label if label in mapping else ""


def helm_results(metrics: Sequence[str], doc: Doc, results: Sequence[Any]) -> dict[str, float]:
    """Return the metrics of one doc by name: the best over its right references, for what `HelmOutput` read."""
    answer: str | None = str(results[0][0] if isinstance(results[0], list) else results[0])
    mapping = doc.get("output_mapping")
    if isinstance(mapping, Mapping):
        answer = mapping.get(answer)
    return {name: best_over_golds(name, HelmInstance.of(doc).golds, answer) for name in metrics}


# -- references that are asked one by one ------------------------------------------------------------------------------

REFERENCE_METRIC: Final = "exact_match"
"""The metric of `score_references` for whether the answer is right."""


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
        raise ScoringError(f"there are {len(results)} log-likelihoods, but {size} references")
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
