"""The tokenizer that the other packages use, and what it returns.

It wraps a `tokenizers` backend that does what AutoTokenizer of transformers 5.23 does; loader.py finds that backend.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from pytest_promptfmt.core.errors import TokenizerError

if TYPE_CHECKING:
    import tokenizers

MAX_CHARACTERS: Final = 6_000_000
"""The longest text that is encoded; a prompt beyond it is a mistake, and would take gigabytes."""

_MOST_KEPT: Final = 512
_LONGEST_KEPT: Final = 20_000
"""Of so many texts, with at most so many characters, the ids are kept: neighbouring tasks have the same texts."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """One text in tokens: ids, raw pieces of the vocabulary, and the characters of the text behind each.

    Offsets are pairs of start and end, in characters of the given text. Tokens that the tokenizer adds have (0, 0).
    Tokens that share a character (the bytes of one letter) share its offsets.
    """

    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The knowledge of AutoTokenizer beyond the backend; stored next to a frozen one.

    `class_name` is the class that AutoTokenizer chose. `special_tokens` holds the template variables. `cleans_up`:
    decoding removes the spaces before punctuation. `raw_ids`: texts that the file `tokenizer.json` encodes differently
    when only it is read, with the ids that it gives, special tokens added.
    """

    class_name: str
    loader: str
    digest: str
    special_tokens: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    extra_special_tokens: tuple[str, ...] = ()
    chat_templates: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    cleans_up: bool = False
    raw_ids: Mapping[str, Sequence[int]] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class _Encoded:
    ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]


class PythonBackend:
    """The part of a backend that `Tokenizer` needs, by a tokenizer of transformers. Offsets are all (0, 0)."""

    def __init__(self, loaded: Any) -> None:
        self._loaded = loaded

    def encode(self, sequence: str, *, add_special_tokens: bool = True) -> _Encoded:
        """Return the ids that calling the tokenizer gives."""
        sequence.encode("utf-8")  # a lone surrogate is refused like everywhere else
        ids = [int(number) for number in self._loaded(sequence, add_special_tokens=add_special_tokens)["input_ids"]]
        return _Encoded(ids, [self.id_to_token(number) or "" for number in ids], [(0, 0)] * len(ids))

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """Return the text of the ids."""
        return str(self._loaded.decode(ids, skip_special_tokens=skip_special_tokens))

    def id_to_token(self, token_id: int) -> str | None:
        """Return the piece behind an id."""
        piece = self._loaded.convert_ids_to_tokens(token_id)
        return None if piece is None else str(piece)

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a piece; None for one that the vocabulary lacks."""
        found = self._loaded.convert_tokens_to_ids(token)
        return found if isinstance(found, int) and self.id_to_token(found) == token else None

    def get_added_tokens_decoder(self) -> Mapping[int, tokenizers.AddedToken]:
        """Return the added tokens by id."""
        known = getattr(self._loaded, "added_tokens_decoder", None)
        return known if isinstance(known, dict) else {}  # mistral-common finds no tokens in text


class Tokenizer:
    """One tokenizer: text to ids and back, exactly as `AutoTokenizer.from_pretrained(source)` would.

    `source` is what the user wrote, `name` its short form, `loader` how it was loaded (part of what a snapshot's
    ids depend on), `raw_ids` the ids in engines that read only `tokenizer.json` (see `Facts`, whose `digest` has 16
    digits). `origin` is the repository on the hub that it was fetched from, with the commit: `owner/name@0123…`; else
    empty.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer | PythonBackend,
        facts: Facts,
        *,
        source: str,
        name: str,
        is_archetype: bool = False,
        origin: str = "",
    ) -> None:
        self.backend = backend
        self.facts = facts
        self._piece = cache(backend.id_to_token)
        self._known_ids = lru_cache(maxsize=_MOST_KEPT)(self._ids)
        self.source = source
        self.name = name
        self.is_archetype = is_archetype
        self.origin = origin
        self.loader = facts.loader
        self.special_tokens: Mapping[str, str] = MappingProxyType(dict(facts.special_tokens))
        self.chat_templates: Mapping[str, str] = MappingProxyType(dict(facts.chat_templates))
        self.raw_ids: Mapping[str, Sequence[int]] = MappingProxyType(dict(facts.raw_ids))

    def __repr__(self) -> str:
        return f"<Tokenizer {self.name} ({self.loader})>"

    def encode(self, text: str, *, add_special_tokens: bool = True) -> Encoding:
        """Return `AutoTokenizer(...)(text, add_special_tokens=...)`; raises TokenizerError for what has no UTF-8."""
        encoded = self._encoded(text, add_special_tokens)
        # Not the backend's own pieces: for what a Unigram vocabulary lacks they are the text.
        pieces = tuple([self._piece(number) or "" for number in encoded.ids])
        return Encoding(tuple(encoded.ids), pieces, tuple(encoded.offsets))

    def ids(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Return only the ids: cheaper than `encode` for long texts."""
        ids = self._known_ids if len(text) <= _LONGEST_KEPT else self._ids
        return ids(text, add_special_tokens)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return `AutoTokenizer(...).decode(ids, skip_special_tokens=...)`."""
        try:
            text = self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        except BaseException as error:
            raise_panic(error, f"{self.name} cannot decode")
            raise
        for joined in _BEFORE_CLEAN_UP if self.facts.cleans_up else ():
            text = text.replace(joined, joined.strip())
        return text

    def piece(self, token_id: int) -> str | None:
        """Return the raw piece of the vocabulary behind an id, or None."""
        return self._piece(token_id)

    def id_of(self, piece: str) -> int | None:
        """Return the id of a raw piece of the vocabulary, or None."""
        return self.backend.token_to_id(piece)

    def round_trip(self, text: str) -> str:
        """Return what is left of a text after encoding and decoding it; equal to the text where nothing is lost."""
        return self.decode(self.ids(text, add_special_tokens=False))

    def visible(self, token_id: int) -> str:
        """Return one token for a reader: its text with whitespace visible, partial characters as bytes (`⟨F0⟩`)."""
        added = self.added_tokens.get(token_id)
        if added is not None:
            return self.alphabet.shown_text(added.content)
        piece = self.piece(token_id)
        return f"⟨no token {token_id}⟩" if piece is None else self.alphabet.shown(piece)

    @cached_property
    def alphabet(self) -> Alphabet:
        """How the pieces of this vocabulary spell text: byte-level, SentencePiece, WordPiece."""
        return alphabet_of(self.backend)

    @cached_property
    def added_tokens(self) -> Mapping[int, tokenizers.AddedToken]:
        """The tokens that are found in text as a whole, special or not, by id."""
        return MappingProxyType(dict(sorted(self.backend.get_added_tokens_decoder().items())))

    @cached_property
    def all_special_ids(self) -> frozenset[int]:
        """The ids of the special tokens that AutoTokenizer names; other added tokens may be special, too."""
        contents = (*self.special_tokens.values(), *self.facts.extra_special_tokens)
        return frozenset(found for content in contents if (found := self.id_of(content)) is not None)

    def id_of_named(self, name: str) -> int | None:
        """Return the id of a special token by its name, such as `pad_token`; None without one."""
        token = self.special_tokens.get(name)
        return None if token is None else self.id_of(token)

    def _ids(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        return tuple(self._encoded(text, add_special_tokens).ids)

    def _encoded(self, text: str, add_special_tokens: bool) -> Any:
        if len(text) > MAX_CHARACTERS:
            raise TokenizerError(
                f"a text of {len(text):,} characters is too long to encode; the limit is {MAX_CHARACTERS:,}"
            )
        try:
            return self.backend.encode(text, add_special_tokens=add_special_tokens)
        except (UnicodeEncodeError, TypeError) as error:
            at = next((at for at, each in enumerate(text) if "\ud800" <= each <= "\udfff"), None)
            if at is None:
                raise
            raise TokenizerError(
                f"the text has a lone surrogate U+{ord(text[at]):04X} at character {at + 1}, which no tokenizer can "
                f"encode: {_around(text, at)}",
                hint="correct the data. Half characters often come from an escape like \\ud83d in JSON",
            ) from error
        except BaseException as error:
            raise_panic(error, f"{self.name} cannot encode {_around(text, 0)}")
            raise


def raise_panic(error: BaseException, what: str) -> None:
    """Raise TokenizerError for a panic inside `tokenizers`, which is not an Exception; return for all other errors."""
    if type(error).__name__ == "PanicException":
        raise TokenizerError(
            f"the tokenizer {what}: {error}", hint="the files of the tokenizer crash the library `tokenizers`"
        ) from error


def _around(text: str, at: int) -> str:
    return ascii(text[max(0, at - 20) : at + 20])


# transformers 5.23, PreTrainedTokenizerBase.clean_up_tokenization: what is replaced, in this order.
_BEFORE_CLEAN_UP: Final = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


# -- spelling: how pieces of a vocabulary become text, and how a reader sees them --------------------------------------

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
        """Return the bytes of a piece that do not depend on its neighbours.

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
        shown = (_WHITESPACE.get(each) or (each if each.isprintable() else f"⟨U+{ord(each):04X}⟩") for each in text)
        return "".join(shown)


def alphabet_of(backend: Any) -> Alphabet:
    """Return how the pieces of a `tokenizers` backend spell text, read from its decoder."""
    decoder = getattr(backend, "decoder", None)
    # The decoder is small; the whole tokenizer would be megabytes.
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
