"""Whether scoring functions start processes, as those do that run generated code: trying such a metric costs much."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from pytest_promptfmt.tasks import functions_reached

_MODULES: Final = ("multiprocessing", "subprocess", "concurrent.futures")
_PREFIXES: Final = tuple(f"{module}." for module in _MODULES)
_OF_OS: Final = frozenset({"fork", "forkpty", "popen", "posix_spawn", "posix_spawnp", "spawnl", "spawnv", "system"})


def starts_processes(function: object) -> bool:
    """Return whether code that a function may come to, outside of libraries, names a way to start processes."""
    return any(
        reached.names.intersection(_MODULES)
        or ("os" in reached.names and reached.names & _OF_OS)
        or any(map(_belongs_to, reached.values))
        for reached in functions_reached(function)
    )


def _belongs_to(value: Any) -> bool:
    names = [getattr(type(value), "__module__", None), getattr(value, "__module__", None)]
    if isinstance(value, ModuleType):
        names = [value.__name__]
    return any(isinstance(name, str) and f"{name}.".startswith(_PREFIXES) for name in names)
