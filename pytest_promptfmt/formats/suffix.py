"""`task@format` in names: command line, members of groups, and the task's own `task:` key."""

from __future__ import annotations

import dataclasses

from pytest_promptfmt.core.errors import FormatError
from pytest_promptfmt.core.task import Task


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
        raise FormatError(
            f"task name {task.name!r} has nothing {'before' if not name else 'after'} the @",
            position=task.position("task"),
            hint="name@format, as in subtask_a@mcqa",
        )
    return dataclasses.replace(task, name=name), suffix
