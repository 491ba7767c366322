"""Filters, metrics and aggregations beyond those of lm-eval 0.4.13: of packages, and of the lm-eval that is installed.

A fork registers a filter in a file of `lm_eval/filters` and a metric in one of `lm_eval/api`, or either in a module
that a task's functions come from. Its files are searched for the decorator first, so that nothing is imported for an
unknown name, and nothing that may not run.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, wraps
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal

from pytest_promptfmt.core.errors import Position, ScoringError, is_misspelt
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.tasks.scoring.filters import FILTERS, unknown_filter
from pytest_promptfmt.tasks.scoring.metrics import AGGREGATIONS, METRICS, Metric

FILTER_GROUP: Final = "pytest_promptfmt.filters"
"""The entry point group of filters: the name of each, and a class or function that makes it, as lm-eval's are."""

METRIC_GROUP: Final = "pytest_promptfmt.metrics"
"""The entry point group of metrics: the name of each, and a `Metric` or a function, whose values are averaged."""

Kind = Literal["filter", "metric", "aggregation"]
Load = Callable[[str, Path, str, Position | None], ModuleType]
"""Imports a module for what is named, if its files and the given one may run; raises what stops that."""

_WHERE: Final[Mapping[Kind, tuple[str, str]]] = {
    "filter": ("filters/**/*.py", "lm_eval.filters"),
    "metric": ("api/*.py", "lm_eval.api.metrics"),
    "aggregation": ("api/*.py", "lm_eval.api.metrics"),
}
"""The files of lm-eval in which things of each kind are registered, and the module that imports them all."""


def with_registered(task: Task, load: Load) -> Task:
    """Return the task with classes and functions in place of the names of filters and metrics that we do not have.

    Unknown names stay. Raises ScoringError for a package that cannot be loaded, and what `load` raises.
    """
    position = task.position("filter_list")
    filters = task.filter_list and [
        {**pipeline, "filter": [_with_filter(step, position, load) for step in pipeline.get("filter") or ()]}
        for pipeline in task.filter_list
    ]
    metrics = task.metric_list and [
        _with_metric(entry, task.position("metric_list", index), load) for index, entry in enumerate(task.metric_list)
    ]
    return replace(task, filter_list=filters, metric_list=metrics)


def _with_filter(step: Mapping[str, Any], position: Position | None, load: Load) -> Mapping[str, Any]:
    name = step.get("function")
    if not isinstance(name, str) or name in FILTERS:
        return step
    made = _of_package(FILTER_GROUP, name, position) or _of_lm_eval("filter", name, position, load)
    if made is None:
        known = {entry.name for entry in _entries(FILTER_GROUP, tuple(sys.path))} | _registrations("filter").keys()
        if is_misspelt(name, known):
            raise unknown_filter(name, position, known)
    return step if made is None else {**step, "function": made}


def _with_metric(entry: Mapping[str, Any], position: Position | None, load: Load) -> Mapping[str, Any]:
    name, aggregation = entry.get("metric"), entry.get("aggregation")
    if isinstance(aggregation, str) and aggregation not in AGGREGATIONS:
        entry = {**entry, "aggregation": _of_lm_eval("aggregation", aggregation, position, load) or aggregation}
    if not isinstance(name, str) or name in METRICS or entry.get("hf_evaluate"):
        return entry
    made = _of_package(METRIC_GROUP, name, position)
    if made is not None:
        metric = made if isinstance(made, Metric) else Metric(made)
        defaults = {"aggregation": metric.aggregation, "higher_is_better": metric.higher_is_better}
        return {**defaults, **entry, "metric": _named(metric.function, name)}
    function = _of_lm_eval("metric", name, position, load)
    if function is None:
        return entry
    defaults = {
        "aggregation": _registered("metric_aggregation", name),
        "higher_is_better": _registered("higher_is_better", name),
    }
    given = {key: value for key, value in defaults.items() if value is not None}
    return {**given, **entry, "metric": _named(function, name)}


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return the function under the name that it is registered by, which is the name of its values."""

    @wraps(function)
    def named(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    named.__name__ = name
    return named


@cache
def _entries(group: str, _path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group, for one `sys.path`: the files of all packages are read for them."""
    return tuple(entry_points(group=group))


def _of_package(group: str, name: str, position: Position | None) -> Any:
    for entry in _entries(group, tuple(sys.path)):
        if entry.name != name:
            continue
        try:
            return entry.load()
        except Exception as error:
            raise ScoringError(
                f"{name!r} of {entry.value} does not import: {type(error).__name__}: {error}", position=position
            ) from error
    return None


def _of_lm_eval(kind: Kind, name: str, position: Position | None, load: Load) -> Any:
    found = _registered(kind, name)
    file = _registering_file(kind, name) if found is None else None
    if file is None:
        return found
    _, module = _WHERE[kind]
    load(module, file, f"the {kind} {name!r}", position)
    return _registered(kind, name)


def _registered(kind: str, name: str) -> Any:
    """Return what the lm-eval of this process has registered so far."""
    registry = getattr(sys.modules.get("lm_eval.api.registry"), f"{kind.upper()}_REGISTRY", {})
    return registry.get(name, None)


def _registering_file(kind: Kind, name: str) -> Path | None:
    return _registrations(kind).get(name)


@cache
def _registrations(kind: Kind) -> Mapping[str, Path]:
    """Return the names that files of the installed lm-eval register, with the file; it is read, not imported."""
    try:
        spec = find_spec("lm_eval")
    except (ImportError, ValueError):
        return {}
    decorator = re.compile(rf"@register_{kind}\(([^)]*)\)")
    files, _ = _WHERE[kind]
    folders = spec.submodule_search_locations or () if spec is not None else ()
    paths = sorted(path for folder in folders for path in Path(folder).glob(files))
    given = ((text, path) for path in reversed(paths) for text in decorator.findall(path.read_text("utf-8", "replace")))
    return {name: path for text, path in given for name in re.findall(r"['\"]([^'\"]+)['\"]", text)}
