"""The content of a `tokenizer.json`: what it may not demand, and when AutoTokenizer uses nothing else of a folder.

The library `tokenizers` follows its file, in code that no limit of time or memory of Python's reaches, and
ends the process where memory runs out. So a file is checked before it is loaded. The limits are far above what
tokenizers of models have.

Many classes of transformers 5 keep only vocabulary and merges of the file and build the rest themselves, so the file
is used as it is only where nothing in the folder could change it. Every doubt means no.
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
from pytest_promptfmt.profiles.tokenizer import Facts

_LARGEST_ID: Final = 2**24
"""The library makes tables as long as the largest id; the largest vocabularies have about 300,000 tokens."""
_MOST_GROWTH: Final = 100
"""How many times longer a text may become before it is cut into tokens, or when it is decoded from them."""
_MOST_ADDED: Final = 1_000
"""Characters put before a text, and special tokens put around one."""
_LONGEST_PIECE: Final = 1_000
"""Of a Unigram vocabulary: each place of a text is tried with pieces of every length."""
_LONGEST_WORD: Final = 10_000
"""Of a WordPiece model, which takes the square of it."""


def refuse_unbounded(content: Mapping[str, Any], file: Path) -> None:
    """Raise TokenizerError for a `tokenizer.json` (its content and path) that exceeds these limits."""
    for complaint in _complaints(content):
        raise TokenizerError(complaint, position=Position(file), hint="use the tokenizer of a real model")


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
            yield f"the {name} of the tokenizer makes texts more than {_MOST_GROWTH} times as long"
        if any(len(part["prepend"]) > _MOST_ADDED for part in parts if isinstance(part.get("prepend"), str)):
            yield f"the {name} of the tokenizer puts more than {_MOST_ADDED:,} characters before a text"
    if sum(map(_added_tokens, _parts(content.get("post_processor"), ("processors",)))) > _MOST_ADDED:
        yield f"the tokenizer puts more than {_MOST_ADDED:,} tokens around each text"


def _about_model(model: Mapping[str, Any]) -> Iterator[str]:
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, Mapping):
        largest = max((number for number in vocabulary.values() if isinstance(number, int)), default=0)
        if largest >= _LARGEST_ID:
            yield f"the tokenizer has the id {largest:,}; the limit is {_LARGEST_ID:,}"
        yield from _about_equal_ids(vocabulary)
    elif isinstance(vocabulary, list):
        pieces = (entry[0] for entry in vocabulary if isinstance(entry, list) and entry and isinstance(entry[0], str))
        if max(map(len, pieces), default=0) > _LONGEST_PIECE:
            yield f"the tokenizer has a piece of more than {_LONGEST_PIECE:,} characters"
    longest = model.get("max_input_chars_per_word")
    if isinstance(longest, int) and longest > _LONGEST_WORD:
        yield f"the tokenizer allows words of {longest:,} characters; the limit is {_LONGEST_WORD:,}"
    if model.get("dropout"):
        yield f"the tokenizer skips merges at random (dropout {model['dropout']}), so token ids differ in each run"


def _about_equal_ids(vocabulary: Mapping[str, Any]) -> Iterator[str]:
    numbers = [number for number in vocabulary.values() if isinstance(number, int)]
    if len(set(numbers)) < len(numbers):
        known: dict[int, str] = {}
        for piece, number in vocabulary.items():
            if isinstance(number, int) and known.setdefault(number, piece) != piece:
                yield f"two tokens of the tokenizer, {known[number]!r} and {piece!r}, have the id {number}"
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
    """Return whether an expression matches the empty text, or is not one that Python can read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it was written for another engine
            return not isinstance(expression, str) or re.match(expression, "") is not None
    except (re.error, RecursionError, OverflowError):
        return True


def _longest_replacement(charsmap: str) -> int:
    """Return the bytes of the longest text that a SentencePiece normalizer puts in place of another one.

    The map is a trie whose length is in its first four bytes, then the replacements, each ended by a zero byte.
    """
    try:
        data = base64.b64decode(charsmap, validate=True)
    except (binascii.Error, ValueError):
        return 1  # tokenizers itself will refuse it
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


# PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES of transformers 5.23.
NAMED_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

_VERBATIM_CLASSES: Final = (None, "PreTrainedTokenizerFast", "TokenizersBackend")
_VERBATIM_FILES: Final = frozenset({"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"})
_HARMLESS_KEYS: Final = frozenset(
    {
        *NAMED_TOKENS, "tokenizer_class", "model_max_length", "clean_up_tokenization_spaces", "chat_template",
        "added_tokens_decoder", "extra_special_tokens", "additional_special_tokens", "padding_side",
        "truncation_side", "model_input_names",
    }
)  # fmt: skip
_MISTRAL_REGEX_FROM: Final = 100_000
"""Above this size of the vocabulary transformers may replace the pre-tokenizer of Mistral's files."""

_FLAGS: Final = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")


def facts_if_verbatim(
    files: frozenset[str], tokenizer: Mapping[str, Any], config: Mapping[str, Any], template: str | None
) -> Facts | None:
    """Return what AutoTokenizer would know, if it provably uses the `tokenizer.json` as it is, else None.

    `files` are the names in the folder that decide, `tokenizer` and `config` the contents of `tokenizer.json` and
    `tokenizer_config.json`, `template` that of `chat_template.jinja`. Loader and digest are left empty. The rule
    was read from AutoTokenizer, PreTrainedTokenizerBase._from_pretrained and TokenizersBackend of transformers 5.23.
    """
    if not files <= _VERBATIM_FILES or not set(config) <= _HARMLESS_KEYS:
        return None
    if config.get("tokenizer_class") not in _VERBATIM_CLASSES:
        return None
    if tokenizer.get("padding") is not None:  # it would name a pad token
        return None
    added = tokenizer["added_tokens"]
    if not all(isinstance(token, dict) for token in added):
        return None
    if _vocabulary_size(tokenizer) + len(added) > _MISTRAL_REGEX_FROM:
        return None
    if not _declares_the_same(config.get("added_tokens_decoder"), added):
        return None
    in_file = {token.get("content"): token for token in added if isinstance(token.get("content"), str)}
    named = {key: config[key] for key in NAMED_TOKENS if config.get(key) is not None}
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    templates = config.get("chat_template") if template is None else template
    if not isinstance(extra, list) or not (templates is None or isinstance(templates, str)):
        return None
    if not all(isinstance(token, str) and _is_special(in_file.get(token)) for token in named.values()):
        return None
    if not all(isinstance(token, str) and _is_special(in_file.get(token), is_plain=True) for token in extra):
        return None
    return Facts(
        class_name="TokenizersBackend",
        loader="",
        digest="",
        special_tokens=named,
        extra_special_tokens=tuple(extra),
        chat_templates={} if templates is None else {"default": templates},
        cleans_up=bool(config.get("clean_up_tokenization_spaces")) and tokenizer["model"].get("type") != "BPE",
    )


def _vocabulary_size(tokenizer: Mapping[str, Any]) -> int:
    model = tokenizer.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("type"), str):
        return _MISTRAL_REGEX_FROM + 1  # an older format: left to transformers
    return len(model.get("vocab") or ())


def _declares_the_same(decoder: object, added: list[dict[str, Any]]) -> bool:
    if decoder is None:
        return True
    if not isinstance(decoder, dict) or len(decoder) != len(added):
        return False
    declared = [decoder.get(str(token.get("id"))) for token in added]
    return all(
        isinstance(theirs, dict) and all(theirs.get(flag) == ours.get(flag) for flag in _FLAGS)
        for theirs, ours in zip(declared, added, strict=True)
    )


def _is_special(token: Mapping[str, Any] | None, *, is_plain: bool = False) -> bool:
    """Return whether a token is special, and, if it has to be `is_plain`, stays the same when it is added once more."""
    flags = ("normalized", "lstrip", "rstrip", "single_word") if is_plain else ()
    return token is not None and token.get("special") is True and not any(map(token.get, flags))
