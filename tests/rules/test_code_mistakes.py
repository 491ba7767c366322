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
    ("pattern", "is_dead"),
    [
        (r"\sthe^|a", True),
        (r"(answer (is ^)\d)", True),
        (r"\d+$x", True),
        (r"(?:ab){2}^c", True),
        (r"(?m)\sthe^", False),
        (r"^the|^a", False),
        (r"(?:^|\n)the", False),
        (r"\s*^the", False),
        (r"(?:x)?^the", False),
        ("the$\n", False),
        (r"(?=the$)the", False),
        (r"(?<=a)^b", False),
        (r"[$^]x", False),
    ],
)
def test_what_follows_the_end_or_precedes_the_beginning_never_matches(pattern: str, is_dead: bool) -> None:
    steps = [{"function": "regex", "regex_pattern": pattern}, {"function": "take_first"}]
    assert ("PF502" in codes(filter_list=[{"name": "x", "filter": steps}])) is is_dead


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
