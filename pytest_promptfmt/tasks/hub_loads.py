"""What a module loads from a hub while it is imported: it is loaded when it is used.

A task whose module begins with `evaluate.load(…)` is rendered and linted also where that fails, for want of a network
or of what the metric needs: only scoring uses it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final

from pytest_promptfmt.tasks.reach import functions_reached

_LOADS: Final = (("evaluate", "load"), ("datasets", "load_dataset"))

_UNUSED: Final = "transformers.pipelines"
"""`evaluate` imports it for evaluators that run models, and torch with it: seconds and 300 MB that no task uses."""

_importing = 0
"""How many imports are under way in which loads are put off."""


class PutOff:
    """What a call gives once somebody uses it; while the import goes on that made it, its own calls are put off too."""

    def __init__(self, what: str, load: Callable[[], Any]) -> None:
        self.__what = what
        self.__load = load
        self.__loaded: list[Any] = []

    def value(self) -> Any:
        """Return what was to be loaded; raises whatever loading raises, each time."""
        if not self.__loaded:
            self.__loaded.append(self.__load())
        return self.__loaded[0]

    def __repr__(self) -> str:
        """Return what would be loaded."""
        return f"<{self.__what}, not loaded yet>"

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of what was to be loaded."""
        if name.startswith("__"):
            raise AttributeError(name)
        return PutOff(self.__what, lambda: getattr(self.value(), name)) if _importing else getattr(self.value(), name)

    def __call__(self, *args: Any, **given: Any) -> Any:
        """Call what was to be loaded."""
        if _importing:
            return PutOff(self.__what, lambda: self.value()(*args, **given))
        return self.value()(*args, **given)

    def __getitem__(self, key: Any) -> Any:
        """Return an item of what was to be loaded."""
        return PutOff(self.__what, lambda: self.value()[key]) if _importing else self.value()[key]

    def __iter__(self) -> Iterator[Any]:
        """Iterate over what was to be loaded, which loads it."""
        return iter(self.value())

    def __len__(self) -> int:
        """Return the length of what was to be loaded, which loads it."""
        return len(self.value())

    def __bool__(self) -> bool:
        """Return the truth of what was to be loaded, which loads it."""
        return bool(self.value())


@contextmanager
def put_off(source: bytes) -> Iterator[None]:
    """Put off loads inside the block, which imports a module with this source."""
    global _importing
    with ExitStack() as stack:
        for module, name in _LOADS:
            if module.encode() in source and name.encode() in source:
                with suppress(ImportError), _without(_UNUSED):
                    owner = importlib.import_module(module)
                    load = getattr(owner, name)
                    stack.callback(setattr, owner, name, load)
                    setattr(owner, name, _later(f"{module}.{name}", load))
        _importing += 1
        try:
            yield
        finally:
            _importing -= 1


@contextmanager
def _without(module: str) -> Iterator[None]:
    """Let a module that nobody has imported so far look as if it were not installed inside the block."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # which is how Python itself writes that
    try:
        yield
    finally:
        del sys.modules[module]


def _later(what: str, load: Callable[..., Any]) -> Callable[..., PutOff]:
    def loaded_later(*args: Any, **given: Any) -> PutOff:
        return PutOff(f"{what}({', '.join(map(repr, args))})", lambda: load(*args, **given))

    return loaded_later


def load_for(function: object) -> str | None:
    """Load what a function may use and was put off; return why something cannot be loaded here, else None."""
    for reached in functions_reached(function):
        for name in reached.names & reached.scope.keys():
            value = reached.scope[name]
            if type(value) is PutOff:
                try:
                    reached.scope[name] = value.value()
                except Exception as error:  # whatever a hub, a package or a download raises
                    return f"{value!r}: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return None
