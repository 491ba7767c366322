"""How large a value, or what an operator, method or filter would make of it, is: found out before it is made.

Sizes are in characters and elements; what is contained more than once counts each time, as printing would show it.
The functions that refuse raise LimitExceededError. The sandbox decides when they are called.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from pytest_promptfmt.core.errors import LimitExceededError

MAX_CHARACTERS: Final = 10_000_000
"""The longest text that a template may make, at any point of its work."""

_MAX_INTEGER_BITS: Final = 100_000
_MAX_DIGITS: Final = 20
_PIECES_AT_ONCE: Final = 1000
CONTAINERS: Final = (list, tuple, dict, set, frozenset)
"""Types that can contain the same value many times over: `[x, x]` with such an `x`, and so on."""
_TEXTS: Final = (str, bytes)
_SCALARS: Final = frozenset((int, bool, float, type(None)))


def require(size: int) -> None:
    """Refuse a text or list of more than `MAX_CHARACTERS` characters or elements."""
    if size > MAX_CHARACTERS:
        raise LimitExceededError(
            f"the template makes a text or list of more than {MAX_CHARACTERS:,} characters or elements",
            hint="look for a repetition, a width or a loop with a huge number",
        )


def require_size(value: Any) -> None:
    """Refuse a value whose text is too long, also one that is small in memory and contains a value many times over."""
    if isinstance(value, CONTAINERS):
        require(size_of(value))
    elif isinstance(value, int):
        _require_bits(value.bit_length())


def size_of(value: Any) -> int:
    """Return about how many characters `str(value)` has."""
    return _size(value, {})


def joined(pieces: Iterable[str]) -> str:
    """Return the pieces as one text; an endless iterable is read only up to the limit."""
    if isinstance(pieces, (list, tuple)):
        require(sum(map(len, pieces)))
        return "".join(pieces)
    endless = iter(pieces)
    kept: list[str] = []
    size = 0
    while some := list(islice(endless, _PIECES_AT_ONCE)):
        size += sum(map(len, some))
        require(size)
        kept += some
    return "".join(kept)


def listed(values: Iterable[Any]) -> list[Any]:
    """Return the values, unless they are too many."""
    kept = []
    for value in values:
        kept.append(value)
        if len(kept) > MAX_CHARACTERS:
            require(len(kept))
    return kept


def _size(value: Any, known: dict[int, int]) -> int:
    if isinstance(value, _TEXTS):
        return len(value)
    if not isinstance(value, CONTAINERS):
        return 1
    size = known.get(id(value))
    if size is None:
        size = 2
        for part in (*value, *value.values()) if isinstance(value, dict) else value:
            if type(part) is str:
                size += len(part)
            else:
                size += 1 if type(part) in _SCALARS else _size(part, known)
        known[id(value)] = size
    return size


def _require_bits(bits: int) -> None:
    if bits > _MAX_INTEGER_BITS:
        raise LimitExceededError("the template computes with a number of more than 30,000 digits")


# -- operators ---------------------------------------------------------------------------------------------------------


def _check_add(left: Any, right: Any) -> None:
    if isinstance(left, (*_TEXTS, list, tuple)) and isinstance(right, (*_TEXTS, list, tuple)):
        require(len(left) + len(right))


def _check_multiply(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _require_bits(left.bit_length() + right.bit_length())
    for sequence, count in ((left, right), (right, left)):
        if isinstance(count, int) and isinstance(sequence, (*_TEXTS, list, tuple)):
            require(len(sequence) * max(count, 0))


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _require_bits(left.bit_length() * max(right, 0))


def _check_modulo(left: Any, right: Any) -> None:
    if isinstance(left, _TEXTS):
        pattern = left if isinstance(left, str) else left.decode("latin-1")
        values = (
            right if isinstance(right, tuple) else tuple(right.values()) if isinstance(right, Mapping) else (right,)
        )
        _check_widths(pattern)
        if _STAR_WIDTH.search(pattern):
            for value in values:
                require(value if isinstance(value, int) else 0)
        require(pattern.count("%") * max((size_of(value) for value in values), default=0))


OPERATORS: Final[Mapping[str, Callable[[Any, Any], None]]] = {
    "+": _check_add,
    "*": _check_multiply,
    "**": _check_power,
    "%": _check_modulo,
}
"""What refuses the operands of an operator."""

_NUMBER: Final = re.compile(r"\d+")
_STAR_WIDTH: Final = re.compile(r"%[^%a-zA-Z]*\*")


def _check_widths(written: str) -> None:
    for number in _NUMBER.findall(written):
        require(int(number) if len(number) < _MAX_DIGITS else MAX_CHARACTERS + 1)


def check_format(pattern: str, values: Collection[Any]) -> None:
    """Refuse the pattern of `str.format` with its values; a width that is a value is seen by `check_format_spec`."""
    _check_widths(pattern)
    require(pattern.count("{") * max((size_of(value) for value in values), default=0))


def check_format_spec(written: str) -> None:
    """Refuse one field of `str.format` for its width or precision."""
    _check_widths(written)


# -- methods -----------------------------------------------------------------------------------------------------------


def _check_width(_text: Any, width: Any = 0, *_: Any) -> None:
    require(width if isinstance(width, int) else 0)


def _check_bytes(_number: Any, length: Any = 1, *_: Any, **__: Any) -> None:
    require(length if isinstance(length, int) else 0)


def _check_tabs(text: Any, tabsize: Any = 8) -> None:
    tabs = text.count("\t") if isinstance(text, str) else text.count(b"\t") if isinstance(text, bytes) else 0
    require(tabs * tabsize if isinstance(tabsize, int) else 0)


def _check_replace(text: Any, old: Any, new: Any, count: Any = -1) -> None:
    if any(all(isinstance(each, kind) for each in (text, old, new)) for kind in _TEXTS):
        found = text.count(old)
        require((found if not isinstance(count, int) or count < 0 else min(found, count)) * len(new))


def _check_join(separator: Any, pieces: Any = ()) -> None:
    if isinstance(pieces, (*CONTAINERS, str)):
        require(size_of(pieces) + len(pieces) * len(separator))


def _check_translate(text: Any, table: Any = None, *_: Any, **__: Any) -> None:
    if isinstance(table, Mapping):
        longest = max((len(value) for value in table.values() if isinstance(value, str)), default=0)
        require(len(text) * longest)


METHODS: Final[Mapping[str, Callable[..., None]]] = {
    "center": _check_width,
    "ljust": _check_width,
    "rjust": _check_width,
    "zfill": _check_width,
    "to_bytes": _check_bytes,
    "expandtabs": _check_tabs,
    "replace": _check_replace,
    "join": _check_join,
    "translate": _check_translate,
}
"""What refuses the owner and arguments of a method of texts, bytes and numbers."""


# -- filters: their parameters have Jinja's own names, which templates may write -------------------------------------


def _check_indent(s: Any, width: Any = 4, *_: Any, **__: Any) -> None:
    lines = s.count("\n") + 1 if isinstance(s, str) else 1
    require(lines * (width if isinstance(width, int) else len(width) if isinstance(width, str) else 0))


def _check_wordwrap(s: Any, width: Any = 79, _break: Any = True, wrapstring: Any = None, *_: Any, **__: Any) -> None:
    if isinstance(wrapstring, str) and isinstance(width, int):
        require(size_of(s) // max(width, 1) * len(wrapstring))


def _check_filter_format(value: Any, /, *args: Any, **kwargs: Any) -> None:
    _check_modulo(str(value), args or kwargs)


def _check_filter_join(value: Any, d: Any = "", *_: Any, **__: Any) -> None:
    _check_join(str(d), value)


def _check_filter_center(value: Any, width: Any = 80) -> None:
    _check_width(value, width)


def _check_filter_replace(s: Any, old: Any, new: Any, count: Any = None) -> None:
    _check_replace(str(s), str(old), str(new), count)


def _check_sum(iterable: Any, _attribute: Any = None, start: Any = 0, **_: Any) -> None:
    if isinstance(start, (list, tuple)) and isinstance(iterable, (list, tuple)):
        require(sum(len(value) for value in iterable if isinstance(value, (list, tuple))))


def _check_batch(_value: Any, linecount: Any, *_: Any, **__: Any) -> None:
    require(linecount if isinstance(linecount, int) else 0)


def _check_slice(_value: Any, slices: Any, *_: Any, **__: Any) -> None:
    require(slices if isinstance(slices, int) else 0)


def _check_round(_value: Any, precision: Any = 0, *_: Any, **__: Any) -> None:
    _require_bits(4 * abs(precision) if isinstance(precision, int) else 0)


def _check_urlize(
    value: Any, _trim: Any = None, _nofollow: Any = False, target: Any = None, rel: Any = None, *_: Any, **__: Any
) -> None:
    if isinstance(value, str):
        longest = max((len(each) for each in (target, rel) if isinstance(each, str)), default=0)
        require(len(value) + (len(value.split()) * longest))


def _check_tojson(value: Any, indent: Any = None) -> None:
    check_json(value, indent=indent)


def check_json(value: Any, _ascii: Any = False, indent: Any = None, separators: Any = None, *_: Any, **__: Any) -> None:
    """Refuse a value as JSON text, with the arguments of the filter of chat templates."""
    elements, depth = _elements(value, 0)
    step = len(indent) if isinstance(indent, str) else indent if isinstance(indent, int) else 0
    between = [each for each in separators if isinstance(each, str)] if isinstance(separators, Sequence) else []
    require(size_of(value) + elements * (step * depth + max(map(len, between), default=0)))


def _elements(value: Any, depth: int) -> tuple[int, int]:
    """Return how many values there are in a value of known size, itself included, and how deep they lie."""
    if not isinstance(value, (list, tuple, dict)):
        return 1, depth
    counts = [_elements(part, depth + 1) for part in (value.values() if isinstance(value, dict) else value)]
    return 1 + sum(count for count, _ in counts), max((deep for _, deep in counts), default=depth)


FILTERS: Final[Mapping[str, Callable[..., None]]] = {
    "batch": _check_batch,
    "center": _check_filter_center,
    "format": _check_filter_format,
    "indent": _check_indent,
    "join": _check_filter_join,
    "replace": _check_filter_replace,
    "round": _check_round,
    "slice": _check_slice,
    "sum": _check_sum,
    "tojson": _check_tojson,
    "urlize": _check_urlize,
    "wordwrap": _check_wordwrap,
}
"""What refuses the value and arguments of a filter."""
