"""One side of a comparison renders a task: its docs, those of the other side, variants, with the lines that ran."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.profile import PLAIN
from pytest_promptfmt.revisions.task_rendering import (
    AS_IT_IS,
    WITH_SHOTS,
    RenderingPlan,
    edge_cases_of,
    lines_of,
    path_of,
    read_rendering,
    rendering_of,
)
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.study import Study
from pytest_promptfmt.systems.task_files import load_tasks

TASK = """\
task: who
dataset_path: nowhere/docs
test_split: test
output_type: generate_until
doc_to_text: !function wording.text
doc_to_target: answer
"""
CODE = """\
def text(doc):
    if "rare" in doc["question"]:
        return "Rarely " + doc["question"]
    return "Q: " + doc["question"]
"""


def rendered(folder: Path, task: str = TASK, code: str = CODE, **plan: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    (folder / "who.yaml").write_text(task, "utf-8")
    (folder / "wording.py").write_text(code, "utf-8")
    [found] = load_tasks(folder / "who.yaml")
    return rendering_of(
        Study(found, Settings(rootdir=folder, profiles=(PLAIN,))),
        RenderingPlan(**{"top": str(folder), "folder": str(folder)} | plan),
    )


def test_docs_are_rendered_as_they_are_with_shots_and_at_the_edges(tmp_path: Path) -> None:
    found = rendered(tmp_path / "a")
    assert found["own"].keys() == {AS_IT_IS, WITH_SHOTS}
    assert found["own"] == found["same"]
    assert [len(texts) for texts in found["own"].values()] == [2, 2]
    assert "None in 'question'" in found["edges"]
    assert found["kinds"] == ["synthetic", "synthetic"]
    assert sorted(found["named"]) == [["doc_to_target", "answer"], ["doc_to_text", "question"]]
    assert json.loads(json.dumps(found)) == found, "it survives the way between processes"


def test_lines_that_ran_are_known_also_those_that_only_a_word_of_the_code_reaches(tmp_path: Path) -> None:
    assert lines_of(rendered(tmp_path / "a")) == {"wording.py": {2, 4}}
    assert lines_of(rendered(tmp_path / "b", words=["rare"])) == {"wording.py": {2, 3, 4}}


def test_the_second_side_renders_the_docs_of_the_first(tmp_path: Path) -> None:
    before, after = tmp_path / "a", tmp_path / "b"
    first = rendered(before)
    path_of(before, "who").write_text(json.dumps(first), "utf-8")
    other = rendered(after, TASK.replace("!function wording.text", '"{{query}}"'), other=str(before))
    assert read_rendering(before, "who") == first
    assert other["own"][AS_IT_IS] != first["own"][AS_IT_IS]
    assert all("\\u00ab" not in text.partition("]")[0] for text in other["same"][AS_IT_IS]), "they have no such column"
    assert other["edges"].keys() == first["edges"].keys()


def test_parts_of_a_template_that_no_text_has_are_left(tmp_path: Path) -> None:
    branch = "{% if question|length == 3 %}Rarely {% else %}Often {% endif %}{{question}}"
    task = TASK.replace("!function wording.text", json.dumps(branch))
    assert rendered(tmp_path / "a", task, parts=["Rarely ", "Often "])["unseen"] == ["Rarely "]
    assert rendered(tmp_path / "b", task, parts=["Rarely ", "Often "], words=["abc"])["unseen"] == []


def test_a_task_that_cannot_be_rendered_has_an_error_and_no_texts(tmp_path: Path) -> None:
    found = rendered(tmp_path / "a", code="def text(doc):\n    raise KeyError('question')\n")
    assert found["error"]
    assert found["own"] == {}


@pytest.mark.parametrize("written", ["", "{", "[]", '{"own": {}}', "null"])
def test_a_rendering_that_a_worker_did_not_finish_is_none(tmp_path: Path, written: str) -> None:
    path_of(tmp_path, "who").write_text(written, "utf-8")
    assert read_rendering(tmp_path, "who") is None
    assert read_rendering(tmp_path, "nowhere") is None


@pytest.mark.parametrize(
    ("label", "doc", "variant"),
    [
        ("spaces at the ends", {"q": "a", "n": 1}, {"q": "  a \n", "n": 1}),
        ("other letter case", {"q": "«aB»", "l": ["c"]}, {"q": "Ab", "l": ["C"]}),
        ("a full stop at the end", {"m": {"q": "a"}}, {"m": {"q": "a."}}),
        ("longer lists", {"l": ["a"], "e": []}, {"l": ["a", "a more", "a most"], "e": []}),
        ("lists of one", {"l": ["a", "b"], "q": "ab"}, {"l": ["a"], "q": "ab"}),
        ("other numbers", {"n": 0, "f": 2.5, "b": True, "l": [0]}, {"n": 1, "f": 0, "b": False, "l": [1]}),
        ("nothing in 'q'", {"q": "a", "l": ["b"]}, {"q": "", "l": ["b"]}),
        ("None in 'l'", {"q": "a", "l": ["b"]}, {"q": "a", "l": None}),
        ("the text 'word'", {"q": "a"}, {"q": "a word a"}),
        ("the text 'word' at both ends", {"q": "a"}, {"q": "wordaword"}),
        ("'word' in 'q'", {"q": "a", "r": "b"}, {"q": "word", "r": "b"}),
    ],
)
def test_each_edge_case_changes_what_it_names(label: str, doc: Doc, variant: Doc) -> None:
    change = dict(edge_cases_of(doc, ["word", "word"]))[label]
    assert change(doc) == variant


def test_edge_cases_of_wide_docs_and_many_words_are_bounded() -> None:
    doc = {f"c{number}": "a" for number in range(40)}
    labels = [label for label, _ in edge_cases_of(doc, map(str, range(40)))]
    assert len(labels) == len(set(labels)) == 9 + 2 * 12 + 12 * (2 + 12)
