"""Recorded completions of real models, replayed through the present filters and metrics, one line at a time.

Three shapes are read as they are: lines of `{doc, completion, expected, correct}`, lines of lm-eval 0.4.13's
`--log_samples`, and HELM's `scenario_state.json`. Memory stays bounded whatever the size of the file; a bad line is
told by its number and nothing else is lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.errors import Position, ScoringError
from pytest_promptfmt.rendering.prompt import Instance
from pytest_promptfmt.scoring.completions import Chain, Stages, is_nothing
from pytest_promptfmt.scoring.results import Question, questions_of
from pytest_promptfmt.tasks import UNSET, Doc, Task

SHOWN_CHANGES: Final = 1000
"""Changed verdicts that a replay keeps to list; all are counted."""

_CHUNK: Final = 1 << 20
_BETWEEN: Final = re.compile(r"[\s,:]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """One completion: of the doc with this number (from 0), or of the doc that the record itself holds.

    `extractions` and `scores` are what the recording says, by filter pipeline (None: of any).
    """

    number: int
    doc_index: int
    completion: str
    doc: Doc | None = None
    target: Any = UNSET
    extractions: Mapping[str | None, Any] = field(default_factory=dict)
    scores: Mapping[str | None, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that cannot be used: its number in the file, from 1, and why."""

    number: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One verdict that is not what the recording says."""

    number: int
    doc_index: int
    pipeline: str
    was: str
    now: str


@dataclass(kw_only=True, slots=True)
class Replay:
    """What became of a recording: what the answers are now, which verdicts changed, which records were bad.

    An answer that the filters do not find is `not_extracted`, never `wrong`. `verdicts` counts what the recording
    told, so that it could be compared.
    """

    right: int = 0
    wrong: int = 0
    not_extracted: int = 0
    failed: int = 0
    verdicts: int = 0
    changed: int = 0
    changes: list[Change] = field(default_factory=list)
    bad: list[BadRecord] = field(default_factory=list)

    def summary(self) -> str:
        """Return one line: how many verdicts changed, of how many, and what the answers are now."""
        parts = [
            f"{self.changed:,} of {self.verdicts:,} verdicts changed",
            f"{self.right:,} right, {self.wrong:,} wrong, {self.not_extracted:,} not extracted",
        ]
        parts += [f"{self.failed:,} filters or metrics failed"] if self.failed else []
        parts += [f"{len(self.bad):,} records cannot be used"] if self.bad else []
        return "; ".join(parts)


def read_recording(
    path: Path, progress: Callable[[int], object] = lambda _read: None
) -> Iterator[Recorded | BadRecord]:
    """Yield the records of a file in order, bad ones included; `progress` is told how many bytes were read so far.

    Raises ScoringError when the file cannot be opened or has none of the known shapes.
    """
    try:
        with path.open("rb") as file:
            start = file.read(4096)
    except OSError as error:
        raise ScoringError(f"the recording cannot be read: {error.strerror}", position=Position(path)) from error
    if b'"request_states"' in start or (start.lstrip()[:1] == b"{" and b'"adapter_spec"' in start):
        yield from _helm_states(path, progress)
    else:
        yield from _lines(path, progress)


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
    until = (instances[0].requests[0].generation_kwargs or {}).get("until") or () if instances else ()
    chain = Chain(task, [until] if isinstance(until, str) else list(until))
    known = {instance.index: instance.doc for instance in instances}
    result = Replay()
    for record in read_recording(path, progress):
        if isinstance(record, BadRecord):
            result.bad.append(record)
            continue
        doc = record.doc if record.doc is not None else known.get(record.doc_index)
        if doc is None:
            result.bad.append(BadRecord(record.number, f"there is no doc {record.doc_index}"))
            continue
        try:
            if record.target is UNSET:
                question = questions_of(task, [doc])[0]
            else:
                question = Question(output_type=task.output_type, target=record.target)
        except Exception as error:
            result.bad.append(BadRecord(record.number, f"its doc does not fit the task: {error}"))
            continue
        _replay_one(chain, record, doc, question, result)
    return result


def _replay_one(chain: Chain, record: Recorded, doc: Doc, question: Question, result: Replay) -> None:
    for pipeline in chain.pipelines:
        told = [key for key in (None, pipeline.name) if key in record.extractions or key in record.scores]
        if not told and (record.extractions or record.scores):
            continue  # a line of --log_samples speaks of one pipeline
        stages = chain.read(pipeline, record.completion, doc, f"record {record.number}")
        right = _is_right(chain, question, doc, stages.extracted) if stages.problem is None else stages.problem
        _count(result, right, stages.extracted)
        for key in told:
            result.verdicts += 1
            was, now = _differences(record, key, stages, right)
            if not was:
                continue
            result.changed += 1
            if len(result.changes) < SHOWN_CHANGES:
                result.changes.append(
                    Change(
                        number=record.number,
                        doc_index=record.doc_index,
                        pipeline=pipeline.name,
                        was=", ".join(was),
                        now=", ".join(now),
                    )
                )


def _count(result: Replay, right: bool | str, extracted: Any) -> None:
    if isinstance(right, str):
        result.failed += 1
    elif right:
        result.right += 1
    elif is_nothing(extracted):
        result.not_extracted += 1
    else:
        result.wrong += 1


def _differences(
    record: Recorded, key: str | None, stages: Stages, right: bool | str
) -> tuple[Sequence[str], Sequence[str]]:
    was, now = [], []
    if key in record.extractions:
        expected = record.extractions[key]
        if stages.problem is not None or not _same(stages.extracted, expected):
            was.append(repr(expected))
            now.append(stages.problem or repr(stages.extracted))
    if key in record.scores and right != record.scores[key]:
        was.append("right" if record.scores[key] else "wrong")
        now.append(right if isinstance(right, str) else "right" if right else "wrong")
    return was, now


def _is_right(chain: Chain, question: Question, doc: Doc, extracted: Any) -> bool | str:
    try:
        return chain.is_right(question, doc, extracted)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _same(extracted: Any, expected: Any) -> bool:
    return bool(extracted == expected) or (isinstance(expected, str) and str(extracted) == expected)


# -- lines -------------------------------------------------------------------------------------------------------------


def _lines(path: Path, progress: Callable[[int], object]) -> Iterator[Recorded | BadRecord]:
    read = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            read += len(line)
            if line.strip():
                yield _of_line(line, number)
            progress(read)


def _of_line(line: bytes, number: int) -> Recorded | BadRecord:
    try:
        entry = json.loads(line)
    except ValueError as error:
        return BadRecord(number, f"no JSON: {error}")
    if not isinstance(entry, dict):
        return BadRecord(number, f"a {type(entry).__name__} where a mapping should be")
    return _of_log_samples(entry, number) if "resps" in entry else _of_plain(entry, number)


def _of_plain(entry: Mapping[str, Any], number: int) -> Recorded | BadRecord:
    completion, doc = entry.get("completion"), entry.get("doc", 0)
    if not isinstance(completion, str):
        return BadRecord(number, "there is no text `completion`")
    pipeline = entry.get("pipeline")
    whole = doc if isinstance(doc, dict) else None
    index = doc if isinstance(doc, int) and not isinstance(doc, bool) else entry.get("doc_id", number - 1)
    if not isinstance(index, int):
        return BadRecord(number, f"`doc` is {doc!r}, and must be a number from 0 or the doc itself")
    return Recorded(
        number=number,
        doc_index=index,
        completion=completion,
        doc=whole,
        extractions={pipeline: entry["expected"]} if "expected" in entry else {},
        scores={pipeline: bool(entry["correct"])} if entry.get("correct") is not None else {},
    )


def _of_log_samples(entry: Mapping[str, Any], number: int) -> Recorded | BadRecord:
    """Read one line that lm-eval 0.4.13 wrote: doc, raw responses, what one filter pipeline made of them."""
    try:
        completion = entry["resps"][0][0]
        filtered = entry["filtered_resps"][0]
        index = int(entry["doc_id"])
    except (LookupError, TypeError, ValueError) as error:
        return BadRecord(number, f"not a line of --log_samples for a generation task: {type(error).__name__} {error}")
    if not isinstance(completion, str):
        return BadRecord(number, "its first response is no text: only generation tasks can be replayed")
    pipeline = entry.get("filter")
    metric = next(iter(entry.get("metrics") or ()), None)
    score = entry.get(metric) if metric is not None else None
    doc = entry.get("doc")
    return Recorded(
        number=number,
        doc_index=index,
        completion=completion,
        doc=doc if isinstance(doc, dict) else None,
        extractions={pipeline: filtered},
        scores={pipeline: score >= 1} if isinstance(score, int | float) else {},
    )


# -- HELM --------------------------------------------------------------------------------------------------------------


def _helm_states(path: Path, progress: Callable[[int], object]) -> Iterator[Recorded | BadRecord]:
    """Yield the request states of a `scenario_state.json`, decoding one state at a time."""
    number = 0
    for state in _array_items(path, '"request_states"', progress):
        number += 1
        if isinstance(state, BadRecord):
            yield BadRecord(number, state.reason)
            return
        try:
            completion = state["result"] if "result" in state else state["request"]["result"]
            text = completion["completions"][0]["text"]
            references = state["instance"].get("references") or ()
            golds = [one["output"]["text"] for one in references if "correct" in (one.get("tags") or ())]
        except (LookupError, TypeError, AttributeError) as error:
            yield BadRecord(number, f"no completion in this request state: {type(error).__name__} {error}")
            continue
        mapping = state.get("output_mapping") or {}
        targets = [key for key, value in mapping.items() if value in golds] or golds
        yield Recorded(
            number=number,
            doc_index=number - 1,
            completion=str(text),
            doc={"input": state["instance"].get("input"), "references": references},
            target=targets[0] if targets else "",
        )


def _array_items(path: Path, key: str, progress: Callable[[int], object]) -> Iterator[Any]:
    """Yield the values of the array that follows a key, with no more than one of them and a chunk in memory."""
    decoder = json.JSONDecoder()
    with path.open(encoding="utf-8", errors="replace") as file:
        buffer = ""
        while key not in buffer:
            chunk = file.read(_CHUNK)
            if not chunk:
                raise ScoringError(f"the file has no {key}", position=Position(path))
            buffer = buffer[-len(key) :] + chunk
        place = buffer.index(key) + len(key)
        read = len(buffer)
        opened = False
        while True:
            place = _BETWEEN.match(buffer, place).end()  # type: ignore[union-attr]  # matches the empty text
            if not opened and buffer[place : place + 1] == "[":
                place, opened = place + 1, True
                continue
            if opened and buffer[place : place + 1] == "]":
                return
            try:
                value, place = decoder.raw_decode(buffer, place)
            except ValueError as error:
                chunk = file.read(_CHUNK)
                if not chunk:
                    yield BadRecord(0, f"the file ends or breaks here: {error}")
                    return
                buffer, place = buffer[place:] + chunk, 0
                read += len(chunk)
                progress(read)
                continue
            yield value
