"""eval-framework's metrics against the numbers that the real package gave, and where they deviate on purpose."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from pytest_promptfmt.core.errors import ScoringError
from pytest_promptfmt.systems.eval_framework.metric_classes import (
    COMPLETION_METRICS,
    LIKELIHOOD_METRICS,
    Golds,
    Scores,
    distributional_correctness,
    probability_mass,
)

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
    ({" A": -1, " B": -1}, [" B"], [0, 0, 0, 0.5, 0.5, -1, 0, 0.7213]),
]
"""Scores, golds, and the numbers of eval-framework 0.15.4 in the order of LIKELIHOOD_METRICS."""


@pytest.mark.parametrize(("scores", "golds", "expected"), CASES)
def test_likelihood_metrics_give_the_numbers_of_eval_framework(
    scores: Scores, golds: Golds, expected: list[float | None]
) -> None:
    for (name, metric), wanted in zip(LIKELIHOOD_METRICS.items(), expected, strict=True):
        if wanted is None:
            with pytest.raises(ScoringError):
                metric(scores, golds)
        else:
            deviation = 1 - missed_ignorance(scores) if metric is distributional_correctness else 1
            assert metric(scores, golds) == pytest.approx(wanted * deviation, abs=6e-5), name


def missed_ignorance(scores: Scores) -> float:
    """Return the probability of "I don't know" that eval-framework does not find, for a leading space or capitals."""
    last = list(scores)[-1]
    if last == last.strip().lower():
        return 0
    weights = [math.exp(score / len(text)) for text, score in scores.items()]
    return weights[-1] / sum(weights)


def test_a_common_leading_space_changes_no_distributional_correctness() -> None:
    bare = {"a": -2.0, "b": -1.5, "i don't know": -0.7}
    spaced = {f" {text}": score * (len(text) + 1) / len(text) for text, score in bare.items()}
    assert distributional_correctness(spaced, [" b"]) == pytest.approx(distributional_correctness(bare, ["b"]))


def test_very_small_scores_have_a_probability_mass() -> None:
    scores = {" A": -900.0, " B": -950.0}
    assert probability_mass(scores, [" A"]) == pytest.approx(1)
    assert LIKELIHOOD_METRICS["ProbabilityMassNorm"](scores, [" A"]) == pytest.approx(1)


def test_probability_mass_takes_a_gold_that_is_one_text() -> None:
    scores = {" A": -1.0, " B": -1.0}
    assert probability_mass(scores, " B") == probability_mass(scores, [" B"]) == pytest.approx(0.5)


SCORES = st.dictionaries(st.text(min_size=1, max_size=5), st.floats(-80, 0), min_size=1, max_size=6)


@given(SCORES, st.data())
def test_probabilities_stay_between_nothing_and_all(scores: dict[str, float], data: st.DataObject) -> None:
    gold = data.draw(st.sampled_from(sorted(scores)))
    assert 0 <= probability_mass(scores, [gold]) <= 1 + 1e-9
    assert probability_mass(scores, list(scores)) == pytest.approx(1)
    assert abs(distributional_correctness(scores, [gold])) <= 1 + 1e-9


@pytest.mark.parametrize(
    ("metric", "completion", "golds", "value"),
    [
        ("AccuracyCompletion", "seven", ["six", "seven"], 1.0),
        ("AccuracyCompletion", " seven", ["seven"], 0.0),
        ("AccuracyCompletionOLMES", "$1,200.", ["1200"], 1.0),
        ("AccuracyCompletionOLMES", "7", ["7", "8"], 0.5),
        ("F1", "a red sail", ["a red boat"], 2 / 3),
        ("F1", "", [""], 1.0),
        ("F1SquadNormalized", "The red sail!", ["red sail"], 1.0),
    ],
)
def test_completions_are_scored_as_documented(metric: str, completion: str, golds: list[str], value: float) -> None:
    assert COMPLETION_METRICS[metric](completion, golds) == pytest.approx(value)
