"""Output that code of tasks prints: a bounded part of it for each item in a worker, none while tasks are collected."""

from __future__ import annotations

import io
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

STREAM_BYTES: Final = 32 * 2**10
"""The bytes of standard output that are kept of an item, and of standard error."""

_SECTION_CHARACTERS: Final = 2 * STREAM_BYTES
_NAMES: Final = ("stdout", "stderr")


def bounded(sections: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the sections of a report, with a line about the rest in place of the end of long ones."""
    return [
        (heading, _cut(text[:_SECTION_CHARACTERS], len(text[_SECTION_CHARACTERS:].encode("utf-8", "replace"))))
        for heading, text in sections
    ]


def _cut(text: str, left_out: int) -> str:
    return f"{text}\n… {left_out:,} more bytes are left out\n" if left_out else text


class _Stream(io.RawIOBase):
    """Standard output or error of this process, in a temporary file from now on.

    Python's own writes end at the bound, so that the file stays small; programs and native code write to the file.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        self.name = f"<{name}>"
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # open to the end of the process
        os.dup2(self._file.fileno(), descriptor)
        self._descriptor = descriptor
        self._dropped = 0
        self._room = STREAM_BYTES

    def fileno(self) -> int:
        return self._descriptor

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Write the part of some bytes that fits; all count as written."""
        content = memoryview(data).cast("B")
        room = max(0, self._room - os.fstat(self._file.fileno()).st_size)
        if room:
            os.write(self._file.fileno(), content[:room])
        self._dropped += len(content[room:])
        return len(content)

    def begin(self) -> None:
        """Let the next item print as much as any other."""
        self._room = STREAM_BYTES

    def taken(self) -> str:
        """Return the text that was written since the last call."""
        file = self._file.fileno()
        size = os.fstat(file).st_size
        if not size and not self._dropped:
            return ""
        content = os.pread(file, self._room, 0)
        os.ftruncate(file, 0)
        os.lseek(file, 0, os.SEEK_SET)
        left_out, self._dropped = self._dropped + size - len(content), 0
        self._room -= len(content)
        return _cut(content.decode("utf-8", "replace"), left_out)


class PrintedOutput:
    """The output of a worker; it takes the place of pytest's own capture, and has the methods that pytest calls."""

    def __init__(self) -> None:
        self._streams = [_Stream(number, name) for number, name in enumerate(_NAMES, 1)]
        for name, stream in zip(_NAMES, self._streams, strict=True):
            text = io.TextIOWrapper(stream, "utf-8", "replace", newline="", write_through=True)
            setattr(sys, name, text)

    def begin_item(self) -> None:
        """Let the next item print as much as any other."""
        for stream in self._streams:
            stream.begin()

    def readouterr(self) -> tuple[str, str]:
        """Return what was printed since the last call to standard output, and to standard error."""
        out, err = (stream.taken() for stream in self._streams)
        return out, err

    def is_started(self) -> bool:
        """Return True: it never ends."""
        return True

    def suspend_capturing(self, in_: bool = False) -> None:
        """Do nothing: a worker has no terminal."""

    def resume_capturing(self) -> None:
        """Do nothing."""

    def stop_capturing(self) -> None:
        """Do nothing."""


def capture_of(config: pytest.Config) -> Any:
    """Return pytest's capture plugin if it captures, None with `-s`."""
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    return capture if capture is not None and capture.is_globally_capturing() else None


@contextmanager
def silenced(config: pytest.Config) -> Iterator[None]:
    """Drop all output of the block, in pytest's own process, unless pytest shows it at once or opens a debugger."""
    if capture_of(config) is None or config.getoption("usepdb", False):
        yield
        return
    kept = [(number, os.dup(number), name, getattr(sys, name)) for number, name in enumerate(_NAMES, 1)]
    with open(os.devnull, "w", encoding="utf-8") as null:
        try:
            for number, _, name, _ in kept:
                os.dup2(null.fileno(), number)
                setattr(sys, name, null)
            yield
        finally:
            for number, before, name, stream in kept:
                setattr(sys, name, stream)
                os.dup2(before, number)
                os.close(before)
