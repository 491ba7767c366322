"""Recordings through the present filters and metrics: the verdict of each record, and how it differs from before.

Records are taken in batches, as lm-eval applies filters to all answers at once; only a batch and the lines to be shown
are held.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

from pytest_promptfmt.answers.completions import Chain, Stages, is_nothing
from pytest_promptfmt.answers.recordings import read_recording
from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.errors import LimitExceededError, PromptfmtError, TooSlowError, UnavailableError
from pytest_promptfmt.core.limits import time_limit
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.recorded import BadRecord, Recorded
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.study import Study
from pytest_promptfmt.study.scoring import Scoring, stops_of
from pytest_promptfmt.tasks import FilterPipeline, Question, load_docs, questions_of

SHOWN_CHANGES: Final = 1000
"""Changed verdicts that a replay keeps to list; all are counted."""

SHOWN_BAD: Final = 1000
"""Records that cannot be used and are listed; all are counted."""

_BATCH: Final = 1000
_MOST_CACHED: Final = 100_000

Result = Literal["right", "wrong", "not extracted", "failed"]
DocOf = Callable[[int], Doc | None]


@dataclass(frozen=True, slots=True)
class Reading:
    """One pipeline's result for a record: an answer that it does not find is `not extracted`, never `wrong`.

    `was` and `now` are the verdicts of the recording and of now, both empty where they are the same; `recorded` counts
    those of the recording.
    """

    pipeline: str
    result: Result
    extracted: Any
    problem: str | None
    recorded: int = 0
    was: str = ""
    now: str = ""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One record with the readings of the pipelines that it speaks of."""

    number: int
    doc_index: int
    readings: tuple[Reading, ...]


@dataclass(frozen=True, slots=True)
class VerdictChange:
    """One verdict that differs from the recording's."""

    number: int
    doc_index: int
    pipeline: str
    was: str
    now: str


@dataclass(kw_only=True, slots=True)
class Replay:
    """The outcome of replaying a recording: the present results, the verdicts that changed, the bad records.

    `verdicts` counts those that the recording has, so that they could be compared; `changes` and `bad` list the first.
    """

    records: int = 0
    results: Counter[Result] = field(default_factory=Counter)
    verdicts: int = 0
    changed: int = 0
    changes: list[VerdictChange] = field(default_factory=list)
    bad: list[BadRecord] = field(default_factory=list)
    bad_count: int = 0

    def add(self, record: Replayed | BadRecord) -> None:
        """Count one record."""
        if isinstance(record, BadRecord):
            self.bad_count += 1
            if len(self.bad) < SHOWN_BAD:
                self.bad.append(record)
            return
        self.records += 1
        for reading in record.readings:
            self.results[reading.result] += 1
            self.verdicts += reading.recorded
            self.changed += bool(reading.was)
            if reading.was and len(self.changes) < SHOWN_CHANGES:
                where = record.number, record.doc_index, reading.pipeline
                self.changes.append(VerdictChange(*where, reading.was, reading.now))

    def summary(self) -> str:
        """Return one line: how many verdicts changed, of how many, and what the answers are now."""
        changed = f"{self.changed:,} of {self.verdicts:,} verdicts changed"
        return f"{changed}; {self.counts()}" if self.verdicts else self.counts()

    def counts(self) -> str:
        """Return one line: what the answers are now."""
        failed = self.results["failed"]
        parts = [", ".join(f"{self.results[name]:,} {name}" for name in get_args(Result)[:-1])]
        parts += [f"{failed:,} failures of filters or metrics"] if failed else []
        parts += [f"{self.bad_count:,} records cannot be used"] if self.bad_count else []
        return "; ".join(parts)


def replayed(
    task: Task,
    instances: Sequence[Instance],
    path: Path,
    doc_of: DocOf,
) -> Iterator[Replayed | BadRecord]:
    """Yield what the filters and metrics make of each record now, in order; records of other tasks are left out.

    `doc_of` gives a doc of the task by its number, None where there is none. Functions must be bound.
    """
    reader = _Reader(task, instances, doc_of)
    batch: list[Recorded | BadRecord] = []
    for record in read_recording(path):
        if isinstance(record, Recorded) and record.task not in (None, task.name, task.id):
            continue
        batch.append(record)
        if len(batch) == _BATCH:
            yield from reader.read(batch)
            batch.clear()
    yield from reader.read(batch)


class DocsByNumber:
    """The docs of a task by their number, from 0; more are read when one of them is needed."""

    def __init__(self, scoring: Scoring, seconds: float) -> None:
        self._task = scoring.task
        self._docs: Sequence[Doc] = [instance.doc for instance in scoring.instances]
        self._is_all = scoring.is_synthetic
        self._seconds = seconds

    def __call__(self, number: int) -> Doc | None:
        """Return a doc, None for a missing one; synthetic docs are only those that were made."""
        while number >= len(self._docs) and not self._is_all:
            count = max(number + 1, 4 * len(self._docs), _BATCH)
            with time_limit(self._seconds, f"reading the docs of {self._task.id}"):
                self._docs = load_docs(self._task, count=count, num_fewshot=0).evaluated
            self._is_all = len(self._docs) < count
        return self._docs[number] if 0 <= number < len(self._docs) else None


@dataclass(frozen=True, slots=True)
class _Ready:
    """A record with its doc and what scoring needs of it."""

    record: Recorded
    doc: Doc
    question: Question


class _Reader:
    def __init__(self, task: Task, instances: Sequence[Instance], doc_of: DocOf) -> None:
        self._task = task
        self._chain = Chain(task, stops_of(instances))
        self._pipelines = [pipeline.name for pipeline in self._chain.pipelines]
        self._known = {None, *self._pipelines}
        self._doc_of = doc_of
        self._first = instances[0].doc if instances else None
        self._judged: dict[tuple[str, str, str], bool | str] = {}

    def read(self, batch: Sequence[Recorded | BadRecord]) -> Iterator[Replayed | BadRecord]:
        """Yield the records of a batch, each with its readings."""
        ready = self._ready(batch)
        usable = [one for one in ready if isinstance(one, _Ready)]
        readings: dict[int, list[Reading]] = {one.record.number: [] for one in usable}
        for pipeline in self._chain.pipelines:
            mine = [one for one in usable if _speaks_of(one.record, pipeline)]
            stages = self._chain.read_all(
                pipeline,
                [one.record.completion for one in mine],
                [one.doc for one in mine],
                [f"record {one.record.number}" for one in mine],
            )
            for one, stage in zip(mine, stages, strict=True):
                readings[one.record.number].append(self._reading(pipeline, one, stage))
        for entry in ready:
            if isinstance(entry, BadRecord):
                yield entry
            else:
                record = entry.record
                yield Replayed(record.number, record.doc_index, tuple(readings[record.number]))

    def _ready(self, batch: Sequence[Recorded | BadRecord]) -> list[_Ready | BadRecord]:
        made: list[_Ready | BadRecord] = []
        asked: list[tuple[int, Recorded, Doc]] = []
        for record in batch:
            if isinstance(record, BadRecord):
                made.append(record)
                continue
            unknown = {*record.extractions, *record.scores} - self._known
            if unknown:
                told = f"unknown filter pipeline {sorted(map(str, unknown))[0]!r}; known: {', '.join(self._pipelines)}"
                made.append(BadRecord(record.number, told))
                continue
            doc = record.doc if record.doc is not None else self._doc_of(record.doc_index)
            if doc is None:
                made.append(BadRecord(record.number, f"there is no doc {record.doc_index}"))
            elif record.target is not None:
                question = Question(output_type=self._task.output_type, target=record.target)
                made.append(_Ready(record, doc, question))
            else:
                asked.append((len(made), record, doc))
                made.append(BadRecord(record.number, ""))
        found = self._questions([doc for *_, doc in asked])
        for (place, record, doc), given in zip(asked, found, strict=True):
            made[place] = (
                _Ready(record, doc, given)
                if isinstance(given, Question)
                else BadRecord(record.number, f"the task fails with the doc of this record: {given}")
            )
        return made

    def _questions(self, docs: Sequence[Doc]) -> list[Question | str]:
        """Return what scoring needs of each doc, or why it cannot be had."""
        first = () if self._first is None else (self._first,)  # by which lm-eval judges how many targets there are
        try:
            return list(questions_of(self._task, [*first, *docs])[len(first) :])
        except Exception as error:
            if len(docs) == 1:
                return [error.message if isinstance(error, PromptfmtError) else f"{type(error).__name__}: {error}"]
            return [question for doc in docs for question in self._questions([doc])]

    def _reading(self, pipeline: FilterPipeline, one: _Ready, stages: Stages) -> Reading:
        right = self._is_right(one, stages.extracted) if stages.problem is None else stages.problem
        result: Result = (
            "failed"
            if isinstance(right, str)
            else "right"
            if right
            else "not extracted"
            if is_nothing(stages.extracted, pipeline)
            else "wrong"
        )
        recorded, was, now = _difference(one.record, pipeline, stages, result)
        problem = right if isinstance(right, str) else None
        return Reading(pipeline.name, result, stages.extracted, problem, recorded, was, now)

    def _is_right(self, one: _Ready, extracted: Any) -> bool | str:
        """Return whether an extraction is right, or why that is unknown; cached where only the texts count."""
        if callable(self._task.process_results) or not isinstance(extracted, str):
            return self._judge(one, extracted)
        key = (repr(one.question.target), repr(one.question.choices), extracted)
        if key not in self._judged:
            if len(self._judged) >= _MOST_CACHED:
                self._judged.clear()
            self._judged[key] = self._judge(one, extracted)
        return self._judged[key]

    def _judge(self, one: _Ready, extracted: Any) -> bool | str:
        try:
            return self._chain.is_right(one.question, one.doc, extracted)
        except (TooSlowError, UnavailableError):
            raise
        except LimitExceededError as error:
            return f"SLOW: {error.message}"
        except Exception as error:
            return f"CRASH: {type(error).__name__}: {error}"


def _speaks_of(record: Recorded, pipeline: FilterPipeline) -> bool:
    """Return whether a record is for a pipeline: a line of --log_samples speaks of one, most lines of any."""
    named = {*record.extractions, *record.scores}
    return not named or None in named or pipeline.name in named


def _difference(record: Recorded, pipeline: FilterPipeline, stages: Stages, result: Result) -> tuple[int, str, str]:
    """Return how many verdicts the recording has of a pipeline, and its and the present ones where they differ."""
    keys = [key for key in (None, pipeline.name) if key in record.extractions or key in record.scores]
    was, now = [], []
    for key in keys:
        if key in record.extractions:
            expected = record.extractions[key]
            if stages.problem is not None or not _same(stages.extracted, expected):
                was.append(repr(expected))
                now.append(stages.problem or repr(stages.extracted))
        if key in record.scores and (result == "right") != record.scores[key]:
            was.append("right" if record.scores[key] else "not right")
            now.append(result)
    return len(keys), ", ".join(was), ", ".join(now)


def _same(extracted: Any, expected: Any) -> bool:
    if expected is None:
        return is_nothing(extracted)
    return bool(extracted == expected) or (isinstance(expected, str) and str(extracted) == expected)


# -- transcripts -----------------------------------------------------------------------------------------------------

LISTED_RECORDS: Final = 10_000
"""Records up to which a transcript has a line for each."""

BLOCK: Final = 1000
"""Records of one line where there are more."""

_SHOWN_BAD: Final = 100


@dataclass(slots=True)
class Transcript:
    """The verdicts of a recording in order, as short lines; `replay` counts them.

    Memory is bounded: once there are more than `LISTED_RECORDS`, each line is for `BLOCK` records, with counts
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
        """Return a line for each of the first records that cannot be used."""
        lines = [f"{one.number}  {one.reason}" for one in self.replay.bad[:_SHOWN_BAD]]
        left = self.replay.bad_count - len(lines)
        return [*lines, f"and {left:,} more"] if left > 0 else lines

    def _end_block(self) -> None:
        first = len(self._blocks) * BLOCK + 1
        digest = self._digest.hexdigest()[:16]
        self._blocks.append(f"{first:,} to {self.replay.records:,}  {_counted(self._block)}  digest {digest}")
        self._block.clear()
        self._digest = hashlib.sha256()


def transcribed(study: Study, path: Path) -> Transcript:
    """Return the verdicts of a recording of a task; raises the PromptfmtError that stops it."""
    scoring = study.scoring
    transcript = Transcript([pipeline.name for pipeline in scoring.pipelines])
    docs = DocsByNumber(scoring, study.settings.time_limit)
    for record in replayed(scoring.task, scoring.instances, path, docs):
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
    shown = (name for name in get_args(Result) if results.get(name) or name != "failed")
    return ", ".join(f"{results.get(name, 0):,} {name}" for name in shown)
