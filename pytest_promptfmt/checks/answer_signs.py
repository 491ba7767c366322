"""Rules about answers that give themselves away: by a sign, by the prompt, by their position in demonstrations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from pytest_promptfmt.checks.answers import without_delimiter
from pytest_promptfmt.checks.registry import check
from pytest_promptfmt.checks.views import question_message, shots_of
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.study import Study

_PUNCTUATION: Final = frozenset(".!?;,:…。！？")
_OPENING: Final = frozenset("\"'“‘«([")
_SIGNS: Final[tuple[tuple[str, Callable[[str], bool]], ...]] = (
    ("begins or ends with white space", lambda text: text != text.strip()),
    ("ends with punctuation", lambda text: text.rstrip()[-1:] in _PUNCTUATION),
    ("stands in quotation marks or brackets", lambda text: text.strip()[:1] in _OPENING),
    ("is written in capitals", lambda text: len(text.strip()) > 1 and text.isupper()),
    ("begins with a capital letter", lambda text: text.strip()[:1].isupper()),
)
_LONGER: Final = 2
"""How many times as long as any other choice an answer is that its length betrays."""

_WORD: Final = re.compile(r"\w+")
_SOME_WORD: Final = 5
"""Letters of an answer, with the blanks around it, that is no mere label."""


@check("PF706", "betrayed-gold", severity=Severity.WARNING, family=Family.ANSWERS)
def betrayed_gold(study: Study) -> Iterator[Finding]:
    r"""Report a sign that only the gold choices have: blanks, case, punctuation, length, or a place in the prompt.

    Why: whoever sees the sign needs no knowledge. At least three docs must agree. Where a passage is to be read, its
    words may well be the answer: say so in an ignore.

    Example:
        metadata:
          promptfmt:
            docs:
            - {question: Which rusts?, choices: [Iron., gold, zinc], answer: 0}
            - {question: Which is liquid?, choices: [iron, Mercury., tin], answer: 1}
            - {question: Which is yellow?, choices: [iron, tin, Gold.], answer: 2}

    Silent example:
        metadata:
          promptfmt:
            docs:
            - {question: Which rusts?, choices: [iron, gold, zinc], answer: 0}
            - {question: Which is liquid?, choices: [iron, mercury, tin], answer: 1}
            - {question: Which is yellow?, choices: [iron, tin, gold], answer: 2}

    Fix: treat all choices alike in the template or in `process_docs`; leave out the passage that tells the answer.

    Real: lm-evaluation-harness #3500 (mmlu_pro); eval-framework #81 (sciq with its passage).
    """
    if len(study.real_instances) < 3 or study.task.output_type != "multiple_choice":
        return
    told, held = [], []
    for instance in study.real_instances:
        scored = [request for request in instance.requests if request.continuation and request.prompt is not None]
        golds = [without_delimiter(study, request.continuation) for request in scored if request.gold]
        others = [without_delimiter(study, request.continuation) for request in scored if not request.gold]
        if len(golds) != 1 or len(others) < 2:
            return
        told.append((golds[0], others))
        message = question_message(instance)
        held.append(_words(message.text) if message is not None else "")
    sign = _betraying(told)
    if sign is None and all(_holds_only(text, *answers) for text, answers in zip(held, told, strict=True)):
        sign = "stands in the prompt"
    if sign is not None:
        yield Finding(
            message=f"of all choices only the right one {sign}, in every doc",
            saw=told[0][0],
            keys=("doc_to_choice",),
            doc=0,
        )


def _betraying(told: Sequence[tuple[str, Sequence[str]]]) -> str | None:
    """Return the sign that tells the gold choice of every doc from its other choices, None when there is none."""
    for sign, has in _SIGNS:
        if all(has(gold) and not any(map(has, others)) for gold, others in told):
            return sign
        if all(not has(gold) and all(map(has, others)) for gold, others in told):
            return f"is not one that {sign}"
    if all(len(gold) >= _LONGER * max(map(len, others)) for gold, others in told):
        return "is so long"
    if all(_LONGER * len(gold) <= min(map(len, others)) for gold, others in told):
        return "is so short"
    return None


def _holds_only(text: str, gold: str, others: Sequence[str]) -> bool:
    """Return whether the words of a prompt hold those of the gold choice, and of no other one."""
    if len(_words(gold)) < _SOME_WORD or _words(gold) not in text:
        return False
    return not any(_words(other) in text for other in others)


def _words(text: str) -> str:
    return f" {' '.join(_WORD.findall(text.casefold()))} "


@check("PF709", "same-gold-position", severity=Severity.WARNING, family=Family.ANSWERS)
def same_gold_position(study: Study) -> Iterator[Finding]:
    r"""Report four or more demonstrations whose right answer is always the same.

    Why: the demonstrations teach "always B" as well as the task. Where they are fixed, choose them so that the right
    positions differ.

    Example:
        num_fewshot: 4
        doc_to_choice: ["A", "B"]
        doc_to_target: "{{['A', 'B'][answer]}}"
        metadata:
          promptfmt:
            docs:
              test: [{question: Which metal rusts?, answer: 0}]
              fewshot:
              - {question: "1", answer: 1}
              - {question: "2", answer: 1}
              - {question: "3", answer: 1}
              - {question: "4", answer: 1}
              - {question: "5", answer: 1}

    Silent example:
        num_fewshot: 4
        doc_to_choice: ["A", "B"]
        doc_to_target: "{{['A', 'B'][answer]}}"
        metadata:
          promptfmt:
            docs:
              test: [{question: Which metal rusts?, answer: 0}]
              fewshot:
              - {question: "1", answer: 1}
              - {question: "2", answer: 0}
              - {question: "3", answer: 1}
              - {question: "4", answer: 0}
              - {question: "5", answer: 1}

    Fix: choose demonstrations with different answers.

    Real: hand-picked demonstrations of several benchmarks.
    """
    if study.docs is None or study.docs.fewshot_kind != "given" or study.shots < 4:
        return
    instances = study.instances if study.has_real_docs else study.instances[:1]
    answers = [shot.answer for instance in instances for shot in shots_of(instance)]
    if len(answers) >= 4 and len(set(answers)) == 1 and answers[0] and len(answers[0].strip()) <= 20:
        yield Finding(
            message="all demonstrations have the same answer",
            saw=answers[0],
            keys=("fewshot_config",),
        )
