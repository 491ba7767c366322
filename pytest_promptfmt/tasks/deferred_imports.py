"""Loads that a module needs only later: a task is rendered and linted without them.

Loads from a hub during an import (`evaluate.load(…)`) are deferred until their result is used.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any, Final, NoReturn

from pytest_promptfmt.core.errors import MissingResource, MissingResourceError
from pytest_promptfmt.core.files import is_installed
from pytest_promptfmt.core.source_imports import names_in

_LOADS: Final = (("evaluate", "load"), ("datasets", "load_dataset"))

_UNUSED: Final = ("transformers", "scipy.stats")
"""`evaluate` imports them for evaluators that run models, and torch with them: seconds that no task needs for that."""

_SHARED: Final = ("nltk", "numpy", "pandas", "rouge_score.rouge_scorer", "sacrebleu", "scipy.stats", "sklearn.metrics")
"""Modules that code of many tasks imports; each takes up to seconds and tens of megabytes."""

NOT_FROM_HUB: Final = MissingResource("data or metrics from the Hugging Face Hub are not available")

_importing = 0
"""How many imports are under way in which loads are put off."""


class Deferred:
    """The value of a call that is made when the value is used; during the import, its own calls are deferred too."""

    def __init__(self, what: str, load: Callable[[], Any]) -> None:
        self.__what = what
        self.__load = load
        self.__loaded: list[Any] = []

    def value(self) -> Any:
        """Return the loaded value; raises what loading raises, each time."""
        if not self.__loaded:
            self.__loaded.append(self.__load())
        return self.__loaded[0]

    def needed(self) -> Any:
        """Return the loaded value for code that runs now; raises MissingResourceError where a hub does not give it."""
        try:
            return self.value()
        except ImportError:  # of a package that is not installed
            raise
        except Exception as error:
            raise MissingResourceError(self.failure(error), NOT_FROM_HUB) from error

    def __repr__(self) -> str:
        return f"<{self.__what}, not loaded yet>"

    def failure(self, reason: object) -> str:
        """Return the message for a load that failed."""
        return f"{self.__what} failed to load: {reason}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.__later(lambda value: getattr(value, name))

    def __call__(self, *args: Any, **given: Any) -> Any:
        """Call what was to be loaded."""
        return self.__later(lambda value: value(*args, **given))

    def __getitem__(self, key: Any) -> Any:
        return self.__later(lambda value: value[key])

    def __or__(self, other: Any) -> Any:
        return self.__later(lambda value: value | other)

    def __ror__(self, other: Any) -> Any:
        return self.__later(lambda value: other | value)

    def __mro_entries__(self, _bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (type("Lacking", (LackingBase,), {"load": staticmethod(self.value)}),)

    def __later(self, use: Callable[[Any], Any]) -> Any:
        return Deferred(self.__what, lambda: use(self.value())) if _importing else use(self.needed())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.needed())

    def __len__(self) -> int:
        return len(self.needed())

    def __bool__(self) -> bool:
        return bool(self.needed())


class LackingBase:
    """The base of a class whose own base is of a package that is not installed."""

    load: Callable[[], Any]

    def __new__(cls, *_args: Any, **_given: Any) -> LackingBase:
        """Raise what loading the base raises."""
        cls.load()
        raise TypeError(f"{cls.__name__} cannot be used: the package of its base class is not installed")


def import_shared(packages: Collection[str]) -> None:
    """Import well-known modules of these packages, as far as they are installed: processes forked later share them."""
    for module in _SHARED:
        package = module.partition(".")[0]
        with suppress(Exception):
            found = importlib.util.find_spec(package) if package in packages else None
            if found is not None and found.origin is not None and is_installed(found.origin):
                importlib.import_module(module)


@contextmanager
def put_off(source: bytes) -> Iterator[None]:
    """Put off loads inside the block, which imports a module with this source."""
    global _importing
    with ExitStack() as stack:
        for module, name in _LOADS:
            if module.encode() in source and name.encode() in source:
                with suppress(ImportError), _without(*_UNUSED):
                    owner = importlib.import_module(module)
                    load = getattr(owner, name)
                    stack.callback(setattr, owner, name, load)
                    setattr(owner, name, partial(_later, f"{module}.{name}", load))
        _importing += 1
        try:
            yield
        finally:
            _importing -= 1


def _load_yaml_config(*_args: Any, **_given: Any) -> NoReturn:
    raise ImportError("the code uses lm_eval.utils.load_yaml_config, which lm-eval 0.4.13 does not have")


_REMOVED: Final[Mapping[str, tuple[str, Callable[[], Any]]]] = {
    "eval_logger": ("lm_eval.utils", partial(logging.getLogger, "lm-eval")),
    "ALL_TASKS": ("lm_eval.api.registry", set),
    "load_yaml_config": ("lm_eval.utils", lambda: _load_yaml_config),
}
"""Names that modules of tasks import and lm-eval 0.4.13 no longer has, with their module and what they were."""


def restore_removed(source: bytes) -> None:
    """Give the installed lm-eval the names of earlier releases that a module with this source uses."""
    for name, (module, make) in _REMOVED.items():
        if b"lm_eval" in source and name.encode() in source:
            with suppress(ImportError):
                owner = importlib.import_module(module)
                if not hasattr(owner, name):
                    setattr(owner, name, make())


@contextmanager
def without_registry(package: str) -> Iterator[None]:
    """Let the registry of a harness take nothing inside the block: it may have the same names from its own files."""
    try:
        scope = vars(importlib.import_module(f"{package}.api.registry"))
    except ImportError:
        yield
        return
    saved = {name: value for name, value in scope.items() if name.startswith("register_")}
    scope.update(dict.fromkeys(saved, lambda *_args, **_given: lambda made: made))
    try:
        yield
    finally:
        scope.update(saved)


@contextmanager
def _without(*modules: str) -> Iterator[None]:
    """Let modules that are not imported yet look as if they were not installed inside the block."""
    hidden = [module for module in modules if module not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None is Python's own mark for it
    try:
        yield
    finally:
        for module in hidden:
            del sys.modules[module]


def _later(what: str, load: Callable[..., Any], *args: Any, **given: Any) -> Deferred:
    return Deferred(f"{what}({', '.join(map(repr, args))})", lambda: load(*args, **given))


def load_for(function: object) -> tuple[str, Exception] | None:
    """Load what a function may use and was put off; return what cannot be loaded here and why, None for nothing."""
    for reached in functions_reached(function):
        for name in reached.names & reached.scope.keys():
            value = reached.scope[name]
            if type(value) is Deferred:
                try:
                    reached.scope[name] = value.value()
                except Exception as error:  # of a hub, a package or a download
                    return value.failure(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"), error
    return None


# -- functions that a function may call, read from compiled code; nothing is run ---------------------------------------

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
            reached = ReachedFunction(frozenset(names_in(value.__code__)), value.__globals__)
            yield reached
            waiting += [each for each in reached.values if type(each) in _FOLLOWED]
