"""Rules about texts that meet without whitespace, or with too much: in templates, lists and Python code."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator, Mapping
from io import StringIO
from itertools import pairwise
from typing import Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.task import FunctionRef
from pytest_promptfmt.core.yaml_parser import MAX_BYTES
from pytest_promptfmt.rules import Finding, Severity, Study
from pytest_promptfmt.rules.columns import COMMON
from pytest_promptfmt.rules.prompt_text import uneven_labels
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import (
    around,
    finding,
    question_message,
    question_template,
    questions,
    severity_of_shots,
    skeleton,
    words,
)
from pytest_promptfmt.rules.task_code import definitions

_SENTENCE_END: Final = re.compile(r"(?:[^\W\d_]+,? ){3,}[^\W\d_]+[:.?!]\0")
_LITERAL: Final = re.compile(r"([A-Za-z]*)(\"\"\"|'''|\"|')(.*)\2", re.DOTALL)
_ESCAPED_END: Final = re.compile(r"\\[nrt]\Z")
_MARKUP: Final = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.S)
_TWO_SPACES: Final = re.compile(r"(?<=[^\s.!?])(?<!\uFFFD)  (?=\S)|(?<=\uFFFD)  (?=[^\s\uFFFD])")
_MANY_SPACES: Final = re.compile(r" {3}|\t")
_ELEMENT: Final = re.compile(
    r"#{1,6} ?\w|```|[-*•](?= )"
    r"|(?![a-z\d\u2e80-\u9fff\u3040-\u30ff\uac00-\ud7af])[^\W_][^\s:：]{1,20}(?: [^\s:：]{1,12}){0,2}:(?=\s|$)"
    r"|\(?(?:[A-Ja-j]|\d)[.)．] ?$|[A-Z][a-z]*(?: [a-z]+){2}"
)
"""A heading, a fence, a bullet, a label with its colon, that of an option or a sentence, at the start of a text."""

_MOST_DOUBLED: Final = 3
"""Double spaces of a template that does not align with them."""

_LONG_TEXTS: Final = words("columns_of_lines")
"""Columns of several lines, which may end with a newline."""


@also("PF201")
def space_doubled(study: Study) -> Iterator[Finding]:
    """Report two spaces inside a line of a template."""
    for template in study.templates:
        if template.keys[-1] not in ("doc_to_text", "description", "gen_prefix") or not isinstance(
            template.source, str
        ):
            continue
        text = _MARKUP.sub(
            lambda match: "\N{REPLACEMENT CHARACTER}" if match[0].startswith("{{") else "", template.source
        )
        found = list(_TWO_SPACES.finditer(text))
        if not 0 < len(found) <= _MOST_DOUBLED or _MANY_SPACES.search(text) or "```" in text:
            continue
        at = found[0].start()
        saw = around(text, at, 16).replace("\N{REPLACEMENT CHARACTER}", "{{…}}")
        yield finding("two spaces inside a line of the template", saw, template.keys)


@also("PF203")
def label_glued_to_column(study: Study) -> Iterator[Finding]:
    """Report a label, a heading, a bullet or a fence directly after a column, without a space or newline."""
    for instance, message in questions(study.instances[:1]) if not study.has_guessed_text else ():
        for before, after in pairwise([span for span in message.content if span.text]):
            name = before.origin.field
            if name is None or after.origin.field is not None or before.text[-1].isspace():
                continue
            element = _ELEMENT.match(after.text)
            if element is None or (element[0] in "-*•" and message.text.count(f"\n{element[0]} ") < 1):
                continue
            is_open = not study.has_real_docs and (name in _LONG_TEXTS or name not in COMMON)
            yield finding(
                "a label or other mark follows a column without a space or newline",
                f"{before.text[-20:]}{after.text[:24]}",
                after,
                instance,
                field=name,
                severity=Severity.INFO if is_open else None,
            )
            return


@also("PF201")
def odd_target_delimiter(study: Study) -> Iterator[Finding]:
    """Report a `target_delimiter` of several spaces, or of a space next to a newline."""
    delimiter = study.written.target_delimiter
    if isinstance(delimiter, str) and len(delimiter) > 1 and delimiter.isspace() and " " in delimiter:
        yield finding("target_delimiter is more than one space", delimiter, "target_delimiter")


@also("PF203")
def texts_without_space(study: Study) -> Iterator[Finding]:
    """Report two adjacent texts in Python that have no space between the words where they meet."""
    for key in ("doc_to_text", "doc_to_target", "doc_to_choice", "process_docs", "description"):
        named = study.config.get(key)
        if isinstance(named, FunctionRef):
            for node in definitions(named):
                for line, before, after in _glued_texts(named, node):
                    saw = f"{before[-30:]}{after[:20]}"
                    yield finding("two texts are joined without a space", saw, Position(named.file, line, 1))
                    return


def _glued_texts(named: FunctionRef, node: ast.FunctionDef) -> Iterator[tuple[int, str, str]]:
    """Yield the line and both texts where two literals of a function meet letter to letter."""
    source = gate.read_bytes(named.file, limit=MAX_BYTES).decode("utf-8", "replace")
    lines = source.splitlines(keepends=True)[node.lineno - 1 : node.end_lineno]
    before: str | None = None
    try:
        for token in tokenize.generate_tokens(StringIO("if True:\n" + "".join(lines)).readline):
            if token.type in (tokenize.NL, tokenize.COMMENT):
                continue
            found = _LITERAL.fullmatch(token.string) if token.type == tokenize.STRING else None
            after = found[3] if found is not None else None
            if before is not None and after is not None and _meet(before, after):
                yield node.lineno + token.start[0] - 2, before, after
            before = after
    except (tokenize.TokenError, IndentationError):
        return


def _meet(before: str, after: str) -> bool:
    """Return whether prose continues in prose without anything between them."""
    is_prose = before.count(" ") > 1 and after.count(" ") > 1 and not _ESCAPED_END.search(before)
    return is_prose and before[-1].isalpha() and after[0].isalpha()


@also("PF203", severity=Severity.ERROR)
def list_joined(study: Study) -> Iterator[Finding]:
    """Report a list of the docs whose texts are printed without anything between them."""
    for instance in study.real_instances:
        message = question_message(instance)
        shown = (("doc_to_text", message.text if message is not None else ""), ("doc_to_target", instance.target))
        for name, values in instance.doc.items():
            if not isinstance(values, list) or len(values) < 2 or not all(_is_wordy(value) for value in values):
                continue
            key = next((key for key, text in shown if isinstance(text, str) and "".join(values) in text), None)
            if key is not None:
                saw = "".join(values)[:80]
                yield finding(
                    "the texts of a list are printed without anything between them", saw, key, instance, field=name
                )
                return


def _is_wordy(value: object) -> bool:
    """Return whether a value is text that begins and ends with a letter, three at least: not a token or a character."""
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z](?:.*[A-Za-z])[A-Za-z]", value, re.DOTALL) is not None


@also("PF203")
def instruction_glued(study: Study) -> Iterator[Finding]:
    """Report a sentence that ends directly before a column, without a space or newline."""
    for template in study.templates:
        found = _SENTENCE_END.search(skeleton(template.source)) if template.keys[-1] == "doc_to_text" else None
        if found is not None and not any(_begins_with_space(study, doc) for doc in study.real_docs[:1]):
            if found[0].endswith(":\0") and any(uneven_labels(study)):
                return  # the colon of a label, which PF240 reports
            saw = found[0].replace("\0", "{{…}}")
            yield finding("a sentence ends directly before a column, without a space", saw, template.keys)


def _begins_with_space(study: Study, doc: Mapping[str, object]) -> bool:
    return any(isinstance(doc.get(name), str) and str(doc[name])[:1].isspace() for name in study.used_names)


@also("PF201")
def shots_on_one_line(study: Study) -> Iterator[Finding]:
    """Report a few-shot delimiter of spaces between examples that have several lines or labels."""
    delimiter = study.written.fewshot_delimiter
    if (
        isinstance(delimiter, str)
        and delimiter
        and not delimiter.strip(" ")
        and "\n" in question_template(study).strip()
    ):
        yield finding(
            "few-shot examples of several lines are separated by a space",
            delimiter,
            "fewshot_delimiter",
            severity=severity_of_shots(study),
        )
