"""Rules about the boundary between a prompt and the answer scored after it, in the tokens of one tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from pytest_promptfmt.core.prompt import Prompt
from pytest_promptfmt.profiles import Tokenizer
from pytest_promptfmt.rules import Family, Finding, ProfileView, Severity, rule
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import finding, shown_tokens
from pytest_promptfmt.study.profile_view import ScoredContinuation, ends_every_text

_TAIL: Final = 24
_TOKENS: Final = 8


@rule("PF301", "nothing-left-to-score", severity=Severity.ERROR, family=Family.TOKENS, scope="profile")
def nothing_left_to_score(view: ProfileView) -> Iterator[Finding]:
    """Report an answer that has no token left when the tokens of the prompt are cut off.

    Why: lm-eval encodes prompt and answer together, then cuts off as many tokens as the prompt has by itself. If the
    end of the prompt and the answer form one token (`:A`, `(A`), no token is left. The run stops with an assertion
    error.

    Fix: move the character that merges with the answer from the end of the prompt to the start of the answers.

    Real: lm-evaluation-harness #1297, #3336 and PR #4055; lighteval PR #354.
    """
    for scored in chain.from_iterable(view.scored):
        if not scored.ids and scored.continuation.strip():
            saw = f"{scored.context[-_TAIL:]}|{scored.continuation}"
            yield finding(
                "the answer merges with the prompt, leaving no token to score",
                saw,
                _boundary_key(view),
                scored.instance,
            )
            return


@rule("PF302", "token-over-boundary", severity=Severity.WARNING, family=Family.TOKENS, scope="profile")
def token_over_boundary(view: ProfileView) -> Iterator[Finding]:
    """Report a token that crosses the boundary between prompt and answer.

    Why: lm-eval encodes prompt and answer together, and cuts off as many tokens as the prompt has by itself. If `:` and
    the newline after it form one token, the model gets `Answer:` and `A`, and never sees the newline. With `split:
    pairwise` the two are encoded separately, and SentencePiece adds a space that is not in the text. The finding is an
    info if the text is the same and only its tokens differ.

    Fix: end the prompt with a visible character, and begin the answer with a space.

    Real: lm-evaluation-harness PR #63, #1053; TruthfulQA #11; PR #531, #546 (hellaswag 76 % and 58 %).
    """
    tokenizer = view.tokenizer
    if tokenizer is None:
        return
    for scored in chain.from_iterable(view.scored):
        if not scored.pair.merged or not scored.ids:
            continue
        whole = _whole(tokenizer, scored)
        given = (*scored.pair.context_ids, *scored.ids)
        is_same_text = tokenizer.decode(given) == tokenizer.decode(whole)
        cut = len(scored.pair.context_ids)
        around = slice(max(0, cut - 3), cut + 3)
        message = (
            "a token crosses the boundary between prompt and answer and is split"
            if is_same_text
            else "a token crosses the boundary between prompt and answer, and splitting it changes the text"
        )
        saw = f"{shown_tokens(tokenizer, given[around])} for {shown_tokens(tokenizer, whole[around])}"
        yield finding(
            message, saw, _boundary_key(view), scored.instance, severity=Severity.INFO if is_same_text else None
        )
        return


@rule("PF303", "space-before-choice", severity=Severity.WARNING, family=Family.TOKENS, scope="profile")
def space_before_choice(view: ProfileView) -> Iterator[Finding]:
    """Report answers that are scored with unwanted spaces before them.

    Why: a choice with a leading space fits after `Answer:`. It does not fit after the generation prompt of a chat
    template, where answers begin without a space. A target delimiter adds a second space. In most tokenizers, `A` is
    another token with no space, one space or two spaces before it. The finding is an info for built-in approximations
    of a tokenizer. It is also an info for `output_type: loglikelihood`, where lm-eval adds no delimiter.

    Fix: remove outer spaces from the choices; `target_delimiter` adds the space, and chat templates drop it.

    Real: lm-evaluation-harness #2346 (fixed in #2475); the paper Mind the Gap: up to 11 points.
    """
    tokenizer = view.tokenizer
    if tokenizer is None:
        return
    for scored in chain.from_iterable(view.scored):
        text = scored.continuation
        blanks = len(text) - len(text.lstrip(" "))
        if blanks == 0 or not text.strip() or text.lstrip(" ")[:1] == "\n":
            continue
        is_twice = blanks == 2
        is_continued = view.study.task.brings_delimiter
        if not is_twice and not (blanks == 1 and _begins_answer(view, scored)):
            continue
        wanted = text.lstrip(" ") if not is_twice else text[1:]
        if tokenizer.ids(scored.context + text) == tokenizer.ids(scored.context + wanted):
            continue
        yield finding(
            "the answer begins with two spaces"
            if is_twice
            else "the answer begins with a space right after the generation prompt",
            f"{scored.context[-_TAIL:]}|{text[:_TAIL]}: {shown_tokens(tokenizer, scored.ids[:_TOKENS])}",
            ("doc_to_choice" if view.study.config.get("doc_to_choice") is not None else "doc_to_target",),
            scored.instance,
            severity=Severity.INFO if is_continued or tokenizer.is_archetype else None,
            do="run this task without a chat template: its target continues the prompt" if is_continued else "",
        )
        return


@rule("PF304", "tokens-unlike-shots", severity=Severity.WARNING, family=Family.TOKENS, scope="profile")
def tokens_unlike_shots(view: ProfileView) -> Iterator[Finding]:
    """Report a choice that begins with another token than the same answer in a few-shot example.

    Why: few-shot examples raise the probability of the tokens they show. If they show ` A` and the candidate is `A`,
    the scored token is not the one they show. The finding is an info if the examples are text inside a user turn.

    Fix: use the same `target_delimiter` for few-shot examples and candidates. If a chat template writes the space
    before the answers of the examples, put the examples into one turn with `fewshot_as_turns: false`.

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
            yield finding(
                "a choice begins with another token than in a few-shot example",
                "the few-shot example has {}, but {} is scored".format(*shown_and_scored),
                _boundary_key(view),
                scored.instance,
                severity=Severity.INFO if is_one_turn or tokenizer.is_archetype else None,
                do="put few-shot examples into one turn (fewshot_as_turns: false): the template writes the space"
                if view.profile.is_chat and not is_one_turn
                else "use the same target_delimiter for few-shot examples and candidates",
            )
            return


@also("PF302", severity=Severity.ERROR, scope="profile")
def apart_unlike_together(view: ProfileView) -> Iterator[Finding]:
    """Report an answer whose tokens change because the profile encodes it separately from the prompt."""
    tokenizer = view.tokenizer
    if tokenizer is None or view.profile.split != "pairwise" or ends_every_text(tokenizer):
        return
    for scored in chain.from_iterable(view.scored):
        whole = _whole(tokenizer, scored)
        given = (*scored.pair.context_ids, *scored.ids)
        if given == whole or not scored.ids:
            continue
        is_same_text = tokenizer.decode(given) == tokenizer.decode(whole)
        tokens = shown_tokens(tokenizer, scored.ids[:_TOKENS])
        yield finding(
            "encoding the answer separately from the prompt adds text to the answer"
            if not is_same_text
            else "encoding the answer separately from the prompt gives other tokens",
            f"{tokens} for {scored.context[-8:]}|{scored.continuation[:_TAIL]}",
            _boundary_key(view),
            scored.instance,
            severity=Severity.WARNING if is_same_text else None,
        )
        return


def _begins_answer(view: ProfileView, scored: ScoredContinuation) -> bool:
    """Return whether an answer begins here without a space: after a generation prompt that no space follows."""
    facts = view.facts
    if facts is None or facts.answer_gap[:1] == " " or scored.request.prompt is None:
        return False
    messages = scored.instance.prompts[scored.request.prompt].messages
    return bool(messages) and messages[-1].role != "assistant"


def _boundary_key(view: ProfileView) -> str:
    return "target_delimiter" if "target_delimiter" in view.study.config else "doc_to_text"


def _whole(tokenizer: Tokenizer, scored: ScoredContinuation) -> tuple[int, ...]:
    """Return the ids of prompt and answer encoded together, with the special tokens of the prompt."""
    text = scored.context + scored.continuation
    plain = tokenizer.ids(text, add_special_tokens=False)
    has_plain = scored.pair.context_ids == tokenizer.ids(scored.context.rstrip(), add_special_tokens=False)
    return plain if has_plain else tokenizer.ids(text)


def _demonstrated(prompt: Prompt, answer: str) -> int | None:
    """Return the index of the character where a few-shot example shows the answer."""
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
