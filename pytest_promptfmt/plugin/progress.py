"""How far a step is that takes long: a bar for one big file or a model, a count for a run that pytest does not show."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final

SHOWN_FROM_BYTES: Final = 20_000_000
"""Smaller files are read before a bar could be seen."""

SHOWN_FROM_ANSWERS: Final = 200
"""Fewer answers of a model do not keep anybody waiting."""

SHOWN_FROM_TESTS: Final = 100
"""Fewer tests are over soon."""

_CLEARED: Final = "\r\x1b[2K"

Bar = AbstractContextManager[Callable[[int], object]]


def reading(path: Path, what: str) -> Bar:
    """Give what to call with the number of bytes read so far; a bar on standard error where that is a terminal."""
    size = path.stat().st_size if path.exists() else 0
    return _bar(size if size >= SHOWN_FROM_BYTES else 0, what)


def answering(count: int, what: str) -> Bar:
    """Give what to call with the number of answers there are so far; a bar as for `reading`."""
    return _bar(count if count >= SHOWN_FROM_ANSWERS else 0, what)


@contextmanager
def _bar(total: int, what: str) -> Iterator[Callable[[int], object]]:
    stream = sys.__stderr__
    if not total or stream is None or not stream.isatty():
        yield lambda _done: None
        return
    from rich.console import Console  # only where it is shown
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=stream), transient=True) as progress:
        bar = progress.add_task(what, total=total)
        seen = 0

        def show(done: int) -> None:
            nonlocal seen
            if done - seen > total // 1000:
                seen = done
                progress.update(bar, completed=done)

        yield show


class Steps:
    """How far a run is whose output is taken: one line that changes on a terminal, a few lines in a log of CI.

    It writes to what standard error was when it was made, whatever is captured since, and nothing elsewhere.
    """

    def __init__(self) -> None:
        stream = sys.__stderr__
        self._is_terminal = stream is not None and stream.isatty()
        self._file = -1
        if stream is not None and (self._is_terminal or os.environ.get("CI")):
            with suppress(OSError):
                self._file = os.dup(stream.fileno())

    def show(self, what: str, done: int, total: int | None = None) -> None:
        """Show how many are done, of all where that is known; a terminal shows more of the steps than a log."""
        if self._file < 0 or (total is not None and total < SHOWN_FROM_TESTS):
            return
        few, many = (10, 100) if self._is_terminal else (1000, 10)
        if done % (few if total is None else total // many) == 0:
            text = f"promptfmt: {done:,}{f' of {total:,}' if total is not None else ''} {what}"
            self._write(f"{_CLEARED}{text}" if self._is_terminal else f"{text}\n")

    def end(self) -> None:
        """Clear the line on a terminal, and show nothing any more."""
        if self._file >= 0:
            self._write(_CLEARED if self._is_terminal else "")
            os.close(self._file)
            self._file = -1

    def _write(self, text: str) -> None:
        with suppress(OSError):  # nobody reads it any more
            os.write(self._file, text.encode())
