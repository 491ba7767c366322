"""With what text Python code ends a question, where its source says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from linting import linted, study_of

from pytest_promptfmt.core.task import Task
from pytest_promptfmt.rules.rule_registry import known_rules
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.rules.task_code import literal_end
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
    ("body", "end"),
    [
        ("    return 'Q: ' + doc['q'] + ' A: '\n", " A: "),
        ("    return f\" {doc['q']} A:\"\n", " A:"),
        ("    return 'Q: {} A: '.format(doc['q'])\n", " A: "),
        ("    return 'Q: %s A: ' % doc['q']\n", " A: "),
        ("    text = 'Q: '\n    text += doc['q']\n    text += ' A: '\n    return text\n", " A: "),
        ("    text = ' x'\n    if doc:\n        text = 'y '\n    return text\n", ""),
        ("    if doc:\n        return ' a '\n    return ' b '\n", ""),
        ("    return doc['q'].strip()\n", ""),
        ("    return (' a ' + doc['q'] + ' ').strip()\n", ""),
    ],
)
def test_literal_text_at_the_end_of_code_is_read(tmp_path: Path, body: str, end: str) -> None:
    assert literal_end(study_of(coded(tmp_path, body), tmp_path)) == end


@pytest.mark.parametrize(
    ("body", "output_type", "expected"),
    [
        ("    return doc['q'] + '\\nA: '\n", "generate_until", {"PF202"}),
        ("    return doc['q'] + '\\nA:'\n", "generate_until", set()),
        ("    return 'Answer this question' 'without an explanation: ' + doc['q']\n", "generate_until", {"PF203"}),
        ("    return 'Answer this question ' 'without an explanation: ' + doc['q']\n", "generate_until", set()),
        ("    return 'Answer this question\\n' 'without an explanation: ' + doc['q']\n", "generate_until", set()),
        ("    return doc['q'] if doc['q'] else pick('one of these', 'two of these')\n", "generate_until", set()),
    ],
)
def test_spaces_of_code_are_reported_without_rows(
    tmp_path: Path, body: str, output_type: str, expected: set[str]
) -> None:
    study = study_of(coded(tmp_path, body, output_type), tmp_path)
    found = linted(study, Selection(rules=known_rules(), rootdir=tmp_path)).findings
    assert {finding.code for finding in found} & {"PF201", "PF202", "PF203"} == expected
