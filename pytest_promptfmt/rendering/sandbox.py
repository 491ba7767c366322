"""A Jinja sandbox that also refuses to make texts too large to be a prompt.

Jinja's own sandbox keeps templates away from Python's insides, but not from `'a' * 10**10`. Both template dialects,
that of tasks and that of chat templates, are built on the environment below. Time is limited by the caller.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import BuiltinMethodType
from typing import Any, Final

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import generate_lorem_ipsum

from pytest_promptfmt.errors import LimitExceededError

MAX_CHARACTERS: Final = 10_000_000
"""The longest text that a template may make, at any point of its work."""

_TEXT_METHODS: Final = frozenset(name for name in dir(str) if name[0] != "_") - {"format", "format_map"}
_MAX_INTEGER_BITS: Final = 100_000


class LimitedSandbox(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox; whatever would make a text beyond `MAX_CHARACTERS` raises LimitExceededError."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, function in list(self.filters.items()):
            self.filters[name] = _limit_filter(name, function)
        self.globals["lipsum"] = _limited_lipsum

    @staticmethod
    def limited_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a filter with its sizes checked as those of the built-in filter of that name."""
        return _limit_filter(name, function)

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """Return the joined pieces of a macro, block or template."""
        return _join("", list(pieces))

    @staticmethod
    def text(value: Any) -> str:
        """Return `str(value)`, as `{{ value }}` prints it."""
        if value.__class__ is str:
            return value
        _require_weight(value)
        return str(value)

    @classmethod
    def joined(cls, values: Sequence[Any]) -> str:
        """Return what `a ~ b` prints."""
        return _join("", [cls.text(value) for value in values])

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Return the result of an operator, unless it would be too large."""
        _BINOP_CHECKS[operator](left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Return the result of a call, unless it would be too large."""
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, (str, int)):
            # Inside loops and blocks Jinja adds arguments of its own.
            own = {name: value for name, value in kwargs.items() if name not in ("_loop_vars", "_block_vars")}
            check = _METHOD_CHECKS.get(__obj.__name__)
            if check is not None:
                _apply(check, (owner, *args), own)
            if owner.__class__ is str and __obj.__class__ is BuiltinMethodType:
                # What Jinja looks for in a callable, a method of `str` does not have.
                result = __obj(*args, **own)
                if result.__class__ is str:
                    _require(len(result))
                return result
        result = super().call(__context, __obj, *args, **kwargs)
        if isinstance(result, str):
            _require(len(result))
        return result

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return an attribute or item of a value; the methods of texts, which are harmless, without many questions."""
        if obj.__class__ is str and attribute in _TEXT_METHODS:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return the sandboxed form of `str.format`, which refuses huge widths; None for any other value."""
        sandboxed = super().wrap_str_format(value)
        if sandboxed is None:
            return None
        pattern: str = value.__self__

        @functools.wraps(value)
        def limited(*args: Any, **kwargs: Any) -> str:
            _check_format(pattern, [*args, *kwargs.values()], _NESTED_WIDTH)
            return sandboxed(*args, **kwargs)

        return limited


class LimitedGenerator(CodeGenerator):
    """Jinja's compiler, printing through `LimitedSandbox.text` and `.joined` instead of `str`."""

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


LimitedSandbox.code_generator_class = LimitedGenerator


def _require(characters: int) -> None:
    if characters > MAX_CHARACTERS:
        raise LimitExceededError(
            f"the template makes a text or list of more than {MAX_CHARACTERS:,} characters or elements",
            hint="look for a repetition, a width or a loop with a huge number",
        )


def _join(separator: str, pieces: Sequence[str]) -> str:
    _require(sum(map(len, pieces)) + len(separator) * len(pieces))
    return separator.join(pieces)


def _require_weight(value: Any) -> None:
    """Check how long `str(value)` would be, counting what is contained more than once each time."""
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        _require(_weight(value, {}))
    elif isinstance(value, int):
        _require_bits(value.bit_length())


def _weight(value: Any, known: dict[int, int]) -> int:
    if isinstance(value, (str, bytes)):
        return len(value)
    if not isinstance(value, (list, tuple, dict, set, frozenset)):
        return 1
    weight = known.get(id(value))
    if weight is None:
        parts: Iterable[Any] = [*value, *value.values()] if isinstance(value, dict) else value
        weight = known[id(value)] = 2 + sum(_weight(part, known) for part in parts)
    return weight


def _require_bits(bits: int) -> None:
    if bits > _MAX_INTEGER_BITS:
        raise LimitExceededError("the template computes with a number of more than 30,000 digits")


def _check_add(left: Any, right: Any) -> None:
    if isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
        _require(len(left) + len(right))


def _check_multiply(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _require_bits(left.bit_length() + right.bit_length())
    for sequence, count in ((left, right), (right, left)):
        if isinstance(count, int) and isinstance(sequence, (str, bytes, list, tuple)):
            _require(len(sequence) * max(count, 0))


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _require_bits(left.bit_length() * max(right, 0))


def _check_modulo(left: Any, right: Any) -> None:
    if isinstance(left, (str, bytes)):
        pattern = left if isinstance(left, str) else left.decode("latin-1")
        values = (
            right if isinstance(right, tuple) else tuple(right.values()) if isinstance(right, Mapping) else (right,)
        )
        _check_format(pattern, values, _STAR_WIDTH)


_BINOP_CHECKS: Final[Mapping[str, Callable[[Any, Any], None]]] = {
    "+": _check_add,
    "*": _check_multiply,
    "**": _check_power,
    "%": _check_modulo,
}

_NUMBER: Final = re.compile(r"\d+")
_NESTED_WIDTH: Final = re.compile(r"\{[^{}]*\{")
_STAR_WIDTH: Final = re.compile(r"%[^%a-zA-Z]*\*")


def _check_format(pattern: str, values: Sequence[Any], width_from_value: re.Pattern[str]) -> None:
    """Check the widths in a format string, the widths it takes from values, and the values themselves."""
    for number in _NUMBER.findall(pattern):
        _require(int(number) if len(number) < 20 else MAX_CHARACTERS + 1)
    if width_from_value.search(pattern):
        for value in values:
            _require(value if isinstance(value, int) else 0)
    _require(pattern.count("{") * max((_weight(value, {}) for value in values), default=0))
    _require(pattern.count("%") * max((_weight(value, {}) for value in values), default=0))


def _check_width(_text: Any, width: Any = 0, *_: Any) -> None:
    _require(width if isinstance(width, int) else 0)


def _check_tabs(text: Any, tabsize: Any = 8) -> None:
    tabs = text.count("\t") if isinstance(text, str) else text.count(b"\t") if isinstance(text, bytes) else 0
    _require(tabs * tabsize if isinstance(tabsize, int) else 0)


def _check_replace(text: Any, old: Any, new: Any, count: Any = -1) -> None:
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str):
        found = text.count(old)
        _require((found if not isinstance(count, int) or count < 0 else min(found, count)) * len(new))


def _check_join(separator: Any, pieces: Any = ()) -> None:
    if isinstance(pieces, (list, tuple, dict)):
        _require(_weight(pieces, {}) + len(pieces) * len(separator))


def _check_translate(text: Any, table: Any = None, *_: Any, **__: Any) -> None:
    if isinstance(table, Mapping):
        longest = max((len(value) for value in table.values() if isinstance(value, str)), default=0)
        _require(len(text) * longest)


_METHOD_CHECKS: Final[Mapping[str, Callable[..., None]]] = {
    "center": _check_width,
    "ljust": _check_width,
    "rjust": _check_width,
    "zfill": _check_width,
    "to_bytes": _check_width,
    "expandtabs": _check_tabs,
    "replace": _check_replace,
    "join": _check_join,
    "translate": _check_translate,
}


def _text_length(value: Any) -> int:
    return len(value) if isinstance(value, str) else _weight(value, {})


def _check_indent(text: Any, width: Any = 4, *_: Any, **__: Any) -> None:
    lines = text.count("\n") + 1 if isinstance(text, str) else 1
    _require(lines * (width if isinstance(width, int) else len(width) if isinstance(width, str) else 0))


def _check_wordwrap(text: Any, width: Any = 79, _break: Any = True, wrapstring: Any = None, *_: Any) -> None:
    if isinstance(wrapstring, str) and isinstance(width, int):
        _require(_text_length(text) // max(width, 1) * len(wrapstring))


def _check_filter_format(pattern: Any, *args: Any, **kwargs: Any) -> None:
    _check_modulo(str(pattern), args or kwargs)


def _check_filter_join(values: Any, separator: Any = "", *_: Any) -> None:
    _check_join(str(separator), values)


def _check_sum(values: Any, _attribute: Any = None, start: Any = 0, **_: Any) -> None:
    if isinstance(start, (list, tuple)) and isinstance(values, (list, tuple)):
        _require(sum(len(value) for value in values if isinstance(value, (list, tuple))))


def _check_count(_values: Any, count: Any = 0, *_: Any, **__: Any) -> None:
    _require(count if isinstance(count, int) else 0)


def _check_round(_value: Any, precision: Any = 0, *_: Any) -> None:
    _require_bits(4 * precision if isinstance(precision, int) else 0)


def _check_tojson(value: Any, indent: Any = None, *_: Any) -> None:
    _require(_weight(value, {}) * (1 + (indent if isinstance(indent, int) else 0)))


_FILTER_CHECKS: Final[Mapping[str, Callable[..., None]]] = {
    "batch": _check_count,
    "center": _check_width,
    "format": _check_filter_format,
    "indent": _check_indent,
    "join": _check_filter_join,
    "replace": _check_replace,
    "round": _check_round,
    "slice": _check_count,
    "sum": _check_sum,
    "tojson": _check_tojson,
    "wordwrap": _check_wordwrap,
}


def _limit_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the filter with its sizes checked before and after; how Jinja calls it stays as it is."""
    check = _FILTER_CHECKS.get(name)
    skip = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0

    @functools.wraps(function)
    def limited(*args: Any, **kwargs: Any) -> Any:
        values = args[skip:]
        if values and isinstance(values[0], (list, tuple, dict)):
            _require_weight(values[0])
        elif name in ("join", "sum") and values and not isinstance(values[0], (str, int, float)):
            # A generator must be read to know its size; the filter would read it all as well.
            values = (list(values[0]), *values[1:])
            args = (*args[:skip], *values)
        if check is not None:
            _apply(check, values, kwargs)
        result = function(*args, **kwargs)
        if isinstance(result, str):
            _require(len(result))
        return result

    return limited


def _apply(check: Callable[..., None], values: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    try:
        check(*values, **kwargs)
    except TypeError:
        # Wrong arguments: the filter itself says so better.
        return


def _limited_lipsum(n: int = 5, html: bool = True, min: int = 20, max: int = 100) -> str:  # noqa: A002
    _require(n * max * 20)
    return generate_lorem_ipsum(n, html, min, max)
