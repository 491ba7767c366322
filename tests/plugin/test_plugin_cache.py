"""Outcomes of earlier runs are shown as long as everything they were made of is the same, and never longer."""

from __future__ import annotations

import contextlib
import json
import os
import py_compile
import random
import shutil
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plugin_project import Project

from pytest_promptfmt.engine.processes import CAN_FORK

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CAN_FORK, reason="only outcomes of workers are cached")]

FUNCTION = (
    "from tasks.code.helpers import mark\n\n\ndef text(doc):\n    return f\"Q: {doc['question']}{mark()}\\nA:\"\n"
)
FIXTURES = Path(__file__).parents[2] / "fixtures"
HELM = (FIXTURES / "helm/quiz.json").read_text("utf-8")

HELPER = "def mark():\n    return '?'\n"


@pytest.fixture
def project(cached_project: Project) -> Project:
    return cached_project


@pytest.fixture
def tree(project: Project, kept: Path) -> Project:
    """Return a project with a task of each kind: plain, with an include, by a function, with docs, in a group."""
    project.make_once(kept / "tree", lambda: write_tree(project))
    return project


def write_tree(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\n")
    project.write("conftest.py", "")  # puts the folder on the path of imports
    project.task("tasks/plain/arc.yaml")
    project.write("tasks/shared/_base.yaml", "target_delimiter: ' '\nfewshot_delimiter: \"\\n\\n\"\n")
    project.task("tasks/shared/boolq.yaml", include="_base.yaml")
    project.write("tasks/code/utils.py", FUNCTION)
    project.write("tasks/code/helpers.py", HELPER)
    file = project.task("tasks/code/cola.yaml", doc_to_text=None)
    file.write_text(file.read_text("utf-8") + "doc_to_text: !function utils.text\n", "utf-8")
    project.task("tasks/docs/wic.yaml")
    project.write("tasks/docs/wic.docs.jsonl", '{"question": "why", "answer": "so"}\n')
    project.write("tasks/group.yaml", "group: all\ntask: [arc, wic]\n")
    project.accept("tasks")


def result(project: Project, *options: str) -> dict[str, Any]:
    """Return what a run found, as JSON."""
    return project.found("tasks", *options)


def unchanged(project: Project) -> int:
    return project.run("tasks").parseoutcomes().get("unchanged", 0)


def warm(project: Project) -> None:
    """Run until all outcomes that can be cached are."""
    settle(project)
    project.run("tasks")


def settle(project: Project) -> None:
    """Make the files look older than the run."""
    project.settle()


def test_files_that_are_the_same_are_shown_as_one_number(tree: Project) -> None:
    tree.run("tasks")
    again = tree.run("tasks")
    assert again.ret == pytest.ExitCode.OK
    assert again.parseoutcomes() == {"unchanged": 17}
    again.stdout.fnmatch_lines(["12 snapshots passed."])


def test_they_are_shown_one_by_one_if_an_option_needs_it(tree: Project) -> None:
    tree.run("tasks")
    for options in (["-v"], ["-k", "arc or boolq"], ["tasks/plain/arc.yaml::arc"], ["--lf"]):
        found = tree.run(*(options if "::" in options[0] else ["tasks", *options])).parseoutcomes()
        assert found["passed"] > 0
        assert "unchanged" not in found
    listed = tree.run("tasks", "--collect-only", "-q").stdout.str()
    assert "tasks/plain/arc.yaml::arc::snapshot[plain]" in listed


EDITS: dict[str, Callable[[Project], object]] = {
    "a task": lambda p: p.edit("tasks/plain/arc.yaml", "A:", "B:"),
    "an include": lambda p: p.edit("tasks/shared/_base.yaml", "' '", "'  '"),
    "a function": lambda p: p.edit("tasks/code/utils.py", "Q:", "Question:"),
    "a module that it imports": lambda p: p.edit("tasks/code/helpers.py", "'?'", "'!'"),
    "docs": lambda p: p.edit("tasks/docs/wic.docs.jsonl", "why", "when"),
    "docs that vanish": lambda p: (p.root / "tasks/docs/wic.docs.jsonl").unlink(),
    "docs that appear": lambda p: p.write("tasks/plain/arc.docs.jsonl", '{"question": "x", "answer": "y"}\n'),
    "a snapshot": lambda p: edit_snapshot(p),
    "a snapshot that vanishes": lambda p: next(p.root.rglob("arc/plain.txt")).unlink(),
    "settings": lambda p: p.write("tasks/promptfmt.yaml", "docs: 1\n"),
    "settings that make no sense": lambda p: p.write("tasks/docs/promptfmt.yaml", "docs: [<\n"),
    "settings of the run": lambda p: p.write("pytest.ini", "[pytest]\npromptfmt_docs = 1\n"),
    "rules": lambda p: p.write("promptfmt.yaml", "ignore: [PF]\n"),
    "a second file of the same name": lambda p: p.task("tasks/plain/arc2.yaml", task="arc"),
    "a task of another system before it": lambda p: p.write("tasks/code/boolq.json", HELM),
    "a member of a group": lambda p: rename_task(p),
    "a name in another folder": lambda p: p.task("tasks/new/cola.yaml", task="arc"),
    "a snapshot without a task": lambda p: p.write("tasks/docs/__prompts__/gone/gone/plain.txt", old(p)),
    "a snapshot of no profile": lambda p: p.write("tasks/docs/__prompts__/wic/wic/gone.txt", old(p)),
    "a folder that vanishes": lambda p: shutil.rmtree(p.root / "tasks/shared"),
    "a file that becomes a task": lambda p: p.edit("tasks/shared/_base.yaml", "target", "task: b\ntarget"),
    "a test module": lambda p: p.write("tasks/docs/test_docs.py", "def test_docs():\n    assert 0\n"),
    "a conftest": lambda p: p.write("tasks/docs/conftest.py", "collect_ignore = ['wic.yaml']\n"),
    "a link to nothing": lambda p: (p.root / "tasks/docs/link.yaml").symlink_to("nowhere.yaml"),
    "a link to itself": lambda p: (p.root / "tasks/docs/link.bin").symlink_to("link.bin"),
}


def old(project: Project) -> str:
    return next(project.root.rglob("arc/plain.txt")).read_text("utf-8")


def edit_snapshot(project: Project) -> None:
    path = next(project.root.rglob("boolq/plain.txt"))
    path.write_text(path.read_text("utf-8").replace("Q", "q", 1), "utf-8")


def rename_task(project: Project) -> None:
    path = project.root / "tasks/docs/wic.yaml"
    path.write_text(path.read_text("utf-8").replace('"wic"', '"wic2"'), "utf-8")


@pytest.mark.parametrize("name", EDITS)
def test_after_an_edit_a_run_finds_what_a_fresh_one_finds(tree: Project, name: str) -> None:
    warm(tree)
    assert unchanged(tree) == 17
    EDITS[name](tree)
    first, fresh = result(tree), result(tree, "--promptfmt-no-cache")
    assert first == fresh == result(tree)


@pytest.mark.parametrize(
    "edit",
    [
        lambda p: p.edit("tasks/helm/quiz.json", "Answer: ", "A: "),
        lambda p: p.edit("tasks/helm/quiz.json", "Which ocean", "What ocean"),
        lambda p: next(p.root.rglob("quiz/plain.txt")).unlink(),
        lambda p: p.write("tasks/helm/promptfmt.yaml", "docs: 1\n"),
        lambda p: p.task("tasks/docs/quiz.yaml"),
        lambda p: p.task("tasks/zoo/quiz.yaml"),
        lambda p: p.write("tasks/helm/quiz.recording.jsonl", '{"doc": 0, "completion": "so", "correct": false}\n'),
    ],
    ids=["the adapter", "an instance", "a snapshot", "settings", "a task before it", "a task after it", "a recording"],
)
def test_a_file_of_helm_is_cached(tree: Project, edit: Callable[[Project], object]) -> None:
    tree.write("tasks/helm/quiz.json", HELM)
    tree.accept("tasks")
    warm(tree)
    assert unchanged(tree) == 23
    before = result(tree)
    edit(tree)
    after = result(tree)
    assert after != before
    assert after == result(tree, "--promptfmt-no-cache")


def test_the_metrics_of_a_run_of_helm_are_read_beside_its_request_states(tree: Project) -> None:
    tree.write("tasks/run/scenario_state.json", (FIXTURES / "helm/oceans/scenario_state.json").read_text("utf-8"))
    metrics = [{"class_name": "helm.Basic", "args": {"names": ["quasi_exact_match"]}}]
    tree.write("tasks/run/run_spec.json", json.dumps({"adapter_spec": {}, "metric_specs": metrics}))
    tree.accept("tasks")
    warm(tree)
    assert result(tree)["exit"] == 0
    tree.edit("tasks/run/run_spec.json", "quasi_exact_match", "f1_score")
    assert result(tree)["exit"] == 1
    assert result(tree) == result(tree, "--promptfmt-no-cache")


def test_a_note_about_a_file_is_shown_in_each_run(tree: Project) -> None:
    tree.write("pytest.ini", "[pytest]\npromptfmt_lint = false\n")
    file = tree.root / "tasks/docs/wic.yaml"
    file.write_text(file.read_text("utf-8") + "description: Who?\ndescription: Why?\n", "utf-8")
    tree.accept("tasks")
    for _ in range(3):
        found = tree.run("tasks")
        found.stdout.fnmatch_lines(["*'description' is written twice; only the later value counts"])
    assert found.parseoutcomes() == {"passed": 3, "unchanged": 9, "warnings": 1}


def test_a_task_without_snapshot_is_run_until_it_has_one(tree: Project) -> None:
    for path in (tree.root / "tasks/docs/__prompts__").rglob("*.txt"):
        path.unlink()
    warm(tree)
    assert unchanged(tree) == 13
    tree.edit("tasks/plain/arc.yaml", '"arc"', '"arc2"')
    assert result(tree) == result(tree, "--promptfmt-no-cache")


FIELDS = "metadata: {promptfmt: {fields: {question: q, choices: c, answer: a}, docs: [{q: x, c: [a, b], a: 0}]}}\n"


def add_format(project: Project) -> None:
    file = project.task("tasks/styled/sciq.yaml", doc_to_text=None, doc_to_target=None, formats="own")
    file.write_text(file.read_text("utf-8") + FIELDS, "utf-8")
    project.write("tasks/styled/formats/own.yaml", "type: base\n")
    project.write("tasks/styled/formats/base.yaml", 'type: mcqa\nlabel_suffix: ") "\n')
    project.accept("tasks")


@pytest.mark.parametrize(
    "edit",
    [
        lambda p: p.edit("tasks/styled/formats/base.yaml", ")", "]"),
        lambda p: p.write("tasks/styled/formats/mcqa.yaml", "question_prefix: 'W: '\n"),
        lambda p: (p.root / "tasks/styled/formats/own.yaml").unlink(),
    ],
    ids=["changed", "added", "gone"],
)
def test_a_format_beside_the_tasks_is_an_input(tree: Project, edit: Callable[[Project], object]) -> None:
    add_format(tree)
    warm(tree)
    assert unchanged(tree) == 21
    edit(tree)
    assert result(tree)["exit"] == 1
    assert result(tree) == result(tree, "--promptfmt-no-cache")


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("tasks/docs/wic.docs.jsonl", "why", "when"),
        ("tasks/shared/_base.yaml", "' '", "'  '"),
        ("tasks/plain/arc.yaml", "Q: ", "W: "),
        ("tasks/styled/formats/base.yaml", ")", "]"),
        ("tasks/code/helpers.py", "?", "!"),
        ("tasks/docs/wic.yaml", "A:", "A:"),
    ],
)
def test_where_a_link_leads_is_an_input(tree: Project, file: str, old: str, new: str) -> None:
    add_format(tree)
    path = tree.root / file
    first, second = (path.with_name(f"other_{number}{path.suffix}.txt") for number in (1, 2))
    path.rename(first)
    second.write_text(first.read_text("utf-8").replace(old, new), "utf-8")
    path.symlink_to(first)
    tree.accept("tasks")
    warm(tree)
    path.unlink()
    path.symlink_to(second)
    assert result(tree) == result(tree, "--promptfmt-no-cache")
    assert result(tree) == result(tree, "--promptfmt-no-cache")


OPTIONAL = "try:\n    from common.marks import mark\nexcept ImportError:\n    mark = '?'.strip\n"
RULE = """
from pathlib import Path

from pytest_promptfmt.rules import Family, Finding, rule

WORDS = (Path(__file__).parent / "words.txt").read_text("utf-8").split()

@rule("XX101", "word", family=Family.PROMPT)
def word(task):
    if any(each in task.config["doc_to_text"] for each in WORDS):
        yield Finding(message="a word of the list")
"""
CONFTEST = """
import os
from pytest_promptfmt import Format, register_format

def prefix():
    with open(os.path.join(os.path.dirname(__file__), "prefix.txt")) as file:
        return file.read()

register_format(Format(name="own", summary="Own.", question_prefix=prefix()))
"""


STYLED = "task: styled\ndataset_path: mydata\ntest_split: test\noutput_type: generate_until\n"
TEXTS = 'doc_to_text: "Q: {{question}}"\ndoc_to_target: answer\n'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"tasks/a/new.yaml": STYLED + TEXTS}, {"mydata/test.jsonl": '{"question": "x", "answer": "y"}\n'}),
        ({"tasks/code/helpers.py": OPTIONAL, "common/other.py": ""}, {"common/marks.py": "mark = '!'.strip\n"}),
        (
            {"tasks/code/helpers.py": OPTIONAL, "common/marks.py": "mark = '?'.strip\n"},
            {"common/marks/__init__.py": "mark = '!'.strip\n"},
        ),
        ({"promptfmt.yaml": "rules: [rules.py]\n", "rules.py": RULE, "words.txt": "banned"}, {"words.txt": "Q:"}),
        (
            {"tasks/b/new.yaml": STYLED + "formats: own\n" + FIELDS, "conftest.py": CONFTEST, "prefix.txt": "A "},
            {"prefix.txt": "B "},
        ),
    ],
    ids=["folder of docs", "module", "package", "file of a rule", "file of a conftest"],
)
def test_what_appears_elsewhere_or_is_read_early_is_an_input(
    tree: Project, before: dict[str, str], after: dict[str, str]
) -> None:
    for name, text in before.items():
        tree.write(name, text)
    tree.accept("tasks")
    warm(tree)
    tree.run("tasks")
    found = result(tree)
    for name, text in after.items():
        tree.write(name, text)
    assert result(tree) == result(tree, "--promptfmt-no-cache") != found


def test_a_snapshot_under_another_name_is_looked_for_again(tree: Project) -> None:
    folder = next(tree.root.rglob("boolq/plain.txt")).parent
    folder.rename(folder.with_name("boolq2"))
    warm(tree)
    tree.run("tasks")
    assert result(tree)["counts"]["renamed"] > 0
    (tree.root / "tasks/plain/arc.yaml").unlink()  # whose snapshot shows the same docs, and has no task any more
    found = result(tree)
    assert "renamed" not in found["counts"]
    assert found == result(tree, "--promptfmt-no-cache")


def test_a_snapshot_that_comes_back_is_compared(tree: Project) -> None:
    warm(tree)
    path = next(tree.root.rglob("wic/plain.txt"))
    content = path.read_bytes()
    path.unlink()
    assert result(tree)["counts"]["new"] == 1
    path.write_bytes(content)
    assert "new" not in result(tree)["counts"]


@pytest.mark.parametrize(
    "asked",
    [
        ("tasks", "-k", "lint"),
        ("tasks", "-m", "promptfmt_lint"),
        ("tasks/docs/wic.yaml::wic::lint",),
        ("tasks", "--deselect=tasks/docs/wic.yaml::wic::snapshot[plain]"),
    ],
    ids=" ".join,
)
def test_a_run_of_some_items_of_a_file_does_not_speak_for_the_others(tree: Project, asked: tuple[str, ...]) -> None:
    warm(tree)
    tree.edit("tasks/docs/wic.yaml", "A:", "B:")
    tree.run(*asked)
    assert result(tree) == result(tree, "--promptfmt-no-cache")
    assert result(tree)["counts"]["changed"] > 0


def test_an_unchanged_folder_is_not_entered(tree: Project) -> None:
    for name in ("rte", "sst", "xnli"):
        tree.task(f"tasks/plain/below/{name}.yaml")
    tree.accept("tasks")
    warm(tree)
    tree.run("tasks")
    first = tree.run("tasks")
    assert first.parseoutcomes() == {"unchanged": 29}
    first.stdout.fnmatch_lines(["collected 6 items", "21 snapshots passed."])
    os.utime(tree.root / "tasks/plain/below/rte.yaml")
    again = tree.run("tasks")
    assert again.parseoutcomes() == {"unchanged": 29}
    again.stdout.fnmatch_lines(["collected 8 items", "21 snapshots passed."])
    for options in ([], ["--promptfmt-profile=plain"], [], ["-o", "promptfmt_docs=1"], []):
        assert result(tree, *options) == result(tree, *options, "--promptfmt-no-cache")
    assert result(tree) == result(tree, "--promptfmt-no-cache")


ASKING = """
import os

def text(doc):
    return f"{doc['question']} {os.getenv('WORDING', 'A')}"

if __name__ == "__main__":
    import time
    print(time.time())
"""


def test_a_file_that_is_run_each_time_lets_its_folder_be_passed_over(tree: Project) -> None:
    tree.write("tasks/docs/clock.py", "import time\n\n\ndef text(doc):\n    return str(time.time() > 0)\n")
    tree.task("tasks/docs/late.yaml", doc_to_text=None)
    tree.edit("tasks/docs/late.yaml", "output_type", "doc_to_text: !function clock.text\noutput_type")
    tree.accept("tasks")
    warm(tree)
    listed = tree.run("tasks")
    assert listed.parseoutcomes()["unchanged"] == 17
    (folder,) = {row for row in folders_kept(tree) if row.endswith("tasks/docs")}
    assert dict(folders_kept(tree)[folder]) == {"late.yaml": None, "wic.yaml": ""}
    tree.edit("tasks/docs/clock.py", "time.time() > 0", "'now'")
    tree.edit("tasks/docs/clock.py", "import time\n", "")
    assert result(tree) == result(tree, "--promptfmt-no-cache")
    tree.accept("tasks")
    settle(tree)
    tree.run("tasks")  # now it can be kept
    tree.run("tasks")
    assert dict(folders_kept(tree)[folder]) == {"late.yaml": "", "wic.yaml": ""}


def test_docs_that_appear_are_those_of_a_group_that_changes_a_task_of_another_file(tree: Project) -> None:
    tree.edit("tasks/group.yaml", "[arc, wic]", "[arc, {task: boolq, num_fewshot: 1}]")
    tree.accept("tasks")
    warm(tree)
    tree.write("nowhere/docs/test.jsonl", '{"question": "why", "answer": "so"}\n')
    found = result(tree)
    assert "all.boolq" in [member["task"] for each in found["clusters"] for member in each["members"]]
    assert found == result(tree, "--promptfmt-no-cache")


def test_findings_name_tasks_in_one_order_whichever_are_run_again(tree: Project) -> None:
    tree.write("tasks/order/clock.py", "import time\n\n\ndef text(doc):\n    return str(time.time() > 0)\n")
    for name in ("early", "middle", "west"):
        tree.task(f"tasks/order/{name}.yaml", num_fewshot=1)
    tree.edit("tasks/order/middle.yaml", '"Q: {{question}}\\nA:"', "!function clock.text")
    tree.accept("tasks")
    warm(tree)
    found = result(tree)
    assert ["early", "middle", "west"] in [each["tasks"] for each in found["findings"]]
    assert found == result(tree, "--promptfmt-no-cache")


def test_a_file_that_is_edited_meets_the_names_of_folders_that_are_passed_over(tree: Project) -> None:
    tree.write("pytest.ini", "[pytest]\naddopts = -o promptfmt_lint=true\n")
    tree.task("tasks/zoo/cola.yaml", task="boolq@mcqa")
    warm(tree)
    tree.edit("tasks/zoo/cola.yaml", '"boolq@mcqa"', '"boolq"')
    found = result(tree)
    assert found == result(tree, "--promptfmt-no-cache")
    assert "already used by a task" in json.dumps(found)
    warm(tree)
    tree.edit("tasks/zoo/cola.yaml", "Q:", "Question:")  # the names are what they were
    assert "already used by a task" in json.dumps(result(tree))
    assert result(tree) == result(tree, "--promptfmt-no-cache")


@pytest.mark.parametrize(("file", "task", "again"), [("wic.yml", "wic", "wic.yml"), ("WIC.yaml", "Wic", "wic.yaml")])
def test_two_files_that_claim_one_snapshot_are_reported_each_time(
    tree: Project, file: str, task: str, again: str
) -> None:
    tree.write("tasks/docs/clock.py", "import time\n\n\ndef text(doc):\n    return str(time.time() > 0)\n")
    tree.task(f"tasks/docs/{file}", task)
    tree.edit(f"tasks/docs/{again}", '"Q: {{question}}\\nA:"', "!function clock.text")
    warm(tree)
    assert result(tree) == result(tree, "--promptfmt-no-cache")
    assert result(tree) == result(tree, "--promptfmt-no-cache")


def test_an_exception_of_another_plugins_hook_is_cached_with_its_traceback(tree: Project) -> None:
    hook = "def pytest_runtest_call(item):\n    if 'boolq' in item.nodeid:\n        raise ValueError('odd')\n"
    tree.write("conftest.py", hook)
    settle(tree)
    for _ in range(3):
        found = tree.run("tasks")
        assert found.ret == pytest.ExitCode.TESTS_FAILED
        found.stdout.fnmatch_lines(["*raise ValueError('odd')*"])
    assert found.parseoutcomes() == {"failed": 4, "unchanged": 13}


@pytest.mark.parametrize("name", ["wic", "sub/rte"])
def test_a_conftest_of_a_folder_is_an_input_of_all_tasks_below(tree: Project, name: str) -> None:
    tree.task("tasks/docs/sub/rte.yaml")
    hook = "def pytest_runtest_call(item):\n    if '{}' in item.nodeid:\n        raise ValueError('odd')\n"
    tree.write("tasks/docs/conftest.py", hook.format("nothing"))
    tree.accept("tasks")
    warm(tree)
    tree.run("tasks")
    found = result(tree)
    tree.write("tasks/docs/conftest.py", hook.format(name))
    assert result(tree) == result(tree, "--promptfmt-no-cache") != found


def test_an_include_of_a_file_without_a_task_may_name_one(tree: Project) -> None:
    tree.write("pytest.ini", "[pytest]\naddopts = -o promptfmt_lint=true\n")
    tree.write("tasks/shared/more.yaml", "include: _more\noutput_type: generate_until\ndoc_to_text: '{{question}}'\n")
    tree.write("tasks/shared/_more", "doc_to_target: answer\n")
    warm(tree)
    tree.edit("tasks/shared/_more", "doc_to_target", "task: arc\ndoc_to_target")
    found = result(tree)
    assert found == result(tree, "--promptfmt-no-cache")
    assert "already used by a task" in json.dumps(found)


def test_a_profile_that_is_gone_elsewhere_makes_snapshots_obsolete_in_each_run(tree: Project) -> None:
    tree.write("tasks/plain/promptfmt.yaml", "profiles: {own: {mode: generate}}\n")
    shutil.copyfile(next(tree.root.rglob("wic/plain.txt")), next(tree.root.rglob("wic/plain.txt")).with_name("own.txt"))
    warm(tree)
    assert "unused" not in tree.run("tasks").stdout.str()
    tree.edit("tasks/plain/promptfmt.yaml", "own:", "other:")
    assert "1 snapshot unused" in tree.run("tasks").stdout.str()


def test_snapshots_that_were_left_in_their_old_place_are_obsolete_in_each_run(tree: Project) -> None:
    tree.write("pytest.ini", "[pytest]\npromptfmt_snapshot_dir = kept\n")
    tree.accept("tasks")
    warm(tree)
    assert "12 snapshots unused" in tree.run("tasks").stdout.str()


def test_what_a_link_to_nothing_leads_to_is_an_input_once_it_is_there(tree: Project) -> None:
    (tree.root / "tasks/docs/wic.docs.jsonl").unlink()
    (tree.root / "tasks/docs/wic.docs.jsonl").symlink_to("../../rows.jsonl")
    warm(tree)
    tree.run("tasks")
    found = result(tree)
    tree.write("rows.jsonl", '{"question": "when", "answer": "now"}\n')
    assert result(tree) == result(tree, "--promptfmt-no-cache") != found


def folders_kept(project: Project) -> dict[str, list[tuple[str, str | None]]]:
    """Return the folders that are kept, with the state of each file."""
    with contextlib.closing(sqlite3.connect(project.store)) as connection:
        rows = connection.execute("SELECT path, content FROM rows WHERE kind LIKE 'folders %'").fetchall()
    return {path: json.loads(content)["children"] for path, content in rows}


def test_a_variable_that_code_asks_for_by_its_name_is_an_input(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORDING", "A")
    project.task("tasks/a.yaml")
    project.write("conftest.py", "")
    project.write("tasks/words/utils.py", ASKING)
    file = project.task("tasks/words/arc.yaml", doc_to_text=None)
    file.write_text(file.read_text("utf-8") + "doc_to_text: !function utils.text\n", "utf-8")
    project.accept("tasks")
    warm(project)
    monkeypatch.setenv("OTHER", "1")
    assert unchanged(project) == 6
    monkeypatch.setenv("WORDING", "B")
    assert project.run("tasks", "-v").ret == pytest.ExitCode.TESTS_FAILED  # which goes into each folder
    monkeypatch.setenv("WORDING", "A")
    assert result(project)["counts"] == {"passed": 6}
    monkeypatch.setenv("WORDING", "B")
    assert result(project)["counts"] == {"changed": 2, "passed": 4}
    monkeypatch.setenv("WORDING", "A")
    assert result(project)["counts"] == {"passed": 6}


VARIABLES_OF_ALL = {"HF_HOME": "/nowhere", "HF_MODULES_CACHE": "/nowhere", "PROMPTFMT_TEST": "1"}


@pytest.mark.parametrize("name", VARIABLES_OF_ALL)
def test_variables_that_change_what_tasks_find_are_inputs_of_all(
    project: Project, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for task in ("a", "b"):
        project.task(f"tasks/{task}.yaml")
    project.write("conftest.py", "")
    project.accept("tasks")
    warm(project)
    assert unchanged(project) == 6
    monkeypatch.setenv(name, VARIABLES_OF_ALL[name])
    assert unchanged(project) == 0
    monkeypatch.delenv(name)
    assert unchanged(project) == 6


def test_a_module_elsewhere_on_the_path_of_imports_is_an_input(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a/helpers.py", HELPER)
    project.write("b/helpers.py", HELPER.replace("?", "!"))
    project.write("tasks/utils.py", FUNCTION.replace("tasks.code.helpers", "helpers"))
    for task in ("a", "b"):
        file = project.task(f"tasks/{task}.yaml", doc_to_text=None)
        file.write_text(file.read_text("utf-8") + "doc_to_text: !function utils.text\n", "utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(project.root / folder) for folder in (".", "a", "b")))
    project.accept("tasks")
    warm(project)
    assert unchanged(project) == 6
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(project.root / folder) for folder in (".", "b", "a")))
    assert project.run("tasks").ret == pytest.ExitCode.TESTS_FAILED


def test_the_time_zone_is_an_input_of_code_that_uses_it(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write(
        "tasks/utils.py",
        'import datetime\n\n\ndef text(doc):\n    return f"Q: {datetime.datetime.fromtimestamp(0).hour}\\nA:"\n',
    )
    project.task("tasks/a.yaml")
    file = project.task("tasks/b.yaml", doc_to_text=None)
    file.write_text(file.read_text("utf-8") + "doc_to_text: !function utils.text\n", "utf-8")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    project.accept("tasks")
    warm(project)
    assert unchanged(project) == 6
    monkeypatch.setenv("TZ", "America/Lima")
    assert project.run("tasks").ret == pytest.ExitCode.TESTS_FAILED


LOADING = """
from pathlib import Path

def from_pretrained():
    return (Path(__file__).parent / "tok.json").read_text()

TOKENIZER = from_pretrained()

def text(doc):
    return f"{doc['question']} {len(TOKENIZER)}"
"""


def test_what_a_module_may_have_loaded_is_known_of_no_task_that_uses_it(project: Project) -> None:
    project.task("tasks/a.yaml")
    project.write("tasks/tok.json", "{}")
    project.write("tasks/utils.py", LOADING)
    for task in ("arc", "boolq", "cola"):
        file = project.task(f"tasks/{task}.yaml", doc_to_text=None)
        file.write_text(file.read_text("utf-8") + "doc_to_text: !function utils.text\n", "utf-8")
    project.accept("tasks")
    settle(project)
    # One worker imports the module once, for the first of them. Without a new folder beside the tasks in each run.
    first, again = (project.run("tasks", "--promptfmt-workers=1") for _ in range(2))
    assert first.parseoutcomes() == again.parseoutcomes() == {"passed": 9, "unchanged": 3}, "only a.yaml uses no code"
    assert len(first.outlines) == len(again.outlines)


def test_a_variable_that_a_rule_asks_for_is_an_input_of_all(tree: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = """
import os
from pytest_promptfmt.rules import Family, Finding, Severity, rule

@rule("XX101", "wording", severity=Severity.WARNING, family=Family.PROMPT)
def wording(task):
    yield Finding(message=os.environ.get("WORDING", "none"))
"""
    tree.write("rules.py", rule)
    tree.write("promptfmt.yaml", "rules: [rules.py]\n")
    monkeypatch.setenv("WORDING", "first")
    warm(tree)
    assert unchanged(tree) > 0
    monkeypatch.setenv("WORDING", "second")
    assert result(tree) == result(tree, "--promptfmt-no-cache")


@pytest.mark.parametrize("body", ["eval('__import__(\"time\").time()')", "uuid.uuid4()", "os.environ.copy()['HOME']"])
def test_code_that_may_ask_for_something_else_is_run_each_time(project: Project, body: str) -> None:
    project.task("tasks/a.yaml")
    project.write("tasks/utils.py", f"import os, uuid\n\ndef text(doc):\n    return str({body})[:1] and 'Q'\n")
    file = project.task("tasks/arc.yaml", doc_to_text=None)
    file.write_text(file.read_text("utf-8") + "doc_to_text: !function utils.text\n", "utf-8")
    project.accept("tasks")
    warm(project)
    assert unchanged(project) == 3


def test_the_number_of_processors_is_an_input(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write("conftest.py", "")
    project.write("tasks/utils.py", "import os\n\ndef text(doc):\n    return f'{os.cpu_count() == 1000} Q'\n")
    file = project.task("tasks/zoo.yaml", doc_to_text=None)
    file.write_text(file.read_text("utf-8") + "doc_to_text: !function utils.text\n", "utf-8")
    project.task("tasks/first.yaml")
    project.accept("tasks")
    warm(project)
    assert unchanged(project) == 6
    project.write("conftest.py", "import os\nos.cpu_count = lambda: 1000\n")
    settle(project)
    assert result(project) == result(project, "--promptfmt-no-cache")


def test_code_of_tasks_finds_no_network_and_is_cached(project: Project) -> None:
    code = """
from urllib.request import urlopen

def text(doc):
    try:
        return urlopen("http://203.0.113.1/", timeout=30).read().decode()
    except OSError as error:
        return f"Q: {error}"
"""
    project.task("tasks/a.yaml")
    project.write("tasks/utils.py", code)
    file = project.task("tasks/arc.yaml", doc_to_text=None)
    file.write_text(file.read_text("utf-8") + "doc_to_text: !function utils.text\n", "utf-8")
    project.accept("tasks")
    assert "uses no network by default" in next(project.root.rglob("arc/plain.txt")).read_text("utf-8")
    warm(project)
    assert unchanged(project) == 6


def test_many_edits_one_after_the_other_are_never_stale() -> None:
    script = Path(__file__).parents[2] / "benchmarks/stale_outcomes.py"
    done = subprocess.run([sys.executable, str(script), "--edits=12", "--seed=7"], capture_output=True, text=True)
    assert "12 edits" in done.stdout, done.stdout + done.stderr
    assert "; 0 stale outcomes" in done.stdout, done.stdout


def test_an_edit_that_keeps_size_and_time_is_seen(tree: Project) -> None:
    warm(tree)
    path = tree.root / "tasks/plain/arc.yaml"
    before = path.stat()
    tree.edit("tasks/plain/arc.yaml", "A:", "B:")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert result(tree)["exit"] == 1


@pytest.mark.parametrize(("name", "old", "new"), [("utils", "Q: ", "R: "), ("helpers", "'?'", "'!'")])
def test_compiled_code_of_an_earlier_text_never_runs(tree: Project, name: str, old: str, new: str) -> None:
    file = f"tasks/code/{name}.py"
    before = (tree.root / file).stat()
    py_compile.compile(str(tree.root / file))
    tree.edit(file, old, new)
    os.utime(tree.root / file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "failed" in tree.run("tasks").parseoutcomes()


def test_code_that_asks_for_files_or_the_clock_is_run_each_time(project: Project) -> None:
    project.task("tasks/a.yaml")
    project.write(
        "tasks/utils.py", "import time\n\ndef text(doc):\n    return f\"{doc['question']} {int(time.time())//10**9}\"\n"
    )
    file = project.task("tasks/arc.yaml", doc_to_text=None)
    file.write_text(file.read_text("utf-8") + "doc_to_text: !function utils.text\n", "utf-8")
    project.task("tasks/z.yaml")
    project.accept("tasks")
    warm(project)
    assert unchanged(project) == 6


READING = """
from functools import lru_cache
from pathlib import Path

TITLES = (Path(__file__).resolve().parent / "titles.txt").read_text()


@lru_cache
def ending():
    with open(Path(__file__).parent / "ending.txt") as file:
        return file.read()


def text(doc):
    return f"{TITLES}{doc['question']}{ending()}"
"""


@pytest.mark.parametrize("name", ["titles.txt", "ending.txt"])
def test_a_file_that_a_module_opened_once_counts_for_all_tasks_that_use_it(project: Project, name: str) -> None:
    project.write("tasks/utils.py", READING)
    project.write("tasks/titles.txt", "Q: ")
    project.write("tasks/ending.txt", "?")
    for task in ("arc", "boolq", "cola"):
        file = project.task(f"tasks/{task}.yaml", doc_to_text=None)
        file.write_text(file.read_text("utf-8") + "doc_to_text: !function utils.text\n", "utf-8")
    project.accept("tasks")
    warm(project)
    assert unchanged(project) == 9
    project.write(f"tasks/{name}", "!")
    found = result(project)
    assert found["counts"] == {"changed": 6, "passed": 3}
    assert found == result(project, "--promptfmt-no-cache")


def test_rules_that_ask_for_the_clock_are_run_each_time(tree: Project) -> None:
    rule = """
import time
from pytest_promptfmt.rules import Family, Finding, Severity, rule

@rule("XX101", "clock", severity=Severity.WARNING, family=Family.PROMPT)
def clock(task):
    if time.time() > 0:
        yield Finding(message=open("said.txt").read())
"""
    tree.write("rules.py", rule)
    tree.write("said.txt", "first")
    tree.write("promptfmt.yaml", "rules: [rules.py]\n")
    warm(tree)
    assert unchanged(tree) == 0
    tree.write("said.txt", "second")
    assert result(tree) == result(tree, "--promptfmt-no-cache")


def test_failures_and_skips_are_cached_with_their_texts(tree: Project) -> None:
    tree.edit("tasks/plain/arc.yaml", "A:", "B:")
    first = tree.run("tasks").stdout.str()
    again = tree.run("tasks").stdout.str()
    for text in (first, again):
        assert "arc [plain]: 2 of 2 docs changed" in text
        assert "accept: pytest --promptfmt" in text


@pytest.fixture(params=["with plugins that take reports", "without"])
def neighbours(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tree: Project) -> Project:
    """Return the tree, where pytest runs with all installed plugins or with ours and syrupy alone."""
    if request.param == "without":
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        monkeypatch.setenv("PYTEST_ADDOPTS", "-p syrupy -p pytest_promptfmt.plugin")
    return tree


def test_a_file_that_failed_is_shown_again_and_not_run(neighbours: Project) -> None:
    tree = neighbours
    tree.edit("tasks/shared/boolq.yaml", "A:", "B:")
    tree.edit("tasks/code/utils.py", "A:", "B:")
    tree.task("tasks/twins/one.yaml", doc_to_choice=["a"], output_type="multiple_choice", doc_to_target=7)
    tree.task("tasks/twins/two.yaml", doc_to_choice=["a"], output_type="multiple_choice", doc_to_target=7)
    warm(tree)
    fresh = tree.run("tasks", "--promptfmt-no-cache", "-rA")
    again = tree.run("tasks", "-rA")
    counts, known = fresh.parseoutcomes(), again.parseoutcomes()
    assert known.pop("unchanged") > 0
    assert known["failed"] == counts["failed"] > 4
    assert tree.run("tasks").stdout.str().count("[100%]") == 1, "pytest's percentage counts what is shown again"
    for start in ("FAILED", "SKIPPED", "ERROR"):
        found = [[line for line in each.outlines if line.startswith(start)] for each in (fresh, again)]
        assert found[0] == found[1]
    assert summary_of(fresh) == summary_of(again)
    assert result(tree) == result(tree, "--promptfmt-no-cache")
    ran = tree.run("tasks", "-vv", "--durations=0").parseoutcomes()
    assert ran["failed"] == counts["failed"]
    assert "unchanged" not in ran


def test_it_is_shown_again_beside_hooks_with_a_part_in_each_phase(neighbours: Project) -> None:
    tree = neighbours
    tree.write("conftest.py", "def pytest_runtest_setup(item):\n    pass\n")
    tree.edit("tasks/shared/boolq.yaml", "A:", "B:")
    warm(tree)
    fresh, again = tree.run("tasks", "--promptfmt-no-cache"), tree.run("tasks")
    assert again.parseoutcomes()["unchanged"] > 0
    assert again.parseoutcomes()["failed"] == fresh.parseoutcomes()["failed"] > 1
    assert summary_of(fresh) == summary_of(again)


def summary_of(run: pytest.RunResult) -> list[str]:
    """Return what is said after the failures, without what holds for the one run."""
    lines = run.outlines
    start = next(number for number, line in enumerate(lines) if "= prompt formats =" in line)
    end = next(number for number, line in enumerate(lines) if "= short test summary info =" in line)
    return [line for line in lines[start:end] if "--promptfmt-no-cache" not in line and "accept all" not in line]


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0" + b"x" * 5000])
def test_a_store_that_is_damaged_is_as_good_as_none(tree: Project, content: bytes) -> None:
    warm(tree)
    store = tree.store
    store.write_bytes(content)
    assert tree.run("tasks").ret == pytest.ExitCode.OK
    assert unchanged(tree) == 17


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_a_store_with_nonsense_in_it_is_parsed_and_never_believed(tree: Project, seed: int) -> None:
    tree.edit("tasks/shared/boolq.yaml", "A:", "B:")  # whose failures would be shown again
    warm(tree)
    store = tree.store
    connection = sqlite3.connect(store)
    rows = connection.execute("SELECT kind, path, content FROM rows").fetchall()
    chance = random.Random(seed)
    for kind, path, content in rows:
        is_packed = isinstance(content, bytes)
        value = json.loads(zlib.decompress(content) if is_packed else content)
        if not value:
            continue
        if isinstance(value, int):  # of a context: when it was used
            value = [value]
        keys = sorted(value) if isinstance(value, dict) else range(len(value))
        part, key = value, chance.choice(keys)
        if kind.startswith("items ") and chance.random() < 0.5:  # as deep as a report
            part = value[key]["reports"][0]
            key = chance.choice(sorted(part))
        nonsense = [5, [1], {"x": []}, "y", [[1, 2, 3]]]
        if kind != "entries":  # where null is no nonsense, but says that the file defines nothing
            nonsense.append(None)
        part[key] = chance.choice(nonsense)
        written = zlib.compress(json.dumps(value).encode()) if is_packed else json.dumps(value)
        connection.execute("UPDATE rows SET content = ? WHERE kind = ? AND path = ?", (written, kind, path))
    connection.commit()
    connection.close()
    assert result(tree) == result(tree, "--promptfmt-no-cache")


def test_what_is_gone_is_forgotten_once_the_store_is_large(tree: Project) -> None:
    warm(tree)

    def kept(kind: str) -> list[str]:
        with contextlib.closing(sqlite3.connect(tree.store)) as connection:
            query = "SELECT path FROM rows WHERE kind = ? OR kind LIKE ? || ' %'"
            return [Path(path).name for (path,) in connection.execute(query, (kind, kind))]

    inputs = kept("inputs")
    assert kept("outcomes").count("wic.yaml") == 1
    (tree.root / "tasks/docs/wic.yaml").rename(tree.root / "wic")
    tree.edit("tasks/shared/_base.yaml", "' '", "'  '")
    settle(tree)
    tree.run("tasks")
    assert "wic.yaml" in kept("outcomes"), "it may come back, with another branch"
    assert set(inputs) <= set(kept("inputs"))
    (tree.root / "settled.py").write_text(BOUNDED, "utf-8")
    tree.run("tasks")
    assert "wic.yaml" not in kept("outcomes")
    assert len(kept("contexts")) == 1
    assert not set(inputs) <= set(kept("inputs"))


BOUNDED = """
def pytest_configure(config):
    from pytest_promptfmt.inputs import contents, store

    contents._SETTLED_NS = 0
    store.Store.has_to_shrink = True
"""


def test_nothing_is_kept_without_the_cache_of_pytest(tree: Project) -> None:
    warm(tree)
    assert tree.run("tasks", "-p", "no:cacheprovider").parseoutcomes().keys() == {"passed"}
    assert tree.run("tasks", "--promptfmt-no-cache").parseoutcomes().keys() == {"passed"}


def test_the_store_is_a_private_file_outside_the_rootdir(tree: Project) -> None:
    warm(tree)
    assert not tree.store.is_relative_to(tree.root)
    assert not list(tree.root.rglob("*.sqlite"))
    assert not tree.store.stat().st_mode & 0o077
    assert not Path(f"{tree.store}-journal").exists()


def test_clearing_the_cache_of_pytest_removes_the_outcomes(tree: Project) -> None:
    warm(tree)
    assert tree.run("tasks", "--cache-clear").parseoutcomes() == {"passed": 17}
    assert unchanged(tree) == 17


def test_templates_below_a_folder_that_another_run_named_are_not_shown(tree: Project) -> None:
    text = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    tree.write("tasks/chat/chat.jinja", text)
    warm(tree)
    fresh, shown = tree.found(".", "--promptfmt-no-cache"), tree.found(".")
    assert (shown["counts"], shown["findings"]) == (fresh["counts"], fresh["findings"])
    assert result(tree)["counts"] != fresh["counts"], "a run that names the folder tests the template"
