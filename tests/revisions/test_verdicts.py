"""What a comparison says of a task that is written differently: changed, the same on its docs, or unknown and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.core.profile import PLAIN
from pytest_promptfmt.revisions.source_changes import differences
from pytest_promptfmt.revisions.task_rendering import RenderingPlan, path_of, rendering_of
from pytest_promptfmt.revisions.verdicts import Judgement, judge, judge_other
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.study import Study
from pytest_promptfmt.systems.task_files import load_tasks

ROWS = '[{question: "Why?", answer: so, kind: a}, {question: "How  now", answer: thus, kind: b}]'
TASK = f"""\
task: who
test_split: test
output_type: generate_until
doc_to_text: "Q: {{{{question}}}}\\nA:"
doc_to_target: answer
metadata: {{promptfmt: {{docs: {ROWS}}}}}
"""
CODED = TASK.replace('"Q: {{question}}\\nA:"', "!function code.text")
PLACE = ("who.yaml", "who")
SYNTHETIC = TASK.partition("metadata")[0] + "dataset_path: nowhere/docs\n"
CODE = """\
def text(doc):
    if doc["kind"] == "rare":
        return "?"
    return "Q: " + doc["question"]

def score(doc, results):
    return {"exact_match": results[0] == doc["answer"]}
"""


def judged(folder: Path, *sides: tuple[str, str], shown: bool = False, reason: str = "") -> Judgement:
    """Return the verdicts on two versions of a task, each given as its YAML and its code."""
    trees = [folder.resolve() / name for name in ("old", "new")]
    for tree, (task, code) in zip(trees, sides, strict=True):
        tree.mkdir()
        (tree / "who.yaml").write_text(task, "utf-8")
        (tree / "code.py").write_text(code, "utf-8")
    found = Judgement()
    made = [tree.with_name(f"{tree.name}.made") for tree in trees]
    for difference in differences(trees[0], trees[1], {"who.yaml": "who.yaml"}):
        for tree, place, side in zip(trees, made, (difference.old, difference.new), strict=True):
            place.mkdir()
            plan = RenderingPlan(
                top=str(tree),
                folder=str(place),
                other="" if place == made[0] else str(made[0]),
                words=difference.words(),
                parts=difference.parts(side),
                scores=any(change.code for change in difference.of("reading")),
            )
            [read] = load_tasks(tree / "who.yaml")
            rendering = rendering_of(Study(read, Settings(rootdir=tree, profiles=(PLAIN,))), plan)
            path_of(place, "who").write_text(json.dumps(rendering), "utf-8")
        judge(found, difference, "who", (made[0], made[1]), shown=shown, reason=reason)
    return found


def titles(found: Judgement) -> list[tuple[str, str]]:
    return [(each.title, each.section) for each in found.changed]


def test_a_task_that_is_written_the_same_has_no_verdict(tmp_path: Path) -> None:
    assert judged(tmp_path, (TASK, CODE), (f"# a comment\n{TASK}", CODE)) == Judgement()


@pytest.mark.parametrize("shown", [False, True])
def test_a_text_that_differs_on_the_docs_is_a_change_unless_a_snapshot_shows_it(shown: bool, tmp_path: Path) -> None:
    found = judged(tmp_path, (TASK, ""), (TASK.replace("nA:", "nSo:"), ""), shown=shown)
    assert titles(found) == ([] if shown else [('"Q: Why?\\nA:" → "Q: Why?\\nSo:"', "prompt")])
    assert [each.detail.split("\n")[-2:] for each in found.changed] == (
        [] if shown else [["-| A:⟨end⟩", "+| So:⟨end⟩"]]
    )
    assert (found.unknown, found.same) == ([], {})


def test_the_same_text_on_all_docs_states_how_many_they_are(tmp_path: Path) -> None:
    other = TASK.replace("{{question}}", "{{question|string}}")
    found = judged(tmp_path, (TASK, ""), (other, ""))
    assert (found.changed, found.unknown) == ([], [])
    assert found.same[PLACE].startswith("doc_to_text: the same text for ")
    assert int(found.same[PLACE].split()[-2]) > 4, "with shots and with variants"


def test_a_text_that_only_variants_of_docs_show_is_a_change_on_some_docs(tmp_path: Path) -> None:
    found = judged(tmp_path, (TASK, ""), (TASK.replace("{{question}}", "{{question|trim}}"), ""))
    assert [section for _, section in titles(found)] == ["some docs"]
    assert titles(found)[0][0].startswith("docs with spaces at the ends: ")


@pytest.mark.parametrize(
    ("old", "new", "section"),
    [
        ("doc_to_target: answer", 'doc_to_target: "{{answer}}!"', "target"),
        ("doc_to_target: answer", "doc_to_target: answer\ngeneration_kwargs: {until: [x]}", "generate"),
    ],
)
def test_a_change_is_in_the_section_that_would_show_it(old: str, new: str, section: str, tmp_path: Path) -> None:
    found = judged(tmp_path, (TASK, ""), (TASK.replace(old, new), ""))
    assert section in [section for _, section in titles(found)]


def test_code_that_did_not_run_is_unknown_with_its_place_and_a_step(tmp_path: Path) -> None:
    changed = CODE.replace('if doc["kind"] == "rare":\n', "if len(doc) > 20:\n        x = 1\n")
    found = judged(tmp_path, (CODED, changed), (CODED, changed.replace("x = 1", "x = 2")))
    [unknown] = found.unknown
    assert unknown.reason.startswith("the code of doc_to_text changed, but ")
    assert unknown.reason.endswith(" did not run")
    assert "code.py:3" in unknown.reason
    assert unknown.step == "run promptfmt freeze who.yaml, then compare again"


def test_a_word_of_changed_code_is_put_into_docs(tmp_path: Path) -> None:
    found = judged(tmp_path, (CODED, CODE), (CODED, CODE.replace('"?"', '"!"')))
    assert [section for _, section in titles(found)] == ["some docs"]
    assert "rare" in titles(found)[0][0]


@pytest.mark.parametrize(
    "line", ["print(doc)", "warnings.warn('x')", "logger.info(doc)", "log = logging.getLogger('x')"]
)
def test_code_that_only_reports_is_no_change(line: str, tmp_path: Path) -> None:
    head = "import logging, warnings\nlogger = logging.getLogger(__name__)\n"
    code = head + CODE.replace("def text(doc):\n", f"def text(doc):\n    {line}\n")
    found = judged(tmp_path, (CODED, head + CODE), (CODED, code))
    assert (found.changed, found.unknown) == ([], [])
    assert PLACE in found.same


def test_columns_that_synthetic_docs_do_not_have_are_a_change_of_names(tmp_path: Path) -> None:
    found = judged(tmp_path, (SYNTHETIC, ""), (SYNTHETIC.replace("{{question}}", "{{query}}"), ""))
    assert titles(found) == [
        ("the task now uses other columns (doc_to_text: question → doc_to_text: query)", "columns")
    ]
    assert found.only_names == {PLACE}


@pytest.mark.parametrize(
    ("reason", "step"),
    [
        ("it waits for synthetic docs", "run promptfmt freeze who.yaml, then compare again"),
        ("", "run pytest --promptfmt who.yaml to see the error"),
    ],
)
def test_a_task_that_cannot_be_rendered_is_unknown_with_what_stops_it(reason: str, step: str, tmp_path: Path) -> None:
    broken = CODE.replace("    if doc", "    raise KeyError('gone')\n    if doc")
    found = judged(tmp_path, (CODED, broken), (CODED, broken.replace("gone", "away")), reason=reason)
    [unknown] = found.unknown
    assert unknown.reason.startswith("doc_to_text (code.py:1 text) changed, but the task could not be rendered: ")
    assert (reason or "KeyError") in unknown.reason
    assert unknown.step == step


def test_docs_from_elsewhere_are_named_and_the_same_docs_are_compared(tmp_path: Path) -> None:
    found = judged(tmp_path, (SYNTHETIC, ""), (SYNTHETIC.replace("nowhere/docs", "other/docs"), ""))
    assert found.other_docs == {PLACE: 'dataset_path: "nowhere/docs" → "other/docs"'}
    assert found.changed == []


SCORED = CODED + "process_results: !function code.score\nmetric_list: [{metric: exact_match}]\n"


def test_answers_that_are_scored_otherwise_are_a_change_of_scoring(tmp_path: Path) -> None:
    other = CODE.replace("results[0] ==", "results[0].strip().lower() ==")
    found = judged(tmp_path, (SCORED, CODE), (SCORED, other))
    assert [section for _, section in titles(found)] == ["scoring"]
    assert titles(found)[0][0].startswith("process_results: ")


def test_filters_that_are_written_otherwise_are_a_change_of_scoring(tmp_path: Path) -> None:
    filters = "filter_list: [{name: x, filter: [{function: regex, regex_pattern: '(a)'}, {function: take_first}]}]\n"
    found = judged(tmp_path, (TASK + filters, ""), (TASK + filters.replace("(a)", "(b)"), ""))
    [change] = found.changed
    assert change.section == "scoring"
    assert (change.detail[:2], "\n+ " in change.detail) == ("- ", True)


@pytest.mark.parametrize(
    ("why", "name", "old", "new", "says"),
    [
        ("no rows", "a.json", "{}", "[]", "the file changed, but could not be rendered: no rows"),
        ("", "a.json", "{}", "[1]", "the file changed, but the rendered prompts did not"),
        ("", "a.py", "x = 1", "x = 2", ""),
        ("", "a.json", "{}", "{}", ""),
    ],
)
def test_a_file_of_another_system_is_unknown_where_no_prompt_shows_its_change(
    why: str, name: str, old: str, new: str, says: str, tmp_path: Path
) -> None:
    sides: list[Any] = []
    for folder, text in (("old", old), ("new", new)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text, "utf-8")
        sides.append(tmp_path / folder / name)
    found = Judgement()
    judge_other(found, "t", name, (sides[0], sides[1]), why)
    assert [each.reason for each in found.unknown] == ([says] if says else [])
