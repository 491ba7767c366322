"""Python code as its source: imports without compiled files, which may be stale, and trees of code that is not run."""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final, NoReturn

from pytest_promptfmt.core.files import is_installed


def syntax_tree(source: str | bytes) -> ast.Module:
    """Return the tree of Python code without warnings, such as those about escapes; raises as `ast.parse`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


class SourceLoader(SourceFileLoader):
    """Loads a module from its source; compiled files are neither read nor written."""

    def path_stats(self, path: str) -> NoReturn:
        """Raise OSError: without the time of a source, Python uses no compiled file."""
        raise OSError(path)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, the `__init__` of a harness as far as it goes: it imports packages for models.

        Else code of a task would fail, but not after other code, whose failed import left parts of the harness behind.
        """
        with suppress(*([ImportError] if self.name in _HARNESSES else [])):
            super().exec_module(module)


class _SourceFinder(MetaPathFinder):
    """Finds modules as the other finders do; those that do not belong to a library are loaded from their source."""

    is_passing = True

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None) if finder is not self else None
            spec: ModuleSpec | None = find(fullname, path, target) if find is not None else None
            if spec is not None:
                loader = spec.loader
                if type(loader) is SourceFileLoader and not _is_library(loader.path):
                    spec.loader = SourceLoader(loader.name, loader.path)
                return spec
        return None


def _is_library(path: str) -> bool:
    return is_installed(path) or path.startswith(_OWN)


_HARNESSES: Final = ("lm_eval", "lmms_eval")
_OWN: Final = str(Path(__file__).parents[1])
_FINDER: Final = _SourceFinder()


def import_from_source() -> None:
    """Import modules that do not belong to a library from their source, from now on."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


@contextmanager
def imports_from_source() -> Iterator[None]:
    """Import modules that do not belong to a library from their source inside the block."""
    if _FINDER in sys.meta_path:
        yield
        return
    import_from_source()
    try:
        yield
    finally:
        sys.meta_path.remove(_FINDER)


def names_in(code: CodeType) -> Iterator[str]:
    """Yield the names that compiled code mentions, with those of the functions in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)
