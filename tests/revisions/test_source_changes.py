"""Tasks that two revisions write differently: which keys, what they affect, and which texts to try on docs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.revisions.source_changes import SourceDifference, differences, meaning_of, unreadable

TASK = """\
task: who
dataset_path: nowhere/docs
test_split: test
output_type: generate_until
doc_to_text: "Q: {{question}}"
doc_to_target: answer
"""


def found(tmp_path: Path, old: str, new: str, code: tuple[str, str] | None = None) -> list[SourceDifference]:
    for number, side in enumerate(("a", "b")):
        (tmp_path / side).mkdir()
        (tmp_path / side / "who.yaml").write_text((old, new)[number], "utf-8")
        if code is not None:
            (tmp_path / side / "utils.py").write_text(code[number], "utf-8")
    return [*differences(tmp_path / "a", tmp_path / "b", {"who.yaml": "who.yaml"})]


@pytest.mark.parametrize(
    ("added", "use"),
    [
        ("fewshot_delimiter: ' '\n", "prompt"),
        ("validation_split: dev\n", "docs"),
        ("fewshot_config: {split: dev}\n", "docs"),
        ("fewshot_config: {sampler: first_n}\n", "prompt"),
        ("metric_list: [{metric: exact_match}]\n", "reading"),
        ("metadata: {promptfmt: {docs: [{question: Who?}]}}\n", "prompt"),
        ("metadata: {version: 2}\n", None),
        ("dataset_kwargs: {trust_remote_code: true}\n", None),
        ("tag: people\n", None),
        ("doc_to_choice: null\n", None),
    ],
)
def test_each_key_counts_for_what_it_affects(tmp_path: Path, added: str, use: str | None) -> None:
    changes = [change for each in found(tmp_path, TASK, TASK + added) for change in each.changes]
    assert [change.use for change in changes] == ([use] if use else [])


@pytest.mark.parametrize("text", ['"Q: {{ question }}"', "'Q: {{question}}'", '"Q: {{question}}"  # as before'])
def test_another_notation_of_the_same_template_is_no_difference(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, TASK, TASK.replace('"Q: {{question}}"', text)) == []


def test_words_and_parts_of_changed_templates_are_tried_on_docs(tmp_path: Path) -> None:
    branch = "{% if question == 'rare' %}Rarely {% else %}Q: {% endif %}{{question}}"
    [difference] = found(tmp_path, TASK, TASK.replace("Q: {{question}}", branch))
    assert [str(change) for change in difference.changes] == ["doc_to_text"]
    assert difference.words() == ["rare"]
    assert difference.parts(difference.new) == ["Rarely ", "Q: "]
    assert difference.parts(difference.old) == []


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"\d+", [r"\d+", "7"]),
        (r"^(a)|b", [r"^(a)|b", "a"]),
        (r"[^x]\s*y", [r"[^x]\s*y", "k y"]),
        (r"a{2,3}\.", [r"a{2,3}\.", "a."]),
        ("plain", ["plain"]),
    ],
)
def test_a_pattern_in_changed_code_is_tried_with_a_text_that_it_matches(
    tmp_path: Path, pattern: str, words: list[str]
) -> None:
    task = TASK.replace('"Q: {{question}}"', "!function utils.text")
    old = "def text(doc):\n    return doc['question']\n"
    new = f"import re\n\n\ndef text(doc):\n    return re.sub({pattern!r}, '', doc['question'])\n"
    [difference] = found(tmp_path, task, task, (old, new))
    assert [str(change) for change in difference.changes] == ["doc_to_text (utils.py:4 text)"]
    assert [word for word in difference.words() if word != "question"] == words


def test_a_function_that_moved_as_it_is_makes_no_difference(tmp_path: Path) -> None:
    code = "def text(doc):\n    return doc['question']\n"
    before = TASK.replace('"Q: {{question}}"', "!function utils.text")
    for side in ("a", "b"):
        (tmp_path / side).mkdir()
    (tmp_path / "a/utils.py").write_text(code, "utf-8")
    (tmp_path / "b/wording").mkdir()
    (tmp_path / "b/wording/utils.py").write_text(code, "utf-8")
    (tmp_path / "a/who.yaml").write_text(before, "utf-8")
    (tmp_path / "b/who.yaml").write_text(before.replace("utils.text", "wording.utils.text"), "utf-8")
    assert [*differences(tmp_path / "a", tmp_path / "b", {"who.yaml": "who.yaml"})] == []


@pytest.mark.parametrize(
    ("name", "old", "new", "is_same"),
    [
        ("a.json", '{"a": 1, "b": 2}', '{"b":2,"a":1}', True),
        ("a.json", '{"a": 1}', '{"a": 2}', False),
        ("a.json", "{", "{ ", False),
        ("a.jinja", "{{ m }}", "{{m}}", True),
        ("a.jinja", "{{ m }}", "{{ n }}", False),
        ("a.txt", "a", "a ", False),
    ],
)
def test_two_files_mean_the_same_by_value_or_syntax(
    tmp_path: Path, name: str, old: str, new: str, is_same: bool
) -> None:
    meanings: list[Any] = []
    for text in (old, new):
        (tmp_path / name).write_text(text, "utf-8")
        meanings.append(meaning_of(tmp_path / name))
    assert (meanings[0] == meanings[1]) is is_same


def test_a_file_that_neither_side_reads_is_named_with_the_error_of_the_second(tmp_path: Path) -> None:
    for side, missing in (("a", "old"), ("b", "new")):
        (tmp_path / side).mkdir()
        (tmp_path / side / "who.yaml").write_text(f"include: {missing}\n{TASK}", "utf-8")
        (tmp_path / side / "fine.yaml").write_text(TASK, "utf-8")
    files = {"who.yaml": "who.yaml", "fine.yaml": "fine.yaml"}
    [(file, (name, error))] = unreadable(tmp_path / "a", tmp_path / "b", files)
    assert (file, name) == ("who.yaml", "who")
    assert "new" in error
