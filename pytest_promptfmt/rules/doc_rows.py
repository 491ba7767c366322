"""Rules about rows of the data that a template misreads: lists kept as text, texts shown twice, gold in one place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import choices_of, finding, question_message
from pytest_promptfmt.study import Study

_LONG: Final = 4000
_WORDS: Final = 5
_LISTED: Final = re.compile(r"^[ \t]*[(\[]?[A-Z\d][).\]:][ \t]*\{\{", re.MULTILINE)


@rule("PF723", "list-kept-as-text", severity=Severity.ERROR, family=Family.ANSWERS)
def list_kept_as_text(study: Study) -> Iterator[Finding]:
    """Report a column with a list written as text, of which a template takes elements.

    Why: `"['iron', 'gold']"` has an element for each character. A loop lists `[`, `'`, `i`, and `{{options[0]}}` is a
    bracket.

    Example:
        doc_to_text: "{{question}}{% for one in options %} {{one}}{% endfor %}"
        metadata: {promptfmt: {docs: [{question: Which?, options: "['tin', 'ice']", choices: [a, b], answer: 0}]}}

    Silent with:
        metadata: {promptfmt: {docs: [{question: Which?, options: [tin, ice], choices: [a, b], answer: 0}]}}

    Fix: parse the column in `process_docs`, with `ast.literal_eval` or `json.loads`.

    Real: MMMU and other datasets that keep their options as text.
    """
    for doc in study.real_docs[:1]:
        for name, value in doc.items():
            if not isinstance(value, str) or not value.startswith("[") or len(value) > _LONG or not _is_list(value):
                continue
            taken = re.compile(
                rf"\bin +{re.escape(str(name))}\b|\b{re.escape(str(name))} *(?:\[ *\w|\| *(?:join|first))"
            )
            for keys, spec in study.field_specs():
                if isinstance(spec, str) and taken.search(spec):
                    yield finding(
                        "a template takes elements of a list that is kept as text", value[:60], keys, 0, field=name
                    )
                    return


def _is_list(text: str) -> bool:
    try:
        return isinstance(ast.literal_eval(text), list)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return False


@rule("PF258", "text-shown-twice", severity=Severity.WARNING, family=Family.PROMPT)
def text_shown_twice(study: Study) -> Iterator[Finding]:
    r"""Report a sentence of the data that the question shows twice.

    Why: a column was printed twice, or the template says what the data say already. Prompts become longer, and it is
    not what other runs of the benchmark show.

    Example:
        doc_to_text: "{{question}}\n{{question}}\nAnswer:"
        metadata: {promptfmt: {docs: [{question: Which metal rusts in moist air?, choices: [tin, iron], answer: 1}]}}

    Silent with:
        doc_to_text: "{{question}}\nAnswer:"

    Fix: print it once.

    Real: IBM/unitxt #1920 (the instruction of the data beside that of the template).
    """
    for instance in study.real_instances[:1]:
        message = question_message(instance)
        if message is None:
            return
        texts = {name: value.strip() for name, value in instance.doc.items() if isinstance(value, str)}
        for name, text in texts.items():
            held = sum(text in other for key, other in texts.items() if key != name)
            if len(text.split()) >= _WORDS and not held and message.text.count(text) > 1:
                yield finding(
                    "a text of the data is shown twice in the question", text[:60], "doc_to_text", instance, field=name
                )
                return


@rule("PF724", "gold-in-one-place", severity=Severity.ERROR, family=Family.ANSWERS)
def gold_in_one_place(study: Study) -> Iterator[Finding]:
    r"""Report a target that is the same number for every doc, where the prompt lists the options in a fixed order.

    Why: the right option is always the last one, or the first. A model that answers `C` is always right, and
    few-shot examples show it so. Choices that are not listed in the prompt are scored one by one, and may have any
    order.

    Example:
        doc_to_text: "{{question}}\nA. {{choices[1]}}\nB. {{choices[0]}}\nAnswer:"
        doc_to_choice: ["A", "B"]
        doc_to_target: 1

    Silent with:
        doc_to_text: "{{question}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nAnswer:"
        doc_to_target: "{{answer % 2}}"

    Fix: shuffle the options in `process_docs`, by a seed.

    Real: bigscience-workshop/promptsource #418 (sciq).
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
