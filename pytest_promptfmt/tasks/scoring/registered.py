"""Filters, metrics and aggregations beyond those of lm-eval 0.4.13: of packages, a checkout, the installed lm-eval.

A fork registers a filter in a file of `lm_eval/filters` and a metric in one of `lm_eval/api`, or either in a module
that a task's functions come from. Its files are searched for the decorator first, so that nothing is imported for an
unknown name, and nothing that may not run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, wraps
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal

from pytest_promptfmt.core.errors import (
    FunctionError,
    Position,
    ScoringError,
    UnavailableScoringError,
    is_misspelt,
    load_entry,
)
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.tasks.deferred_imports import load_for
from pytest_promptfmt.tasks.harness import Harness, harness_around, installed_harness
from pytest_promptfmt.tasks.scoring.filters import FILTERS, TAKE_FIRST, unknown_filter
from pytest_promptfmt.tasks.scoring.metrics import AGGREGATIONS, DEFAULT_METRICS, METRICS, Metric

FILTER_GROUP: Final = "pytest_promptfmt.filters"
"""The entry point group of filters: the name of each, and a class or function that makes it, as lm-eval's are."""

METRIC_GROUP: Final = "pytest_promptfmt.metrics"
"""The entry point group of metrics: the name of each, and a `Metric` or a function, whose values are averaged."""

Kind = Literal["filter", "metric", "aggregation"]
Load = Callable[[str, Path, str, Position | None], ModuleType]
"""Imports a module by its name, else by its file, for what is named, if it may run; raises what stops that."""

_WHERE: Final[Mapping[Kind, str]] = {
    "filter": "lm_eval.filters",
    "metric": "lm_eval.api.metrics",
    "aggregation": "lm_eval.api.metrics",
}
"""The module of lm-eval that imports all things of a kind."""

_SLOW: Final = frozenset({"multi_choice_regex"})
"""Names of filters that stay ours also in a fork: their code looks at every character of Unicode in each call."""

_OURS: Final[Mapping[Kind, Mapping[str, Any]]] = {"filter": FILTERS, "metric": METRICS, "aggregation": AGGREGATIONS}


def with_registered(task: Task, load: Load, *, by_installed: bool = False) -> Task:
    """Return the task with classes and functions in place of the names of filters and metrics that we do not have.

    `by_installed`: also of those that we have, from the lm-eval that this process has imported. Unknown names stay.
    Raises ScoringError for a package that cannot be loaded and for names of ours that the installed lm-eval lacks, and
    what `load` raises.
    """
    position = task.position("filter_list")
    harness = _Harnesses(task, load, by_installed)
    if by_installed:
        task = _with_defaults(task)
    filters = task.filter_list and [
        {**pipeline, "filter": [_with_filter(step, position, harness) for step in pipeline.get("filter") or ()]}
        for pipeline in task.filter_list
    ]
    metrics = task.metric_list and [
        _with_metric(entry, task.position("metric_list", index), harness)
        for index, entry in enumerate(task.metric_list)
    ]
    return replace(task, filter_list=filters, metric_list=metrics)


def _with_defaults(task: Task) -> Task:
    """Return the task with the names of the filters and metrics that lm-eval takes for a task without."""
    filters = [{"name": TAKE_FIRST.name, "filter": [{"function": "take_first"}]}]
    names = () if task.metric_list is not None else DEFAULT_METRICS.get(task.output_type, ())
    metrics = [{"metric": name} for name in names] or task.metric_list
    return replace(task, filter_list=filters if task.filter_list is None else task.filter_list, metric_list=metrics)


def registering_files(task: Task, described: Harness | None) -> tuple[set[str], frozenset[str]]:
    """Return the files of a checkout that `with_registered` loads for a task, and all that could be such files.

    Those of the harness that is `described` elsewhere are left out of the second.
    """
    around = _checkout_around(task)
    if around is None:
        return set(), frozenset()
    names: dict[Kind, set[object]] = {
        "filter": {step.get("function") for each in task.filter_list or () for step in each.get("filter") or ()},
        "metric": {each.get("metric") for each in task.metric_list or () if isinstance(each, Mapping)},
        "aggregation": {each.get("aggregation") for each in task.metric_list or () if isinstance(each, Mapping)},
    }
    code = set[str]()
    for kind, named in names.items():
        found = around.registrations(kind) if named else {}
        texts = {name for name in named if isinstance(name, str) and name in found}
        code |= {str(found[name].file) for name in texts if name not in _OURS[kind] or _is_changed(around, kind, name)}
    return code, frozenset() if around is described else around.registering_places


def _checkout_around(task: Task) -> Harness | None:
    """Return the harness around a task's file, which may be the one that is installed."""
    return harness_around(task.path.parent.resolve()) if task.path is not None else None


def _is_changed(checkout: Harness | None, kind: Kind, name: str) -> bool:
    """Return whether the harness of a task, a fork, has other code than any release of lm-eval."""
    harness = checkout or installed_harness()
    return harness is not None and name not in _SLOW and harness.changes(kind, name)


@dataclass(frozen=True)
class _Harnesses:
    """The checkout around a task and the lm-eval that is installed, as far as they are needed."""

    task: Task
    load: Load
    by_installed: bool

    def is_ours(self, kind: Kind, name: str) -> bool:
        """Return whether a name is that of a filter, metric or aggregation of ours, which no fork changes."""
        return name in _OURS[kind] and not self.by_installed and not _is_changed(self.checkout, kind, name)

    @cached_property
    def checkout(self) -> Harness | None:
        return _checkout_around(self.task)

    def registered(self, kind: Kind, name: str, position: Position | None) -> tuple[Any, Mapping[str, Any]]:
        """Return what is registered under a name, None for nothing, and the arguments of a registration in a checkout.

        Code of a checkout that does not work with the installed lm-eval registers nothing.
        """
        what = f"the {kind} {name!r}"
        if self.by_installed and ((found := _registered(kind, name)) is not None or name in _OURS[kind]):
            if found is None:
                raise ScoringError(f"the installed lm-eval does not have {what}", position=position)
            return found, {}
        around = self.checkout.registrations(kind).get(name) if self.checkout is not None else None
        if around is not None:
            with suppress(FunctionError):
                made = getattr(self.load("", around.file, what, position), around.object, None)
                # One of ours that a fork loads from a hub, which is not here, stays ours.
                return None if name in _OURS[kind] and load_for(made) is not None else made, around.arguments
        found = _registered(kind, name)
        installed = installed_harness() if found is None else None
        there = installed.registrations(kind).get(name) if installed is not None else None
        if there is not None:
            with suppress(*([FunctionError] if name in _OURS[kind] else [])):
                self.load(_WHERE[kind], there.file, what, position)
            found = _registered(kind, name)
        return found, {}


def _with_filter(step: Mapping[str, Any], position: Position | None, harness: _Harnesses) -> Mapping[str, Any]:
    name = step.get("function")
    if not isinstance(name, str) or harness.is_ours("filter", name):
        return step
    made = _of_package(FILTER_GROUP, name, position) or harness.registered("filter", name, position)[0]
    if name in FILTERS:
        return step if made is None else {**step, "function": replace(FILTERS[name], make=made)}
    if made is None:
        installed = installed_harness()
        known = {entry.name for entry in _entries(FILTER_GROUP, tuple(sys.path))}
        known |= installed.registrations("filter").keys() if installed is not None else set()
        if is_misspelt(name, known):
            raise unknown_filter(name, position, known)
    return step if made is None else {**step, "function": made}


def _with_metric(entry: Mapping[str, Any], position: Position | None, harness: _Harnesses) -> Mapping[str, Any]:
    name, aggregation = entry.get("metric"), entry.get("aggregation")
    own = harness.checkout.singled_out_metrics if harness.checkout is not None else ()
    if name in own and harness.task.output_type == "generate_until":
        error = UnavailableScoringError(f"this fork of lm-eval computes {name!r} in its api/task.py", position=position)
        raise error.because("the metric is computed in the api/task.py of a fork of lm-eval")
    if isinstance(name, str) and not harness.is_ours("metric", name) and not entry.get("hf_evaluate"):
        made = _of_package(METRIC_GROUP, name, position)
        if made is not None:
            metric = made if isinstance(made, Metric) else Metric(made)
            defaults = {"aggregation": metric.aggregation, "higher_is_better": metric.higher_is_better}
            entry = {**defaults, **entry, "metric": _named(metric.function, name)}
        else:
            function, given = harness.registered("metric", name, position)
            if function is not None:
                defaults = {
                    "aggregation": given.get("aggregation", _registered("metric_aggregation", name)),
                    "higher_is_better": given.get("higher_is_better", _registered("higher_is_better", name)),
                }
                defaults = {key: value for key, value in defaults.items() if value is not None}
                entry = {**defaults, **entry, "metric": _named(function, name)}
    aggregation = entry.get("aggregation")
    if isinstance(aggregation, str) and not harness.is_ours("aggregation", aggregation):
        entry = {**entry, "aggregation": harness.registered("aggregation", aggregation, position)[0] or aggregation}
    return entry


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
    found = (entry for entry in _entries(group, tuple(sys.path)) if entry.name == name)
    return next((load_entry(entry, f"{name!r} of", ScoringError, position) for entry in found), None)


def _registered(kind: str, name: str) -> Any:
    """Return what the lm-eval of this process has registered so far."""
    registry = getattr(sys.modules.get("lm_eval.api.registry"), f"{kind.upper()}_REGISTRY", {})
    return registry.get(name, None)
