"""Large JSON objects read piece by piece: top-level keys in order, and the items of one array one at a time."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import Position, SourceError

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


def json_items(path: Path, array: str, progress: Callable[[int], object] = lambda _read: None) -> Iterator[Item]:
    """Yield the top-level values of a JSON object in order, those of the key `array` item by item.

    No more than one value and a chunk is in memory; `progress` gets the number of bytes read so far. Raises
    SourceError, with line and column, where the text ends too early or is not JSON, after everything before it was
    yielded; OSError where the file cannot be opened.
    """
    with gate.open_file(path) as file:
        yield from _Reader(path, file, progress).items(array)


class _Reader:
    def __init__(self, path: Path, file: BinaryIO, progress: Callable[[int], object]) -> None:
        self._path, self._file, self._progress = path, file, progress
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._json = json.JSONDecoder()
        self._text, self._at = "", 0
        self._counted, self._line, self._column = 0, 1, 1  # an offset of _text, and the place of its character
        self._ended = False

    def items(self, array: str) -> Iterator[Item]:
        self._expect("{")
        if self._peek() == "}":
            return
        while True:
            key = self._value()
            if not isinstance(key, str):
                raise self._error("a key must be a text in quotes")
            self._expect(":")
            if key == array and self._peek() == "[":
                yield from self._array(key)
            else:
                position = self._position()
                yield Item(key, self._value(), position)
            if self._expect(",}") == "}":
                return

    def _array(self, key: str) -> Iterator[Item]:
        self._expect("[")
        index = 0
        if self._peek() == "]":
            self._expect("]")
            return
        while True:
            self._peek()
            position = self._position()
            yield Item(key, self._value(), position, index)
            index += 1
            if self._expect(",]") == "]":
                return

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
                # What looks wrong in the middle of what was read is wrong, whatever follows.
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
        return self._error(f"this is not JSON: {getattr(error, 'msg', error)}")

    def _more(self) -> bool:
        """Read a chunk, forgetting what was consumed; return whether there was one."""
        if self._ended:
            return False
        chunk = self._file.read(_CHUNK)
        self._progress(self._file.tell())
        self._ended = not chunk
        self._position()
        try:
            decoded = self._decoder.decode(chunk, not chunk)
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise self._error(f"the byte 0x{byte:02x} is not UTF-8, in this value or the next ones") from None
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
