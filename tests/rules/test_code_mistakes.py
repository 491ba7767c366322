"""Slips in patterns, and text that cleaning takes away: what is reported, and what looks alike and is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from linting import linted, study_of

from pytest_promptfmt.rules.rule_registry import known_rules
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.systems.task_files import load_tasks

TASK = {
    "task": "a",
    "test_split": "test",
    "output_type": "generate_until",
    "doc_to_text": "Question: {{question}}\nAnswer:",
    "doc_to_target": "answer",
}


def codes(**changed: object) -> set[str]:
    [task] = load_tasks({**TASK, **changed})
    found = linted(study_of(task), Selection(rules=known_rules(), rootdir=Path())).findings
    return {finding.code for finding in found}


@pytest.mark.parametrize(
    ("choice", "shown", "is_reported"),
    [
        ("[x, p] = i h", "A. = i h", True),
        ("[x, p] = i h", "A. [x, p] = i h", False),
        ("[x, p] = i h", "A. all = i h of them", False),
        ("[x] is long enough", "A. is long enough and more", True),
    ],
)
def test_a_short_text_without_its_brackets_is_looked_for_on_a_line_of_its_own(
    choice: str, shown: str, is_reported: bool
) -> None:
    docs = [{"question": "Which?", "choice": choice, "answer": "A"}]
    found = codes(doc_to_text=f"{{{{question}}}}\n{shown}\nAnswer:", metadata={"promptfmt": {"docs": docs}})
    assert ("PF223" in found) is is_reported
