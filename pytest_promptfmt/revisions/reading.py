"""How the answers of a task are read and scored, as lines that can be compared: filters, metrics, repeats."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_promptfmt.systems.lm_eval.scoring.metrics import DEFAULT_METRICS, METRICS


def reading_of(values: Mapping[str, Any]) -> dict[str, str]:
    """Return what reads and scores answers, by name, from the keys of a task; what lm-eval assumes is written out.

    A value that lm-eval refuses stands as it is written. Functions are named: their code is compared elsewhere.
    """
    return dict(_lines(values))


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
    try:
        return json.dumps(value, ensure_ascii=False, default=str, sort_keys=True)
    except (TypeError, ValueError):
        return repr(value)
