r"""The field mappings a format consumes: question, choices and answer of a doc, as Jinja that can be put anywhere.

A format needs the fields, not a finished prompt. Where `doc_to_text` is a layout already, they are read in it:
`Question: {{question}}\nAnswer:` is the question between two cues, `{{question}}\nA. {{choices[0]}}…` question and
choices. Other layouts are refused with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jinja2
from jinja2 import nodes

from pytest_promptfmt.core.errors import FormatError, did_you_mean
from pytest_promptfmt.core.task import FunctionRef, Spec, Task
from pytest_promptfmt.formats.labels import LABEL_SETS

FIELD_NAMES = {"question": "doc_to_text", "choices": "doc_to_choice", "answer": "doc_to_target"}
"""The keys of `metadata.promptfmt.fields`, by which a task gives formats its fields without changing its prompt."""

MAPPING_KEYS = tuple(FIELD_NAMES.values())

_FIELDS_HINT = (
    "set the fields that formats use: metadata: {promptfmt: {fields: {question: …, choices: …, answer: …}}}."
    " This does not change the prompt of the task itself"
)
_OPENING_CUE = re.compile(r"\A\s*(?:Question|Query|Problem|Q)\s*[:.]\s*", re.IGNORECASE)
_CLOSING_CUE = re.compile(
    r"\s+(?:(?:The\s+)?(?:Correct\s+|Best\s+)?(?:Answer|Response)(?:\s+is)?\s*[:.]?|A\s*:)\s*\Z", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class FormatField:
    """One field mapping. `template` prints the value; `expression` is it inside Jinja's control flow.

    `expression` is None where the author wrote a whole template: then only its printed text exists.
    """

    template: str
    expression: str | None


@dataclass(frozen=True, slots=True)
class FormatChoices:
    """The choices of a doc: an expression of a sequence, and the texts themselves where the task fixes them.

    `items` are templates that print one choice each, where their number is known: then the prompt lists them one by
    one, as they are, instead of going through the sequence.
    """

    expression: str
    fixed: tuple[str, ...] | None = None
    items: tuple[str, ...] | None = None

    @property
    def texts(self) -> str:
        """Return an expression of the list of choices as strings, which they are in every prompt."""
        return f"{self.expression}|map('string')|list"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fields:
    """The field mappings of a task, read."""

    question: FormatField
    choices: FormatChoices | None
    answer: FormatField
    topic: FormatField | None = None


def text_field(key: str, spec: Spec) -> FormatField:
    """Return the question, answer or topic of a doc, from the mapping of that key.

    Raises FormatError for a function, a list and a bare name that Jinja cannot read.
    """
    _refuse_function(key, spec)
    if isinstance(spec, int):
        number = str(int(spec))
        return FormatField(number, number)
    if not isinstance(spec, str):
        raise FormatError(f"{key} must be a column or a template for a format, not {type(spec).__name__}", key=key)
    source = spec.strip()
    if not has_markup(source):
        return _bare_field(key, source)
    try:
        inner = only_expression(source)
        grammar().parse(source)
    except jinja2.TemplateSyntaxError as error:
        raise FormatError(f"{key} is not a valid Jinja template: {error.message}", key=key) from error
    if inner is None:
        return FormatField(sealed(source), None)
    return FormatField(f"{{{{ {inner} }}}}", inner)


def choices_field(spec: Spec) -> FormatChoices | None:
    """Return the choices of a doc from `doc_to_choice`, None when it is not set.

    Raises FormatError for a function and for a template that prints more than one expression.
    """
    if spec is None:
        return None
    _refuse_function("doc_to_choice", spec)
    if isinstance(spec, Mapping):
        spec = list(spec.values())
    if isinstance(spec, Sequence) and not isinstance(spec, str):
        fixed = tuple(str(choice) for choice in spec)
        if not fixed:
            raise FormatError("doc_to_choice is an empty list", key="doc_to_choice")
        return FormatChoices(f"[{', '.join(literal(choice) for choice in fixed)}]", fixed)
    if not isinstance(spec, str):
        raise FormatError(f"doc_to_choice must be a column, a template or a list, not {spec!r}", key="doc_to_choice")
    field = text_field("doc_to_choice", spec)
    if field.expression is None:
        hint = "write the list as one expression: doc_to_choice: '{{ [first, second] }}'"
        message = (
            "doc_to_choice has text and expressions; to count the choices, a format needs a column or one expression"
        )
        raise FormatError(message, key="doc_to_choice", hint=hint)
    return FormatChoices(operand(field.expression))


def _refuse_function(key: str, spec: Spec) -> None:
    if isinstance(spec, FunctionRef) or callable(spec):
        message = f"{key} is a function, but a format needs the name of a column, or a template"
        raise FormatError(message, key=key, hint=f"write {key}: <column>")


def _bare_field(key: str, name: str) -> FormatField:
    if name.isdecimal():
        return FormatField(name, str(int(name)))
    if is_path(name):
        return FormatField(f"{{{{ {name} }}}}", name)
    if not name:
        raise FormatError(f"{key} is empty", key=key, hint=f"write {key}: <column>")
    # Jinja cannot read such a name (`Answer Key`); rendering looks the column up and reports a missing one.
    lookup = f"_column({literal(name)})"
    return FormatField(f"{{{{ {lookup} }}}}", lookup)


@dataclass(frozen=True, slots=True)
class Mappings:
    """The field mappings that a format consumes, and in words how they were found where the author wrote others."""

    doc_to_text: Spec
    doc_to_choice: Spec
    doc_to_target: Spec
    notes: tuple[str, ...] = ()


def declared_mappings(task: Task) -> Mappings | None:
    """Return the fields of `metadata.promptfmt.fields`, None without them. Raises FormatError at an unknown name."""
    fields = task.own_metadata.get("fields")
    if fields is None:
        return None
    keys = ("metadata", "promptfmt", "fields")
    if not isinstance(fields, Mapping):
        raise task.error(FormatError, "fields is not a mapping", *keys, hint="fields: {question: …}")
    for name in fields:
        if name not in FIELD_NAMES:
            message = f"unknown key {name!r} in fields; a format reads {', '.join(FIELD_NAMES)}"
            raise task.error(FormatError, message, *keys, name, hint=did_you_mean(str(name), FIELD_NAMES))
    return Mappings(**{key: fields.get(name, getattr(task, key)) for name, key in FIELD_NAMES.items()})


def read_mappings(task: Task, format_name: str) -> Mappings:
    """Return the fields of a task that was not written for formats.

    Columns and single expressions are taken as they are. A whole template is read as question (and choices) between
    cues. Raises FormatError, saying what was found and how to give the fields, when it cannot be read so.
    """
    text, choices = task.doc_to_text, task.doc_to_choice
    labels = labels_in(choices)
    if not isinstance(text, str) or not has_markup(text) or _is_expression(text):
        if labels is not None:
            message = (
                f"doc_to_text is only the question, and doc_to_choice has only the labels {', '.join(labels)},"
                f" so format {format_name!r} cannot find the choices"
            )
            raise task.error(FormatError, message, "doc_to_choice", hint=_FIELDS_HINT)
        return Mappings(text, choices, task.doc_to_target)
    segments = segments_of(text)
    if segments is None:
        raise _unreadable(task, format_name, "doc_to_text has Jinja statements")
    if labels is not None:
        found = listed_choices(segments, labels)
        if found is None:
            raise _unreadable(
                task, format_name, f"doc_to_text has no list of choices with the labels {', '.join(labels)}"
            )
        question = [*segments[: found.first], (False, found.labels[0][1])]
        listed = f"{{{{ [{', '.join(found.expressions)}] }}}}"
        return _noted(task, _without_cues(question, closing=False), listed)
    return _noted(task, _without_cues(segments, closing=True), choices)


def _noted(task: Task, question: Sequence[tuple[bool, str]], choices: Spec) -> Mappings:
    source = "".join(text for _, text in question)
    notes = [f"doc_to_text is more than a question; the format uses only the question {source!r} from it"]
    if choices is not task.doc_to_choice:
        notes.append(f"doc_to_choice has only labels; the format uses the choices {choices!r} from doc_to_text")
    return Mappings(source, choices, task.doc_to_target, tuple(notes))


def _unreadable(task: Task, format_name: str, why: str) -> FormatError:
    shown = repr(task.doc_to_text if len(task.doc_to_text) <= 80 else f"{task.doc_to_text[:77]}…")
    message = f"format {format_name!r} cannot find the question in doc_to_text {shown}: {why}"
    return task.error(FormatError, message, "doc_to_text", hint=_FIELDS_HINT)


def _is_expression(source: str) -> bool:
    try:
        return only_expression(source.strip()) is not None
    except jinja2.TemplateSyntaxError:
        return True  # reported where the format parses it


def labels_in(choices: Any) -> tuple[str, ...] | None:
    """Return the choices when they are nothing but the first labels of a set, else None."""
    if not isinstance(choices, Sequence) or isinstance(choices, str):
        return None
    labels = tuple(str(choice).strip() for choice in choices)
    bare = tuple(label.strip("().[]:") for label in labels)
    numbers = tuple(str(number) for number in range(1, len(bare) + 1))
    known = (*(labels_of[: len(bare)] for labels_of in LABEL_SETS.values()), numbers)
    return bare if len(bare) > 1 and bare in known else None


def segments_of(source: str) -> list[tuple[bool, str]] | None:
    """Return literal texts (False) and `{{ … }}` outputs (True) in turn; None when there is other markup."""
    try:
        tokens = list(grammar().lex(source))
    except jinja2.TemplateSyntaxError:
        return None
    segments: list[tuple[bool, str]] = []
    inside = False
    for _, kind, text in tokens:
        if kind == "data":
            segments.append((False, text))
        elif kind == "variable_begin":
            segments.append((True, text))
            inside = True
        elif inside:
            segments[-1] = (True, segments[-1][1] + text)
            inside = kind != "variable_end"
        else:
            return None
    return segments


@dataclass(frozen=True, slots=True)
class Listed:
    """Choices that a layout lists one by one: behind each label an expression.

    `first` is the index of the segment with the first label. `labels` are the texts with the labels; their groups are
    what is before a label, an opening bracket, and what is between label and choice. `after` is the text behind them.
    """

    first: int
    labels: tuple[re.Match[str], ...]
    expressions: tuple[str, ...]
    after: str


def listed_choices(segments: Sequence[tuple[bool, str]], labels: Sequence[str]) -> Listed | None:
    """Return the choices that segments of a layout list behind these labels; None when they are not all found."""
    found: list[re.Match[str]] = []
    expressions: list[str] = []
    first = 0
    for index in range(len(segments) - 1):
        if segments[index][0] or not segments[index + 1][0] or len(found) == len(labels):
            continue
        label = re.escape(labels[len(found)])
        match = re.fullmatch(rf"(?s)(.*?)(?<![A-Za-z0-9])([(\[]?){label}([)\].:]*\s*)", segments[index][1])
        if match is None and found:
            return None
        if match is not None:
            first = first if found else index
            found.append(match)
            expressions.append(only_expression(segments[index + 1][1]) or "")
    after = segments[first + 2 * len(labels) :]
    if len(found) < len(labels) or any(is_output for is_output, _ in after):
        return None
    return Listed(first, tuple(found), tuple(expressions), "".join(text for _, text in after))


def _without_cues(segments: list[tuple[bool, str]], *, closing: bool) -> list[tuple[bool, str]]:
    """Return the segments without the words before the question and, where the prompt ends with one, the answer cue."""
    result = list(segments)
    if result and not result[0][0]:
        result[0] = (False, _OPENING_CUE.sub("", result[0][1]))
    if closing and result and not result[-1][0]:
        result[-1] = (False, _CLOSING_CUE.sub("", result[-1][1]))
    if result and not result[-1][0]:
        result[-1] = (False, result[-1][1].rstrip())
    return [segment for segment in result if segment[1]]


# -- pieces of Jinja, which mean the same next to any other ----------------------------------------------------------

_ESCAPES = {ord("\\"): "\\\\", ord("'"): "\\'", ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"}
_MARKERS = ("{{", "{%", "{#")


@cache
def grammar() -> jinja2.Environment:
    """Return the environment whose grammar templates are read in: lm-eval 0.4.13's plain Jinja."""
    return jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)


def literal(text: str) -> str:
    """Return a Jinja string literal whose value is `text`, line ends, quotes and braces included."""
    return f"'{text.translate(_ESCAPES)}'"


def has_markup(text: str) -> bool:
    """Return whether Jinja would do anything but print the text."""
    return any(marker in text for marker in _MARKERS)


def only_expression(source: str) -> str | None:
    """Return `x` of a template that is exactly `{{ x }}`, else None. Raises TemplateSyntaxError."""
    tokens = list(grammar().lex(source))
    kinds = [kind for _, kind, _ in tokens]
    if len(kinds) < 3 or kinds[0] != "variable_begin" or kinds[-1] != "variable_end":
        return None
    if kinds.count("variable_begin") != 1:
        return None
    return "".join(text for _, _, text in tokens[1:-1]).strip()


def is_name(text: str) -> bool:
    """Return whether `{{ text }}` reads the variable of that name and nothing else."""
    return is_path(text) and "." not in text


def is_path(text: str) -> bool:
    """Return whether the text is a variable or attributes of one (`choices.text`), so that it can be written bare."""
    if not all(part.isidentifier() for part in text.split(".")) or text.split(".")[0] in ("self", "loop"):
        return False
    try:
        body = grammar().parse(f"{{{{ {text} }}}}").body
    except jinja2.TemplateSyntaxError:
        return False
    output = body[0] if len(body) == 1 else None
    node = output.nodes[0] if isinstance(output, nodes.Output) and len(output.nodes) == 1 else None
    while isinstance(node, nodes.Getattr):
        node = node.node
    return isinstance(node, nodes.Name)


def operand(expression: str) -> str:
    """Return the expression so that filters and tests can follow it."""
    return expression if is_path(expression) or expression.isdigit() else f"({expression})"


def sealed(source: str) -> str:
    """Return the template so that text put before or after it stays as it is, and it stays as it is.

    A `{-` or `-}` at its edges would eat its neighbour's whitespace; a brace at its end would open a tag.
    """
    if re.match(r"\{[{%#]-", source):
        source = "{{ '' }}" + source
    if source.endswith(("-}}", "-%}", "-#}")):
        source += "{{ '' }}"
    bare = source.rstrip("{")
    if len(bare) < len(source):
        source = f"{bare}{{{{ {literal(source[len(bare) :])} }}}}"
    return source


def printed(text: str) -> str:
    """Return a template that prints exactly this text, braces included."""
    plain = not has_markup(text) and "\r" not in text and not text.endswith("{")
    return text if plain else f"{{{{ {literal(text)} }}}}"
