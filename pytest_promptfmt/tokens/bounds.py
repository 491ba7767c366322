"""What a `tokenizer.json` may not ask for: ids, texts or times without bound, and ids that change or mean two tokens.

The library `tokenizers` does what its file says, in code that no limit of time or memory of Python's reaches, and
ends the process where memory runs out. So a file is looked at before it is loaded. The bounds are far above what
tokenizers of models have.
"""

from __future__ import annotations

import base64
import binascii
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core.errors import Position, TokenizerError

_LARGEST_ID: Final = 2**24
"""The library makes tables as long as the largest id; the largest vocabularies have some 300,000 tokens."""
_MOST_GROWTH: Final = 100
"""How many times as long a text may become before it is cut into tokens, or when it is put together from them."""
_MOST_ADDED: Final = 1_000
"""Characters put before a text, and special tokens put around one."""
_LONGEST_PIECE: Final = 1_000
"""Of a Unigram vocabulary: each place of a text is tried with pieces of every length."""
_LONGEST_WORD: Final = 10_000
"""Of a WordPiece model, which takes the square of it."""


def refuse_unbounded(content: Mapping[str, Any], file: Path) -> None:
    """Raise TokenizerError for a `tokenizer.json` (its content, and where it lies) that asks for more than that."""
    for complaint in _complaints(content):
        raise TokenizerError(complaint, position=Position(file), hint="this is no tokenizer of a model")


def _complaints(content: Mapping[str, Any]) -> Iterator[str]:
    model = content.get("model")
    if isinstance(model, Mapping):
        yield from _about_model(model)
    for name in ("normalizer", "decoder"):
        parts = list(_parts(content.get(name), ("normalizers", "decoders")))
        growth = 1.0
        for part in parts:
            growth *= _growth(part)
        if growth > _MOST_GROWTH:
            yield f"its {name} makes texts more than {_MOST_GROWTH} times as long"
        if any(len(part["prepend"]) > _MOST_ADDED for part in parts if isinstance(part.get("prepend"), str)):
            yield f"its {name} puts more than {_MOST_ADDED:,} characters before a text"
    if sum(map(_added_tokens, _parts(content.get("post_processor"), ("processors",)))) > _MOST_ADDED:
        yield f"it puts more than {_MOST_ADDED:,} tokens around each text"


def _about_model(model: Mapping[str, Any]) -> Iterator[str]:
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, Mapping):
        largest = max((number for number in vocabulary.values() if isinstance(number, int)), default=0)
        if largest >= _LARGEST_ID:
            yield f"it has the id {largest:,}; {_LARGEST_ID:,} is most"
        yield from _about_equal_ids(vocabulary)
    elif isinstance(vocabulary, list):
        pieces = (entry[0] for entry in vocabulary if isinstance(entry, list) and entry and isinstance(entry[0], str))
        if max(map(len, pieces), default=0) > _LONGEST_PIECE:
            yield f"it has a piece of more than {_LONGEST_PIECE:,} characters"
    longest = model.get("max_input_chars_per_word")
    if isinstance(longest, int) and longest > _LONGEST_WORD:
        yield f"it takes words of {longest:,} characters; {_LONGEST_WORD:,} is most"
    if model.get("dropout"):
        yield f"it leaves out merges at random (dropout {model['dropout']}), so that its ids change from run to run"


def _about_equal_ids(vocabulary: Mapping[str, Any]) -> Iterator[str]:
    numbers = [number for number in vocabulary.values() if isinstance(number, int)]
    if len(set(numbers)) < len(numbers):
        known: dict[int, str] = {}
        for piece, number in vocabulary.items():
            if known.setdefault(number, piece) != piece:
                yield f"two of its tokens, {known[number]!r} and {piece!r}, have the id {number}"
                return


def _parts(written: Any, keys: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
    """Yield the steps of a normalizer, decoder or post-processor, those of a sequence one by one."""
    waiting = [written]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, Mapping):
            continue
        yield part
        for key in keys:
            if isinstance(part.get(key), list):
                waiting += part[key]


def _growth(part: Mapping[str, Any]) -> float:
    content, pattern = part.get("content"), part.get("pattern")
    if part.get("type") == "Replace" and isinstance(content, str) and isinstance(pattern, Mapping):
        literal, expression = pattern.get("String"), pattern.get("Regex")
        if isinstance(literal, str) and literal:
            return max(1.0, len(content) / len(literal))
        return max(1.0, len(content) + (1 if _matches_nothing(expression) else 0))
    if part.get("type") == "Precompiled" and isinstance(part.get("precompiled_charsmap"), str):
        return max(1.0, _longest_replacement(part["precompiled_charsmap"]))
    return 1.0


def _matches_nothing(expression: Any) -> bool:
    """Return whether an expression matches where there is no character, or is none that Python can read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is written for another engine
            return not isinstance(expression, str) or re.match(expression, "") is not None
    except (re.error, RecursionError, OverflowError):
        return True


def _longest_replacement(charsmap: str) -> int:
    """Return the bytes of the longest text that a SentencePiece normalizer puts in place of another one.

    The map is a trie of the length that its first four bytes say, then the replacements, each ended by a zero byte.
    """
    try:
        data = base64.b64decode(charsmap, validate=True)
    except (binascii.Error, ValueError):
        return 1  # tokenizers will say so
    start = 4 + int.from_bytes(data[:4], "little")
    return max(map(len, data[start:].split(b"\0")), default=1)


def _added_tokens(part: Mapping[str, Any]) -> int:
    tokens, single = part.get("special_tokens"), part.get("single")
    if not isinstance(single, list):
        return 0
    count = 0
    for piece in single:
        written = piece.get("SpecialToken") if isinstance(piece, Mapping) else None
        token = tokens.get(written.get("id")) if isinstance(tokens, Mapping) and isinstance(written, Mapping) else None
        ids = token.get("ids") if isinstance(token, Mapping) else None
        count += len(ids) if isinstance(ids, list) else 1
    return count
