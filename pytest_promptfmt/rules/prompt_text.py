"""Rules about text of prompts that is not meant for the model: placeholders, Python's notation, notes, indentation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.rules import Finding, Severity, Study
from pytest_promptfmt.rules.columns import COMMON, meant
from pytest_promptfmt.rules.page import Page, Text, asked_first, error_query, first, own, part_of, query, task, texts
from pytest_promptfmt.rules.rule_views import SHOWN, continuations, finding, own_spans, pattern, words, written_texts
from pytest_promptfmt.study.layout import layout_of

_LONG_WORD: Final = 6
"""Letters of a word that is no other one by a single letter."""

_ENDING: Final = 3
"""Letters at the end of a word of another language that change with its case or number."""

_SHIFTED_LINES: Final = 2
_INDENTED: Final = re.compile(r" {4,}\S|\t+\S")

_RAW_KEY: Final = re.compile(r"\b(?:about|in|of|on) ([a-z]{3,}(?:_[a-z]{2,})+)[.?!:]")
_KEY_VALUE: Final = re.compile(r"[a-z]{3,}(?:_[a-z]{2,})+")
_ABOUT: Final = re.compile(r"\babout ([a-z][\w &-]{3,50}?)[.:]")
_FOR_READERS: Final = pattern("prompt_text", "for_readers")
_MASK: Final = re.compile(r"\[MASK\]|<mask>|\[SEP\]|\[CLS\]")
_TURN: Final = pattern("prompt_text", "turn")
_PYTHON_LIST: Final = re.compile(r"\['[^'\[\]\n]+'(?:, '[^'\[\]\n]+')+\]")
_MEANS_PYTHON: Final = re.compile(r"\b(?:def|import|return|print)\b|```|\b[Pp]ython\b|\bJSON\b|\blist\b")
"""Where a list of Python may be meant."""

_OBJECT: Final = pattern("prompt_text", "object")
_NAMED: Final = pattern("prompt_text", "named")
_BRACKETED: Final = re.compile(r"^[^\W\d_][^:\n]{1,24}: ?[\[<{]([A-Z_]{3,}(?: [A-Z]+)?)[\]>}][ \t]*$", re.MULTILINE)
_OF_ANSWERS: Final = frozenset(
    {"answer", "label", "target", "output", "solution", "response", "gold", "choice", "option"}
)
_NOTE: Final = pattern("prompt_text", "note")
_MEDIA: Final = re.compile(r"<(?:image|img|audio|video)(?:[ _]?\d+)?>|\[(?:IMAGE|IMG|AUDIO|VIDEO)\]", re.IGNORECASE)
_TOPICS: Final = ("subject", "topic", "category", "language", "domain", "source_language", "target_language")
"""Columns that are the same for all docs of a task."""

_CODE: Final = re.compile(r"\b(?:def|class|return|import|int|void|function)\b|```|[;{}][ \t]*$", re.MULTILINE)


@query("PF246", "a sentence of the prompt contains a name with underscores", asked_first)
def _raw_key(page: Page) -> Iterator[Finding]:
    found = _RAW_KEY.search(page.study.own_text)
    if found is not None:
        yield finding(
            "", found[1], "description", do="replace the name with words: abstract algebra, not abstract_algebra"
        )
    for before, span in pairwise(page.instance.prompts[0].spans if page.study.has_real_docs else ()):
        if span.origin.field and _KEY_VALUE.fullmatch(span.text) and re.search(r"[a-z] \Z", before.text):
            yield finding("", span.text, field=span.origin.field)


@query("PF246", "a token of a masked language model is in the prompt", texts)
def _mask_token(text: Text) -> Iterator[str | Finding]:
    found, turn = _MASK.search(text.text), _TURN.search(text.text)
    if found is not None:
        yield found[0]
    elif turn is not None:
        do = "remove the markers: --apply_chat_template adds those of the model"
        yield finding("the turn markers of one chat template are in the prompt", turn[0], do=do)


@query("PF245", "a list, mapping or tuple is printed in Python's notation", task)
def _list_printed(study: Study) -> Iterator[Finding]:
    for template, text in written_texts(study):
        listed = _PYTHON_LIST.search(text)
        if listed is not None and not _MEANS_PYTHON.search(text):
            yield finding("", listed[0][:60], template.keys)
    for page in first(study):
        for name, value in page.instance.doc.items():
            printed = python_value(value, page.text)
            if printed is not None:
                span = next((one for one in page.message.content if printed in one.text), page.message.content[0])
                yield finding("", printed[:60], span, page.instance, field=name)
            elif isinstance(value, Mapping) and page.instance.target == str(value) and not study.has_own_scorer:
                message, do = (
                    "the gold answer is a mapping in Python's notation",
                    f"print the value of one key: {{{{{name}[…]}}}}",
                )
                keys, shown = ("doc_to_target",), str(value)[:60]
                yield finding(message, shown, keys, page.instance, field=name, severity=Severity.ERROR, do=do)


def python_value(value: Any, text: str) -> str | None:
    """Return how a text shows a list, mapping or one-element tuple of the data with Python's notation, None if not."""
    if isinstance(value, list | Mapping) and value and str(value) in text:
        return str(value)
    if isinstance(value, str) and value and f"({value!r},)" in text:
        return f"({value!r},)"
    return None


@error_query("PF245", "a Python object is printed instead of text", task, name="python-printed")
def _object_printed(study: Study) -> Iterator[Finding]:
    """Report a Python object that is printed instead of a text: a method, a generator, or the view of a mapping.

    Why: in Jinja, `{{passage.items}}` is the method `items` of the mapping `passage`, not the value of its key `items`.
    Jinja's filter `map` returns a generator. The prompt then contains `<generator object …>` instead of the text, often
    with a different address in every run.

    Fix: add `| join(', ')` to a list or generator. If a key is named like a method, such as `items`, write
    `passage['items']` instead of `passage.items`.

    Real: data with keys that are also names of Python methods: `items`, `values`, `title`, `count`, `index`.
    """
    for instance in study.instances[:2]:
        shown = [(span.text, span.origin.keys or ("doc_to_text",)) for span in own_spans(study, instance)]
        shown += [(text, ("doc_to_choice",)) for text in continuations(instance)]
        shown += [(instance.target, ("doc_to_target",))] if isinstance(instance.target, str) else []
        for text, keys in shown:
            found = _OBJECT.search(text)
            if found is not None:
                yield finding("", re.sub(r"0x[0-9a-f]+", "0x…", found[0]), keys, instance)


@error_query("PF246", "a placeholder was not filled in", task, name="not-filled-in")
def _name_not_filled_in(study: Study) -> Iterator[Finding]:
    """Report a placeholder that was not filled in, such as `%(question)s`, `${subject}` or `{doc["subject"]}`.

    Why: prompts are often copied from harnesses that use another syntax for placeholders. In Python, an f-string
    without its `f` keeps the braces, too. The model then gets the name instead of the text. `{name}` is reported if
    your docs have a column `name`.

    Fix: use `{{name}}` in templates, and an f-string in Python.

    Real: templates copied from harnesses with placeholders such as `{question}`, `%s` or `${question}`.
    """
    for instance in study.instances[:1]:
        for span in own_spans(study, instance):
            if span.origin.field is not None or ("%" in span.text and _CODE.search(span.text)):
                continue
            found = _NAMED.search(span.text) or _bracketed_column(span.text)
            is_single = study.asks_by_code or span.origin.part == "description"
            found = found or _column_in_braces(span.text, instance.doc, "{1,2}" if is_single else "{2}")
            if found is not None:
                yield finding("", part_of(span.text, found, 16)[:SHOWN], span.origin.keys, instance)


def _bracketed_column(text: str) -> re.Match[str] | None:
    """Return the first `[[question]]`, or `[QUESTION]` after a label, with the name of a common column."""
    named = (found for found in re.finditer(r"\[\[(\w+)\]\]", text) if found[1] in COMMON)
    shown = (found for found in _BRACKETED.finditer(text) if found[1].casefold() in COMMON - _OF_ANSWERS)
    return next(named, None) or next(shown, None)


def _column_in_braces(text: str, doc: Doc, count: str) -> re.Match[str] | None:
    names = "|".join(re.escape(str(name)) for name in {*doc, *(_TOPICS if count != "{2}" else ())})
    return re.search(rf"(?<![{{\\\w])\{{{count} ?(?:{names}) ?\}}{count}(?!\}})", text) if names else None


@query("PF246", "a note or an image placeholder is left in the text of a template", task)
def _note_left(study: Study) -> Iterator[Finding]:
    media = None if study.is_multimodal else _MEDIA
    for template in study.templates:
        is_shown = template.keys[-1] in ("description", "doc_to_text", "gen_prefix")
        for text in template.text.constants if is_shown else ():
            found = _NOTE.search(text) or (media.search(text) if media is not None else None)
            if found is not None:
                yield finding("", part_of(text, found, 16)[:SHOWN], template.keys)
    for page in own(study):
        found = media.search(page.text) if media is not None else None
        if found is not None:
            message = "the question has a placeholder for an image, but the model gets no image"
            yield finding(message, part_of(page.text, found, 16)[:SHOWN], doc=page.instance)


@query("PF812", "the task sends an image, but the prompt has no placeholder for it", own)
def _image_without_place(page: Page) -> Iterator[str]:
    columns = page.study.config.get("doc_to_image")
    images = [page.instance.doc.get(str(name)) for name in (columns if isinstance(columns, list) else [columns])]
    if all(images) and "<image" not in page.instance.prompts[0].text:
        yield page.text[:SHOWN]


@query("PF201", "the lines of the prompt are indented like code", asked_first)
def _indentation_of_code(page: Page) -> Iterator[str]:
    first, *others = page.text.split("\n")
    lines = [line for line in others if line.strip()]
    indented = [line for line in lines if _INDENTED.match(line)]
    is_shifted = len(indented) >= _SHIFTED_LINES and 3 * len(indented) >= 2 * len(lines) and lines[-1] == indented[-1]
    if is_shifted and not _INDENTED.match(first) and not _CODE.search(page.text):
        yield indented[-1]


@query(
    "PF280",
    "the description is in every prompt, but it describes the benchmark to people",
    task,
    at="description",
    name="description-for-readers",
)
def _description_for_readers(study: Study) -> Iterator[str]:
    """Report a `description` that describes the benchmark to people.

    Why: lm-eval prints the description at the start of every prompt. Text about the purpose of the task, or about its
    paper, belongs in `metadata` or a README.

    Fix: move the text into a comment, and write an instruction for the model instead.

    Real: lm-evaluation-harness #3442 (uncheatable_eval, in review).
    """
    text = study.written.description
    found = _FOR_READERS.search(text) if isinstance(text, str) else None
    if found is not None:
        yield found[0][:80]


@query("PF280", "the description names the subject or language of another task", task, at="description")
def _description_of_another_task(study: Study) -> Iterator[str | Finding]:
    name, description = study.config.get("dataset_name") or study.task.name, study.written.description
    description, named_task = description if isinstance(description, str) else "", study.task.name.casefold()
    subject = _ABOUT.search(description)
    if subject is not None and isinstance(name, str) and name.casefold() in named_task:
        subjects = set(data_table("contract")["subjects"].split())
        of_data, named = (set(re.findall("[a-z]+", text.casefold())) for text in (name, subject[1]))
        if of_data & subjects and named & subjects and not of_data & named:
            yield f"the description names {subject[1]}, but the dataset is {name}"
    languages = {code: language for language, codes in data_table("contract")["languages"].items() for code in codes}
    of_task = {languages[part] for part in re.split(r"[_\W]", named_task) if part in languages}
    words = {word.casefold() for word in re.findall(r"[A-Z][a-z]+", description)}
    described = words & {*languages.values()} - {"english"}
    if len(of_task) == 1 and described and not described & of_task:
        yield f"the description names {', '.join(sorted(described)).title()}, but the task is {study.task.name}"
    if len(of_task) == 1 and isinstance(name, str) and languages.get(name.casefold()) not in (None, *of_task):
        saw = f"dataset_name is {name}, but the task is {study.task.name}"
        do = "correct dataset_name, or the name of the task"
        yield finding("dataset_name and the task name refer to different languages", saw, "dataset_name", do=do)


def _is_inflected(word: str, other: str) -> bool:
    """Return whether two words differ only at their ends."""
    return word[: len(other) - _ENDING] == other[:-_ENDING]


@query("PF240", "a label is misspelled: a letter is missing, or two letters are swapped")
def _label_misspelt(page: Page) -> Iterator[str]:
    labels, known = layout_of(page.constant).labels, words("prompt_labels")
    is_english = any(label.name.casefold() in known for label in labels)
    is_ascii = page.study.own_text.isascii()
    written = {word for word in re.findall(r"[^\W\d_]+", page.study.own_text.casefold()) if len(word) >= _LONG_WORD}
    known |= {column.casefold() for _, column in page.labelled if column.isalpha()}
    for label in labels:
        name = label.name.casefold()
        # a doubled letter may be another language's (premisse), as may a lost -e or -s
        right = meant(name, {word for word in written - {name} if is_english or not _is_inflected(name, word)})
        right = right or (meant(name, known) if is_english or is_ascii else None)
        is_cut = is_english and any(name == each[:-1] and each[-1] not in "es" for each in known)
        if name not in page.instance.doc and (is_cut or (right is not None and len(name) <= len(right))):
            yield f"{label.name}{label.colon}"
