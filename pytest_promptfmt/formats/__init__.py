"""How it is asked: formats by name, and tasks laid out by them.

Nothing here reads docs or renders; a format turns a task's field mappings into templates and settings, once.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_promptfmt.formats.apply import (
    LaidOutTask,
    Overwritten,
    apply_format,
    declared_formats,
    format_of,
    lay_out,
    overwritten,
)
from pytest_promptfmt.formats.format import Format
from pytest_promptfmt.formats.registry import find_format, known_formats, register_format
from pytest_promptfmt.formats.suffix import split_suffix
from pytest_promptfmt.tasks import Task

__all__ = [
    "Format",
    "LaidOutTask",
    "Overwritten",
    "apply_format",
    "declared_formats",
    "find_format",
    "format_of",
    "known_formats",
    "laid_out",
    "lay_out",
    "overwritten",
    "register_format",
    "split_suffix",
]


def laid_out(task: Task, formats: Sequence[str] = ()) -> tuple[Task, ...]:
    """Return the tasks that are tested for one task that was read.

    Each declared format gives a task of its own; a suffix in the task's name (`subtask_a@mcqa`) chooses one. A task
    that names no format stays as it is (with its `template:` applied), followed by itself in each of `formats`.
    Raises FormatError when a format is unknown or does not fit.
    """
    task, suffix = split_suffix(task)
    if suffix is not None:
        return (apply_format(task, suffix),)
    names = declared_formats(task)
    if names:
        return tuple(apply_format(task, name) for name in names)
    return (task, *(apply_format(task, name) for name in formats))
