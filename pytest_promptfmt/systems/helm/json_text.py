"""JSON and JSON5 with places: whole texts, and large files read value by value.

Plain JSON goes through the standard library and costs nothing more. Only text that it refuses is read as JSON5
(comments, trailing commas, single quotes), by pyjson5. Neither library reports where a key is: `locate` walks through
the text when a message needs the place.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import Position, SourceError, json_mistake

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
        """Return where a key (or the item of a list) is, None where it is missing; of two equal keys the first."""
        place = found = None
        for key in keys:
            found, place = next((member[1:] for member in self._members(place) if member[0] == key), (None, None))
            if place is None:
                return None
        return None if found is None else self.position(found)

    def repeated_keys(self, key: str) -> list[str]:
        """Return the names that appear more than once in the object of a top-level key."""
        return [name for name, count in Counter(str(name) for name, *_ in self._members_of(key)).items() if count > 1]

    def position(self, offset: int) -> Position:
        """Return the place of the character at `offset` (from 0)."""
        return Position.after(self.path, self.text[:offset])

    def item_positions(self, key: str) -> Iterator[Position]:
        """Yield where each item of the array of a top-level key begins."""
        line, counted = 1, 0
        for _, offset, _ in self._members_of(key):
            line += self.text.count("\n", counted, offset)
            counted = offset
            yield Position(self.path, line, offset - self.text.rfind("\n", 0, offset))

    def _members_of(self, key: str) -> Iterator[tuple[str | int, int, int]]:
        """Yield the members of the value of a top-level key, the first one of that name."""
        start = next((value for name, _, value in self._members() if name == key), None)
        return self._members(start) if start is not None else iter(())

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
        """Yield the tokens from an offset on with their kinds; of a broken text those before the break."""
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
        raise SourceError("this number has too many digits", position=position) from error
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
            hint="add a comma before this value" if lacks_comma else None,
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
        return "the text is nested too deeply", offset if match else 0
    if kind == "EOF":
        return "the text ends before it is complete", len(text.rstrip())
    # pyjson5 names the beginning of a value that breaks; JSON's own scanner is exact where it came as far.
    if strict.pos < len(text) and "//" not in text and "/*" not in text:
        offset = max(offset, strict.pos)
    there = text[offset : offset + 1]
    if kind == "ExtraData":
        return "there is text after the end of the value", offset
    return (f"unexpected {there!r}" if there.strip() else "a value, bracket or quote is missing here"), offset


MAX_ITEM: Final = 64 << 20
"""The largest value that is read, in characters; a larger one is an error."""

_CHUNK: Final = 1 << 20
_LONGEST_WORD: Final = len("-Infinity")
_CUT_WORDS: Final = frozenset(
    word[:length] for word in ("true", "false", "null", "NaN", "-Infinity", "-") for length in range(1, len(word) + 1)
)
_SPACE: Final = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class Item:
    """A value: of a top-level key, or the item `index` of the array of that key; with the place it begins at."""

    key: str
    value: Any
    position: Position
    index: int | None = None


def json_items(path: Path, array: str) -> Iterator[Item]:
    """Yield the top-level values of a JSON object in order, those of the key `array` item by item.

    No more than one value and a chunk is in memory. Raises SourceError, with line and column, where the text ends too
    early or is not JSON, after everything before it was yielded; OSError where the file cannot be opened.
    """
    with gate.open_file(path) as file:
        yield from _Reader(path, file).items(array)


class _Reader:
    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file = path, file
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._json = json.JSONDecoder()
        self._text, self._at = "", 0
        self._counted, self._line, self._column = 0, 1, 1  # an offset of _text, and the place of its character
        self._ended = False

    def items(self, array: str) -> Iterator[Item]:
        for _ in self._members("{", "}"):
            key = self._value()
            if not isinstance(key, str):
                raise self._error("a key must be a text in quotes")
            self._expect(":")
            if key == array and self._peek() == "[":
                yield from (self._item(key, index) for index in self._members("[", "]"))
            else:
                yield self._item(key)

    def _members(self, opening: str, closing: str) -> Iterator[int]:
        """Yield the number of each member of an object or array, which is to be read before the next one."""
        self._expect(opening)
        number = 0
        while self._peek() != closing or number:
            yield number
            number += 1
            if self._expect(f",{closing}") == closing:
                return
        self._expect(closing)

    def _item(self, key: str, index: int | None = None) -> Item:
        self._peek()
        position = self._position()
        return Item(key, self._value(), position, index)

    def _peek(self) -> str:
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]  # matches the empty text
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                raise self._error("the text ends before it is complete")

    def _expect(self, characters: str) -> str:
        found = self._peek()
        if found not in characters:
            wanted = " or ".join(repr(each) for each in characters)
            raise self._error(f"expected {wanted}, found {found!r}")
        self._at += 1
        return found

    def _value(self) -> Any:
        self._peek()
        while True:
            try:
                value, end = self._json.raw_decode(self._text, self._at)
            except RecursionError:
                raise self._error("the JSON is nested too deeply") from None
            except ValueError as error:
                if len(self._text) - self._at > MAX_ITEM:
                    raise self._error(f"one value is larger than {MAX_ITEM >> 20} MiB") from None
                place = (error.pos if isinstance(error, json.JSONDecodeError) else self._at) - self._at
                # A mistake in the middle of the read text is one, no matter what follows.
                at_end = self._at + place >= len(self._text) - _LONGEST_WORD or "Unterminated" in str(error)
                if not at_end or not self._more():
                    raise self._broken(error, place) from None
                continue
            # A number may continue in the next chunk, as in `1.` and `5`.
            if (
                isinstance(value, int | float)
                and self._text[end : end + 2].strip(".eE+-0123456789") == ""
                and self._more()
            ):
                continue
            self._at = end
            return value

    def _broken(self, error: ValueError, place: int) -> SourceError:
        rest = self._text[self._at :].rstrip()
        if self._ended and (place >= len(rest) or "Unterminated" in str(error) or rest[place:] in _CUT_WORDS):
            self._at += len(rest)
            return self._error("the text ends before it is complete")
        self._at += place
        return self._error(f"this is not JSON: {json_mistake(error)}")

    def _more(self) -> bool:
        """Read a chunk, forgetting what was consumed; return whether there was one."""
        if self._ended:
            return False
        chunk = self._file.read(_CHUNK)
        self._ended = not chunk
        self._position()
        try:
            decoded = self._decoder.decode(chunk, not chunk)
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise self._error(f"the byte 0x{byte:02x}, in this value or a later one, is not UTF-8") from None
        self._text, self._at, self._counted = self._text[self._at :] + decoded, 0, 0
        return bool(chunk)

    def _position(self) -> Position:
        # What was counted for the items before is not counted again.
        lines = self._text.count("\n", self._counted, self._at)
        if lines:
            self._column = self._at - self._text.rfind("\n", self._counted, self._at)
        else:
            self._column += self._at - self._counted
        self._line += lines
        self._counted = self._at
        return Position(self._path, self._line, self._column)

    def _error(self, message: str) -> SourceError:
        return SourceError(message, position=self._position())
