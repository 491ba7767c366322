"""The settings as `data/settings.json` lists them, and the types of their values: in words, JSON Schema, and as read.

Options, ini values, keys of `promptfmt.yaml`, how they are read, and the tables of the docs are made from this.
pytest imports this module at every start of every project: it imports nothing heavy.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

IniType = Literal["string", "bool", "args", "paths", "linelist"]


class ValueType(NamedTuple):
    """The values that a setting takes.

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


def _instance_of(kind: type[Any]) -> Callable[[Any], Any]:
    return lambda value: _require(isinstance(value, kind), value)


def _name(value: Any) -> Any:
    return _require(isinstance(value, str) and value != "", value)


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


def _trained(value: Any) -> tuple[tuple[str, str], ...]:
    pairs = {"*.jinja": value} if isinstance(value, str) else value
    _require(isinstance(pairs, Mapping), value)
    return tuple((_name(training), _name(template)) for training, template in pairs.items())


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


def whole(least: int) -> ValueType:
    """Return the type of whole numbers from `least`."""

    def convert(value: Any) -> int:
        return int(_require(isinstance(value, int) and not isinstance(value, bool) and value >= least, value))

    schema = {"type": "integer", "minimum": least}
    return ValueType(f"a whole number, {least} or more", schema, convert, lambda written: convert(int(written)))


def one_of(*values: str, spellings: Mapping[str, str] = MappingProxyType({})) -> ValueType:
    """Return the type of these texts; an option or ini value may have other `spellings` of them."""

    def convert(value: Any) -> str:
        return str(_require(value in values, value))

    def parse(written: str) -> str:
        text = written.strip().lower()
        return convert(spellings.get(text, text))

    return ValueType(f"{', '.join(values[:-1])} or {values[-1]}", {"enum": list(values)}, convert, parse)


def several_of(*values: str) -> ValueType:
    """Return the type of lists of these texts."""

    def convert(value: Any) -> tuple[str, ...]:
        texts = _texts(value)
        return tuple(_require(all(text in values for text in texts), texts))

    schema = {"type": "array", "items": {"enum": list(values)}}
    return ValueType(f"a list of {', '.join(values[:-1])} and {values[-1]}", schema, convert)


_TEXT_OR_TEXTS: Final = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}

_RELEASE: Final = re.compile(r"[0-9]+(\.[0-9]+){2,}(\.?(dev|a|b|rc|post)[0-9]*)?(\+[a-z0-9.]+)?")

FLAG: Final = ValueType("true or false", {"type": "boolean"}, _instance_of(bool), ini_type="bool")
TEXT: Final = ValueType("a text", {"type": "string"}, _instance_of(str))
NAME: Final = ValueType("a name", {"type": "string", "minLength": 1}, _name)
NAME_OR_NONE: Final = ValueType(
    "a name or null",
    {"type": ["string", "null"], "minLength": 1},
    lambda value: None if value is None else _name(value),
)
SECONDS: Final = ValueType(
    "seconds, such as 10", {"type": "number", "exclusiveMinimum": 0}, _seconds, lambda written: _seconds(float(written))
)
NAMES: Final = ValueType("a list of names", _TEXT_OR_TEXTS, _texts, tuple, "args")
FILE: Final = ValueType("a path", {"type": "string"}, _name, is_path=True)
PATHS: Final = ValueType("a list of paths", _TEXT_OR_TEXTS, _texts, tuple, "paths", is_path=True)
CODES: Final = ValueType(
    "a list of codes such as [PF2, PF101]",
    _TEXT_OR_TEXTS,
    lambda value: split_codes(_texts(value)),
    split_codes,
    "args",
)
PER_FILE: Final = ValueType(
    "a mapping of globs to codes",
    {"type": "object", "additionalProperties": _TEXT_OR_TEXTS},
    _per_file,
    tuple,
    "linelist",
)
TRAINED: Final = ValueType(
    "a template, or a mapping: globs of training templates, and the template for which each is made",
    {"anyOf": [{"type": "string"}, {"type": "object", "additionalProperties": {"type": "string"}}]},
    _trained,
)
MAPPING: Final = ValueType("a mapping of names to profiles", {"type": "object"}, _instance_of(Mapping))
ARGUMENTS: Final = ValueType("a mapping of names to values", {"type": "object"}, _arguments)
RELEASE: Final = ValueType(
    "a release in quotes, such as '0.4.9'",
    {"type": "string", "pattern": _RELEASE.pattern},
    lambda value: _require(isinstance(value, str) and _RELEASE.fullmatch(value) is not None, value),
    lambda written: _require(_RELEASE.fullmatch(written) is not None, written),
)
CLOCK: Final = ValueType("a date such as 2024-07-26, or a date and time", {"type": "string", "format": "date"}, _clock)
SCORING: Final = one_of("auto", "all", "none", spellings={"true": "all", "false": "none"})


def type_named(name: str) -> ValueType:
    """Return a type by its name in `data/settings.json`: `flag`, `whole 1`, `one of fast installed`, `several of …`."""
    if name.startswith("whole "):
        return whole(int(name.removeprefix("whole ")))
    if name.startswith("one of "):
        return one_of(*name.removeprefix("one of ").split())
    if name.startswith("several of "):
        return several_of(*name.removeprefix("several of ").split())
    return globals()[name.upper()]  # type: ignore[no-any-return]


class Setting(NamedTuple):
    """One setting and where it can be written: as an option, an ini value, a key of `promptfmt.yaml`.

    `written` is the option with the name of its value, `const` the value of an option that takes none, `default` that
    of an ini value that is not written. `at_rootdir`: only the file in the rootdir may have the key, since it lets
    code run or the network be used, or is read before any folder is entered. `is_repeated`: another run needs the
    option to render the same. `help` is Markdown; `ini_help` and `key_help` take its place for the ini value or key.
    `page` is the page of the docs about it. (A named tuple, which is made faster than a dataclass.)
    """

    name: str
    kind: ValueType
    written: str = ""
    const: Any = None
    ini: str | None = None
    key: str | None = None
    at_rootdir: bool = False
    default: Any = None
    is_repeated: bool = False
    is_hidden: bool = False
    help: str = ""
    ini_help: str = ""
    key_help: str = ""
    page: str = ""

    @property
    def option(self) -> str:
        """Return the option, "" if it has none."""
        return self.written.partition(" ")[0]

    @property
    def metavar(self) -> str | None:
        """Return what help calls the value of the option, None where it takes none."""
        return self.written.partition(" ")[2] or None

    @property
    def is_repeatable(self) -> bool:
        """Return whether the option can be given several times."""
        return self.kind.ini_type in ("args", "paths")


def _listed(kind: str) -> Iterator[Setting]:
    for row in _ROWS[kind]:
        written = row.pop("option", "")
        yield Setting(**{**row, "kind": type_named(row["kind"]), "written": written})


_ROWS: Final = json.loads((Path(__file__).parents[1] / "data/settings.json").read_text("utf-8"))

SETTINGS: Final = tuple(_listed("settings"))
"""Every setting, in the order of the docs."""

BY_NAME: Final = {setting.name: setting for setting in SETTINGS}

REPORTS: Final = ("patch", "json", "html")
"""The settings that name a file which the run writes."""

KEYS: Final = {setting.key: setting for setting in SETTINGS if setting.key is not None}
"""The settings that are keys of `promptfmt.yaml`, by key."""

PROFILE_KEYS: Final = {setting.name: setting for setting in _listed("profile")}
"""The keys of one profile in `promptfmt.yaml`."""
