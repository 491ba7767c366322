"""Task templates: Jinja as lm-eval sets it up, in a sandbox, compiled once, and rendered piece by piece.

A piece knows which column of the doc it prints. Chat templates have another dialect: profiles/dialect.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NoReturn

from jinja2 import StrictUndefined, Template as JinjaTemplate, nodes, pass_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateRuntimeError, TemplateSyntaxError, UndefinedError
from jinja2.runtime import Context
from jinja2.sandbox import MAX_RANGE
from jinja2.utils import missing

from pytest_promptfmt.core.errors import (
    OUT_OF_MEMORY,
    LimitExceededError,
    Position,
    RenderError,
    did_you_mean,
    shortened,
)
from pytest_promptfmt.core.sandbox import MAX_CHARACTERS, LimitedSandbox

Piece = tuple[str, str | None, int | None]
"""Text, the column it prints (None for constant text), and the template's line (None for constant text)."""

_CACHED_TEMPLATES: Final = 4096
_NOT_COLUMNS: Final = frozenset({"loop", "caller", "varargs", "kwargs", "super", "self"})


class _PieceGenerator(CodeGenerator):
    """Compiles `{{ expression }}` outside of macros and set blocks to a piece instead of a bare text."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sources: dict[str, str | None] = {}

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if frame.buffer is None:
            self.write("(")
        super()._output_child_pre(node, frame, finalize)

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        super()._output_child_post(node, frame, finalize)
        if frame.buffer is None:
            self.write(f", {self._column(node)!r}, {node.lineno!r})")

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802
        """Write a loop, remembering which column its variable comes from."""
        self._remember(node.target, node.iter)
        super().visit_For(node, frame)

    def visit_Assign(self, node: nodes.Assign, frame: Frame) -> None:  # noqa: N802
        """Write an assignment, remembering which column its variable comes from."""
        self._remember(node.target, node.node)
        super().visit_Assign(node, frame)

    def visit_Macro(self, node: nodes.Macro, frame: Frame) -> None:  # noqa: N802
        """Write a macro, remembering that its name is not a column."""
        self._sources[node.name] = None
        super().visit_Macro(node, frame)

    def _remember(self, target: nodes.Node, value: nodes.Node) -> None:
        column = self._column(value)
        names = [target] if isinstance(target, nodes.Name) else target.find_all(nodes.Name)
        self._sources.update({name.name: column for name in names})

    def _column(self, node: nodes.Node) -> str | None:
        for name in _names(node):
            if name in self._sources:
                if self._sources[name] is not None:
                    return self._sources[name]
            elif name not in self.environment.globals and name not in _NOT_COLUMNS:
                return name
        return None


def _names(node: nodes.Node) -> Iterator[str]:
    """Yield the names an expression uses, those whose value is printed before those that only choose."""
    if isinstance(node, nodes.Name):
        yield node.name
        return
    children: Iterable[nodes.Node] = node.iter_child_nodes()
    if isinstance(node, nodes.CondExpr):
        children = [child for child in (node.expr1, node.expr2, node.test) if child is not None]
    for child in children:
        yield from _names(child)


class _TaskSandbox(LimitedSandbox):
    code_generator_class = _PieceGenerator

    @staticmethod
    def concat(pieces: Iterable[str | Piece]) -> str:
        return LimitedSandbox.concat(piece if isinstance(piece, str) else piece[0] for piece in pieces)


def _regex_replace(string: str, pattern: str, repl: str, count: int = 0) -> str:
    """Return `re.sub`, the one filter lm-eval 0.4.13 adds to Jinja's own."""
    if (len(string) + 1) * (len(repl) + 1) > MAX_CHARACTERS:
        raise LimitExceededError(f"regex_replace may make a text of more than {MAX_CHARACTERS:,} characters")
    return re.sub(pattern, repl, string, count=count)


def _raise_exception(message: str) -> NoReturn:
    """Raise for a template that refuses a doc; the name that chat templates use (lm-eval 0.4.13 has none)."""
    raise TemplateRuntimeError(message)


@pass_context
def _column(context: Context, name: str) -> Any:
    """Return a column whose name Jinja cannot read (`Answer Key`), for templates that formats write."""
    value = context.resolve_or_missing(name)
    if value is missing:
        raise TemplateRuntimeError(f"the doc has no column {name!r}")
    return value


_ENVIRONMENT: Final = _TaskSandbox(undefined=StrictUndefined, keep_trailing_newline=True)
_ENVIRONMENT.globals |= {"raise_exception": _raise_exception, "_column": _column}
_ENVIRONMENT.filters["regex_replace"] = _regex_replace
_LINE_END: Final = re.compile(r"\r\n|\r")
_DRAWS_AT_RANDOM: Final = re.compile(r"\blipsum\b|\brandom\b")


class Template:
    """One compiled task template.

    `is_random` is whether two renderings of the same doc may differ.
    """

    __slots__ = ("_compiled", "_constant", "_globals", "_root", "is_random", "source")

    def __init__(self, source: str) -> None:
        self.source = source
        self.is_random = _DRAWS_AT_RANDOM.search(source) is not None
        self._constant: list[Piece] | None = None
        self._compiled: JinjaTemplate | None = None
        if "{{" in source or "{%" in source or "{#" in source:
            self._compiled = _compiled(source)
            self._globals = dict(self._compiled.globals)
            self._root: Callable[[Context], Iterable[Any]] = self._compiled.root_render_func
        else:
            text = _LINE_END.sub("\n", source)
            self._constant = [(text, None, None)] if text else []

    def pieces(self, doc: Mapping[str, Any]) -> list[Piece]:
        """Return the rendered pieces; joined they are what lm-eval 0.4.13 prints for the doc.

        Raises what Jinja and the doc's own values raise, and LimitExceededError.
        """
        if "self" in doc:
            # lm-eval passes the columns as keyword arguments of a method.
            raise TypeError("a column named 'self' cannot be passed to a template")
        if self._compiled is None:
            return self._constant or []
        context = Context(_ENVIRONMENT, dict(self._globals, **doc), None, self._compiled.blocks)
        pieces: list[Piece] = []
        length = 0
        for piece in self._root(context):
            if piece.__class__ is str:
                piece = (piece, None, None)
            length += len(piece[0])
            if length > MAX_CHARACTERS:
                raise LimitExceededError(f"the template renders to more than {MAX_CHARACTERS:,} characters")
            pieces.append(piece)
        return pieces

    def line_of(self, error: BaseException) -> int | None:
        """Return the template's line at which rendering failed, from 1; None where it is not known."""
        if self._compiled is None:
            return None
        line = None
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_globals is self._compiled.root_render_func.__globals__:
                # A limit may interrupt between two lines of Python, where there is no number.
                line = self._compiled.get_corresponding_lineno(trace.tb_lineno or 0)
            trace = trace.tb_next
        return line


def _compiled(source: str) -> JinjaTemplate:
    try:
        return _ENVIRONMENT.from_string(source)
    except (RecursionError, MemoryError, SyntaxError) as error:
        # Jinja and Python parse nested code recursively, each to a different depth.
        raise TemplateSyntaxError("the template has too many nested blocks, or an expression is too long", 1) from error


@lru_cache(maxsize=_CACHED_TEMPLATES)
def compile_template(source: str) -> Template:
    """Return the compiled template; the same object for the same source.

    Raises jinja2's TemplateSyntaxError; `explain` makes it a RenderError.
    """
    return Template(source)


def explain(
    error: BaseException,
    key: str,
    where: str,
    source: str,
    columns: Sequence[str] = (),
    position: Position | None = None,
) -> RenderError:
    """Return the RenderError for a failed template; the caller raises it from `error`.

    `where` names task and doc, `key` the configuration key that holds the template.
    """
    line = _line_of(source, error)
    at = f"{where}, line {line} of the template" if line is not None and ("\n" in source or "\r" in source) else where
    made: type[RenderError] = RenderError
    hint: str | None = None
    if isinstance(error, LimitExceededError):
        made, message, hint = LimitExceededError, f"{key} {where}: {error.message}", error.hint
    elif isinstance(error, TemplateSyntaxError):
        message = f"{key} {where}: invalid Jinja{at.removeprefix(where)}: {error.message}"
    elif isinstance(error, UndefinedError):
        message = f"{key} {at}: {error.message}"
        missing = re.fullmatch(r"'(.+)' is undefined", error.message or "")
        if missing and missing[1].isidentifier():
            message = f"{key} uses the column {missing[1]!r}, but no doc has it ({at.removeprefix('of ')})"
            known = ", ".join(map(repr, columns[:12])) + (", …" if len(columns) > 12 else "")
            hint = did_you_mean(missing[1], columns) or (f"the columns are {known}" if known else None)
    elif isinstance(error, OverflowError) and str(error).startswith("Range too big"):
        made, message = LimitExceededError, f"{key} {at}: a range of more than {MAX_RANGE:,} numbers"
    elif isinstance(error, SecurityError):
        message = f"{key} {at}: promptfmt does not allow this, although lm-eval does: {error.message}"
        hint = "templates cannot change the doc or access Python's internals"
    elif type(error) is TemplateRuntimeError:
        message = f"{key} {where}: {shortened(error.message or '')}"
    elif isinstance(error, MemoryError):
        message, hint = f"{key} {at}: rendering needs more memory than a worker may use (MemoryError)", OUT_OF_MEMORY
    else:
        message = f"{key} {at} failed with {shortened(f'{type(error).__name__}: {error}')}"
    return made(message, position=position, hint=hint).naming(where.removeprefix("of "))


def _line_of(source: str, error: BaseException) -> int | None:
    if isinstance(error, TemplateSyntaxError):
        return error.lineno
    try:
        return compile_template(source).line_of(error)
    except (TemplateSyntaxError, LimitExceededError):
        return None
