"""JSON and JSON5 texts: their values, and where a key or a mistake stands.

Plain JSON goes through the standard library and costs nothing more. Only what that refuses is read as JSON5 (comments,
trailing commas, single quotes), by pyjson5. Neither library tells where a key stands: `find_key` walks through the text
when a message needs the place.
"""

from __future__ import annotations

import json
import re
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
_BLANKS_AND_COMMA: Final = re.compile(r"[\s,]*")
_LONG_NUMBER: Final = re.compile(r"\d{4301}")
"""What Python takes for an attack, unless it is told otherwise."""
_SKIP: Final = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class JsonText:
    """A text and its value; `is_strict` is False where only JSON5 allows it."""

    path: Path
    text: str
    value: Any
    is_strict: bool = True

    def locate(self, keys: Keys, start: int = 0) -> Position | None:
        """Return where a key (or the item of a list) stands in the value at offset `start`; None where it does not."""
        offset = find_key(self.text, keys, start)
        return None if offset is None else position_at(self.path, self.text, offset)


def read_json(path: Path, text: str) -> JsonText:
    """Return the value of a JSON or JSON5 text; raises SourceError with line and column of the mistake."""
    try:
        return JsonText(path, text, json.loads(text))
    except json.JSONDecodeError as error:
        strict = error
    except RecursionError:
        raise SourceError("the JSON is nested too deeply", position=Position(path)) from None
    except ValueError as error:
        number = _LONG_NUMBER.search(text)
        position = position_at(path, text, number.start()) if number is not None else Position(path)
        raise SourceError("this number has more digits than are read", position=position) from error
    import pyjson5  # only for files that are no plain JSON

    try:
        return JsonText(path, text, pyjson5.decode(text), is_strict=False)
    except pyjson5.Json5DecoderException as error:
        message, offset = _told(error, text, strict)
        raise SourceError(
            f"this is neither JSON nor JSON5: {message}",
            position=position_at(path, text, offset),
            hint=_hint(text, offset),
        ) from None


def item_offsets(text: str, keys: Keys) -> list[int]:
    """Return where each item of an array of a plain JSON text begins, without walking through the items."""
    key = find_key(text, keys)
    opening = text.find("[", key) if key is not None else -1
    decode, offsets, place = json.JSONDecoder().raw_decode, [], opening + 1
    while opening >= 0:
        place = _BLANKS_AND_COMMA.match(text, place).end()  # type: ignore[union-attr]  # matches the empty text
        if text[place : place + 1] in ("]", ""):
            break
        offsets.append(place)
        place = decode(text, place)[1]
    return offsets


def position_at(path: Path, text: str, offset: int) -> Position:
    """Return the place of the character at `offset` (from 0)."""
    line = text.count("\n", 0, offset) + 1
    return Position(path, line, offset - (text.rfind("\n", 0, offset) + 1) + 1)


def find_key(text: str, keys: Keys, start: int = 0) -> int | None:
    """Return the offset of the last key of a path, as JSON5 lets it be written; of two equal keys the first one."""
    if not keys:
        return None
    walk = _Walk(text)
    place: int | None = _SKIP.match(text, start).end()  # type: ignore[union-attr]  # matches the empty text
    found: int | None = None
    for key in keys:
        if place is None:
            return None
        found, place = walk.member(place, key)
    return found


def repeated_keys(text: str, keys: Keys) -> list[tuple[str, int]]:
    """Return the names that stand more than once in an object, each with the offset of its last place."""
    key = find_key(text, keys)
    opening = text.find("{", key) if key is not None else -1
    names: dict[str, list[int]] = {}
    for name, offset in _Walk(text).names(opening) if opening >= 0 else ():
        names.setdefault(name, []).append(offset)
    return [(name, offsets[-1]) for name, offsets in names.items() if len(offsets) > 1]


class _Walk:
    """Tokens of a JSON5 text, as far as finding a key needs them; a broken text is walked as far as it goes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def member(self, start: int, key: str | int) -> tuple[int | None, int | None]:
        """Return where a member's key (or item) and its value begin inside the value at `start`."""
        if not self._text.startswith("{" if isinstance(key, str) else "[", start):
            return None, None
        depth, index, name_at, name = 0, 0, -1, ""
        for offset, kind, text in self._tokens(start):
            if depth == 1 and isinstance(key, int) and index == key and text not in ("]", ","):
                return offset, offset
            if text in ("{", "[") and kind == "punct":
                depth += 1
            elif text in ("}", "]") and kind == "punct":
                depth -= 1
                if depth == 0:
                    break
            elif depth == 1 and text == "," and kind == "punct":
                index += 1
            elif depth == 1 and text == ":" and kind == "punct":
                if name == key:
                    after = _SKIP.match(self._text, offset + 1)
                    return name_at, after.end() if after is not None else None
            elif depth == 1:
                name_at, name = offset, _plain(text) if kind == "text" else text
        return None, None

    def names(self, start: int) -> Iterator[tuple[str, int]]:
        """Yield the names of an object's members, each with its offset."""
        depth, name_at, name = 0, -1, ""
        for offset, kind, text in self._tokens(start):
            if kind == "punct" and text in "{[":
                depth += 1
            elif kind == "punct" and text in "}]":
                depth -= 1
                if depth == 0:
                    return
            elif depth == 1 and kind == "punct" and text == ":":
                yield name, name_at
            elif depth == 1 and kind != "punct":
                name_at, name = offset, _plain(text) if kind == "text" else text

    def _tokens(self, start: int) -> Iterator[tuple[int, str, str]]:
        place = start
        while place < len(self._text):
            match = _TOKEN.match(self._text, place)
            if match is None:  # an unclosed quotation
                return
            if match.lastgroup != "skip":
                yield place, str(match.lastgroup), match[0]
            place = match.end()


def _plain(quoted: str) -> str:
    if "\\" not in quoted:
        return quoted[1:-1]
    try:
        value = json.loads(quoted)
    except ValueError:
        return quoted[1:-1]
    return value if isinstance(value, str) else quoted[1:-1]


def _told(error: Exception, text: str, strict: json.JSONDecodeError) -> tuple[str, int]:
    """Return what is wrong and at which character: JSON5's word where the text is JSON5, else JSON's."""
    kind = type(error).__name__.removeprefix("Json5")
    if kind == "NestingTooDeep":
        return "it is nested too deeply", min(int(match[1]) - 1, len(text)) if (
            match := _OFFSET.search(str(error))
        ) else 0
    if kind == "EOF":
        return "the text ends before it is complete", len(text.rstrip())
    match = _OFFSET.search(str(error))
    offset = min(int(match[1]) - 1, len(text)) if match else strict.pos
    # pyjson5 names the beginning of a value that breaks; JSON's own scanner is exact where it came as far.
    offset = max(offset, strict.pos) if strict.pos < len(text) and "//" not in text and "/*" not in text else offset
    there = text[offset : offset + 1]
    if kind == "ExtraData":
        return "something follows the value", offset
    return (f"{there!r} cannot stand here" if there.strip() else "something is missing here"), offset


def _hint(text: str, offset: int) -> str | None:
    before = text[:offset].rstrip()
    if text[offset : offset + 1] in ("'", '"') and before and before[-1] not in ",{[:":
        return "a comma is missing before it"
    return None
