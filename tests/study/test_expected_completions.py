"""Completions and failures that users expect: where they are written, and which are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.core.errors import ScoringError
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.study.scoring import expected_completions, expected_failures, unmet_expectations


def test_completions_are_in_the_yaml_or_next_to_it(tmp_path: Path) -> None:
    (tmp_path / "t.completions.jsonl").write_text(
        '{"completion": "C", "expected": "C"}\n\n{"task": "u", "completion": "x", "correct": false}\n', "utf-8"
    )
    task = Task(
        name="t",
        path=tmp_path / "t.yaml",
        metadata={"promptfmt": {"completions": [{"id": "mine", "completion": "x", "expected": None}]}},
    )
    assert [(one.id, one.expected) for one in expected_completions(task)] == [("mine", None), ("line-1", "C")]


@pytest.mark.parametrize(
    ("expected", "extracted", "is_met"),
    [
        ("C", "C", True),
        ("C", " C\n", True),
        (5, "5", True),
        (5, 5.0, True),
        (["a"], ["a"], True),
        ("C", "D", False),
        (5, "6", False),
        ("C", None, False),
        (None, None, True),
        (None, "", True),
        (None, " [invalid] ", True),
        (None, [], True),
        (None, "C", False),
    ],
)
def test_an_extraction_is_compared_as_a_value_and_as_text(expected: Any, extracted: Any, is_met: bool) -> None:
    entry = {"completion": "x", "expected": expected}
    [found] = expected_completions(Task(name="t", metadata={"promptfmt": {"completions": [entry]}}))
    assert found.expects(extracted) is is_met


def test_a_completion_may_be_for_one_pipeline_and_one_doc() -> None:
    entry = {"completion": "C", "correct": True, "pipeline": "strict", "doc": 1}
    [found] = expected_completions(Task(name="t", metadata={"promptfmt": {"completions": [entry]}}))
    assert (found.pipeline, found.doc, found.correct) == ("strict", 1, True)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("C", "a mapping with the key `completion`"),
        ({"completion": "C"}, "needs the key `expected`"),
        ({"completion": "C", "expcted": "C"}, "did you mean 'expected'"),
        ({"completion": "C", "correct": True, "doc": -1}, "from 0"),
        ({"completion": "C", "correct": True, "pipeline": ["x"]}, "the name of a filter pipeline"),
    ],
)
def test_completions_that_cannot_be_used_are_refused(entry: Any, message: str) -> None:
    with pytest.raises(ScoringError, match=message):
        expected_completions(Task(name="t", metadata={"promptfmt": {"completions": [entry]}}))


def test_two_completions_with_one_id_are_refused(tmp_path: Path) -> None:
    line = '{"id": "mine", "completion": "C", "expected": "C"}\n'
    (tmp_path / "t.completions.jsonl").write_text(f"\ufeff{line}", "utf-8")  # with a byte order mark
    task = Task(name="t", path=tmp_path / "t.yaml")
    assert [one.id for one in expected_completions(task)] == ["mine"]
    (tmp_path / "t.completions.jsonl").write_text(line * 2, "utf-8")
    with pytest.raises(ScoringError, match="two completions have the id 'mine'"):
        expected_completions(task)


def test_expected_failures_need_a_reason_and_fail_when_they_do_not_fail() -> None:
    task = Task(name="t", metadata={"promptfmt": {"expected_failures": {"two": "first match wins"}}})
    expected = expected_failures(task)
    assert unmet_expectations(expected, ["two"], ["two"]) == []
    assert unmet_expectations(expected, [], ["two"]) == [
        "the expected failure 'two' no longer fails (first match wins): remove the entry"
    ]
    assert "did you mean 'two'" in unmet_expectations({"twoo": "x"}, [], ["two"])[0]
    with pytest.raises(ScoringError, match="needs a reason"):
        expected_failures(Task(name="t", metadata={"promptfmt": {"expected_failures": {"two": None}}}))
