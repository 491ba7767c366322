"""Code that is tested, loaded from its source, and without what is not installed until that is used.

An import of a package that is not installed, or of a module that cannot be loaded without one, gives a stand-in, unless
the code goes on without it. Only the module with the import gets the stand-in. Other modules see what is installed, so
a module does not depend on what was imported before it.
"""

from __future__ import annotations

import ast
import builtins
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import resolve_name
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any, Final, NoReturn

from pytest_promptfmt.core.errors import SettingsError
from pytest_promptfmt.core.files import is_installed
from pytest_promptfmt.core.limits import must_propagate
from pytest_promptfmt.core.source_imports import syntax_tree
from pytest_promptfmt.tasks.deferred_imports import Deferred, put_off, restore_removed
from pytest_promptfmt.tasks.harness import PACKAGES, Harness
from pytest_promptfmt.tasks.import_failures import ImportFailedError, can_wait, explained, missing_package

_CAUGHT: Final = frozenset({"ImportError", "ModuleNotFoundError", "PackageNotFoundError", "Exception", "BaseException"})
_TOLERANT: Final = frozenset({"importlib", "importlib.metadata", "importlib.util"})
_ENDS: Final = frozenset({"exit", "quit", "_exit"})


class SourceLoader(SourceFileLoader):
    """Loads a module from its source; compiled files, which may be stale, are neither read nor written."""

    def path_stats(self, path: str) -> NoReturn:
        """Raise OSError: without the time of a source, Python uses no compiled file."""
        raise OSError(path)


class CodeLoader(SourceLoader):
    """Loads a module of code that is tested."""

    def __init__(self, fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self._checkout = _FINDER.checkout
        self._own_lack: ImportFailedError | None = None
        self._imported: list[str] = []

    @property
    def lack(self) -> ImportFailedError | None:
        """Return why the first import failed that has a stand-in, here or in what is imported here; None without."""
        loaders: list[CodeLoader] = [self]
        for loader in loaders:  # which grows
            if loader._own_lack is not None:
                return loader._own_lack
            found = (loader_of(sys.modules.get(name)) for name in loader._imported)
            loaders += [each for each in found if each is not None and each not in loaders]
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Run the module; one that fails with a stand-in lacks what that stands for."""
        self._own_lack, self._imported = None, []
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": self._import}
        if self._is_root:
            vars(module)["__getattr__"] = lambda name: _part(f"{self.name}.{name}")
        source = self.get_data(self.path)
        package, *parts = self.name.split(".")
        if package not in PACKAGES or parts[:1] == ["tasks"]:  # not of the harness itself
            restore_removed(source)
        with put_off(source):
            try:
                super().exec_module(module)
            except Exception as error:
                lack = self.lack
                if lack is None or must_propagate(error) or isinstance(error, ImportError):
                    raise
                _miss(lack.missing, error)

    @property
    def _is_root(self) -> bool:
        return self.name in PACKAGES

    def _import(
        self,
        name: str,
        scope: dict[str, Any] | None = None,
        local: Any = None,
        names: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        """Import as Python does; while the module itself is run, what is missing has a stand-in."""
        with code_of(self._checkout):
            if scope is None or local is not scope:  # in a function: later, and only where it is used
                return builtins.__import__(name, scope, local, names or (), level)
            package = scope.get("__package__")
            absolute = resolve_name("." * level + name, package) if level and package else name
            if self._is_root and names and "*" not in names and absolute.startswith(f"{self.name}."):
                # Models, and all that they need.
                return Deferred(f"module {absolute}", partial(importlib.import_module, absolute))
            try:
                return self._found(name, absolute, scope, names or (), level)
            except Exception as error:
                missing = missing_package(error)
                frame = sys._getframe(1)
                if not missing or must_propagate(error) or "*" in (names or ()) or not self._can_wait(missing, frame):
                    raise
                self._note(error, frame)
                lacking = Deferred(f"package {missing}", partial(_miss, missing))
                if names:  # which may begin with underscores
                    return _copied(ModuleType(absolute), **dict.fromkeys(names, lacking))
                return _with_part(absolute, lacking)

    def _found(self, name: str, absolute: str, scope: dict[str, Any], names: Sequence[str], level: int) -> Any:
        parts = absolute.split(".")
        for end in range(1, len(parts)):  # a part may be left of an import that failed
            if absolute in sys.modules and ".".join(parts[:end]) not in sys.modules:
                importlib.import_module(".".join(parts[:end]))
        found = builtins.__import__(name, scope, scope, names, level)
        self._imported += [absolute, *(f"{absolute}.{each}" for each in names)]
        if absolute in _TOLERANT:
            metadata = _copied(importlib.metadata, version=self._version)
            util = _copied(importlib.util, spec_from_file_location=_code_in_file)
            tolerant = _copied(importlib, metadata=metadata, util=util)
            return getattr(tolerant, absolute.partition(".")[2], tolerant) if names else tolerant
        if names and getattr(found, "__file__", None) is None and hasattr(found, "__path__"):
            # A package that distributions share: Python itself would complain after this call.
            for each in names:
                if not hasattr(found, each) and f"{absolute}.{each}" not in sys.modules:
                    _miss(f"{absolute}.{each}")
        return found

    def _version(self, distribution_name: str) -> str:
        """Return the version of a distribution, one that satisfies each requirement for what is not installed.

        A checkout has its own, which lm-eval reads when it is imported.
        """
        try:
            return importlib.metadata.version(distribution_name)
        except importlib.metadata.PackageNotFoundError as error:
            if self._checkout is not None and distribution_name == self._checkout.folder.name:
                return self._checkout.release or "0"
            frame = sys._getframe(1)
            if frame.f_locals is not frame.f_globals or not self._can_wait(distribution_name, frame):
                raise
            self._note(error, frame)
            return _AnyVersion("9999")

    def _note(self, error: BaseException, frame: FrameType) -> None:
        """Note what is missing, with the line that imports it."""
        line = TracebackType(error.__traceback__, frame, frame.f_lasti, frame.f_lineno)
        self._own_lack = self._own_lack or explained(error.with_traceback(line), Path(self.path))

    def _can_wait(self, missing: str, frame: FrameType) -> bool:
        goes_on = any(frame.f_lineno in lines for lines in self._lines_that_may_fail)
        return not goes_on and can_wait(missing, Path(self.path))

    @cached_property
    def _lines_that_may_fail(self) -> Sequence[range]:
        """Return the lines after whose failed imports the module goes on."""
        return [
            range(node.body[0].lineno, (node.body[-1].end_lineno or 0) + 1)
            for node in ast.walk(syntax_tree(self.get_data(self.path)))
            if (isinstance(node, ast.Try) and _goes_on(node)) or (isinstance(node, ast.With) and _suppresses(node))
        ]


def _code_in_file(name: str, location: str | Path, **given: Any) -> ModuleSpec | None:
    given.setdefault("loader", CodeLoader(name, str(location)))
    return importlib.util.spec_from_file_location(name, location, **given)


def loader_of(module: ModuleType | None) -> CodeLoader | None:
    """Return what has loaded a module of code that is tested, None for other modules."""
    loader = getattr(vars(module).get("__spec__"), "loader", None) if type(module) is ModuleType else None
    return loader if isinstance(loader, CodeLoader) else None


def _goes_on(node: ast.Try) -> bool:
    """Return whether code catches a failed import without ending in turn."""
    for handler in node.handlers:
        if handler.type is None or not _CAUGHT.isdisjoint(_names(handler.type)):
            last: ast.AST = handler.body[-1]
            last = last.value if isinstance(last, ast.Expr) else last
            is_exit = isinstance(last, ast.Call) and not _ENDS.isdisjoint(_names(last.func))
            return not is_exit and not isinstance(last, ast.Raise)
    return False


def _suppresses(node: ast.With) -> bool:
    calls = [each.context_expr for each in node.items if isinstance(each.context_expr, ast.Call)]
    return any("suppress" in _names(each.func) and not _CAUGHT.isdisjoint(_names(each)) for each in calls)


def _names(node: ast.AST) -> set[str]:
    return {getattr(each, "id", "") or getattr(each, "attr", "") for each in ast.walk(node)}


def _miss(name: str, error: Exception | None = None) -> NoReturn:
    raise ModuleNotFoundError(f"No module named {name!r}", name=name) from error


def _copied(module: ModuleType, **others: Any) -> ModuleType:
    """Return a copy of a module with other values of some of its names."""
    made = ModuleType(module.__name__)
    vars(made).update({**vars(module), **others})
    return made


def _with_part(name: str, value: Any) -> Any:
    """Return the first package of a dotted name, which an import gives, with this value in the place of the name."""
    package, _, part = name.rpartition(".")
    if not package:
        return value
    return _with_part(package, _copied(sys.modules[package], **{part: value}) if package in sys.modules else value)


def _part(name: str) -> Any:
    """Return a module of a package that nothing has imported yet; raises AttributeError where there is none."""
    package, _, part = name.rpartition(".")
    if not part.startswith("__"):
        with suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    raise AttributeError(f"module {package!r} has no attribute {part!r}")


class _CodeFinder(MetaPathFinder):
    """Finds modules as the other finders do, and those of a checkout that an installed harness of its name lacks.

    Modules that do not belong to a library are loaded from their source.
    """

    is_passing = True
    loader: type[SourceLoader] = SourceLoader
    checkout: Harness | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        finders = [each for each in sys.meta_path if each is not self and hasattr(each, "find_spec")]
        if self.checkout is not None:
            finders.append(_PackageFinder(self.checkout.folder))
        for finder in finders:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                loader = spec.loader
                if type(loader) is SourceFileLoader and not _is_library(loader.path):
                    # A harness that was chosen is run as it is.
                    is_chosen = isinstance(finder, _PackageFinder) and finder in sys.meta_path
                    spec.loader = (SourceLoader if is_chosen else self.loader)(loader.name, loader.path)
                return spec
        return None


class _PackageFinder(MetaPathFinder):
    """Finds the modules of a package in its folder."""

    def __init__(self, package: Path) -> None:
        self._package = package

    def find_spec(self, fullname: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        package, *parts = fullname.split(".")
        if package != self._package.name:
            return None
        return PathFinder.find_spec(fullname, [str(self._package.joinpath(*parts).parent)])


def package_in(folder: Path, name: str) -> Path:
    """Return the folder of a package in a checkout or an environment; raises SettingsError where it has none."""
    roots = (folder, folder / "src", *sorted(folder.glob("lib/python*/site-packages")))
    found = next((root / name for root in roots if (root / name).is_dir()), None)
    if found is None:
        hint = "name the top folder of a checkout or of an environment"
        raise SettingsError(f"{folder} has no folder {name}", hint=hint)
    return found.resolve()


def use_package(folder: Path) -> None:
    """Let this process import a package from its folder, even if another one is installed."""
    sys.meta_path.insert(0, _PackageFinder(folder))


def _is_library(path: str) -> bool:
    return is_installed(path) or path.startswith(_OWN)


_OWN: Final = str(Path(__file__).parents[1])
_FINDER: Final = _CodeFinder()


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


@contextmanager
def code_of(checkout: Harness | None) -> Iterator[None]:
    """Import code that is tested inside the block, and modules of a checkout that an installed harness lacks."""
    before = _FINDER.loader, _FINDER.checkout
    _FINDER.loader, _FINDER.checkout = CodeLoader, checkout
    try:
        with imports_from_source():
            yield
    finally:
        _FINDER.loader, _FINDER.checkout = before


class _AnyVersion(str):
    """A version that satisfies each requirement."""

    __slots__ = ()

    def startswith(self, *_prefix: Any) -> bool:
        return True
