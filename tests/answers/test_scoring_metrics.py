"""HELM's and eval-framework's metrics against the numbers that the real packages gave (spec, measured)."""

from __future__ import annotations

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_promptfmt.core.errors import ScoringError
from pytest_promptfmt.core.task import FunctionRef, Task
from pytest_promptfmt.systems.helm.helm_metrics import HELM_METRICS, best_over_golds, mapped_output, score_completions
from pytest_promptfmt.systems.lm_eval.scoring.likelihood import (
    LIKELIHOOD_METRICS,
    Golds,
    Scores,
    distributional_correctness,
    probability_mass,
    probability_mass_norm,
)
from pytest_promptfmt.systems.lm_eval.scoring.metrics import METRICS, metrics_of, takes_arguments

UPSTREAM = ("probability_mass", "probability_mass_norm", "distributional_correctness")
CASES: list[tuple[Scores, Golds, list[float | None]]] = [
    (
        {" A": -1.2, " B": -0.4, " C": -3.0, " D": -2.5},
        [" B"],
        [1, 1, 0.4361, 0.6075, 0.4361, 1, 0.0249, 0.2885],
    ),
    (
        {" Paris": -4, " The city of Berlin in Germany": -9, " Rome": -5},
        [" Paris"],
        [1, 0, 0, 0.7275, 0.3165, -1, -0.1402, 0.9618],
    ),
    (
        {" A": -2, " B": -1.5, " C": -3, " I don't know.": -0.7},
        [" B"],
        [0, 0, 0, 0.2466, 0.2345, 0, -0.0589, 1.0820],
    ),
    (
        {"a": -2, "b": -1.5, "c": -3, "i don't know.": -0.7},
        ["b"],
        [0, 0, 0, 0.2466, 0.1646, 0, 0.0084, 2.1640],
    ),
    ({" A": -1.2, " B": -0.4}, ["B"], [0, 0, 0.5987, 0, 0, 1, 0.1974, None]),
    (
        {" yes": -0.5, " yeah": -1, " no": -1.5},
        [" yes", " yeah"],
        [1, 1, 0.3824, 0.8137, 0.7372, 1, 0.7372, 0.1803],
    ),
    ({" Zürich": -6, " Bern": -5}, [" Zürich"], [0, 1, 0.5357, 0.2689, 0.5357, 1, 0.5357, 1.0820]),
    ({" A": -1, " B": -1}, " B", [0, 0, 0, None, None, -1, 0, 0.7213]),
]


@pytest.mark.parametrize(("scores", "golds", "expected"), CASES)
def test_likelihood_metrics_give_the_numbers_of_eval_framework(
    scores: Scores, golds: Golds, expected: list[float | None]
) -> None:
    for (name, metric), wanted in zip(LIKELIHOOD_METRICS.items(), expected, strict=True):
        arguments = {"upstream": True} if name in UPSTREAM else {}
        if wanted is None:
            with pytest.raises(ScoringError):
                metric(scores, golds, **arguments)
        else:
            assert metric(scores, golds, **arguments) == pytest.approx(wanted, abs=6e-5), name


def test_a_common_leading_space_changes_nothing_but_upstream() -> None:
    bare = {"a": -2.0, "b": -1.5, "i don't know": -0.7}
    spaced = {f" {text}": score - 0.0 for text, score in bare.items()}
    by_length = {f" {text}": score * (len(text) + 1) / len(text) for text, score in bare.items()}
    assert distributional_correctness(by_length, [" b"]) == pytest.approx(distributional_correctness(bare, ["b"]))
    assert distributional_correctness(by_length, [" b"], upstream=True) != pytest.approx(
        distributional_correctness(bare, ["b"], upstream=True)
    )
    assert probability_mass(spaced, [" b"]) == pytest.approx(probability_mass(bare, ["b"]))


def test_very_small_scores_underflow_only_upstream() -> None:
    scores = {" A": -900.0, " B": -950.0}
    assert probability_mass(scores, [" A"]) == pytest.approx(1)
    assert math.isnan(probability_mass(scores, [" A"], upstream=True))
    assert probability_mass_norm(scores, [" A"], upstream=True) == pytest.approx(1)


SCORES = st.dictionaries(st.text(min_size=1, max_size=5), st.floats(-80, 0), min_size=1, max_size=6)


@given(SCORES, st.data())
def test_probabilities_stay_between_nothing_and_all(scores: dict[str, float], data: st.DataObject) -> None:
    gold = data.draw(st.sampled_from(sorted(scores)))
    assert 0 <= probability_mass(scores, [gold]) <= 1 + 1e-9
    assert probability_mass(scores, list(scores)) == pytest.approx(1)
    assert abs(distributional_correctness(scores, [gold])) <= 1 + 1e-9


@pytest.mark.parametrize(
    ("metric", "gold", "completion", "score"),
    [
        ("quasi_exact_match", "A", "The", 1),
        ("quasi_exact_match", "A", ".", 1),
        ("quasi_leave_articles_exact_match", "A", "The", 0),
        ("quasi_prefix_exact_match", "A", "Berlin", 1),
        ("f1_score", "A", "A", 0),
        ("quasi_exact_match", "-5", "5", 1),
        ("quasi_exact_match", "3.14", "314", 1),
        ("prefix_exact_match", "1", "15", 1),
        ("prefix_exact_match", "A", "Although B", 1),
        ("quasi_prefix_exact_match", "no", "Nobody knows", 1),
        ("f1_score", "北京", "北京市", 0),
        ("exact_match_indicator", "New York", "in York", 1),
        ("final_number_exact_match", "15", "I count 15 , thanks", 0),
        ("final_number_exact_match", "15", "15.0", 0),
        ("final_number_exact_match", "15", "15 (5x3)", 0),
        ("final_number_exact_match", "12", "Answer: 12/3", 0),
        ("final_number_exact_match", "5", "range 3-5", 0),
        ("final_number_exact_match", "1000", "1,000", 1),
        ("exact_match", "x", "", 0),
        ("exact_set_match", "The answer is A and B.", "B and A", 1),
        ("exact_set_match", "Nothing.", "Nothing.\nMore", 1),
        ("iou_set_match", "a is red and blue.", "it is blue and green", 1 / 3),
        ("iou_set_match", "Nothing.", "blue", 0),
        ("f1_set_match", "a is red and blue.", "it is blue and green", 1 / 2),
        ("f1_set_match", "red", "", 0),
        ("exact_match", "x", " x ", 1),
    ],
)
def test_completion_metrics_give_the_numbers_of_helm(metric: str, gold: str, completion: str, score: float) -> None:
    assert HELM_METRICS[metric](gold, completion) == score


def test_outputs_are_mapped_exactly_or_not_at_all() -> None:
    mapping = {"A": "Paris", "B": "Rome"}
    assert mapped_output(" B\n", mapping) == "Rome"
    assert [mapped_output(text, mapping) for text in ("A.", "(A)", "a", "Answer: A")] == [None] * 4
    assert mapped_output("Answer: A", mapping, r"\b([AB])\b") == "Paris"
    assert mapped_output("nothing", mapping, "[AB]") is None
    assert mapped_output(" as it is ", None) == "as it is"
    assert best_over_golds("exact_match", ["Rome", "Roma"], "Roma") == 1
    assert best_over_golds("exact_match", ["Rome"], None) == 0


def test_the_best_of_several_completions_is_scored_beside_the_most_likely() -> None:
    completions = [("Rome", -3.0), ("Lima", -1.0), ("Bonn", -9.0)]
    assert score_completions(["exact_match"], ["Rome"], completions, num_outputs=3) == {
        "exact_match": 0,
        "exact_match@3": 1,
    }


def test_the_arabic_word_for_answer_holds_a_label() -> None:
    labels = {"أ": "1", "ب": "2", "ج": "3", "د": "4"}
    assert mapped_output("الإجابة: د", labels, "(أ|ب|ج|د|هـ)") == "3"


def test_a_metric_without_any_aggregation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "evaluate", None)  # which would look for it on a hub
    with pytest.raises(ScoringError, match="no aggregation"):
        metrics_of(Task(name="t", metric_list=[{"metric": "exact_mach"}]))


def test_functions_have_to_be_bound_before_they_score(tmp_path: object) -> None:
    from pathlib import Path

    from pytest_promptfmt.core.errors import Position

    ref = FunctionRef("utils", "f1", Path(), Position(Path("t.yaml"), 3))
    with pytest.raises(ScoringError, match=r"utils\.f1 is not bound"):
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
