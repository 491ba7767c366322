"""`!function` references: found and imported as lm-eval 0.4.13 does, but only where code may run.

Importing a task's module runs it, so every file is checked before it runs. A failed import is cached, so that two
hundred tasks do not each pay for it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from pytest_promptfmt.core.errors import (
    CodeNotAllowedError,
    FunctionError,
    MissingResource,
    MissingResourceError,
    Position,
    did_you_mean,
    display_path,
)
from pytest_promptfmt.core.limits import exits_raise, must_propagate, time_limit
from pytest_promptfmt.core.randomness import import_of
from pytest_promptfmt.core.source_imports import SourceLoader, imports_from_source
from pytest_promptfmt.core.task import FunctionRef, Task, leaves
from pytest_promptfmt.tasks.deferred_imports import (
    LackingBase,
    also_importable,
    imported_without,
    load_for,
    put_off,
    restore_removed,
    without_registry,
)
from pytest_promptfmt.tasks.harness import harness_around, harness_of
from pytest_promptfmt.tasks.import_failures import (
    ImportFailedError,
    can_wait,
    explained,
    missing_package,
    missing_resource,
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

_MOST_MISSING: Final = 8
"""Packages that a module may be imported without."""

_failures: dict[tuple[str, int | None], ImportFailedError] = {}
"""Module file (or dotted name) and mtime to why its import failed."""

_incomplete: dict[str, ImportFailedError] = {}
"""Names of modules that were imported without a package that is not installed, to the error of that import."""


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

    def bound(value: Any, *keys: str) -> Any:
        if not isinstance(value, FunctionRef):
            return value
        return _bound(value, task, keys, trusted, time_limit, may_be_value=True)

    def bound_when_called(value: Any, *keys: str) -> Any:
        if not isinstance(value, FunctionRef):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            function = bound(value, *keys)
            function = with_model_arguments(function, task.config) if keys[0] in MEDIA_KEYS else function
            return function(*args, **kwargs) if args or callable(function) else function

        return call

    def bound_inside(value: Any, *keys: str) -> Any:
        if isinstance(value, Mapping):
            return {key: bound_inside(item, *keys, key) for key, item in value.items()}
        return bound_when_called(value, *keys)

    fields = {name: bound(getattr(task, name), name) for name in _TASK_FIELDS}
    fields["doc_to_text"] = with_model_arguments(fields["doc_to_text"], task.config)
    deferred = ((name, getattr(task.dataset, name), keys) for name, keys in _DATASET_FIELDS.items())
    dataset: dict[str, Any] = {name: bound_when_called(value, *keys) for name, value, keys in deferred}
    kwargs = task.dataset.kwargs
    if kwargs is not None and "data_files" in kwargs:  # others are arguments of a hub
        kwargs = {**kwargs, "data_files": bound_inside(kwargs["data_files"], "dataset_kwargs", "data_files")}
    dataset["kwargs"] = kwargs
    fewshot = {name: bound(getattr(task.fewshot, name), "fewshot_config", name) for name in _FEWSHOT_FIELDS}
    fewshot["process_docs"] = bound_when_called(task.fewshot.process_docs, "fewshot_config", "process_docs")
    return replace(
        task,
        dataset=replace(task.dataset, **dataset),
        fewshot=replace(task.fewshot, **fewshot),
        media={key: bound_when_called(task.config[key], key) for key in MEDIA_KEYS if key in task.config},
        **fields,
    )


def load_function(
    ref: FunctionRef, *, trusted: Callable[[Path], bool], time_limit: float = IMPORT_SECONDS
) -> Callable[..., Any]:
    """Return the function or class that one `!function` names; raises as `bind_functions`."""
    function: Callable[..., Any] = _function(ref, ref.position, ref.position.path.name, trusted, time_limit)
    return function


def load_object(
    ref: FunctionRef,
    *,
    what: str,
    position: Position | None,
    trusted: Callable[[Path], bool],
    time_limit: float = IMPORT_SECONDS,
) -> Any:
    """Return the object of that name in a module; `what` is its name in messages. Raises as `bind_functions`."""
    file = ref.file
    if ref.is_path:
        _require_early(ref, what, position)
    try:
        module = (
            _module_beside(file, ref, position, trusted, time_limit)
            if file.is_file()
            else _installed_module(ref.module, file, f"!function {ref}", position, trusted, time_limit)
        )
    except ImportFailedError as failure:
        raise failure.about(what, position) from failure.__cause__
    found = getattr(module, ref.name, _MISSING)
    if found is _MISSING or (isinstance(found, type) and issubclass(found, LackingBase)):
        if (known := _incomplete.get(module.__name__)) is not None:
            raise known.about(what, position) from known.__cause__
        where = display_path(file) if file.is_file() else f"module {ref.module}"
        names = [name for name in vars(module) if not name.startswith("__")]
        raise FunctionError(
            f"{what.partition(':')[0]}: {where} has no {ref.name!r}",
            position=position,
            hint=did_you_mean(ref.name, names),
        )
    return found


def _require_early(ref: FunctionRef, what: str, position: Position | None) -> None:
    """Raise FunctionError for a path where the harness finds functions only by the dotted names of modules."""
    harness = harness_of(ref.directory)
    if harness is not None and not harness.reads_early_yaml:
        raise FunctionError(
            f"{what}: {harness.title} does not find a function by a path",
            position=position,
            hint="put a module into the folder of the task that imports the function",
        )


def load_module(file: Path, *, trusted: Callable[[Path], bool], time_limit: float = IMPORT_SECONDS) -> ModuleType:
    """Return the module of a Python file, loaded again when it has changed.

    Raises CodeNotAllowedError, FunctionError for a file that does not import within `time_limit` seconds.
    """
    ref = FunctionRef(file.stem, "", file.parent, Position(file))
    if not trusted(file):
        raise CodeNotAllowedError("the code of this file is not allowed to run", position=ref.position)
    try:
        module = _module_beside(file.resolve(), ref, ref.position, trusted, time_limit)
        if (incomplete := _incomplete.get(module.__name__)) is not None:
            raise incomplete
    except ImportFailedError as failure:
        raise failure.about("", ref.position) from failure.__cause__
    return module


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

    def bound(value: Any, *keys: str | int) -> Any:
        if isinstance(value, FunctionRef):
            return _bound(value, task, keys, trusted, time_limit)
        if isinstance(value, Mapping):
            return {key: bound(item, *keys, key) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [bound(item, *keys, index) for index, item in enumerate(value)]
        return value

    def load(module: str, file: Path, what: str, position: Position | None) -> ModuleType:
        _require_trusted(file, what, position, trusted)
        try:
            if not module:
                ref = FunctionRef(file.stem, "", file.parent, position or Position(file))
                return _module_beside(file, ref, position, trusted, time_limit)
            return _installed_module(module, file, what, position, trusted, time_limit)
        except ImportFailedError as failure:
            raise failure.about(what, position) from failure.__cause__

    names = ("filter_list", "metric_list", "process_results")
    written = replace(task, **{name: bound(getattr(task, name), name) for name in names})
    return with_registered(written, load, by_installed=by_installed)


def _bound(
    ref: FunctionRef,
    task: Task,
    keys: tuple[str | int, ...],
    trusted: Callable[[Path], bool],
    seconds: float,
    *,
    may_be_value: bool = False,
) -> Any:
    """Return what a reference in a task names; lm-eval also takes a text or list of a module as if it were written.

    Raises MissingResourceError for a function that uses a package or load of a hub that is not here.
    """
    key, position = ".".join(map(str, keys)), task.locate(keys) or ref.position
    found = _function(ref, position, key, trusted, seconds, (str, list, dict) if may_be_value else ())
    if (missing := load_for(found)) is not None:
        what, error = missing
        resource = missing_resource(error, ref.file) or MissingResource("data or metrics of the hub are not available")
        raise MissingResourceError(f"{key}: !function {ref} uses {what}", resource, position=position) from error
    return found


def _function(
    ref: FunctionRef,
    position: Position | None,
    key: str,
    trusted: Callable[[Path], bool],
    seconds: float,
    values: tuple[type, ...] = (),
) -> Any:
    found = load_object(ref, what=f"{key}: !function {ref}", position=position, trusted=trusted, time_limit=seconds)
    if not callable(found) and not isinstance(found, values):
        where = display_path(ref.file) if ref.file.is_file() else f"module {ref.module}"
        message = f"{key}: {ref.name!r} in {where} is not a function, but {type(found).__name__}"
        raise FunctionError(message, position=position)
    return found


_MISSING: Final = object()


def _module_beside(
    file: Path, ref: FunctionRef, position: Position | None, trusted: Callable[[Path], bool], seconds: float
) -> ModuleType:
    _require_trusted(file, f"!function {ref}", position, trusted)
    name = _module_name(file)
    mtime = file.stat().st_mtime_ns
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__mtime__", None) == mtime:
        return loaded

    around = harness_around(file.parent)
    checkout = around if around is not None and trusted(around.folder / "__init__.py") else None

    def load() -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, file, loader=SourceLoader(name, str(file)))
        if spec is None or spec.loader is None:
            raise ImportError(f"{display_path(file)} cannot be loaded")
        module = importlib.util.module_from_spec(spec)
        module.__mtime__ = mtime  # type: ignore[attr-defined]  # lm-eval keeps the time in this attribute too
        source = file.read_bytes()
        if b"register_metric" in source:  # lm-eval has its own aggregations by then, and this may name one
            with suppress(ImportError):
                importlib.import_module("lm_eval.api.metrics")
        restore_removed(source)
        package, version = (None, "") if checkout is None else (checkout.folder, checkout.release)
        with put_off(source), also_importable(package, version), imports_from_source(), ExitStack() as stack:
            stack.enter_context(import_of(name, str(file), uses_numpy=b"numpy" in source))
            if package is not None and file.parent.name in _REGISTERING:
                stack.enter_context(without_registry(package.name))
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

    _incomplete.pop(name, None)
    if (str(file), mtime) in _failures:  # neither with all packages nor without
        raise replace(_failures[str(file), mtime])
    try:
        return _imported((str(file), mtime), load, file, seconds)
    except ImportFailedError as failure:
        module = _loaded_without(failure, load, file, seconds)
        if module is None:
            raise
        _incomplete[name] = failure
        _failures.pop((str(file), mtime), None)
        return module


def _loaded_without(
    failure: ImportFailedError, load: Callable[[], ModuleType], file: Path, seconds: float
) -> ModuleType | None:
    """Return a module imported without the packages that are not installed; None where they are needed for that."""
    missing = [failure.missing]
    while missing[-1] and missing.count(missing[-1]) == 1 and len(missing) <= _MOST_MISSING:
        if not can_wait(missing[-1], file):
            return None
        try:
            with time_limit(seconds, "the import"), exits_raise(), imported_without(missing):
                return load()
        except BaseException as error:
            if must_propagate(error):
                raise
            missing.append(missing_package(error))
    return None


def missing_for(ref: FunctionRef) -> FunctionError | None:
    """Return why the module of a function is imported without a package, None where it is complete or not imported."""
    failure = _incomplete.get(_module_name(ref.file)) if _incomplete else None
    return None if failure is None else failure.about(f"!function {ref}", ref.position)


def _module_name(file: Path) -> str:
    # lm-eval 0.4.13 gives its own tasks their package name and every other file its path.
    _, found, below = file.as_posix().partition("/lm_eval/tasks/")
    if found:
        return "lm_eval.tasks." + below.replace(".py", "").replace("/", ".")
    return str(file.with_suffix(""))


def _installed_module(
    module: str, beside: Path, what: str, position: Position | None, trusted: Callable[[Path], bool], seconds: float
) -> ModuleType:
    """Return a module found by a normal import, after checking every file that the import would run."""
    for spec in _specs(module):
        if spec is None:
            raise ImportFailedError(
                f"there is neither {display_path(beside)} nor an installed module {module!r}",
                _missing_module_hint(module, beside),
            )
        origin = _origin(spec)
        if origin is not None:
            _require_trusted(origin, what, position, trusted)

    def load() -> ModuleType:
        with imports_from_source(), import_of(module, ""):
            return importlib.import_module(module)

    return _imported((module, None), load, None, seconds)


def _specs(module: str) -> Iterator[ModuleSpec | None]:
    """Yield the spec of each package on the way to a dotted module, without running any; None where one is missing."""
    path: list[str] | None = None
    parts = module.split(".")
    for end, part in enumerate(parts, start=1):
        name = ".".join(parts[:end])
        spec = getattr(sys.modules.get(name), "__spec__", None)
        try:
            if spec is None:
                spec = PathFinder.find_spec(name, path)
            if spec is None and path is None:
                spec = importlib.util.find_spec(name)  # what an editable install or a built-in provides
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


def _missing_module_hint(module: str, beside: Path) -> str:
    folder = beside.parent
    modules = [file.stem for file in folder.glob("*.py")] if folder.is_dir() else []
    close = did_you_mean(beside.stem, modules)
    return close or f"write the function into {display_path(beside)}, or install the package that has {module}"


def _require_trusted(file: Path, what: str, position: Position | None, trusted: Callable[[Path], bool]) -> None:
    if not trusted(file):
        raise CodeNotAllowedError(
            f"{what} would run {display_path(file)}, whose code is not allowed to run", position=position
        )


def _imported(
    key: tuple[str, int | None], load: Callable[[], ModuleType], file: Path | None, seconds: float
) -> ModuleType:
    if key in _failures:
        raise replace(_failures[key])
    try:
        with time_limit(seconds, "the import"), exits_raise():
            return load()
    except BaseException as error:  # a module that calls sys.exit must not end the test run
        if must_propagate(error):
            raise
        _failures[key] = explained(error, file)
        raise replace(_failures[key]) from error
