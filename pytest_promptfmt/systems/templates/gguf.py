"""What the metadata of a GGUF file says of its chat templates and its tokenizer; weights are not read."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import Position, SourceError

_MAGIC: Final = b"GGUF"
_FORMATS: Final[Mapping[int, str]] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"
}  # fmt: skip
_TEXT, _LIST = 8, 9
_MOST_BYTES: Final = 2**26
_MOST_TEXTS: Final = 2**21
_TEMPLATE: Final = "tokenizer.chat_template"
_TOKENIZER: Final = "tokenizer.ggml."
_NAMES: Final[Mapping[str, str]] = {
    "bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"
}  # fmt: skip
"""What transformers calls the special tokens of a GGUF file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GgufMetadata:
    """The templates of a GGUF file by name (empty for the only one), its tokens by id, and its special tokens.

    `adds` says of bos_token and eos_token whether the tokenizer adds them to a text, where the file says it.
    """

    templates: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    tokens: Sequence[str] = ()
    special_tokens: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    adds: Mapping[str, bool] = field(default_factory=lambda: MappingProxyType({}))


def read_gguf(path: Path) -> GgufMetadata | None:
    """Return the metadata of a GGUF file (version 2 or 3), None for another file; raises SourceError."""
    found: dict[str, Any] = {}
    try:
        with gate.open_file(path) as file:
            if file.read(4) != _MAGIC:
                return None
            found.update(_pairs(file))
    except (OSError, struct.error, KeyError, ValueError, OverflowError, RecursionError) as error:
        raise SourceError(f"the metadata of this GGUF file cannot be read: {error}", position=Position(path)) from error
    tokens = found.get(f"{_TOKENIZER}tokens")
    tokens = tokens if isinstance(tokens, list) else []
    ids = {name: found.get(f"{_TOKENIZER}{key}_token_id") for key, name in _NAMES.items()}
    adds = {name: found.get(f"{_TOKENIZER}add_{name}") for name in ("bos_token", "eos_token")}
    return GgufMetadata(
        templates={
            key.removeprefix(_TEMPLATE).removeprefix("."): value
            for key, value in found.items()
            if key.startswith(_TEMPLATE) and isinstance(value, str)
        },
        tokens=tokens,
        special_tokens={
            name: tokens[number]
            for name, number in ids.items()
            if isinstance(number, int) and 0 <= number < len(tokens) and tokens[number]
        },
        adds={name: value for name, value in adds.items() if isinstance(value, bool)},
    )


def _pairs(file: BinaryIO) -> Iterator[tuple[str, Any]]:
    """Yield the keys that are about the tokenizer, with their values."""
    _, _, count = struct.unpack("<IQQ", file.read(20))
    for _ in range(count):
        key = _text(file)
        kind = struct.unpack("<I", file.read(4))[0]
        value = _value(file, kind, is_kept=key == f"{_TOKENIZER}tokens")
        if key.startswith("tokenizer."):
            yield key, value


def _text(file: BinaryIO) -> str:
    length = struct.unpack("<Q", file.read(8))[0]
    if length > _MOST_BYTES:
        raise ValueError(f"a text of {length:,} bytes")
    return file.read(length).decode("utf-8")


def _value(file: BinaryIO, kind: int, *, is_kept: bool) -> Any:
    """Return a text, a number or a kept list of texts; other lists are skipped."""
    if kind == _TEXT:
        return _text(file)
    if kind != _LIST:
        return struct.unpack(f"<{_FORMATS[kind]}", file.read(struct.calcsize(f"<{_FORMATS[kind]}")))[0]
    inner, count = struct.unpack("<IQ", file.read(12))
    if inner == _TEXT and is_kept:
        if count > _MOST_TEXTS:
            raise ValueError(f"a list of {count:,} texts")
        return [_text(file) for _ in range(count)]
    if inner in (_TEXT, _LIST):
        for _ in range(count):
            if inner == _TEXT:
                file.seek(struct.unpack("<Q", file.read(8))[0], 1)
            else:
                _value(file, inner, is_kept=False)
    else:
        file.seek(count * struct.calcsize(f"<{_FORMATS[inner]}"), 1)
    return None
