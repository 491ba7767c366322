"""The file that keeps what a model answered: JSON lines, one a question, sorted, each complete in itself.

A line says what was asked (by hash, with the place it came from for the reader), what was answered, and by what:

    {"key": "…", "kind": "generate", "task": "…", "profile": "…", "doc": 0, "text": "…", "finish": "stop", "tokens": 3,
     "sent": "…", "model": "tiny", "with": {"torch": "2.13.0", …}}

`sent` is a digest of the ids that the model got. Log-probabilities are in nats, rounded to 6 decimals. Lines of one
file may come from several runs and machines: merging two recordings is joining and sorting their lines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self
from uuid import uuid4

from pytest_promptfmt.core.errors import ModelError, Position
from pytest_promptfmt.models.base import Answer, Ask, Generation, Likelihood

DECIMALS: Final = 6
_FINISHES: Final = ("stop", "end", "length")


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """Where a question came from: for people who read a recording."""

    task: str
    profile: str
    doc: int
    request: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One recorded answer. `sent` is the digest of the ids that the model got, None where only text was sent."""

    key: str
    answer: Answer
    sent: str | None
    model: str
    facts: Mapping[str, str]
    where: Where

    def to_line(self) -> str:
        """Return the line without its end."""
        answer: dict[str, Any]
        if isinstance(self.answer, Likelihood):
            logprobs = [round(value, DECIMALS) for value in self.answer.logprobs]
            answer = {"logprobs": logprobs, "greedy": self.answer.is_greedy}
        else:
            answer = {"text": self.answer.text, "finish": self.answer.finish, "tokens": self.answer.tokens}
        return json.dumps(
            {
                "task": self.where.task,
                "profile": self.where.profile,
                "doc": self.where.doc,
                "request": self.where.request,
                "kind": "loglikelihood" if isinstance(self.answer, Likelihood) else "generate",
                **answer,
                "key": self.key,
                "sent": self.sent,
                "model": self.model,
                "with": dict(self.facts),
            },
            ensure_ascii=False,
        )

    @property
    def order(self) -> tuple[Any, ...]:
        """Return what lines are sorted by."""
        return (self.where.task, self.where.profile, self.where.doc, self.where.request, self.key, self.model)


def digest_of(ids: Sequence[int] | None) -> str | None:
    """Return the digest of token ids as snapshots show it, None of none."""
    from pytest_promptfmt.tokens.encoding import digest_of_ids

    return None if ids is None else digest_of_ids(ids)


def read_entries(path: Path) -> list[Entry]:
    """Return the entries of a recording; raises ModelError naming the line that is not one."""
    entries = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    entries.append(_entry(line, Position(path, number)))
    except OSError as error:
        raise ModelError(f"the recording cannot be read: {error.strerror}", position=Position(path)) from error
    except UnicodeDecodeError as error:
        raise ModelError("the recording is not UTF-8", position=Position(path)) from error
    return entries


def _entry(line: str, position: Position) -> Entry:
    try:
        read = json.loads(line)
    except ValueError as error:
        raise ModelError(f"not a line of a recording: {error}", position=position, hint="record again") from error
    try:
        return Entry(
            key=read["key"],
            answer=_answer(read),
            sent=read["sent"],
            model=str(read["model"]),
            facts={str(name): str(value) for name, value in read["with"].items()},
            where=Where(
                task=str(read["task"]),
                profile=str(read["profile"]),
                doc=int(read["doc"]),
                request=int(read["request"]),
            ),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        hint = (
            "a file written by --promptfmt-record is expected; other completions are told by the task's own recording"
        )
        raise ModelError(f"not a line of a model recording: {what}", position=position, hint=hint) from error


def _answer(read: Mapping[str, Any]) -> Answer:
    if read["kind"] == "loglikelihood":
        return Likelihood(logprobs=tuple(float(value) for value in read["logprobs"]), is_greedy=bool(read["greedy"]))
    if read["kind"] != "generate":
        raise ValueError(f"`kind` is {read['kind']!r}, and must be loglikelihood or generate")
    if not isinstance(read["text"], str) or read["finish"] not in _FINISHES:
        raise ValueError(f"`finish` must be one of {', '.join(_FINISHES)}, and `text` a text")
    return Generation(text=read["text"], finish=read["finish"], tokens=int(read["tokens"]))


class Recorder:
    """Keeps answers as they come, in a file beside the recording, and joins them with it at the end.

    What was recorded before for the same model is not asked again. A run that is broken off leaves the file beside it,
    which the next run takes up. Entries of other models and of questions not asked this time stay.
    """

    def __init__(self, path: Path, *, worker: str = "") -> None:
        """Open `path` for recording; `worker` names one of several processes that record at once."""
        self.path = path
        # Never a file that is there: the last line of a run that was killed may be half a line.
        self._part = path.with_name(f"{path.name}.{worker or 'main'}-{uuid4().hex[:8]}.part")
        self._known: dict[tuple[str, str], Entry] = {}
        for entry in [*(read_entries(path) if path.exists() else []), *_left_over(path)]:
            self._known[(entry.key, entry.model)] = entry
        self._file: IO[str] | None = None
        self.kept = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def known(self, ask: Ask, model: str) -> Entry | None:
        """Return the answer that is recorded already."""
        return self._known.get((ask.key, model))

    def keep(self, entry: Entry) -> None:
        """Write one answer down at once; raises ModelError when the file cannot be written."""
        try:
            if self._file is None:
                self._part.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._part.open("x", encoding="utf-8", newline="\n")
            self._file.write(entry.to_line() + "\n")
            self._file.flush()
        except OSError as error:
            raise ModelError(
                f"the recording cannot be written: {error.strerror}", position=Position(self._part)
            ) from error
        self._known[(entry.key, entry.model)] = entry
        self.kept += 1

    def close(self) -> None:
        """Stop writing; what was kept stays in the file beside the recording until `join_parts`."""
        if self._file is not None:
            self._file.close()
            self._file = None


def join_parts(path: Path) -> int:
    """Write the recording anew with what the runs left beside it, whole or not at all; return the number of lines.

    A later answer to the same question by the same model replaces an earlier one. Raises ModelError when it cannot be
    written.
    """
    parts = _parts(path)
    entries: dict[tuple[str, str], Entry] = {}
    for entry in [*(read_entries(path) if path.exists() else []), *_left_over(path)]:
        entries[(entry.key, entry.model)] = entry
    if parts:
        write_entries(path, entries.values())
    for part in parts:
        part.unlink(missing_ok=True)
    return len(entries)


def write_entries(path: Path, entries: Iterable[Entry]) -> None:
    """Write a recording, sorted, whole or not at all; raises ModelError when it cannot be written."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}.new")
    lines = [entry.to_line() + "\n" for entry in sorted(entries, key=lambda entry: entry.order)]
    try:
        with scratch.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(lines)
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise ModelError(f"the recording cannot be written: {error.strerror}", position=Position(path)) from error


def _parts(path: Path) -> list[Path]:
    return sorted(part for part in path.parent.glob("*.part") if part.name.startswith(f"{path.name}."))


def _left_over(path: Path) -> list[Entry]:
    """Return what broken-off runs left; a last line that was being written is dropped."""
    entries = []
    for part in _parts(path):
        whole = part.read_text("utf-8", errors="replace").split("\n")[:-1]
        entries += [_entry(line, Position(part, number)) for number, line in enumerate(whole, start=1)]
    return entries
