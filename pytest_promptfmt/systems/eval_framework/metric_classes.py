"""The metrics of eval-framework 0.15.4 by the names of their classes, and a task class made ready for scoring.

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
from dataclasses import replace
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any, Final

from pytest_promptfmt.core.docs import Doc, TaskDocs
from pytest_promptfmt.core.errors import ScoringError
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.systems.eval_framework.class_docs import SampleDoc, part
from pytest_promptfmt.systems.eval_framework.hooks import POST_PROCESS, TaskClass, in_words, spelled
from pytest_promptfmt.systems.eval_framework.messages import EvalClassAssembler, PromptSample, given_sample

Scores = Mapping[str, float]
"""Candidate text to summed log-probability (nats)."""

Golds = str | Sequence[str]


# -- log-likelihoods ---------------------------------------------------------------------------------------------------


def accuracy(scores: Scores, golds: Golds) -> float:
    """Return 1.0 when the best candidate (of equals the first) is a gold text, byte for byte, else 0.0."""
    return float(_best(scores) in _listed(golds))


def confidence_weighted_accuracy(scores: Scores, golds: Golds) -> float:
    """Return the probability of the winner when it is right, else 0; per character, ignoring outer spaces and case."""
    chances = _softmax(_per_character(scores))
    winner = _best(chances)
    return chances[winner] if _plain(winner) in _plain_set(golds) else 0.0


def probability_mass(scores: Scores, golds: Golds) -> float:
    """Return the probability of all gold candidates together."""
    return sum(chance for candidate, chance in _softmax(scores).items() if candidate in _listed(golds))


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
    raise ScoringError(f"the gold answers {list(_listed(golds))!r} are not among the candidates {list(scores)!r}")


def _normalised(metric: Callable[[Scores, Golds], float]) -> Callable[[Scores, Golds], float]:
    """Return a metric of scores divided by the number of characters."""
    return lambda scores, golds: metric(_per_character(scores), golds)


LIKELIHOOD_METRICS: Final[Mapping[str, Callable[[Scores, Golds], float]]] = {
    "AccuracyLoglikelihood": accuracy,
    "AccuracyNormLoglikelihood": _normalised(accuracy),
    "ConfidenceWeightedAccuracy": confidence_weighted_accuracy,
    "ProbabilityMass": probability_mass,
    "ProbabilityMassNorm": _normalised(probability_mass),
    "TernaryScore": ternary_score,
    "DistributionalCorrectnessScore": distributional_correctness,
    "BitsPerByteLoglikelihood": bits_per_byte,
}


def _best(scores: Scores) -> str:
    if not scores:
        raise ScoringError("there are no candidates to score")
    return max(scores, key=lambda candidate: scores[candidate])


def _per_character(scores: Scores) -> dict[str, float]:
    if "" in scores:
        raise ScoringError("a candidate is empty, so its score cannot be divided by its length")
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


def accuracy_completion_olmes(completion: str, golds: Sequence[str]) -> float:
    """Return the share of golds equal to the completion without commas, dollar signs, `####` and a last full stop."""
    stripped = [_without_signs(gold) for gold in golds]
    return stripped.count(_without_signs(completion)) / len(stripped) if stripped else 0.0


def best_f1(normalise: Callable[[str], str], completion: str, golds: Sequence[str]) -> float:
    """Return the best F1 of the words of normalised texts over the golds."""
    words = normalise(completion).split()
    return max((_f1(normalise(gold).split(), words) for gold in golds), default=0.0)


COMPLETION_METRICS: Final[Mapping[str, Callable[[str, Sequence[str]], float]]] = {
    "AccuracyCompletion": lambda completion, golds: float(completion in golds),  # byte for byte
    "AccuracyCompletionOLMES": accuracy_completion_olmes,
    "F1": partial(best_f1, str.lower),
    "F1SquadNormalized": partial(best_f1, lambda text: _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION))),
}


def _without_signs(text: str) -> str:
    for pattern in _OLMES:
        text = re.sub(pattern, "", text)
    return text


def _f1(gold: list[str], found: list[str]) -> float:
    if not gold and not found:
        return 1.0
    shared = (Counter(gold) & Counter(found)).total()
    return 2 * shared / (len(gold) + len(found)) if shared else 0.0


# -- scored tasks ------------------------------------------------------------------------------------------------------

_KEPT: Final = 4096
"""Docs whose samples are kept while they are scored."""

_LOWER_IS_BETTER: Final = frozenset({"BitsPerByteLoglikelihood"})


def scored_task(task: Task, found: TaskClass) -> Task:
    """Return the task of an imported class with its metrics and `post_process_generated_completion`.

    Texts of docs are those of the class's hooks, or of the samples that an object yields.
    """
    scored = _Scored(task, found)
    is_exact = task.generates and scored.metrics[0] == "AccuracyCompletion"
    metrics = [
        {"metric": name, "aggregation": "mean", "higher_is_better": name not in _LOWER_IS_BETTER}
        for name in scored.metrics
    ]
    return replace(
        task,
        doc_to_text=lambda _doc: "",
        doc_to_target=scored.target,
        doc_to_choice=scored.candidates if task.has_choices else None,
        metric_list=[{"metric": "exact_match"}] if is_exact else metrics,
        process_results=None if is_exact else scored.process_results,
        filter_list=scored.filters() if task.generates else None,
    )


class _Scored:
    """The hooks of one class as scoring calls them."""

    def __init__(self, task: Task, found: TaskClass) -> None:
        self._task = task
        self._found = found
        self._samples: dict[int, tuple[Doc, PromptSample]] = {}
        chooses = task.has_choices
        known = LIKELIHOOD_METRICS if chooses else COMPLETION_METRICS
        self.metrics = [name for name in found.constants().metrics if name in known]
        if not self.metrics:
            self.metrics = ["AccuracyLoglikelihood" if chooses else "AccuracyCompletion"]

    def _sample(self, doc: Doc) -> PromptSample:
        """Return the messages, gold and candidates of a doc; made once for each object, as batteries ask often."""
        known = self._samples.get(id(doc))
        if known is None or known[0] is not doc:
            if len(self._samples) >= _KEPT:
                self._samples.clear()
            known = self._samples[id(doc)] = doc, self._made(doc)
        return known[1]

    @cached_property
    def _instance(self) -> Any:
        return self._found.make(0)

    def _made(self, doc: Doc) -> PromptSample:
        if isinstance(doc, SampleDoc):
            return doc.sample if isinstance(doc.sample, PromptSample) else given_sample(doc.sample, self._found, 0)
        if self._found.kind != "hooks":
            raise ScoringError(
                f"{self._found.name!r} makes its own samples, but none for the doc {dict(doc)!r:.80}",
                position=self._found.position,
                hint="in a recording of this task, write `doc` as a number (0, 1, …), not as a row",
            )
        assembler = EvalClassAssembler(self._task, self._found, TaskDocs.in_memory([doc], []), 0)
        return assembler.layout(0, doc)[0]

    def target(self, doc: Doc) -> Any:
        """Return the ground truth; of several texts where there are candidates, the indices of those among them."""
        sample = self._sample(doc)
        if isinstance(sample.truth, list) and sample.candidates is not None:
            return [index for index, candidate in enumerate(sample.candidates) if candidate in sample.truth]
        return sample.truth

    def candidates(self, doc: Doc) -> list[str]:
        """Return the candidates."""
        return list(self._sample(doc).candidates or ())

    def process_results(self, doc: Doc, results: Sequence[Any]) -> dict[str, float]:
        """Return the value of each metric: of (log-likelihood, greedy) pairs, or of the one filtered completion."""
        sample = self._sample(doc)
        golds = sample.truth if isinstance(sample.truth, list) else [sample.truth]
        if self._task.generates:
            completion = results[0][0] if isinstance(results[0], list) else results[0]
            return {name: COMPLETION_METRICS[name](str(completion), golds) for name in self.metrics}
        scores = {text: pair[0] for text, pair in zip(sample.candidates or (), results, strict=True)}
        values = {}
        for name in self.metrics:
            try:
                values[name] = LIKELIHOOD_METRICS[name](scores, golds)
            except ScoringError:
                continue  # eval-framework leaves the value out too
        return values

    def filters(self) -> list[dict[str, Any]] | None:
        """Return the class's own reading of completions as one filter pipeline; none where it reads nothing."""
        if self._reader is None:
            return None
        return [{"name": POST_PROCESS, "filter": [{"function": "custom", "filter_fn": self._post_processed}]}]

    @cached_property
    def _reader(self) -> Callable[[str, Any], Any] | None:
        """Return what reads a completion of a sample: the class's hook, or the answer policy of a benchmark."""
        if self._found.kind == "hooks":
            name = spelled(self._found.found, POST_PROCESS)
            return getattr(self._instance, name) if POST_PROCESS in self._found.own else None
        hook = getattr(self._instance, POST_PROCESS, None)
        if callable(hook):
            return lambda text, sample: hook(text, sample)
        extract = getattr(getattr(self._instance, "_answer", None), "extract_answer", None)
        if not callable(extract):
            return None
        return lambda text, sample: extract(
            text,
            context=part(sample, "context"),
            ground_truth=part(sample, "ground_truth"),
            messages=part(sample, "messages"),
        )

    def _post_processed(self, responses: Any, docs: Sequence[Doc]) -> list[Any]:
        return [self._read(repeats[0], doc) for repeats, doc in zip(responses, docs, strict=True)]

    def _read(self, completion: str, doc: Doc) -> str:
        assert self._reader is not None
        text = self._reader(completion, self._shown(doc))
        if not isinstance(text, str):
            raise ScoringError(
                f"{POST_PROCESS} must return text, not {in_words(text)}", position=self._found.line_of(POST_PROCESS)
            )
        return text

    def _shown(self, doc: Doc) -> Any:
        """Return the sample of a doc in the shape that eval-framework hands to post-processing."""
        sample = self._sample(doc)
        if sample.given is not None:
            return sample.given
        messages = [SimpleNamespace(role=each.role, content=each.text) for each in sample.messages]
        return SimpleNamespace(
            id=0,
            subject=str(doc.get("subject", "")),
            messages=messages,
            ground_truth=sample.truth,
            possible_completions=list(sample.candidates) if sample.candidates is not None else None,
            context=None,
        )
