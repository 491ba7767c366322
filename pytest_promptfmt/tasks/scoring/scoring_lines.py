"""How the answers of a task are read and scored, as lines that can be compared: filters, metrics, repeats.

Functions and classes are shown by name, never by their code or address: the lines are the same on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pytest_promptfmt.core.task import FunctionRef, Task
from pytest_promptfmt.tasks.scoring.metrics import DEFAULT_METRICS, METRICS


def reading_of(values: Mapping[str, Any]) -> dict[str, str]:
    """Return what reads and scores answers, by name, from the keys of a task; what lm-eval assumes is written out.

    A value that lm-eval refuses is shown as it is written. Functions are named: their code is compared elsewhere.
    """
    return dict(_lines(values))


def task_reading(task: Task) -> dict[str, str]:
    """Return what reads and scores the answers of a task whose functions are bound, in its format.

    Nothing for a task that is put together in its own way and names neither filters nor metrics. Raises what stops a
    task class from naming them.
    """
    task = task.assembly.scored(task)
    if not task.assembly.renders_fields and task.filter_list is None and task.metric_list is None:
        return {}
    names = ["filter_list", "metric_list", "repeats", "output_type"]
    # Other systems bring code of ours, which serves the metrics that they name.
    names += ["process_results"] if task.assembly.renders_fields else []
    written = {name: getattr(task, name) for name in names}
    return reading_of({name: value for name, value in written.items() if value is not None})


def _lines(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    filters = values.get("filter_list") or [{"name": "none", "filter": [{"function": "take_first"}]}]
    for name, pipeline in _named(filters, "name"):
        steps = pipeline.get("filter")
        shown = [_call(step) for step in steps] if isinstance(steps, list) else [_shown(steps)]
        yield f"filter {name}", " → ".join(shown)
    metrics = values.get("metric_list")
    if metrics is None:
        metrics = [
            {"metric": name} for name in DEFAULT_METRICS.get(str(values.get("output_type", "generate_until")), ())
        ]
    for name, metric in _named(metrics, "metric"):
        known = METRICS.get(name)
        assumed = {"aggregation": known.aggregation, "higher_is_better": known.higher_is_better} if known else {}
        yield (
            f"metric {name}",
            _arguments({**assumed, **{key: value for key, value in metric.items() if key != "metric"}}),
        )
    yield "repeats", _shown(values.get("repeats", 1))
    if "process_results" in values:
        yield "process_results", _shown(values["process_results"])


def _named(entries: Any, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, entry in enumerate(entries if isinstance(entries, Sequence) else [entries]):
        if isinstance(entry, Mapping):
            name = entry.get(key)
            yield name if isinstance(name, str) else _shown(name), entry
        else:
            yield f"{number + 1}", {"written": entry}


def _call(step: Any) -> str:
    if not isinstance(step, Mapping):
        return _shown(step)
    arguments = _arguments({name: value for name, value in step.items() if name != "function"})
    function = step.get("function")
    return f"{function if isinstance(function, str) else _shown(function)}({arguments})"


def _arguments(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_shown(value)}" for name, value in sorted(given.items(), key=lambda pair: str(pair[0])))


def _shown(value: Any) -> str:
    if isinstance(value, FunctionRef) or callable(value):
        return _name(value)
    try:
        return json.dumps(_keyed(value), ensure_ascii=False, default=_name, sort_keys=True)
    except (TypeError, ValueError, RecursionError):  # a list inside itself
        return _name(value)


def _keyed(value: Any) -> Any:
    """Return a value whose keys are text, so that they have an order."""
    if isinstance(value, Mapping):
        return {str(key): _keyed(item) for key, item in value.items()}
    return [*map(_keyed, value)] if isinstance(value, list | tuple) else value


def _name(value: Any) -> str:
    """Return the name of a function or class, with the arguments that are bound to it; of other values the type."""
    if isinstance(value, FunctionRef):
        return f"!function {value}"
    if isinstance(value, partial):
        given = ", ".join(filter(None, [*map(_shown, value.args), _arguments(value.keywords)]))
        return f"{_name(value.func)}({given})"
    name = getattr(value, "__qualname__", None)
    return name if isinstance(name, str) else f"<{type(value).__module__}.{type(value).__qualname__}>"
