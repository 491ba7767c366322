"""`promptfmt.yaml`: read with the positions of its keys, each value checked against the table; and its schema.

Nothing here depends on pytest; `setting_lookup.py` decides between files, command line and ini.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import Position, SettingsError, did_you_mean, raising
from pytest_promptfmt.core.task import nearest
from pytest_promptfmt.core.yaml_parser import MAX_BYTES, ParsedFile, parse_file
from pytest_promptfmt.settings.table import KEYS, PROFILE_KEYS, Setting

FILE_NAMES: Final = ("promptfmt.yaml", "promptfmt.yml")
_NAME: Final = re.compile(r"[^\s,:=*?\[\]/\\]+")


@dataclass(frozen=True, kw_only=True)
class SettingsFile:
    """The keys of one file except `profiles`, converted, and the profiles as written and converted."""

    path: Path
    values: Mapping[str, Any]
    profiles: Mapping[str, Mapping[str, Any]]
    parsed: ParsedFile | None = None

    def position(self, *keys: str | int) -> Position:
        """Return where a key was written; the nearest one above it, then the file, where it was not."""
        found = nearest(self.parsed.locate, keys) if self.parsed is not None else None
        return found or Position(self.path)


def find_settings_file(folder: Path) -> Path | None:
    """Return the settings file of a folder, if it has one; raises SettingsError when it has two."""
    found = [folder / name for name in FILE_NAMES if gate.is_there(folder / name)]
    if len(found) > 1:
        raise SettingsError(
            f"both {FILE_NAMES[0]} and {FILE_NAMES[1]} exist", position=Position(found[1]), hint="keep one of them"
        )
    return found[0] if found else None


def read_settings_file(path: Path, *, is_at_rootdir: bool) -> SettingsFile:
    """Return the settings of the file.

    Raises SettingsError with line and column for what is not a YAML mapping, for an unknown key, one written twice
    or not allowed in this folder, and for a value that the key does not take.
    """
    with raising(SettingsError, "the file cannot be read", Position(path)):
        data = gate.read_bytes(path, limit=MAX_BYTES)
        if all(not line.strip() or line.lstrip().startswith(b"#") for line in data.splitlines()):
            return SettingsFile(path=path, values={}, profiles={})
        parsed = parse_file(path, gate.status_of(path), data)
    for name, position, _ in parsed.repeated:
        raise SettingsError(f"the key {name!r} appears twice", position=position, hint="keep one of them")
    values = dict(_converted(parsed, (), parsed.values, KEYS, is_at_rootdir=is_at_rootdir))
    profiles = {name: dict(_profile(parsed, name, written)) for name, written in values.pop("profiles", {}).items()}
    return SettingsFile(path=path, values=values, profiles=profiles, parsed=parsed)


def _profile(parsed: ParsedFile, name: Any, written: Any) -> Iterator[tuple[str, Any]]:
    keys = ("profiles", name)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SettingsError(
            f"{name!r} cannot be the name of a profile",
            position=parsed.locate(keys) or parsed.locate(("profiles",)),
            hint=(
                "the name is used in test ids and file names, so whitespace and "
                "the characters , : = * ? [ ] / \\ are not allowed"
            ),
        )
    if not isinstance(written, Mapping):
        raise SettingsError(
            f"the profile {name!r} must be a mapping, not {written!r}",
            position=parsed.locate(keys),
            hint=f"the keys of a profile are {', '.join(PROFILE_KEYS)}",
        )
    yield from _converted(parsed, keys, written, PROFILE_KEYS)


def _converted(
    parsed: ParsedFile,
    above: tuple[str, ...],
    written: Mapping[Any, Any],
    known: Mapping[str, Setting],
    *,
    is_at_rootdir: bool = True,
) -> Iterator[tuple[str, Any]]:
    for name, value in written.items():
        position = parsed.locate((*above, name)) or parsed.locate(above) or Position(parsed.path)
        if name not in known:
            raise SettingsError(
                f"unknown key {name!r}{' in a profile' if above else ''}; expected one of {', '.join(known)}",
                position=position,
                hint=did_you_mean(str(name), known),
            )
        key = known[name]
        if key.at_rootdir and not is_at_rootdir:
            raise SettingsError(
                f"{name!r} has no effect here: it is used only in the rootdir",
                position=position,
                hint=f"move the key to the {FILE_NAMES[0]} in pytest's rootdir",
            )
        try:
            yield name, key.kind.convert(value)
        except (ValueError, TypeError):
            shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:59]}…"
            message = f"{'.'.join((*above, name))} is {shown}, expected {key.kind.expected}"
            raise SettingsError(message, position=position) from None


# -- schema ------------------------------------------------------------------------------------------------------------


def settings_schema() -> dict[str, Any]:
    """Return the JSON Schema of `promptfmt.yaml`."""
    properties = _properties(KEYS)
    properties["profiles"]["additionalProperties"] = {
        "type": "object",
        "properties": _properties(PROFILE_KEYS),
        "additionalProperties": False,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of pytest-promptfmt",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def _properties(keys: Mapping[str, Setting]) -> dict[str, Any]:
    return {key: {**each.kind.schema, "description": each.key_help or each.help} for key, each in keys.items()}
