"""Random generators as the code of a task sees them in a run of lm-eval: seeded, and separate from those of all others.

They are Python's and numpy's own, which lm-eval seeds, and those that modules of tasks make for themselves.
"""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, cached_property
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from pytest_promptfmt.core.files import is_installed
from pytest_promptfmt.core.task import FunctionRef, Task, leaves

_PYTHON: Final = random.Random(0).getstate()
_NUMPY_SEED: Final = 1234

_of_modules: dict[str, tuple[Any, Any]] = {}
"""Names of generators in modules of tasks to the generators, and their states after the import."""

_after_imports: dict[str, Mapping[str, Any]] = {}
"""Files and modules that draw or seed when they are imported to the states of Python's and numpy's generators then."""


class OwnRandomness:
    """The states of all generators for the code of one task; where its modules' imports left them, or as given."""

    def __init__(self, task: Task | None = None, states: Mapping[str, Any] | None = None) -> None:
        self._task = task
        self._given = dict(states or {})
        self.states = dict(self._given)
        """The states that the blocks so far left, for another one to begin with."""

    @contextmanager
    def used(self) -> Iterator[None]:
        """Put the task's own states in place for the block, and the earlier ones back after it."""
        earlier = {}
        begun = self._begun()
        for name, generator, beginning in _generators():
            earlier[name] = _state(generator)
            _restore(generator, self.states.get(name, begun.get(name, beginning)))
        try:
            yield
        finally:
            for name, generator, beginning in _generators():
                self.states[name] = _state(generator)
                _restore(generator, earlier.get(name, beginning))

    def skip(self, count: int) -> None:
        """Draw so many numbers from Python's generator."""
        with self.used():
            for _ in range(count):
                random.random()

    @property
    def has_drawn(self) -> bool:
        """Return whether code in a block drew anything."""
        begun = {name: beginning for name, _, beginning in _generators()} | self._begun() | self._given
        return any(_is_other(state, begun[name]) for name, state in self.states.items())

    def _begun(self) -> dict[str, Any]:
        """Return the states that differ after the imports of the task's modules."""
        found: dict[str, Any] = {}
        for ref in self._functions if _after_imports else ():
            found |= _after_imports.get(str(ref.file), _after_imports.get(ref.module, {}))
        return found

    @cached_property
    def _functions(self) -> Sequence[FunctionRef]:
        config = self._task.config if self._task is not None else ()
        return [each for each in leaves(config) if isinstance(each, FunctionRef)]


@contextmanager
def import_of(module: str, file: str, *, uses_numpy: bool = False) -> Iterator[None]:
    """Import a module of a task inside the block as at the start of a run; note what it draws, seeds and makes.

    The states from before are put back, but for a task that has not drawn yet: it goes on where the import ended.
    """
    if uses_numpy:  # seeded before the module draws
        with suppress(ImportError):
            import_module("numpy.random")
    earlier = {name: _state(generator) for name, generator, _ in _shared()}
    loaded = set(sys.modules)
    for _, generator, beginning in _shared():
        _restore(generator, beginning)
    try:
        yield
    finally:
        for name in {module, *sys.modules} - (loaded - {module}):
            found = sys.modules.get(name)  # not every object there is a module
            if issubclass(type(found), ModuleType) and (name == module or not is_installed(_file_of(found))):
                _note(found)
        begun = {}
        for name, generator, beginning in _shared():
            if name not in earlier:  # numpy, which seeds itself by the time
                _restore(generator, beginning)
                continue
            if _is_other(_state(generator), beginning):
                begun[name] = _state(generator)
            if _is_other(earlier[name], beginning):
                _restore(generator, earlier[name])
        if begun:
            _after_imports[file or module] = begun


def _file_of(module: Any) -> str:
    return str(vars(module).get("__file__") or "/")


def _note(module: Any) -> None:
    numpy = sys.modules.get("numpy.random")
    kinds = (random.Random, *((numpy.Generator, numpy.RandomState) if numpy is not None else ()))
    known = [generator for _, generator, _ in _generators()]
    for variable, value in [*vars(module).items()]:
        # A proxy may load what it is of when it is asked for its class.
        if issubclass(type(value), kinds) and not any(value is each for each in known):
            with suppress(NotImplementedError):  # SystemRandom has no state
                _of_modules[f"{module.__name__}:{variable}"] = value, _state(value)


def _generators() -> Iterator[tuple[str, Any, Any]]:
    """Yield the generators that are there now, each with a name and the state that it begins with."""
    yield from _shared()
    yield from ((name, *each) for name, each in [*_of_modules.items()])


def _shared() -> Iterator[tuple[str, Any, Any]]:
    yield "random", random.getstate.__self__, _PYTHON  # type: ignore[attr-defined]  # the hidden instance
    if (numpy := sys.modules.get("numpy.random")) is not None:
        yield "numpy", numpy.get_state.__self__, _numpy_beginning()


@cache
def _numpy_beginning() -> Any:
    return _state(sys.modules["numpy.random"].RandomState(_NUMPY_SEED))


def _state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.bit_generator.state if hasattr(generator, "bit_generator") else generator.get_state(legacy=False)


def _restore(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def _is_other(state: Any, beginning: Any) -> bool:
    return state is not beginning and pickle.dumps(state) != pickle.dumps(beginning)
