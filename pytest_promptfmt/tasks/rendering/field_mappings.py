"""Field mappings: what `doc_to_text`, `doc_to_target`, `doc_to_choice` and their kin give for one doc.

A value comes with the spans of its text, each knowing the key and the column it was made from. All rules imitate
lm-eval 0.4.13.
"""

from __future__ import annotations

import ast
import copy
import difflib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any, Final, NamedTuple

from pytest_promptfmt.core.docs import Doc, TaskDocs
from pytest_promptfmt.core.errors import (
    CodeNotAllowedError,
    LimitExceededError,
    Position,
    PromptfmtError,
    RenderError,
    place_in_user_code,
    quoted,
    shortened,
)
from pytest_promptfmt.core.limits import time_limit
from pytest_promptfmt.core.prompt import Origin, Part, Place, Span
from pytest_promptfmt.core.task import UNSET, FunctionRef, Spec, Task, TextTemplate, Unset
from pytest_promptfmt.tasks.import_failures import lacking
from pytest_promptfmt.tasks.rendering.jinja import Piece, Template, compile_template, explain

MODEL_ARGUMENTS: Final = ("lmms_eval_specific_kwargs", "model_specific_prompt_kwargs")
"""Keys of lmms-eval's tasks with arguments by model, the second its earlier name."""

FUNCTION_SECONDS: Final = 10.0
"""How long one call of a user's function may take."""


class Value(NamedTuple):
    """The value of a field for a doc, and the spans of its text when it is one."""

    value: Any
    spans: tuple[Span, ...] = ()


Convert = Callable[[str], Any]
"""From a rendered template to the text itself, or to the value it represents."""


class FieldMapping:
    """One field mapping of a task, ready to be applied to docs.

    `columns` are the names that count as columns; with None they are those of each doc (description, and the gen
    prefix of shots). A string that is not a column is a template: a mistyped name renders as itself.
    """

    __slots__ = ("_columns", "_convert", "_literals", "_origins", "_template", "key", "part", "position", "spec")

    def __init__(
        self,
        task: Task,
        spec: Spec,
        part: Part,
        key: str,
        columns: Collection[str] | None,
        convert: Convert | None = None,
        literals: tuple[type, ...] = (),
    ) -> None:
        self.spec, self.part, self.key = spec, part, key
        self.position = task.position(*key.split("."))
        self._columns, self._convert, self._literals = columns, convert, literals
        self._template: Template | None = None
        self._origins: dict[tuple[int | None, str | None], Origin] = {}

    @property
    def is_function(self) -> bool:
        """Return whether applying the field runs the user's Python code."""
        return isinstance(self.spec, FunctionRef) or callable(self.spec)

    @property
    def is_repeatable(self) -> bool:
        """Return whether the field gives the same value each time, and does not change the doc."""
        if not isinstance(self.spec, str):
            return not self.is_function
        try:
            return not compile_template(self.spec).is_random
        except Exception:
            return True

    def __call__(self, doc: Doc, place: Place) -> Value:
        """Return the field's value for a doc.

        Raises RenderError (from the original exception), LimitExceededError, CodeNotAllowedError.
        """
        spec = self.spec
        if isinstance(spec, str):
            if spec in (doc if self._columns is None else self._columns):
                return self._column(doc, spec, place)
            return self._rendered(doc, place)
        if isinstance(spec, self._literals):
            return Value(list(spec.values()) if isinstance(spec, dict) else spec)
        if self.is_function:
            made = call_function(spec, doc, key=self.key, where=str(place), position=self.position)
            return self.with_span(made, place.shot)
        message = f"{self.key} {place}: expected a column, a template or a function, got {spec!r}"
        raise RenderError(message, position=self.position).naming(str(place)) from TypeError(message)

    def origin(self, shot: int | None, column: str | None = None) -> Origin:
        """Return the origin of a text that this field gives; the same object each time."""
        origin = self._origins.get((shot, column))
        if origin is None:
            known = column if self._columns is None or column in self._columns else None
            origin = Origin(self.part, self.key, self.position, shot, known)
            self._origins[shot, column] = origin
        return origin

    def with_span(self, value: Any, shot: int | None, column: str | None = None) -> Value:
        """Return the value with one span of its text when it is one (an element of a list, a function's result)."""
        if column is None and isinstance(self.spec, str) and self._columns and self.spec in self._columns:
            column = self.spec
        if isinstance(value, str) and value:
            return Value(value, (Span(value, self.origin(shot, column)),))
        return Value(value)

    def _column(self, doc: Doc, column: str, place: Place) -> Value:
        try:
            return self.with_span(doc[column], place.shot, column)
        except KeyError as error:
            message = f"{self.key} {place}: the doc has no column {column!r}"
            raise RenderError(message, position=self.position).naming(str(place)) from error

    def _rendered(self, doc: Doc, place: Place) -> Value:
        try:
            if self._template is None:
                self._template = compile_template(self.spec)
            pieces = self._template.pieces(doc)
        except Exception as error:
            raise explain(error, self.key, str(place), self.spec, tuple(doc), self.position) from error
        if self._convert is None:
            return self._text(pieces, place.shot)
        text = "".join([piece[0] for piece in pieces])
        try:
            value = self._convert(text)
        except Exception as error:
            # ast's other errors name only the node, by its address in memory.
            what = f" ({error.msg})" if isinstance(error, SyntaxError) else ""
            message = f"{self.key} {place}: expected a column or a list, got {quoted(text)}{what}"
            columns = ", ".join(map(str, doc)) if text.isidentifier() else ""
            hint = f"the columns are {shortened(columns)}" if columns else None
            raise RenderError(message, position=self.position, hint=hint).naming(str(place)) from error
        return self._text(pieces, place.shot) if value is text else Value(value)

    def _text(self, pieces: list[Piece], shot: int | None) -> Value:
        origins = self._origins
        spans: list[Span] = []
        for text, column, _ in pieces:
            if text:
                # Markup, from `|safe` or `|escape`, would escape text that is added to it.
                text = text if text.__class__ is str else str.__str__(text)
                spans.append(Span(text, origins.get((shot, column)) or self.origin(shot, column)))
        return Value("".join([span.text for span in spans]), tuple(spans))


def call_function(spec: Spec, *arguments: Any, key: str, where: str, position: Position | None, **options: Any) -> Any:
    """Return what a user's function returns.

    Raises RenderError from any exception of the function (SystemExit too, KeyboardInterrupt not),
    LimitExceededError after `FUNCTION_SECONDS`, CodeNotAllowedError for a function that was never resolved.
    """
    if isinstance(spec, FunctionRef):
        message = f"{key} {where}: the Python function {spec} is not allowed to run"
        raise CodeNotAllowedError.of(message, spec.position)
    try:
        with time_limit(FUNCTION_SECONDS, f"{key} {where}", position):
            return spec(*arguments, **options)
    except (KeyboardInterrupt, LimitExceededError, PromptfmtError):
        raise
    except BaseException as error:
        name = getattr(spec, "__name__", repr(spec))
        message = f"{key} {where}: the function {name}() failed with {type(error).__name__}: {error}"
        if (missing := lacking(error, message, position)) is not None:
            raise missing.naming(where) from error
        # Not part of the message: a baseline stores messages, and lines move.
        place = place_in_user_code(error)
        hint = f"the function failed at {place}" if place else None
        raise RenderError(message, position=position, hint=hint).naming(where) from error


def text_field(task: Task, spec: Spec, key: str, columns: Collection[str]) -> FieldMapping:
    """Return the question; digits become an int when the task has choices (lm-eval 0.4.13: multiple inputs)."""
    convert = _digits if task.doc_to_choice is not None and not isinstance(spec, TextTemplate) else None
    return FieldMapping(task, spec, "question", key, columns, convert, (int,))


def target_field(task: Task, spec: Spec, key: str, columns: Collection[str]) -> FieldMapping:
    """Return the gold answer: an index, a text or a list."""

    def convert(text: str) -> Any:
        if task.doc_to_choice is not None and text.isdigit():
            return _digits(text)
        with suppress(SyntaxError, ValueError):
            return ast.literal_eval(text) if len(text) > 1 and text[0] == "[" and text[-1] == "]" else text
        return text

    given = None if isinstance(spec, TextTemplate) else convert
    return FieldMapping(task, spec, "answer", key, columns, given, (int, list))


def choice_field(task: Task, spec: Spec, key: str, columns: Collection[str]) -> FieldMapping:
    """Return the choices: a list from the column, the literal a template renders to, or the author's own list."""
    return FieldMapping(task, spec, "answer", key, columns, ast.literal_eval, (list, dict))


FIELDS_BY_KEY: Final[Mapping[str, Callable[..., FieldMapping]]] = {
    "doc_to_text": text_field,
    "doc_to_target": target_field,
    "doc_to_choice": choice_field,
}


def _digits(text: str) -> Any:
    # `007` and `²` are digits but no literals: lm-eval fails on them, and so do we.
    return ast.literal_eval(text) if text.isdigit() else text


_SIMILAR: Final = 0.75
"""How similar (difflib) a text is to a column name that it misspells: `qestion` is, `True or False?` is not."""


def refuse_mistyped_columns(task: Task, docs: TaskDocs) -> None:
    """Raise RenderError for a field that is neither a column nor a template, but nearly the name of a column.

    lm-eval 0.4.13 renders any string that is not exactly a column as a template, so that `qestion` becomes the prompt
    of every doc. Rendering imitates that; a test must not pass it.
    """
    for keys, spec in fields_of(task):
        if not isinstance(spec, str) or isinstance(spec, TextTemplate) or "{" in spec or spec in docs.columns:
            continue
        close = difflib.get_close_matches(spec.casefold(), [name.casefold() for name in docs.columns], 1, _SIMILAR)
        if close:
            column = next(name for name in docs.columns if name.casefold() == close[0])
            message = (
                f"{'.'.join(keys)} of {task.name!r} is {spec!r}, but the docs have no such column. "
                "lm-eval would put this word into every prompt"
            )
            raise task.error(RenderError, message, *keys, hint=f"did you mean {column!r}?").naming(repr(task.name))


def fields_of(
    task: Task, names: Sequence[str] = ("doc_to_text", "doc_to_choice", "doc_to_target")
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the field mappings of these names for docs and for shots, each with the path of its key."""
    for name in names:
        yield (name,), getattr(task, name)
        shots = getattr(task.fewshot, name, UNSET)
        if not isinstance(shots, Unset):
            yield ("fewshot_config", name), shots


def with_model_arguments(function: Any, config: Mapping[Any, Any]) -> Any:
    """Return a function with what lmms-eval 0.5 passes after the doc: the arguments for a model without its own."""
    given = next((config[key] for key in MODEL_ARGUMENTS if isinstance(config.get(key), Mapping)), None)
    if given is None or not callable(function):
        return function
    try:
        inspect.signature(function).bind({}, given)
    except (TypeError, ValueError):
        return function
    chosen: Mapping[Any, Any] = next(filter(None, map(given.get, ("default", "dataset"))), {})
    arguments = copy.deepcopy({**given, **(chosen if isinstance(chosen, Mapping) else {})})
    return wraps(function)(lambda doc: function(doc, arguments))
