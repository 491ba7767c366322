"""JSON and JSON5 texts: their values, and where a key or a mistake is.

Plain JSON goes through the standard library and costs nothing more. Only what that refuses is read as JSON5 (comments,
trailing commas, single quotes), by pyjson5. Neither library says where a key is: `locate` walks through the text when
a message needs the place.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core.errors import Position, SourceError

Keys = tuple[str | int, ...]

_TOKEN: Final = re.compile(
    r"""(?P<skip>(?:\s|//[^\n]*|/\*.*?\*/)+)|(?P<punct>[{}\[\]:,])"""
    r"""|(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<bare>[^\s{}\[\]:,"'/]+|/)""",
    re.DOTALL,
)
_OFFSET: Final = re.compile(r"near (\d+)")
_LONG_NUMBER: Final = re.compile(r"\d{4301}")
"""A number with more digits than Python reads by default."""


@dataclass(frozen=True, slots=True)
class JsonText:
    """A text and its value; `is_strict` is False where only JSON5 allows it."""

    path: Path
    text: str
    value: Any = None
    is_strict: bool = True

    def locate(self, keys: Keys) -> Position | None:
        """Return where a key (or the item of a list) is, None where there is none; of two equal keys the first."""
        place = found = None
        for key in keys:
            found, place = next((member[1:] for member in self._members(place) if member[0] == key), (None, None))
            if place is None:
                return None
        return None if found is None else self.position(found)

    def repeated_keys(self, key: str) -> list[str]:
        """Return the names that appear more than once in the object of a top-level key."""
        start = next((value for name, _, value in self._members() if name == key), None)
        names = Counter(str(name) for name, *_ in self._members(start)) if start is not None else Counter[str]()
        return [name for name, count in names.items() if count > 1]

    def position(self, offset: int) -> Position:
        """Return the place of the character at `offset` (from 0)."""
        line = self.text.count("\n", 0, offset) + 1
        return Position(self.path, line, offset - (self.text.rfind("\n", 0, offset) + 1) + 1)

    def item_positions(self, key: str) -> Iterator[Position]:
        """Yield where each item of the array of a top-level key begins."""
        start = next((value for name, _, value in self._members() if name == key), None)
        line, counted = 1, 0
        for _, offset, _ in self._members(start) if start is not None else ():
            line += self.text.count("\n", counted, offset)
            counted = offset
            yield Position(self.path, line, offset - self.text.rfind("\n", 0, offset))

    def _members(self, start: int | None = None) -> Iterator[tuple[str | int, int, int]]:
        """Yield each member of the object or array at an offset: its name or number, where it and its value begin."""
        depth = index = name_at = 0
        name, is_array, value_is_next = "", False, False
        for offset, kind, text in self._tokens(start or 0):
            if depth == 1 and value_is_next and text not in ("]", "}"):
                yield (index, offset, offset) if is_array else (name, name_at, offset)
                index, value_is_next = index + 1, False
            elif depth == 1 and not is_array and kind != "punct":
                name, name_at = _plain(text) if kind == "text" else text, offset
            if kind != "punct":
                if depth == 0:
                    return
            elif text in "{[":
                depth += 1
                if depth == 1:
                    is_array = value_is_next = text == "["
            elif text in "}]":
                depth -= 1
                if depth == 0:
                    return
            elif depth == 1:
                value_is_next = text == ("," if is_array else ":")

    def _tokens(self, start: int) -> Iterator[tuple[int, str, str]]:
        """Yield the tokens from an offset on with their kinds; a broken text is walked as far as it goes."""
        place = start
        while (match := _TOKEN.match(self.text, place)) is not None:  # None too for an unclosed quotation
            if match.lastgroup != "skip":
                yield place, str(match.lastgroup), match[0]
            place = match.end()


def read_json(path: Path, text: str) -> JsonText:
    """Return the value of a JSON or JSON5 text; raises SourceError with line and column of the mistake."""
    made = JsonText(path, text)
    try:
        return JsonText(path, text, json.loads(text))
    except json.JSONDecodeError as error:
        strict = error
    except RecursionError:
        raise SourceError("the JSON is nested too deeply", position=Position(path)) from None
    except ValueError as error:
        number = _LONG_NUMBER.search(text)
        position = made.position(number.start()) if number is not None else Position(path)
        raise SourceError("this number has more digits than are read", position=position) from error
    import pyjson5  # only for files that are not plain JSON

    try:
        return JsonText(path, text, pyjson5.decode(text), is_strict=False)
    except pyjson5.Json5DecoderException as error:
        message, offset = _mistake(error, text, strict)
        before = text[:offset].rstrip()
        lacks_comma = text[offset : offset + 1] in ("'", '"') and before and before[-1] not in ",{[:"
        raise SourceError(
            f"this is neither JSON nor JSON5: {message}",
            position=made.position(offset),
            hint="a comma is missing before it" if lacks_comma else None,
        ) from None


def _plain(quoted: str) -> str:
    if "\\" not in quoted:
        return quoted[1:-1]
    try:
        value = json.loads(quoted)
    except ValueError:
        return quoted[1:-1]
    return value if isinstance(value, str) else quoted[1:-1]


def _mistake(error: Exception, text: str, strict: json.JSONDecodeError) -> tuple[str, int]:
    """Return what is wrong and at which character: JSON5's word where the text is JSON5, else JSON's."""
    kind = type(error).__name__.removeprefix("Json5")
    match = _OFFSET.search(str(error))
    offset = min(int(match[1]) - 1, len(text)) if match else strict.pos
    if kind == "NestingTooDeep":
        return "it is nested too deeply", offset if match else 0
    if kind == "EOF":
        return "the text ends before it is complete", len(text.rstrip())
    # pyjson5 names the beginning of a value that breaks; JSON's own scanner is exact where it came as far.
    if strict.pos < len(text) and "//" not in text and "/*" not in text:
        offset = max(offset, strict.pos)
    there = text[offset : offset + 1]
    if kind == "ExtraData":
        return "something follows the value", offset
    return (f"unexpected {there!r}" if there.strip() else "something is missing here"), offset
