"""Rules about elements of a question's layout: each label before its own column, each sentence and pair whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.rules import Finding, Study
from pytest_promptfmt.rules.columns import COMMON
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import finding, questions, scores_exact_match, written_texts
from pytest_promptfmt.study.layout import layout_of

_PAIRS: Final = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("text1", "text2"),
)
"""Columns that a prompt shows next to each other, and alike."""

_CUT_OFF: Final = re.compile(
    r"(?:\S+ ){4,}(?:about|of|on|the|in|for|with|regarding|an?) *(?=\n[ \t]*\n|\Z)", re.IGNORECASE
)
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
