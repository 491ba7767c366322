"""Rules about a tokenizer by itself and together with its chat template. Said once per profile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.chat.conversation import render_messages
from pytest_promptfmt.chat.profile_loading import LoadedProfile
from pytest_promptfmt.checks.registry import check
from pytest_promptfmt.checks.views import shown_tokens
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.study.profile_view import ends_every_text
from pytest_promptfmt.tokens import Tokenizer
from pytest_promptfmt.tokens.encoding import encode_pairs

_CONTROL: Final = re.compile(r"<\|.+\|>|<\uff5c.+\uff5c>|</?s>|<[a-z]+_of_[a-z]+>|<[|a-z]+\|?>(?<=\|>)")
"""Markers that are meant to be one token each; `[INST]`, `<think>` and the like are plain text in many models."""

_PROBES: Final = (
    ("line breaks", "red\nblue", "red blue", None),
    ("runs of blanks", "red    blue", "red blue", None),
    ("capitals", "Red Blue", "red blue", None),
    ("accents", "caf\u00e9", "cafe", None),
    ("full-width letters", "\uff21\uff22", "AB", Severity.INFO),
    ("detached accents", "cafe\u0301", "caf\u00e9", Severity.INFO),
)


@check("PF413", "marker-is-plain-text", severity=Severity.ERROR, family=Family.CHAT, scope="template")
def marker_is_plain_text(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report control marks of the chat template that are ordinary text for the tokenizer.

    Why: `<|im_start|>` is one token for the model that was trained with it and six for any other. Template and
    tokenizer then belong to different models. As info where only some marks are unknown, which a few models want so.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {tokenizer: "archetype:bytelevel-gpt2", chat_template: chatml}}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {tokenizer: "archetype:bytelevel-qwen", chat_template: chatml}}

    Fix: take the chat template and the tokenizer from the same model.

    Real: gpt2 with ChatML has no control token at all in its prompts.
    """
    facts, tokenizer = loaded.facts, loaded.tokenizer
    if facts is None or tokenizer is None:
        return
    marks = [mark for mark in facts.markers if _CONTROL.fullmatch(mark)]
    plain = [mark for mark in marks if tokenizer.id_of(mark) not in tokenizer.ids(mark, add_special_tokens=False)]
    if plain:
        count = len(tokenizer.ids(plain[0], add_special_tokens=False))
        are_all = len(plain) == len(marks)
        yield Finding(
            message=f"{'the' if are_all else 'some'} control marks of the template are plain text for the tokenizer",
            saw=f"{plain[0]} is {count} tokens" + (f"; so are {', '.join(plain[1:4])}" if plain[1:] else ""),
            position=loaded.place_of(plain[0]),
            severity=None if are_all else Severity.INFO,
        )


@check("PF414", "bos-twice", severity=Severity.ERROR, family=Family.CHAT, scope="template")
def bos_twice(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat prompt that begins with two BOS tokens: the template writes one, the tokenizer adds another.

    Why: no model was trained on two. lm-eval looks whether the text begins with BOS and then adds none; where blanks
    stand before it, it does not see it. As info where only other programs would add the second one.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {tokenizer: "archetype:bytelevel-llama3", chat_template: mine.jinja}}
        # file: mine.jinja
        {{ '\n<|begin_of_text|>' }}{% for m in messages %}{{ m.role }}: {{ m.content }}
        {% endfor %}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {tokenizer: "archetype:bytelevel-qwen", chat_template: chatml}}

    Fix: encode what a chat template has written with `add_special_tokens=False`; let the template begin with BOS.

    Real: llama-cpp-python #1501; open-r1 PR #462; reward-bench #164; LiveCodeBench PR #146.
    """
    facts, tokenizer = loaded.facts, loaded.tokenizer
    bos = tokenizer.bos_token_id if tokenizer is not None else None
    if facts is None or tokenizer is None or bos is None or bos == tokenizer.eos_token_id:
        return
    ids = _prompt_ids(loaded, tokenizer)
    if ids.count(bos) > 1:
        yield Finding(
            message="chat prompts have BOS twice: the template writes it and the tokenizer adds it",
            saw=shown_tokens(tokenizer, ids[:6]),
            do="let the template begin with BOS, and encode what it writes without special tokens",
            position=loaded.place_of("bos_token"),
        )
    elif facts.bos and tokenizer.ids("red")[:1] == (bos,):
        yield Finding(
            message="the chat template writes BOS and the tokenizer would add another",
            do="encode what the template writes with add_special_tokens=False",
            position=loaded.place_of("bos_token"),
            severity=Severity.INFO,
        )


@check("PF415", "bos-missing", severity=Severity.INFO, family=Family.CHAT, scope="template")
def bos_missing(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template without BOS for a tokenizer that puts one before every text.

    Why: what a template has written is usually encoded without special tokens; the model then gets no BOS, and some
    models need it: Gemma's perplexity without BOS was 5.9e9 instead of 3.5. lm-eval lets the tokenizer add it.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {tokenizer: "archetype:bytelevel-llama3", chat_template: chatml}}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {tokenizer: "archetype:bytelevel-llama3", chat_template: llama3}}

    Fix: begin the template with `{{ bos_token }}`, if the model's own does.

    Real: lm-evaluation-harness #3333, PR #1465; llama.cpp PR #7107.
    """
    facts, tokenizer = loaded.facts, loaded.tokenizer
    bos = tokenizer.bos_token_id if tokenizer is not None else None
    if facts is None or tokenizer is None or bos is None or tokenizer.ids("red")[:1] != (bos,):
        return
    if bos not in tokenizer.ids(_prompt(loaded), add_special_tokens=False):
        yield Finding(
            message="the tokenizer puts BOS before every text, and the chat template writes none",
            saw=_prompt(loaded)[:40],
            position=loaded.place(1),
        )


@check("PF417", "end-token-scored", severity=Severity.ERROR, family=Family.TOKENS, scope="template")
def end_token_scored(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a tokenizer that ends every text with a token of its own, where prompt and answer are encoded together.

    Why: `split: lm-eval` cuts the whole at the length of the prompt alone, which has the end token as well: what is
    scored is shifted by one token, and mostly the end token itself. lm-eval encodes the two apart for such models.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {tokenizer: "archetype:unigram-t5"}}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {tokenizer: "archetype:unigram-t5", split: pairwise}}

    Fix: give the profile `split: pairwise`, or `mode: generate` when nothing is scored.

    Real: lm-eval 0.4.13 splits T5 and other encoder-decoder models pairwise for this reason.
    """
    tokenizer, profile = loaded.tokenizer, loaded.profile
    if tokenizer is None or profile.split != "lm-eval" or profile.mode == "generate":
        return
    if ends_every_text(tokenizer):
        yield Finding(
            message="the tokenizer ends every text with a token of its own, which is scored instead of the answer",
            saw=shown_tokens(tokenizer, tokenizer.ids("red")),
            position=profile.origin,
        )


@check("PF416", "lossy-tokenizer", severity=Severity.WARNING, family=Family.TOKENS, scope="template")
def lossy_tokenizer(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report what a tokenizer does not tell apart: line breaks, runs of blanks, capitals, accents.

    Why: without line breaks a list of options is one line for the model, and code is not code. Composed and detached
    accents, which look the same, are reported as info.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {tokenizer: "archetype:unigram-t5"}}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {tokenizer: "archetype:bytelevel-gpt2"}}

    Fix: normalize these characters first, or leave such models out.

    Real: transformers #6150 (T5 drops line breaks); sentencepiece #208; llama.cpp #6980.
    """
    tokenizer = loaded.tokenizer
    if tokenizer is None:
        return
    for what, text, same, severity in _PROBES:
        if tokenizer.ids(text, add_special_tokens=False) == tokenizer.ids(same, add_special_tokens=False):
            yield Finding(
                message=f"the tokenizer does not keep {what}",
                saw=f"{text} and {same} are the same tokens",
                position=loaded.profile.origin,
                severity=severity,
            )


@check("PF418", "file-unlike-auto-tokenizer", severity=Severity.INFO, family=Family.TOKENS, scope="template")
def file_unlike_auto_tokenizer(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a `tokenizer.json` that gives other tokens by itself than AutoTokenizer makes of its folder.

    Why: many classes of transformers take only vocabulary and merges from the file and build the rest themselves.
    lm-eval and snapshots go by AutoTokenizer; an engine that reads the file directly sees other tokens, often at a
    leading blank and after special tokens, so that the same prompt scores otherwise there.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {tokenizer: ./model}}
        # file: model/tokenizer_config.json
        {"tokenizer_class": "LlamaTokenizer"}
        # file: model/tokenizer.json
        {"added_tokens": [],
         "normalizer": {"type": "Prepend", "prepend": "▁"},
         "model": {"type": "BPE", "unk_token": "<unk>", "merges": ["▁ A"],
                   "vocab": {"<unk>": 0, "▁": 1, "A": 2, "▁A": 3}}}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {tokenizer: ./model}}
        # file: model/tokenizer_config.json
        {"tokenizer_class": "TokenizersBackend"}
        # file: model/tokenizer.json
        {"added_tokens": [],
         "normalizer": {"type": "Prepend", "prepend": "▁"},
         "model": {"type": "BPE", "unk_token": "<unk>", "merges": ["▁ A"],
                   "vocab": {"<unk>": 0, "▁": 1, "A": 2, "▁A": 3}}}

    Fix: compare the tokens of an engine that reads the file with those in the snapshots.

    Real: transformers #45488, #45701; the files of Llama 2 and Phi-3 mini.
    """
    tokenizer = loaded.tokenizer
    if tokenizer is None or not tokenizer.raw_ids:
        return
    text = min(tokenizer.raw_ids, key=lambda text: (text != " A", len(text), text))
    count = len(tokenizer.raw_ids)
    yield Finding(
        message="engines that read tokenizer.json by itself see other tokens than AutoTokenizer",
        saw=f'"{text}" is {shown_tokens(tokenizer, tokenizer.ids(text))}, and by the file alone '
        f"{shown_tokens(tokenizer, tokenizer.raw_ids[text])}" + (f"; so with {count - 1} more texts" * (count > 1)),
        position=loaded.profile.origin,
    )


def _prompt(loaded: LoadedProfile) -> str:
    return render_messages(loaded.profile, [{"role": "user", "content": "red"}])


def _prompt_ids(loaded: LoadedProfile, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return a chat prompt in tokens, special tokens added as the profile's split does."""
    try:
        (pair,) = encode_pairs(tokenizer, [(_prompt(loaded), "x")], split=loaded.profile.split)
    except PromptfmtError:
        return ()
    return pair.context_ids
