"""The file that keeps what a server rendered: JSON lines, one a prompt, each complete in itself.

    {"engine": "llama.cpp", "from": "chat_template question", "key": "…", "text": "…"}
    {"engine": "llama.cpp", "from": "chat_template system-twice", "key": "…", "refused": "…"}

`key` is a digest of the request, so that a prompt is found wherever the same conversation is sent with the same tools
and arguments. To merge two recordings, join their lines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import Position, SettingsError
from pytest_promptfmt.core.files import write_atomically
from pytest_promptfmt.systems.templates.server_engines import ServerEngine, request_of

Line = Mapping[str, Any]

NOT_RECORDED: Final = "it is not recorded"
_RECORD: Final = "record it with promptfmt record"


def key_of(request: Mapping[str, Any]) -> str:
    """Return the digest of a request: 32 hexadecimal digits. The order of keys counts, for templates print it."""
    return sha256(json.dumps(request).encode()).hexdigest()[:32]


def read_recording(path: Path) -> dict[str, Line]:
    """Return the lines by their key, a later one in place of an earlier; raises SettingsError for bad ones."""
    found: dict[str, Line] = {}
    try:
        text = gate.read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the recording cannot be read: {error}", position=Position(path), hint=_RECORD) from error
    for number, written in enumerate(text.split("\n"), start=1):
        if written.strip():
            line = _line(written)
            if line is None:
                position = Position(path, number)
                raise SettingsError("not a line of recorded prompts", position=position, hint=_RECORD)
            found[line["key"]] = line
    return found


def _line(written: str) -> Line | None:
    try:
        line = json.loads(written)
    except (ValueError, RecursionError):
        return None
    names = ("engine", "key", "text" if isinstance(line, dict) and "text" in line else "refused")
    return line if isinstance(line, dict) and all(isinstance(line.get(name), str) for name in names) else None


class RecordedEngine:
    """What a server rendered earlier, as long as exactly the same is asked."""

    is_server = True

    def __init__(self, path: Path) -> None:
        """Read a recording; raises SettingsError for a file that is not one, or of several engines."""
        self._lines = read_recording(path)
        names = sorted({line["engine"] for line in self._lines.values()})
        if len(names) != 1:
            what = f"holds prompts of {', '.join(names)}" if names else "is empty"
            raise SettingsError(f"the recording {what}", position=Position(path), hint="keep one file for each engine")
        [self.name] = names

    def render(self, variables: Mapping[str, Any], /) -> str:
        """Return the recorded prompt; raises RuntimeError for a refusal, and for what is not recorded."""
        line = self._lines.get(key_of(request_of(variables)), {"refused": NOT_RECORDED})
        if "text" not in line:
            raise RuntimeError(line["refused"])
        return str(line["text"])


class ServerRecorder:
    """A server whose answers are kept; `place` says, for readers of the file, what is asked next."""

    is_server = True

    def __init__(self, server: ServerEngine) -> None:
        self.name = server.name
        self.place = ""
        self.lines: dict[str, Line] = {}
        self._server = server

    def render(self, variables: Mapping[str, Any], /) -> str:
        """Return what the server renders; raises as it does."""
        key = key_of(request_of(variables))
        head = {"engine": self.name, "from": self.place, "key": key}
        try:
            text = self._server.render(variables)
        except RuntimeError as error:
            self.lines[key] = {**head, "refused": str(error)}
            raise
        self.lines[key] = {**head, "text": text}
        return text

    def write(self, path: Path) -> int:
        """Write the recording with what it held before, sorted; return how many prompts are new or changed.

        Raises SettingsError where the file is no recording, is one of another engine, or cannot be written.
        """
        before = read_recording(path) if gate.is_there(path) else {}
        if others := {line["engine"] for line in before.values()} - {self.name}:
            hint = "keep one file for each engine"
            raise SettingsError(f"this is a recording of {others.pop()}", position=Position(path), hint=hint)
        merged = sorted({**before, **self.lines}.values(), key=lambda line: (line.get("from", ""), line["key"]))
        try:
            write_atomically(path, "".join(json.dumps(line) + "\n" for line in merged).encode())
        except OSError as error:
            raise SettingsError(
                f"the recording cannot be written: {error.strerror}", position=Position(path)
            ) from error
        return sum(before.get(key) != line for key, line in self.lines.items())
