"""When a `tokenizer.json` alone is what AutoTokenizer makes of a folder, so that transformers need not be asked.

Many classes of transformers 5 keep only vocabulary and merges of the file and build the rest themselves, so the file
is taken for the truth only where nothing in the folder could say otherwise. Every doubt means no.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pytest_promptfmt.tokens.tokenizer import Facts

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
    """Return what AutoTokenizer would know, if it provably uses the `tokenizer.json` as it stands, else None.

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
    in_file = {token.get("content"): token for token in added}
    named = {key: config[key] for key in NAMED_TOKENS if config.get(key) is not None}
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    templates = config.get("chat_template") if template is None else template
    if not isinstance(extra, list) or not (templates is None or isinstance(templates, str)):
        return None
    if not all(isinstance(token, str) and _is_special(in_file.get(token)) for token in named.values()):
        return None
    if not all(isinstance(token, str) and _is_plain_special(in_file.get(token)) for token in extra):
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
        return _MISTRAL_REGEX_FROM + 1  # an older format: let transformers see to it
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


def _is_special(token: Mapping[str, Any] | None) -> bool:
    return token is not None and token.get("special") is True


def _is_plain_special(token: Mapping[str, Any] | None) -> bool:
    """Return whether adding the text as a special token once more would change nothing."""
    flags = ("normalized", "lstrip", "rstrip", "single_word")
    return token is not None and _is_special(token) and not any(token.get(flag) for flag in flags)
