"""YAML files with their includes, merged as lm-eval 0.4.13 merges them.

The meaning of the keys is decided elsewhere. Unlike lm-eval, which silently drops a file it cannot read, every problem
here is a SourceError that names the line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import Position, SourceError, did_you_mean, display_path
from pytest_promptfmt.core.task import Locate
from pytest_promptfmt.core.yaml_parser import ParsedFile, RepeatedKey, parse_file
from pytest_promptfmt.tasks.harness import Harness, harness_of

MAX_INCLUDES: Final = 50
"""How many files deep includes may be nested."""

MAX_PARTS: Final = 1000
"""How many files, each time that it is included, one file may be made of."""


@dataclass(frozen=True, slots=True)
class YamlFile:
    """A YAML file with its includes merged in.

    `config` has lm-eval's key order: the keys of the includes first. `parts` are the files it was made of, later ones
    winning, the file itself last. Nested values are shared between readers and must not be changed. `early` are the
    places of includes that only releases before 0.4.12 read.
    """

    path: Path
    config: Mapping[Any, Any]
    parts: tuple[ParsedFile, ...]
    early: tuple[Position, ...] = ()

    def locate(self, keys: tuple[str | int, ...]) -> Position | None:
        """Return where a key path was written, in the file whose value won; None if it was not written."""
        if not keys:
            return None
        part = self.owner(keys[0])
        return None if part is None else part.locate(keys)

    def owner(self, key: Any) -> ParsedFile | None:
        """Return the part whose value for a top-level key won."""
        return next((part for part in reversed(self.parts) if key in part.values), None)

    @property
    def named(self) -> Iterator[str]:
        """Yield the paths of the includes as they are written, below the folders of the files that name them.

        Where one is a link, `parts` have the file that it led to.
        """
        for part in self.parts:
            written = part.values.get("include")
            for name in written if isinstance(written, list) else [written]:
                if isinstance(name, str):
                    yield os.path.join(part.path.parent, name)

    @property
    def has_release_includes(self) -> bool:
        """Return whether the release of lm-eval decides what the includes give: a list, or a file included twice."""
        written = (part.values.get("include") for part in self.parts)
        return bool(self.early) or any(isinstance(each, list) and len(each) > 1 for each in written)

    @property
    def repeated(self) -> tuple[RepeatedKey, ...]:
        """Return the top-level keys of the file itself that are written twice; YAML lets the later one win."""
        return self.parts[-1].repeated


def read_yaml(path: Path, data: bytes | None = None) -> YamlFile:
    """Return the file at `path` with its includes merged, functions unresolved.

    `data` is the content of the file itself where the caller has read it already. Raises SourceError with file, line
    and column for everything that lm-eval 0.4.13 cannot read, and for what exceeds the limits of core/yaml_parser.py.
    """
    real = resolved(path)
    reading = _Reading(real)
    _collect(_parse_first(real, data), (real,), reading)
    if reading.early and reading.harness is None:  # so the first of several includes wins, too
        reading = _Reading(real, is_early=True)
        _collect(_parse_first(real, data), (real,), reading)
    parts = reading.parts
    if len(parts) == 1 and "include" not in parts[0].values:
        return YamlFile(real, MappingProxyType(parts[0].values), (parts[0],))
    merged: dict[Any, Any] = {}
    for part in parts[:-1]:
        merged.update(part.values)
        # An included task_list is dropped at every step, so that a later one of the same name comes last.
        merged.pop("task_list", None)
    merged.update(parts[-1].values)
    merged.pop("include", None)
    return YamlFile(real, MappingProxyType(merged), tuple(parts), tuple(reading.early))


def read_include(written: Any, keys: tuple[str | int, ...], locate: Locate, path: Path | None) -> YamlFile:
    """Return what the `include` of a mapping inside the file at `path` brings in, `task_list` left out.

    `keys` is where the include is in that file. Raises SourceError as `read_yaml` does.
    """
    folder = path.parent if path is not None else Path.cwd()
    merged: dict[Any, Any] = {}
    parts: list[ParsedFile] = []
    for index, entry in enumerate(written if isinstance(written, list) else [written]):
        position = locate((*keys, index) if isinstance(written, list) else keys)
        target = _include_target(folder, entry, position)
        try:
            included = read_yaml(target) if gate.is_there(target) and not target.is_dir() else None
        except ValueError:
            included = None
        if included is None:
            raise _bad_include(entry, position, target, FileNotFoundError())
        merged.update(included.config)
        merged.pop("task_list", None)
        parts += included.parts
    return YamlFile(folder, MappingProxyType(merged), tuple(parts))


def resolved(path: Path) -> Path:
    """Return the absolute path with `~` expanded and symlinks followed, as lm-eval 0.4.13 opens files."""
    return Path(gate.resolved(path.expanduser()))


class _Reading:
    """The files that one file is made of so far, and the routes to them."""

    def __init__(self, path: Path, *, is_early: bool = False) -> None:
        self._is_early = is_early
        self.routes: dict[Path, tuple[Path, ...]] = {}
        self.parts: list[ParsedFile] = []
        self.early: list[Position] = []
        self._folder = path.parent

    @cached_property
    def harness(self) -> Harness | None:
        """Return the harness whose release decides how includes are read."""
        return harness_of(self._folder)

    def in_order(self, entries: list[Any]) -> list[tuple[int, Any]]:
        """Return the includes of a list, the one that wins last: before 0.4.12 this is the first."""
        numbered = list(enumerate(entries))
        if len(entries) < 2:
            return numbered
        is_early = self._is_early or (self.harness is not None and self.harness.reads_early_yaml)
        return numbered[::-1] if is_early else numbered

    def may_repeat(self, target: Path, route: tuple[Path, ...]) -> bool:
        """Return whether a file may be included once more; a harness that is not known is taken for an early one."""
        is_circle = target in route or len(self.parts) > MAX_PARTS
        return not is_circle and (self.harness is None or self.harness.reads_early_yaml)


def _collect(parsed: ParsedFile, route: tuple[Path, ...], reading: _Reading) -> None:
    reading.routes[parsed.path] = route
    if "include" in parsed.values:
        written = parsed.values["include"]
        for index, entry in reading.in_order(written if isinstance(written, list) else [written]):
            keys = ("include", index) if isinstance(written, list) else ("include",)
            target = _include_target(parsed.path.parent, entry, parsed.locate(keys))
            if len(route) > MAX_INCLUDES:
                raise SourceError(
                    f"files include each other more than {MAX_INCLUDES} deep",
                    position=parsed.locate(keys),
                    hint="include the shared file directly",
                )
            if target in reading.routes:
                if not reading.may_repeat(target, route):
                    raise _second_visit(parsed, keys, reading.routes[target], (*route, target))
                reading.early.append(parsed.locate(keys) or Position(parsed.path))
            try:
                included = parse_file(target, gate.status_of(target))
            except (OSError, ValueError) as error:
                raise _bad_include(entry, parsed.locate(keys), target, error) from error
            _collect(included, (*route, target), reading)
    reading.parts.append(parsed)


def _parse_first(path: Path, data: bytes | None) -> ParsedFile:
    try:
        return parse_file(path, gate.status_of(path), data)
    except FileNotFoundError as error:
        hint = did_you_mean(path.name, gate.names_in(path.parent))
        raise SourceError("the file does not exist", position=Position(path), hint=hint) from error
    except OSError as error:
        raise SourceError(f"the file cannot be read: {error.strerror or error}", position=Position(path)) from error


def _include_target(folder: Path, entry: Any, position: Position | None) -> Path:
    if not isinstance(entry, str):
        what = "null" if entry is None else f"{entry!r}"
        raise SourceError(
            f"include must be a path or a list of paths, not {what}",
            position=position,
            hint=(
                "write the path of the file to include, or remove the key. Until then, "
                "lm-eval 0.4.13 ignores the whole task file"
            ),
        )
    # lm-eval expands `~` only after joining, which never applies: the path is relative to the including file.
    try:
        return Path(gate.allowed(gate.named(folder, entry)))
    except gate.RefusedError as error:
        raise _bad_include(entry, position, folder, error) from error


def _bad_include(entry: str, position: Position | None, target: Path, error: Exception) -> SourceError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        relative = "" if target.parent.is_dir() else "; the path is relative to the file with the `include`"
        hint = gate.missing_hint(target) + relative
        if entry.startswith("~"):
            hint = "lm-eval 0.4.13 does not expand '~' in an include; write the path relative to this file"
        return SourceError(f"include {entry!r} does not exist", position=position, hint=hint)
    reason = (error.strerror if isinstance(error, OSError) else None) or error
    return SourceError(f"include {entry!r} cannot be read: {reason}", position=position)


def _second_visit(
    parsed: ParsedFile, keys: tuple[str | int, ...], first: tuple[Path, ...], second: tuple[Path, ...]
) -> SourceError:
    routes = [" -> ".join(display_path(step) for step in route) for route in (first, second)]
    repeated = f"{display_path(second[-1])} is included twice"
    is_circle = second[-1] in second[:-1]
    message = f"circular include: {routes[1]}" if is_circle else f"{repeated}: {routes[0]} and {routes[1]}"
    error = SourceError(
        message,
        position=parsed.locate(keys),
        hint="remove one of these includes. Otherwise, lm-eval 0.4.12 and later ignore the task",
    )
    error.cause = repeated
    return error
