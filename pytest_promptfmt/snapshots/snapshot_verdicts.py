"""What snapshots show of scoring: what every filter pipeline reads, verdicts of recordings, scores of answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from pytest_promptfmt.answers.phrasing_verdicts import Matrix, PhrasingRow
from pytest_promptfmt.answers.phrasings import CLASSES
from pytest_promptfmt.answers.replaying import Transcript
from pytest_promptfmt.core.errors import SnapshotError
from pytest_promptfmt.core.recorded import RecordedScores, ScoredAnswer
from pytest_promptfmt.snapshots.document import DocRecord, Document, Section, SectionEntry, read_document
from pytest_promptfmt.snapshots.paths import read_snapshot

EXTRACTION = "extraction"
"""Takes the place of a profile in the name of the snapshot file."""

RECORDING = "recording"
"""The same for a recording, followed by its name."""

RECORDED = "recorded"
"""The same for recorded answers."""

_VERDICTS = "verdicts"
_LONGEST_QUOTE = 120


def extraction_document(header: Mapping[str, str], matrix: Matrix) -> Document:
    """Return the document of a verdict matrix; rows that fail by the default rules are marked."""
    return Document(dict(header), (DocRecord(1, tuple(_sections(matrix))),))


def recording_document(header: Mapping[str, str], transcript: Transcript) -> Document:
    """Return the document of a replayed recording: totals, a line for each record, and those that cannot be used."""
    sections = {
        "filters": transcript.pipelines,
        "totals": transcript.totals(),
        _VERDICTS: transcript.verdicts(),
        "bad records": transcript.bad(),
    }
    made = (Section(title, entries=tuple(map(SectionEntry, lines))) for title, lines in sections.items() if lines)
    return Document(dict(header), (DocRecord(1, tuple(made)),))


def recorded_document(header: Mapping[str, str], scores: RecordedScores) -> Document:
    """Return the document of a file's recorded completions."""
    means = [SectionEntry(f"{name} {mean:.6g}") for name, mean in scores.means.items()]
    summary = [SectionEntry(f"completions {scores.count}")]
    if scores.not_mapped:
        summary.append(SectionEntry(f"none of the labels {scores.not_mapped}"))
    sections = [Section("scores", entries=(*summary, *means))]
    if scores.first:
        sections.append(Section("completions", entries=tuple(SectionEntry(_line(each)) for each in scores.first)))
    return Document(dict(header), (DocRecord(1, tuple(sections)),))


def verdict_lines(document: Document) -> dict[str, str]:
    """Return the verdicts of a recording's document: the record's number (or those of a block) to its line."""
    lines = (
        entry.text.partition("  ")
        for doc in document.docs
        for section in doc.sections
        if section.title == _VERDICTS
        for entry in section.entries
    )
    return {number: verdicts for number, _, verdicts in lines}


def accepted_failures(path: str) -> Mapping[str, Sequence[str]]:
    """Return the cells of each phrasing that an accepted matrix marks as failing."""
    return dict(_accepted_failures(path))


def _accepted_failures(path: str) -> Iterator[tuple[str, Sequence[str]]]:
    try:
        document = read_document((read_snapshot(path) or b"").decode(), Path(path))
    except (OSError, UnicodeDecodeError, SnapshotError):
        return
    for doc in document.docs:
        for section in doc.sections:
            for entry in section.entries if section.title in CLASSES else ():
                name, *cells = re.split(r" {2,}", entry.text)
                if entry.marked:
                    yield name, cells


def _sections(matrix: Matrix) -> Iterator[Section]:
    yield Section("answers", entries=(SectionEntry(matrix.answers or matrix.nothing),))
    yield Section("filters", entries=tuple(SectionEntry(name) for name in matrix.pipelines))
    for kind, rows in groupby(matrix.rows, key=lambda row: row.kind):
        yield Section(kind, entries=tuple(_entry(row) for row in rows))


def _entry(row: PhrasingRow) -> SectionEntry:
    cells = "  ".join(f"{verdict:<18}" for verdict in row.verdicts)
    return SectionEntry(f"{row.id:<24}  {cells}".rstrip(), marked=row.failed)


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
    return json.dumps(text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}…", ensure_ascii=False)
