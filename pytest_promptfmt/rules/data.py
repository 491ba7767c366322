"""Rules about text from the docs that is missing, unused, changed or cut in the prompt."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import starmap
from typing import Any, Final

from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.options import template_names
from pytest_promptfmt.rules.page import Page, error_query, own, query, task
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import around, continuations, finding, has_english, literal_of, pattern, warning
from pytest_promptfmt.study.gold import gold_column
from pytest_promptfmt.tasks import load_docs

_LONG: Final = 50
_SOME: Final = 12
"""Shorter texts are in a prompt by chance."""

_FEWEST_WORDS: Final = 4
"""Words of a text that a template would not take for a label or a name."""

_MOST: Final = 20_000
_ROWS: Final = 500
_WORDS: Final = re.compile(r"[^\W_]+")
NOT_ASKED: Final = pattern("data", "not_asked")
_QUESTION: Final = pattern("shot_layout", "question")
_ASKED: Final = pattern("data", "asked")
_IDENTIFIER: Final = pattern("data", "identifier")
_ABOUT_DOC: Final = pattern("data", "about_doc")
_RIGHT: Final = re.compile(r"(?i)(?:correct|right|gold|true)[ _-]?(?:answer|option|choice|ending)(?:[ _-]?text)?")
_UNSPACED: Final = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
_KEY: Final = re.compile(r"[A-Za-z0-9]+(?:[_-][A-Za-z0-9]+)+")
"""A name of words, such as `world_history`, which code makes readable."""

_MISSING: Final = re.compile(r"(?<![\w.])(None|nan|NaN)(?![\w.])")
_GAP: Final = re.compile(r"(?<!\w)_+(?!\w)")
"""A place to fill in, at which a text is cut."""

_BRACKETED: Final = re.compile(r"\[[^\[\]]{1,40}\]|<[^<>]{1,40}>")

_SLICE: Final = re.compile(r"\{\{-?\s*(\w+)\s*\[\s*:\s*(\d+)\s*\]|\{\{-?\s*(\w+)\s*\|\s*truncate\b")


@rule("PF221", "missing-value-printed", severity=Severity.ERROR, family=Family.PROMPT)
def missing_value_printed(study: Study) -> Iterator[Finding]:
    """Report a missing value in the data, if the prompt then has the word None or nan.

    Why: Jinja renders a missing value as the word `None`. The model then gets this word as a passage, or this word
    is scored as a choice.

    Fix: print the value and its label only if there is a value, as in `{% if hint %}Hint: {{hint}}{% endif %}`.

    Real: seven bugs of lm-evaluation-harness, in which the prompt lost a text or had the word None.
    """
    for instance in study.real_instances:
        empty = sorted(key for key, value in instance.doc.items() if value is None or value != value)
        if empty and (instance.target in (None, "None", "nan")) and "doc_to_target" in study.config:
            message, do = "the gold answer is a missing value (None or nan)", "drop docs without an answer"
            yield finding(message, str(instance.target), "doc_to_target", instance, do=do)
        whole = " ".join(str(value) for value in instance.doc.values() if value is not None)
        spans = (span for prompt in instance.prompts[:1] for span in prompt.spans if span.origin.shot is None)
        for span in spans:
            saw, column = f"the value of column {span.origin.field!r} is missing", span.origin.field
            made = _MISSING.search(span.text) if empty and study.asks_by_code and column is None else None
            if column in empty and span.text in ("None", "nan", "NaN"):
                yield finding(f'a missing value was rendered as the word "{span.text}"', saw, span, instance)
            elif column and span.text in ("undefined", "nan", "NaN"):
                message = f'the data contain the word "{span.text}" for a missing value'
                yield warning(message, saw, span, instance, do="leave the text out, or correct the data")
            elif made is not None and made[0] not in whole:
                saw = f"{around(span.text, made, 30, 10)}; column {empty[0]!r} is empty"
                message = f'code prints a missing value as the word "{made[0]}"'
                yield finding(message, saw, "doc_to_text", instance, field=empty[0])
        for continuation in continuations(instance) if empty else ():
            if continuation.strip() in ("None", "nan"):
                message, do = "a missing value is one of the choices", "leave the choice out if the value is missing"
                yield finding(message, continuation, "doc_to_choice", instance, do=do)


@rule("PF222", "unused-column", severity=Severity.WARNING, family=Family.PROMPT)
def unused_column(study: Study) -> Iterator[Finding]:
    """Report a column with texts, such as questions or passages, that is not in the prompt or the choices.

    Why: a question about a passage cannot be answered without the passage. Columns such as `explanation`, `tests` or
    `id` are not reported.

    Fix: add the column to the prompt. If the model does not need the column, ignore this rule with a reason.

    Real: lm-evaluation-harness #885 (belebele without its passages).
    """
    if not study.real_instances or study.is_multimodal or not study.task.has_question:
        return
    columns = [
        name
        for name, value in study.real_docs[0].items()
        if isinstance(value, str) and name not in study.used_names and not NOT_ASKED.search(name)
    ]
    others = {*study.real_docs[0]} - {*columns}
    is_english = has_english(study.own_text) and not study.runs_functions
    for name in columns:
        values = [str(instance.doc.get(name) or "") for instance in study.real_instances]
        is_asked = is_english and _ASKED.fullmatch(name) and not any(name in other for other in others)
        long, spaces = (_SOME, 2) if is_asked else (_LONG, 5)
        if not all(len(value) >= long and _words_in(value) > spaces for value in values):
            continue
        if not any(_appears(value, instance) for value, instance in zip(values, study.real_instances, strict=True)):
            yield finding(
                "a column with texts is not in the prompt", f"{name}: {values[0]}", "doc_to_text", 0, field=name
            )


def _words_in(text: str) -> int:
    """Return about how many words a text has; those of Chinese, Japanese and Thai have two or three letters."""
    return len(text.split()) + len(_UNSPACED.findall(text)) // 3


def _appears(value: str, instance: Instance) -> bool:
    whole = _shown_text(instance)
    text = _spaced(value)
    middle = len(text) // 2
    return any(text[at : at + 20] in whole for at in (0, max(0, middle - 10), max(0, len(text) - 20)))


def _shown_text(instance: Instance) -> str:
    parts = [prompt.text for prompt in instance.prompts]
    parts += continuations(instance)
    return _spaced("\n".join(parts))


def _spaced(text: str) -> str:
    return " ".join(text.split())


@rule("PF223", "text-changed", severity=Severity.WARNING, family=Family.PROMPT)
def text_dropped(study: Study) -> Iterator[Finding]:
    """Report a text of the data that differs in the prompt, for example because brackets were removed.

    Why: code that cleans the texts of one dataset can damage the texts of another. For example, `[x, p] = i` becomes `
    = i`, and then two choices may be equal.

    Fix: do not remove text in brackets, unless the brackets are markup of this dataset.

    Real: lm-evaluation-harness #3691, #3735 (gpqa).
    """
    rows = given_rows(study)
    for instance in study.real_instances:
        whole = _shown_text(instance)
        for name, value in _texts(rows[instance.index][0] if len(rows) > instance.index else instance.doc):
            if len(value) > _MOST or not _BRACKETED.search(value):
                continue
            cut = _spaced(_BRACKETED.sub("", value))
            full = _spaced(value)
            is_shown = cut in whole if len(cut) >= 8 else _ends_line(cut, instance)
            if len(cut) >= 2 and cut != full and full not in whole and is_shown:
                saw = f"{full[:50]!r} became {cut[:40]!r}"
                yield finding("text in brackets was removed from the data", saw, "doc_to_text", instance, field=name)


def given_rows(study: Study) -> Sequence[tuple[Doc, Doc]]:
    """Return the user's rows before `process_docs`, each with its doc; none where that leaves some out."""
    return study.once("given rows", lambda: _given_rows(study))


def _given_rows(study: Study) -> Sequence[tuple[Doc, Doc]]:
    pairs = list(zip(_unprocessed(study), study.local_docs, strict=False))
    return pairs if all(set(map(str, row.values())) & set(map(str, doc.values())) for row, doc in pairs) else ()


def _unprocessed(study: Study) -> Sequence[Doc]:
    """Return the user's rows before `process_docs`; none without this function, or where they cannot be read."""
    return study.once("unprocessed rows", lambda: _read_unprocessed(study))


def _read_unprocessed(study: Study) -> Sequence[Doc]:
    dataset = study.bound.dataset if study.has_real_docs and study.renders_fields else study.given.dataset
    if dataset.process_docs is None or not study.has_real_docs or dataset.given is not None:
        return ()
    with suppress(PromptfmtError):
        return load_docs(
            replace(study.bound, dataset=replace(dataset, process_docs=None)), count=_ROWS, num_fewshot=0
        ).evaluated
    return ()


@error_query("PF701", "code drops the docs whose gold value is 0 or false", task, at="process_docs", scores=True)
def _zeros_dropped(study: Study) -> Iterator[Finding]:
    gold = gold_column(study)
    if not study.has_choices or not study.renders_fields or not study.real_instances:
        return
    golds, kept = [row.get(gold) for row in _unprocessed(study)], [doc.get(gold) for doc in study.local_docs]
    of_zero = [value for value in golds if isinstance(value, int) and not value]
    if of_zero and len(of_zero) < len(golds) and len(kept) == len(golds) - len(of_zero) and all(kept):
        yield finding("", f"{len(of_zero)} of {len(golds)} rows have {gold} {of_zero[0]!r}", field=gold)


@error_query("PF701", "code reorders the options, but keeps the old gold index", task, at="process_docs", scores=True)
def _processed_otherwise(study: Study) -> Iterator[Finding]:
    gold = gold_column(study)
    for number, (row, doc) in enumerate(given_rows(study) if study.has_choices else ()):
        at = doc.get(gold)
        if not isinstance(at, int) or at != row.get(gold):
            continue
        lists = [(name, one) for name, one in doc.items() if isinstance(one, list) and name in study.used_names]
        for options in (one for one in row.values() if isinstance(one, list) and 0 <= at < len(one)):
            made = [each for each in lists if sorted(map(str, each[1])) == sorted(map(str, options))]
            if made and all(each[at] != options[at] for _, each in made):
                saw = f"{made[0][0]}: index {at} is {made[0][1][at]!r}, but was {options[at]!r} before the code ran"
                yield finding("", saw, doc=number)


@error_query(
    "PF701", "code puts the right option at another position than the gold index", task, at="process_docs", scores=True
)
def _placed_elsewhere(study: Study) -> Iterator[Finding]:
    gold = gold_column(study)
    for number, (row, doc) in enumerate(given_rows(study) if study.has_choices else ()):
        at = doc.get(gold)
        lists = [one for name, one in doc.items() if isinstance(one, list) and name in study.used_names]
        for name, right in ((name, text) for name, text in _texts(row) if _RIGHT.fullmatch(name)):
            at_right = [one.index(right.strip()) for one in lists if one.count(right.strip()) == 1]
            if isinstance(at, int) and at_right and at not in at_right:
                yield finding(
                    "", f"{right[:60]!r} has the index {at_right[0]}, but {gold} is {at}", field=name, doc=number
                )


def _ends_line(text: str, instance: Instance) -> bool:
    """Return whether a line of the prompt, or what is scored, is this text, with at most a label before it."""
    line = re.compile(rf"(?m)^[ \t]*(?:[(\[]?\w[)\].:])?[ \t]*{re.escape(text)}[ \t]*$")
    return any(line.search(each) for each in (*(prompt.text for prompt in instance.prompts), *continuations(instance)))


def _texts(doc: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in doc.items():
        if isinstance(value, str) and not _is_python_list(value):
            yield name, value
        elif isinstance(value, list | tuple):
            yield from ((name, each) for each in value[:50] if isinstance(each, str))


def _is_python_list(value: str) -> bool:
    """Return whether a text is a list or mapping as Python prints it, which code reads and shows in parts."""
    is_short = value.lstrip().startswith(("[", "{", "(")) and len(value) <= _MOST
    return is_short and isinstance(literal_of(value.strip()), list | dict | tuple)


@also("PF223")
def changed_text(study: Study) -> Iterator[Finding]:
    """Report a text of the data if code changes or reorders its words, or a template changes its letter case."""
    # the text of a rolling task is scored as code prepares it, for example without the spaces of a tokenizer
    for instance in study.real_instances if study.task.has_question else ():
        whole = "\n".join([*(prompt.text for prompt in instance.prompts), *continuations(instance)])
        texts = [(name, value.strip()) for name, value in _texts(instance.doc) if len(value) <= _MOST]
        left = [(name, value) for name, value in texts if len(value) >= _SOME and value not in whole]
        left = [(name, value) for name, value in left if not _GAP.search(value) and not _KEY.fullmatch(value)]
        left = left if study.runs_functions else [one for one in left if _is_half_small(one[1], whole)]
        if left:
            yield from _changed(left, {_bare(value) for _, value in texts if value in whole}, whole, instance.index)


def _is_half_small(value: str, whole: str) -> bool:
    """Return whether a template changes letters within a text, but not all of them, as `capitalize` does."""
    shown = re.search(re.escape(value), whole, re.IGNORECASE)
    return shown is not None and shown[0][1:] != value[1:] and shown[0] not in (value.lower(), value.upper())


def _changed(left: list[tuple[str, str]], explained: set[str], whole: str, doc: int) -> Iterator[Finding]:
    bare_whole = _bare(whole)
    spaced_whole = _spaced(whole)
    for name, value in left:
        bare = _bare(value)
        if len(bare) < _SOME or bare in explained or bare not in bare_whole:
            continue
        only_blanks = _spaced(value) in spaced_whole
        message = (
            f"the task changes {'whitespace' if only_blanks else 'letter case or punctuation'} in a text of the data"
        )
        at_ends = _spaced(value)[1:].rstrip(".!?。") in spaced_whole  # to continue a sentence with it
        severity = Severity.INFO if only_blanks or at_ends else None
        yield finding(message, value, "doc_to_text", doc, field=name, severity=severity)


def _bare(text: str) -> str:
    return "".join(_WORDS.findall(text.casefold()))


@query("PF222", "the prompt contains data about the doc, such as its identifier", lambda study: own(study)[:1])
def _column_about_doc(page: Page) -> Iterator[Finding]:
    study = page.study
    used = template_names(study.written.doc_to_target) | template_names(study.written.doc_to_choice)
    for label, name in page.labelled:
        values = [str(doc.get(name) or "") for doc in study.real_docs]
        is_bare = label == name and study.asks_by_code  # which prints all columns with their names
        is_about = (_ABOUT_DOC if is_bare else _IDENTIFIER).fullmatch(name) is not None and len(set(values)) > 1
        words = [word for word in re.split(r"[\W_]", name.casefold()) if word]
        is_named = any(study.own_text.casefold().count(word) > 1 for word in words)
        if is_about and name not in used and not is_named and not any(" " in value.strip() for value in values):
            yield finding("", f"{name}: {values[0]}", field=name)


@query("PF222", "only some prompts contain the question of their doc", task)
def _shown_in_some_docs(study: Study) -> Iterator[Finding]:
    pages = own(study)
    printed = {name for each in study.templates if each.keys == ("doc_to_text",) for name in each.text.printed}
    for name in pages[0].instance.doc if pages else ():
        texts = [(page, page.instance.doc.get(name) or "") for page in pages]
        if not all(isinstance(text, str) for _, text in texts):
            continue
        shown = [(page, text.strip().casefold() in page.text.casefold()) for page, text in texts if " " in text.strip()]
        lost = next((page for page, is_shown in shown if not is_shown), None)
        is_asked = _QUESTION.fullmatch(name) and any(is_shown for _, is_shown in shown)
        if lost is not None and (is_asked or (name in printed and not any(starmap(_shares_words, texts)))):
            message = "" if is_asked else "the template prints a column, but some prompts do not contain its text"
            yield finding(message, lost.text[:60], "doc_to_text", lost.instance, field=name)


def _shares_words(page: Page, text: str) -> bool:
    """Return whether a text has fewer than four words, or a prompt shows three of them in a row."""
    words, shown = (re.findall(r"\w+", each.casefold()) for each in (text, _shown_text(page.instance)))
    known = set(zip(shown, shown[1:], shown[2:], strict=False))
    return len(words) < _FEWEST_WORDS or any(row in known for row in zip(words, words[1:], words[2:], strict=False))


@query("PF223", "a text of the data is cut off inside a sentence", task)
def _text_cut_off(study: Study) -> Iterator[Finding]:
    for template in study.templates:
        for found in _SLICE.finditer(template.source) if template.keys[-1] == "doc_to_text" else ():
            name, limit = found[1] or found[3], int(found[2] or 255)
            for number, doc in enumerate(study.real_docs):
                text = doc.get(name)
                if isinstance(text, str) and len(text.rstrip()) > limit > 1 and text[limit - 1] not in ".!?\n":
                    saw = (
                        f"{text[max(0, limit - 30) : limit]!r} is printed, but {text[limit : limit + 20]!r} is cut off"
                    )
                    yield finding("", saw, template.keys, number, field=name)
