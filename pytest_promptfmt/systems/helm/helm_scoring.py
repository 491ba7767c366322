"""How HELM tasks are scored, in the shape of lm-eval's scoring: a filter that reads labels, and metrics over golds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pytest_promptfmt.core.task import Doc
from pytest_promptfmt.systems.helm.helm_metrics import best_over_golds


class HelmOutput:
    """Reads a completion as HELM 0.5.16 does: stripped; with labels, the one that it or the pattern's match is.

    A completion that is no label gives an empty text.
    """

    def __init__(self, pattern: str | None = None) -> None:
        self._pattern = None if pattern is None else re.compile(pattern)

    def apply(self, resps: Any, docs: Sequence[Doc]) -> Iterable[Any]:
        """Return one list for each doc."""
        return [[self._read(text, doc) for text in repeats] for repeats, doc in zip(resps, docs, strict=True)]

    def _read(self, text: str, doc: Doc) -> str:
        text = text.strip()
        mapping = doc.get("output_mapping")
        if not isinstance(mapping, Mapping):
            return text
        if self._pattern is not None:
            match = self._pattern.search(text)
            text = (match[1] if match.re.groups else match[0]) if match is not None else ""
        return text if text in mapping else ""


def helm_results(metrics: Sequence[str], doc: Doc, results: Sequence[Any]) -> dict[str, float]:
    """Return the metrics of one doc by name: the best over its right references, for what `HelmOutput` read."""
    answer: str | None = str(results[0][0] if isinstance(results[0], list) else results[0])
    mapping = doc.get("output_mapping")
    if isinstance(mapping, Mapping):
        answer = mapping.get(answer)
    return {name: best_over_golds(name, golds_of(doc), answer) for name in metrics}


def golds_of(doc: Doc) -> list[str]:
    """Return the texts of a doc's right references."""
    references, correct = doc.get("references"), doc.get("correct")
    if isinstance(references, list | tuple) and isinstance(correct, list | tuple):
        return [str(references[index]) for index in correct]
    return [str(doc["answer"])] if "answer" in doc else []
