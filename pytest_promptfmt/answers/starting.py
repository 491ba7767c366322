"""Whether scoring functions start processes, as those do that run generated code: trying such a metric costs much."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

_MODULES: Final = ("multiprocessing", "subprocess", "concurrent.futures")
_OF_OS: Final = frozenset({"fork", "forkpty", "popen", "posix_spawn", "posix_spawnp", "spawnl", "spawnv", "system"})
_LIBRARIES: Final = ("site-packages", "dist-packages")


def starts_processes(function: object) -> bool:
    """Return whether code that a function may come to, outside of libraries, names a way to start processes.

    Its compiled code is read and nothing is run, so that the answer is the same in every run.
    """
    waiting: list[object] = [function]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, functools.partial):
            value = value.func
        value = getattr(value, "__wrapped__", value)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, type):
            waiting += [member for member in vars(value).values() if isinstance(member, FunctionType)]
        elif isinstance(value, FunctionType) and not _is_library(value.__code__.co_filename):
            names = set(_names_in(value.__code__))
            if names.intersection(_MODULES) or ("os" in names and names & _OF_OS):
                return True
            known = [value.__globals__[name] for name in names if name in value.__globals__]
            if any(_belongs_to(each) for each in known):
                return True
            waiting += [each for each in known if isinstance(each, FunctionType | type | functools.partial)]
    return False


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _belongs_to(value: Any) -> bool:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return isinstance(name, str) and any(name == module or name.startswith(f"{module}.") for module in _MODULES)


def _is_library(path: str) -> bool:
    return any(f"/{name}/" in path.replace("\\", "/") for name in _LIBRARIES) or path.startswith(sys.base_prefix)
