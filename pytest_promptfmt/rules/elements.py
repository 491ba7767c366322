"""Rules about elements of a question's layout: each label before its own column, each sentence and pair whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.prompt import join
from pytest_promptfmt.rules import Finding, Severity, Study
from pytest_promptfmt.rules.columns import COMMON
from pytest_promptfmt.rules.options import answer_labels
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import (
    continuations,
    finding,
    questions,
    scores_exact_match,
    severity_of_shots,
    shots_of,
    written_texts,
)
from pytest_promptfmt.study.contract import is_instruction
from pytest_promptfmt.study.layout import layout_of
from pytest_promptfmt.study.study import constant_spans

_PAIRS: Final = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("text1", "text2"),
)
"""Columns that a prompt shows next to each other, and alike."""

_CUT_OFF: Final = re.compile(
    r"(?:\S+ ){4,}(?:of|the|an?|(?<=with answers\) )(?:about|on|in)|(?<=questions )(?:about|on|in)) *(?=\n[ \t]*\n|\Z)",
    re.IGNORECASE,
)
_INTO: Final = re.compile(r"\b(?:in)?to ([A-Z]\w+)")
_ABOUT: Final = re.compile(r"\babout ([a-z][\w &-]{3,50}?)[.:]")
_IDENTIFIER: Final = re.compile(r"(?:\w+_)?(?:id|ids|uuid|guid|hash)|qid|uid", re.IGNORECASE)


def _labelled(study: Study) -> list[tuple[str, str]]:
    """Return the columns that the first question prints, each with the label directly before it ("" for none)."""
    found = []
    for _, message in questions(study.instances[:1]) if not study.has_guessed_text else ():
        constant = ""
        for span in message.content:
            if span.origin.field is None:
                constant += span.text
                continue
            label = layout_of(constant).cue
            is_alone = label is None and constant[-1:] in ("", "\n")
            if label is not None or is_alone:
                found.append((label.name if label is not None else "", span.origin.field))
            constant = span.text.rpartition("\n")[2]
    return found


@also("PF242")
def label_before_other_column(study: Study) -> Iterator[Finding]:
    """Report a label that is named like one column, or like its language, and is before another column.

    Fix: print the column that the label names.
    """
    labelled = _labelled(study)
    docs = study.docs
    columns = {str(name).casefold(): name for name in docs.columns} if docs is not None else {}
    messages = [message for _, message in questions(study.instances[:1])]
    printed = {str(span.origin.field).casefold() for message in messages for span in message.content}
    languages: dict[str, list[str]] = data_table("contract")["languages"]
    for label, field in labelled:
        name = label.casefold().replace(" ", "_")
        codes = {one for one in languages.get(name, ()) if one in columns}
        is_other = name in columns and field.casefold() in COMMON and name not in field.casefold()
        is_other_language = codes and any(field.casefold() in known for known in languages.values())
        is_misplaced = not printed & {name, *codes} or any(
            other and other != label and own.casefold() in (name, *codes) for other, own in labelled
        )
        if field.casefold() not in (name, *codes) and (is_other or is_other_language) and is_misplaced:
            saw = f"{label}: {{{{{field}}}}}"
            yield finding("a label is named like another column than the one after it", saw, "doc_to_text", field=field)
            return


@also("PF240")
def cue_of_other_target_language(study: Study) -> Iterator[Finding]:
    """Report a prompt that asks for a translation into another language than the label before the answer names.

    Fix: name the same language in both.
    """
    languages: dict[str, list[str]] = data_table("contract")["languages"]
    for instance, message in questions(study.instances[:1]) if not study.has_guessed_text else ():
        cue = layout_of(message.text).cue
        name = cue.name.casefold() if cue is not None else ""
        asked = {found.casefold() for found in _INTO.findall(join(constant_spans(instance)))} & set(languages)
        if name in languages and asked and name not in asked:
            saw = f"into {', '.join(sorted(asked)).title()}, and {name.title()}:"
            yield finding("the prompt requests another language than its label names", saw, "doc_to_text", instance)


@also("PF242", severity=Severity.ERROR)
def cue_in_answer(study: Study) -> Iterator[Finding]:
    """Report an answer that begins with the label that the prompt ends with, which is then there twice.

    Fix: remove the label from the answer.
    """
    for instance, message in questions(study.instances[:1]) if not study.has_guessed_text else ():
        cue = layout_of(message.text).cue
        answers = [instance.target] if study.generates else continuations(instance)
        texts = [answer.strip() for answer in answers if isinstance(answer, str)]
        if cue is not None and texts and all(text.startswith(f"{cue.name}{cue.colon}") for text in texts):
            saw = f"{cue.name}{cue.colon} and {texts[0][:40]}"
            at = "doc_to_target" if study.generates else "doc_to_choice"
            yield finding("the answer begins with the label that the prompt ends with", saw, at, instance)
            return


@also("PF242")
def cue_in_shot(study: Study) -> Iterator[Finding]:
    """Report an answer of a few-shot example that begins with the label before it, which is then there twice.

    Fix: remove the label from the answers of the examples.
    """
    for instance, asked in questions(study.with_shots[:1]) if not study.has_guessed_text else ():
        cue = layout_of(asked.text).cue
        begin = f"{cue.name}{cue.colon}" if cue is not None else "\0"
        answers = [shot.answer.strip() for shot in shots_of(instance) if shot.answer and begin in shot.question]
        twice = next((answer for answer in answers if answer.startswith(begin)), None)
        if twice is not None and not any(cue_in_answer(study)):
            message = "the answer of a few-shot example begins with the label before it"
            saw = f"{begin} and {twice[:40]}"
            yield finding(message, saw, "fewshot_config", instance, severity=severity_of_shots(study))


@also("PF232")
def instruction_after_cue(study: Study) -> Iterator[Finding]:
    """Report an instruction after the label at which the answer begins.

    Fix: put the instruction before the question, and end the prompt with the label.
    """
    for instance, message in questions(study.instances[:1]) if not study.has_guessed_text else ():
        constant = ""
        for span in message.content:
            constant = constant + span.text if span.origin.field is None else "\0"
        cues = [label for label in layout_of(constant).labels if label.name in answer_labels() and not label.value]
        after = constant[cues[-1].end :].strip() if cues else ""
        if after and is_instruction(after) and not study.task.gen_prefix:
            saw = f"{cues[-1].name}{cues[-1].colon} {after[:60]}"
            yield finding("an instruction comes after the cue for the answer", saw, "doc_to_text", instance)


@also("PF280")
def description_of_other_subject(study: Study) -> Iterator[Finding]:
    """Report a description that names another subject than the subset of the data and the task have.

    Fix: name the subject of this task; descriptions are often copied from a neighbouring one.
    """
    name, description = study.config.get("dataset_name"), study.written.description
    subject = _ABOUT.search(description) if isinstance(description, str) else None
    if subject is None or not isinstance(name, str) or name.casefold() not in study.task.name.casefold():
        return
    known = set(data_table("contract")["subjects"].split())
    own, named = (set(re.findall("[a-z]+", text.casefold())) for text in (name, subject[1]))
    if own & known and named & known and not own & named:
        saw = f"{subject[1]}; the data is {name}"
        yield finding("the description names another subject than the data", saw, "description")


@also("PF280")
def subset_of_other_language(study: Study) -> Iterator[Finding]:
    """Report a subset of the data, or a description, that names another language than the task's name.

    Fix: name the language of this task; lines are often copied from a neighbouring one.
    """
    name, description = study.config.get("dataset_name"), study.written.description
    known = {code: language for language, codes in data_table("contract")["languages"].items() for code in codes}
    named = {known[part] for part in re.split(r"[_\W]", study.task.name.casefold()) if part in known}
    language = known.get(name.casefold()) if isinstance(name, str) else None
    if language is not None and len(named) == 1 and language not in named and isinstance(name, str):
        saw = f"{name}; the task is {study.task.name}"
        yield finding("the subset of the data is of another language than the task", saw, "dataset_name")
    words = re.findall(r"[A-Z][a-z]+", description) if isinstance(description, str) else []
    described = {word.casefold() for word in words} & {*known.values()} - {"english"}
    if len(named) == 1 and described and not described & named:
        saw = f"{', '.join(sorted(described)).title()}; the task is {study.task.name}"
        yield finding("the description names another language than the task", saw, "description")


@also("PF240")
def label_of_pair_missing(study: Study) -> Iterator[Finding]:
    """Report a column of a pair such as premise and hypothesis without a label, where the other one has its own.

    Fix: add the label.
    """
    labels = {field.casefold(): label for label, field in _labelled(study)}
    for one, other in (*_PAIRS, *(pair[::-1] for pair in _PAIRS)):
        if labels.get(one, "").casefold().replace(" ", "") == one and labels.get(other) == "":
            saw = f"{labels[one]}: {{{{{one}}}}}, and {{{{{other}}}}} alone"
            yield finding("one column of a pair has a label, and the other has none", saw, "doc_to_text", field=other)
            return


@also("PF246")
def sentence_cut_off(study: Study) -> Iterator[Finding]:
    """Report a sentence that ends with a word such as `about` or `the`, directly before a blank line.

    Fix: finish the sentence, or print the column that belongs there.
    """
    for template, text in written_texts(study):
        found = _CUT_OFF.search(text)
        if found is not None and (template.keys[-1] == "description" or found.end() < len(text.rstrip())):
            yield finding("a sentence ends before its last word", found[0].strip()[-60:], template.keys)


@also("PF701")
def identifier_as_gold(study: Study) -> Iterator[Finding]:
    """Report the identifier of a doc as the answer that a model has to write.

    Fix: name the column with the answer.
    """
    target = study.written.doc_to_target
    if not study.generates or study.has_own_scorer or not isinstance(target, str) or not scores_exact_match(study):
        return
    name = target.strip().removeprefix("{{").removesuffix("}}").strip()
    golds = [str(doc[name]) for doc in study.real_docs if name in doc]
    are_distinct = len(golds) > 1 and len(set(golds)) == len(golds)
    if are_distinct and _IDENTIFIER.fullmatch(name) and all(any(map(str.isdigit, gold)) for gold in golds):
        yield finding("the gold answer is the identifier of the doc", f"{name}: {golds[0]}", "doc_to_target")
