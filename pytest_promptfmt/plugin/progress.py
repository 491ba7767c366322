"""A progress bar for what takes long: reading one big file, asking a model; only where a person looks on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

SHOWN_FROM_BYTES: Final = 20_000_000
"""Smaller files are read before a bar could be seen."""

SHOWN_FROM_ANSWERS: Final = 200
"""Fewer answers of a model do not keep anybody waiting."""

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
