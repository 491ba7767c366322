"""HELM's scores of references: by hand from its formulas; with the real package in test_helm_parity.py."""

from __future__ import annotations

import math

import pytest

from pytest_promptfmt.core.errors import ScoringError
from pytest_promptfmt.systems.helm.helm_metrics import (
    Measured,
    helm_reference_results,
    reference_scores,
    score_references,
)
from pytest_promptfmt.systems.helm.recorded_runs import tokens_of
from pytest_promptfmt.tasks.scoring.results import LogLikelihood

DOC = {"references": ["Paris", "the city of Berlin"], "correct": [1]}


def test_the_longer_reference_wins_by_the_token() -> None:
    short, long = Measured(-2.0, 1), Measured(-6.0, 6)
    assert reference_scores([short, long]) == [-2.0, -1.0]
    assert score_references([-2.0, -1.0], [1])["exact_match"] == 1.0


def test_calibration_takes_away_what_is_likely_anyway() -> None:
    assert reference_scores([Measured(-2.0, 1), Measured(-6.0, 6)], [Measured(-1.0, 1), Measured(-6.5, 6)]) == [
        -1.0,
        0.5,
    ]


def test_each_trial_is_calibrated_by_its_own_requests() -> None:
    originals = [(-2.0, False), (-6.0, False)] * 2
    calibrations = [(-1.0, False), (-6.5, False), (-3.0, False), (-5.0, False)]
    found = helm_reference_results(True, DOC, [*originals, *calibrations])
    assert (found["exact_match"], found["predicted_index"]) == (0.5, 0.5), "the second trial alone is wrong"


def test_of_equal_scores_the_share_of_right_ones_counts_and_the_first_is_predicted() -> None:
    found = score_references([-1.0, -1.0, -3.0], [1, 2])
    assert found["exact_match"] == 0.5
    assert found["predicted_index"] == 0.0
    assert found["max_prob"] == pytest.approx(1 / (2 + math.exp(-2.0)))


def test_results_of_several_trials_count_in_the_mean() -> None:
    def pair(total: float, tokens: int) -> LogLikelihood:
        return LogLikelihood([total / tokens] * tokens, False)

    right, wrong = [pair(-2.0, 1), pair(-6.0, 6)], [pair(-0.25, 1), pair(-6.0, 6)]
    assert helm_reference_results(False, DOC, [*right, *wrong])["exact_match"] == 0.5
    # Calibrated: the requests of the calibration come after all others.
    bare = [pair(-1.0, 1), pair(-6.5, 6)]
    assert helm_reference_results(True, DOC, [*right, *wrong, *bare, *bare])["exact_match"] == 0.5
    with pytest.raises(ScoringError, match="there are 3 log-likelihoods, but 2 references"):
        helm_reference_results(False, DOC, [*right, pair(-1.0, 1)])


@pytest.mark.parametrize(
    ("text", "tokens", "count"),
    [
        (" Paris", ["Which", "?", " Par", "is"], 2),
        (" Paris", ["Which", "?", " Par", "is", "\n"], 2),
        (" 1", ["1+1", "? 1"], 1),
        (" a", [" a", " b", " a"], 1),
        (" x", ["Which", "?"], 0),
    ],
)
def test_tokens_are_counted_where_the_reference_stands_last(text: str, tokens: list[str], count: int) -> None:
    assert tokens_of(text, tokens) == count
