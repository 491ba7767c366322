"""Values of JSON that another process or an earlier run wrote: each function returns one, or raises ValueError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

_MOST: Final = 2**53
"""Larger numbers are not exact in all readers of JSON."""


def text(value: Any) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise ValueError(f"{type(value).__name__}, not a text")
    return value


def number(value: Any) -> int:
    """Return a whole number."""
    if type(value) is not int or abs(value) > _MOST:
        raise ValueError(f"{type(value).__name__}, not a whole number")
    return value


def flag(value: Any) -> bool:
    """Return a truth value."""
    if not isinstance(value, bool):
        raise ValueError(f"{type(value).__name__}, not true or false")
    return value


def listed(value: Any, read: Callable[[Any], T] = text) -> tuple[T, ...]:  # type: ignore[assignment]
    """Return the elements of a list, each as `read` returns it."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"{type(value).__name__}, not a list")
    return tuple(map(read, value))


def if_any(read: Callable[[Any], T]) -> Callable[[Any], T | None]:
    """Return a function that returns None for null, and anything else as `read` does."""
    return lambda value: None if value is None else read(value)
