"""What was computed before in this process: values that depend on nothing but plain values, kept under all of them.

Many tasks read and score alike, and synthetic docs of theirs have the same answers. Nothing is kept of what code of a
task has a say in.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final, Generic, TypeVar

_MOST_DEPTH: Final = 20
_OVERHEAD: Final = 300
"""What an entry takes beside its texts, in characters."""

T = TypeVar("T")


def plain_key(value: Any, depth: int = 0) -> Hashable | None:
    """Return what is equal for values that are equal and of equal types, part by part; None for any other object.

    Plain are texts, numbers, truth values, null, and lists, tuples and mappings of them; no subclasses.
    """
    kind = type(value)
    if kind is str:
        return value  # type: ignore[no-any-return]
    if kind is int or kind is bool or value is None:
        return kind, value
    if kind is float:
        return kind, repr(value)  # 0.0 and -0.0 are equal, and NaN is not equal to itself
    if (kind is not list and kind is not tuple and kind is not dict) or depth > _MOST_DEPTH:
        return None
    parts = [plain_key(part, depth + 1) for part in ([*value, *value.values()] if kind is dict else value)]
    return None if None in parts else (kind, *parts)


class ValueCache(Generic[T]):
    """Values by their keys. `most` is the number of characters that both may hold together; then all is forgotten.

    Values are shared by all who ask, and must not be changed by them.
    """

    def __init__(self, most: int) -> None:
        self._most, self._held = most, 0
        self._values: dict[Hashable, T] = {}

    def get(self, key: Hashable) -> T | None:
        """Return the value of a key; None where it is not known."""
        return self._values.get(key)

    def keep(self, key: Hashable, value: T, characters: int) -> T:
        """Return a value that is kept from now on; `characters` is the length of the texts in it and in its key."""
        if self._held + characters + _OVERHEAD > self._most:
            self._values.clear()
            self._held = 0
        self._held += characters + _OVERHEAD
        self._values[key] = value
        return value
