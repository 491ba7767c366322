"""What is kept of a replayed recording: its verdicts line by line, or by the thousand where it is long."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.answers.replaying import DocsByNumber, Reading, Replay, Replayed, Result, replayed
from pytest_promptfmt.core.recorded import BadRecord
from pytest_promptfmt.study import Study

LISTED_RECORDS: Final = 10_000
"""Records up to which a transcript has a line for each."""

BLOCK: Final = 1000
"""Records of one line where there are more."""

_RESULTS: Final[tuple[Result, ...]] = ("right", "wrong", "not extracted", "failed")
_SHOWN_BAD: Final = 100


@dataclass(slots=True)
class Transcript:
    """The verdicts of a recording in order, as short lines; `replay` counts them.

    Memory is bounded: once there are more than `LISTED_RECORDS`, each line stands for `BLOCK` records, by what was read
    and a digest of the single verdicts.
    """

    pipelines: Sequence[str]
    replay: Replay = field(default_factory=Replay)
    _lines: list[str] = field(default_factory=list)
    _blocks: list[str] = field(default_factory=list)
    _block: Counter[str] = field(default_factory=Counter)
    _digest: Any = field(default_factory=hashlib.sha256)
    _totals: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, record: Replayed | BadRecord) -> None:
        """Take one record."""
        self.replay.add(record)
        if isinstance(record, BadRecord):
            return
        cells = {reading.pipeline: reading for reading in record.readings}
        shown = "  ".join(_cell(cells.get(name)) for name in self.pipelines)
        line = f"{record.number}  {shown}"
        if self.replay.records <= LISTED_RECORDS:
            self._lines.append(line)
        elif self._lines:
            self._lines.clear()
        for reading in record.readings:
            self._totals.setdefault(reading.pipeline, Counter())[reading.result] += 1
            self._block[reading.result] += 1
        self._digest.update(f"{line}\n".encode("utf-8", "surrogatepass"))
        if self.replay.records % BLOCK == 0:
            self._end_block()

    def totals(self) -> list[str]:
        """Return a line for each pipeline: how many answers are what."""
        return [f"{name}: {_counted(self._totals.get(name, {}))}" for name in self.pipelines]

    def verdicts(self) -> list[str]:
        """Return the line of each record, or of each block of them."""
        if self.replay.records <= LISTED_RECORDS:
            return list(self._lines)
        if self._block:
            self._end_block()
        return list(self._blocks)

    def bad(self) -> list[str]:
        """Return a line for each record that cannot be used, as far as they are shown."""
        lines = [f"{one.number}  {one.reason}" for one in self.replay.bad[:_SHOWN_BAD]]
        left = self.replay.bad_count - len(lines)
        return [*lines, f"and {left:,} more"] if left > 0 else lines

    def _end_block(self) -> None:
        first = len(self._blocks) * BLOCK + 1
        digest = self._digest.hexdigest()[:16]
        self._blocks.append(f"{first:,} to {self.replay.records:,}  {_counted(self._block)}  digest {digest}")
        self._block.clear()
        self._digest = hashlib.sha256()


def transcribed(study: Study, path: Path, progress: Callable[[int], object]) -> Transcript:
    """Return the verdicts of a recording of a task; raises the PromptfmtError that stops it.

    `progress` is given how many bytes were read so far.
    """
    scoring = study.scoring
    transcript = Transcript([pipeline.name for pipeline in scoring.pipelines])
    docs = DocsByNumber(scoring, study.settings.time_limit)
    for record in replayed(scoring.task, scoring.instances, path, docs, progress=progress):
        transcript.add(record)
    return transcript


def _cell(reading: Reading | None) -> str:
    if reading is None:
        return "-"
    if reading.problem is not None:
        return reading.problem.partition(": ")[0]
    if reading.result == "not extracted":
        return reading.result
    text = repr(reading.extracted)
    return f"{reading.result} {text if len(text) <= 60 else f'{text[:40]}… ({len(text)} characters)'}"


def _counted(results: Mapping[str, int]) -> str:
    return ", ".join(f"{results.get(name, 0):,} {name}" for name in _RESULTS if results.get(name) or name != "failed")
