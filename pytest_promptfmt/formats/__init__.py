"""How it is asked: formats by name, and tasks laid out by them.

Nothing here reads docs or renders; a format turns a task's field mappings into templates and settings, once.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_promptfmt.errors import FormatError
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
from pytest_promptfmt.formats.suffix import split_name, split_suffix
from pytest_promptfmt.formats.template import Resolve, apply_template, has_template
from pytest_promptfmt.formats.variants import AXES, variants_of, vary
from pytest_promptfmt.tasks import Task

__all__ = [
    "AXES",
    "Format",
    "LaidOutTask",
    "Overwritten",
    "apply_format",
    "apply_template",
    "declared_formats",
    "find_format",
    "format_of",
    "known_formats",
    "laid_out",
    "lay_out",
    "lay_out_as",
    "overwritten",
    "register_format",
    "split_name",
    "split_suffix",
    "variants_of",
    "vary",
    "wanted_formats",
]


def laid_out(
    task: Task, formats: Sequence[str] = (), *, variants: Sequence[str] = (), resolve: Resolve | None = None
) -> tuple[Task, ...]:
    """Return the tasks that are tested for one task that was read.

    Each declared format gives a task of its own; a suffix in the task's name (`subtask_a@mcqa`) chooses one. A task
    that names no format stays as it is (with its `template:` applied), followed by itself in each of `formats`.
    `variants` (axes such as `enumerator`, single values such as `enumerator-roman`, or `all`) add each variant of each
    of these formats. `resolve` gives the class that a `!function` in `template:` names, where the user allows its code.
    Raises FormatError when a format is unknown or does not fit.
    """
    return tuple(lay_out_as(task, name, resolve=resolve) for name in wanted_formats(task, formats, variants))


def wanted_formats(task: Task, formats: Sequence[str] = (), variants: Sequence[str] = ()) -> tuple[str | None, ...]:
    """Return what `laid_out` makes of a task, as names for `lay_out_as`: None is the task as it is.

    A caller that goes through the names one by one can report a format that does not fit without losing the others.
    """
    bare, suffix = split_suffix(task)
    chosen = (suffix,) if suffix is not None else declared_formats(task)
    names = chosen or tuple(dict.fromkeys(formats))
    as_it_is = () if chosen else (None,)
    if not variants:
        return (*as_it_is, *names)
    axes = () if "all" in variants else variants
    varied = [layout.name for name in names for layout in variants_of(format_of(bare, name), axes)]
    return (*as_it_is, *names, *varied)


def lay_out_as(task: Task, name: str | None, *, resolve: Resolve | None = None) -> Task:
    """Return the task in the named format; for None the task as it is, with its `template:` applied."""
    task, _ = split_suffix(task)
    if has_template(task) and declared_formats(task):
        raise FormatError(
            f"task {task.name!r} has both formats and template",
            position=task.position("template"),
            hint="each of them writes the prompt: keep one",
        )
    return apply_template(task, resolve) if name is None else apply_format(task, name)
