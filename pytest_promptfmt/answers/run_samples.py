"""What a finished run asked, sample by sample, as digests: lm-eval's `--log_samples` files, and recordings of ours.

lm-eval 0.4.13 writes SHA-256 digests of each doc, of the prompt of its first request and of its target, and one of all
of these for each task. They are made again from the texts beside them, so that a file that was edited is noticed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Literal

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import Position, SettingsError, SourceError

Part = Literal["doc", "text", "request", "stops", "target", "tokens"]

MAX_LINE: Final = 1 << 26
_SAMPLES: Final = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT[\d.-]+)\.jsonl")
_RESULTS: Final = re.compile(r"results_(?P<date>\d{4}-\d\d-\d\dT[\d.-]+)\.json")
_HASHES: Final = ("doc_hash", "prompt_hash", "target_hash")
_ORDER: Final = ("task", "profile", "doc", "request")
"""The keys of a recording's lines that say which question of which doc was asked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedDoc:
    """One doc as it was asked: digests of its parts, without those that the file does not show.

    `key` is equal for the same doc in another run. `number` is that of the doc, `start` where its line begins.
    """

    key: str
    number: int
    parts: Mapping[Part, str]
    start: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSamples:
    """The samples of a task in one file; `checked` of its digests were made again, those in `wrong` came out otherwise.

    `digest` is that of all samples as lm-eval makes it, None where a line lacks a part of it.
    """

    task: str
    path: Path
    samples: tuple[AskedDoc, ...]
    checked: int = 0
    wrong: tuple[str, ...] = ()
    digest: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishedRun:
    """A finished run: its tasks, and what its result file says about it (nothing for a recording)."""

    path: Path
    tasks: Mapping[str, TaskSamples]
    facts: Mapping[str, Any] = field(default_factory=dict)


def read_run(path: Path) -> FinishedRun:
    """Return the newest run of a folder of lm-eval's results, or a recording of ours.

    Raises SettingsError for a place that is neither or holds the results of several models, SourceError for a file that
    cannot be read.
    """
    if path.is_file():
        return _recorded(path)
    if not path.is_dir():
        raise SettingsError(f"there is no file or folder {path}")
    dated: dict[Path, list[tuple[str, Path, str]]] = {}
    for file in sorted(path.rglob("*.json*")):
        match = _SAMPLES.fullmatch(file.name) or _RESULTS.fullmatch(file.name)
        if match is not None:
            dated.setdefault(file.parent, []).append((match["date"], file, match.groupdict().get("task", "")))
    if not dated:
        raise SettingsError(f"{path} holds no samples_*.jsonl", hint="run lm-eval with --log_samples and --output_path")
    if len(dated) > 1:
        names = ", ".join(str(folder) for folder in sorted(dated)[:5])
        raise SettingsError(f"{path} holds several runs", hint=f"give one of {names}")
    newest = max(date for date, _, _ in next(iter(dated.values())))
    files = [(file, task) for date, file, task in next(iter(dated.values())) if date == newest]
    facts = next((_json(file) for file, task in files if not task), {})
    return FinishedRun(path=path, tasks={task: _logged(file, task) for file, task in files if task}, facts=facts)


def line_of(samples: TaskSamples, sample: AskedDoc) -> Mapping[str, Any]:
    """Return the line of a sample as it was written; raises OSError."""
    with gate.open_file(samples.path) as file:
        file.seek(sample.start)
        found: Mapping[str, Any] = json.loads(file.readline(MAX_LINE))
    return found


def arguments_of(line: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Return the arguments of each request of a line; lm-eval has written them as lists and as mappings."""
    written = line.get("arguments")
    requests = [*written.values()] if isinstance(written, Mapping) else written
    if not isinstance(requests, list):
        return []
    values = [[*each.values()] if isinstance(each, Mapping) else each for each in requests]
    return [tuple(each) for each in values if isinstance(each, list)]


# -- lm-eval -----------------------------------------------------------------------------------------------------------


def _logged(path: Path, task: str) -> TaskSamples:
    samples: dict[tuple[str, int], AskedDoc] = {}
    wrong: list[str] = []
    checked = 0
    chain: Any = sha256()
    for number, (start, line) in enumerate(_lines(path), 1):
        made = _hashes(line)
        for name, digest in made.items():
            if name in line:
                checked += 1
                if line[name] != digest:
                    wrong.append(f"{path.name}:{number} {name}")
        said: dict[str, str] = {
            name: str(line.get(name, made.get(name))) for name in _HASHES if name in line or name in made
        }
        if chain is not None and len(said) == len(_HASHES):
            chain.update("".join(said.values()).encode())
        else:
            chain = None
        parts = dict(_parts(line, said))
        key, at = parts.get("doc", ""), _number(line.get("doc_id", number - 1), Position(path, number))
        # A line for each filter; the requests are the same in all of them.
        samples.setdefault((key, at), AskedDoc(key=key, number=at, parts=parts, start=start))
    return TaskSamples(
        task=task,
        path=path,
        samples=tuple(samples.values()),
        checked=checked,
        wrong=tuple(wrong),
        digest=chain.hexdigest() if chain is not None else None,
    )


def _number(written: object, position: Position) -> int:
    if not isinstance(written, int):
        raise SourceError(f"the number of the doc is {written!r:.40}", position=position, hint="not lm-eval's file")
    return written


def _hashes(line: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of a line as lm-eval 0.4.13 makes them, of what the line shows."""
    requests = arguments_of(line)
    made = {}
    if "doc" in line:
        made["doc_hash"] = _digest(json.dumps(line["doc"], indent=2, ensure_ascii=False))
    if requests and requests[0] and isinstance(requests[0][0], str):
        made["prompt_hash"] = _digest(requests[0][0])
    if "target" in line:
        made["target_hash"] = _digest(str(line["target"]))
    return made


def _parts(line: Mapping[str, Any], said: Mapping[str, str]) -> Iterator[tuple[Part, str]]:
    requests = arguments_of(line)
    if "doc_hash" in said:
        yield "doc", said["doc_hash"]
    if requests:
        yield "text", _digest(json.dumps([arguments[:1] for arguments in requests]))
        others = [arguments[1:] for arguments in requests]
        yield "request", _digest(json.dumps([[each for each in rest if isinstance(each, str)] for rest in others]))
        yield (
            "stops",
            _digest(
                json.dumps([[each for each in rest if not isinstance(each, str)] for rest in others], sort_keys=True)
            ),
        )
    elif "prompt_hash" in said:
        yield "text", said["prompt_hash"]  # of the first request alone
    if "target_hash" in said:
        yield "target", said["target_hash"]


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# -- recordings --------------------------------------------------------------------------------------------------------


def _recorded(path: Path) -> FinishedRun:
    """Return the run of a recording; a sample is a doc of a task in one profile with `key` and `sent` of its questions.

    Its facts are the models and the packages that asked them.
    """
    lines = [*_lines(path)]
    if not lines or not all({*_ORDER[:3], "key"} <= line.keys() for _, line in lines):
        raise SettingsError(
            f"{path} is not a recording", hint="give a folder of lm-eval's results, or a file of --promptfmt-record"
        )
    facts: dict[str, Any] = {"model_name": ", ".join(sorted({str(line.get("model")) for _, line in lines}))}
    for _, line in lines:
        facts |= line["with"] if isinstance(line.get("with"), dict) else {}
    lines.sort(key=lambda pair: tuple(str(pair[1].get(name)) for name in _ORDER))
    found: dict[str, list[AskedDoc]] = {}
    for (task, profile, doc), group in groupby(lines, key=lambda pair: tuple(pair[1][name] for name in _ORDER[:3])):
        entries = [*group]
        parts: dict[Part, str] = {"request": json.dumps(sorted(str(line["key"]) for _, line in entries))}
        if all(line.get("sent") is not None for _, line in entries):
            parts["tokens"] = json.dumps(sorted(str(line["sent"]) for _, line in entries))
        sample = AskedDoc(key=str(doc), number=int(doc), parts=parts, start=entries[0][0])
        found.setdefault(f"{task} [{profile}]", []).append(sample)
    tasks = {name: TaskSamples(task=name, path=path, samples=tuple(made)) for name, made in found.items()}
    return FinishedRun(path=path, tasks=tasks, facts=facts)


# -- files -------------------------------------------------------------------------------------------------------------


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield where each line begins, and what it says; raises SourceError with its number for one that is no mapping."""
    try:
        with gate.open_file(path) as file:
            start = number = 0
            while data := file.readline(MAX_LINE):
                number += 1
                if data.strip():
                    yield start, _mapping(data, Position(path, number))
                start += len(data)
    except OSError as error:
        raise SourceError(f"the file cannot be read: {error.strerror or error}", position=Position(path)) from error


def _json(path: Path) -> dict[str, Any]:
    try:
        return _mapping(gate.read_bytes(path), Position(path))
    except OSError as error:
        raise SourceError(f"the file cannot be read: {error.strerror or error}", position=Position(path)) from error


def _mapping(data: bytes, position: Position) -> dict[str, Any]:
    try:
        read = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"invalid JSON: {error}", position=position) from None
    if not isinstance(read, dict):
        raise SourceError("not a mapping", position=position)
    return read
