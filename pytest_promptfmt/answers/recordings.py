"""Recorded completions of real models, read one record at a time.

Read as they are: lines of `{doc, completion, expected, correct}`, lines of lm-eval 0.4.13's `--log_samples`, what a
model of this plugin answered (lines with `kind` and `text`), and the recordings of systems. Memory stays bounded
for files of any size; a bad line is reported by its number and nothing else is lost.
"""

from __future__ import annotations

import fnmatch
import glob
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import Position, ScoringError
from pytest_promptfmt.core.recorded import BadRecord, Recorded
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.systems import head_of, known_systems

_CHUNK: Final = 1 << 20
_LONGEST_NAME: Final = 250
_SETTLED_NS: Final = 2_000_000_000
"""The age of a folder from which its time tells that its names are the same: some file systems count in seconds."""
_MOST: Final = 1000
"""The most recordings that one glob means."""
_LONGEST: Final = 1 << 26
"""Bytes of one record; a longer one is a bad record, so that memory stays bounded."""


def recordings_of(task: Task) -> list[Path]:
    """Return the recordings of a task: files next to its own, and those that its metadata names (globs too), sorted.

    Next to `arc.yaml` these are `arc.recording.jsonl`, `arc.<any>.recording.jsonl`, `samples_<task>_<date>.jsonl` and
    those of systems, such as `arc.<any>.scenario_state.json`. Raises ScoringError for a named file that does not exist.
    """
    if task.path is None:
        return []
    folder, stem = task.path.parent, glob.escape(task.path.stem)
    beside = (
        f"{stem}.recording.jsonl",
        f"{stem}.*.recording.jsonl",
        *(f"{stem}.*{ending}" for ending in _endings()),
        f"samples_{glob.escape(task.name)}_[0-9]*.jsonl",
    )
    # A name longer than a file's can be has no recording.
    possible = [pattern for pattern in beside if len(pattern.encode("utf-8", "surrogatepass")) <= _LONGEST_NAME]
    names = _names_in(folder)  # seldom any: compiling a pattern takes longer than the rest
    found = {folder / name for pattern in possible for name in fnmatch.filter(names, pattern)} if names else set()
    exact = folder / f"{task.path.stem}.recording.jsonl"
    found |= {exact} if gate.is_there(exact) else set()  # a link to nothing as well
    named = task.own_metadata.get("recordings") or ()
    position = task.position("metadata", "promptfmt", "recordings")
    if isinstance(named, str):
        named = [named]
    if not isinstance(named, list | tuple) or not all(isinstance(one, str) and one.strip() for one in named):
        raise ScoringError("recordings must be a list of files", position=position)
    for one in named:
        paths = _named(folder, one, position)
        if not paths:
            raise ScoringError(
                f"there is no recording {one!r}", position=position, hint="paths are relative to the YAML file"
            )
        found |= paths
    return sorted(found)


def _names_in(folder: Path) -> tuple[str, ...]:
    """Return the names in a folder that recordings may have; those of a folder with many tasks are listed once."""
    try:
        stamp = folder.stat().st_mtime_ns
        is_settled = time.time_ns() - stamp > _SETTLED_NS
        return _listed(str(folder), stamp) if is_settled else _listed.__wrapped__(str(folder), stamp)
    except (OSError, ValueError):
        return ()


@lru_cache(maxsize=64)
def _listed(folder: str, _stamp: int) -> tuple[str, ...]:
    return tuple(name for name in os.listdir(folder) if name.endswith((".jsonl", *_endings())))


def _named(folder: Path, written: str, position: Position | None) -> set[Path]:
    """Return the files that a name or glob means; raises ScoringError for one that is not opened."""
    try:
        exact = gate.named(folder, written)
        if gate.is_there(exact):
            gate.allowed(exact)
            return {exact}
        if Path(written).is_absolute():
            return set()
        plain = takewhile(lambda part: not re.search(r"[*?\[]", part), Path(written).parts)
        gate.allowed(folder.joinpath(*plain, "-"))
        return set(islice(folder.glob(written), _MOST))
    except OSError as error:
        reason = error.strerror or error
        raise ScoringError(f"the recording {written!r} cannot be read: {reason}", position=position) from error
    except (ValueError, NotImplementedError):
        return set()


def recording_name(task: Task, path: Path) -> str:
    """Return what a recording is called in node ids and snapshots: its file name without what all of them share.

    Nothing for `<stem>.recording.jsonl`, which is the one that most tasks have.
    """
    name = path.name
    for suffix in (".recording.jsonl", ".jsonl", *(f".{ending}" for ending in _endings()), ".json"):
        if name.endswith(suffix):
            name = name.removesuffix(suffix)
            break
    stem = task.path.stem if task.path is not None else ""
    return name.removeprefix(f"{stem}.") if name != stem else ""


@runtime_checkable
class ReadsRecordings(Protocol):
    """A system with its own kind of recordings, which may be next to a task of any system."""

    recordings: tuple[str, ...]
    """The endings of their names: `scenario_state.json` for `arc.<any>.scenario_state.json`."""

    def recording(self, path: Path, head: bytes) -> Iterator[Recorded | BadRecord] | None:
        """Return the completions that a file records, bad ones included; None for a file of another system.

        Raises ScoringError for a file that cannot be read at all.
        """
        ...


def _readers() -> Iterator[ReadsRecordings]:
    return (system for system in known_systems().values() if isinstance(system, ReadsRecordings))


def _endings() -> list[str]:
    return [ending for system in _readers() for ending in system.recordings]


def read_recording(path: Path) -> Iterator[Recorded | BadRecord]:
    """Yield the records of a file in order, bad ones included.

    Raises ScoringError when the file cannot be opened or has none of the known shapes.
    """
    try:
        head = head_of(path)
    except OSError as error:
        raise ScoringError(f"the recording cannot be read: {error.strerror}", position=Position(path)) from error
    found = (system.recording(path, head) for system in _readers())
    yield from next((records for records in found if records is not None), None) or _lines(path)


# -- lines -------------------------------------------------------------------------------------------------------------


def _lines(path: Path) -> Iterator[Recorded | BadRecord]:
    number = 0
    with gate.open_file(path) as file:
        while line := file.readline(_LONGEST):
            number += 1
            if len(line) == _LONGEST and not line.endswith(b"\n"):
                while (rest := file.readline(_CHUNK)) and not rest.endswith(b"\n"):
                    pass
                yield BadRecord(number, f"the line is longer than {_LONGEST >> 20} MiB")
            elif line.strip():
                yield _of_line(line, number)


def _of_line(line: bytes, number: int) -> Recorded | BadRecord:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        return BadRecord(number, f"invalid JSON: {error}")
    if not isinstance(entry, dict):
        return BadRecord(number, f"expected a mapping, not a {type(entry).__name__}")
    if "resps" in entry:
        return _of_log_samples(entry, number)
    return _of_answer(entry, number) if "kind" in entry and "key" in entry else _of_plain(entry, number)


def _of_answer(entry: Mapping[str, Any], number: int) -> Recorded | BadRecord:
    """Read what a model of this plugin answered to one question."""
    if entry["kind"] != "generate" or not isinstance(entry.get("text"), str) or not _is_number(entry.get("doc")):
        return BadRecord(
            number, "the record has no generated text, or no number of the doc; such records cannot be replayed"
        )
    return Recorded(
        number=number,
        doc_index=entry["doc"],
        completion=entry["text"],
        task=entry.get("task"),
        request=str(entry["key"]),
    )


def _of_plain(entry: Mapping[str, Any], number: int) -> Recorded | BadRecord:
    completion, doc = entry.get("completion"), entry.get("doc")
    if not isinstance(completion, str):
        return BadRecord(number, "`completion` must be text")
    pipeline = entry.get("pipeline")
    if not isinstance(pipeline, str | None):
        return BadRecord(number, f"`pipeline` is {pipeline!r}, but must be the name of a filter pipeline")
    whole = doc if isinstance(doc, dict) else None
    index = entry.get("doc_id", 0 if doc is None else number - 1) if whole is not None or doc is None else doc
    if not _is_number(index):
        return BadRecord(number, f"`doc` is {index!r}, but must be the number of a doc (from 0), or a whole doc")
    correct = entry.get("correct")
    if not isinstance(correct, int | float | None):
        return BadRecord(number, f"`correct` is {correct!r}, but must be true or false")
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
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        return BadRecord(
            number,
            f"not a line of lm-eval's --log_samples for a generation task: {type(error).__name__} {error}",
        )
    if not isinstance(completion, str):
        return BadRecord(number, "the first response is not text; only generation tasks can be replayed")
    pipeline = entry.get("filter")
    if not isinstance(pipeline, str | None):
        return BadRecord(number, f"`filter` is {pipeline!r}, but must be the name of a filter pipeline")
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
