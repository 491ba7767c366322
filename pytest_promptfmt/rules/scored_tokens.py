"""Rules about the tokens of one tokenizer: those of choices, and the boundary between a prompt and its answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, combinations
from typing import Final

from pytest_promptfmt.core.prompt import Prompt
from pytest_promptfmt.profiles import Tokenizer
from pytest_promptfmt.rules import Family, Finding, ProfileView, Severity
from pytest_promptfmt.rules.page import query
from pytest_promptfmt.rules.rule_views import finding, shown_tokens
from pytest_promptfmt.study.profile_view import ScoredContinuation, ends_every_text

_LABEL: Final = 3
"""The maximum length of a label such as `(A)`, in characters."""

_NORMED: Final = ("acc_norm", "acc_bytes", "acc_mutual_info")
_TAIL: Final = 24
_TOKENS: Final = 8
_BLANK_BYTES: Final = frozenset({"<0x0A>", "<0x09>", "<0x0D>", "<0x20>"})


def _with_tokenizer(view: ProfileView) -> Sequence[ProfileView]:
    """Return a profile that has a tokenizer."""
    return (view,) if view.tokenizer is not None else ()


_query = partial(query, of=_with_tokenizer, at="doc_to_choice", family=Family.TOKENS, scope="profile")


@_query("PF306", "labels have different numbers of tokens", name="labels-of-unequal-length")
def _labels_of_unequal_length(view: ProfileView) -> Iterator[Finding]:
    """Report labels with different numbers of tokens.

    Why: the probability of a label with two tokens is a product of two probabilities, so it loses against labels with
    one token. A metric that uses only the first token sees only a part of the longer label. The finding is an info if a
    label has digits, because such labels often differ in length. It is also an info if the tokenizer is a built-in
    approximation: its small vocabulary splits more words than a real one.

    Fix: use labels of one token each. The command `promptfmt show --tokens` prints the tokens.

    Real: lm-evaluation-harness #663, #1396; sglang #523 and PR #835.
    """
    for choices in _label_lists(view):
        if len({len(scored.ids) for scored in choices}) > 1:
            has_digits = any(any(map(str.isdigit, scored.continuation)) for scored in choices)
            severity = Severity.INFO if has_digits or _is_archetype(view) else None
            yield finding("", _all_tokens(view, choices), doc=choices[0].instance, severity=severity)


@_query("PF309", "two choices have the same tokens", name="choices-alike-in-tokens", severity=Severity.ERROR)
def _choices_same_in_tokens(view: ProfileView) -> Iterator[Finding]:
    """Report different choices with the same tokens, or a choice that begins with all tokens of another.

    Why: if two choices have the same tokens, the model cannot distinguish them, and the first one always wins. Some
    tokenizers remove letter case, accents or newlines, which makes choices equal. If a choice begins with all tokens of
    a shorter choice, it is always less likely than the shorter one. So it never wins with the metric `acc`. If the task
    also has a normalized metric, this is an info. Some engines use only the first token of a choice, to save requests
    or to guide decoding. These engines cannot distinguish labels such as `(A)` and `(B)`.

    Fix: change the wording of the choices, or do not use models with this tokenizer.

    Real: `Yes` and `yes` have the same token ids in bert-base-uncased; guidance #564, lm-evaluation-harness PR #411.
    """
    for one, other in _pairs(view):
        are_texts_equal = one.continuation.strip() == other.continuation.strip()  # which a rule about choices reports
        if one.ids and one.ids == other.ids and not are_texts_equal:
            saw = (
                f"{one.continuation!r} and {other.continuation!r} both have the tokens {_tokens(_tokenizer(view), one)}"
            )
            yield finding("", saw, doc=one.instance)


@_query("PF309", "a choice never wins, because it begins with all tokens of a shorter choice")
def _choice_begins_another(view: ProfileView) -> Iterator[Finding]:
    metrics = view.study.metrics
    is_normed = not metrics or any(metric in _NORMED for metric in metrics)
    for pair in _pairs(view):
        short, long = sorted(pair, key=lambda scored: len(scored.ids))
        if short.ids and len(short.ids) < len(long.ids) and long.ids[: len(short.ids)] == short.ids:
            severity = Severity.INFO if is_normed or _is_archetype(view) else None
            saw = f"{long.continuation!r} begins with all tokens of {short.continuation!r}"
            yield finding("", saw, doc=short.instance, severity=severity)


@_query("PF309", "labels begin with the same token", severity=Severity.INFO)
def _same_first_token(view: ProfileView) -> Iterator[Finding]:
    for choices in _label_lists(view):
        firsts = [_first_visible(_tokenizer(view), scored.ids) for scored in choices]
        are_others = len({scored.ids for scored in choices}) == len(choices)
        if are_others and None not in firsts and len(set(firsts)) < len(firsts):
            yield finding("", _all_tokens(view, choices), doc=choices[0].instance)


@_query(
    "PF310", "the answer contains text that is not in the vocabulary", name="not-in-vocabulary", severity=Severity.ERROR
)
def _unknown_token(view: ProfileView) -> Iterator[Finding]:
    """Report a character that is not in the vocabulary. In a prompt, the finding is a warning.

    Why: some tokenizers encode such a character as the unknown token, which can stand for any text. So the score of an
    answer with this token is not that of its own text, and two answers may be equal. Other tokenizers encode each of
    the two to four bytes of such a character as a token. The likelihood of the answer then measures spelling more than
    knowledge. The finding is an info if the tokenizer is a built-in approximation, because its vocabulary is small.

    Fix: use other characters, or do not use models with this tokenizer.

    Real: t5-small does not know braces and tildes, bert-base-uncased knows few Chinese characters; llama.cpp #28862
    (bytes).
    """
    tokenizer = _tokenizer(view)
    unknown, text = tokenizer.id_of_named("unk_token"), tokenizer.special_tokens.get("unk_token", "")
    if unknown is None or tokenizer.alphabet.spelling == "byte-level" or tokenizer.alphabet.byte_fallback:
        return  # the last two encode any text
    for scored in chain.from_iterable(view.scored):
        if unknown in scored.ids and text not in scored.continuation:
            saw = f"{scored.continuation!r} is encoded as {_tokens(tokenizer, scored)}"
            severity = Severity.INFO if tokenizer.is_archetype else None
            yield finding("", saw, _answer_key(view), scored.instance, severity=severity)
    for instance, prompt in view.prompts:
        encoding = view.encode(prompt.text)
        if encoding is not None and unknown in encoding.ids and text not in prompt.text:
            start, end = encoding.offsets[encoding.ids.index(unknown)]
            yield finding(
                "the prompt contains text that is not in the vocabulary",
                prompt.text[max(0, start - 16) : end + 16],
                prompt.span_at(start),
                instance,
                span=(start, end),
                severity=Severity.INFO if tokenizer.is_archetype else Severity.WARNING,
            )


@_query("PF310", "the answer is mostly encoded as bytes")
def _encoded_as_bytes(view: ProfileView) -> Iterator[Finding]:
    """Report an answer that is mostly encoded as bytes. The finding is an info if only a part of the answer is."""
    tokenizer, is_real = _tokenizer(view), view.study.has_real_docs
    scored = [one for one in chain.from_iterable(view.scored) if is_real or "«" not in one.continuation]  # its own mark
    shares = [_share_of_bytes(tokenizer, one) for one in scored]
    share = max(shares, default=0)
    if share > 0:
        worst = scored[shares.index(share)]
        yield finding(
            "" if share > 0.5 else "the answer is partly encoded as bytes",
            f"{worst.continuation[:24]!r} is encoded as {_tokens(tokenizer, worst)}",
            _answer_key(view),
            worst.instance,
            severity=None if share > 0.5 and not tokenizer.is_archetype else Severity.INFO,
        )


def _tokenizer(view: ProfileView) -> Tokenizer:
    assert view.tokenizer is not None
    return view.tokenizer


def _is_archetype(view: ProfileView) -> bool:
    return _tokenizer(view).is_archetype


def _answer_key(view: ProfileView) -> str:
    return "doc_to_choice" if view.study.config.get("doc_to_choice") is not None else "doc_to_target"


def _all_tokens(view: ProfileView, choices: Sequence[ScoredContinuation]) -> str:
    return f"tokens: {', '.join(_tokens(_tokenizer(view), scored) for scored in choices[:_TOKENS])}"


def _pairs(view: ProfileView) -> Iterator[tuple[ScoredContinuation, ScoredContinuation]]:
    """Yield each pair of choices of one prompt."""
    return chain.from_iterable(combinations(_of_one_prompt(choices), 2) for choices in view.scored)


def _label_lists(view: ProfileView) -> Iterator[Sequence[ScoredContinuation]]:
    """Yield the choices of each doc where all are labels: `A`, `(B)`, `10`."""
    for choices in view.scored:
        of_one = _of_one_prompt(choices)
        texts = [scored.continuation.strip() for scored in of_one]
        if len(set(texts)) > 1 and all(0 < len(text) <= _LABEL for text in texts):
            yield of_one


def _of_one_prompt(choices: Sequence[ScoredContinuation]) -> Sequence[ScoredContinuation]:
    return [scored for scored in choices if scored.request.prompt == choices[0].request.prompt]


def _tokens(tokenizer: Tokenizer, scored: ScoredContinuation) -> str:
    return shown_tokens(tokenizer, scored.ids[:_TOKENS])


def _share_of_bytes(tokenizer: Tokenizer, scored: ScoredContinuation) -> float:
    """Return the share of the text whose tokens are parts of characters."""
    alphabet = tokenizer.alphabet
    pieces = [tokenizer.piece(token) or "" for token in scored.ids]
    parts = [
        piece
        for piece in pieces
        if piece not in _BLANK_BYTES and (alphabet.is_byte_fallback(piece) or alphabet.is_part_of_character(piece))
    ]
    return sum(len(alphabet.bytes_of(piece)) for piece in parts) / max(1, len(scored.continuation.strip().encode()))


@_query(
    "PF301",
    "the end of the prompt and the answer form one token, so no token is left to score",
    severity=Severity.ERROR,
    name="nothing-left-to-score",
)
def _nothing_left_to_score(view: ProfileView) -> Iterator[Finding]:
    """Report an answer that has no token of its own after the tokens of the prompt are cut off.

    Why: lm-eval encodes prompt and answer together. Then it cuts off as many tokens as the prompt has when encoded
    alone. If the last character of the prompt and the answer form one token, such as `:A`, no token is left for the
    answer. The run then stops with an assertion error.

    Fix: move the last character of the prompt to the start of the answers.

    Real: lm-evaluation-harness #1297, #3336 and PR #4055; lighteval PR #354.
    """
    for scored in chain.from_iterable(view.scored):
        if not scored.ids and scored.continuation.strip():
            yield finding(
                "",
                f"prompt|answer: {scored.context[-_TAIL:]}|{scored.continuation}",
                _boundary_key(view),
                scored.instance,
            )


@_query("PF302", "", severity=Severity.ERROR, name="token-over-boundary")
def _token_over_boundary(view: ProfileView) -> Iterator[Finding]:
    """Report a token that crosses the boundary between prompt and answer.

    Why: lm-eval encodes prompt and answer together. Then it cuts off as many tokens as the prompt has when encoded
    alone. If `:` and the newline after it form one token, the model gets `Answer:` and `A`, but not the newline. The
    finding is then a warning, or an info if the model gets the right text in other tokens. With `split: pairwise`,
    prompt and answer are encoded separately. SentencePiece then adds a space that is not in the text. The finding is
    then an error, or a warning if the model gets the right text in other tokens.

    Fix: end the prompt with a visible character, and begin the answer with a space.

    Real: lm-evaluation-harness PR #63, #1053, #531 and #546 (76 % or 58 % on hellaswag, depending on
    how the prompt ends); TruthfulQA #11.
    """
    tokenizer = _tokenizer(view)
    is_apart = view.profile.split == "pairwise" and not ends_every_text(tokenizer)
    for scored in chain.from_iterable(view.scored):
        if not scored.ids or not (scored.pair.merged or is_apart):
            continue
        whole, given = _whole(tokenizer, scored), (*scored.pair.context_ids, *scored.ids)
        is_same_text = tokenizer.decode(given) == tokenizer.decode(whole)
        if scored.pair.merged:
            cut = len(scored.pair.context_ids)
            around = slice(max(0, cut - 3), cut + 3)
            what = "tokens" if is_same_text else "characters"
            message = (
                f"a token spans the prompt and the answer, so the scored {what} differ from those of the whole text"
            )
            scored_tokens, together = (shown_tokens(tokenizer, each[around]) for each in (given, whole))
            saw = f"scored tokens: {scored_tokens}; tokens of the whole text: {together}"
            severity = Severity.INFO if is_same_text else Severity.WARNING
            yield finding(message, saw, _boundary_key(view), scored.instance, severity=severity)
        elif given != whole:
            what = "gives other tokens" if is_same_text else "adds characters to it, such as a space"
            tokens = shown_tokens(tokenizer, scored.ids[:_TOKENS])
            saw = f"prompt|answer: {scored.context[-8:]}|{scored.continuation[:_TAIL]}; tokens of the answer: {tokens}"
            message, severity = f"encoding the answer separately {what}", Severity.WARNING
            at = _boundary_key(view)
            yield finding(message, saw, at, scored.instance, severity=severity if is_same_text else None)


@_query("PF303", "", name="space-before-choice")
def _space_before_choice(view: ProfileView) -> Iterator[Finding]:
    """Report answers that are scored with unwanted spaces before them.

    Why: after `Answer:`, a choice should begin with a space. After the generation prompt of a chat template, it should
    not: answers begin there without a space. If the target delimiter is a space, and the choice begins
    with one, there are two spaces before the answer. In most tokenizers, `A` has different tokens with no space, one
    space or two spaces before it. The finding is an info if the tokenizer is a built-in approximation. It is also an
    info for `output_type: loglikelihood`, where lm-eval adds no delimiter.

    Fix: remove the space at the start of the choices. In runs without a chat template, `target_delimiter` adds this
    space.

    Real: lm-evaluation-harness #2346 (fixed in #2475); the paper Mind the Gap: up to 11 points.
    """
    tokenizer, is_continued = _tokenizer(view), view.study.task.brings_delimiter
    for scored in chain.from_iterable(view.scored):
        text = scored.continuation
        spaces = len(text) - len(text.lstrip(" "))
        if not text.strip() or text.lstrip(" ")[:1] == "\n":
            continue
        if spaces != 2 and not (spaces == 1 and _begins_answer(view, scored)):
            continue
        if tokenizer.ids(scored.context + text) == tokenizer.ids(scored.context + text[1:]):
            continue
        tokens = shown_tokens(tokenizer, scored.ids[:_TOKENS])
        yield finding(
            f"the answer begins with {'two spaces' if spaces == 2 else 'a space right after the generation prompt'}",
            f"prompt|answer: {scored.context[-_TAIL:]}|{text[:_TAIL]}; tokens of the answer: {tokens}",
            _answer_key(view),
            scored.instance,
            severity=Severity.INFO if is_continued or tokenizer.is_archetype else None,
            do="run this task without a chat template: its target continues the prompt" if is_continued else "",
        )


@_query("PF304", "a choice and a few-shot answer begin with different tokens", name="tokens-unlike-shots")
def _tokens_unlike_shots(view: ProfileView) -> Iterator[Finding]:
    """Report a choice that begins with a different token than the same answer in a few-shot example.

    Why: few-shot examples make the tokens of their answers more likely. If an example has the answer ` A`, but the
    choice `A` is scored, the examples make the wrong token more likely. The finding is an info if the examples are text
    inside a user turn.

    Fix: use the same `target_delimiter` for few-shot examples and choices. If the chat template itself writes a space
    before each answer, put all examples into one turn with `fewshot_as_turns: false`.

    Real: lm-evaluation-harness #2346; lighteval #45 and #159.
    """
    tokenizer = _tokenizer(view)
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
                "the answer in the few-shot example begins with {}, but the choice with {}".format(*shown_and_scored),
                _boundary_key(view),
                scored.instance,
                severity=Severity.INFO if is_one_turn or tokenizer.is_archetype else None,
                do="put the examples into one turn (fewshot_as_turns: false): the template writes the space"
                if view.profile.is_chat and not is_one_turn
                else "use the same target_delimiter for few-shot examples and choices",
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
    tokens = zip(encoding.ids, encoding.offsets, strict=True)
    return next((token for token, (start, end) in tokens if start <= at < end), None)


def _first_visible(tokenizer: Tokenizer, ids: Sequence[int]) -> int | None:
    return next((token for token in ids if tokenizer.decode([token]).strip()), None)
