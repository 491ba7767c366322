"""Which formats a task names: by `task@format`, and by its `formats:` key in its three forms.

The forms are a name, `{type: name, …}` and `{name: overrides, …}`. A suffix is written on the command line, in members
of groups and in the task's own `task:` key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True, slots=True)
class Declared:
    """One declared format: the name tests see, the known format it starts from, and what the task changes in it.

    `keys` leads to the overrides in the task's configuration.
    """

    name: str
    base: str
    overrides: Mapping[str, Any]
    keys: tuple[str, ...]


def declared(task: Task) -> tuple[Declared, ...]:
    """Return the formats that the task declares, the default first; empty when it declares none.

    Raises FormatError, with the position, for a value of another shape.
    """
    value = task.config.get("formats")
    if value is None:
        return ()
    if isinstance(value, str):
        return (Declared(value, value, {}, ("formats",)),)
    if not isinstance(value, Mapping):
        raise FormatError(
            f"formats is a {type(value).__name__}; it must be a name or a mapping",
            position=task.position("formats"),
            hint="formats: mcqa" if not isinstance(value, list) else "several formats are a mapping: {mcqa: null, …}",
        )
    if not value:
        raise FormatError(
            "formats is an empty mapping", position=task.position("formats"), hint="formats: mcqa, or leave the key out"
        )
    if "type" in value:
        base = _checked_name(value["type"], task, ("formats", "type"))
        return (Declared(base, base, _without_type(value), ("formats",)),)
    return tuple(_declared_entry(task, key, entry) for key, entry in value.items())


def is_single(task: Task) -> bool:
    """Return whether `formats:` names one format, so that a suffix may name any other."""
    value = task.config.get("formats")
    return isinstance(value, str) or (isinstance(value, Mapping) and "type" in value)


def _declared_entry(task: Task, key: Any, entry: Any) -> Declared:
    name = _checked_name(key, task, ("formats", str(key)))
    keys = ("formats", name)
    if entry is None:
        return Declared(name, name, {}, keys)
    if isinstance(entry, str):
        return Declared(name, entry, {}, keys)
    if isinstance(entry, Mapping):
        base = _checked_name(entry.get("type", name), task, (*keys, "type"))
        return Declared(name, base, _without_type(entry), keys)
    raise FormatError(
        f"formats: {name} is {entry!r}; it must be null, the name of a format, or a mapping of fields",
        position=task.position(*keys),
        hint=f"for one format with overrides write formats: {{type: mcqa, {name}: …}}",
    )


def _without_type(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: item for key, item in value.items() if key != "type"}


def _checked_name(value: Any, task: Task, keys: tuple[str, ...]) -> str:
    if isinstance(value, str) and value and not set(value) & set("@/+"):
        return value
    raise FormatError(f"{value!r} is not the name of a format", position=task.position(*keys), hint="formats: mcqa")
