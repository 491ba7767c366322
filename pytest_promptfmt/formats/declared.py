"""What a task's `formats:` key declares, in its three forms: a name, `{type: name, …}`, `{name: overrides, …}`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_promptfmt.core.errors import FormatError
from pytest_promptfmt.core.task import Task


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
    raise FormatError(f"{value!r} is no name of a format", position=task.position(*keys), hint="formats: mcqa")
