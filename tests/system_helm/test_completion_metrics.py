"""HELM's metrics against the numbers that the real package gave, and the answers that completions are mapped to."""

from __future__ import annotations

import pytest

from pytest_promptfmt.systems.helm.helm_metrics import (
    HELM_METRICS,
    best_over_golds,
    mapped_output,
    score_completions,
)


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
