"""Rules about columns that a task misreads: misspelt names, lists and mappings, names in place of values."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from pytest_promptfmt.core.text import shared_start
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.page import Page, error_query, own, query, task
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import (
    choices_of,
    continuations,
    finding,
    first_text,
    literal_of,
    pattern,
    question_layout,
    words,
)
from pytest_promptfmt.study.gold import has_constant_target
from pytest_promptfmt.study.layout import follow_each_other

COMMON: Final = words("columns")
"""Columns that tasks of many authors have."""

_GOLD_COLUMN: Final = pattern("gold_answers", "gold_column")
_COUNTER: Final = pattern("columns", "counter")
_OF_OTHERS: Final = pattern("columns", "of_others")
"""The name of a column with an answer that is not the right one."""

_SHORTEST: Final = 5
_LONG: Final = 4000
_LOOP: Final = re.compile(r"\{%-? *for +\w+ +in +(\w+) *-?%\}(.*?)\{%-? *endfor", re.DOTALL)
_PRINTED: Final = re.compile(r"\{\{-? *(\w+)")
_KEYS_AS_ANSWER: Final = "the answer consists of the keys of a mapping, not its values"


@rule("PF261", "misspelt-column", severity=Severity.WARNING, family=Family.NAMES)
def misspelt_column(study: Study) -> Iterator[Finding]:
    """Report a column whose name looks like a misspelling of a common one.

    Why: synthetic docs have every column that a template names. So in a test with synthetic docs, `{{qusetion}}`
    renders like `{{question}}`, but the evaluation fails. Tests with real docs fail as well, so they do not need this
    rule.

    Fix: correct the name.

    Real: lm-evaluation-harness #3824 (a misspelt variable of a template).
    """
    if study.has_real_docs:
        return
    columns, specs = set(study.docs.columns) if study.docs is not None else set(), dict(study.field_specs())
    named = [(keys, spec) for keys, spec in specs.items() if isinstance(spec, str) and spec in columns]
    templates = (template for template in study.templates if template.keys in specs)
    named += [(template.keys, name) for template in templates for name in sorted(template.text.names)]
    for keys, name in named:
        intended = meant(name, COMMON)
        if intended is not None:
            yield finding("the name of a column looks misspelt", name, keys, do=f"did you mean {intended!r}?")


@query("PF261", "the name of a split looks misspelt", task, every=True)
def _misspelt_split(study: Study) -> Iterator[Finding]:
    for key in ("training_split", "validation_split", "test_split", "fewshot_split"):
        written = str(getattr(study.written.dataset, key) or "")
        intended = meant(written, ("train", "validation", "valid"))
        if intended is not None:
            yield finding("", written, key, do=f"use {intended!r}, if that is the split")


def meant(name: str, known: Collection[str] = COMMON) -> str | None:
    """Return the known name of which a name has two letters swapped, or one inside lost or doubled; None otherwise."""
    if len(name) < _SHORTEST - 1 or name in known or not name.isascii():
        return None
    close = [each for each in known if len(each) >= _SHORTEST and is_misspelling(name, each)]
    return close[0] if len(close) == 1 else None


def is_misspelling(written: str, other: str) -> bool:
    """Return whether a word is another one with two letters swapped, or one inside lost or doubled."""
    start = shared_start(written, other)
    if not 0 < start < min(len(written), len(other)):
        return False  # one begins with the other, or they differ from the first letter on: separate names
    begin, letter, rest = other[:start], other[start], other[start + 1 :]
    return written in (begin + rest[:1] + letter + rest[1:], begin + rest, begin + begin[-1] + letter + rest)


@also("PF702", severity=Severity.ERROR)
def names_instead_of_values(study: Study) -> Iterator[Finding]:
    """Report an answer that consists of the keys of a mapping, not its values."""
    for instance in study.instances:
        target = instance.target
        if not isinstance(target, str) or len(target) > 500:
            continue
        words = re.findall(r"\w+", target)
        for name, value in instance.doc.items():
            inside = [value, *(value[:3] if isinstance(value, list) else ())]
            for mapping in (one for one in inside if isinstance(one, Mapping) and len(one) > 1):
                if words == [word for key in mapping for word in re.findall(r"\w+", str(key))]:
                    yield finding(_KEYS_AS_ANSWER, target, "doc_to_target", instance, field=name)
                    return


@error_query(
    "PF723",
    "a template uses a column as a list, but the column is text",
    task,
    name="list-kept-as-text",
    family=Family.ANSWERS,
)
def _list_kept_as_text(study: Study) -> Iterator[Finding]:
    """Report a template that takes elements from a list, although the list is stored as text.

    Why: If a column has the text `"['iron', 'gold']"`, its elements are single characters. A loop then prints `[`, `'`
    and `i`, and `{{options[0]}}` is `[`.

    Fix: parse the column in `process_docs`, with `ast.literal_eval` or `json.loads`.

    Real: MMMU and other datasets that keep their options as text.
    """
    for name, value in study.real_docs[0].items() if study.real_docs else ():
        is_text = isinstance(value, str) and value.startswith("[") and len(value) <= _LONG
        if not is_text or not isinstance(literal_of(value), list):
            continue
        column = re.escape(str(name))
        taken = re.compile(
            rf"\bfor +\w+ +in +{column}\b(?! *[.|[])|\b{column} *(?:\[ *(?:(\d+)|\w+) *\]|\| *(?:join|first))"
        )
        for keys, spec in study.field_specs():
            places = [found[1] for found in taken.finditer(spec)] if isinstance(spec, str) else []
            # a place in the text, such as that of the letter in "['B']", may be meant
            if any(at is None or not value[int(at) : int(at) + 1].isalnum() for at in places):
                yield finding("", f"{value[:60]!r}", keys, 0, field=name)


@error_query("PF701", "the choices are the names of columns, not their texts", task, at="doc_to_choice", scores=True)
def _column_names_as_choices(study: Study) -> Iterator[Finding]:
    choices = study.written.doc_to_choice
    if not isinstance(choices, list) or len(choices) < 2 or study.failure is not None:
        return
    for doc, instance in zip(study.real_docs[:1], study.real_instances, strict=False):
        named = all(isinstance(choice, str) and choice in doc for choice in choices)
        text = first_text(instance)  # which shows a name itself as the label of an option or in an instruction
        if named and not all(re.search(rf"(?<!\w){re.escape(str(one))}(?!\w)", text) for one in choices):
            yield finding("", ", ".join(choices), doc=0)


@error_query("PF242", "the scored text is already in the prompt", task, at="doc_to_target")
def _answer_at_the_end(study: Study) -> Iterator[str]:
    ends = [(page.text.rstrip(), text.strip()) for page in own(study) for text in continuations(page.instance)]
    is_scored = study.task.output_type == "loglikelihood" and not study.has_guessed_text
    if is_scored and len(ends) > 1 and all(text and prompt.endswith(text) for prompt, text in ends):
        yield f"{ends[0][0][-30:]!r} ends with {ends[0][1][:30]!r}"
    several = [one for instance in study.real_instances if len(instance.prompts) > 1 for one in instance.requests]
    pairs = [(one.context or "", str(one.continuation).strip()) for one in several if one.prompt is not None]
    if pairs and all(text.count(" ") > 1 and text in prompt for prompt, text in pairs):
        yield f"{pairs[0][0][-40:]!r} contains {pairs[0][1][:30]!r}"


@query(
    "PF242",
    "a loop prints a column of the doc instead of the element's field of the same name",
    lambda study: own(study)[:1],
)
def _column_in_loop(page: Page) -> Iterator[Finding]:
    spec, doc = page.study.written.doc_to_text, page.instance.doc
    for loop in _LOOP.finditer(spec if isinstance(spec, str) else ""):
        items = doc.get(loop[1])
        rows = [one for one in items if isinstance(one, Mapping)] if isinstance(items, list) else []
        used = set(re.findall(r"[.'\"](\w+)", loop[2]))
        for name in sorted({*_PRINTED.findall(loop[2])} & doc.keys() - used):
            if rows and all(name in row for row in rows) and any(row[name] != doc[name] for row in rows):
                yield finding("", f"{{{{{name}}}}} is {doc[name]!r}, the element has {rows[0][name]!r}", field=name)


@also("PF701")
def gold_unlike_column(study: Study) -> Iterator[Finding]:
    """Report a gold choice that differs from the text or index in the answer column."""
    written, docs = study.written.doc_to_choice, study.real_instances
    are_labels = isinstance(written, list) and follow_each_other([str(one).casefold() for one in written])
    message = "the gold choice differs from the choice in the answer column"
    golds: list[str] = []
    places: list[int] = []
    shown: list[Mapping[str, str]] = []
    for instance in docs:
        choices = [choice.strip().casefold() for choice in choices_of(study, instance)]
        right = [request for request in instance.requests if request.gold and request.prompt is not None]
        if len(right) != 1 or len(set(choices)) < len(choices) or len(choices) < 2:
            return
        if right[0] not in instance.requests[: len(choices)]:
            return
        options = question_layout(instance).listed
        listed = {option.label.casefold(): option.text.strip().casefold() for option in options}
        places.append(instance.requests.index(right[0]))
        golds.append(choices[places[-1]])
        shown.append({one: listed.get(one, one) for one in choices})
    for name in docs[0].doc if docs else ():
        values = [instance.doc.get(name) for instance in docs]
        if name not in study.used_names and _indexes_otherwise(study, name, values, places, min(map(len, shown))):
            saw = f"the column has {values[:4]}, but the gold choices have the indices {places[:4]}"
            yield finding(message, saw, "doc_to_target", field=name)
            return
        said = [str(value).strip().casefold() for value in values]
        is_named = _GOLD_COLUMN.fullmatch(name) is not None
        known = [{*texts, *(texts.values() if is_named else ())} for texts in shown]
        are_texts = all(isinstance(value, str) for value in values)
        if not are_texts or not all(text in texts for text, texts in zip(said, known, strict=True)):
            continue  # it does not have the answer, or not in each doc
        wrong = [
            at for at, text in enumerate(said) if text not in (golds[at], shown[at][golds[at]] if is_named else "")
        ]
        is_each = len(set(said)) > 1 and (1 < len(docs) == len(wrong) or has_constant_target(study))
        may_be_gold = are_labels or (isinstance(written, list) and name not in study.used_names)
        if wrong and (is_named or (is_each and may_be_gold and not _OF_OTHERS.search(name))):
            saw = f"the column has {docs[wrong[0]].doc[name]!r}, but the gold choice is {golds[wrong[0]]!r}"
            yield finding(message, saw, "doc_to_target", docs[wrong[0]], field=name)
            return


def _indexes_otherwise(study: Study, name: str, values: Sequence[Any], golds: Sequence[int], count: int) -> bool:
    """Return whether a column has indices of other choices: of answers, or of any kind where the target is fixed."""
    is_code = study.runs_functions or study.written.dataset.process_docs is not None  # which may reorder the choices
    is_one = has_constant_target(study) and isinstance(study.written.doc_to_choice, list)
    is_named = _GOLD_COLUMN.fullmatch(name) or (is_one and not _COUNTER.fullmatch(name))
    if is_code or not is_named or not all(type(value) is int for value in values) or len(set(values)) < 2:
        return False
    return (
        min(values) >= 0
        and max(values) < count
        and len({value - gold for value, gold in zip(values, golds, strict=False)}) > 1
    )
