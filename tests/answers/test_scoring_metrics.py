"""What lm-eval's metrics take."""

from __future__ import annotations

import sys

import pytest

from pytest_promptfmt.core.errors import ScoringError
from pytest_promptfmt.core.task import FunctionRef, Task
from pytest_promptfmt.tasks.scoring.metrics import METRICS, metrics_of, takes_arguments
from pytest_promptfmt.tasks.scoring.results import Question, process_results


def test_a_metric_without_any_aggregation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "evaluate", None)  # which would look for it on a hub
    with pytest.raises(ScoringError, match="set `aggregation` for the metric"):
        metrics_of(Task(name="t", metric_list=[{"metric": "exact_mach"}]))


def test_functions_have_to_be_bound_before_they_score(tmp_path: object) -> None:
    from pathlib import Path

    from pytest_promptfmt.core.errors import Position

    ref = FunctionRef("utils", "f1", Path(), Position(Path("t.yaml"), 3))
    with pytest.raises(ScoringError, match=r"utils\.f1 was not imported"):
        metrics_of(Task(name="t", metric_list=[{"metric": ref, "aggregation": "mean"}]))
    named = metrics_of(Task(name="t", process_results=ref, metric_list=[{"metric": ref, "aggregation": "mean"}]))
    assert [metric.name for metric in named] == ["f1"]


def test_arguments_of_exact_match_are_known() -> None:
    good, bad = (
        metrics_of(Task(name="t", metric_list=[{"metric": "exact_match", key: True}]))[0]
        for key in ("ignore_case", "weight_by_size")
    )
    assert takes_arguments(good)
    assert not takes_arguments(bad)
    assert METRICS["bleu"].aggregation == "bleu"


def test_arguments_of_a_metric_that_takes_a_list_are_never_passed() -> None:
    entry = {"metric": lambda items: items, "aggregation": "mean", "ignore_case": True}
    (metric,) = metrics_of(Task(name="t", metric_list=[entry]))
    assert takes_arguments(metric)
    assert process_results([metric], Question(output_type="generate_until", target="a"), ["b"]) == {
        "<lambda>": ["a", "b"]
    }
