"""The kinds of values that settings have: in words, in JSON Schema, and as read from YAML, options and ini.

pytest imports this module at every start of every project: it imports nothing heavy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

IniType = Literal["string", "bool", "args", "paths", "linelist"]


class Kind(NamedTuple):
    """What values a setting has.

    `expected` describes them in words, `schema` in JSON Schema. `convert` returns the value of what YAML gives, and
    `parse` that of the text or texts of an option or ini value; both raise ValueError for anything else. `ini_type` is
    pytest's type of the ini value. `is_path` marks paths, relative to where they were written. (A named tuple,
    which is made faster than a dataclass.)
    """

    expected: str
    schema: Mapping[str, Any]
    convert: Callable[[Any], Any]
    parse: Callable[[Any], Any] = lambda written: written
    ini_type: IniType = "string"
    is_path: bool = False


def _require(fits: bool, value: Any) -> Any:
    if not fits:
        raise ValueError(value)
    return value


def _flag(value: Any) -> bool:
    return bool(_require(isinstance(value, bool), value))


def _text(value: Any) -> str:
    return str(_require(isinstance(value, str), value))


def _name(value: Any) -> str:
    return str(_require(isinstance(value, str) and value != "", value))


def _texts(value: Any) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value
    _require(isinstance(values, Sequence) and all(isinstance(each, str) and each for each in values), value)
    return tuple(values)


def split_codes(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the codes and prefixes of rules in texts, with commas or whitespace between them."""
    return tuple(code for text in texts for code in text.replace(",", " ").split())


def _per_file(value: Any) -> tuple[str, ...]:
    _require(isinstance(value, Mapping) and all(isinstance(glob, str) and glob.strip() for glob in value), value)
    return tuple(f"{glob}: {' '.join(split_codes(_texts(codes)))}" for glob, codes in value.items())


def _seconds(value: Any) -> float:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and value > 0 and math.isfinite(value)
    return float(_require(fits, value))


def _arguments(value: Any) -> Mapping[str, Any]:
    return MappingProxyType(_as_json(_require(isinstance(value, Mapping), value)))


def _as_json(value: Any) -> Any:
    """Return the value in JSON's types; a date, which YAML reads where a template wants text, as it was written."""
    if isinstance(value, Mapping):
        return {_require(isinstance(key, str), key): _as_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    if isinstance(value, date):
        return value.isoformat()
    return _require(value is None or isinstance(value, str | int | float), value)


def _clock(value: Any) -> datetime:
    if isinstance(value, str):
        return datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return value
    return datetime.combine(_require(isinstance(value, date), value), time(12))


def whole(least: int) -> Kind:
    """Return the kind of whole numbers from `least`."""

    def convert(value: Any) -> int:
        return int(_require(isinstance(value, int) and not isinstance(value, bool) and value >= least, value))

    return Kind(
        expected=f"a whole number from {least}",
        schema={"type": "integer", "minimum": least},
        convert=convert,
        parse=lambda written: convert(int(written)),
    )


def one_of(*values: str, spellings: Mapping[str, str] = MappingProxyType({})) -> Kind:
    """Return the kind of these texts; an option or ini value may have other `spellings` of them."""

    def convert(value: Any) -> str:
        return str(_require(value in values, value))

    return Kind(
        expected=f"{', '.join(values[:-1])} or {values[-1]}",
        schema={"enum": list(values)},
        convert=convert,
        parse=lambda written: convert(spellings.get(written.strip().lower(), written.strip().lower())),
    )


_STRINGS: Final = {"type": "array", "items": {"type": "string"}}
_TEXT_OR_TEXTS: Final = {"anyOf": [{"type": "string"}, _STRINGS]}

FLAG: Final = Kind(expected="true or false", schema={"type": "boolean"}, convert=_flag, ini_type="bool")
TEXT: Final = Kind(expected="a text", schema={"type": "string"}, convert=_text)
NAME: Final = Kind(expected="a name", schema={"type": "string", "minLength": 1}, convert=_name)
NAME_OR_NONE: Final = Kind(
    expected="a name or null",
    schema={"type": ["string", "null"], "minLength": 1},
    convert=lambda value: None if value is None else _name(value),
)
SECONDS: Final = Kind(
    expected="seconds, such as 10",
    schema={"type": "number", "exclusiveMinimum": 0},
    convert=_seconds,
    parse=lambda written: _seconds(float(written)),
)
NAMES: Final = Kind(expected="a list of names", schema=_TEXT_OR_TEXTS, convert=_texts, parse=tuple, ini_type="args")
FILE: Final = Kind(expected="a path", schema={"type": "string"}, convert=_name, is_path=True)
PATHS: Final = Kind(
    expected="a list of paths", schema=_TEXT_OR_TEXTS, convert=_texts, parse=tuple, ini_type="paths", is_path=True
)
CODES: Final = Kind(
    expected="a list of codes such as [PF2, PF101]",
    schema=_TEXT_OR_TEXTS,
    convert=lambda value: split_codes(_texts(value)),
    parse=split_codes,
    ini_type="args",
)
PER_FILE: Final = Kind(
    expected="a mapping of globs to codes",
    schema={"type": "object", "additionalProperties": _TEXT_OR_TEXTS},
    convert=_per_file,
    parse=tuple,
    ini_type="linelist",
)
MAPPING: Final = Kind(
    expected="a mapping of names to profiles",
    schema={"type": "object"},
    convert=lambda value: _require(isinstance(value, Mapping), value),
)
ARGUMENTS: Final = Kind(expected="a mapping of names to values", schema={"type": "object"}, convert=_arguments)
CLOCK: Final = Kind(
    expected="a date such as 2024-07-26, or a date and time",
    schema={"type": "string", "format": "date"},
    convert=_clock,
)
