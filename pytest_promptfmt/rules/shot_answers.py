"""Rules about few-shot examples and the question: labels, the form of answers, and repeated examples."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from pytest_promptfmt.core.prompt import Message
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import (
    Shot,
    finding,
    has_given_shots,
    listed_labels,
    question_message,
    scores_exact_match,
    severity_of_shots,
    shots_of,
)
from pytest_promptfmt.rules.shot_layout import ANNOUNCED
from pytest_promptfmt.study.layout import layout_of
from pytest_promptfmt.tasks import looks_for_answers

_STEPS: Final = re.compile(r"(?:step[- ]by[- ]step|chain[- ]of[- ]thought|reasoning)[^\n]{0,20}\Z", re.I)
_PLAIN: Final = re.compile(r"\w+|\{\{-?\s*[\w.\[\]'\"]+\s*-?\}\}")
"""A `doc_to_target` that is one column."""

_SENTENCE: Final = 6
"""Words of an answer that is a sentence."""

_FEW: Final = 3
"""Words of an answer without any reasoning."""


@rule("PF814", "shot-repeated", severity=Severity.WARNING, family=Family.FEWSHOT)
def shot_repeated(study: Study) -> Iterator[Finding]:
    """Report a few-shot example that the prompt shows twice.

    Why: it was copied and not changed. The prompt has one example less than intended, and the model sees one answer
    more often than the others.

    Fix: replace one of them.

    Real: hand-written examples, and few-shot splits with duplicate rows.
    """
    is_given = has_given_shots(study)
    for instance in study.demonstrated[:1] if is_given else ():
        seen: set[str] = set()
        for shot in shots_of(instance):
            text = f"{shot.question}{shot.answer}".strip()
            if text in seen and len(text) > 12:
                yield finding(
                    "a few-shot example is shown twice",
                    shot.question[-60:],
                    ("fewshot_config", "samples") if study.task.fewshot.samples is not None else ("fewshot_split",),
                    instance,
                )
                return
            seen.add(text)


@also("PF807")
def other_labels(study: Study) -> Iterator[Finding]:
    """Report few-shot examples that begin with another label than the question, or with other spaces after it.

    Fix: use the same labels in both.
    """
    for instance in () if study.has_guessed_text else study.with_shots[:1]:
        asked = question_message(instance)
        own = _first_label(asked) if asked is not None else None
        for shot in shots_of(instance):
            other = _first_label(shot.messages[0])
            if own is None or other is None or own == other:
                continue
            what = "another label than" if own[0] != other[0] else "another space after their label than"
            message = f"few-shot examples have {what} the question"
            saw = f"{''.join(other)!r} in a few-shot example, {''.join(own)!r} in the question"
            yield finding(message, saw, ("fewshot_config", "doc_to_text"), instance, severity=severity_of_shots(study))
            return


def _first_label(message: Message) -> tuple[str, str] | None:
    """Return the label before the first column of a question, and the space after it."""
    constant = ""
    for span in message.content:
        if span.origin.field is not None:
            label = layout_of(constant).cue
            return (label.name + label.colon, label.space) if label is not None else None
        constant += span.text
    return None


@also("PF807")
def answer_otherwise(study: Study) -> Iterator[Finding]:
    """Report few-shot examples that answer in sentences where the gold answers are single words or numbers.

    Fix: show the answer in the form that is scored, or add a filter.
    """
    if not study.generates or study.has_own_scorer or looks_for_answers(study.task):
        return
    if not scores_exact_match(study) or not study.has_real_docs:
        return
    golds = [instance.target for instance in study.real_instances]
    if not golds or not all(isinstance(gold, str) and len(gold.split()) == 1 for gold in golds):
        return
    for instance in study.demonstrated[:1]:
        answers = [shot.answer.strip() for shot in shots_of(instance) if shot.answer]
        if answers and all(len(answer.split()) >= _SENTENCE for answer in answers):
            yield finding(
                "few-shot examples answer in sentences, but single words are scored",
                f"{answers[0][:50]!r}, gold is {golds[0]!r}",
                ("fewshot_config", "doc_to_target"),
                instance,
                severity=severity_of_shots(study),
            )


@also("PF807", severity=Severity.ERROR)
def shots_of_another_kind(study: Study) -> Iterator[Finding]:
    """Report few-shot examples that answer with the label of an option where its text is scored, or the reverse.

    Fix: show the answer in the form that is scored.
    """
    if not study.generates or study.has_own_scorer or looks_for_answers(study.task) or not study.has_real_docs:
        return
    golds = [str(instance.target).strip() for instance in study.real_instances]
    for instance in study.demonstrated[:1] if scores_exact_match(study) and has_given_shots(study) else ():
        labels = listed_labels(instance)
        answers = [shot.answer.strip() for shot in shots_of(instance) if shot.answer]
        sides = [{text in labels for text in texts} for texts in (answers, golds)]
        if len(labels) > 1 and {True} in sides and {False} in sides:
            yield finding(
                "few-shot examples answer with labels or texts of options, and the other is scored",
                f"{answers[0][:50]!r}, gold is {golds[0][:50]!r}",
                ("fewshot_config", "doc_to_target"),
                instance,
                severity=severity_of_shots(study),
            )


@also("PF807")
def shots_without_reasoning(study: Study) -> Iterator[Finding]:
    """Report few-shot examples that have the bare answer after a cue for reasoning.

    Fix: give examples a separate `doc_to_target` in `fewshot_config`, with the reasoning and the sentence that the
    filters look for.
    """
    target, shots = study.written.doc_to_target, study.task.fewshot
    if not study.generates or study.has_own_scorer or not looks_for_answers(study.task):
        return
    if not scores_exact_match(study) or shots.samples is not None or shots.doc_to_target:
        return
    if not isinstance(target, str) or not _PLAIN.fullmatch(target.strip()):
        return
    if any(len(str(instance.target).split()) > _FEW for instance in study.real_instances):
        return
    for instance in study.with_shots[:1]:
        asked = question_message(instance)
        if asked is not None and _STEPS.search(asked.text.rstrip()) and any(shot.answer for shot in shots_of(instance)):
            yield finding(
                "few-shot examples have the bare answer where the prompt requests reasoning",
                f"{asked.text.rstrip()[-40:]} then {target.strip()}, which is compared as a whole",
                "doc_to_target",
                instance,
                severity=None if study.shots or ANNOUNCED.search(instance.prompts[0].text) else Severity.INFO,
            )


@rule("PF819", "delimiter-in-shots", severity=Severity.INFO, family=Family.FEWSHOT)
def delimiter_in_shots(study: Study) -> Iterator[Finding]:
    """Report a few-shot example with a column that contains the delimiter between examples.

    Why: the model sees more examples than there are, some without an answer. Where the delimiter is also what stops the
    answer, as it is by default, an answer that contains it ends early.

    Fix: choose a delimiter that no column contains, or replace it in `process_docs`.

    Real: passages with blank lines in tasks whose delimiter is a blank line.
    """
    delimiter = study.task.fewshot_delimiter
    is_given = has_given_shots(study)
    for instance in study.demonstrated[:1] if is_given and delimiter.strip(" ") else ():
        for shot in shots_of(instance):
            spans = (span for message in shot.messages for span in message.content)
            inside = next((span for span in spans if span.origin.field is not None and delimiter in span.text), None)
            if inside is not None:
                at = inside.text.index(delimiter)
                yield finding(
                    "a column of a few-shot example contains the delimiter between examples",
                    inside.text[max(0, at - 24) : at + len(delimiter) + 16],
                    "fewshot_delimiter",
                    instance,
                )
                return


@rule("PF841", "shot-answers-with-question", severity=Severity.ERROR, family=Family.FEWSHOT)
def shot_answers_with_question(study: Study) -> Iterator[Finding]:
    """Report few-shot examples whose answer is a text that the question before it prints.

    Why: the target names the column of the question, or the source of a translation instead of the translation. The
    examples teach the model to repeat the question. Choices are not reported: a question may list them.

    Fix: print the answer in `doc_to_target`, and in that of `fewshot_config`.

    Real: lukemelas/mtob #2 (examples of a translation that repeat the source).
    """
    written = study.config.get("fewshot_config")
    is_written = isinstance(written, Mapping) and "doc_to_target" in written
    if not (is_written or study.generates):
        return
    for instance in study.with_shots[:1]:
        shots = shots_of(instance)
        if len(shots) > 1 and all(shot.answer and _prints(shot, shot.answer.strip()) for shot in shots):
            yield finding(
                "few-shot examples answer with a text of their question",
                (shots[0].answer or "").strip()[:60],
                ("fewshot_config", "doc_to_target") if is_written else ("doc_to_target",),
                instance,
                severity=severity_of_shots(study),
            )


def _prints(shot: Shot, answer: str) -> bool:
    """Return whether a column that the question prints first is the answer, word for word."""
    spans = [span for message in shot.messages if message.role == "user" for span in message.content]
    first = next((span.text.strip() for span in spans if span.origin.field is not None), "")
    return first == answer
