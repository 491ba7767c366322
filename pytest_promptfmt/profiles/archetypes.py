"""The names of the small tokenizers that come with the package, and where they are.

Each approximates a family of real ones: trained by `scripts/make_archetypes.py` on text written for this project, with
the same pipeline and the same traps as the family, and a vocabulary a hundred times smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pytest_promptfmt.core.errors import TokenizerError, did_you_mean

PREFIX: Final = "archetype:"

FAMILIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "bytelevel-gpt2": "GPT-2, GPT-NeoX, Falcon, Phi-2: byte-level BPE, no BOS",
        "bytelevel-llama3": "Llama 3, OLMo 2: byte-level BPE whose words include the punctuation before them, BOS",
        "bytelevel-qwen": "Qwen, SmolLM: the same with single digits, NFC and ChatML marks, no BOS",
        "sentencepiece-gemma": "Gemma: SentencePiece BPE with byte fallback, adds no space, BOS",
        "sentencepiece-llama2": "Llama 2, Mistral 7B: SentencePiece BPE as loaded today, a space before the text, BOS",
        "sentencepiece-llama2-legacy": "Llama 2 and Phi-3 by their own files: a space before every stretch of text",
        "unigram-t5": "T5, ALBERT, XLNet: SentencePiece Unigram, runs of spaces folded, no byte fallback, EOS",
        "wordpiece-bert": "BERT: WordPiece, lower case, accents dropped, wrapped in [CLS] and [SEP]",
    }
)
"""Each archetype and the real tokenizers that it approximates."""

ARCHETYPES: Final[tuple[str, ...]] = tuple(FAMILIES)

_DATA: Final = Path(__file__).parent.parent / "data"

# A family's markers are special tokens of its archetype, so the two belong together. GPT-2, T5 and BERT do not chat.
_CHAT_TEMPLATES: Final[Mapping[str, str]] = {
    "bytelevel-llama3": "llama3",
    "bytelevel-qwen": "chatml",
    "sentencepiece-gemma": "gemma",
    "sentencepiece-llama2": "llama2",
}


def archetype_folder(name: str) -> Path:
    """Return the folder of the archetype of that name; raises TokenizerError with a did-you-mean for another name."""
    if name not in ARCHETYPES:
        raise TokenizerError(
            f"unknown tokenizer archetype {name!r}; known: {', '.join(ARCHETYPES)}",
            hint=did_you_mean(name, ARCHETYPES),
        )
    return _DATA / "tokenizers" / name


def archetype_chat_template(name: str) -> str | None:
    """Return the chat template of an archetype's family, written for this project; None for families without."""
    template = _CHAT_TEMPLATES.get(name)
    return None if template is None else (_DATA / "chat_templates" / f"{template}.jinja").read_text("utf-8")
