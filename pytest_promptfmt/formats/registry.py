"""Where formats are found by name: built in, entry points, registered by code, `formats/*.yaml` beside the tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from pytest_promptfmt.core.errors import FormatError, Position, did_you_mean, display_path
from pytest_promptfmt.formats.builtin import BUILTIN_FORMATS
from pytest_promptfmt.formats.format import DOCUMENTATION_FIELDS, Format
from pytest_promptfmt.formats.literature import LITERATURE_FORMATS

ENTRY_POINT_GROUP = "pytest_promptfmt.formats"
FOLDER = "formats"
"""The folder beside the tasks whose YAML files are formats, named by their stems."""

_TASK_KEYS = ("task", "group", "class")
"""Keys that make a file one of lm-eval's, whatever its folder is called."""

_registered: dict[str, Format] = {}


def register_format(format_: Format) -> Format:
    """Add a format for this process (from a `conftest.py`, a notebook) and return it; the same name replaces."""
    _registered[format_.name] = format_
    return format_


def known_formats(directory: Path | None = None) -> Mapping[str, Format]:
    """Return every format by name: built-ins, entry points, registered ones, then those in `directory/formats/`.

    Later ones replace earlier ones of the same name. Raises FormatError, with the file and line or the entry point,
    for a format that cannot be read.
    """
    formats = {**_installed(), **_registered}
    for name in _file_names(directory):
        format_ = _file_format(name, directory, ())
        if format_ is not None:
            formats[name] = format_
    return MappingProxyType(formats)


def find_format(name: str, directory: Path | None = None, position: Position | None = None) -> Format:
    """Return the format of that name. Raises FormatError with a did-you-mean when there is none.

    Other files of `directory/formats/` are not read.
    """
    return _find(name, directory, position, ())


def _find(name: str, directory: Path | None, position: Position | None, route: tuple[str, ...]) -> Format:
    format_ = _file_format(name, directory, route) if name not in route else None
    if format_ is None:
        format_ = _registered.get(name) or _installed().get(name)
    if format_ is None:
        known = [*_installed(), *_registered, *_file_names(directory)]
        raise FormatError(
            f"there is no format {name!r}",
            position=position,
            hint=did_you_mean(name, known) or f"there are {', '.join(known)}",
        )
    return format_


@cache
def _installed() -> Mapping[str, Format]:
    systems = import_module(f"{__package__.partition('.')[0]}.systems").known_systems()
    of_systems = [format_ for system in systems.values() for format_ in system.formats()]
    formats = {format_.name: format_ for format_ in (*BUILTIN_FORMATS, *LITERATURE_FORMATS, *of_systems)}
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        formats.update({format_.name: format_ for format_ in _entry_point_formats(entry_point)})
    return formats


def _entry_point_formats(entry_point: EntryPoint) -> Iterator[Format]:
    try:
        value = entry_point.load()
        if isinstance(value, type) and issubclass(value, Format):
            value = value(name=entry_point.name)
    except Exception as error:
        raise FormatError(
            f"the entry point {entry_point.name!r} of {ENTRY_POINT_GROUP!r} does not load: {error}",
            hint=f"it should be a Format or several: {entry_point.value}",
        ) from error
    for format_ in (value,) if isinstance(value, Format) else value:
        if not isinstance(format_, Format):
            raise FormatError(f"the entry point {entry_point.name!r} gives {format_!r}, which is no Format")
        yield format_


def _file_names(directory: Path | None) -> list[str]:
    folder = directory / FOLDER if directory is not None else None
    return sorted(path.stem for path in folder.glob("*.yaml")) if folder is not None and folder.is_dir() else []


def _file_format(name: str, directory: Path | None, route: tuple[str, ...]) -> Format | None:
    """Return the format in `formats/<name>.yaml`; None when there is no such file, or when it is a task or group.

    `route` are the formats that start from this one: a name among them means the installed format.
    """
    if directory is None or name not in _file_names(directory):
        return None
    path = directory / FOLDER / f"{name}.yaml"
    fields, lines = _read_yaml(path, path.stat().st_mtime_ns)
    if isinstance(fields, Mapping) and any(key in fields for key in _TASK_KEYS):
        return None

    def where(field: str) -> Position:
        return Position(path, lines.get(field))

    if not isinstance(fields, Mapping):
        raise FormatError(
            "a format file holds a mapping of fields", position=Position(path, 1), hint='question_prefix: "Q: "'
        )
    base_name = fields.get("type", "mcqa")
    if not isinstance(base_name, str):
        raise FormatError(f"type {base_name!r} is no name of a format", position=where("type"), hint="type: mcqa")
    base = _find(base_name, directory, where("type"), (*route, name))
    documentation: dict[str, Any] = {key: str(fields[key] or "") for key in DOCUMENTATION_FIELDS if key in fields}
    documentation.setdefault("summary", f"{base_name} as changed in {display_path(path)}")
    overrides = {key: value for key, value in fields.items() if key not in ("type", *DOCUMENTATION_FIELDS)}
    return dataclasses.replace(base, name=name, **documentation).changed(overrides, where)


@lru_cache(maxsize=256)
def _read_yaml(path: Path, _modified: int) -> tuple[Any, Mapping[str, int]]:
    """Return the content of a file and the line of each top-level key."""
    try:
        source = path.read_text("utf-8")
        node = yaml.compose(source, Loader=yaml.SafeLoader)
        lines = {}
        if isinstance(node, yaml.MappingNode):
            lines = {str(key.value): key.start_mark.line + 1 for key, _ in node.value}
            if any(key in lines for key in _TASK_KEYS):
                return dict.fromkeys(lines), lines
        return yaml.safe_load(source), lines
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        position = Position(path, mark.line + 1, mark.column + 1) if mark else Position(path)
        problem = getattr(error, "problem", None) or error
        raise FormatError(f"this format cannot be read: {problem}", position=position) from error
