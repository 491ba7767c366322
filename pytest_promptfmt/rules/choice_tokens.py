"""Rules about the tokens of choices in one tokenizer: how many, which ones, and whether they differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, combinations
from typing import Final

from pytest_promptfmt.profiles import Tokenizer
from pytest_promptfmt.rules import Family, Finding, ProfileView, Severity
from pytest_promptfmt.rules.page import query
from pytest_promptfmt.rules.rule_views import finding, shown_tokens
from pytest_promptfmt.study.profile_view import ScoredContinuation

_LABEL: Final = 3
"""The maximum length of a label such as `(A)`, in characters."""

_NORMED: Final = ("acc_norm", "acc_bytes", "acc_mutual_info")
_TOKENS: Final = 8
_BLANK_BYTES: Final = frozenset({"<0x0A>", "<0x09>", "<0x0D>", "<0x20>"})


def with_tokenizer(view: ProfileView) -> Sequence[ProfileView]:
    """Return a profile that has a tokenizer."""
    return (view,) if view.tokenizer is not None else ()


token_query: Final = partial(query, of=with_tokenizer, at="doc_to_choice", family=Family.TOKENS, scope="profile")


@token_query("PF306", "labels have different numbers of tokens", name="labels-of-unequal-length")
def _labels_of_unequal_length(view: ProfileView) -> Iterator[Finding]:
    """Report labels with different numbers of tokens.

    Why: the probability of a label with two tokens is a product of two probabilities, so it loses against labels with
    one token. A metric that reads only the first token reads only a part of the label. The finding is an info for
    labels with digits, which often differ in length. It is also an info for built-in approximations: their small
    vocabulary splits more words than a real one.

    Fix: use labels of one token each; `promptfmt show --tokens` prints the tokens.

    Real: lm-evaluation-harness #663, #1396; sglang #523 and PR #835.
    """
    for choices in _label_lists(view):
        if len({len(scored.ids) for scored in choices}) > 1:
            has_digits = any(any(map(str.isdigit, scored.continuation)) for scored in choices)
            severity = Severity.INFO if has_digits or _is_archetype(view) else None
            yield finding("", _all_tokens(view, choices), doc=choices[0].instance, severity=severity)


@token_query("PF309", "two choices have the same tokens", name="choices-alike-in-tokens", severity=Severity.ERROR)
def _choices_same_in_tokens(view: ProfileView) -> Iterator[Finding]:
    """Report different choices with the same tokens, or a choice that begins with all tokens of another.

    Why: choices with the same tokens are one candidate, and the first one always wins. This happens with tokenizers
    that drop case, accents or newlines. A choice that begins with all tokens of a shorter one is always less likely, so
    it never wins with `acc`. This is an info if the task also has a normalized metric. Some engines read only the first
    token, to save requests or to guide decoding. They cannot distinguish labels such as `(A)` and `(B)`.

    Fix: change the wording of the choices, or exclude such models.

    Real: `Yes` and `yes` are the same ids on bert-base-uncased; guidance #564, lm-evaluation-harness PR #411.
    """
    for one, other in _pairs(view):
        are_texts_equal = one.continuation.strip() == other.continuation.strip()  # which a rule about choices reports
        if one.ids and one.ids == other.ids and not are_texts_equal:
            yield finding("", f"{one.continuation} | {other.continuation}", doc=one.instance)


@token_query("PF309", "a choice never wins, because its tokens begin with all tokens of another choice")
def _choice_begins_another(view: ProfileView) -> Iterator[Finding]:
    metrics = view.study.metrics
    is_normed = not metrics or any(metric in _NORMED for metric in metrics)
    for pair in _pairs(view):
        short, long = sorted(pair, key=lambda scored: len(scored.ids))
        if short.ids and len(short.ids) < len(long.ids) and long.ids[: len(short.ids)] == short.ids:
            severity = Severity.INFO if is_normed or _is_archetype(view) else None
            saw = f"{short.continuation} | {long.continuation}"
            yield finding("", saw, doc=short.instance, severity=severity)


@token_query("PF309", "labels begin with the same token", severity=Severity.INFO)
def _same_first_token(view: ProfileView) -> Iterator[Finding]:
    for choices in _label_lists(view):
        firsts = [scored.ids[len(_blank_ids(tokenizer_of(view), scored)) :][:1] for scored in choices]
        if all(firsts) and len(set(firsts)) < len(firsts) and len({scored.ids for scored in choices}) == len(choices):
            yield finding("", _all_tokens(view, choices), doc=choices[0].instance)


@token_query(
    "PF310", "the answer contains text that is not in the vocabulary", name="not-in-vocabulary", severity=Severity.ERROR
)
def _unknown_token(view: ProfileView) -> Iterator[Finding]:
    """Report a character that is not in the vocabulary: an error in an answer, a warning in a prompt.

    Why: the unknown token stands for any text. An answer with this token is not scored by its own text, and two answers
    may become equal. Other tokenizers encode such a character as the tokens of its two to four bytes. The likelihood
    of the answer then measures spelling more than knowledge. The finding is an info for built-in approximations, whose
    vocabulary is small.

    Fix: exclude such models from tasks in this script, or write the text with characters that they know.

    Real: braces and tildes are unknown to t5-small, Chinese to bert-base-uncased; llama.cpp #28862 (bytes).
    """
    tokenizer = tokenizer_of(view)
    unknown, text = tokenizer.id_of_named("unk_token"), tokenizer.special_tokens.get("unk_token", "")
    if unknown is None or tokenizer.alphabet.spelling == "byte-level" or tokenizer.alphabet.byte_fallback:
        return  # the last two encode any text
    for scored in chain.from_iterable(view.scored):
        if unknown in scored.ids and text not in scored.continuation:
            saw = f"{scored.continuation}: {_tokens(tokenizer, scored)}"
            severity = Severity.INFO if tokenizer.is_archetype else None
            yield finding("", saw, answer_key(view), scored.instance, severity=severity)
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


@token_query("PF310", "the answer is mostly encoded as bytes")
def _encoded_as_bytes(view: ProfileView) -> Iterator[Finding]:
    """Report an answer that is encoded mostly as bytes; it is an info if only a part is."""
    tokenizer, is_real = tokenizer_of(view), view.study.has_real_docs
    scored = [one for one in chain.from_iterable(view.scored) if is_real or "«" not in one.continuation]  # its own mark
    shares = [_share_of_bytes(tokenizer, one) for one in scored]
    share = max(shares, default=0)
    if share > 0:
        worst = scored[shares.index(share)]
        yield finding(
            "" if share > 0.5 else "the answer is partly encoded as bytes",
            f"{worst.continuation[:24]}: {_tokens(tokenizer, worst)}",
            answer_key(view),
            worst.instance,
            severity=None if share > 0.5 and not tokenizer.is_archetype else Severity.INFO,
        )


def tokenizer_of(view: ProfileView) -> Tokenizer:
    """Return the tokenizer of a profile that has one."""
    assert view.tokenizer is not None
    return view.tokenizer


def _is_archetype(view: ProfileView) -> bool:
    return tokenizer_of(view).is_archetype


def answer_key(view: ProfileView) -> str:
    """Return the key of the scored answers."""
    return "doc_to_choice" if view.study.config.get("doc_to_choice") is not None else "doc_to_target"


def _all_tokens(view: ProfileView, choices: Sequence[ScoredContinuation]) -> str:
    return ", ".join(_tokens(tokenizer_of(view), scored) for scored in choices[:_TOKENS])


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


def _blank_ids(tokenizer: Tokenizer, scored: ScoredContinuation) -> tuple[int, ...]:
    """Return the ids before the first visible token."""
    for number, token in enumerate(scored.ids):
        if tokenizer.decode([token]).strip():
            return scored.ids[:number]
    return ()


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
