"""Why a module of a task does not import: a mistake, or a package, variable or download that is not here."""

from __future__ import annotations

import difflib
import os
import pkgutil
import re
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from traceback import walk_tb
from typing import Any, Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import (
    FunctionError,
    LimitExceededError,
    MissingResource,
    MissingResourceError,
    Position,
    display_path,
    is_misspelt,
)
from pytest_promptfmt.core.files import is_installed
from pytest_promptfmt.tasks.harness import PACKAGES

_CLOSE: Final = 0.8
"""How alike two names are, from 0 to 1, of which one is taken for a misspelling of the other."""

_NO_NETWORK: Final = frozenset({"ConnectionError", "ConnectError", "gaierror", "LocalEntryNotFoundError"})
"""Names of exceptions, of several packages, for a download without a network."""

_HUBS: Final = frozenset({"datasets", "evaluate", "huggingface_hub", "nltk", "spacy"})
"""Packages that load files from a hub, and raise an OSError or a LookupError where they cannot."""

_IMPORTED: Final = re.compile(r"cannot import name '(\w+)' from (?!partially)")
"""A name that a whole module does not have: modules that import each other are a mistake in their code."""

_VARIABLE: Final = re.compile(r"\b[A-Z][A-Z0-9_]{2,}\b")
_ASKING: Final = frozenset({"environ", "getenv"})

_DOWNLOAD: Final = MissingResource("Python code of the task needs a download, which is not available here")

_WAITS: Final = MissingResource("importing Python code of the task waits for something, such as a server")
_MOST_SLEEP: Final = 10.0
"""Seconds that an import may sleep in all, which take no time."""

_OF_REPOSITORIES: Final = frozenset({"common", "eval", "evals", "lib", "scripts", "src", "tasks", "utils"})
"""Names of folders that are not those of packages, also where the module that imports one is in it."""


@dataclass(eq=False)
class ImportFailedError(Exception):
    """An import that failed; `__cause__` is the original exception the first time.

    `lacks_resource`: the module may work on another machine. `missing` is the module whose absence made it fail,
    `resource` what is not here, None for a mistake.
    """

    message: str
    hint: str | None
    lacks_resource: bool = False
    missing: str = ""
    resource: MissingResource | None = None

    def about(self, what: str, position: Position | None) -> FunctionError:
        """Return the error for what was to be imported, "" for a file by itself."""
        message = f"{what}: {self.message}" if what else self.message
        if self.resource is not None:
            error: FunctionError = MissingResourceError(message, self.resource, position=position)
        else:
            error = FunctionError(message, position=position, hint=self.hint, lacks_resource=self.lacks_resource)
        if self.missing:  # the same cause for all modules that need it
            error.cause = f"no module named {self.missing!r}"
        return error


class _WaitsError(BaseException):
    """An import that sleeps on and on; code that tries again after any Exception does not catch it."""


@contextmanager
def sleeps_skipped() -> Iterator[None]:
    """Let sleeping take no time inside the block, which imports a module, and end an import that waits.

    Threads that were there before sleep as ever.
    """
    sleep, slept, is_over = time.sleep, 0.0, False
    others = {each.ident for each in threading.enumerate()} - {threading.get_ident()}

    def skipped(seconds: Any) -> None:
        nonlocal slept
        if is_over or threading.get_ident() in others:  # a module has imported it by name
            sleep(seconds)
            return
        slept += seconds
        if slept > _MOST_SLEEP:
            raise _WaitsError

    time.sleep = skipped
    try:
        yield
    finally:
        time.sleep, is_over = sleep, True


def explained(error: BaseException, file: Path | None) -> ImportFailedError:
    """Return why the import of a file failed with an error."""
    if isinstance(error, LimitExceededError):
        work = "move slow work, such as a download or a loop, from the top level of the module into a function"
        return ImportFailedError(error.message, work)
    if isinstance(error, _WaitsError):
        return ImportFailedError(
            f"importing the module waits for something{_last_line_in(error, file)}", None, True, "", _WAITS
        )
    if isinstance(error, SystemExit):
        message = f"importing the module ends the program (exit status {error.code!r})"
        return ImportFailedError(message, None, lacks_resource=True)
    missing = missing_package(error)
    is_plain = isinstance(error, ModuleNotFoundError) and error.name == missing
    why = f"no module named {missing!r}" if is_plain else f"{type(error).__name__}: {error}"
    hint = _install_hint(missing, file) if missing else None
    is_mistake = isinstance(error, SyntaxError | NameError)
    message = f"the module cannot be imported{_last_line_in(error, file)}: {why}"
    return ImportFailedError(message, hint, not is_mistake, missing, missing_resource(error, file))


def missing_resource(error: BaseException, beside: Path | None) -> MissingResource | None:
    """Return the package, variable or download whose absence made code fail; None for any other error.

    `beside` is the file whose code it is.
    """
    missing = missing_package(error)
    if missing:
        lacks = MissingResource(f"the package {_named(missing)!r} is not installed", _pip(missing))
        return lacks if can_wait(missing, beside) else _removed(*missing.rpartition(".")[::2])
    for each in _chain(error):
        if isinstance(each, ImportError) and each.name and (part := _IMPORTED.match(str(each))) is not None:
            return _removed(each.name, part[1])
        if (name := _unset_variable(each)) is not None:
            return MissingResource(f"the environment variable {name} is not set", f"export {name}=…")
        if _NO_NETWORK.intersection(base.__name__ for base in type(each).__mro__) or _is_of_hub(each):
            return _DOWNLOAD
    return None


def _removed(module: str, name: str) -> MissingResource | None:
    """Return the other release of an installed package that has a part of it; None for a misspelt part.

    Parts of a harness and of Python itself are mistakes: what tasks are written for is known.
    """
    package = module.partition(".")[0]
    with suppress(ImportError, ValueError):
        spec = find_spec(package) if package not in PACKAGES else None
        if spec is None or not is_installed(spec.origin or "") or package in sys.stdlib_module_names:
            return None
        parts = set(vars(sys.modules[module])) if module in sys.modules else set()
        parts |= {each.name for each in pkgutil.iter_modules(getattr(sys.modules.get(module), "__path__", ()))}
        known = data_table("removed").get(f"{module}.{name}") or data_table("removed").get(module)
        if known or not is_misspelt(name, parts):
            remedy = f"pip install '{known}'" if known else ""
            return MissingResource(f"the installed release of {package!r} has no {f'{module}.{name}'!r}", remedy)
    return None


def lacking(error: BaseException, message: str, position: Position | None) -> MissingResourceError | None:
    """Return the error for code that failed while it ran, None unless it lacks a package, variable or download."""
    missing = missing_resource(error, position.path if position is not None else None)
    return MissingResourceError(message, missing, position=position) if missing is not None else None


def missing_package(error: BaseException) -> str:
    """Return the module whose absence made an import fail, also behind errors that name it; "" for other errors."""
    name = ""
    chain = [*_chain(error)]
    for each, cause in zip_longest(chain, chain[1:]):
        if not isinstance(each, ImportError):
            module = cause.name if isinstance(cause, ImportError) else None
            named = rf"(?<![\w.]){re.escape((module or '').partition('.')[0])}(?!\w)"
            if module and not isinstance(each, NameError) and re.search(named, str(each)):
                continue
            break
        part = getattr(each, "name_from", None)
        if isinstance(each, ModuleNotFoundError):
            name = each.name if each.name and " " not in each.name else name
        elif part and each.name and each.path is None and each.name not in sys.stdlib_module_names:
            name = f"{each.name}.{part}"  # a part of a package that several distributions share
    return name


def can_wait(name: str, beside: Path | None) -> bool:
    """Return whether a missing name is that of a package that is not installed, and no mistake of the author.

    It is taken for a mistake where a part of an installed package is missing, where the folder of the module or one
    above it has that name, and where it is close to the name of something installed.
    """
    package = name.partition(".")[0]
    if getattr(sys.modules.get(package), "__file__", None) or package in _installed():
        return False
    around: Sequence[Path] = beside.parents if beside is not None else ()
    for folder in around:
        if not gate.is_allowed(folder / "-"):
            break
        inside = folder / package in around and package not in _OF_REPOSITORIES  # it may share the name by chance
        is_own = (folder / package).is_dir() and not inside
        if is_own or (folder / f"{package}.py").is_file() or (folder / package / "__init__.py").is_file():
            return False
    alike = [each for each in _installed() if abs(len(each) - len(package)) <= 1]
    return package in data_table("distributions") or not difflib.get_close_matches(package, alike, n=1, cutoff=_CLOSE)


@cache
def _installed() -> frozenset[str]:
    return frozenset(sys.stdlib_module_names).union(each.name for each in pkgutil.iter_modules())


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that it was raised for, each once: an error that is raised again can make a circle."""
    found: BaseException | None = error
    seen: set[int] = set()
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


def _is_of_hub(error: BaseException) -> bool:
    """Return whether a package did not find what it loads from a hub."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)] if isinstance(error, OSError | LookupError) else []
    is_bare = type(error) in (FileNotFoundError, LookupError)
    return is_bare and bool(frames) and frames[-1].f_globals.get("__name__", "").partition(".")[0] in _HUBS


def _unset_variable(error: BaseException) -> str | None:
    """Return the variable that code asked the environment for and that its error names, None for other errors."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    if type(error) is KeyError and frames and frames[-1].f_globals.get("__name__") == "os":
        return str(error.args[0])
    if not any(_ASKING.intersection(frame.f_code.co_names) for frame in frames):
        return None
    written = {
        each for frame in frames for each in (*frame.f_code.co_consts, *frame.f_locals.values()) if type(each) is str
    }
    names = (name for name in _VARIABLE.findall(str(error)) if name in written and name not in os.environ)
    return next(names, None)


def _named(module: str) -> str:
    """Return the package of a module: its first part, or two of a package that several distributions share."""
    package = module.partition(".")[0]
    is_shared = package in sys.modules and package not in PACKAGES
    return ".".join(module.split(".")[:2]) if is_shared else package


def _pip(module: str) -> str:
    package = _named(module)
    return f"pip install {data_table('distributions').get(package) or package.replace('_', '-').replace('.', '-')}"


def _install_hint(module: str, file: Path | None) -> str:
    package = module.partition(".")[0]
    if file is not None and (file.parent / f"{package}.py").is_file():
        return (
            f"{package}.py next to the YAML cannot be imported, because lm-eval "
            "0.4.13 does not add this folder to sys.path"
        )
    if package in _installed():
        return f"the installed version of {package!r} does not have this module"
    return _pip(module) if can_wait(module, file) else f"install the package that has {package!r}"


def _last_line_in(error: BaseException, file: Path | None) -> str:
    if file is None:
        return ""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return f" ({display_path(file)}:{error.lineno})"
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == str(file)]
    return f" ({display_path(file)}:{lines[-1]})" if lines else ""
