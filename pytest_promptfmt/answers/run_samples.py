"""Two finished runs as files: lm-eval's `--log_samples` and recordings of this plugin, read sample by sample.

lm-eval 0.4.13 writes SHA-256 digests of each doc, its target and the prompt of its first request, and one of all of
these for each task. They are computed again from the texts, so that an edited file is noticed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Literal

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import Position, SettingsError, SourceError

Part = Literal["doc", "text", "request", "stops", "target", "tokens"]

MAX_LINE: Final = 1 << 26
_FILE: Final = re.compile(r"(?:samples_(?P<task>.+)|results)_(?P<date>\d{4}-\d\d-\d\dT[\d.-]+)\.jsonl?")
_OF_LM_EVAL: Final = "give results_*.json or samples_*.jsonl as lm-eval wrote them"
_HASHES: Final = ("doc_hash", "prompt_hash", "target_hash")
_ORDER: Final = ("task", "profile", "doc", "request")  # the keys of a recording's lines that identify a question
_SECTIONS: Final = ("configs", "config", "versions", "task_hashes")


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
    """The samples of a task in one file; `checked` of its digests were computed again, those in `wrong` differ.

    `digest` is that of all samples as lm-eval makes it, None where a line lacks a part of it.
    """

    path: Path
    samples: tuple[AskedDoc, ...] = ()
    checked: int = 0
    wrong: tuple[str, ...] = ()
    digest: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishedRun:
    """A finished run: its tasks, and the facts in its result file (of a recording its models and packages)."""

    tasks: Mapping[str, TaskSamples]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def hashes(self) -> dict[str, Any]:
        """Return how many digests were computed again; a wrong one means that the file was edited."""
        written = self.facts.get("task_hashes") or {}
        known = {name: each.digest for name, each in self.tasks.items() if each.digest and name in written}
        wrong = [name for samples in self.tasks.values() for name in samples.wrong]
        wrong += [f"task_hashes {name}" for name, digest in known.items() if digest != written[name]]
        checked = sum(samples.checked for samples in self.tasks.values()) + len(known)
        return {"checked": checked, "reproduced": checked - len(wrong), "wrong": wrong}


def is_run(path: Path) -> bool:
    """Return whether a path looks like a finished run: JSON lines, or a folder with lm-eval's samples."""
    if path.is_dir():
        return any(_FILE.fullmatch(file.name) for file in path.rglob("samples_*.jsonl"))
    return path.suffix == ".jsonl"


def read_run(path: Path) -> FinishedRun:
    """Return the newest run of a folder of lm-eval's results, or a recording of ours.

    Raises SettingsError for a place that is neither or holds the results of several models, SourceError for a file that
    cannot be read.
    """
    if not path.exists():
        raise SettingsError(f"there is no file or folder {path}")
    try:
        run = _results(path) if path.is_dir() else _recorded(path)
    except OSError as error:
        position = Position(Path(error.filename or path))
        raise SourceError(f"the file cannot be read: {error.strerror or error}", position=position) from error
    for name in _SECTIONS:
        if not isinstance(run.facts.get(name) or {}, dict):
            raise SourceError(f"{name} is not a mapping", position=Position(path), hint=_OF_LM_EVAL)
    return run


def _results(path: Path) -> FinishedRun:
    found = [(match, file) for file in sorted(path.rglob("*.json*")) if (match := _FILE.fullmatch(file.name))]
    if not found:
        raise SettingsError(f"{path} has no samples_*.jsonl", hint="run lm-eval with --log_samples and --output_path")
    folders = sorted({str(file.parent) for _, file in found})
    if len(folders) > 1:
        raise SettingsError(f"{path} has several runs", hint=f"give the folder of one run: {', '.join(folders[:5])}")
    newest = max(match["date"] for match, _ in found)
    files = {match["task"]: file for match, file in found if match["date"] == newest}
    results = files.pop(None, None)
    facts = _mapping(gate.read_bytes(results), Position(results)) if results is not None else {}
    return FinishedRun(tasks={task: _logged(file) for task, file in files.items()}, facts=facts)


def _logged(path: Path) -> TaskSamples:
    """Return the samples of a file of lm-eval, with its digests computed again."""
    samples: dict[tuple[str, int], AskedDoc] = {}
    wrong: list[str] = []
    checked = 0
    chain: Any = sha256()
    for number, (start, line) in enumerate(_lines(path), 1):
        made, at = _hashes(line), line.get("doc_id", number - 1)
        written: dict[str, str] = {name: str(line[name]) for name in _HASHES if name in line}
        invalid = [f"{name} is not a digest" for name, value in written.items() if not value.isascii()]
        invalid += [] if isinstance(at, int) else [f"doc_id is {at!r:.40}, expected a whole number"]
        if invalid:
            raise SourceError(invalid[0], position=Position(path, number), hint=_OF_LM_EVAL)
        checked += len(written.keys() & made.keys())
        wrong += [f"{path.name}:{number} {name}" for name in made if written.get(name, made[name]) != made[name]]
        hashes = made | written
        if chain is not None and len(hashes) == len(_HASHES):
            chain.update("".join(hashes[name] for name in _HASHES).encode())
        else:
            chain = None
        parts = dict(_parts(line, hashes))
        key = parts.get("doc", "")
        # A line for each filter; the requests are the same in all of them.
        samples.setdefault((key, at), AskedDoc(key=key, number=at, parts=parts, start=start))
    digest = chain.hexdigest() if chain is not None else None
    return TaskSamples(path=path, samples=tuple(samples.values()), checked=checked, wrong=tuple(wrong), digest=digest)


def arguments_of(line: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Return the arguments of each request of a line; lm-eval has written them as lists and as mappings."""
    written = line.get("arguments")
    requests = [*written.values()] if isinstance(written, Mapping) else written
    if not isinstance(requests, list):
        return []
    values = [[*each.values()] if isinstance(each, Mapping) else each for each in requests]
    return [tuple(each) for each in values if isinstance(each, list)]


def _hashes(line: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of a line as lm-eval 0.4.13 makes them, of what the line shows."""
    requests = arguments_of(line)
    made = {}
    if "doc" in line:
        with suppress(RecursionError):  # the digest of a doc that is nested too deeply is not computed again
            made["doc_hash"] = _digest(json.dumps(line["doc"], indent=2, ensure_ascii=False))
    if requests and requests[0] and isinstance(requests[0][0], str):
        made["prompt_hash"] = _digest(requests[0][0])
    if "target" in line:
        made["target_hash"] = _digest(str(line["target"]))
    return made


def _parts(line: Mapping[str, Any], hashes: Mapping[str, str]) -> Iterator[tuple[Part, str]]:
    requests = arguments_of(line)
    if "doc_hash" in hashes:
        yield "doc", hashes["doc_hash"]
    if requests:
        others = [arguments[1:] for arguments in requests]
        texts = [[each for each in rest if isinstance(each, str)] for rest in others]
        settings = [[each for each in rest if not isinstance(each, str)] for rest in others]
        yield "text", _digest(json.dumps([arguments[:1] for arguments in requests]))
        yield "request", _digest(json.dumps(texts))
        yield "stops", _digest(json.dumps(settings, sort_keys=True))
    elif "prompt_hash" in hashes:
        yield "text", hashes["prompt_hash"]  # of the first request only
    if "target_hash" in hashes:
        yield "target", hashes["target_hash"]


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _recorded(path: Path) -> FinishedRun:
    """Return the run of a recording; a sample is a doc of a task in one profile with `key` and `sent` of its questions.

    Its facts are the models and the packages that asked them.
    """
    lines = [*_lines(path)]
    if not all(_is_recorded(line) for _, line in lines) or not lines:
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
    tasks = {name: TaskSamples(path=path, samples=tuple(made)) for name, made in found.items()}
    return FinishedRun(tasks=tasks, facts=facts)


def _is_recorded(line: Mapping[str, Any]) -> bool:
    return {*_ORDER[:3], "key"} <= line.keys() and isinstance(line["doc"], int)


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield where each line begins, and its mapping; raises SourceError with its number for anything else."""
    with gate.open_file(path) as file:
        start = number = 0
        while data := file.readline(MAX_LINE):
            number += 1
            if data.strip():
                yield start, _mapping(data, Position(path, number))
            start += len(data)


def _mapping(data: bytes, position: Position) -> dict[str, Any]:
    try:
        read = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"invalid JSON: {error}", position=position) from None
    if not isinstance(read, dict):
        raise SourceError("not a mapping", position=position)
    return read
