"""A Jinja sandbox that also refuses to make texts too large to be a prompt.

Jinja's own sandbox keeps templates away from Python's internals, but not from `'a' * 10**10`. Both template dialects,
that of tasks and that of chat templates, are built on the environment below. How large a result would be is computed
before it is made, also where no limits of the operating system hold (`workers = 0`, notebooks). Sizes are in characters
and elements; what is contained more than once counts each time, as printing would show it. Time is limited by the
caller.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from types import BuiltinMethodType
from typing import Any, Final

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.utils import Namespace, generate_lorem_ipsum
from markupsafe import Markup

from pytest_promptfmt.core.errors import LimitExceededError

MAX_CHARACTERS: Final = 10_000_000
"""The longest text that a template may make, at any point of its work."""

_MAX_BITS: Final = 100_000
_PIECES_AT_ONCE: Final = 1000
_CONTAINERS: Final = (list, tuple, dict, set, frozenset, Namespace)
"""Types that can contain the same value many times over: `[x, x]` with such an `x`, and so on."""
_TEXTS: Final = (str, bytes)
_SIZED: Final = (*_CONTAINERS, *_TEXTS)
_SEQUENCES: Final = (*_TEXTS, list, tuple)
_SCALARS: Final = frozenset((int, bool, float, type(None)))
_NUMBER: Final = re.compile(r"\d+")
_STAR_WIDTH: Final = re.compile(r"%[^%a-zA-Z]*\*")

_TEXT_METHODS: Final = frozenset(name for name in dir(str) if name[0] != "_") - {"format", "format_map"}
_MAPPING_NAMES: Final = frozenset(dir(dict))
_READING_METHODS: Final = frozenset(("get", "items", "keys", "values"))
_LOOP_NUMBERS: Final = frozenset(("first", "index", "index0", "last", "length", "revindex", "revindex0"))
_COUNTING: Final = frozenset(("count", "length"))
"""Filters that look at no element, and make nothing."""
_MAKE_LISTS: Final = frozenset(("batch", "slice"))
"""Filters whose results hold new lists."""


# -- sizes -------------------------------------------------------------------------------------------------------------


def require(size: int) -> None:
    """Refuse a text or list of more than `MAX_CHARACTERS` characters or elements with LimitExceededError."""
    if size > MAX_CHARACTERS:
        raise LimitExceededError(
            f"the template makes a text or list of more than {MAX_CHARACTERS:,} characters or elements",
            hint="look for a repetition, a width or a loop with a huge number",
        )


def checked(value: Any) -> Any:
    """Return a text or container whose text is not too long, also one that contains a value many times over."""
    if type(value) is str:
        require(len(value))
    elif isinstance(value, _SIZED):
        require(_size_of(value))
    return value


def _size_of(value: Any, known: dict[int, int] | None = None) -> int:
    """Return about how many characters `str(value)` has."""
    values = value
    if type(value) not in (dict, list):
        if isinstance(value, _TEXTS):
            return len(value)
        if not isinstance(value, _CONTAINERS):
            return 1
        values = value._Namespace__attrs if isinstance(value, Namespace) else value
    known = {} if known is None else known
    size = known.get(id(value))
    if size is None:
        known[id(value)] = size = 2  # for a namespace that contains itself
        for part in (*values, *values.values()) if isinstance(values, dict) else values:
            if type(part) is str:
                size += len(part)
            else:
                size += 1 if type(part) in _SCALARS else _size_of(part, known)
        known[id(value)] = size
    return size


def _joined(pieces: Iterable[str]) -> str:
    """Return the pieces as one text; an endless iterable is read only up to the limit."""
    if isinstance(pieces, list | tuple):
        require(sum(map(len, pieces)))
        return "".join(pieces)
    endless, kept, size = iter(pieces), list[str](), 0
    while some := list(islice(endless, _PIECES_AT_ONCE)):
        size += sum(map(len, some))
        require(size)
        kept += some
    return "".join(kept)


def _listed(values: Any) -> Any:
    """Return the values of an iterator as a list, unless they are too many; anything else as it is."""
    if isinstance(values, (str, int, float, *_CONTAINERS)):
        return values
    kept = list(islice(values, MAX_CHARACTERS + 1))
    require(len(kept))
    return kept


def _check_bits(bits: int) -> None:
    if bits > _MAX_BITS:
        raise LimitExceededError("the template computes with a number of more than 30,000 digits")


# -- results of operators, methods and filters, before they are made ---------------------------------------------------


def _check_operator(operator: str, left: Any, right: Any) -> None:
    numbers = isinstance(left, int) and isinstance(right, int)
    if operator == "%" and isinstance(left, _TEXTS):
        values = right.values() if isinstance(right, Mapping) else right if isinstance(right, tuple) else (right,)
        _check_percent(left if isinstance(left, str) else left.decode("latin-1"), *values)
    elif operator == "+" and isinstance(left, _SEQUENCES) and isinstance(right, _SEQUENCES):
        require(len(left) + len(right))
    elif operator == "*" and numbers:
        _check_bits(left.bit_length() + right.bit_length())
    elif operator == "*":
        for sequence, count in ((left, right), (right, left)):
            if isinstance(count, int) and isinstance(sequence, _SEQUENCES):
                require(len(sequence) * max(count, 0))
    elif operator == "**" and numbers:
        _check_bits(left.bit_length() * max(right, 0))


def _check_percent(pattern: Any, *values: Any, **named: Any) -> None:
    values = (*values, *named.values())
    if _STAR_WIDTH.search(str(pattern)):
        _check_width(pattern, *values)
    _check_format(str(pattern), "%", values)


def _check_format(pattern: str, mark: str, values: Collection[Any]) -> None:
    _check_spec(pattern)
    require(pattern.count(mark) * max(map(_size_of, values), default=0))


def _check_spec(written: str) -> None:
    """Refuse a text with a number that would be a huge width or precision."""
    for number in _NUMBER.findall(written):
        require(int(number[:20]))


def _check_width(_value: Any, *args: Any, **named: Any) -> None:
    for each in (*args, *named.values()):
        require(abs(each) if isinstance(each, int) else 0)


def _check_repeated(value: Any, *args: Any, **named: Any) -> None:
    """Refuse a value of which each character may be replaced by the largest argument."""
    largest = max((abs(x) if isinstance(x, int) else _size_of(x) for x in (*args, *named.values())), default=1)
    require(_size_of(value) * largest)


def _check_wordwrap(s: Any, _width: Any = 79, _breaks: Any = True, wrapstring: Any = "", **_: Any) -> None:
    _check_repeated(s, wrapstring)


def _check_replace(s: Any, old: Any, new: Any, count: Any = None) -> None:
    text, old, new = (each if isinstance(each, bytes) else str(each) for each in (s, old, new))
    found = text.count(old)
    require((found if not isinstance(count, int) or count < 0 else min(found, count)) * len(new))


def _check_join(pieces: Any, d: Any = "", *_: Any, **__: Any) -> None:
    require(_size_of(pieces) + len(pieces) * len(d))


def _check_json(value: Any, *args: Any, **named: Any) -> None:
    elements, depth = _elements(value, 0)
    steps = (each if isinstance(each, int) else _size_of(each) for each in (*args, *named.values()) if each is not None)
    require(_size_of(value) + elements * depth * max(steps, default=0))


def _elements(value: Any, depth: int) -> tuple[int, int]:
    """Return how many values there are in a value of known size, itself included, and how deep they lie."""
    if not isinstance(value, list | tuple | dict):
        return 1, depth
    counts = [_elements(part, depth + 1) for part in (value.values() if isinstance(value, dict) else value)]
    return 1 + sum(count for count, _ in counts), max((deep for _, deep in counts), default=depth)


_Check = Callable[..., None]
_METHODS: Final[Mapping[str, _Check]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "to_bytes", "zfill"), _check_width),
    **dict.fromkeys(("expandtabs", "translate"), _check_repeated),
    "join": lambda separator, pieces=(): _check_join(pieces, separator),
    "replace": _check_replace,
}
"""The checks of the owner and arguments of a method of texts, bytes and numbers."""
_FILTERS: Final[Mapping[str, _Check]] = {
    **dict.fromkeys(("batch", "center", "round", "slice"), _check_width),
    **dict.fromkeys(("indent", "urlize"), _check_repeated),
    "format": _check_percent,
    "join": _check_join,
    "replace": _check_replace,
    "tojson": _check_json,
    "wordwrap": _check_wordwrap,
}
"""The checks of the value and arguments of a filter, by Jinja's own names of these."""


def _apply(check: _Check | None, values: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    try:
        if check is not None:
            check(*values, **named)
    except TypeError:
        return  # wrong arguments: the function's own error is better


def limited_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the filter with its sizes checked before and after; how Jinja calls it stays as it is."""
    skip = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0

    @functools.wraps(function)
    def limited(*args: Any, **named: Any) -> Any:
        values = args[skip:]
        if name in ("join", "sum") and values:
            values = (_listed(values[0]), *values[1:])  # the filter would read all of an iterator as well
        for value in (*values, *named.values()):
            checked(value)
        _apply(_FILTERS.get(name), values, named)
        made = function(*args[:skip], *values, **named)
        return checked(_listed(made) if name in _MAKE_LISTS else made)

    return limited


def _limited_lipsum(n: int = 5, html: bool = True, min: int = 20, max: int = 100) -> str:  # noqa: A002
    require(n * max * 20)
    return generate_lorem_ipsum(n, html, min, max)


def _only_names(function: Any) -> bool:
    """Return whether what a function is given only gets names: in a namespace, or in a macro without `varargs`."""
    if function.__class__ is Macro:
        return not function.catch_varargs and not function.catch_kwargs
    return function.__class__ is type and issubclass(function, Namespace)


# -- the environment ---------------------------------------------------------------------------------------------------


class LimitedSandbox(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox; making a text longer than `MAX_CHARACTERS` raises LimitExceededError."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})
    checked = staticmethod(checked)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.filters.update(
            {name: limited_filter(name, each) for name, each in self.filters.items() if name not in _COUNTING}
        )
        self.globals["lipsum"] = _limited_lipsum

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """Return the joined pieces of a macro, block or template."""
        return _joined(pieces)

    @staticmethod
    def text(value: Any) -> str:
        """Return `str(value)`, as `{{ value }}` prints it."""
        return value if value.__class__ is str else str(checked(value))

    @classmethod
    def joined(cls, values: Sequence[Any]) -> str:
        """Return what `a ~ b` prints."""
        return _joined([cls.text(value) for value in values])

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Return the result of an operator, unless it would be too large."""
        if operator == "+" and left.__class__ is str is right.__class__:
            require(len(left) + len(right))
            return left + right
        _check_operator(operator, left, right)
        return checked(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Return the result of a call, unless it would be too large."""
        owner = getattr(__obj, "__self__", None)
        # Inside loops and blocks Jinja adds its own arguments.
        own = kwargs and {name: value for name, value in kwargs.items() if name not in ("_loop_vars", "_block_vars")}
        if isinstance(owner, str | bytes | int):
            name = __obj.__name__
            if name == "join" and args:
                args = (_listed(args[0]), *args[1:])
            _apply(_METHODS.get(name), (owner, *args), own)
            if owner.__class__ is str and __obj.__class__ is BuiltinMethodType:
                # A method of `str` has none of the attributes that Jinja looks for in a callable.
                return checked(__obj(*args, **own))
        elif owner.__class__ is dict and __obj.__class__ is BuiltinMethodType and __obj.__name__ in _READING_METHODS:
            return __obj(*args, **own)  # a value that is there already, or a view
        elif not _only_names(__obj):
            checked((*args, *own.values()))  # together, for a macro can have them as one tuple
        return checked(super().call(__context, __obj, *args, **kwargs))

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
        elif issubclass(kind, Namespace) and attribute[:1] != "_":
            # All of it is the template's own; Jinja asks a namespace for its class a dozen times, which is slow.
            try:
                return getattr(obj, attribute)
            except AttributeError:
                return self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return the sandboxed form of `str.format`, which refuses huge widths; None for any other value."""
        if super().wrap_str_format(value) is None:
            return None
        pattern: str = value.__self__
        formatter = _LimitedFormatter(self)
        if isinstance(pattern, Markup):
            formatter = _LimitedEscapeFormatter(self, escape=pattern.escape)

        @functools.wraps(value)
        def limited(*args: Any, **kwargs: Any) -> str:
            if value.__name__ == "format_map":
                if kwargs or len(args) != 1:
                    raise TypeError("format_map takes one mapping")
                kwargs, args = args[0], ()
            _check_format(pattern, "{", [*args, *kwargs.values()])
            return type(pattern)(formatter.vformat(pattern, args, kwargs))

        return limited


class _LimitedFormatter(SandboxedFormatter):
    def format_field(self, value: Any, format_spec: str) -> Any:
        # By now a width that came from a value is part of the specification.
        _check_spec(format_spec)
        return super().format_field(value, format_spec)


class _LimitedEscapeFormatter(_LimitedFormatter, SandboxedEscapeFormatter):
    pass


class LimitedGenerator(CodeGenerator):
    """Jinja's compiler, which prints through `LimitedSandbox`, and checks each container that a template makes.

    So comparing and hashing, which Python does without looking for signals, ends for those that contain themselves over
    and over.
    """

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

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        """Write a list."""
        self._write_checked(super().visit_List, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        """Write a tuple, or the names that one is assigned to."""
        self._write_checked(super().visit_Tuple, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        """Write a mapping."""
        self._write_checked(super().visit_Dict, node, frame)

    def _write_checked(self, write: Callable[[Any, Frame], None], node: Any, frame: Frame) -> None:
        is_plain = getattr(node, "ctx", "load") != "load" or not any(node.find_all((nodes.Name, nodes.Call)))
        self.write("" if is_plain else "environment.checked(")
        write(node, frame)
        self.write("" if is_plain else ")")


LimitedSandbox.code_generator_class = LimitedGenerator
