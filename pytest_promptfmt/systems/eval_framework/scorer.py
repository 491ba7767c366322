"""A task class made ready for scoring: its metrics, candidates and post-processing put where scoring looks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Final

from pytest_promptfmt.core.docs import Doc, TaskDocs
from pytest_promptfmt.core.errors import ScoringError
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.systems.eval_framework.class_docs import SampleDoc, part
from pytest_promptfmt.systems.eval_framework.hooks import POST_PROCESS, TaskClass, in_words, spelled
from pytest_promptfmt.systems.eval_framework.messages import EvalClassAssembler, PromptSample, given_sample
from pytest_promptfmt.systems.eval_framework.metric_classes import COMPLETION_METRICS, LIKELIHOOD_METRICS

_KEPT: Final = 4096
"""Docs whose samples are kept while they are scored."""

_LOWER_IS_BETTER: Final = frozenset({"BitsPerByteLoglikelihood"})


def scored_task(task: Task, found: TaskClass) -> Task:
    """Return the task of an imported class with its metrics and `post_process_generated_completion`.

    Texts of docs are those of the class's hooks, or of the samples that an object yields.
    """
    scored = _Scored(task, found)
    metrics = scored.metrics
    if task.generates and metrics[0] == "AccuracyCompletion":
        return replace(
            task,
            doc_to_text=lambda _doc: "",
            doc_to_target=scored.target,
            metric_list=[{"metric": "exact_match"}],
            filter_list=scored.filters(),
        )
    return replace(
        task,
        doc_to_text=lambda _doc: "",
        doc_to_target=scored.target,
        doc_to_choice=scored.candidates if task.has_choices else None,
        metric_list=[
            {"metric": name, "aggregation": "mean", "higher_is_better": name not in _LOWER_IS_BETTER}
            for name in metrics
        ],
        process_results=scored.process_results,
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
                f"{self._found.name!r} yields its samples itself: none is known for the doc {dict(doc)!r:.80}",
                position=self._found.position,
                hint="a recording of such a task names its docs by number",
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
                f"{POST_PROCESS} must give a text, not {in_words(text)}", position=self._found.line_of(POST_PROCESS)
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
