"""Rules about options: those that a question lists, those that are scored, and those that its instruction names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final
from unicodedata import normalize

from pytest_promptfmt.core.task import FunctionRef
from pytest_promptfmt.rules import Finding, Severity, Study
from pytest_promptfmt.rules.page import Page, comparing, error_query, first, known, own, query, task
from pytest_promptfmt.rules.rule_views import (
    COLUMN,
    finding,
    first_text,
    has_word,
    instruction_key,
    mapped,
    pattern,
    question_layout,
    question_template,
    warning,
)
from pytest_promptfmt.study.configuration import read_template
from pytest_promptfmt.study.contract import number_of_word
from pytest_promptfmt.study.layout import follow_each_other, layout_of

_FIRST: Final = "Aa10\u0410\u0430\u0391"
_NUMBERED: Final = re.compile(r"(\w*?)_?([a-j]|[A-J]|\d)")
"""A column that is one of several, such as `option_a` or `choice2`."""

_ELEMENT: Final = re.compile(r"(\w+) *\[ *(\d) *\]")
_OTHER_SCRIPTS: Final = 0x0500
_FEWEST_OPTIONS: Final = 3
_OPTION_VALUE: Final = pattern("options", "option_value")
"""The label of an option in a template, directly before the expression or the tag that prints it."""

_RANGE: Final = pattern("options", "range")
_TOGETHER: Final = pattern("options", "together")
_LETTERS: Final = tuple("ABCDEFGHIJ")
_DIGITS: Final = "0123456789"
_LISTED: Final = r"(?<!\w)[(\[]?{}(?:[)\].:,=、：-]+\s*\S|[ \t]+\w)"
"""A letter before the text of its option, with or without a space."""

_ASKS_LETTER: Final = pattern("options", "asks_letter")
_COUNT: Final = pattern("options", "count")
_LEAST: Final = 2


def template_names(spec: object) -> frozenset[str]:
    """Return the columns that a field names: those of a template, or the column that it is."""
    if not isinstance(spec, str):
        return frozenset()
    return frozenset(read_template(spec).names) or frozenset({spec.strip()})


def _first_two(study: Study) -> Sequence[Page]:
    return known(study)[:2]


# -- the labels and their order ----------------------------------------------------------------------------------------


@error_query(
    "PF249",
    "option labels are not consecutive, or do not start with A or 1",
    _first_two,
    name="uneven-labels-and-options",
)
def _labels_out_of_order(page: Page) -> Iterator[str]:
    """Report options with wrong labels or in the wrong order, or a wrong number of options.

    Why: in Jinja, `loop.index` counts from 1, so `'ABCD'[loop.index]` begins with B. If `i` counts from 0, `chr(64 +
    i)` begins with `@`. If a template sets a counter inside a loop, the counter never changes, so all options have the
    same label. In all three cases, the scored labels do not fit the options.

    Fix: compute the label from the index of the option, as in `'ABCD'[loop.index0]` or `chr(65 + i)`.

    Real: labels that are computed from a counter, as in most templates with a loop.
    """
    labels = page.listing.labels if page.listing is not None else []
    # listed twice, which PF242 reports, or a text that another one contains, and which its line has as well
    if page.listing is None or len(labels) > len({option.index for option in page.listing.options}):
        return
    follow = all(ord(after) == ord(before) + 1 for before, after in pairwise(labels)) and labels[0] in _FIRST
    if not follow and _is_of_one_kind(labels) and len(page.layout.listed_labels) < len(labels):
        yield ", ".join(labels)


def _is_of_one_kind(labels: Sequence[str]) -> bool:
    """Return whether labels look counted: equal or close together, as a counter that stands still or counts wrong.

    Other letters are meant as they are; an equal one that no list begins with, such as Q, names who speaks.
    """
    codes = [ord(label) for label in labels]
    if max(codes) >= _OTHER_SCRIPTS:
        return len(set(codes)) == 1  # alphabets whose lists leave letters out, as Thai and Korean do
    steps = {after - before for before, after in pairwise(codes)}
    if steps == {0}:
        return any(abs(codes[0] - ord(first)) <= 1 for first in _FIRST)
    return steps <= {0, 1} or (len(steps) > 1 and max(codes) - min(codes) <= len(codes) and codes == sorted(codes))


def _printed_options(study: Study) -> list[tuple[str, str]]:
    """Return the labels of options in the template of the question, each with the expression after it ("" for a tag).

    Labels are of the kind of the first one: capitals, small letters or digits.
    """
    found = [(one[1], " ".join((one[2] or "").split())) for one in _OPTION_VALUE.finditer(question_template(study))]
    return [one for one in found if all(kind(one[0]) == kind(found[0][0]) for kind in (str.isdigit, str.isupper))]


@error_query("PF249", "the labels of the options in the template are not in order", task)
def _template_labels_out_of_order(study: Study) -> Iterator[str]:
    labels = [label for label, _ in _printed_options(study)]
    if len(labels) < _FEWEST_OPTIONS or labels[0] not in "Aa1" or any(_labels_out_of_order(study)):
        return  # it reports what a loop prints
    first, text, count = labels[0], "".join(labels), labels.count(labels[0])
    again = len(labels) % count == 0 and labels[:: len(labels) // count] == [first] * count
    if any(not follow_each_other([first, *run]) for run in (text.split(first)[1:] if again else [text[1:]])):
        yield ", ".join(labels)


@query("PF249", "the columns with the options are printed out of order", task)
def _columns_in_other_order(study: Study) -> Iterator[str]:
    listed = [value for _, value in _printed_options(study)]
    ends = [found.group(1, 2) for name in listed if (found := _NUMBERED.fullmatch(name)) is not None]
    letters = [end for _, end in ends]
    if len(ends) == len(listed) > 1 == len({name for name, _ in ends}) and letters != sorted(letters):
        yield ", ".join(listed)


@error_query("PF249", "an option prints the wrong column", task, at="doc_to_text")
def _option_of_another_kind(study: Study) -> Iterator[str]:
    """Report an option that prints another column, although its own column is printed elsewhere."""
    listed = [value for _, value in _printed_options(study)]
    kinds = [_NUMBERED.fullmatch(value) or _ELEMENT.fullmatch(value) for value in listed]
    usual = next((place for place, kind in enumerate(kinds) if kind is not None), 0)
    stems = [kind[1] if kind is not None else None for kind in kinds]
    odd = [place for place, stem in enumerate(stems) if stem != stems[usual]] if len(listed) >= _FEWEST_OPTIONS else []
    for place in odd if len(odd) == 1 else ():
        ending = kinds[usual].end(2) - 1  # type: ignore[union-attr]  # some are of one kind
        own = f"{listed[usual][:ending]}{chr(ord(listed[usual][ending]) + place - usual)}{listed[usual][ending + 1 :]}"
        if re.search(rf"\{{\{{-? *{re.escape(own)} *-?\}}\}}", question_template(study)) is not None:
            yield f"{{{{{listed[place]}}}}} is printed where {{{{{own}}}}} is expected"


@error_query("PF242", "two options print the same column", task)
def _option_listed_twice(study: Study) -> Iterator[str]:
    listed = _printed_options(study)
    for number, (label, value) in enumerate(listed):
        twin = next((other for other, same in listed[:number] if same == value and other != label), None)
        if twin is not None and value:
            yield f"{twin} and {label}: {{{{{value}}}}}"


@query("PF242", "the options are listed twice", own)
def _options_listed_twice(page: Page) -> Iterator[Finding]:
    indices = [option.index for option in page.listing.options] if page.listing is not None else []
    # all of them, in their order, and then again: an option may be a name that the passage has after a mark
    if page.listing is not None and indices == 2 * sorted(set(indices)):
        yield finding("", ", ".join(page.listing.labels), field=page.listing.column)


# -- listed and scored -------------------------------------------------------------------------------------------------


@error_query("PF249", "", _first_two, at="doc_to_choice")
def _options_in_other_order(page: Page) -> Iterator[Finding]:
    """Report options that are not in the order of their column, if the gold answer is a position in this column."""
    place = _place_of_gold(page)
    if place is None:
        return
    listed = {name: value for name, value in page.instance.doc.items() if isinstance(value, list)}
    lists = {name: [str(one).strip() for one in value] for name, value in listed.items()}
    for name, values in lists.items() if page.scored not in lists.values() else ():
        if len(set(values)) > 1 and sorted(page.scored) == sorted(values):
            saw = f"{', '.join(page.scored)[:60]} are scored, but {name} has {', '.join(values)[:60]}"
            yield finding("the choices are not scored in the order of their column", saw, field=name)
    shown = [one for one in page.listing.options if one.is_printed] if page.listing is not None else []
    indices = list(dict.fromkeys(one.index for one in shown))
    if page.listing is not None and len(indices) > 1 and indices != sorted(indices) and not page.listing.missing:
        column = page.listing.column
        first = f"the label {shown[0].label} is before {column}[{shown[0].index}]"
        saw = f"{first}, but {place} is an index into {column}"
        message = "the options are not listed in the order of their column"
        yield finding(message, saw, "doc_to_text", field=column)


def _place_of_gold(page: Page) -> str | None:
    """Return the column with the place of the right option, where the target is made only of that column."""
    names = sorted(template_names(page.study.written.doc_to_target))
    value = page.instance.doc.get(names[0]) if len(names) == 1 else None
    return names[0] if isinstance(value, int) and not isinstance(value, bool) else None


@error_query("PF249", "", _first_two, at="doc_to_choice")
def _shown_unlike_scored(page: Page) -> Iterator[Finding]:
    """Report options of which one is listed but not scored, or is scored at another position."""
    written, scored = page.study.written, page.scored
    listed = [option.text.strip() for option in page.layout.listed]
    are_texts = isinstance(written.doc_to_choice, str) and len(set(scored)) == len(scored) > 1
    # of a column, it may be one that the prompt describes, such as that nobody can know
    if isinstance(written.doc_to_choice, FunctionRef) and len(set(listed)) > 1 and set(listed) < set(scored):
        added = next(text for text in scored if text not in listed)
        saw = f"{added[:40]!r} is not among the {len(listed)} listed options"
        yield warning("a text is scored, but not listed as an option", saw)
    if not are_texts or not set(scored) <= set(listed):
        return
    lost = next((text for text in listed if text not in scored), None)
    by_place = isinstance(page.instance.target, int)
    by_place = by_place and not template_names(written.doc_to_target) & template_names(written.doc_to_choice)
    if lost is not None and len(listed) == len(set(listed)):
        saw = f"{lost[:40]!r} is among the {len(listed)} listed options, but only {len(scored)} are scored"
        yield finding("an option is listed, but not scored", saw)
    elif by_place and listed != scored:
        saw = f"{', '.join(listed)[:60]} are listed, but {', '.join(scored)[:60]} are scored"
        yield finding("the order of the choices in the prompt differs from their order in doc_to_choice", saw)


@error_query(
    "PF249",
    "an option is not in the prompt, although the others are listed",
    lambda study: known(study) if study.has_real_docs else (),
)
def _option_not_listed(page: Page) -> Iterator[Finding]:
    listing = page.listing
    if listing is None or not listing.missing or len(listing.options) < _LEAST:
        return
    if page.study.generates or len(page.scored) >= len(listing.options) + len(listing.missing):
        saw = f"{', '.join(listing.labels)} are listed, but {listing.missing[0][:40]!r} is not"
        yield finding("", saw, field=listing.column)


@error_query("PF249", "", at="doc_to_choice")
def _labels_unlike_listed_labels(page: Page) -> Iterator[Finding]:
    """Report scored labels that differ from the labels in the prompt."""
    study, layout = page.study, page.layout
    labels = [choice.strip("().") for choice in page.scored] or _letters_written(study)
    are_letters = all(len(one) == 1 for one in labels) and len(set(labels)) == len(labels)
    lines = layout.listed_in_any_script
    if len(labels) < _LEAST or not are_letters or not (follow_each_other(labels) or len(labels) == len(lines)):
        return
    listed = [option.label for option in lines] or list(layout.listed_inline)
    text, choices = study.written.doc_to_text, study.written.doc_to_choice
    is_fixed = isinstance(text, str) and isinstance(choices, list) and "{%" not in text
    is_same = is_fixed or all(len(question_layout(one).listed_labels) > len(labels) for one in study.real_instances)
    message = do = ""
    if study.has_choices and is_same and len(listed) > len(labels) and listed[: len(labels)] == labels:
        message, do = "the prompt lists more options than there are scored labels", "score a label for each option"
    elif study.has_choices and is_fixed and 1 < len(listed) < len(labels) and listed == labels[: len(listed)]:
        message = "there are more scored labels than options in the prompt"
    elif len(listed) == len(labels) and listed != labels:
        is_same_set = not follow_each_other(labels) and {*listed} == {*labels}
        is_reversed = _place_of_gold(page) is not None and labels == listed[::-1] and len(labels) > _LEAST
        if is_same_set and not (
            is_reversed and all(one.text[:1] == COLUMN for one in layout_of(page.constant).options)
        ):
            return  # labels in another order may be meant, unless the gold is the position of a printed column
        message = "the scored labels differ from the labels of the listed options"
    if message:
        saw = f"{', '.join(listed)} are listed, but {', '.join(labels)} are scored"
        is_minor = len(listed) < len(labels) or normalize("NFKC", "".join(listed)) == "".join(labels)  # full width
        yield finding(message, saw, do=do, severity=Severity.WARNING if is_minor else None)


@error_query("PF249", "the gold answer is the label of an option that is not listed", own, at="doc_to_text")
def _gold_option_not_listed(page: Page) -> Iterator[str]:
    choices, golds = page.study.written.doc_to_choice, [request.gold for request in page.instance.requests]
    is_fixed = isinstance(choices, list) and len(golds) == len(page.scored) and sum(golds) == 1
    if not is_fixed or not follow_each_other(page.scored) or page.study.is_multimodal:
        return
    gold, listed = page.scored[golds.index(True)], [one.label for one in page.layout.listed if one.mark != ":"]
    is_known = re.search(rf"(?i)(?<![a-z]){gold}(?![a-z])", page.instance.prompts[0].text) is not None
    # digits number steps as well, and letters with a colon are speakers
    if gold.isalpha() and len(listed) > 1 and listed == page.scored[: len(listed)] and not is_known:
        yield f"{gold} is gold, but {', '.join(listed)} are listed"


def _compared(study: Study) -> Sequence[Study]:
    """Return a task that compares what is generated with the gold answer, and no other text for it."""
    return () if mapped(study) else comparing(study)


@error_query("PF701", "one gold answer is not the label of an option, although the others are", _compared, scores=True)
def _gold_not_listed(study: Study) -> Iterator[Finding]:
    """Report a gold answer that is not the label of an option, although the other gold answers are."""
    asked = [(one, str(one.target).strip(), question_layout(one).listed_labels) for one in study.real_instances]
    are_labels = all(listed and len(gold) == 1 for _, gold, listed in asked)
    lost = [each for each in asked if each[1] not in each[2] and not has_word(study.own_text, each[1])]
    as_written = [each for each in asked if each[1] in map(str, each[0].doc.values())]
    for instance, gold, listed in lost[:1] if are_labels and lost == as_written and len(lost) < len(asked) else ():
        yield finding("", f"{gold!r}, but the options are {', '.join(listed)}", "doc_to_target", instance)


def _letters_written(study: Study) -> list[str]:
    """Return the first letters, as many as options are listed, where all gold answers to write are one of them."""
    golds = {str(instance.target).strip() for instance in study.real_instances} if study.generates else set()
    layout = question_layout(study.instances[0]) if golds and not study.has_own_scorer else layout_of("")
    count = len(layout.listed_in_any_script)
    labels = [chr(ord("A") + number) for number in range(count)]
    is_shown = any(re.search(_LISTED.format(label), first_text(study.instances[0])) for label in labels)
    return labels if golds <= set(labels) and not is_shown and not mapped(study) else []


@error_query("PF249", "", lambda study: first(study) if study.has_real_docs and not study.is_multimodal else ())
def _options_not_shown(page: Page) -> Iterator[Finding]:
    """Report a prompt that requests the letter of an option, but lists no options."""
    study, instance, text = page.study, page.instance, first_text(page.instance)
    if study.generates:
        scored = {str(one.target).strip() for one in study.real_instances}
    else:
        scored = {str(request.continuation).strip() for request in instance.requests}
    is_fixed = isinstance(study.written.doc_to_choice, list) and len(scored) > 1 and study.shots == 0
    labels = {*_LETTERS, *(_DIGITS if is_fixed and not study.generates else "")}
    if not scored or not scored <= labels or any(re.search(_LISTED.format(one), text) for one in scored):
        return
    if _ASKS_LETTER.search(text):
        yield finding("the prompt requests a letter, but lists no options", text[-80:])
    elif len(scored) > 1 and _has_bare_options(page):
        yield finding("letters are scored, but the options have no letters", text[-80:])
    elif is_fixed and not any(re.search(rf"(?<!\w){one}(?!\w)", text) for one in scored):
        saw = f"{', '.join(sorted(scored))} are scored, but the prompt ends with {text[-40:]!r}"
        yield warning("the prompt shows none of the labels that are scored", saw)


def _has_bare_options(page: Page) -> bool:
    """Return whether the question shows all texts of a list in which no label is before any."""
    lists = [value for value in page.instance.doc.values() if isinstance(value, list) and len(value) > 1]
    return page.listing is None and any(
        all(isinstance(one, str) and len(one.strip()) > 1 and one.strip() in page.text for one in value)
        for value in lists
    )


# -- as the instruction names them -------------------------------------------------------------------------------------


@query("PF249", "the range of labels in the instruction does not end with the last option")
def _range_unlike_options(page: Page) -> Iterator[str]:
    study, listed = page.study, page.layout.listed_labels
    asked = _RANGE.search(study.own_text) or _TOGETHER.search(study.own_text)
    if asked is None or not listed or listed[0] != "A" or asked[1][-1] == listed[-1]:
        return
    if re.search(r"\bA[\"'”)\]]* (?:and|or) [\"'“(\[]*[C-Z]", asked[0]):
        return  # an example of two letters
    if len(listed) < _LEAST and re.search(rf"(?<!\w){asked[1][-1]}[:)=.] ?\S", page.text):
        return  # the options are within a line
    constants = (text for template in study.templates for text in template.text.constants)
    options = (option for text in constants for option in layout_of(text).options)
    if study.has_real_docs or not any(option.label == asked[1][-1] and not option.text for option in options):
        # else a branch lists it, which the synthetic docs do not take
        yield f"{asked[0][-30:]}, but the last option is {listed[-1]}"


@query("PF249", "the prompt states a wrong number of options")
def _number_of_options(page: Page) -> Iterator[Finding]:
    choices, found = page.study.written.doc_to_choice, _COUNT.search(page.study.own_text)
    count = len(choices if isinstance(choices, list) else page.layout.listed_labels)
    if found is not None and count >= _LEAST and number_of_word(found[1]) != count:
        yield finding("", f"{found[0]!r}, but the prompt has {count}", instruction_key(page.study))
