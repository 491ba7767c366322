"""Rows are chosen by the branches that they take a task through: in templates, in functions, and when docs are made."""

from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.core.errors import CodeNotAllowedError, PromptfmtError
from pytest_promptfmt.systems.task_files import load_tasks
from pytest_promptfmt.tasks.docs.frozen_docs import covering_rows

HEAD = "task: one\ntest_split: test\noutput_type: generate_until\ndoc_to_target: answer\n"
CODE = """
def text(doc):
    return doc["question"] if doc["question"] else "nothing"

def clean(dataset):
    return dataset.map(lambda doc: {"question": doc["question"].strip("?") if doc["answer"] == "b" else ""})
"""


def row(question: str, answer: str = "a", hint: str = "") -> dict[str, Any]:
    return {"question": question, "answer": answer, "hint": hint}


def chosen(folder: Path, keys: str, rows: list[dict[str, Any]], count: int = 2, *, code: bool = True) -> list[int]:
    (folder / "utils.py").write_text(CODE, "utf-8")
    file = folder / "one.yaml"
    file.write_text(HEAD + keys, "utf-8")
    (task,) = load_tasks(file)
    found = [covering_rows(task, rows, count, trusted=lambda _file: code) for _ in range(2)]
    assert found[0] == found[1]
    return list(found[0].rows)


@pytest.mark.parametrize(
    "template",
    [
        "{% if hint %}Hint: {{hint}} {% endif %}{{question}}",
        "{{question}}{{ ' Hint: ' + hint if hint else '' }}",
        "{{question}}{% for word in hint.split() %} {{word}}{% endfor %}",
    ],
)
def test_a_condition_is_seen_true_and_false(tmp_path: Path, template: str) -> None:
    rows = [row("a"), row("b"), row("c"), row("d", hint="x y"), row("e", hint="z w")]
    assert chosen(tmp_path, f'doc_to_text: "{template}"\n', rows) == [0, 3]


def test_a_branch_of_a_function_is_seen_both_ways(tmp_path: Path) -> None:
    rows = [row("a"), row("b"), row("")]
    assert chosen(tmp_path, "doc_to_text: !function utils.text\n", rows) == [0, 2]


def test_a_branch_of_the_function_that_makes_docs_is_seen_both_ways(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    keys = "doc_to_text: '{{question}}'\nprocess_docs: !function utils.clean\n"
    assert chosen(tmp_path, keys, [row("a?", "a"), row("b?", "a"), row("c?", "b")]) == [0, 2]


def test_what_adds_nothing_comes_in_the_order_of_the_split(tmp_path: Path) -> None:
    assert chosen(tmp_path, "doc_to_text: '{{question}}'\n", [row(name) for name in "abcd"], 3) == [0, 1, 2]
    assert chosen(tmp_path, "doc_to_text: '{{question}}'\n", [row("a")], 3) == [0]


def test_rows_that_cannot_be_rendered_are_left_out(tmp_path: Path) -> None:
    odd = {"question": None, "answer": "a", "hint": None}
    keys = 'doc_to_text: "{{question.strip()}}"\n'
    assert chosen(tmp_path, keys, [odd, row("a"), row("b")]) == [1, 2]
    with pytest.raises(PromptfmtError, match="strip"):
        chosen(tmp_path, keys, [odd])


def test_no_function_runs_that_may_not(tmp_path: Path) -> None:
    with pytest.raises(CodeNotAllowedError):
        chosen(tmp_path, "doc_to_text: !function utils.text\n", [row("a")], code=False)
