"""`!function` references: found and imported as lm-eval 0.4.13 does, but only where code may run.

Importing a task's module runs it, so every file is checked before it runs. A failed import is cached, so that two
hundred tasks do not each pay for it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from pytest_promptfmt.core.errors import (
    CodeNotAllowedError,
    FunctionError,
    MissingResourceError,
    Position,
    did_you_mean,
    display_path,
)
from pytest_promptfmt.core.limits import exits_raise, must_propagate, time_limit
from pytest_promptfmt.core.randomness import import_of
from pytest_promptfmt.core.task import FunctionRef, Task, leaves, with_leaves
from pytest_promptfmt.tasks.code_loading import CodeLoader, code_of, loader_of
from pytest_promptfmt.tasks.deferred_imports import NOT_FROM_HUB, Deferred, LackingBase, load_for, without_registry
from pytest_promptfmt.tasks.harness import Harness, harness_around, harness_of
from pytest_promptfmt.tasks.import_failures import (
    ImportFailedError,
    explained,
    missing_resource,
    sleeps_skipped,
)
from pytest_promptfmt.tasks.rendering.field_mappings import with_model_arguments
from pytest_promptfmt.tasks.rendering.media import MEDIA_KEYS
from pytest_promptfmt.tasks.scoring.registered import with_registered
from pytest_promptfmt.tasks.task_config import MAPPINGS

IMPORT_SECONDS: Final = 60.0

_TASK_FIELDS: Final = ("doc_to_text", "doc_to_target", "doc_to_choice", "description", "gen_prefix")
_DATASET_FIELDS: Final = {"custom": ("custom_dataset",), "process_docs": ("process_docs",)}
_FEWSHOT_FIELDS: Final = ("sampler", "samples", *MAPPINGS)

_REGISTERING: Final = ("api", "filters")
"""Folders of a checkout whose modules register names that the installed harness may have, too."""

_HALF_IMPORTED: Final = "partially initialized module 'lm_eval"

_failures: dict[tuple[str, int | None], ImportFailedError] = {}
"""Module file (or dotted name) and mtime to why its import failed."""


def functions_of(task: Task) -> tuple[FunctionRef, ...]:
    """Return every `!function` of the task once: those rendering needs, then all others in its config."""
    values = [getattr(task, name) for name in _TASK_FIELDS]
    values += [getattr(task.dataset, name) for name in _DATASET_FIELDS]
    values += [getattr(task.fewshot, name) for name in (*_FEWSHOT_FIELDS, "process_docs")]
    return tuple(dict.fromkeys(each for each in leaves([values, task.config]) if isinstance(each, FunctionRef)))


def bind_functions(task: Task, *, trusted: Callable[[Path], bool], time_limit: float = IMPORT_SECONDS) -> Task:
    """Return the task with the references to functions that rendering needs replaced by the imported functions.

    `trusted` decides about every Python file that would run; `time_limit` is seconds for one import. Functions that
    make docs are imported when they are first called: synthetic docs need none of them. References in metric_list,
    filter_list and process_results stay as they are. A task class is imported. Raises
    CodeNotAllowedError for a file that may not run, FunctionError for a function that cannot be loaded,
    MissingResourceError for one that uses a package or load that is not here.
    """
    if task.assembly.is_class:
        return task.assembly.bound(task, trusted, time_limit)
    importer = CodeImporter(trusted, time_limit)

    def bound(value: Any, *keys: str | int) -> Any:
        return importer.bound(value, task, keys, (str, list, dict)) if isinstance(value, FunctionRef) else value

    def bound_when_called(value: Any, *keys: str | int) -> Any:
        if not isinstance(value, FunctionRef):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            function = bound(value, *keys)
            function = with_model_arguments(function, task.config) if keys[0] in MEDIA_KEYS else function
            return function(*args, **kwargs) if args or callable(function) else function

        return call

    fields = {name: bound(getattr(task, name), name) for name in _TASK_FIELDS}
    fields["doc_to_text"] = with_model_arguments(fields["doc_to_text"], task.config)
    deferred = ((name, getattr(task.dataset, name), keys) for name, keys in _DATASET_FIELDS.items())
    dataset: dict[str, Any] = {name: bound_when_called(value, *keys) for name, value, keys in deferred}
    kwargs = task.dataset.kwargs
    if kwargs is not None and "data_files" in kwargs:  # others are arguments of a hub
        files = with_leaves(kwargs["data_files"], bound_when_called, "dataset_kwargs", "data_files")
        kwargs = {**kwargs, "data_files": files}
    fewshot = {name: bound(getattr(task.fewshot, name), "fewshot_config", name) for name in _FEWSHOT_FIELDS}
    fewshot["process_docs"] = bound_when_called(task.fewshot.process_docs, "fewshot_config", "process_docs")
    return replace(
        task,
        dataset=replace(task.dataset, kwargs=kwargs, **dataset),
        fewshot=replace(task.fewshot, **fewshot),
        media={key: bound_when_called(task.config[key], key) for key in MEDIA_KEYS if key in task.config},
        **fields,
    )


def bind_scoring(
    task: Task, *, trusted: Callable[[Path], bool], time_limit: float = IMPORT_SECONDS, by_installed: bool = False
) -> Task:
    """Return the task with the references in `filter_list`, `metric_list` and `process_results` replaced by functions.

    So are filters and metrics that packages or the installed lm-eval register and lm-eval 0.4.13 does not have;
    `by_installed`, all that the imported lm-eval has. A task class gets the metrics and filters of its class. The rest
    of the task stays as it is. Arguments and errors are those of `bind_functions`, and ScoringError for a package that
    does not load.
    """
    if task.assembly.is_class:
        return task.assembly.scored(task)
    importer = CodeImporter(trusted, time_limit)

    def bound(value: Any, *keys: str | int) -> Any:
        return importer.bound(value, task, keys) if isinstance(value, FunctionRef) else value

    names = ("filter_list", "metric_list", "process_results")
    written = replace(task, **{name: with_leaves(getattr(task, name), bound, name) for name in names})
    return with_registered(written, importer.registering, by_installed=by_installed)


def missing_for(ref: FunctionRef) -> FunctionError | None:
    """Return why the module of a function is imported without a package, None where it is complete or not imported."""
    lack = _lack_of(sys.modules.get(_module_name(ref.file)))
    return None if lack is None else lack.about(f"!function {ref}", ref.position)


def _lack_of(module: ModuleType | None) -> ImportFailedError | None:
    loader = loader_of(module)
    return loader.lack if loader is not None else None


@dataclass(frozen=True)
class CodeImporter:
    """Imports modules of tasks. `trusted` decides about every Python file that would run, `seconds` limit one import.

    All that it gives raises CodeNotAllowedError for a file that may not run, and FunctionError for a module that does
    not import and a name that it does not have.
    """

    trusted: Callable[[Path], bool]
    seconds: float = IMPORT_SECONDS

    def module(self, file: Path) -> ModuleType:
        """Return the module of a Python file, loaded again when it has changed."""
        position = Position(file)
        if not self.trusted(file):
            raise CodeNotAllowedError("the code of this file is not allowed to run", position=position)
        with _told_about("", position):
            module = self._sibling(file.resolve(), "", position)
            if (lack := _lack_of(module)) is not None:
                raise lack
        return module

    def registering(self, module: str, file: Path, what: str, position: Position | None) -> ModuleType:
        """Return the module of that name, else that of the file, which registers what is named."""
        self._require_trusted(file, what, position)
        with _told_about(what, position):
            return self._installed(module, file, what, position) if module else self._sibling(file, what, position)

    def bound(self, ref: FunctionRef, task: Task, keys: tuple[str | int, ...], values: tuple[type, ...] = ()) -> Any:
        """Return the function that a reference in a task names, or the value of one of these types.

        lm-eval also takes a text or list of a module as if it were written. Raises MissingResourceError for a function
        that uses a package or load of a hub that is not here.
        """
        key, position = ".".join(map(str, keys)), task.locate(keys) or ref.position
        found = self.function(ref, key, position, values)
        if (missing := load_for(found)) is not None:
            what, error = missing
            lacking = missing_resource(error, ref.file) or NOT_FROM_HUB
            raise MissingResourceError(f"{key}: !function {ref}: {what}", lacking, position=position) from error
        return found

    def function(
        self, ref: FunctionRef, key: str = "", position: Position | None = None, values: tuple[type, ...] = ()
    ) -> Any:
        """Return the function or class that a reference names, written at a key, or a value of one of these types."""
        key, position = key or ref.position.path.name, position or ref.position
        found = self.find(ref, f"{key}: !function {ref}", position)
        if not callable(found) and not isinstance(found, values):
            message = f"{key}: {ref.name!r} in {_shown_module(ref)} is of type {type(found).__name__}, not a function"
            raise FunctionError(message, position=position)
        return found

    def find(self, ref: FunctionRef, what: str, position: Position | None) -> Any:
        """Return the object that a reference names; `what` is its name in messages."""
        file, written = ref.file, f"!function {ref}"
        if ref.is_path:
            _require_early(ref, what, position)
        with _told_about(what, position):
            has_sibling = file.is_file()
            module = (
                self._sibling(file, written, position)
                if has_sibling
                else self._installed(ref.module, file, written, position)
            )
        found = getattr(module, ref.name, _MISSING)
        is_lacking = type(found) is Deferred or (isinstance(found, type) and issubclass(found, LackingBase))
        if (found is _MISSING or is_lacking) and (lack := _lack_of(module)) is not None:
            raise lack.about(what, position)
        if found is _MISSING:
            message = f"{what.partition(':')[0]}: {_shown_module(ref)} has no {ref.name!r}"
            names = [name for name in vars(module) if not name.startswith("__")]
            raise FunctionError(message, position=position, hint=did_you_mean(ref.name, names))
        return found

    def _sibling(self, file: Path, what: str, position: Position | None) -> ModuleType:
        """Return the module of a file."""
        self._require_trusted(file, what, position)
        name = _module_name(file)
        mtime = file.stat().st_mtime_ns
        loaded = sys.modules.get(name)
        if loaded is not None and getattr(loaded, "__mtime__", None) == mtime:
            return loaded
        around = harness_around(file.parent)
        checkout = around if around is not None and self.trusted(around.folder / "__init__.py") else None
        return self._imported((str(file), mtime), partial(_executed, name, file, mtime, checkout), file)

    def _installed(self, module: str, sibling: Path, what: str, position: Position | None) -> ModuleType:
        """Return a module found by a normal import, after checking every file that the import would run."""
        for spec in _specs(module):
            if spec is None:
                raise ImportFailedError(
                    f"there is no file {display_path(sibling)}, and no installed module {module!r}",
                    _missing_module_hint(module, sibling),
                )
            origin = _origin(spec)
            if origin is not None:
                self._require_trusted(origin, what, position)

        def load() -> ModuleType:
            with code_of(None), import_of(module, ""):
                return importlib.import_module(module)

        return self._imported((module, None), load, None)

    def _imported(self, key: tuple[str, int | None], load: Callable[[], ModuleType], file: Path | None) -> ModuleType:
        if key in _failures:
            raise replace(_failures[key])
        try:
            with time_limit(self.seconds, "the import"), exits_raise(), sleeps_skipped():
                return load()
        except BaseException as error:  # a module that calls sys.exit must not end the test run
            if must_propagate(error):
                raise
            _failures[key] = explained(error, file)
            raise replace(_failures[key]) from error

    def _require_trusted(self, file: Path, what: str, position: Position | None) -> None:
        if not self.trusted(file):
            message = f"{what} needs the code of {display_path(file)}, which is not allowed to run"
            raise CodeNotAllowedError(message, position=position)


_MISSING: Final = object()


@contextmanager
def _told_about(what: str, position: Position | None) -> Iterator[None]:
    """Make a failed import inside the block the error for what was to be imported."""
    try:
        yield
    except ImportFailedError as failure:
        raise failure.about(what, position) from failure.__cause__


def _require_early(ref: FunctionRef, what: str, position: Position | None) -> None:
    """Raise FunctionError for a path where the harness finds functions only by the dotted names of modules."""
    harness = harness_of(ref.directory)
    if harness is not None and not harness.reads_early_yaml:
        raise FunctionError(
            f"{what}: {harness.title} cannot load a function from a path",
            position=position,
            hint=(
                "add a module to the folder of the task. Import the function "
                "there, and write `!function module.function`"
            ),
        )


def _shown_module(ref: FunctionRef) -> str:
    return display_path(ref.file) if ref.file.is_file() else f"module {ref.module}"


def _executed(name: str, file: Path, mtime: int, checkout: Harness | None) -> ModuleType:
    """Return a new module of a file, run as a run of lm-eval does, with that of a checkout around it importable."""
    source = file.read_bytes()
    with code_of(checkout), ExitStack() as stack:
        spec = importlib.util.spec_from_file_location(name, file, loader=CodeLoader(name, str(file)))
        if spec is None or spec.loader is None:
            raise ImportError(f"{display_path(file)} cannot be loaded")
        module = importlib.util.module_from_spec(spec)
        module.__mtime__ = mtime  # type: ignore[attr-defined]  # lm-eval keeps the time in this attribute too
        if b"register_metric" in source:  # lm-eval has its own aggregations by then, and this may name one
            with suppress(ImportError):
                importlib.import_module("lm_eval.api.metrics")
        stack.enter_context(import_of(name, str(file), uses_numpy=b"numpy" in source))
        if checkout is not None and file.parent.name in _REGISTERING:
            stack.enter_context(without_registry(checkout.folder.name))
        try:
            spec.loader.exec_module(module)
        except ImportError as error:
            if _HALF_IMPORTED not in str(error):
                raise
            # Where modules of lm-eval import each other in a circle, the order of a run may be the only one.
            importlib.import_module("lm_eval.evaluator")
            spec.loader.exec_module(module)
        sys.modules[name] = module
    return module


def _module_name(file: Path) -> str:
    # lm-eval 0.4.13 gives its own tasks their package name and every other file its path.
    _, found, below = file.as_posix().partition("/lm_eval/tasks/")
    if found:
        return "lm_eval.tasks." + below.replace(".py", "").replace("/", ".")
    return str(file.with_suffix(""))


def _specs(module: str) -> Iterator[ModuleSpec | None]:
    """Yield the spec of each package on the way to a dotted module, without running any; None where one is missing."""
    path: list[str] | None = None
    parts = module.split(".")
    for end, part in enumerate(parts, start=1):
        name = ".".join(parts[:end])
        spec = getattr(sys.modules.get(name), "__spec__", None)
        try:
            if spec is None:
                spec = importlib.util.find_spec(name) if path is None else PathFinder.find_spec(name, path)
        except KeyError:
            # A folder without __init__.py below a package that is not imported yet: it has no code.
            path = [f"{folder}/{part}" for folder in path or () if Path(folder, part).is_dir()]
            continue
        except (ImportError, ValueError, AttributeError):
            spec = None
        yield spec
        if spec is None:
            return
        path = list(spec.submodule_search_locations or ())


def _origin(spec: ModuleSpec) -> Path | None:
    """Return the file a module runs from; Python's own path for built-in modules; None for a plain folder."""
    if spec.has_location and spec.origin:
        return Path(spec.origin)
    if spec.origin in ("built-in", "frozen"):
        return Path(sys.executable)
    return None


def _missing_module_hint(module: str, sibling: Path) -> str:
    folder = sibling.parent
    modules = [file.stem for file in folder.glob("*.py")] if folder.is_dir() else []
    close = did_you_mean(sibling.stem, modules)
    return close or f"write the function into {display_path(sibling)}, or install the package that has {module}"
