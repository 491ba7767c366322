"""Values as JSON has them, and back: dataclasses become mappings; what another process or run wrote is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, lru_cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_MOST: Final = 2**53
"""Larger numbers are not exact in all readers of JSON."""


def data_of(value: Any) -> Any:
    """Return a value in JSON's types; paths become text."""
    if is_dataclass(value):
        return {each.name: data_of(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, list | tuple):
        return [data_of(each) for each in value]
    if isinstance(value, Mapping):
        return {name: data_of(each) for name, each in value.items()}
    return value.value if isinstance(value, Enum) else str(value) if isinstance(value, Path) else value


def value_of(kind: Callable[..., T], data: Any) -> T:
    """Return the value of a dataclass, or of another type, that `data_of` wrote.

    Raises KeyError, TypeError or ValueError for other data, as for a field that the dataclass does not have.
    """
    made: T = _reader(kind)(data)
    return made


def text(value: Any) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise ValueError(f"expected a text, got {type(value).__name__}")
    return value


def number(value: Any) -> int:
    """Return a whole number."""
    if type(value) is not int or abs(value) > _MOST:
        raise ValueError(f"expected a whole number, got {type(value).__name__}")
    return value


def listed(value: Any, read: Callable[[Any], T] = text) -> tuple[T, ...]:  # type: ignore[assignment]
    """Return the elements of a list, each as `read` returns it."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"expected a list, got {type(value).__name__}")
    return tuple(map(read, value))


def if_any(read: Callable[[Any], T]) -> Callable[[Any], T | None]:
    """Return a function that returns None for null, and anything else as `read` does."""
    return lambda value: None if value is None else read(value)


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a mapping, got {type(value).__name__}")
    return value.items()


def _one_of(known: Sequence[Any], value: Any) -> Any:
    if not any(value is each or (isinstance(value, str) and value == each) for each in known):
        raise ValueError(f"expected one of {', '.join(map(repr, known))}, got {value!r}")
    return value


def _first(readers: Sequence[Callable[[Any], Any]], value: Any) -> Any:
    for read in readers[:-1]:
        with suppress(ValueError, TypeError):
            return read(value)
    return readers[-1](value)


def _each(readers: Sequence[Callable[[Any], Any]], value: Any) -> tuple[Any, ...]:
    return tuple(read(each) for read, each in zip(readers, value, strict=True))


_PLAIN: Final[Mapping[Any, Callable[[Any], Any]]] = {
    str: text,
    int: number,
    bool: partial(_one_of, (True, False)),
    NoneType: partial(_one_of, (None,)),
    Path: lru_cache(maxsize=4096)(Path),  # many findings are about one file
    Any: lambda value: value,
}


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """Return the function that reads the values of a type."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return partial(_first, [_reader(each) for each in sorted(inside, key=lambda each: each is not NoneType)])
    if origin is Literal:
        return partial(_one_of, inside)
    if origin is Sequence or (origin is tuple and inside[-1] is ...):
        return partial(listed, read=_reader(inside[0]))
    if origin is tuple:
        return partial(_each, [_reader(each) for each in inside])
    if origin is Mapping:
        read = _reader(inside[1])
        return lambda value: {text(name): read(each) for name, each in _items(value)}
    if is_dataclass(kind):
        make: Callable[..., Any] = kind  # type: ignore[assignment]
        hints = get_type_hints(kind)
        readers = {each.name: _reader(hints[each.name]) for each in fields(kind)}
        return lambda value: make(**{name: readers[name](each) for name, each in _items(value)})
    return _PLAIN.get(kind, kind)  # an enumeration reads its values itself
