"""Rules about text that was not meant for the model: Python objects, placeholders, notes, indentation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.columns import COMMON
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import (
    SHOWN,
    around,
    continuations,
    finding,
    own_spans,
    question_message,
    questions,
    written_texts,
)

_FOR_READERS: Final = re.compile(
    r"\b(?:benchmark|dataset|leaderboard|test suite)\b[^.\n]{0,120}\b(?:measur|evaluat|assess|test)\w*\b[^.\n]{0,80}"
    r"\b(?:language )?models?\b|\bLLMs?\b|@(?:inproceedings|article|misc)\{|https?://(?:arxiv\.org|github\.com)/|arXiv:\d"
)
_MASK: Final = re.compile(r"\[MASK\]|<mask>|\[SEP\]|\[CLS\]")
_TURN: Final = re.compile(
    r"<\|(?:im_start|im_end|user|assistant|start_header_id|eot_id)\|>|\[/?INST\]|<(?:start|end)_of_turn>"
)
_PYTHON_LIST: Final = re.compile(r"\['[^'\[\]\n]+'(?:, '[^'\[\]\n]+')+\]")
_MEANS_PYTHON: Final = re.compile(r"\b(?:def|import|return|print)\b|```|\b[Pp]ython\b|\bJSON\b|\blist\b")
"""Where a list of Python may be meant."""

_OBJECT: Final = re.compile(
    r"<(?:built-in |bound )?(?:method|function) [\w.<>]+ (?:of \S+ )?(?:object )?at 0x[0-9a-f]+>"
    r"|<generator object [\w.<>]+|<(?:class '[\w.]+'|\w[\w.]* object at 0x[0-9a-f]+)>|\bdict_(?:keys|values|items)\(\["
)
_NAMED: Final = re.compile(
    r"%\((\w+)\)s|(?<![\w%])%[sd](?!\w)|<<[a-z_]{3,}>>|@@\w{3,}@@|\$\{([A-Za-z_]{3,})\}(?!\$)|(?<![{\\\w])\{(?:doc|line|row|sample|example|item)(?:\.\w+|\[[^\]{}]+\])\}"
)
_NOTE: Final = re.compile(
    r"\b(?:TODO|FIXME|XXX)\b|\blorem ipsum\b|\[(?:INSERT|ADD|YOUR)\b[^\]\n]{0,40}\]"
    r"|<(?:insert|your) (?:question|text|prompt|description|instruction)[^>\n]{0,30}>",
    re.IGNORECASE,
)
_MEDIA: Final = re.compile(r"<(?:image|img|audio|video)(?:[ _]?\d+)?>|\[(?:IMAGE|IMG|AUDIO|VIDEO)\]", re.IGNORECASE)
_SHIFTED_LINES: Final = 2
_INDENTED: Final = re.compile(r" {4,}\S|\t+\S")
_CODE: Final = re.compile(r"\b(?:def|class|return|import|int|void|function)\b|```|[;{}][ \t]*$", re.MULTILINE)


@also("PF246")
def mask_token(study: Study) -> Iterator[Finding]:
    """Report the mask token of a masked language model, or the turn markers of a chat model, in a prompt.

    Fix: replace the token with the text, or end the prompt before it.
    """
    for template, text in written_texts(study):
        found = _MASK.search(text)
        if found is not None:
            yield finding("a token of a masked language model is in the prompt", found[0], template.keys)
            continue
        turn = _TURN.search(text)
        if turn is not None:
            do = "remove the markers: --apply_chat_template adds those of the model"
            yield finding("the turn markers of one chat template are in the prompt", turn[0], template.keys, do=do)


@also("PF245")
def list_printed(study: Study) -> Iterator[Finding]:
    """Report a list, mapping or tuple that is printed with Python's brackets and quotes.

    Fix: join the elements: `{{choices | join(', ')}}`.
    """
    for template, text in written_texts(study):
        listed = _PYTHON_LIST.search(text)
        if listed is not None and not _MEANS_PYTHON.search(text):
            yield finding("a list, mapping or tuple is printed as Python writes it", listed[0][:60], template.keys)
            return
    for instance, message in questions(study.instances[:1]):
        if study.has_guessed_text:
            return
        for name, value in instance.doc.items():
            printed = python_value(value, message.text)
            if printed is not None:
                span = next((one for one in message.content if printed in one.text), message.content[0])
                what = "a list, mapping or tuple is printed as Python writes it"
                yield finding(what, printed[:60], span, instance, field=name)
                return


def python_value(value: Any, text: str) -> str | None:
    """Return how a text shows a list, mapping or one-element tuple of the data with Python's notation, None if not."""
    if isinstance(value, list | Mapping) and value and str(value) in text:
        return str(value)
    if isinstance(value, str) and value and f"({value!r},)" in text:
        return f"({value!r},)"
    return None


@rule("PF245", "python-printed", severity=Severity.ERROR, family=Family.PROMPT)
def object_printed(study: Study) -> Iterator[Finding]:
    """Report a Python value that is printed as Python shows it: a method, a generator, the view of a mapping.

    Why: `{{passage.items}}` is the method `items` of the mapping, not its key, and `map` in Jinja gives a generator.
    The prompt then shows `<generator object …>` instead of the text, often with another number in every run.

    Fix: write `passage['items']`, or end the expression with `| join(', ')` or `| list | join(' ')`.

    Real: keys of data that are named like methods of Python: `items`, `values`, `title`, `count`, `index`.
    """
    for instance in study.instances[:2]:
        shown = [(span.text, span.origin.keys or ("doc_to_text",)) for span in own_spans(study, instance)]
        shown += [(text, ("doc_to_choice",)) for text in continuations(instance)]
        shown += [(instance.target, ("doc_to_target",))] if isinstance(instance.target, str) else []
        for text, keys in shown:
            found = _OBJECT.search(text)
            if found is not None:
                saw = re.sub(r"0x[0-9a-f]+", "0x…", found[0])
                yield finding("a Python object is printed instead of text", saw, keys, instance)
                return


@rule("PF246", "not-filled-in", severity=Severity.ERROR, family=Family.PROMPT)
def name_not_filled_in(study: Study) -> Iterator[Finding]:
    """Report a placeholder that was not filled in, such as `%(question)s`, `${subject}` or `{doc["subject"]}`.

    Why: prompts are often ported from harnesses with other placeholders, and a string without its `f` keeps the braces.
    The model reads the name instead of the text. `{name}` counts if it is a column of your docs.

    Fix: use `{{name}}` in templates, and an f-string in Python.

    Real: templates taken over from harnesses that fill in `{question}`, `%s` or `${question}`.
    """
    for instance in study.instances[:1]:
        for span in own_spans(study, instance):
            if span.origin.field is not None or ("%" in span.text and _CODE.search(span.text)):
                continue
            found = _NAMED.search(span.text) or _bracketed_column(span.text)
            found = found or (_column_in_braces(span.text, instance.doc) if study.asks_by_code else None)
            if found is not None:
                saw = around(span.text, found, 16)[:SHOWN]
                yield finding("a placeholder was not filled in", saw, span.origin.keys or ("doc_to_text",), instance)
                return


def _bracketed_column(text: str) -> re.Match[str] | None:
    """Return the first `[[question]]` with the name of a common column."""
    return next((found for found in re.finditer(r"\[\[(\w+)\]\]", text) if found[1] in COMMON), None)


def _column_in_braces(text: str, doc: Doc) -> re.Match[str] | None:
    names = "|".join(re.escape(str(name)) for name in doc)
    return re.search(rf"(?<![{{\\\w])\{{(?:{names})\}}", text) if names else None


@also("PF246")
def note_left(study: Study) -> Iterator[Finding]:
    """Report a note to the author, or the place of an image that the model does not get.

    Fix: remove the note; for images set `doc_to_image`, or leave out the docs that need one.
    """
    for template in study.templates:
        if template.keys[-1] not in ("description", "doc_to_text", "gen_prefix"):
            continue
        for text in template.text.constants:
            found = _NOTE.search(text) or (None if study.is_multimodal else _MEDIA.search(text))
            if found is not None:
                saw = around(text, found, 16)[:SHOWN]
                yield finding("a note or the place of an image is left in the text of a template", saw, template.keys)
                return
    for instance in study.real_instances if not study.is_multimodal else ():
        message = question_message(instance)
        found = _MEDIA.search(message.text) if message is not None else None
        if message is not None and found is not None:
            saw = around(message.text, found, 16)[:SHOWN]
            yield finding(
                "the question has the place of an image that the model does not get", saw, "doc_to_text", instance
            )
            return


@rule("PF266", "indentation-of-code", severity=Severity.WARNING, family=Family.PROMPT)
def indentation_of_code(study: Study) -> Iterator[Finding]:
    """Report a prompt whose lines are indented like the code or the YAML that they are written in.

    Why: a text over several lines in triple quotes keeps the spaces before each line of the file. All lines but the
    first begin with them, the cue too, and a model is not used to that.

    Fix: use `inspect.cleandoc`, or write the lines as adjacent texts.

    Real: afrimmlu and afrixnli of lm-evaluation-harness.
    """
    message = question_message(study.instances[0]) if study.instances else None
    first, *others = message.text.split("\n") if message is not None else [""]
    lines = [line for line in others if line.strip()]
    indented = [line for line in lines if _INDENTED.match(line)]
    is_shifted = len(indented) >= _SHIFTED_LINES and 3 * len(indented) >= 2 * len(lines) and lines[-1] == indented[-1]
    if is_shifted and message is not None and not _INDENTED.match(first) and not _CODE.search(message.text):
        yield finding("the lines of the prompt are indented like code", indented[-1], "doc_to_text", study.instances[0])


@rule("PF280", "description-for-readers", severity=Severity.WARNING, family=Family.PROMPT)
def description_for_readers(study: Study) -> Iterator[Finding]:
    """Report a `description` that describes the benchmark to people.

    Why: lm-eval prints the description before the first few-shot example of every prompt. The purpose of the task and
    its paper belong into `metadata` or a README.

    Fix: move the text into a comment, and describe to the model what it is to do.

    Real: lm-evaluation-harness #3442 (uncheatable_eval, in review).
    """
    text = study.written.description
    found = _FOR_READERS.search(text) if isinstance(text, str) else None
    if found is not None:
        yield finding("the description is about the benchmark, and part of every prompt", found[0][:80], "description")
