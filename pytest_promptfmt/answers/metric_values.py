"""From the values that metrics give one doc to one number, better when higher."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pytest_promptfmt.core.errors import LimitExceededError
from pytest_promptfmt.core.limits import are_applied
from pytest_promptfmt.tasks import TaskMetric, ValueCache, aggregated, gives_the_same, plain_key, within_budget

Aggregate = Callable[[TaskMetric, Sequence[Any]], Any]

_MOST: Final = 8_000_000
"""Characters of what was aggregated before that a process keeps."""

_aggregated_before: Final[ValueCache[tuple[Any, str]]] = ValueCache(_MOST)


def number_of(
    metrics: Sequence[TaskMetric], values: Mapping[str, Any], aggregate: Aggregate = aggregated
) -> float | None:
    """Return the first value of a doc that is a number, better when higher; None where there is none."""
    by_name = {metric.name: metric for metric in metrics}
    for name, value in values.items():
        metric = by_name.get(name)
        number = _as_number(metric, value, aggregate)
        if number is None or (metric is not None and metric.name == "bypass"):
            continue
        return -number if metric is not None and metric.higher_is_better is False else number
    return None


def _as_number(metric: TaskMetric | None, value: Any, aggregate: Aggregate) -> float | None:
    if isinstance(value, tuple | list) and metric is not None and metric.aggregation is not None:
        value = aggregate(metric, [value])
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return None if math.isnan(number) else number


def aggregated_in_time(metric: TaskMetric, values: Sequence[Any], *, what: str) -> Any:
    """Return the aggregate of one doc's value, a list or tuple.

    Raises LimitExceededError where its time grows too fast with the longest text in it; for an aggregation of lm-eval
    that is tried once in this process for equal values.
    """
    (value,) = values
    lengths = [len(part) if isinstance(part, str) else 0 for part in value]
    longest = lengths.index(max(lengths)) if lengths else 0

    text = value[longest] if value else None

    def with_text(part: Any) -> Any:
        if part is text:
            return aggregated(metric, values)
        parts = [*value[:longest], part, *value[longest + 1 :]]
        return aggregated(metric, [parts if isinstance(value, list) else tuple(parts)])

    key = plain_key(value) if gives_the_same(metric.aggregation) else None
    if key is None:
        return within_budget(with_text, text, what=what)
    known_by = metric.aggregation, are_applied(), key
    known = _aggregated_before.get(known_by)
    if known is None:
        try:
            known = within_budget(with_text, text, what=""), ""
        except LimitExceededError as error:
            known = None, error.message
        _aggregated_before.keep(known_by, known, sum(lengths))
    result, slow = known
    if slow:
        raise LimitExceededError(f"{what}{slow}")
    return result
