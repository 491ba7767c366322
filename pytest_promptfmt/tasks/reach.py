"""What the code of a function may come to outside of libraries, read from its compiled code; nothing is run."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, Final

from pytest_promptfmt.core.files import is_installed

_Cached: Final = type(functools.lru_cache(lambda: None))
_FOLLOWED: Final = (FunctionType, type, functools.partial, _Cached)


@dataclass(frozen=True, slots=True)
class ReachedFunction:
    """One function on the way: the names that its code mentions, and the global names of its module."""

    names: frozenset[str]
    scope: dict[str, Any]

    @property
    def values(self) -> tuple[Any, ...]:
        """Return the values of the names that are global."""
        return tuple(self.scope[name] for name in self.names if name in self.scope)


def functions_reached(function: object) -> Iterator[ReachedFunction]:
    """Yield the functions that a function, class or partial may come to through global names, itself the first."""
    waiting: list[object] = [function]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, functools.partial):
            value = value.func
        if isinstance(value, FunctionType | _Cached):
            value = getattr(value, "__wrapped__", value)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, type):
            waiting += [member for member in vars(value).values() if isinstance(member, FunctionType)]
        elif isinstance(value, FunctionType) and not is_installed(value.__code__.co_filename):
            reached = ReachedFunction(frozenset(_names_in(value.__code__)), value.__globals__)
            yield reached
            waiting += [each for each in reached.values if type(each) in _FOLLOWED]


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
