"""Rules about the seam of a prompt and the answer that is scored after it, in the tokens of one tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pytest_promptfmt.checks.registry import check
from pytest_promptfmt.checks.views import shown_tokens
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.core.prompt import Prompt
from pytest_promptfmt.study import ProfileView
from pytest_promptfmt.study.profile_view import ScoredContinuation, ends_every_text
from pytest_promptfmt.tokens import Tokenizer

_TAIL: Final = 24
_TOKENS: Final = 8


@check("PF301", "nothing-left-to-score", severity=Severity.ERROR, family=Family.TOKENS, scope="profile")
def nothing_left_to_score(view: ProfileView) -> Iterator[Finding]:
    r"""Report an answer of which no token is left once the tokens of the prompt are cut off.

    Why: lm-eval encodes prompt and answer together and cuts at the length of the prompt alone. Where the last mark of
    the prompt and the answer are one token (`:A`, `(A`), the cut leaves nothing, and the run ends with a bare
    assertion.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {tokenizer: "archetype:bytelevel-llama3"}}
        # file: example.yaml
        doc_to_text: "{{question}}\nAnswer:\n("
        doc_to_choice: [A, B, C]
        target_delimiter: ""

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {tokenizer: "archetype:bytelevel-llama3"}}
        # file: example.yaml
        doc_to_text: "{{question}}\nAnswer:"
        doc_to_choice: [(A), (B), (C)]

    Fix: end the prompt before the mark that merges with the answer, and begin the answers with it.

    Real: lm-evaluation-harness #1297, #3336 and PR #4055; lighteval PR #354.
    """
    for scored in _each(view):
        if not scored.ids and scored.continuation.strip():
            yield Finding(
                message="the answer is one token with the end of the prompt: nothing is left to score",
                saw=f"{scored.context[-_TAIL:]}|{scored.continuation}",
                keys=_seam_keys(view),
                doc=scored.instance.index,
            )
            return


@check("PF302", "token-over-seam", severity=Severity.WARNING, family=Family.TOKENS, scope="profile")
def token_over_seam(view: ProfileView) -> Iterator[Finding]:
    r"""Report a token that reaches from the prompt into the answer, so that the model is given another text.

    Why: the tokens of the prompt alone and what is left of the whole are put together. With `Answer:` and a line break
    as one token of the whole, the model is given `Answer:` and `A` and never sees the line break. As info where the
    same text is only spelled with other tokens.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {tokenizer: "archetype:bytelevel-llama3"}}
        # file: example.yaml
        doc_to_text: "{{question}}\nAnswer:\n"
        doc_to_choice: [A, B, C]
        target_delimiter: ""

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {tokenizer: "archetype:bytelevel-llama3"}}
        # file: example.yaml
        doc_to_text: "{{question}}\nAnswer:"
        doc_to_choice: [A, B, C]

    Fix: end the prompt with a visible character, and begin the answer with a space.

    Real: lm-evaluation-harness PR #63, #1053; TruthfulQA #11; token healing in transformers PR #30081.
    """
    tokenizer = view.tokenizer
    if tokenizer is None:
        return
    for scored in _each(view):
        if not scored.pair.merged or not scored.ids:
            continue
        whole = _whole(tokenizer, scored)
        given = (*scored.pair.context_ids, *scored.ids)
        is_same_text = tokenizer.decode(given) == tokenizer.decode(whole)
        cut = len(scored.pair.context_ids)
        around = slice(max(0, cut - 3), cut + 3)
        yield Finding(
            message="prompt and answer meet inside a token, which is spelled otherwise"
            if is_same_text
            else "prompt and answer meet inside a token: what the model is given does not spell the text",
            saw=f"{shown_tokens(tokenizer, given[around])} for {shown_tokens(tokenizer, whole[around])}",
            keys=_seam_keys(view),
            doc=scored.instance.index,
            severity=Severity.INFO if is_same_text else None,
        )
        return


@check("PF303", "blank-before-choice", severity=Severity.WARNING, family=Family.TOKENS, scope="profile")
def blank_before_choice(view: ProfileView) -> Iterator[Finding]:
    r"""Report answers that are scored with a blank before them where none belongs, or with two.

    Why: choices that carry a blank of their own are right after `Answer:` and wrong after the generation prompt of a
    chat template, where every answer begins without one; beside a target delimiter they begin with two. In most
    tokenizers ` A`, `A` and two blanks with `A` are three different tokens.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {tokenizer: "archetype:bytelevel-qwen", chat_template: chatml}}
        # file: example.yaml
        doc_to_choice: [" A", " B", " C"]
        target_delimiter: ""

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {tokenizer: "archetype:bytelevel-qwen", chat_template: chatml}}
        # file: example.yaml
        doc_to_choice: [A, B, C]

    Fix: write choices without outer spaces, and leave the space to `target_delimiter`, which chat templates drop.

    Real: lm-evaluation-harness #2346 (fixed in #2475); the paper Mind the Gap: up to 11 points.
    """
    tokenizer = view.tokenizer
    if tokenizer is None:
        return
    for scored in _each(view):
        text = scored.continuation
        blanks = len(text) - len(text.lstrip(" "))
        if blanks == 0 or not text.strip() or text.lstrip(" ")[:1] == "\n":
            continue
        is_twice = blanks == 2
        if not is_twice and not (blanks == 1 and _begins_answer(view, scored)):
            continue
        wanted = text.lstrip(" ") if not is_twice else text[1:]
        if tokenizer.ids(scored.context + text) == tokenizer.ids(scored.context + wanted):
            continue
        yield Finding(
            message="the answer begins with two blanks"
            if is_twice
            else "the answer begins with a blank right after the generation prompt",
            saw=f"{scored.context[-_TAIL:]}|{text[:_TAIL]}: {shown_tokens(tokenizer, scored.ids[:_TOKENS])}",
            keys=("doc_to_choice" if view.study.config.get("doc_to_choice") is not None else "doc_to_target",),
            doc=scored.instance.index,
        )
        return


@check("PF304", "tokens-unlike-demonstrations", severity=Severity.WARNING, family=Family.TOKENS, scope="profile")
def tokens_unlike_demonstrations(view: ProfileView) -> Iterator[Finding]:
    r"""Report a choice that begins with another token than the same answer in a demonstration.

    Why: demonstrations raise the probability of the tokens they show. Where they show ` A` and the candidate is `A`,
    what was demonstrated is not what is scored. As info where demonstrations are text inside a turn of the user.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {tokenizer: "archetype:bytelevel-llama3"}}
        # file: example.yaml
        num_fewshot: 2
        doc_to_text: "{{question}}\nAnswer:"
        doc_to_choice: [A, B, C]
        doc_to_target: answer
        target_delimiter: "\n"
        fewshot_config: {target_delimiter: " "}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {tokenizer: "archetype:bytelevel-llama3"}}
        # file: example.yaml
        num_fewshot: 2
        doc_to_text: "{{question}}\nAnswer:"
        doc_to_choice: [A, B, C]
        doc_to_target: answer

    Fix: give demonstrations and candidates the same `target_delimiter`. Where a chat template writes the blank before
    demonstrated answers, show demonstrations as text in one turn with `fewshot_as_turns: false`.

    Real: lm-evaluation-harness #2346; lighteval #45 and #159.
    """
    tokenizer = view.tokenizer
    if tokenizer is None or not view.scored:
        return
    for scored in view.scored[0]:
        if scored.request.prompt is None:
            continue
        prompt = scored.instance.prompts[scored.request.prompt]
        shown = _demonstrated(prompt, scored.continuation.strip())
        candidate = _first_visible(tokenizer, scored.ids)
        if shown is None or candidate is None:
            continue
        demonstrated = _token_at(tokenizer, prompt.text, shown)
        if demonstrated is not None and demonstrated != candidate:
            shown_and_scored = [shown_tokens(tokenizer, [token]) for token in (demonstrated, candidate)]
            is_one_turn = view.profile.is_chat and not view.profile.fewshot_as_turns
            yield Finding(
                message="a choice begins with another token than the same answer in a demonstration",
                saw="{} is shown, {} is scored".format(*shown_and_scored),
                do="show demonstrations as text in one turn (fewshot_as_turns: false): the template lays out answers"
                if view.profile.is_chat and not is_one_turn
                else "give demonstrations and candidates the same target_delimiter",
                keys=_seam_keys(view),
                doc=scored.instance.index,
                severity=Severity.INFO if is_one_turn else None,
            )
            return


@check("PF305", "apart-unlike-together", severity=Severity.ERROR, family=Family.TOKENS, scope="profile")
def apart_unlike_together(view: ProfileView) -> Iterator[Finding]:
    r"""Report an answer that has other tokens by itself than after the prompt, where the two are encoded apart.

    Why: with `split: pairwise` prompt and answer become tokens each by itself. SentencePiece puts a blank before every
    text, so an answer that follows a line break is scored with a blank that is not there; elsewhere marks that belong
    together are torn apart, which is reported as a warning.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {tokenizer: "archetype:sentencepiece-llama2", split: pairwise}}
        # file: example.yaml
        doc_to_text: "{{question}}\nAnswer: ("
        doc_to_choice: [A, B, C]
        target_delimiter: ""

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {tokenizer: "archetype:sentencepiece-llama2", split: pairwise}}
        # file: example.yaml
        doc_to_text: "{{question}}\nAnswer:"
        doc_to_choice: [A, B, C]

    Fix: encode prompt and answer together (`split: lm-eval`), or begin the answer with a blank.

    Real: lm-evaluation-harness PR #531, #546 (hellaswag 76 % and 58 %); llama.cpp #7094.
    """
    tokenizer = view.tokenizer
    if tokenizer is None or view.profile.split != "pairwise" or ends_every_text(tokenizer):
        return
    for scored in _each(view):
        whole = _whole(tokenizer, scored)
        given = (*scored.pair.context_ids, *scored.ids)
        if given == whole or not scored.ids:
            continue
        is_same_text = tokenizer.decode(given) == tokenizer.decode(whole)
        tokens = shown_tokens(tokenizer, scored.ids[:_TOKENS])
        yield Finding(
            message="the answer by itself has a blank or text that it has not after the prompt"
            if not is_same_text
            else "the answer has other tokens by itself than after the prompt",
            saw=f"{tokens} for {scored.context[-8:]}|{scored.continuation[:_TAIL]}",
            keys=_seam_keys(view),
            doc=scored.instance.index,
            severity=Severity.WARNING if is_same_text else None,
        )
        return


def _each(view: ProfileView) -> Iterator[ScoredContinuation]:
    for scored in view.scored:
        yield from scored


def _begins_answer(view: ProfileView, scored: ScoredContinuation) -> bool:
    """Return whether an answer begins here without a blank: after a generation prompt that none ever follows."""
    facts = view.facts
    if facts is None or facts.answer_gap[:1] == " " or scored.request.prompt is None:
        return False
    messages = scored.instance.prompts[scored.request.prompt].messages
    return bool(messages) and messages[-1].role != "assistant"


def _seam_keys(view: ProfileView) -> tuple[str, ...]:
    return ("target_delimiter",) if "target_delimiter" in view.study.config else ("doc_to_text",)


def _whole(tokenizer: Tokenizer, scored: ScoredContinuation) -> tuple[int, ...]:
    """Return the ids of prompt and answer together, with special tokens as the prompt has them."""
    text = scored.context + scored.continuation
    plain = tokenizer.ids(text, add_special_tokens=False)
    has_plain = scored.pair.context_ids == tokenizer.ids(scored.context.rstrip(), add_special_tokens=False)
    return plain if has_plain else tokenizer.ids(text)


def _demonstrated(prompt: Prompt, answer: str) -> int | None:
    """Return the character at which a demonstration shows the answer."""
    at = 0
    for span in prompt.spans:
        if span.origin.part == "answer" and span.origin.shot is not None and span.text.strip() == answer:
            return at + len(span.text) - len(span.text.lstrip())
        at += len(span.text)
    return None


def _token_at(tokenizer: Tokenizer, text: str, at: int) -> int | None:
    """Return the id of the token that holds the character at `at`."""
    encoding = tokenizer.encode(text)
    for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
        if start <= at < end:
            return token
    return None


def _first_visible(tokenizer: Tokenizer, ids: Sequence[int]) -> int | None:
    for token in ids:
        if tokenizer.decode([token]).strip():
            return token
    return None
