"""How the pieces of a vocabulary spell text, and how they are shown to a reader."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

Spelling = Literal["byte-level", "sentencepiece", "wordpiece", "plain"]

_BYTE_FALLBACK: Final = re.compile("<0x([0-9A-F]{2})>")
_WHITESPACE: Final = {" ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥"}
_SENTENCEPIECE_SPACE: Final = "▁"


@dataclass(frozen=True, slots=True)
class Alphabet:
    """How pieces spell text: `spelling`, and whether bytes replace characters that the vocabulary lacks."""

    spelling: Spelling
    byte_fallback: bool

    def bytes_of(self, piece: str) -> bytes:
        """Return the bytes of a piece, as far as they do not depend on its neighbours.

        WordPiece keeps its `##`, since whether there is a space before a piece depends on its neighbours.
        """
        if self.spelling == "byte-level":
            table = _bytes_by_character()
            if all(character in table for character in piece):
                return bytes(table[character] for character in piece)
        if self.is_byte_fallback(piece):
            return bytes([int(piece[3:5], 16)])
        text = piece.replace(_SENTENCEPIECE_SPACE, " ") if self.spelling == "sentencepiece" else piece
        return text.encode("utf-8", "replace")

    def is_byte_fallback(self, piece: str) -> bool:
        """Return whether a piece is one byte of a character that the vocabulary lacks (`<0xF0>`)."""
        return self.byte_fallback and _BYTE_FALLBACK.fullmatch(piece) is not None

    def is_part_of_character(self, piece: str) -> bool:
        """Return whether the bytes of a piece are not whole characters: a letter is split over several tokens."""
        try:
            self.bytes_of(piece).decode("utf-8")
        except UnicodeDecodeError:
            return True
        return False

    def shown(self, piece: str) -> str:
        """Return a piece for a reader: whitespace as symbols, bytes that are not a whole character as `⟨F0⟩`."""
        if self.is_byte_fallback(piece):
            return piece
        shown = []
        rest = self.bytes_of(piece)
        while rest:
            try:
                shown.append(self.shown_text(rest.decode("utf-8")))
                break
            except UnicodeDecodeError as error:
                shown.append(self.shown_text(rest[: error.start].decode("utf-8")))
                shown += [f"⟨{byte:02X}⟩" for byte in rest[error.start : error.end]]
                rest = rest[error.end :]
        return "".join(shown)

    def shown_text(self, text: str) -> str:
        """Return text for a reader: whitespace as symbols, invisible characters as `⟨U+200B⟩`."""
        return "".join(_WHITESPACE.get(character) or _shown_character(character) for character in text)


def _shown_character(character: str) -> str:
    return character if character.isprintable() else f"⟨U+{ord(character):04X}⟩"


def alphabet_of(backend: Any) -> Alphabet:
    """Return how the pieces of a `tokenizers` backend spell text, read from its decoder."""
    decoder = getattr(backend, "decoder", None)
    # The decoder alone is small; the whole tokenizer would be megabytes.
    state = json.loads(decoder.__getstate__()) if decoder is not None else {}
    kinds = set(_kinds(state))
    fallback = "ByteFallback" in kinds
    if "ByteLevel" in kinds:
        return Alphabet("byte-level", byte_fallback=fallback)
    if "Metaspace" in kinds or _SENTENCEPIECE_SPACE in json.dumps(state, ensure_ascii=False):
        return Alphabet("sentencepiece", byte_fallback=fallback)
    return Alphabet("wordpiece" if "WordPiece" in kinds else "plain", byte_fallback=fallback)


def _kinds(state: Any) -> list[str]:
    if isinstance(state, list):
        return [kind for part in state for kind in _kinds(part)]
    if not isinstance(state, dict):
        return []
    return [str(state.get("type")), *(kind for part in state.values() for kind in _kinds(part))]


@cache
def _bytes_by_character() -> dict[str, int]:
    """Return GPT-2's alphabet: printable bytes are themselves, the others are characters from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}
