"""The field mappings a format consumes: question, choices and answer of a doc, as Jinja that can be put anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jinja2

from pytest_promptfmt.core.errors import FormatError, Position
from pytest_promptfmt.core.task import FunctionRef, Spec
from pytest_promptfmt.formats.jinja_text import grammar, has_markup, is_path, literal, only_expression, operand, sealed


@dataclass(frozen=True, slots=True)
class Field:
    """One field mapping. `template` prints the value; `expression` is it inside Jinja's control flow.

    `expression` is None where the author wrote a whole template: then only its printed text exists.
    """

    template: str
    expression: str | None


@dataclass(frozen=True, slots=True)
class Choices:
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

    question: Field
    choices: Choices | None
    answer: Field
    topic: Field | None = None


def text_field(key: str, spec: Spec, position: Position | None = None) -> Field:
    """Return the question, answer or topic of a doc, from the mapping of that key.

    Raises FormatError for a function, a list and a bare name that Jinja cannot read.
    """
    _refuse_function(key, spec, position)
    if isinstance(spec, int):
        number = str(int(spec))
        return Field(number, number)
    if not isinstance(spec, str):
        raise FormatError(
            f"{key} is a {type(spec).__name__}; a format needs a column or a template there", position=position
        )
    source = spec.strip()
    if not has_markup(source):
        return _bare_field(key, source, position)
    try:
        inner = only_expression(source)
        grammar().parse(source)
    except jinja2.TemplateSyntaxError as error:
        raise FormatError(f"{key} is no Jinja template: {error.message}", position=position) from error
    if inner is None:
        return Field(sealed(source), None)
    return Field(f"{{{{ {inner} }}}}", inner)


def choices_field(spec: Spec, position: Position | None = None) -> Choices | None:
    """Return the choices of a doc from `doc_to_choice`, None when it is not set.

    Raises FormatError for a function and for a template that prints more than one expression.
    """
    if spec is None:
        return None
    _refuse_function("doc_to_choice", spec, position)
    if isinstance(spec, Mapping):
        spec = list(spec.values())
    if isinstance(spec, Sequence) and not isinstance(spec, str):
        fixed = tuple(str(choice) for choice in spec)
        if not fixed:
            raise FormatError("doc_to_choice is an empty list", position=position)
        return Choices(f"[{', '.join(literal(choice) for choice in fixed)}]", fixed)
    if not isinstance(spec, str):
        raise FormatError(f"doc_to_choice {spec!r} is neither a column, a template nor a list", position=position)
    field = text_field("doc_to_choice", spec, position)
    if field.expression is None:
        raise FormatError(
            "doc_to_choice is a whole template; a format needs a column or one expression to count them",
            position=position,
            hint="write the list as one expression: doc_to_choice: '{{ [first, second] }}'",
        )
    return Choices(operand(field.expression))


def _refuse_function(key: str, spec: Spec, position: Position | None) -> None:
    if isinstance(spec, FunctionRef) or callable(spec):
        raise FormatError(
            f"{key} is a function, so a format cannot see which column it reads",
            position=position,
            hint=f"give the format a column or template: {key}: <column>",
        )


def _bare_field(key: str, name: str, position: Position | None) -> Field:
    if name.isdecimal():
        return Field(name, str(int(name)))
    if is_path(name):
        return Field(f"{{{{ {name} }}}}", name)
    if not name:
        raise FormatError(f"{key} is empty", position=position, hint=f"{key}: <column>")
    # Jinja cannot read such a name (`Answer Key`); rendering looks the column up and says so when there is none.
    lookup = f"_column({literal(name)})"
    return Field(f"{{{{ {lookup} }}}}", lookup)
