"""Slips in patterns, and text that cleaning takes away: what is reported, and what looks alike and is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from linting import linted, study_of

from pytest_promptfmt.rules.rule_registry import known_rules
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.systems.task_files import load_tasks, read_task_file
from pytest_promptfmt.tasks.task_index import TaskIndex

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


@pytest.mark.parametrize(
    ("texts", "is_reported"),
    [('["\\nclass", "<|endoftext|>"]', True), ('["\\nclass", "\\nprint"]', False), ("[]", False)],
)
def test_texts_that_are_joined_to_a_pattern_have_no_bar(tmp_path: Path, texts: str, is_reported: bool) -> None:
    code = f"import re\nSTOPS = {texts}\n\n\ndef score(doc, results):\n"
    (tmp_path / "utils.py").write_text(f'{code}    return {{"acc": len(re.split("|".join(STOPS), results[0]))}}\n')
    task = tmp_path / "a.yaml"
    task.write_text(
        "task: a\ntest_split: test\noutput_type: generate_until\ndoc_to_text: x\ndoc_to_target: y\n"
        "process_results: !function utils.score\n"
    )
    file = read_task_file(task, TaskIndex([tmp_path]))
    assert file is not None
    found = linted(study_of(file.tasks[0], tmp_path), Selection(rules=known_rules(), rootdir=tmp_path)).findings
    assert ("a text with | is a part of a pattern, without re.escape" in {one.message for one in found}) is is_reported


@pytest.mark.parametrize(("pair", "is_reported"), [("results[0], doc['a']", True), ("doc['a'], results[0]", False)])
def test_a_reference_comes_before_the_answer(tmp_path: Path, pair: str, is_reported: bool) -> None:
    (tmp_path / "utils.py").write_text(f'def score(doc, results):\n    return {{"bleu": ({pair})}}\n')
    task = tmp_path / "a.yaml"
    task.write_text(
        'task: a\ntest_split: test\noutput_type: generate_until\ndoc_to_text: "{{q}}"\ndoc_to_target: "{{a}}"\n'
        "process_results: !function utils.score\nmetric_list: [{metric: bleu, aggregation: bleu}]\n"
        "metadata: {promptfmt: {docs: [{q: Hvor?, a: I havnen}]}}\n"
    )
    file = read_task_file(task, TaskIndex([tmp_path]))
    assert file is not None
    found = linted(study_of(file.tasks[0], tmp_path), Selection(rules=known_rules(), rootdir=tmp_path)).findings
    assert any("gives the answer before the gold answer" in one.message for one in found) is is_reported
