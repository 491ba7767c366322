"""Packages that a module imports and that are not installed here: the module is imported without them.

What is taken from such a package is put off, as loads from a hub are: prompts are rendered and linted, and only what
uses the package fails.
"""

from __future__ import annotations

import difflib
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn, cast

from pytest_promptfmt.core import gate
from pytest_promptfmt.tasks.hub_loads import PutOff

_CLOSE: Final = 0.8
"""How alike two names are, from 0 to 1, of which one is taken for a misspelling of the other."""


def missing_package(error: BaseException) -> str:
    """Return the name whose absence made an import fail, also behind an error raised for it; "" for other errors."""
    name = ""
    found: BaseException | None = error
    while isinstance(found, ImportError):
        if isinstance(found, ModuleNotFoundError) and found.name and " " not in found.name:
            name = found.name
        found = found.__cause__ or found.__context__
    return name


def can_wait(name: str, beside: Path | None) -> bool:
    """Return whether a missing name is that of a package that is not installed, and no mistake of the author.

    It is taken for a mistake where a part of an installed package is missing, where the folder of the module or one
    above it has that name, and where it is close to the name of something installed.
    """
    package = name.partition(".")[0]
    if package in sys.modules or package in _installed():
        return False
    for folder in beside.parents if beside is not None else ():
        if not gate.is_allowed(folder / "-"):
            break
        if (folder / f"{package}.py").is_file() or (folder / package).is_dir():
            return False
    return not difflib.get_close_matches(package, _installed(), n=1, cutoff=_CLOSE)


@cache
def _installed() -> frozenset[str]:
    return frozenset(sys.stdlib_module_names).union(each.name for each in pkgutil.iter_modules())


@contextmanager
def imported_without(names: Sequence[str]) -> Iterator[None]:
    """Let imports of these packages succeed inside the block: what they give is missing when it is used."""
    finder = _Absent(frozenset(name.partition(".")[0] for name in names))
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name, module in list(sys.modules.items()):  # asking a module for its class may import others
            if isinstance(module, PutOff):
                sys.modules.pop(name, None)


class _Absent(MetaPathFinder, Loader):
    """Finds packages that are not there, and their versions."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(self, fullname: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        is_absent = fullname.partition(".")[0] in self._names
        return ModuleSpec(fullname, self, is_package=True) if is_absent else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return cast(ModuleType, PutOff(f"package {spec.name}", partial(_raise_missing, spec.name)))

    def exec_module(self, module: ModuleType) -> None:
        pass

    def find_distributions(self, context: DistributionFinder.Context) -> Iterator[Distribution]:
        if context.name in self._names:
            yield _AbsentDistribution()


class _AbsentDistribution(Distribution):
    """The distribution of a package that is not there: its version is whatever is asked for."""

    @property
    def version(self) -> str:
        return _AnyVersion("9999")

    def read_text(self, _filename: str) -> str | None:
        return None

    def locate_file(self, path: Any) -> Any:
        return Path(path)


class _AnyVersion(str):
    __slots__ = ()

    def startswith(self, *_prefix: Any) -> bool:
        return True


def _raise_missing(name: str) -> NoReturn:
    raise ModuleNotFoundError(f"No module named {name!r}", name=name)
