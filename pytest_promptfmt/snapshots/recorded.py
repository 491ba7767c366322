"""What a snapshot shows of recorded answers: how they score now, together and one by one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from pytest_promptfmt.core.recorded import RecordedScores, ScoredAnswer
from pytest_promptfmt.snapshots.document import DocRecord, Document, Entry, Section

RECORDED: Final = "recorded"
"""What replaces the profile in the name of the snapshot file."""

_MOST: Final = 120


def recorded_document(header: Mapping[str, str], scores: RecordedScores) -> Document:
    """Return the document of a file's recorded completions."""
    means = [Entry(f"{name} {mean:.6g}") for name, mean in scores.means.items()]
    summary = [Entry(f"completions {scores.count}")]
    if scores.not_mapped:
        summary.append(Entry(f"none of the labels {scores.not_mapped}"))
    sections = [Section("scores", entries=(*summary, *means))]
    if scores.first:
        sections.append(Section("completions", entries=tuple(Entry(_line(each)) for each in scores.first)))
    return Document(dict(header), (DocRecord(1, tuple(sections)),))


def _line(each: ScoredAnswer) -> str:
    name = f"{each.number + 1}" + (f" {each.id}" if each.id and each.id.isprintable() else "")
    if each.completion is None:
        read = f"{_quoted(each.answer or '')} comes first"
    else:
        answer = "none of the labels" if each.answer is None else f"read as {_quoted(each.answer)}"
        read = f"{_quoted(each.completion)} {answer}"
    golds = " or ".join(_quoted(gold) for gold in each.golds)
    scores = ", ".join(f"{metric} {score:.6g}" for metric, score in each.scores.items())
    right = f"right is {golds}" if golds else "none is marked as right"
    return f"{name}: {read}, {right}: {scores}"


def _quoted(text: str) -> str:
    return json.dumps(text if len(text) <= _MOST else f"{text[:_MOST]}…", ensure_ascii=False)
