"""With what text Python code ends a question or begins an answer, where its source says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from linting import linted, study_of

from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.task import FunctionRef, Task
from pytest_promptfmt.rules.rule_registry import known_rules
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.rules.task_code import literal_end, literal_start, refuses_shots
from pytest_promptfmt.systems.task_files import read_task_file


def coded(folder: Path, body: str, output_type: str = "generate_until") -> Task:
    """Return a task whose question and answer are made by the same function."""
    (folder / "utils.py").write_text(f"def made(doc):\n{body}", "utf-8")
    (folder / "a.yaml").write_text(
        f"task: a\ntest_split: test\noutput_type: {output_type}\ndoc_to_text: !function utils.made\n"
        "doc_to_target: !function utils.made\n",
        "utf-8",
    )
    file = read_task_file(folder / "a.yaml")
    assert file is not None
    return file.tasks[0]


@pytest.mark.parametrize(
    ("body", "start", "end"),
    [
        ("    return 'Q: ' + doc['q'] + ' A: '\n", "Q: ", " A: "),
        ("    return f\" {doc['q']} A:\"\n", " ", " A:"),
        ("    return 'Q: {} A: '.format(doc['q'])\n", "Q: ", " A: "),
        ("    return 'Q: %s A: ' % doc['q']\n", "Q: ", " A: "),
        ("    text = 'Q: '\n    text += doc['q']\n    text += ' A: '\n    return text\n", "Q: ", " A: "),
        ("    text = ' x'\n    if doc:\n        text = 'y '\n    return text\n", "", ""),
        ("    if doc:\n        return ' a '\n    return ' b '\n", "", ""),
        ("    return doc['q'].strip()\n", "", ""),
        ("    return (' a ' + doc['q'] + ' ').strip()\n", "", ""),
    ],
)
def test_literal_text_at_the_ends_of_code_is_read(tmp_path: Path, body: str, start: str, end: str) -> None:
    study = study_of(coded(tmp_path, body), tmp_path)
    assert (literal_start(study, "doc_to_target"), literal_end(study, "doc_to_text")) == (start, end)


@pytest.mark.parametrize(
    ("body", "output_type", "expected"),
    [
        ("    return doc['q'] + '\\nA: '\n", "generate_until", {"PF202"}),
        ("    return ' ' + doc['q'] + '\\nA:'\n", "generate_until", {"PF201", "PF202"}),
        ("    return doc['q'] + '\\nA:'\n", "generate_until", set()),
        ("    return 'Answer this question' 'without an explanation: ' + doc['q']\n", "generate_until", {"PF203"}),
    ],
)
def test_spaces_of_code_are_reported_without_rows(
    tmp_path: Path, body: str, output_type: str, expected: set[str]
) -> None:
    study = study_of(coded(tmp_path, body, output_type), tmp_path)
    found = linted(study, Selection(rules=known_rules(), rootdir=tmp_path)).findings
    assert {finding.code for finding in found} & {"PF201", "PF202", "PF203"} == expected


@pytest.mark.parametrize(
    "arguments",
    ["self, doc", "self, doc, doc_to_target=None", "self, *given", "self, /, doc, given=None", "self, doc, **more"],
)
def test_a_hook_of_a_class_that_takes_the_doc_alone_has_no_few_shot_examples(tmp_path: Path, arguments: str) -> None:
    task = coded(tmp_path, "    return doc['q']\n")
    assert not refuses_shots(study_of(task, tmp_path))
    refusing: list[bool] = []
    for text in ("self, doc", "self, doc, doc_to_text=None"):
        hooks = (
            f"    def doc_to_text({text}):\n        return ''\n    def doc_to_target({arguments}):\n        return ''\n"
        )
        (tmp_path / f"code{len(refusing)}.py").write_text(f"class Made:\n{hooks}", "utf-8")
        named = FunctionRef(f"code{len(refusing)}", "Made", tmp_path, Position(tmp_path / "a.yaml", 1, 1))
        refusing.append(refuses_shots(study_of(replace(task, config={**task.config, "class": named}), tmp_path)))
    assert refusing == [True, arguments in ("self, doc", "self, doc, **more")]  # lm-eval gives it by its place


@pytest.mark.parametrize(
    ("arguments", "refuses"), [("doc, given=None", False), ("doc", True), ("doc, *, given=None", True)]
)
def test_a_static_hook_has_no_self(tmp_path: Path, arguments: str, refuses: bool) -> None:
    task = coded(tmp_path, "    return doc['q']\n")
    hook = f"    @staticmethod\n    def doc_to_text({arguments}):\n        return ''\n"
    (tmp_path / "code.py").write_text(f"class Made:\n{hook}", "utf-8")
    named = FunctionRef("code", "Made", tmp_path, Position(tmp_path / "a.yaml", 1, 1))
    assert refuses_shots(study_of(replace(task, config={**task.config, "class": named}), tmp_path)) is refuses
