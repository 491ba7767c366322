"""Rules about the options that a prompt lists: their labels, their order, and how each is written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.prompt import Instance, join
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import (
    COLUMN,
    around,
    choices_of,
    finding,
    first_prompts,
    listed_labels,
    question_layout,
    question_message,
    question_template,
    questions,
    written_texts,
)
from pytest_promptfmt.study.configuration import read_template
from pytest_promptfmt.study.layout import Listing, follow_each_other, layout_of, listing_of
from pytest_promptfmt.study.study import constant_spans

_FIRST: Final = "Aa10\u0410\u0430\u0391"
_TWICE: Final = re.compile(r"(?:^|(?<=[\s(]))([A-Z][.)]|\([A-Z]\)|[^\W\d_]{4,}:)\s+\1(?=\s|$)")
_NUMBERED: Final = re.compile(r"(\w*?)_?([a-j]|[A-J]|\d)")
"""A column that is one of several, such as `option_a` or `choice2`."""

_LINE_TWICE: Final = re.compile(r"^(#{1,6} [^\n]{2,60}|[^\s:：][^\n:：]{1,40}[:：])\n+\1$", re.MULTILINE)
_OTHER_SCRIPTS: Final = 0x0500
_SAYS_HOW: Final = re.compile(r"answer|respond|reply|choose|select|option|letter|choice|[^\x00-\x7f]", re.I)
_FEWEST_OPTIONS: Final = 3
_OPTION_VALUE: Final = re.compile(
    r"(?:^|(?<=\s))[(\[]?([A-Ja-j]|\d)[)\].:：][ \t]*(?:\{\{-?(.*?)-?\}\}|\{%(?!-?\s*(?:end|el)))", re.MULTILINE
)
"""The label of an option in a template, directly before the expression or the tag that prints it."""


@rule("PF232", "no-cue-after-options", severity=Severity.WARNING, family=Family.PROMPT)
def no_cue(study: Study) -> Iterator[Finding]:
    """Report a prompt that lists options and ends with the last of them, without a cue for the answer.

    Why: a base model continues with the next option, not with an answer. An earlier instruction how to answer is a cue.

    Fix: end the prompt with a cue such as `Answer:`.

    Real: HELM #3790 (InfiniteBench).
    """
    if study.task.gen_prefix is not None or not study.task.has_question:
        return
    for instance, message in questions(study.instances[:1]):
        if len(instance.prompts) != 1:
            return
        text = message.text.rstrip()
        last = [option for option in layout_of(text).listed[-2:] if option.label.isupper()]
        is_end = len(last) == 2 and text[last[0].start :].count("\n") == 1 and text.count("\n") > 1
        layout = layout_of(text)
        start = layout.listed[0].start if layout.listed else 0
        cues = (label for label in layout.labels if label.name in answer_labels())
        before = next((cue for cue in cues if not text[cue.end : start].strip(" \n([") and cue.end < start), None)
        if is_end and before is not None:
            saw = text[before.start : before.start + 40]
            yield finding("the answer cue is before the options", saw, "doc_to_text", instance)
        elif is_end and not _SAYS_HOW.search(study.own_text):
            saw = message.text[-40:]
            yield finding("the prompt ends with the last option, without an answer cue", saw, "doc_to_text", instance)


def answer_labels() -> set[str]:
    """Return the labels before an answer, in all languages."""
    table: dict[str, list[str]] = data_table("contract")["answer_labels"]
    return {label for labels in table.values() for label in labels}


@also("PF240")
def uneven_options(study: Study) -> Iterator[Finding]:
    """Report a list of options in which one is written differently: another space, bracket or mark."""
    for template, text in written_texts(study):
        listed = [one for one in layout_of(text).options if one.text.startswith(COLUMN) and one.label.isascii()]
        for before, after in pairwise(listed):
            follow = ord(after.label.upper()) == ord(before.label.upper()) + 1
            if follow and (before.style != after.style or before.label.isupper() != after.label.isupper()):
                yield finding("options are not written alike", f"{before.lead}… and {after.lead}…", template.keys)
                break


@also("PF242", severity=Severity.ERROR)
def option_listed_twice(study: Study) -> Iterator[Finding]:
    """Report two options that print the same column."""
    listed = _printed_options(study)
    for number, (label, value) in enumerate(listed):
        twin = next((other for other, same in listed[:number] if same == value and other != label), None)
        if twin is not None and value:
            yield finding("two options print the same column", f"{twin} and {label}: {{{{{value}}}}}", "doc_to_text")
            return


def _printed_options(study: Study) -> list[tuple[str, str]]:
    """Return the labels of options in the template of the question, each with the expression after it ("" for a tag).

    Labels are of the kind of the first one: capitals, small letters or digits.
    """
    found = [(one[1], " ".join((one[2] or "").split())) for one in _OPTION_VALUE.finditer(question_template(study))]
    return [one for one in found if _kind(one[0]) == _kind(found[0][0])]


def _kind(label: str) -> tuple[bool, bool]:
    return label.isdigit(), label.isupper()


@rule("PF249", "uneven-labels-and-options", severity=Severity.ERROR, family=Family.PROMPT)
def labels_out_of_order(study: Study) -> Iterator[Finding]:
    """Report options whose labels, number or order do not fit, such as labels that are not consecutive.

    Why: `loop.index` counts from 1 and `'ABCD'[loop.index]` begins with B; `chr(64 + i)` begins with `@`; a counter set
    inside a loop of Jinja stays the same, so that all options have one label. The scored labels then belong to other
    options.

    Fix: take the label of the same index: `'ABCD'[loop.index0]`, `chr(65 + i)`.

    Real: labels made of a counter, as in most templates with a loop.
    """
    for instance in study.instances[:2]:
        listing = _listing(study, instance)
        if listing is None:
            continue
        labels = listing.labels
        if len(labels) > len({option.index for option in listing.options}):
            continue  # listed twice, which PF242 reports
        if len(listed_labels(instance)) >= len(labels):
            continue  # lines of options in order: a text that another one contains is found in its line as well
        follow = all(ord(after) == ord(before) + 1 for before, after in pairwise(labels))
        if (follow and labels[0] in _FIRST) or not _is_of_one_kind(labels):
            continue
        saw = ", ".join(labels)
        yield finding(
            "option labels are not consecutive, or do not start with the first label", saw, "doc_to_text", instance
        )
        return


def _listing(study: Study, instance: Instance) -> Listing | None:
    """Return how the question lists a list of the doc with a label each; None if it does not."""
    return None if study.has_guessed_text else listing_of(question_message(instance), instance.doc)


def _is_of_one_kind(labels: Sequence[str]) -> bool:
    """Return whether labels look counted: equal, or close together; other letters are meant as they are."""
    codes = [ord(label) for label in labels]
    if max(codes) >= _OTHER_SCRIPTS:
        return len(set(codes)) == 1  # alphabets whose lists leave letters out, as Thai and Korean do
    steps = {after - before for before, after in pairwise(codes)}
    return steps <= {0, 1} or (len(steps) > 1 and max(codes) - min(codes) <= len(codes) and codes == sorted(codes))


@also("PF249", severity=Severity.ERROR)
def options_in_other_order(study: Study) -> Iterator[Finding]:
    """Report options listed or scored in another order than in their column, where the gold is a place in it."""
    for instance in study.instances[:2]:
        place = _place_of_gold(study, instance)
        if place is None:
            return
        scored = [choice.strip() for choice in choices_of(study, instance)]
        listed = {name: value for name, value in instance.doc.items() if isinstance(value, list)}
        lists = {name: [str(one).strip() for one in value] for name, value in listed.items()}
        for name, texts in lists.items() if scored not in lists.values() else ():
            if len(set(texts)) > 1 and sorted(scored) == sorted(texts):
                saw = f"{', '.join(scored)[:60]} are scored, {name} has {', '.join(texts)[:60]}"
                message = "the choices are scored in another order than in their column"
                yield finding(message, saw, "doc_to_choice", instance, field=name)
                return
        listing = _listing(study, instance)
        shown = [one for one in listing.options if one.is_printed] if listing is not None else []
        indices = list(dict.fromkeys(one.index for one in shown))
        if listing is not None and len(indices) > 1 and indices != sorted(indices) and not listing.missing:
            saw = f"{shown[0].label} is the element {shown[0].index} of {listing.column}; the gold is {place}"
            message = "the options are listed in another order than in their column"
            yield finding(message, saw, "doc_to_text", instance, field=listing.column)
            return


@also("PF249", severity=Severity.ERROR)
def shown_unlike_scored(study: Study) -> Iterator[Finding]:
    """Report options whose texts are scored, if one is only listed, or is listed at another position."""
    names = template_names(study.written.doc_to_target)
    for instance in study.instances[:2] if isinstance(study.written.doc_to_choice, str) else ():
        scored = [choice.strip() for choice in choices_of(study, instance)]
        listed = [option.text.strip() for option in question_layout(instance).listed]
        if len(set(scored)) < max(len(scored), 2) or not set(scored) <= set(listed) or study.has_guessed_text:
            return
        lost = next((text for text in listed if text not in scored), None)
        if lost is not None and len(listed) == len(set(listed)):
            saw = f"{lost[:40]!r} is one of {len(listed)} listed, {len(scored)} are scored"
            yield finding("an option is listed but not scored", saw, "doc_to_choice", instance)
            return
        by_place = isinstance(instance.target, int) and not names & template_names(study.written.doc_to_choice)
        if by_place and listed != scored:
            saw = f"{', '.join(listed)[:60]} are listed, {', '.join(scored)[:60]} are scored"
            yield finding(
                "the choices are scored in another order than they are listed", saw, "doc_to_choice", instance
            )
            return


@also("PF249", severity=Severity.WARNING)
def columns_in_other_order(study: Study) -> Iterator[Finding]:
    """Report options that print columns such as `option_a` and `option_b` in a different order than their names."""
    listed = [value for _, value in _printed_options(study)]
    ends = [found.group(1, 2) for name in listed if (found := _NUMBERED.fullmatch(name)) is not None]
    letters = [end for _, end in ends]
    if len(ends) == len(listed) > 1 == len({name for name, _ in ends}) and letters != sorted(letters):
        saw = ", ".join(listed)
        yield finding("the columns with the options are printed out of order", saw, "doc_to_text")


def template_names(spec: object) -> frozenset[str]:
    """Return the columns that a field names: those of a template, or the column that it is."""
    if not isinstance(spec, str):
        return frozenset()
    return frozenset(read_template(spec).names) or frozenset({spec.strip()})


def _place_of_gold(study: Study, instance: Instance) -> str | None:
    """Return the column with the place of the right option, where the target is made only of that column."""
    target = study.written.doc_to_target
    if not isinstance(target, str) or study.has_guessed_text:
        return None
    names = sorted(template_names(target))
    value = instance.doc.get(names[0])
    return names[0] if len(names) == 1 and isinstance(value, int) and not isinstance(value, bool) else None


@also("PF249", severity=Severity.ERROR)
def option_not_listed(study: Study) -> Iterator[Finding]:
    """Report options that are scored and not in the prompt, although the others are listed."""
    for instance in study.real_instances:
        listing = _listing(study, instance)
        scored = len(choices_of(study, instance))
        if listing is None or not listing.missing or len(listing.options) < 2:
            continue
        if not study.generates and scored < len(listing.options) + len(listing.missing):
            continue
        yield finding(
            "an option is not in the prompt, although the others are listed",
            f"{', '.join(listing.labels)} are listed, {listing.missing[0][:40]!r} is not",
            "doc_to_text",
            instance,
            field=listing.column,
        )
        return


@also("PF242")
def label_twice(study: Study) -> Iterator[Finding]:
    """Report a label that is printed twice in a row: `A. A. iron`, `Question: Question:`, `Answer:` and `Answer:`."""
    for instance, prompt in first_prompts(study.instances[:3]):
        own = "".join(span.text for span in prompt.spans if span.origin.shot is None)
        again = _LINE_TWICE.search(join(constant_spans(instance)))
        if again is not None and not study.has_guessed_text:
            yield finding("a label is printed twice in a row", again[0], "doc_to_text", instance)
            return
        twice = [each for each in _TWICE.finditer(own) if not _ends_a_sentence(own, each)]
        of_words = [one for one in twice if one[1].endswith(":")]
        # One doubled letter may be the initials of a name.
        found = next(iter(of_words or (twice if len({one[1] for one in twice}) > 1 else ())), None)
        if found is not None and not study.has_guessed_text:
            yield finding(
                "a label is printed twice in a row",
                around(own, found, 10),
                "gen_prefix" if study.task.gen_prefix else "doc_to_text",
                instance,
            )
            return


def _ends_a_sentence(text: str, twice: re.Match[str]) -> bool:
    """Return whether the first of two equal labels is the last word of a line: `Choose the right option:`."""
    line = text[text.rfind("\n", 0, twice.start()) + 1 : twice.start()]
    return "\n" in twice[0] and bool(line.strip())


@also("PF242")
def options_listed_twice(study: Study) -> Iterator[Finding]:
    """Report a prompt that lists the same options twice."""
    for instance in study.real_instances:
        listing = _listing(study, instance)
        if listing is None:
            continue
        indices = [option.index for option in listing.options]
        count = len(set(indices))
        # all of them, in their order, and then again: an option may be a name that the passage has after a mark
        if len(indices) == 2 * count and indices == 2 * sorted(set(indices)):
            yield finding(
                "the options are listed twice", ", ".join(listing.labels), "doc_to_text", instance, field=listing.column
            )
            return


@also("PF249", severity=Severity.ERROR)
def template_labels_out_of_order(study: Study) -> Iterator[Finding]:
    """Report options whose labels are not A, B, C or 1, 2, 3 in order."""
    labels = [label for label, _ in _printed_options(study)]
    if len(labels) < _FEWEST_OPTIONS or labels[0] not in "Aa1" or any(labels_out_of_order(study)):
        return  # PF249 reports what a loop prints
    first, text = labels[0], "".join(labels)
    runs = text.split(first)[1:] if labels.count(first) == 1 or _is_listed_again(labels) else [text[1:]]
    if any(not follow_each_other([first, *run]) for run in runs):
        yield finding("the labels of the options are not in order", ", ".join(labels), "doc_to_text")


def _is_listed_again(labels: list[str]) -> bool:
    """Return whether several lists of the same length follow each other."""
    count = labels.count(labels[0])
    return len(labels) % count == 0 and labels[:: len(labels) // count] == [labels[0]] * count
