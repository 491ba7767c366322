"""A context and its continuation in tokens, split as the harnesses split them; and whole texts, which are not split.

`lm-eval` is TemplateLM._encode_pair of lm-eval 0.4.13 with the HFLM.tok_encode it calls; `pairwise` encodes the two
separately, as lm-eval does for encoder-decoder models and lighteval with `pairwise_tokenization`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from pytest_promptfmt.core.errors import TokenizerError, did_you_mean
from pytest_promptfmt.core.profile import SPLITS, Split
from pytest_promptfmt.profiles.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class EncodedPair:
    """The ids of a context and of the continuation that is scored after it.

    `moved` is the trailing whitespace of the context, which moves to the continuation. `merged` is whether the ids of
    only the context are not the first ids of the whole: a token spans the boundary, and the scored text is not the one
    that was meant. It is always False for `pairwise`.
    """

    context_ids: tuple[int, ...]
    continuation_ids: tuple[int, ...]
    moved: str
    merged: bool


def encode_pairs(
    tokenizer: Tokenizer,
    pairs: Iterable[tuple[str, str]],
    *,
    split: Split = "lm-eval",
    add_bos_token: bool | None = None,
    prefix_token_id: int | None = None,
) -> list[EncodedPair]:
    """Return each (context, continuation) in the tokens that the model gets.

    `add_bos_token` (for a tokenizer that has a BOS) and `prefix_token_id` are the arguments of lm-eval's HFLM. An empty
    context becomes the prefix token (the given one, or BOS, or EOS), unless the continuation starts with it. A
    continuation may have no tokens; lm-eval would stop there. Raises TokenizerError for an empty context without a
    prefix token, and for text that no tokenizer can encode.
    """
    if split not in SPLITS:
        raise TokenizerError(f"unknown split {split!r}; known: {', '.join(SPLITS)}", hint=did_you_mean(split, SPLITS))
    prefix = prefix_token(tokenizer) if prefix_token_id is None else prefix_token_id
    prefix_text = None if prefix is None else tokenizer.decode([prefix])

    def ids(text: str) -> tuple[int, ...]:
        # A chat template has written the prefix token: lm-eval 0.4.13 adds no special tokens then.
        if add_bos_token is None or (prefix_text is not None and text.startswith(prefix_text)):
            return _ids(tokenizer, text, prefix_text)
        # HFLM also passes the argument to AutoTokenizer, which then adds BOS before a text, and nothing else.
        bos = tokenizer.id_of_named("bos_token") if add_bos_token else None
        plain = tokenizer.ids(text, add_special_tokens=False)
        return plain if bos is None else (bos, *plain)

    def encoded(context: str, continuation: str) -> EncodedPair:
        kept = context.rstrip()
        moved, context_ids = context[len(kept) :], ids_of_context(kept)
        if split == "pairwise":
            scored = tokenizer.ids(moved + continuation, add_special_tokens=False)
            return EncodedPair(context_ids, scored, moved, merged=False)
        whole, end = ids(context + continuation), len(context_ids)
        return EncodedPair(context_ids, whole[end:], moved, merged=whole[:end] != context_ids)

    def alone(continuation: str) -> EncodedPair:
        scored = tokenizer.ids(continuation, add_special_tokens=False)
        if prefix is None:
            raise TokenizerError(
                f"the context is empty, and {tokenizer.name} has no BOS or EOS token that could begin it",
                hint="use a tokenizer with a BOS or EOS token, or a prompt that is not empty",
            )
        return EncodedPair((prefix,), scored[1:] if scored[:1] == (prefix,) else scored, "", merged=False)

    ids_of_context = cache(ids)  # contexts repeat, once for every choice
    return [encoded(context, continuation) if context else alone(continuation) for context, continuation in pairs]


class PairEncoder:
    """`encode_pairs` shared by all users of one task in one profile: each pair is encoded once."""

    def __init__(self, tokenizer: Tokenizer, split: Split = "lm-eval") -> None:
        self._tokenizer = tokenizer
        self._split = split
        self._known: dict[tuple[str, str], EncodedPair] = {}

    def __call__(self, pairs: Iterable[tuple[str, str]]) -> list[EncodedPair]:
        """Return the pairs as `encode_pairs` does, and raise what it raises."""
        wanted = list(pairs)
        new = [pair for pair in dict.fromkeys(wanted) if pair not in self._known]
        self._known.update(zip(new, encode_pairs(self._tokenizer, new, split=self._split), strict=True))
        return [self._known[pair] for pair in wanted]


def prefix_token(tokenizer: Tokenizer) -> int | None:
    """Return the id that lm-eval uses for an empty context: BOS, else EOS, else None."""
    bos = tokenizer.id_of_named("bos_token")
    return tokenizer.id_of_named("eos_token") if bos is None else bos


def digest_of_ids(ids: Sequence[int]) -> str:
    """Return 12 hexadecimal digits that change when any id does: the SHA-256 of the ids, joined by spaces."""
    return hashlib.sha256(" ".join(map(str, ids)).encode("ascii")).hexdigest()[:12]


LONGEST_LOOKED_AT: Final = 1_000_000
"""Characters of the longest text that reports and rules tokenize: beyond it that takes several seconds."""


def encode_prompts(tokenizer: Tokenizer, texts: Iterable[str]) -> list[tuple[int, ...]]:
    """Return the ids of prompts that a model is to continue.

    Special tokens are added unless the text begins with BOS (lm-eval 0.4.13, HFLM.tok_batch_encode, which checks only
    the first text of a batch). Raises TokenizerError for text that no tokenizer can encode.
    """
    return [_ids(tokenizer, text, tokenizer.special_tokens.get("bos_token")) for text in texts]


def encode_rolling(tokenizer: Tokenizer, texts: Iterable[str]) -> list[tuple[int, ...]]:
    """Return the ids of texts that are scored as a whole.

    Special tokens are added unless the text begins with the prefix token, BOS or else EOS (lm-eval 0.4.13,
    HFLM.tok_encode). Raises TokenizerError for text that no tokenizer can encode.
    """
    prefix = prefix_token(tokenizer)
    text_of_prefix = None if prefix is None else tokenizer.decode([prefix])
    return [_ids(tokenizer, text, text_of_prefix) for text in texts]


def _ids(tokenizer: Tokenizer, text: str, prefix: str | None) -> tuple[int, ...]:
    is_there = prefix is not None and text.startswith(prefix)
    return tokenizer.ids(text, add_special_tokens=not is_there)
