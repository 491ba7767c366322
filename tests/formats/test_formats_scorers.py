"""What a scorer reads in a response, by the filters it sets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from pytest_promptfmt.core.task import Task
from pytest_promptfmt.formats import apply_format
from pytest_promptfmt.formats.format import SCORER_NAMES, checked_scorer, make_scorer

TASK = Task(name="t", doc_to_text="question", doc_to_target="answer", doc_to_choice="choices")


def extracted(pipeline: Mapping[str, Any], response: str) -> str:
    """Apply the filters that scorers use: `regex` and `remove_whitespace` as in lm-eval 0.4.13."""
    for step in pipeline["filter"]:
        if step["function"] == "remove_whitespace":
            response = response.strip()
        elif step["function"] == "regex":
            found = re.findall(step["regex_pattern"], response)
            response = found[step.get("group_select", 0)].strip() if found else step["fallback"]
    return response


@pytest.mark.parametrize(
    ("response", "label"),
    [
        (" C", "C"),
        ("C", "C"),
        ("(C)", "C"),
        ("C. Paris", "C"),
        ("C) Paris", "C"),
        ("**C**", "C"),
        ('"C"', "C"),
        ("\n\nC\nBecause", "C"),
        ("c", "c"),
        ("c.", "c"),
        ("Certainly", "[invalid]"),
        ("c is right", "[invalid]"),
        ("C's", "[invalid]"),
        ("Paris", "[invalid]"),
        ("The best answer is C", "[invalid]"),
        ("", "[invalid]"),
    ],
)
def test_first_token_takes_the_leading_label(response: str, label: str) -> None:
    scorer = make_scorer("first_token", "letters")
    assert scorer is not None
    assert extracted(scorer.filter_list[0], response) == label


def test_first_token_also_reads_as_upstream() -> None:
    scorer = make_scorer("first_token", "letters")
    assert scorer is not None
    assert [pipeline["name"] for pipeline in scorer.filter_list] == ["first_token", "upstream_first_token"]
    assert extracted(scorer.filter_list[1], " C. Paris\n") == "C. Paris"


@pytest.mark.parametrize(
    ("labels", "response", "label"),
    [
        ("numbers", " 12. Paris", "12"),
        ("numbers", "12th", "[invalid]"),
        (("I", "II", "III", "IV"), "III. Paris", "III"),
        (("I", "II", "III", "IV"), "IV", "IV"),
        ("keyboard", "^", "^"),
        ("roman", "(ii)", "ii"),
    ],
)
def test_first_token_knows_the_labels_of_the_format(labels: Any, response: str, label: str) -> None:
    scorer = make_scorer("first_token", labels)
    assert scorer is not None
    assert extracted(scorer.filter_list[0], response) == label


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("Let me think.\n\nThe final answer is Paris", "Paris"),
        ("The final answer is: Paris.", "Paris"),
        ("The final answer is 3. No, the final answer is 4.", "4"),
        ("Paris", "[invalid]"),
    ],
)
def test_reasoning_is_scored_by_what_follows_the_final_answer(response: str, answer: str) -> None:
    task = apply_format(TASK, "cot")
    assert task.scorer is not None
    assert task.filter_list is not None
    assert [pipeline["name"] for pipeline in task.filter_list] == ["upstream_first_token", "final_answer"]
    assert extracted(task.filter_list[1], response) == answer


@pytest.mark.parametrize(
    ("response", "label"),
    [("… so the answer is (C).", "C"), ("The answer is (A) … no: The answer is B", "B"), ("(C)", "[invalid]")],
)
def test_reasoning_prompts_of_the_literature_read_their_own_phrase(response: str, label: str) -> None:
    task = apply_format(TASK, "mmlu_pro_cot")
    assert task.filter_list is not None
    step = {"fallback": "[invalid]", **task.filter_list[0]["filter"][0]}
    assert extracted({"filter": [step]}, response) == label


def test_every_scorer_says_what_it_extracts_and_measures_exact_match() -> None:
    for name in SCORER_NAMES:
        scorer = make_scorer(name, "letters")
        assert scorer is not None
        assert scorer.extracts
        assert scorer.metric_list[0] == {
            "metric": "exact_match",
            "aggregation": "mean",
            "higher_is_better": True,
            "ignore_case": True,
            "ignore_punctuation": True,
        }


def test_all_spellings_of_regex_mean_the_same() -> None:
    expected = ("regex", {"regex_pattern": "x"})
    for value in (
        {"type": "regex", "regex_pattern": "x"},
        {"type": "regex_extraction", "regex_pattern": "x"},
        {"type": "regex", "kwargs": {"regex_pattern": "x"}},
    ):
        assert checked_scorer(value) == expected
    assert checked_scorer("regex_extraction") == ("regex", {})
    assert checked_scorer(None) is None


def test_lists_of_the_author_win_over_the_scorer() -> None:
    metrics = [{"metric": "exact_match"}]
    config = {"metric_list": metrics, "output_type": "generate_until"}
    task = Task(
        name="t",
        doc_to_text="question",
        doc_to_target="answer",
        doc_to_choice="choices",
        output_type="generate_until",
        metric_list=metrics,
        config=config,
    )
    made = apply_format(task, "generate")
    assert made.metric_list == metrics
    assert made.filter_list is not None


def test_metrics_for_another_output_type_do_not_stay() -> None:
    metrics = [{"metric": "acc"}]
    config = {"metric_list": metrics, "output_type": "multiple_choice"}
    task = Task(
        name="t",
        doc_to_text="question",
        doc_to_target="answer",
        doc_to_choice="choices",
        output_type="multiple_choice",
        metric_list=metrics,
        config=config,
    )
    made = apply_format(task, "generate")
    assert made.metric_list is not None
    assert made.metric_list[0]["metric"] == "exact_match"
    assert [entry.key for entry in made.overwritten] == ["output_type", "metric_list"]
    assert apply_format(task, "mcqa").metric_list == metrics
