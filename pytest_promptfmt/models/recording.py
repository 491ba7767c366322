"""The file that keeps what a model answered: JSON lines, one a question, sorted, each complete in itself.

A line holds the question (as a hash, with its place for the reader), the answer, and the model:

    {"task": "…", "profile": "…", "doc": 0, "request": 0, "kind": "generate", "text": "…", "finish": "stop",
     "tokens": 3, "key": "…", "sent": "…", "model": "tiny", "with": {"torch": "2.13.0", …}}

`sent` is a digest of the ids that the model got. Log-probabilities are in nats, rounded to 6 decimals. Lines of one
file may come from several runs and machines: to merge two recordings, join and sort their lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final
from uuid import uuid4

from pytest_promptfmt.core import gate, writing
from pytest_promptfmt.core.errors import ModelError, Position, raising
from pytest_promptfmt.models.model import Answer, Ask, Generation, Likelihood, ModelOptions
from pytest_promptfmt.profiles import Tokenizer
from pytest_promptfmt.profiles.encoding import digest_of_ids

DECIMALS: Final = 6
_FINISHES: Final = ("stop", "end", "length")
_UNWRITABLE: Final = "the recording cannot be written"


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordingEntry:
    """One recorded answer, and where its question came from.

    `key` is that of the question, `sent` the digest of the ids that the model got, None where only text was sent.
    """

    task: str
    profile: str
    doc: int
    request: int
    key: str
    answer: Answer
    sent: str | None
    model: str
    facts: Mapping[str, str]

    def to_line(self) -> str:
        """Return the line without its end."""
        answer: dict[str, Any]
        if isinstance(self.answer, Likelihood):
            logprobs = [round(value, DECIMALS) for value in self.answer.logprobs]
            answer = {"kind": "loglikelihood", "logprobs": logprobs, "greedy": self.answer.is_greedy}
        else:
            written = self.answer
            answer = {"kind": "generate", "text": written.text, "finish": written.finish, "tokens": written.tokens}
        line = {
            "task": self.task,
            "profile": self.profile,
            "doc": self.doc,
            "request": self.request,
            **answer,
            "key": self.key,
            "sent": self.sent,
            "model": self.model,
            "with": dict(self.facts),
        }
        return json.dumps(line, ensure_ascii=False)

    @property
    def order(self) -> tuple[Any, ...]:
        """Return what lines are sorted by."""
        return (self.task, self.profile, self.doc, self.request, self.key, self.model)


def digest_of(ids: Sequence[int] | None) -> str | None:
    """Return the digest of token ids as snapshots show it, None of none."""
    return None if ids is None else digest_of_ids(ids)


# -- reading -----------------------------------------------------------------------------------------------------------


def read_entries(path: Path) -> list[RecordingEntry]:
    """Return the entries of a recording; raises ModelError with the first line that is not one."""
    with raising(ModelError, "the recording cannot be read", Position(path)), gate.open_text(path) as file:
        return [_entry(line, Position(path, number)) for number, line in enumerate(file, start=1) if line.strip()]


def _entry(line: str, position: Position) -> RecordingEntry:
    try:
        read = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"not a line of a recording: {error}", position=position, hint="record again") from error
    try:
        return RecordingEntry(
            task=str(read["task"]),
            profile=str(read["profile"]),
            doc=int(read["doc"]),
            request=int(read["request"]),
            key=read["key"],
            answer=_answer(read),
            sent=read["sent"],
            model=str(read["model"]),
            facts={str(name): str(value) for name, value in read["with"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        hint = "use a file that --promptfmt-record wrote. Add completions from elsewhere under `recordings` in the task"
        raise ModelError(f"not a line of a model recording: {what}", position=position, hint=hint) from error


def _answer(read: Mapping[str, Any]) -> Answer:
    if read["kind"] == "loglikelihood":
        return Likelihood(logprobs=tuple(float(value) for value in read["logprobs"]), is_greedy=bool(read["greedy"]))
    if read["kind"] != "generate":
        raise ValueError(f"`kind` is {read['kind']!r}, but must be loglikelihood or generate")
    if not isinstance(read["text"], str) or read["finish"] not in _FINISHES:
        raise ValueError(f"`finish` must be one of {', '.join(_FINISHES)}, and `text` must be text")
    return Generation(text=read["text"], finish=read["finish"], tokens=int(read["tokens"]))


class ReplayModel:
    """A recording instead of a model: the answers of an earlier run, as long as exactly the same is asked.

    Needs no torch, no tokenizer and no network.
    """

    tokenizer: Tokenizer | None = None

    def __init__(self, file: str | Path, _options: ModelOptions | None = None) -> None:
        """Read a recording; raises ModelError for a file that is not one, or of several models."""
        path = Path(file)
        entries = read_entries(path)
        if not entries:
            raise ModelError(
                "the recording is empty", position=Position(path), hint="record answers with --promptfmt-record"
            )
        models = sorted({entry.model for entry in entries})
        if len(models) > 1:
            raise ModelError(
                f"the recording has answers of several models: {', '.join(models)}",
                position=Position(path),
                hint="use a separate file for each model",
            )
        self.name = f"replay:{path}"
        self.recorded_by = models[0]
        self.facts: Mapping[str, str] = entries[0].facts
        self._path = path
        self._entries = {entry.key: entry for entry in entries}

    def entry(self, ask: Ask) -> RecordingEntry:
        """Return what was recorded for exactly this question; raises ModelError for a question without a recording."""
        found = self._entries.get(ask.key)
        if found is None or isinstance(found.answer, Likelihood) != (ask.kind == "loglikelihood"):
            raise ModelError(
                f"{self._path.name} has no answer for this prompt: the prompt is new, or it changed after "
                f"{self.recorded_by!r} was recorded",
                hint="record the prompt again with --promptfmt-record, on a machine that can run the model",
            )
        return found

    def loglikelihood(self, asks: Sequence[Ask]) -> Iterator[Any]:
        """Yield the recorded answers; raises ModelError at the first question without a recording of its kind."""
        yield from (self.entry(ask).answer for ask in asks)

    generate = loglikelihood


# -- writing -----------------------------------------------------------------------------------------------------------


class AnswerRecorder:
    """Keeps answers as they come, in a file next to the recording; `join_parts` adds them to it at the end.

    Questions with a recorded answer of the same model are not asked again. An interrupted run leaves the file next to
    it, which the next run reads. Entries of other models and of questions not asked this time stay.
    """

    def __init__(self, path: Path) -> None:
        """Open `path` for recording."""
        # Always a new file: the last line of a run that was killed may be half a line.
        self._path, self._part = path, path.with_name(f"{path.name}.{uuid4().hex[:8]}.part")
        self._known = _recorded(path)
        self._file: BinaryIO | None = None

    def known(self, ask: Ask, model: str) -> RecordingEntry | None:
        """Return the answer that is recorded already."""
        return self._known.get((ask.key, model))

    def keep(self, entry: RecordingEntry) -> None:
        """Write one answer at once; raises ModelError when the file cannot be written."""
        with raising(ModelError, _UNWRITABLE, Position(self._part)):
            if self._file is None:
                writing.require_allowed(self._path)
                self._file = writing.create(self._part, also=[self._part])
            self._file.write(f"{entry.to_line()}\n".encode())
            self._file.flush()
        self._known[(entry.key, entry.model)] = entry

    def close(self) -> None:
        """Stop writing; what was kept stays in the file next to the recording until `join_parts`."""
        if self._file is not None:
            self._file.close()
            self._file = None


def join_parts(path: Path) -> None:
    """Write the recording again with the parts that runs left next to it, whole or not at all.

    A later answer to the same question by the same model replaces an earlier one. Raises ModelError when it cannot be
    written.
    """
    parts = _parts(path)
    if parts:
        write_entries(path, _recorded(path).values())
    for part in parts:
        writing.remove(part, also=[part])


def write_entries(path: Path, entries: Iterable[RecordingEntry]) -> None:
    """Write a recording, sorted, whole or not at all; raises ModelError when it cannot be written."""
    lines = [entry.to_line() + "\n" for entry in sorted(entries, key=lambda entry: entry.order)]
    with raising(ModelError, _UNWRITABLE, Position(path)):
        writing.write(path, "".join(lines))


def _recorded(path: Path) -> dict[tuple[str, str], RecordingEntry]:
    """Return the entries of a recording and of the parts next to it; a last line that was being written is dropped."""
    entries = read_entries(path) if gate.is_there(path) else []
    for part in _parts(path):
        whole = gate.read_bytes(part, also=[part.parent]).decode(errors="replace").split("\n")[:-1]
        entries += [_entry(line, Position(part, number)) for number, line in enumerate(whole, start=1)]
    return {(entry.key, entry.model): entry for entry in entries}


def _parts(path: Path) -> list[Path]:
    return sorted(part for part in path.parent.glob("*.part") if part.name.startswith(f"{path.name}."))
