"""Formats by name: published, of installed packages, registered by code, and `formats/*.yaml` next to the tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import FormatError, Position, did_you_mean, display_path, raising
from pytest_promptfmt.core.yaml_parser import parse_file
from pytest_promptfmt.formats.format import DOCUMENTATION_FIELDS, Format, placed

ENTRY_POINT_GROUP = "pytest_promptfmt.formats"
FOLDER = "formats"
"""The folder next to the tasks whose YAML files are formats, named by their stems."""

_DATA: Final = Path(__file__).parent.parent / "data" / "formats"
_TASK_KEYS = ("task", "group", "class")
"""Keys that make a file one of lm-eval's, also in a folder of that name."""

_registered: dict[str, Format] = {}


def register_format(format_: Format) -> Format:
    """Add a format for this process (from a `conftest.py`, a notebook) and return it; the same name replaces."""
    _registered[format_.name] = format_
    return format_


def published_names() -> Mapping[str, Sequence[str]]:
    """Return the names of the formats of data/formats by where they come from, in the order of every list."""
    return data_table("published_formats")


def _all_published() -> list[str]:
    return [name for names in published_names().values() for name in names]


def known_formats(directory: Path | None = None) -> Mapping[str, Format]:
    """Return every format by name: published, entry points, registered ones, then those in `directory/formats/`.

    Later ones replace earlier ones of the same name. Raises FormatError, with the file and line or the entry point,
    for a format that cannot be read.
    """
    made = ((name, make()) for name, make in _makers(directory))
    return MappingProxyType({name: format_ for name, format_ in made if format_ is not None})


def find_format(
    name: str, directory: Path | None = None, position: Position | None = None, *, route: tuple[str, ...] = ()
) -> Format:
    """Return the format of that name. Raises FormatError with a did-you-mean when there is none.

    Of published formats and the files of `directory/formats/` only those that this one starts from are read. `route`
    are the formats that start from it: a name among them means the format that is not in a file.
    """
    makers = list(_makers(directory, route))
    for known, make in reversed(makers):
        if known == name and (format_ := make()) is not None:
            return format_
    names = list(dict.fromkeys(known for known, _ in makers))
    hint = did_you_mean(name, names) or f"known: {', '.join(names)}"
    raise FormatError(f"unknown format {name!r}", position=position, hint=hint)


def _makers(directory: Path | None, route: tuple[str, ...] = ()) -> Iterator[tuple[str, Callable[[], Format | None]]]:
    """Yield the names of all formats with what makes them; later ones replace earlier ones of the same name."""
    yield from ((name, partial(published_format, name)) for name in _all_published())
    yield from ((name, partial(given.get, name)) for given in (_entry_point_formats(), _registered) for name in given)
    if directory is not None:
        names = (name for name in _file_names(directory) if name not in route)
        yield from ((name, partial(_file_format, name, directory, route)) for name in names)


@cache
def published_format(name: str) -> Format:
    """Return the format of data/formats, even where another one has its name. Raises KeyError for an unknown name."""
    if name not in _all_published():
        raise KeyError(name)

    def start(base: str | None, _position: Position) -> Format:
        return Format(name=name) if base is None else published_format(base)

    format_ = _read_format(_DATA / f"{name}.yaml", start)
    assert format_ is not None, "a task or group is not a format"
    return format_


@cache
def _entry_point_formats() -> Mapping[str, Format]:
    points = entry_points(group=ENTRY_POINT_GROUP)
    return {format_.name: format_ for point in points for format_ in _formats_of(point)}


def _formats_of(entry_point: EntryPoint) -> Iterator[Format]:
    try:
        value = entry_point.load()
        if isinstance(value, type) and issubclass(value, Format):
            value = value(name=entry_point.name)
    except Exception as error:
        message = f"the entry point {entry_point.name!r} of {entry_point.group!r} cannot be loaded: {error}"
        hint = f"{entry_point.value} must be a Format or a list of Formats"
        raise FormatError(message, hint=hint) from error
    for format_ in (value,) if isinstance(value, Format) else value:
        if not isinstance(format_, Format):
            raise FormatError(f"the entry point {entry_point.name!r} gives {format_!r}, which is not a Format")
        yield format_


def format_files(directory: Path) -> Iterator[str]:
    """Yield where the formats next to the tasks of a folder are read: their folder, with a slash, and each file."""
    yield f"{directory / FOLDER}/"
    yield from (str(directory / FOLDER / f"{name}.yaml") for name in _file_names(directory))


def _file_names(directory: Path) -> list[str]:
    folder = directory / FOLDER
    if not gate.is_allowed(folder / "-") or not folder.is_dir():
        return []
    return sorted(path.stem for path in folder.glob("*.yaml"))


def _file_format(name: str, directory: Path, route: tuple[str, ...]) -> Format | None:
    """Return the format in `formats/<name>.yaml`; None when it is a task or group."""

    def start(base: str | None, position: Position) -> Format:
        return find_format(base or "mcqa", directory, position, route=(*route, name))

    return _read_format(directory / FOLDER / f"{name}.yaml", start)


def _read_format(path: Path, start: Callable[[str | None, Position], Format]) -> Format | None:
    """Return the format that a file describes, named like it; None when the file is a task or group.

    `start` gives the format that the file starts from, by its `type` (None where it names none) and the place of that.
    Raises FormatError with the place of a mistake.
    """
    with raising(FormatError, "this format cannot be read", Position(path)):
        parsed = parse_file(path, gate.status_of(path))
    fields = parsed.values
    if any(key in fields for key in _TASK_KEYS):
        return None

    def where(field: str) -> Position:
        return parsed.locate((field,)) or Position(path)

    base_name = fields.get("type")
    if "type" in fields and not isinstance(base_name, str):
        raise FormatError(
            f"`type` must be the name of a format, not {base_name!r}", position=where("type"), hint="write `type: mcqa`"
        )
    base = start(base_name, where("type"))
    documentation: dict[str, Any] = {key: str(fields[key] or "") for key in DOCUMENTATION_FIELDS if key in fields}
    documentation.setdefault("summary", f"{base_name or 'mcqa'} as changed in {display_path(path)}")
    overrides = {key: value for key, value in fields.items() if key not in ("type", *DOCUMENTATION_FIELDS)}
    with placed(where):
        return dataclasses.replace(base, name=path.stem, **documentation).changed(overrides)
