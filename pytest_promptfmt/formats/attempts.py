"""The tests of one task: the task in each format that it names or that a run adds, and its variants.

A task names formats by its `formats:` key or by a suffix, `task@format`: on the command line, in members of groups and
in its own `task:` key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_promptfmt.core.errors import FormatError, PromptfmtError
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.formats.apply import (
    LaidOutTask,
    Resolve,
    TemplatedTask,
    apply_format,
    apply_template,
    as_written,
    declared_formats,
    format_of,
    has_template,
)
from pytest_promptfmt.formats.variants import variants_of


@dataclass(frozen=True, slots=True)
class Attempt:
    """A task laid out, or the reason why it cannot be; `task` then is the task as written, in the format's name."""

    task: Task
    error: PromptfmtError | None = None


def attempts(
    task: Task, formats: Sequence[str] = (), *, variants: Sequence[str] = (), resolve: Resolve | None = None
) -> Iterator[Attempt]:
    """Yield the tests of one task that was read: each format separately, so that a failing one hides no other.

    Each declared format gives a separate task; a suffix in the task's name (`subtask_a@mcqa`) chooses one. A task
    that names no format stays as it is (with its `template:` applied), followed by itself in each of `formats`.
    `variants` (axes such as `enumerator`, single values such as `enumerator-roman`, or `all`) add each variant of each
    of these formats. `resolve` gives the class that a `!function` in `template:` names, where the user allows its code.
    """
    try:
        names = wanted_formats(task, formats)
    except PromptfmtError as error:
        yield Attempt(task, error)
        return
    for name in names:
        yield _attempt(task, name, resolve)
    for name in names if variants else ():
        try:
            varied = () if name is None else variant_names(task, name, variants)
        except FormatError:
            continue  # reported above, where the format itself was tried
        for variant in varied:
            yield _attempt(task, variant, resolve)


def _attempt(task: Task, name: str | None, resolve: Resolve | None) -> Attempt:
    try:
        return Attempt(lay_out_as(task, name, resolve=resolve))
    except PromptfmtError as error:
        return Attempt(dataclasses.replace(as_written(task), name=split_name(task.name)[0], format=name), error)


def laid_out(
    task: Task, formats: Sequence[str] = (), *, variants: Sequence[str] = (), resolve: Resolve | None = None
) -> tuple[Task, ...]:
    """Return the tasks of `attempts`. Raises the first error: a format that is unknown or does not fit."""
    tasks = []
    for attempt in attempts(task, formats, variants=variants, resolve=resolve):
        if attempt.error is not None:
            raise attempt.error
        tasks.append(attempt.task)
    return tuple(tasks)


def base_format(name: str | None) -> str | None:
    """Return the format that a name such as `mcqa+enumerator-roman` is a variant of; the name itself otherwise."""
    return None if name is None else name.partition("+")[0]


def is_variant(name: str | None) -> bool:
    """Return whether the name is that of a variant."""
    return base_format(name) != name


def layout_notes(task: Task, *, replaced: bool = True) -> Iterator[str]:
    """Yield what laying out a task did that its author should know: values it set, and those it `replaced`."""
    if isinstance(task, LaidOutTask | TemplatedTask):
        yield from task.notes
    for value in task.overwritten if replaced and isinstance(task, LaidOutTask) else ():
        where = f"{value.position}: " if value.position is not None else ""
        yield (
            f"{where}the task sets {value.key} to {value.written!r}, but the format "
            f"{task.format!r} changes it to {value.becomes!r}"
        )


def wanted_formats(task: Task, formats: Sequence[str] = ()) -> tuple[str | None, ...]:
    """Return the formats that a task is tested in; None is the task as it is. Raises FormatError."""
    _, suffix = split_suffix(task)
    chosen = (suffix,) if suffix is not None else declared_formats(task)
    return chosen or (None, *dict.fromkeys(formats))


def variant_names(task: Task, name: str, variants: Sequence[str]) -> tuple[str, ...]:
    """Return the canonical names of the wanted variants of `task@name`. Raises FormatError."""
    bare, _ = split_suffix(task)
    axes = () if "all" in variants else variants
    return tuple(format_.name for format_ in variants_of(format_of(bare, name), axes))


def lay_out_as(task: Task, name: str | None, *, resolve: Resolve | None = None) -> Task:
    """Return the task in the named format; for None the task as it is, with its `template:` applied."""
    task, _ = split_suffix(task)
    if has_template(task) and declared_formats(task):
        message = f"task {task.name!r} has both formats and template"
        raise task.error(FormatError, message, "template", hint="both define the prompt, so remove one of them")
    return apply_template(task, resolve) if name is None else apply_format(task, name)


def split_name(name: str) -> tuple[str, str | None]:
    """Return the task's name (or glob) and the format after the last `@`; None without one.

    A registered task may have an `@` in its name: look for the whole name first.
    """
    left, at, right = name.rpartition("@")
    return (left, right) if at else (name, None)


def split_suffix(task: Task) -> tuple[Task, str | None]:
    """Return the task without the `@format` that its own name carries, and that format; None without one.

    Raises FormatError when a side of the `@` is empty.
    """
    name, suffix = split_name(task.name)
    if suffix is None:
        return task, None
    if not name or not suffix:
        message = f"task name {task.name!r} has nothing {'before' if not name else 'after'} the @"
        raise task.error(FormatError, message, "task", hint="write name@format, as in subtask_a@mcqa")
    return dataclasses.replace(task, name=name), suffix
