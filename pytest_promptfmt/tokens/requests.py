"""What a whole text becomes in tokens where nothing is split: the prompt of a generation, the text of a perplexity."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pytest_promptfmt.tokens.encoding import prefix_token
from pytest_promptfmt.tokens.tokenizer import Tokenizer

LONGEST_LOOKED_AT: Final = 1_000_000
"""Characters of the longest text that reports and rules look at in tokens: several seconds of work beyond it."""


def encode_prompts(tokenizer: Tokenizer, texts: Iterable[str]) -> list[tuple[int, ...]]:
    """Return the ids of prompts that a model is to continue.

    Special tokens are added unless the text begins with BOS (lm-eval 0.4.13, HFLM.tok_batch_encode, which looks at the
    first text of a batch alone). Raises TokenizerError for text that no tokenizer can encode.
    """
    return [_ids(tokenizer, text, tokenizer.bos_token) for text in texts]


def encode_rolling(tokenizer: Tokenizer, texts: Iterable[str]) -> list[tuple[int, ...]]:
    """Return the ids of texts that are scored as a whole.

    Special tokens are added unless the text begins with BOS or what stands in for it (lm-eval 0.4.13,
    HFLM.tok_encode). Raises TokenizerError for text that no tokenizer can encode.
    """
    prefix = prefix_token(tokenizer)
    text_of_prefix = None if prefix is None else tokenizer.decode([prefix])
    return [_ids(tokenizer, text, text_of_prefix) for text in texts]


def _ids(tokenizer: Tokenizer, text: str, prefix: str | None) -> tuple[int, ...]:
    is_there = prefix is not None and text.startswith(prefix)
    return tokenizer.ids(text, add_special_tokens=not is_there)
