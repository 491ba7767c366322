"""A Jinja sandbox that also refuses to make texts too large to be a prompt.

Jinja's own sandbox keeps templates away from Python's internals, but not from `'a' * 10**10`. Both template dialects,
that of tasks and that of chat templates, are built on the environment below. What is too large is decided in
sizes.py; time, and the total of many values of allowed size, are limited by the caller.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import BuiltinMethodType
from typing import Any, Final

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.utils import generate_lorem_ipsum
from markupsafe import Markup

from pytest_promptfmt.core import sizes

_TEXT_METHODS: Final = frozenset(name for name in dir(str) if name[0] != "_") - {"format", "format_map"}
_MAPPING_NAMES: Final = frozenset(dir(dict))
_READING_METHODS: Final = frozenset(("get", "items", "keys", "values"))
_LOOP_NUMBERS: Final = frozenset(("first", "index", "index0", "last", "length", "revindex", "revindex0"))
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "in": lambda left, right: left in right,
    "notin": lambda left, right: left not in right,
}
_COMPARING_TESTS: Final = frozenset(
    "eq == equalto ne != gt > greaterthan ge >= lt < lessthan le <= in".split()  # noqa: SIM905
)


class LimitedSandbox(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox; making a text longer than `MAX_CHARACTERS` raises LimitExceededError."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, function in list(self.filters.items()):
            self.filters[name] = self.limited_filter(function, sizes.FILTERS.get(name))
        for name in _COMPARING_TESTS:
            test: Any = self.tests[name]
            self.tests[name] = _limit_test(test)
        self.globals["lipsum"] = _limited_lipsum

    @staticmethod
    def limited_filter(function: Callable[..., Any], check: Callable[..., None] | None) -> Callable[..., Any]:
        """Return the filter with its sizes checked before and after; how Jinja calls it stays as it is."""
        skip = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0
        reads_all = check in (sizes.FILTERS["join"], sizes.FILTERS["sum"])

        @functools.wraps(function)
        def limited(*args: Any, **kwargs: Any) -> Any:
            values = args[skip:]
            for value in (*values, *kwargs.values()):
                if isinstance(value, sizes.CONTAINERS):
                    sizes.require_size(value)
            if reads_all and values and not isinstance(values[0], (str, int, float, *sizes.CONTAINERS)):
                # A generator must be read to know its size; the filter would read it all as well.
                values = (sizes.listed(values[0]), *values[1:])
                args = (*args[:skip], *values)
            if check is not None:
                _apply(check, values, kwargs)
            result = function(*args, **kwargs)
            if isinstance(result, str):
                sizes.require(len(result))
            return result

        return limited

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """Return the joined pieces of a macro, block or template."""
        return sizes.joined(pieces)

    @staticmethod
    def text(value: Any) -> str:
        """Return `str(value)`, as `{{ value }}` prints it."""
        if value.__class__ is str:
            return value
        sizes.require_size(value)
        return str(value)

    @classmethod
    def joined(cls, values: Sequence[Any]) -> str:
        """Return what `a ~ b` prints."""
        return sizes.joined([cls.text(value) for value in values])

    @staticmethod
    def compared(value: Any, *operands: tuple[str, Any]) -> Any:
        """Return what a comparison of values gives, or a chain of them: each operand with its operator in Jinja."""
        # Python compares deeply shared containers without checking for signals.
        if isinstance(value, sizes.CONTAINERS):
            sizes.require_size(value)
        result = True
        for name, other in operands:
            if isinstance(other, sizes.CONTAINERS):
                sizes.require_size(other)
            result = _COMPARISONS[name](value, other)
            if not result:
                break
            value = other
        return result

    @staticmethod
    def hashed(value: Any) -> Any:
        """Return a value that becomes the key of a mapping, or is looked up in one."""
        if value.__class__ is tuple:
            sizes.require_size(value)
        return value

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Return the result of an operator, unless it would be too large."""
        sizes.OPERATORS[operator](left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Return the result of a call, unless it would be too large."""
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, (str, bytes, int)):
            name = __obj.__name__
            # Inside loops and blocks Jinja adds its own arguments.
            own = {name: value for name, value in kwargs.items() if name not in ("_loop_vars", "_block_vars")}
            if name == "join" and args and not isinstance(args[0], (str, *sizes.CONTAINERS)):
                args = (sizes.listed(args[0]), *args[1:])
            check = sizes.METHODS.get(name)
            if check is not None:
                _apply(check, (owner, *args), own)
            if owner.__class__ is str and __obj.__class__ is BuiltinMethodType:
                # A method of `str` has none of the attributes that Jinja looks for in a callable.
                result = __obj(*args, **own)
                if result.__class__ is str:
                    sizes.require(len(result))
                return result
        elif __obj.__class__ is not Macro:
            # Other functions may compare, hash and print what they are given.
            for value in (*args, *kwargs.values()):
                if isinstance(value, sizes.CONTAINERS):
                    sizes.require_size(value)
        result = super().call(__context, __obj, *args, **kwargs)
        if isinstance(result, str):
            sizes.require(len(result))
        return result

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return an attribute or item of a value; what cannot do harm of texts, mappings and loops without checks."""
        kind = type(obj)
        if kind is dict:
            if attribute not in _MAPPING_NAMES:
                return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
            if attribute in _READING_METHODS:
                return getattr(obj, attribute)
        elif (kind is str and attribute in _TEXT_METHODS) or (kind is LoopContext and attribute in _LOOP_NUMBERS):
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return the sandboxed form of `str.format`, which refuses huge widths; None for any other value."""
        if super().wrap_str_format(value) is None:
            return None
        pattern: str = value.__self__
        formatter: SandboxedFormatter = (
            _LimitedEscapeFormatter(self, escape=pattern.escape)
            if isinstance(pattern, Markup)
            else _LimitedFormatter(self)
        )

        @functools.wraps(value)
        def limited(*args: Any, **kwargs: Any) -> str:
            if value.__name__ == "format_map":
                if kwargs or len(args) != 1:
                    raise TypeError("format_map takes one mapping")
                kwargs, args = args[0], ()
            sizes.check_format(pattern, [*args, *kwargs.values()])
            return type(pattern)(formatter.vformat(pattern, args, kwargs))

        return limited


class _LimitedFormatter(SandboxedFormatter):
    def format_field(self, value: Any, format_spec: str) -> Any:
        # By now a width that came from a value is part of the specification.
        sizes.check_format_spec(format_spec)
        return super().format_field(value, format_spec)


class _LimitedEscapeFormatter(_LimitedFormatter, SandboxedEscapeFormatter):
    pass


class LimitedGenerator(CodeGenerator):
    """Jinja's compiler, which prints, compares and hashes through `LimitedSandbox`."""

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
            super()._output_child_pre(node, frame, finalize)
        else:
            self.write("environment.text(")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        """Write `a ~ b`."""
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
            super().visit_Concat(node, frame)
            return
        self.write("environment.joined((")
        for argument in node.nodes:
            self.visit(argument, frame)
            self.write(", ")
        self.write("))")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:  # noqa: N802
        """Write a comparison; one with a constant is as quick as Python's own, and as harmless."""
        operands = [node.expr, *(operand.expr for operand in node.ops)]
        if len([operand for operand in operands if not _is_constant(operand)]) < _MANY:
            super().visit_Compare(node, frame)
            return
        self.write("environment.compared(")
        self.visit(node.expr, frame)
        for operand in node.ops:
            self.write(f", ({operand.op!r}, ")
            self.visit(operand.expr, frame)
            self.write(")")
        self.write(")")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802
        """Write a lookup."""
        if isinstance(node.arg, nodes.Slice) or _is_constant(node.arg):
            super().visit_Getitem(node, frame)
            return
        self.write("environment.getitem(")
        self.visit(node.node, frame)
        self.write(", environment.hashed(")
        self.visit(node.arg, frame)
        self.write("))")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        """Write a mapping."""
        self.write("{")
        for pair in node.items:
            self.write("" if _is_constant(pair.key) else "environment.hashed")
            self.write("(")
            self.visit(pair.key, frame)
            self.write("): ")
            self.visit(pair.value, frame)
            self.write(", ")
        self.write("}")


_MANY: Final = 2


def _is_constant(node: nodes.Expr) -> bool:
    if isinstance(node, nodes.List | nodes.Tuple):
        return all(_is_constant(item) for item in node.items)
    return isinstance(node, nodes.Const)


LimitedSandbox.code_generator_class = LimitedGenerator


def _limit_test(test: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(test)
    def limited(value: Any, other: Any) -> Any:
        sizes.require_size(value)
        sizes.require_size(other)
        return test(value, other)

    return limited


def _apply(check: Callable[..., None], values: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    try:
        check(*values, **kwargs)
    except TypeError:
        # Wrong arguments: the function's own error is better.
        return


def _limited_lipsum(n: int = 5, html: bool = True, min: int = 20, max: int = 100) -> str:  # noqa: A002
    sizes.require(n * max * 20)
    return generate_lorem_ipsum(n, html, min, max)
