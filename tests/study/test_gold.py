"""The kind of gold answer that a task has, by its targets, choices and scorer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.task import Dataset, FunctionRef, Task
from pytest_promptfmt.results.library import study_of
from pytest_promptfmt.study import Study
from pytest_promptfmt.study.gold import accepted_texts, compares_likelihoods, gold_kind, has_constant_target

CODE = FunctionRef("utils", "score", Path("utils.py"), Position(Path("t.yaml")))
DOCS = TaskDocs.in_memory([{"q": "1 + 1?", "answer": "2", "tests": "assert f(1) == 2", "list": ["2", "two"]}])


def study(**fields: Any) -> Study:
    values = {"name": "t", "doc_to_text": "{{ q }}", "doc_to_target": "answer", **fields}
    return study_of(Task(**values, dataset=Dataset(given=lambda _count, _shots: DOCS)))


@pytest.mark.parametrize(
    ("target", "is_constant"),
    [
        ("answer", False),
        ("the answer", False),
        ("see the answer", True),
        ("no!", True),
        (" answer ", False),
        ("{{ answer }}", False),
        ("{{ 'a' }}", True),
        ("{# a #}", True),
        ("", True),
        (0, True),
        (CODE, False),
        (lambda doc: "", False),
    ],
)
def test_a_target_is_constant_if_it_names_nothing_of_a_doc(target: Any, is_constant: bool) -> None:
    assert has_constant_target(study(doc_to_target=target)) is is_constant


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, "text"),
        ({"doc_to_target": "list"}, "texts"),
        ({"doc_to_target": "tests"}, "text"),
        ({"doc_to_target": "tests", "metric_list": [{"metric": CODE}]}, "tests"),
        ({"doc_to_target": "answer", "metric_list": [{"metric": CODE}]}, "text"),
        ({"doc_to_target": "none!", "process_results": CODE}, "nothing"),
        ({"doc_to_target": "answer", "process_results": CODE}, "text"),
        ({"doc_to_target": "none!"}, "text"),
        ({"output_type": "multiple_choice", "doc_to_choice": ["1", "2"], "doc_to_target": 0}, "choice"),
    ],
)
def test_the_kind_of_gold_follows_from_target_choices_and_scorer(fields: dict[str, Any], kind: str) -> None:
    assert gold_kind(study(**{"output_type": "generate_until", **fields})) == kind


@pytest.mark.parametrize(
    ("metrics", "compares"),
    [
        ([], True),
        (["acc"], True),
        (["exact_match"], False),
        (["exact_match", "acc"], True),
        (["perplexity", "likelihood", "byte_perplexity", "bits_per_byte", "brier_score", "bypass"], False),
    ],
)
def test_likelihoods_are_compared_except_by_metrics_of_single_ones(metrics: list[str], compares: bool) -> None:
    assert compares_likelihoods(study(metric_list=[{"metric": each} for each in metrics])) is compares


def test_accepted_texts_are_those_among_the_values() -> None:
    assert accepted_texts("a") == ("a",)
    assert accepted_texts(["a", 1, "b"]) == ("a", "b")
    assert accepted_texts(("a",)) == ("a",)
    assert accepted_texts(0) == ()
    assert accepted_texts({"a": "b"}) == ()
