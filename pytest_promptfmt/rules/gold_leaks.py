"""Rules about answers that are given away: by the question, by their form, or by their position."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import (
    choices_of,
    finding,
    question_message,
    without_delimiter,
)

_PUNCTUATION: Final = frozenset(".!?;,:…。！？")
_OPENING: Final = frozenset("\"'“‘«([")
_SIGNS: Final[tuple[tuple[str, str, Callable[[str], bool]], ...]] = (
    ("has outer whitespace", "has no outer whitespace", lambda text: text != text.strip()),
    ("ends with punctuation", "does not end with punctuation", lambda text: text.rstrip()[-1:] in _PUNCTUATION),
    ("is quoted or in brackets", "is not quoted or in brackets", lambda text: text.strip()[:1] in _OPENING),
    ("is in capitals", "is not in capitals", lambda text: len(text.strip()) > 1 and text.isupper()),
    ("is capitalized", "is not capitalized", lambda text: text.strip()[:1].isupper()),
)
"""A sign and its opposite, as a message has them, and whether a text has the sign."""

_LONGER: Final = 2
"""How many times longer than any other choice a conspicuous answer is."""

_WORD: Final = re.compile(r"\w+")
_SOME_WORD: Final = 5
"""The length of an answer that is more than a label, with a space on both sides."""

_LISTED: Final = re.compile(r"^[ \t]*[(\[]?[A-Z\d][).\]:][ \t]*\{\{", re.MULTILINE)
_PRINTED: Final = re.compile(r"\{\{-?\s*(.+?)\s*-?\}\}", re.DOTALL)
_OPTION: Final = re.compile(r"[(\[]?[A-Z\d][)\].][ \t]*$")


@rule("PF706", "leaked-gold", severity=Severity.WARNING, family=Family.ANSWERS)
def leaked_gold(study: Study) -> Iterator[Finding]:
    """Report a feature that only the gold choices have: whitespace, case, punctuation, length, or being in the prompt.

    Why: the feature gives the answer away. At least three docs must agree. If the answer is in a passage on purpose,
    ignore this rule with that reason.

    Fix: format all choices in the same way in the template or in `process_docs`; remove the passage with the answer.

    Real: lm-evaluation-harness #3500 (mmlu_pro); eval-framework #81 (sciq with its passage).
    """
    if len(study.real_instances) < 3 or not study.has_choices:
        return
    pairs, held = [], []
    for instance in study.real_instances:
        scored = [request for request in instance.requests if request.continuation and request.prompt is not None]
        golds = [without_delimiter(study, request.continuation) for request in scored if request.gold]
        others = [without_delimiter(study, request.continuation) for request in scored if not request.gold]
        if len(golds) != 1 or len(others) < 2:
            return
        pairs.append((golds[0], others))
        message = question_message(instance)
        held.append(_words(message.text) if message is not None else "")
    sign = _sign_of_gold(pairs)
    if sign is None and all(_holds_only(text, *answers) for text, answers in zip(held, pairs, strict=True)):
        sign = "appears in the prompt"
    if sign is not None:
        yield finding(f"in every doc, only the gold choice {sign}", pairs[0][0], "doc_to_choice", 0)


def _sign_of_gold(pairs: Sequence[tuple[str, Sequence[str]]]) -> str | None:
    """Return the sign that distinguishes the gold choice of every doc from its other choices, None without one."""
    for sign, opposite, has in _SIGNS:
        if all(has(gold) and not any(map(has, others)) for gold, others in pairs):
            return sign
        if all(not has(gold) and all(map(has, others)) for gold, others in pairs):
            return opposite
    if all(len(gold) >= _LONGER * max(map(len, others)) for gold, others in pairs):
        return "is much longer"
    if all(_LONGER * len(gold) <= min(map(len, others)) for gold, others in pairs):
        return "is much shorter"
    return None


def _holds_only(text: str, gold: str, others: Sequence[str]) -> bool:
    """Return whether a prompt contains the words of the gold choice, and of no other one."""
    if len(_words(gold)) < _SOME_WORD or _words(gold) not in text:
        return False
    return not any(_words(other) in text for other in others)


def _words(text: str) -> str:
    return f" {' '.join(_WORD.findall(text.casefold()))} "


@also("PF706", severity=Severity.ERROR)
def gold_in_question(study: Study) -> Iterator[Finding]:
    """Report a question that prints the answer: the same expression as `doc_to_target`, or the choice it points at.

    Fix: remove the answer from `doc_to_text`.
    """
    text, target = study.written.doc_to_text, study.written.doc_to_target
    if not isinstance(text, str) or not isinstance(target, str) or "{%" in text:
        return
    if not (study.generates or study.has_choices):
        return
    whole = _PRINTED.fullmatch(target.strip())
    gold = _bare(whole[1] if whole is not None else target if target.isidentifier() else "")
    if not gold or "question" in gold or gold.isdigit() or (study.generates and study.has_own_scorer):
        return  # a function may run the target, tests that the question shows, on what is generated
    for found in _PRINTED.finditer(text):
        shown = _bare(found[1])
        if (shown == gold or shown.endswith(f"[{gold}]")) and not _OPTION.search(text[: found.start()]):
            yield finding(
                "the question prints the answer", text[max(0, found.start() - 20) : found.end()], "doc_to_text"
            )
            return


def _bare(expression: str) -> str:
    return re.sub(r"\s|\|(?:trim|string|int|lower|upper)\b|^\(|\)$", "", expression)


@also("PF706", severity=Severity.ERROR)
def gold_in_one_place(study: Study) -> Iterator[Finding]:
    """Report a target that is the same number for every doc, where the prompt lists the options in a fixed order.

    Fix: shuffle the options in `process_docs`, by a seed.
    """
    target, text = study.written.doc_to_target, study.written.doc_to_text
    is_constant = isinstance(target, int) or (isinstance(target, str) and re.fullmatch(r"\{*\s*\d+\s*\}*", target))
    if not is_constant or isinstance(target, bool) or not study.has_choices:
        return
    if isinstance(text, str) and "{%" not in text and len(_LISTED.findall(text)) > 1:
        for instance in study.instances[:1]:
            if len(choices_of(study, instance)) > 1:
                yield finding(
                    "the right option is at the same place in every doc", str(target), "doc_to_target", instance
                )
