"""Recordings through the present filters and metrics: the verdict of each record, and how it differs from before.

Records are taken in batches, as lm-eval applies filters to all answers at once; nothing is held beyond a batch and what
is kept to be shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from pytest_promptfmt.answers.completions import Chain, Stages, is_nothing
from pytest_promptfmt.answers.recordings import read_recording
from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.errors import LimitExceededError, PromptfmtError, TooSlowError
from pytest_promptfmt.core.limits import time_limit
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.recorded import BadRecord, Recorded
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.study.scoring import Scoring, stops_of
from pytest_promptfmt.tasks import FilterPipeline, Question, load_docs, questions_of

SHOWN_CHANGES: Final = 1000
"""Changed verdicts that a replay keeps to list; all are counted."""

SHOWN_BAD: Final = 1000
"""Records that cannot be used and are listed; all are counted."""

_BATCH: Final = 1000
_MOST_REMEMBERED: Final = 100_000

Result = Literal["right", "wrong", "not extracted", "failed"]
DocOf = Callable[[int], Doc | None]


@dataclass(frozen=True, slots=True)
class Reading:
    """What one pipeline makes of a record: an answer that it does not find is `not extracted`, never `wrong`.

    `was` and `now` are what the recording tells and what holds now, both empty where they are the same; `told` counts
    what the recording told.
    """

    pipeline: str
    result: Result
    extracted: Any
    problem: str | None
    told: int = 0
    was: str = ""
    now: str = ""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One record with the readings of the pipelines that it speaks of."""

    number: int
    doc_index: int
    readings: tuple[Reading, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class VerdictChange:
    """One verdict that is not what the recording says."""

    number: int
    doc_index: int
    pipeline: str
    was: str
    now: str


@dataclass(kw_only=True, slots=True)
class Replay:
    """What became of a recording: what the answers are now, which verdicts changed, which records were bad.

    `verdicts` counts what the recording told, so that it could be compared; `changes` and `bad` list the first ones.
    """

    records: int = 0
    right: int = 0
    wrong: int = 0
    not_extracted: int = 0
    failed: int = 0
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
            self.right += reading.result == "right"
            self.wrong += reading.result == "wrong"
            self.not_extracted += reading.result == "not extracted"
            self.failed += reading.result == "failed"
            self.verdicts += reading.told
            if not reading.was:
                continue
            self.changed += 1
            if len(self.changes) < SHOWN_CHANGES:
                self.changes.append(
                    VerdictChange(
                        number=record.number,
                        doc_index=record.doc_index,
                        pipeline=reading.pipeline,
                        was=reading.was,
                        now=reading.now,
                    )
                )

    def summary(self) -> str:
        """Return one line: how many verdicts changed, of how many, and what the answers are now."""
        changed = f"{self.changed:,} of {self.verdicts:,} verdicts changed"
        return f"{changed}; {self.counts()}" if self.verdicts else self.counts()

    def counts(self) -> str:
        """Return one line: what the answers are now."""
        parts = [f"{self.right:,} right, {self.wrong:,} wrong, {self.not_extracted:,} not extracted"]
        parts += [f"{self.failed:,} filters or metrics failed"] if self.failed else []
        parts += [f"{self.bad_count:,} records cannot be used"] if self.bad_count else []
        return "; ".join(parts)


def replay(
    task: Task,
    instances: Sequence[Instance],
    path: Path,
    *,
    progress: Callable[[int], object] = lambda _read: None,
) -> Replay:
    """Return how the verdicts of a recording differ from what the task's filters and metrics make of it now.

    Functions must be bound. A record that holds its doc needs no instance; another needs one of the same number.
    """
    known = {instance.index: instance.doc for instance in instances}
    result = Replay()
    for record in replayed(task, instances, path, known.get, progress=progress):
        result.add(record)
    return result


def replayed(
    task: Task,
    instances: Sequence[Instance],
    path: Path,
    doc_of: DocOf,
    *,
    progress: Callable[[int], object] = lambda _read: None,
) -> Iterator[Replayed | BadRecord]:
    """Yield what the filters and metrics make of each record now, in order; records of other tasks are left out.

    `doc_of` gives a doc of the task by its number, None where there is none. Functions must be bound.
    """
    reader = _Reader(task, instances, doc_of)
    batch: list[Recorded | BadRecord] = []
    for record in read_recording(path, progress):
        if isinstance(record, Recorded) and record.task not in (None, task.name, task.id):
            continue
        batch.append(record)
        if len(batch) == _BATCH:
            yield from reader.read(batch)
            batch.clear()
    yield from reader.read(batch)


class DocsByNumber:
    """The docs of a task by their number, from 0; more are read when one of them is asked for."""

    def __init__(self, scoring: Scoring, seconds: float) -> None:
        self._task = scoring.task
        self._docs: Sequence[Doc] = [instance.doc for instance in scoring.instances]
        self._is_all = scoring.is_synthetic
        self._seconds = seconds

    def __call__(self, number: int) -> Doc | None:
        """Return a doc, None where there is none; synthetic docs are only those that were made."""
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
                told = f"no filter pipeline {sorted(map(str, unknown))[0]!r}; there are {', '.join(self._pipelines)}"
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
                else BadRecord(record.number, f"its doc does not fit the task: {given}")
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
        told, was, now = _difference(one.record, pipeline, stages, result)
        problem = right if isinstance(right, str) else None
        return Reading(pipeline.name, result, stages.extracted, problem, told, was, now)

    def _is_right(self, one: _Ready, extracted: Any) -> bool | str:
        """Return whether an extraction is right, or why nobody can tell; remembered where only the texts count."""
        if callable(self._task.process_results) or not isinstance(extracted, str):
            return self._judge(one, extracted)
        key = (repr(one.question.target), repr(one.question.choices), extracted)
        if key not in self._judged:
            if len(self._judged) >= _MOST_REMEMBERED:
                self._judged.clear()
            self._judged[key] = self._judge(one, extracted)
        return self._judged[key]

    def _judge(self, one: _Ready, extracted: Any) -> bool | str:
        try:
            return self._chain.is_right(one.question, one.doc, extracted)
        except TooSlowError:
            raise
        except LimitExceededError as error:
            return f"SLOW: {error.message}"
        except Exception as error:
            return f"CRASH: {type(error).__name__}: {error}"


def _speaks_of(record: Recorded, pipeline: FilterPipeline) -> bool:
    """Return whether a record is for a pipeline: a line of --log_samples speaks of one, most lines of any."""
    told = {*record.extractions, *record.scores}
    return not told or None in told or pipeline.name in told


def _difference(record: Recorded, pipeline: FilterPipeline, stages: Stages, result: Result) -> tuple[int, str, str]:
    """Return how much the recording tells of a pipeline, and what it says and what holds now, where they differ."""
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
