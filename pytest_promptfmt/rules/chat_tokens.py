"""Rules about a tokenizer by itself and together with its chat template. Run once per profile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from unicodedata import normalize

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.profiles import Tokenizer
from pytest_promptfmt.profiles.conversation import render_messages
from pytest_promptfmt.profiles.encoding import encode_pairs
from pytest_promptfmt.profiles.template_facts import template_facts
from pytest_promptfmt.profiles.template_trial import TemplateTrial
from pytest_promptfmt.profiles.trial_evidence import excerpt
from pytest_promptfmt.rules import Family, Finding, LoadedProfile, Severity, rule
from pytest_promptfmt.rules.chat_templates import on_trial
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import finding, info, shown_tokens
from pytest_promptfmt.study.profile_view import ends_every_text

_CONTROL: Final = re.compile(r"<\|.+\|>|<\uff5c.+\uff5c>|</?s>|<[a-z]+_of_[a-z]+>|<[|a-z]+\|?>(?<=\|>)")
"""Markers that should be one token each; `[INST]`, `<think>` and similar ones are plain text in many models."""


@rule("PF413", "marker-is-plain-text", severity=Severity.ERROR, family=Family.CHAT, scope="template")
def marker_is_plain_text(loaded: LoadedProfile) -> Iterator[Finding]:
    """Report control tokens of the chat template that the tokenizer encodes as plain text.

    Why: for a model that was trained with `<|im_start|>`, this is one token. For any other model, it is about six
    tokens. The template and the tokenizer then belong to different models. If the tokenizer knows some of the control
    tokens, the finding is an info: a few models intend this.

    Fix: use the chat template and the tokenizer of the same model.

    Real: gpt2 with the ChatML template: its prompts have no control token at all.
    """
    facts, tokenizer = loaded.facts, loaded.tokenizer
    if facts is None or tokenizer is None:
        return
    # The BOS that a template writes comes from the tokenizer, so it does not show whose template it is.
    marks = [mark for mark in facts.markers if _CONTROL.fullmatch(mark) and mark != facts.bos]
    plain = [mark for mark in marks if tokenizer.id_of(mark) not in tokenizer.ids(mark, add_special_tokens=False)]
    if plain:
        count = len(tokenizer.ids(plain[0], add_special_tokens=False))
        are_all = len(plain) == len(marks)
        message = f"the tokenizer encodes {'the' if are_all else 'some'} control tokens of the template as text"
        saw = f"{plain[0]} is encoded as {count} tokens" + (f"; also {', '.join(plain[1:4])}" if plain[1:] else "")
        yield finding(message, saw, loaded.place_of(plain[0]), severity=None if are_all else Severity.INFO)


@also("PF413", severity=Severity.ERROR, scope="template")
@on_trial()
def marker_looks_like_token(trial: TemplateTrial) -> Iterator[Finding]:
    """Report markers that look like a token of the vocabulary, but are written with other characters.

    Fix: copy the token from the tokenizer's configuration.
    """
    known = {_look(each): each for each in trial.added_tokens}
    unlike = [each for each in template_facts(trial).markers if each not in trial.added_tokens and _look(each) in known]
    if unlike:
        saw = ", ".join(f"{each} is not {known[_look(each)]}" for each in unlike)
        yield finding("a marker looks like a token, but has other characters", saw, trial.place_of(unlike[0]))


def _look(token: str) -> str:
    """Return a token with the usual characters for those that look alike."""
    return normalize("NFKC", token).replace("\u2581", "_").replace(" ", "").casefold()


@rule("PF414", "bos-twice", severity=Severity.ERROR, family=Family.CHAT, scope="template")
def bos_twice(loaded: LoadedProfile) -> Iterator[Finding]:
    """Report a chat prompt with two BOS tokens: the template writes one, and the tokenizer adds another.

    Why: no model was trained with two BOS tokens. If a prompt begins with BOS, lm-eval does not add a second BOS. But
    if whitespace comes before the BOS of the template, lm-eval does add one. The finding is an info if lm-eval does not
    add a second BOS, but other programs would.

    Fix: write BOS in the template, and set `add_special_tokens=False` where your code encodes the rendered prompt.

    Real: llama-cpp-python #1501; open-r1 PR #462; reward-bench #164; LiveCodeBench PR #146.
    """
    facts, tokenizer = loaded.facts, loaded.tokenizer
    bos = tokenizer.id_of_named("bos_token") if tokenizer is not None else None
    if facts is None or tokenizer is None or bos is None or bos == tokenizer.id_of_named("eos_token"):
        return
    ids = _prompt_ids(loaded, tokenizer)
    if ids.count(bos) > 1:
        yield finding(
            "chat prompts begin with two BOS tokens, one of the template and one of the tokenizer",
            f"first tokens: {shown_tokens(tokenizer, ids[:6])}",
            loaded.place_of("bos_token"),
        )
    elif facts.bos and tokenizer.ids("red")[:1] == (bos,):
        yield info(
            "the chat template writes BOS, and the tokenizer adds a second one",
            at=loaded.place_of("bos_token"),
            do="set add_special_tokens=False where your code encodes the rendered prompt",
        )


@also("PF414", severity=Severity.ERROR, scope="template")
@on_trial()
def bos_repeated(trial: TemplateTrial) -> Iterator[Finding]:
    """Report BOS in the middle of a prompt, or a template that begins some prompts with two BOS.

    Fix: write BOS once, before the first message.
    """
    bos = trial.profile.special_tokens.get("bos_token")
    text = trial.text("turns")
    if not bos or text is None:
        return
    if text.count(bos) < 2 or text.startswith(bos * 2):
        yield from _more_bos(trial, bos)
        return
    eos = trial.profile.special_tokens.get("eos_token") or bos
    follows = all(text[: found.start()].rstrip().endswith(eos) for found in list(re.finditer(re.escape(bos), text))[1:])
    yield finding(
        "BOS is written again after an end token" if follows else "BOS is written in the middle of the prompt",
        excerpt(text, text.rfind(bos)),
        trial.place_of("bos_token", bos),
        severity=Severity.INFO if follows else Severity.WARNING,
    )


def _more_bos(trial: TemplateTrial, bos: str) -> Iterator[Finding]:
    """Yield the first conversation that begins with two BOS, else the simplest ones with one inside."""
    begins = [each for each in trial.applicable() if (trial.whole(each) or "").startswith(bos * 2)][:1]
    holds = trial.simplest(lambda each: (trial.whole(each) or "").count(bos) > 1 and bos not in str(each.messages))
    for conversation in begins or holds:
        text, where = trial.whole(conversation) or "", "twice at the beginning" if begins else "in the middle"
        yield conversation.finding(
            f"BOS is written {where} of a conversation with {conversation.about}",
            bos * 2 if begins else excerpt(text, text.rfind(bos)),
            trial.place_of("bos_token", bos),
            Severity.ERROR if begins else Severity.WARNING,
        )


@rule("PF415", "bos-missing", severity=Severity.INFO, family=Family.CHAT, scope="template")
def bos_missing(loaded: LoadedProfile) -> Iterator[Finding]:
    """Report a chat template that writes no BOS, if the tokenizer adds BOS to every text.

    Why: most programs encode the output of a template without adding special tokens, so the model gets no BOS. Some
    models need BOS: without it, Gemma's perplexity was 5.9e9 instead of 3.5. In lm-eval, the tokenizer adds BOS.

    Fix: if the model's own template begins with `{{ bos_token }}`, begin this template with it, too.

    Real: lm-evaluation-harness #3333, PR #1465; llama.cpp PR #7107.
    """
    facts, tokenizer = loaded.facts, loaded.tokenizer
    bos = tokenizer.id_of_named("bos_token") if tokenizer is not None else None
    if facts is None or tokenizer is None or bos is None or tokenizer.ids("red")[:1] != (bos,):
        return
    if bos not in tokenizer.ids(_prompt(loaded), add_special_tokens=False):
        yield finding(
            "the chat template writes no BOS, but the tokenizer adds one", _prompt(loaded)[:40], loaded.place(1)
        )


@also("PF415", scope="template")
@on_trial()
def bos_in_some_prompts(trial: TemplateTrial) -> Iterator[Finding]:
    """Report conversations whose prompt has no BOS, although the template writes BOS before a single question.

    Fix: write `{{ bos_token }}` at the start of the template, before all branches.
    """
    bos = trial.profile.special_tokens.get("bos_token")
    if not bos or not (trial.text("question", generation_prompt=True) or "").startswith(bos):
        return

    for conversation in trial.simplest(lambda each: (text := trial.whole(each)) is not None and bos not in text):
        yield conversation.finding(
            f"BOS is missing in a conversation with {conversation.about}",
            excerpt(trial.whole(conversation) or ""),
            trial.place_of("bos_token", bos),
            Severity.WARNING,
        )


@rule("PF417", "end-token-scored", severity=Severity.ERROR, family=Family.TOKENS, scope="template")
def end_token_scored(loaded: LoadedProfile) -> Iterator[Finding]:
    """Report a tokenizer that adds an end token to every text, if the profile encodes prompt and answer together.

    Why: with `split: lm-eval`, the answer begins after as many tokens as the encoded prompt has. This number includes
    the prompt's end token, so the scored tokens are shifted by one. Often only the end token of the answer is left. For
    such models, lm-eval itself encodes prompt and answer separately.

    Fix: in the profile, set `split: pairwise`. If the model only generates answers, set `mode: generate`.

    Real: lm-eval 0.4.13, which for this reason encodes pairs separately for T5 and other encoder-decoder models.
    """
    tokenizer, profile = loaded.tokenizer, loaded.profile
    if tokenizer is None or profile.split != "lm-eval" or profile.mode == "generate":
        return
    if ends_every_text(tokenizer):
        saw = f"'red' is encoded as {shown_tokens(tokenizer, tokenizer.ids('red'))}"
        yield finding("the tokenizer adds an end token, which is scored as part of the answer", saw, profile.origin)


@rule("PF416", "lossy-tokenizer", severity=Severity.WARNING, family=Family.TOKENS, scope="template")
def lossy_tokenizer(loaded: LoadedProfile) -> Iterator[Finding]:
    """Report characters that a tokenizer does not distinguish: newlines, repeated spaces, capitals, accents.

    Why: if a tokenizer drops newlines, a list of options is a single line for the model, and code loses its structure.
    Composed and decomposed accents look the same, so the finding about them is an info.

    Fix: write prompts without the characters that the tokenizer does not preserve, or do not use models with this
    tokenizer.

    Real: transformers #6150 (T5 drops newlines); sentencepiece #208; llama.cpp #6980.
    """
    tokenizer = loaded.tokenizer
    if tokenizer is None:
        return
    probes = [(*probe, None) for probe in data_table("rules")["indistinct"]]
    probes += [(*probe, Severity.INFO) for probe in data_table("rules")["indistinct_by_normalization"]]
    for what, text, same, severity in probes:
        if tokenizer.ids(text, add_special_tokens=False) == tokenizer.ids(same, add_special_tokens=False):
            saw = f"{text!r} and {same!r} have the same tokens"
            message, at = f"the tokenizer does not preserve {what}", loaded.profile.origin
            do = f"write prompts in which {what} have no meaning, or do not use models with this tokenizer"
            yield finding(message, saw, at, do=do, severity=severity)


@rule("PF418", "file-unlike-auto-tokenizer", severity=Severity.INFO, family=Family.TOKENS, scope="template")
def file_unlike_auto_tokenizer(loaded: LoadedProfile) -> Iterator[Finding]:
    """Report a `tokenizer.json` that, used alone, gives other tokens than AutoTokenizer.

    Why: many tokenizer classes of transformers use only the vocabulary and merges of this file. They build the rest
    themselves. lm-eval and the snapshots use AutoTokenizer, so they use these classes. An engine that uses only the
    file gets other tokens, often for a leading space or after special tokens. The same prompt then gets another score
    in that engine.

    Fix: compare the tokens of your engine with those in the snapshots.

    Real: transformers #45488, #45701; the files of Llama 2 and Phi-3 mini.
    """
    tokenizer = loaded.tokenizer
    if tokenizer is None or not tokenizer.raw_ids:
        return
    text = min(tokenizer.raw_ids, key=lambda text: (text != " A", len(text), text))
    count = len(tokenizer.raw_ids)
    yield finding(
        "tokens from tokenizer.json differ from those of AutoTokenizer",
        f'"{text}" has the tokens {shown_tokens(tokenizer, tokenizer.ids(text))} with AutoTokenizer, but '
        f"{shown_tokens(tokenizer, tokenizer.raw_ids[text])} with tokenizer.json"
        + (f"; also {count - 1} more texts" * (count > 1)),
        loaded.profile.origin,
    )


def _prompt(loaded: LoadedProfile) -> str:
    return render_messages(loaded.profile, [{"role": "user", "content": "red"}])


def _prompt_ids(loaded: LoadedProfile, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the token ids of a chat prompt, with the special tokens that the profile's split adds."""
    try:
        (pair,) = encode_pairs(tokenizer, [(_prompt(loaded), "x")], split=loaded.profile.split)
    except PromptfmtError:
        return ()
    return pair.context_ids
