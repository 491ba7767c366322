"""Rules about the boundary between a prompt and the answer scored after it, in the tokens of one tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from pytest_promptfmt.core.prompt import Prompt
from pytest_promptfmt.profiles import Tokenizer
from pytest_promptfmt.rules import Finding, ProfileView, Severity
from pytest_promptfmt.rules.choice_tokens import answer_key, token_query, tokenizer_of
from pytest_promptfmt.rules.rule_views import finding, shown_tokens
from pytest_promptfmt.study.profile_view import ScoredContinuation, ends_every_text

_TAIL: Final = 24
_TOKENS: Final = 8


@token_query(
    "PF301",
    "the answer merges with the prompt, leaving no token to score",
    severity=Severity.ERROR,
    name="nothing-left-to-score",
)
def _nothing_left_to_score(view: ProfileView) -> Iterator[Finding]:
    """Report an answer that has no token left when the tokens of the prompt are cut off.

    Why: lm-eval encodes prompt and answer together, then cuts off as many tokens as the prompt has by itself. If the
    end of the prompt and the answer form one token (`:A`, `(A`), no token is left. The run stops with an assertion
    error.

    Fix: move the character that merges with the answer from the end of the prompt to the start of the answers.

    Real: lm-evaluation-harness #1297, #3336 and PR #4055; lighteval PR #354.
    """
    for scored in chain.from_iterable(view.scored):
        if not scored.ids and scored.continuation.strip():
            yield finding("", f"{scored.context[-_TAIL:]}|{scored.continuation}", _boundary_key(view), scored.instance)


@token_query("PF302", "", severity=Severity.ERROR, name="token-over-boundary")
def _token_over_boundary(view: ProfileView) -> Iterator[Finding]:
    """Report a token that crosses the boundary between prompt and answer.

    Why: lm-eval encodes prompt and answer together, and cuts off as many tokens as the prompt has by itself. If `:` and
    the newline after it form one token, the model gets `Answer:` and `A`, and never sees the newline. This is a
    warning, and an info if the text is the same and only its tokens differ. With `split: pairwise` the two are encoded
    separately, and SentencePiece adds a space that is not in the text. This is a warning if only the tokens differ.

    Fix: end the prompt with a visible character, and begin the answer with a space.

    Real: lm-evaluation-harness PR #63, #1053; TruthfulQA #11; PR #531, #546 (hellaswag 76 % and 58 %).
    """
    tokenizer = tokenizer_of(view)
    is_apart = view.profile.split == "pairwise" and not ends_every_text(tokenizer)
    for scored in chain.from_iterable(view.scored):
        if not scored.ids or not (scored.pair.merged or is_apart):
            continue
        whole, given = _whole(tokenizer, scored), (*scored.pair.context_ids, *scored.ids)
        is_same_text = tokenizer.decode(given) == tokenizer.decode(whole)
        if scored.pair.merged:
            cut = len(scored.pair.context_ids)
            around = slice(max(0, cut - 3), cut + 3)
            what = "is split" if is_same_text else "splitting it changes the text"
            message = f"a token crosses the boundary between prompt and answer, and {what}"
            saw = f"{shown_tokens(tokenizer, given[around])} for {shown_tokens(tokenizer, whole[around])}"
            severity = Severity.INFO if is_same_text else Severity.WARNING
            yield finding(message, saw, _boundary_key(view), scored.instance, severity=severity)
        elif given != whole:
            what = "gives other tokens" if is_same_text else "adds text to the answer"
            tokens = shown_tokens(tokenizer, scored.ids[:_TOKENS])
            saw = f"{tokens} for {scored.context[-8:]}|{scored.continuation[:_TAIL]}"
            message, severity = f"encoding the answer separately from the prompt {what}", Severity.WARNING
            at = _boundary_key(view)
            yield finding(message, saw, at, scored.instance, severity=severity if is_same_text else None)


@token_query("PF303", "", name="space-before-choice")
def _space_before_choice(view: ProfileView) -> Iterator[Finding]:
    """Report answers that are scored with unwanted spaces before them.

    Why: a choice with a leading space fits after `Answer:`. It does not fit after the generation prompt of a chat
    template, where answers begin without a space. A target delimiter adds a second space. In most tokenizers, `A` is
    another token with no space, one space or two spaces before it. The finding is an info for built-in approximations
    of a tokenizer. It is also an info for `output_type: loglikelihood`, where lm-eval adds no delimiter.

    Fix: remove outer spaces from the choices; `target_delimiter` adds the space, and chat templates drop it.

    Real: lm-evaluation-harness #2346 (fixed in #2475); the paper Mind the Gap: up to 11 points.
    """
    tokenizer, is_continued = tokenizer_of(view), view.study.task.brings_delimiter
    for scored in chain.from_iterable(view.scored):
        text = scored.continuation
        spaces = len(text) - len(text.lstrip(" "))
        if not text.strip() or text.lstrip(" ")[:1] == "\n":
            continue
        if spaces != 2 and not (spaces == 1 and _begins_answer(view, scored)):
            continue
        if tokenizer.ids(scored.context + text) == tokenizer.ids(scored.context + text[1:]):
            continue
        yield finding(
            f"the answer begins with {'two spaces' if spaces == 2 else 'a space right after the generation prompt'}",
            f"{scored.context[-_TAIL:]}|{text[:_TAIL]}: {shown_tokens(tokenizer, scored.ids[:_TOKENS])}",
            answer_key(view),
            scored.instance,
            severity=Severity.INFO if is_continued or tokenizer.is_archetype else None,
            do="run this task without a chat template: its target continues the prompt" if is_continued else "",
        )


@token_query("PF304", "a choice begins with another token than in a few-shot example", name="tokens-unlike-shots")
def _tokens_unlike_shots(view: ProfileView) -> Iterator[Finding]:
    """Report a choice that begins with another token than the same answer in a few-shot example.

    Why: few-shot examples raise the probability of the tokens they show. If they show ` A` and the candidate is `A`,
    the scored token is not the one they show. The finding is an info if the examples are text inside a user turn.

    Fix: use the same `target_delimiter` for few-shot examples and candidates. If a chat template writes the space
    before the answers of the examples, put the examples into one turn with `fewshot_as_turns: false`.

    Real: lm-evaluation-harness #2346; lighteval #45 and #159.
    """
    tokenizer = tokenizer_of(view)
    is_one_turn = view.profile.is_chat and not view.profile.fewshot_as_turns
    for scored in view.scored[0] if view.scored else ():
        prompt = scored.instance.prompts[scored.request.prompt] if scored.request.prompt is not None else None
        shown = _demonstrated(prompt, scored.continuation.strip()) if prompt is not None else None
        candidate = _first_visible(tokenizer, scored.ids)
        if prompt is None or shown is None or candidate is None:
            continue
        demonstrated = _token_at(tokenizer, prompt.text, shown)
        if demonstrated is not None and demonstrated != candidate:
            shown_and_scored = [shown_tokens(tokenizer, [token]) for token in (demonstrated, candidate)]
            yield finding(
                "",
                "the few-shot example has {}, but {} is scored".format(*shown_and_scored),
                _boundary_key(view),
                scored.instance,
                severity=Severity.INFO if is_one_turn or tokenizer.is_archetype else None,
                do="put few-shot examples into one turn (fewshot_as_turns: false): the template writes the space"
                if view.profile.is_chat and not is_one_turn
                else "use the same target_delimiter for few-shot examples and candidates",
            )


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
