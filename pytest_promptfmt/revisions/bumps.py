"""The edits that raise forgotten versions: one number in the file that holds it, and not one byte of the rest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Final

import yaml

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import Position, SourceError
from pytest_promptfmt.core.files import write_atomically
from pytest_promptfmt.revisions.versions import VersionFinding

_VERSION: Final = re.compile(r"(v?)([0-9]+)((?:\.[0-9]+)*)")
_SCALAR: Final = re.compile(rb"""["']?(v?[0-9]+(?:\.[0-9]+)*)["']?(?=[\s,}#\])]|$)""")


@dataclass(frozen=True, slots=True)
class Bump:
    """A file with raised versions: its path as findings name it, and its bytes before and after."""

    name: Path
    before: bytes
    after: bytes

    @property
    def diff(self) -> list[str]:
        """Return the edit as a unified diff, line by line."""
        old, new = (text.decode("utf-8", "replace").splitlines() for text in (self.before, self.after))
        name = self.name.as_posix()
        return [*unified_diff(old, new, f"a/{name}", f"b/{name}", n=1, lineterm="")]


def next_version(version: object) -> str | None:
    """Return the next whole version in the same notation (`1.0`: `2.0`); None for a version that is not a number."""
    match = _VERSION.fullmatch(str(version))
    return match and f"{match[1]}{int(match[2]) + 1}{re.sub('[0-9]+', '0', match[3])}"


def bumps(findings: Iterable[VersionFinding], folder: Path, top: Path) -> tuple[list[Bump], list[SourceError]]:
    """Return the edits that raise the versions of errors, and why others cannot be raised. Nothing is written.

    Paths are relative to `folder`; a file outside of `top`, or a link, is refused.
    """
    places: dict[Path, list[Position]] = {}
    for finding in findings:
        if finding.is_error and finding.place is not None:
            places.setdefault(finding.place.path, []).append(finding.place)
    made: list[Bump] = []
    refused: list[SourceError] = []
    for name, positions in places.items():
        try:
            before = after = _read(folder / name, top)
            # From the end, so that a longer number moves no place that is still to be edited.
            for place in sorted(set(positions), key=lambda place: (place.line or 0, place.column or 0), reverse=True):
                after = _raised(after, place)
            made.append(Bump(name, before, after))
        except SourceError as error:
            refused.append(error)
    return made, refused


def write(made: Iterable[Bump], folder: Path) -> None:
    """Write the edits; raises OSError."""
    for bump in made:
        write_atomically(folder / bump.name, bump.after)


def _read(path: Path, top: Path) -> bytes:
    try:
        if path.is_symlink() or not path.resolve().is_relative_to(top):
            raise gate.RefusedError("it is a link, or outside of the repository", path)
        return gate.read_bytes(path)
    except OSError as error:
        raise SourceError(f"the version cannot be raised: {error.strerror or error}", position=Position(path)) from None


def _raised(data: bytes, place: Position) -> bytes:
    start = _offset_in_python(data, place) if place.path.suffix == ".py" else _offset_in_yaml(data, place)
    match = None if start is None else _SCALAR.match(data, start)
    new = None if match is None else next_version(match[1].decode())
    if match is None or new is None:
        raise SourceError("this version is not a number that can be raised", position=place, hint="raise it by hand")
    return data[: match.start(1)] + new.encode() + data[match.end(1) :]


def _offset_in_python(data: bytes, place: Position) -> int | None:
    lines = data.splitlines(keepends=True)[: (place.line or 1) - 1]
    return sum(map(len, lines)) + (place.column or 1) - 1


def _offset_in_yaml(data: bytes, place: Position) -> int | None:
    """Return where the value of the key at a place begins; None for an alias, whose value is elsewhere."""
    try:
        text = data.decode()
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError):
        return None
    for key, value in _pairs(root, set()):
        mark = key.start_mark
        if (mark.line + 1, mark.column + 1) == (place.line, place.column):
            start = value.start_mark.index
            is_here = isinstance(value, yaml.ScalarNode) and start > key.end_mark.index
            return len(text[:start].encode()) if is_here else None
    return None


def _pairs(node: yaml.Node | None, seen: set[int]) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key, value
            yield from _pairs(value, seen)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _pairs(value, seen)
