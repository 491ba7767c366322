"""Rules about instructions that contradict the task: other labels, another number of options, another form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import (
    choices_of,
    finding,
    first_text,
    instruction_key,
    listed_labels,
    mapped,
    pattern,
    question_layout,
    question_message,
)
from pytest_promptfmt.study.layout import follow_each_other, layout_of, listing_of
from pytest_promptfmt.tasks import looks_for_answers

_LETTER: Final = pattern("instructions", "letter")
_ALONE: Final = pattern("instructions", "alone")
_RANGE: Final = pattern("instructions", "range")
_TOGETHER: Final = pattern("instructions", "together")
_LETTERS: Final = tuple("ABCDEFGHIJ")
_LISTED: Final = r"(?<!\w)[(\[]?{}(?:[)\].:,=、：-]+\s*\w|[ \t]+\w)"
"""A letter before the text of its option, with or without a space."""

_ASKS_LETTER: Final = pattern("instructions", "asks_letter")
_WORD: Final = r"[\"'“‘`*]*([^\W\d_][\w-]+)[\"'”’`*]*"
_NAMED: Final = pattern("instructions", "named")
_ASKED: Final = pattern("instructions", "asked")
"""A question that names its answers: `Is this tweet positive, neutral or negative?`."""

_NUMBERS: Final = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "ten": 10}
_COUNT: Final = pattern("instructions", "count")
_LEAST: Final = 2


@rule("PF286", "options-not-shown", severity=Severity.ERROR, family=Family.ANSWERS)
def options_not_shown(study: Study) -> Iterator[Finding]:
    """Report a prompt that asks for the letter of an option and lists no options.

    Why: the options are in another column than the one that is printed. The model can only guess a letter. Synthetic
    docs are skipped, because a real question may hold its options.

    Fix: list the options, each with its letter.

    Real: NVIDIA-NeMo/Skills #1523 (mmlu-prox), meridianlabs-ai/inspect_scout #77.
    """
    if study.is_multimodal or study.has_guessed_text:
        return
    for instance in study.real_instances[:1]:
        text = first_text(instance)
        if study.generates:
            scored = {str(one.target).strip() for one in study.real_instances}
        else:
            scored = {str(request.continuation).strip() for request in instance.requests}
        if not scored or not all(one in _LETTERS for one in scored):
            return
        if any(re.search(_LISTED.format(one), text) for one in sorted(scored)):
            return
        if _ASKS_LETTER.search(text):
            yield finding("the prompt requests a letter, but lists no options", text[-80:], "doc_to_text", instance)
        elif len(scored) > 1 and _has_bare_options(instance):
            message = "letters are scored, but the options have none"
            yield finding(message, text[-80:], "doc_to_text", instance)


def _has_bare_options(instance: Instance) -> bool:
    """Return whether the question shows all texts of a list in which no label is before any."""
    text = question_layout(instance).text
    lists = [value for value in instance.doc.values() if isinstance(value, list) and len(value) > 1]
    return listing_of(question_message(instance), instance.doc) is None and any(
        all(isinstance(one, str) and len(one.strip()) > 1 and one.strip() in text for one in value) for value in lists
    )


@also("PF249", severity=Severity.ERROR)
def labels_unlikelisted_labels(study: Study) -> Iterator[Finding]:
    """Report scored labels of another kind than the labels in the prompt."""
    for instance in study.instances[:1]:
        labels = [choice.strip().strip("().") for choice in choices_of(study, instance)] or _letters_written(study)
        if len(labels) < 2 or not follow_each_other(labels):
            return
        layout = question_layout(instance)
        lines = layout.listed or layout.listed_in_other_scripts
        listed = [option.label for option in lines] or list(layout.listed_inline)
        is_fixed, has_choices = _is_written_out(study), study.has_choices
        is_same = is_fixed or all(len(listed_labels(one)) > len(labels) for one in study.real_instances)
        message = do = ""
        if has_choices and is_same and len(listed) > len(labels) and listed[: len(labels)] == labels:
            message, do = "more options are listed than labels are scored", "score a label for each option"
        elif has_choices and is_fixed and 1 < len(listed) < len(labels) and listed == labels[: len(listed)]:
            message = "more labels are scored than options are listed"
        elif len(listed) == len(labels) and listed != labels:
            message = "the scored labels are not those of the listed options"
        if message:
            saw = f"{', '.join(listed)} are listed, {', '.join(labels)} are scored"
            severity = Severity.WARNING if len(listed) < len(labels) else None
            yield finding(message, saw, "doc_to_choice", instance, do=do, severity=severity)


def _letters_written(study: Study) -> list[str]:
    """Return the first letters, as many as options are listed, where all gold answers to write are one of them."""
    golds = {str(instance.target).strip() for instance in study.real_instances} if study.generates else set()
    count = len(listed_labels(study.instances[0])) if golds and not study.has_own_scorer else 0
    labels = [chr(ord("A") + number) for number in range(count)]
    is_shown = any(re.search(_LISTED.format(label), first_text(study.instances[0])) for label in labels)
    return labels if golds <= set(labels) and not is_shown and not looks_for_answers(study.task) else []


def _is_written_out(study: Study) -> bool:
    """Return whether the template lists its options one by one, the same for each doc."""
    text, choices = study.written.doc_to_text, study.written.doc_to_choice
    return isinstance(text, str) and isinstance(choices, list) and "{%" not in text and len(choices) > 1


@also("PF249")
def range_unlike_options(study: Study) -> Iterator[Finding]:
    """Report a prompt that names a last option other than the last one that it lists."""
    for instance in study.instances[:1]:
        text = study.own_text
        asked = _RANGE.search(text) or _TOGETHER.search(text)
        listed = listed_labels(instance)
        if asked is None or len(listed) < 2 or listed[0] != "A" or study.has_guessed_text:
            return
        last = asked[1][-1]
        constants = (text for template in study.templates for text in template.text.constants)
        if not study.has_real_docs and any(_ends_with_label(text, last) for text in constants):
            return  # a branch lists it, which the synthetic docs do not take
        if last != listed[-1]:
            saw = f"{asked[0][-30:]}, but the last one listed is {listed[-1]}"
            yield finding(
                "the last option that the prompt names is not the last one listed", saw, "doc_to_text", instance
            )


@also("PF714")
def named_labels(study: Study) -> Iterator[Finding]:
    """Report an instruction that names other labels than are scored: one more, one less, or those of another task."""
    choices = study.written.doc_to_choice
    if not isinstance(choices, list) or study.generates or study.has_guessed_text:
        return
    scored = {str(choice).strip().strip("\"'.").casefold() for choice in choices}
    if len(scored) < _LEAST or not all(re.fullmatch(r"[^\W\d_][\w-]+", one) for one in scored):
        return
    for instance in study.instances[:1]:
        text = study.own_text
        for found in _named_in(text):
            first, others, last = found.groups()[-4], found.groups()[-3], found.groups()[-1]
            named = [first, *re.findall(_WORD, others or ""), last]
            named_set = {one.casefold() for one in named}
            hidden = [one for one in scored if one not in named_set and not _has_word(text, one)]
            strange = [one for one in named if one.casefold() not in scored]
            is_other = not named_set & scored and re.match(r"classif|label|categori", found[1], re.IGNORECASE)
            if len(named_set) < _LEAST or (not named_set & scored and not is_other):
                continue
            if hidden:
                saw = f"{', '.join(named)}; scored are {', '.join(map(str, choices))}"
                yield finding(
                    "the instruction names other labels than are scored", saw, instruction_key(study), instance
                )
                return
            if len(strange) == 1 and len(named_set) > len(scored):
                saw = f"{strange[0]}; scored are {', '.join(map(str, choices))}"
                yield finding("the instruction names a label that is not scored", saw, instruction_key(study), instance)
                return


@also("PF714")
def label_not_mapped(study: Study) -> Iterator[Finding]:
    """Report a filter whose mapping lacks one of the labels that the prompt names."""
    known = {key.casefold() for key in mapped(study)}
    for instance in study.instances[:1] if known and not study.has_guessed_text else ():
        for found in _named_in(study.own_text):
            named = [found.groups()[-4], *re.findall(_WORD, found.groups()[-3] or ""), found.groups()[-1]]
            lacking = [one for one in named if one.casefold() not in known]
            if len(lacking) == 1 < len(named):
                saw = f"{lacking[0]}; mapped are {', '.join(sorted(known))}"
                yield finding("the prompt names a label that a filter does not map", saw, "filter_list", instance)
                return


def _named_in(text: str) -> Iterator[re.Match[str]]:
    """Yield the places where a text names labels: as an instruction, or as the answers to a question."""
    yield from _NAMED.finditer(text)
    yield from (found for found in _ASKED.finditer(text) if found.groups()[-3])


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) is not None


def _ends_with_label(text: str, label: str) -> bool:
    """Return whether a text has the label of an option without its text, which a column is."""
    return any(option.label == label and not option.text for option in layout_of(text).options)


@also("PF249")
def number_of_options(study: Study) -> Iterator[Finding]:
    """Report a prompt that states a different number of options than it lists or scores."""
    for instance in study.instances[:1]:
        found = _COUNT.search(study.own_text)
        choices = study.written.doc_to_choice
        count = len(choices) if isinstance(choices, list) else len(listed_labels(instance))
        if found is None or count < _LEAST or study.has_guessed_text:
            return
        said = _NUMBERS.get(found[1].casefold()) or int(found[1])
        if said != count:
            saw = f"{found[0]}; there are {count}"
            yield finding("the prompt states a wrong number of options", saw, instruction_key(study), instance)


def asks_for_label_alone(study: Study) -> bool:
    """Return whether the prompt requests the letter of an option, or for nothing but the answer."""
    bare = (*study.contract.of("letter"), *study.contract.of("number"))
    is_asked = _LETTER.search(study.own_text) is not None or _ALONE.search(study.own_text) is not None
    return is_asked or any(form.is_certain for form in bare)
