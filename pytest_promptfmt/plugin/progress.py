"""How far a run is: one changing line on a terminal, a line now and then in a log."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import Any, Final, TextIO

import pytest

SHOWN_FROM_TESTS: Final = 100
"""The number of tests from which a terminal shows progress."""

_LOG_SECONDS: Final = 10.0
"""The time between two lines of a log, and before the first."""

_READ: Final = "files, folders and tasks read"
_CLEARED: Final = "\r\x1b[2K"


class Pace:
    """Whether it is time for the next line of a log: not before `seconds` have passed since the last one."""

    def __init__(self, seconds: float = _LOG_SECONDS) -> None:
        self._seconds = seconds
        self._last = time.monotonic()

    def is_due(self) -> bool:
        """Return whether a line is due, and count it as written."""
        now = time.monotonic()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True


class Progress:
    """The progress of a command that captures the output of its run, on standard error as it is now."""

    def __init__(self, stream: TextIO | None = sys.__stderr__, *, pace: Pace | None = None) -> None:
        self._is_terminal = stream is not None and stream.isatty()
        self._pace = pace or Pace()
        self._file = -1
        if stream is not None:
            with suppress(OSError, ValueError):
                self._file = os.dup(stream.fileno())

    def show_read(self, done: int) -> None:
        """Show how many files, folders and tasks were read."""
        if self._file >= 0 and (done % 10 == 0 if self._is_terminal else self._pace.is_due()):
            self._show(f"{done:,} {_READ}")

    def show_tests(self, done: int, total: int, failed: int) -> None:
        """Show how many tests have run, and how many of them failed."""
        if self._file < 0:
            return
        is_shown = total >= SHOWN_FROM_TESTS and done % (total // SHOWN_FROM_TESTS) == 0
        if is_shown if self._is_terminal else self._pace.is_due():
            self._show(f"{done:,} of {total:,} tests{f', {failed:,} failed' if failed else ''}")

    def end(self) -> None:
        """Clear the line on a terminal, and show nothing any more."""
        if self._file >= 0:
            self._write(_CLEARED if self._is_terminal else "")
            os.close(self._file)
            self._file = -1

    def _show(self, text: str) -> None:
        text = f"promptfmt: {text}"
        self._write(f"{_CLEARED}{text}" if self._is_terminal else f"{text}\n")

    def _write(self, text: str) -> None:
        with suppress(OSError):  # its other end is closed
            os.write(self._file, text.encode())


class ReadingLines:
    """The hook that reports in a log how many files were read; on a terminal pytest does, and it reports tests."""

    def __init__(self, config: pytest.Config, *, pace: Pace | None = None) -> None:
        self._config = config
        self._pace = pace or Pace()
        self._read = 0

    def pytest_collectreport(self) -> None:
        """Write a line if one is due."""
        self._read += 1
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        is_shown = reporter is not None and not reporter.isatty and self._config.get_verbosity() >= 0
        if is_shown and self._pace.is_due():
            reporter.write_line(f"promptfmt: {self._read:,} {_READ}")
