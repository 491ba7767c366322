"""Recorded completions of real models, read one record at a time.

Four shapes are read as they are: lines of `{doc, completion, expected, correct}`, lines of lm-eval 0.4.13's
`--log_samples`, what a model of this plugin answered (lines with `kind` and `text`), and HELM's `scenario_state.json`.
Memory stays bounded whatever the size of the file; a bad line is told by its number and nothing else is lost.
"""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core.errors import Position, ScoringError
from pytest_promptfmt.core.task import UNSET, Doc, Task

_CHUNK: Final = 1 << 20
_LONGEST: Final = 1 << 26
"""Bytes of one record; a longer one is no record, and memory stays bounded."""

_BETWEEN: Final = re.compile(r"[\s,:]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """One completion: of the doc with this number (from 0), or of the doc that the record itself holds.

    `extractions` and `scores` are what the recording says, by filter pipeline (None: of any). `task` is the name or
    `name@format` that the record is for, None for any. `request` is the hash of what was asked, where it was kept.
    """

    number: int
    doc_index: int
    completion: str
    doc: Doc | None = None
    target: Any = UNSET
    extractions: Mapping[str | None, Any] = field(default_factory=dict)
    scores: Mapping[str | None, bool] = field(default_factory=dict)
    task: str | None = None
    request: str | None = None


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that cannot be used: its number in the file, from 1, and why."""

    number: int
    reason: str


def recordings_of(task: Task) -> list[Path]:
    """Return the recordings of a task: files beside its own, and those that its metadata names (globs too), sorted.

    Beside `arc.yaml` these are `arc.recording.jsonl`, `arc.<any>.recording.jsonl`, `arc.<any>.scenario_state.json` and
    `samples_<task>_<date>.jsonl`. Raises ScoringError for a named file that does not exist.
    """
    if task.path is None:
        return []
    folder, stem = task.path.parent, glob.escape(task.path.stem)
    beside = (
        f"{stem}.recording.jsonl",
        f"{stem}.*.recording.jsonl",
        f"{stem}.*scenario_state.json",
        f"samples_{glob.escape(task.name)}_[0-9]*.jsonl",
    )
    found = {path for pattern in beside for path in folder.glob(pattern)}
    named = task.own_metadata.get("recordings") or ()
    position = task.position("metadata", "promptfmt", "recordings")
    if isinstance(named, str):
        named = [named]
    if not isinstance(named, list | tuple) or not all(isinstance(one, str) and one.strip() for one in named):
        raise ScoringError("recordings must be a list of files", position=position)
    for one in named:
        exact = folder / one
        paths = {exact} if exact.is_file() else set() if Path(one).is_absolute() else set(folder.glob(one))
        if not paths:
            raise ScoringError(
                f"there is no recording {one!r}", position=position, hint="name it as seen from the YAML"
            )
        found |= paths
    return sorted(found)


def recording_name(task: Task, path: Path) -> str:
    """Return what a recording is called in node ids and snapshots: its file name without what all of them share.

    Nothing for `<stem>.recording.jsonl`, which is the one that most tasks have.
    """
    name = path.name
    for suffix in (".recording.jsonl", ".jsonl", ".scenario_state.json", ".json"):
        if name.endswith(suffix):
            name = name.removesuffix(suffix)
            break
    stem = task.path.stem if task.path is not None else ""
    return name.removeprefix(f"{stem}.") if name != stem else ""


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


# -- lines -------------------------------------------------------------------------------------------------------------


def _lines(path: Path, progress: Callable[[int], object]) -> Iterator[Recorded | BadRecord]:
    read = number = 0
    with path.open("rb") as file:
        while line := file.readline(_LONGEST):
            read += len(line)
            number += 1
            if len(line) == _LONGEST and not line.endswith(b"\n"):
                while (rest := file.readline(_CHUNK)) and not rest.endswith(b"\n"):
                    read += len(rest)
                yield BadRecord(number, f"longer than {_LONGEST >> 20} MiB")
            elif line.strip():
                yield _of_line(line, number)
            progress(read)


def _of_line(line: bytes, number: int) -> Recorded | BadRecord:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        return BadRecord(number, f"no JSON: {error}")
    if not isinstance(entry, dict):
        return BadRecord(number, f"a {type(entry).__name__} where a mapping should be")
    if "resps" in entry:
        return _of_log_samples(entry, number)
    return _of_answer(entry, number) if "kind" in entry and "key" in entry else _of_plain(entry, number)


def _of_answer(entry: Mapping[str, Any], number: int) -> Recorded | BadRecord:
    """Read what a model of this plugin answered to one question."""
    if entry["kind"] != "generate" or not isinstance(entry.get("text"), str) or not _is_number(entry.get("doc")):
        return BadRecord(number, "no generated text: only those can be replayed")
    return Recorded(
        number=number,
        doc_index=entry["doc"],
        completion=entry["text"],
        task=entry.get("task"),
        request=str(entry["key"]),
    )


def _of_plain(entry: Mapping[str, Any], number: int) -> Recorded | BadRecord:
    completion, doc = entry.get("completion"), entry.get("doc", 0)
    if not isinstance(completion, str):
        return BadRecord(number, "there is no text `completion`")
    pipeline = entry.get("pipeline")
    if not isinstance(pipeline, str | None):
        return BadRecord(number, f"`pipeline` is {pipeline!r}, and must be the name of a filter pipeline")
    whole = doc if isinstance(doc, dict) else None
    index = doc if whole is None else entry.get("doc_id", number - 1)
    if not _is_number(index):
        return BadRecord(number, f"`doc` is {doc!r}, and must be a number from 0 or the doc itself")
    correct = entry.get("correct")
    if not isinstance(correct, int | float | None):
        return BadRecord(number, f"`correct` is {correct!r}, and must be true or false")
    return Recorded(
        number=number,
        doc_index=index,
        completion=completion,
        doc=whole,
        extractions={pipeline: entry["expected"]} if "expected" in entry else {},
        scores={pipeline: bool(correct)} if correct is not None else {},
        task=entry.get("task"),
        request=entry.get("request"),
    )


def _of_log_samples(entry: Mapping[str, Any], number: int) -> Recorded | BadRecord:
    """Read one line that lm-eval 0.4.13 wrote: doc, raw responses, what one filter pipeline made of them."""
    try:
        completion = entry["resps"][0][0]
        filtered = entry["filtered_resps"][0]
        index = int(entry["doc_id"])
        metric = next(iter(entry.get("metrics") or ()), None)
        score = entry.get(metric) if metric is not None else None
    except (LookupError, TypeError, ValueError) as error:
        return BadRecord(number, f"not a line of --log_samples for a generation task: {type(error).__name__} {error}")
    if not isinstance(completion, str):
        return BadRecord(number, "its first response is no text: only generation tasks can be replayed")
    pipeline = entry.get("filter")
    if not isinstance(pipeline, str | None):
        return BadRecord(number, f"`filter` is {pipeline!r}, and must be the name of a filter pipeline")
    doc = entry.get("doc")
    return Recorded(
        number=number,
        doc_index=index,
        completion=completion,
        doc=doc if isinstance(doc, dict) else None,
        extractions={pipeline: filtered},
        scores={pipeline: score >= 1} if isinstance(score, int | float) else {},
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


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
            text = max(completion["completions"], key=_logprob)["text"]  # HELM 0.5.16 scores the most likely one
            references = state["instance"].get("references") or ()
            golds = [one["output"]["text"] for one in references if "correct" in (one.get("tags") or ())]
        except (LookupError, TypeError, AttributeError, ValueError) as error:
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


def _logprob(completion: Mapping[str, Any]) -> float:
    value = completion.get("logprob")
    return value if isinstance(value, int | float) else 0.0


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
            except RecursionError as error:
                yield BadRecord(0, f"the file cannot be read from here on: {error}")
                return
            except ValueError as error:
                chunk = file.read(_CHUNK) if len(buffer) - place < _LONGEST else ""
                if not chunk:
                    yield BadRecord(0, f"the file ends or breaks here: {error}")
                    return
                buffer, place = buffer[place:] + chunk, 0
                read += len(chunk)
                progress(read)
                continue
            yield value
