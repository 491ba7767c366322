"""Rules about the tokens of choices in one tokenizer: how many, which ones, and whether they differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final

from pytest_promptfmt.profiles import Tokenizer
from pytest_promptfmt.rules import Family, Finding, ProfileView, Severity, rule
from pytest_promptfmt.rules.rule_views import finding, shown_tokens
from pytest_promptfmt.study.profile_view import ScoredContinuation

_LABEL: Final = 3
"""The maximum length of a label such as `(A)`, in characters."""

_NORMED: Final = ("acc_norm", "acc_bytes", "acc_mutual_info")
_TOKENS: Final = 8
_BLANK_BYTES: Final = frozenset({"<0x0A>", "<0x09>", "<0x0D>", "<0x20>"})


@rule("PF306", "labels-of-unequal-length", severity=Severity.WARNING, family=Family.TOKENS, scope="profile")
def labels_of_unequal_length(view: ProfileView) -> Iterator[Finding]:
    """Report labels with different numbers of tokens.

    Why: a label of two tokens has the product of two probabilities and loses against labels of one token. A metric that
    reads only the first token reads a part of the label. Reported as info for labels with digits, which often differ in
    length, and for an archetype, whose small vocabulary splits words that a real one does not.

    Fix: use labels of one token each; `promptfmt show --tokens` prints the tokens.

    Real: lm-evaluation-harness #663, #1396; sglang #523 and PR #835.
    """
    tokenizer = view.tokenizer
    if tokenizer is None:
        return
    for choices in _label_lists(view):
        lengths = [len(scored.ids) for scored in choices]
        if len(set(lengths)) > 1:
            has_digits = any(any(map(str.isdigit, scored.continuation)) for scored in choices)
            saw = ", ".join(_tokens(tokenizer, scored) for scored in choices[:_TOKENS])
            severity = Severity.INFO if has_digits or tokenizer.is_archetype else None
            yield finding(
                "labels have different numbers of tokens", saw, "doc_to_choice", choices[0].instance, severity=severity
            )
            return


@rule("PF307", "same-first-token", severity=Severity.INFO, family=Family.TOKENS, scope="profile")
def same_first_token(view: ProfileView) -> Iterator[Finding]:
    """Report labels that begin with the same token, such as `(` of `(A)` and `(B)`.

    Why: code that looks only at the first token of an answer, to save requests or to guide decoding, cannot distinguish
    them. A full log-likelihood can.

    Fix: use bare letters, or labels with different first tokens.

    Real: EuroEval turns log-probabilities off for such labels; lighteval #355.
    """
    tokenizer = view.tokenizer
    if tokenizer is None:
        return
    for choices in _label_lists(view):
        firsts = [scored.ids[len(_blank_ids(tokenizer, scored)) :][:1] for scored in choices]
        if all(firsts) and len(set(firsts)) < len(firsts) and len({scored.ids for scored in choices}) == len(choices):
            saw = ", ".join(_tokens(tokenizer, scored) for scored in choices[:_TOKENS])
            yield finding("labels begin with the same token", saw, "doc_to_choice", choices[0].instance)
            return


@rule("PF308", "choice-begins-another", severity=Severity.WARNING, family=Family.TOKENS, scope="profile")
def choice_begins_another(view: ProfileView) -> Iterator[Finding]:
    """Report a choice whose tokens are the first tokens of another choice.

    Why: the probability of the longer choice is that of the shorter one times a factor below one, so with `acc` it can
    never win. Reported as info if the task also has a normalized metric, and for built-in approximations, whose small
    vocabularies split words that are one token elsewhere.

    Fix: score letters instead of texts, or end every choice with the same punctuation.

    Real: guidance #564, #472; lm-evaluation-harness PR #411.
    """
    tokenizer = view.tokenizer
    if tokenizer is None:
        return
    metrics = view.study.metrics
    is_normed = not metrics or any(metric in _NORMED for metric in metrics)
    for choices in view.scored:
        for one, other in combinations(_of_one_prompt(choices), 2):
            short, long = sorted((one, other), key=lambda scored: len(scored.ids))
            if short.ids and len(short.ids) < len(long.ids) and long.ids[: len(short.ids)] == short.ids:
                yield finding(
                    "a choice begins with all tokens of another and never wins",
                    f"{short.continuation} | {long.continuation}",
                    "doc_to_choice",
                    short.instance,
                    severity=Severity.INFO if is_normed or tokenizer.is_archetype else None,
                )
                return


@rule("PF309", "choices-same-in-tokens", severity=Severity.ERROR, family=Family.TOKENS, scope="profile")
def choices_same_in_tokens(view: ProfileView) -> Iterator[Finding]:
    """Report two different choices with the same tokens.

    Why: for a tokenizer that drops case, accents or newlines they are one candidate, and the first one always wins.

    Fix: change the wording of the choices, or exclude such models.

    Real: `Yes` and `yes` are the same ids on bert-base-uncased; transformers #6150 for T5.
    """
    for choices in view.scored:
        for one, other in combinations(_of_one_prompt(choices), 2):
            if one.ids and one.ids == other.ids and one.continuation != other.continuation:
                if one.continuation.strip() == other.continuation.strip():
                    continue  # only spaces differ: a rule about choices reports it
                saw = f"{one.continuation} | {other.continuation}"
                yield finding("two choices have the same tokens", saw, "doc_to_choice", one.instance)
                return


@rule("PF310", "unknown-token", severity=Severity.ERROR, family=Family.TOKENS, scope="profile")
def unknown_token(view: ProfileView) -> Iterator[Finding]:
    """Report an answer with a character that is not in the vocabulary; as warning if it is in the prompt.

    Why: the unknown token represents any text. An answer with it is not scored by its own text, and two
    answers may become equal. Reported as info for an archetype, whose vocabulary is small.

    Fix: exclude such models from tasks in this script, or write the text with characters that they know.

    Real: braces and tildes are unknown to t5-small, Chinese to bert-base-uncased; tokenizers PR #1183.
    """
    tokenizer = view.tokenizer
    if tokenizer is None or tokenizer.unk_token_id is None:
        return
    unknown, text = tokenizer.unk_token_id, tokenizer.unk_token or ""
    if tokenizer.alphabet.spelling == "byte-level" or tokenizer.alphabet.byte_fallback:
        return  # these encode any text
    for choices in view.scored:
        for scored in choices:
            if unknown in scored.ids and text not in scored.continuation:
                yield finding(
                    "the answer contains text that is not in the vocabulary",
                    f"{scored.continuation}: {_tokens(tokenizer, scored)}",
                    "doc_to_choice" if len(choices) > 1 else "doc_to_target",
                    scored.instance,
                    severity=Severity.INFO if tokenizer.is_archetype else None,
                )
                return
    for instance, prompt in view.prompts:
        encoding = view.encode(prompt.text)
        if encoding is not None and unknown in encoding.ids and text not in prompt.text:
            start, end = encoding.offsets[encoding.ids.index(unknown)]
            span = prompt.span_at(start)
            yield finding(
                "the prompt contains text that is not in the vocabulary",
                prompt.text[max(0, start - 16) : end + 16],
                span.origin.keys if span is not None else (),
                instance,
                field=span.origin.field if span is not None else None,
                span=(start, end),
                severity=Severity.INFO if tokenizer.is_archetype else Severity.WARNING,
            )
            return


@rule("PF311", "encoded-as-bytes", severity=Severity.WARNING, family=Family.TOKENS, scope="profile")
def encoded_as_bytes(view: ProfileView) -> Iterator[Finding]:
    """Report an answer that is mostly encoded as bytes; as info if it has only some bytes.

    Why: a character that is not in the vocabulary becomes two to four tokens of one byte each. Such answers are long,
    their likelihood measures spelling more than knowledge, and a cut inside a character breaks the text. Reported as
    info for an archetype, whose vocabulary covers few scripts.

    Fix: score letters instead of texts for such models.

    Real: llama.cpp #28862, swift-transformers #387; normal for Chinese and emoji on Llama 2.
    """
    tokenizer = view.tokenizer
    if tokenizer is None:
        return
    worst: tuple[float, ScoredContinuation] | None = None
    for choices in view.scored:
        for scored in choices:
            if "«" in scored.continuation and not view.study.has_real_docs:
                continue  # the marks of synthetic docs
            share = _share_of_bytes(tokenizer, scored)
            if share > (worst[0] if worst is not None else 0):
                worst = (share, scored)
    if worst is not None:
        share, scored = worst
        yield finding(
            "the answer is mostly encoded as bytes" if share > 0.5 else "the answer is partly encoded as bytes",
            f"{scored.continuation[:24]}: {_tokens(tokenizer, scored)}",
            "doc_to_choice" if view.study.config.get("doc_to_choice") is not None else "doc_to_target",
            scored.instance,
            severity=None if share > 0.5 and not tokenizer.is_archetype else Severity.INFO,
        )


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
