"""What a failing prompt says, and that what it says to do works."""

import json
import os
import re
import shlex
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest
from plugin_project import Project

pytestmark = pytest.mark.slow

MANY = 60


def accept_commands(result: pytest.RunResult) -> list[list[str]]:
    """Return the arguments of each `accept: pytest …` that was printed."""
    lines = [line.partition("accept: pytest ")[2] for line in result.outlines if line.startswith("accept: ")]
    return [shlex.split(line) for line in lines]


def test_pictures_that_are_not_rendered_are_said_with_the_tasks_that_have_them(project: Project) -> None:
    for name in ("seen", "heard"):
        project.task(f"{name}.yaml", doc_to_image="picture" if name == "seen" else None, doc_to_text="{{question}}")
    lines = ["images or audio of doc_to_image are not tested, only the text next to them, in 1 task: seen"]
    for workers in ((), ("-n", "2")):
        project.run("--promptfmt-json=r.json", *workers).stdout.fnmatch_lines(lines)
    assert json.loads((project.root / "r.json").read_text("utf-8"))["unseen"] == [
        {"keys": "doc_to_image", "tasks": ["seen"]}
    ]


def test_a_failure_says_what_changed_where_it_comes_from_and_how_to_accept_it(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("tasks/docs.jsonl", '{"question": "Why\\t?", "answer": "so"}\n{"question": "Who?", "answer": "I"}\n')
    docs: dict[str, Any] = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "docs.jsonl"}}}
    project.task("tasks/arc.yaml", doc_to_text="Q: {{question}}\nA: ", **docs)
    project.task("tasks/wic.yaml", **docs)
    project.accept("tasks")
    before = project.snapshots()
    project.edit("tasks/arc.yaml", '\\nA: "', '\\nAnswer:"')
    project.edit("tasks/wic.yaml", "A:", "B:")
    result = project.run("tasks", "--color", "yes")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(result.outlines))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    for line in [
        "arc [plain]: 2 of 2 docs changed",
        "--- tasks/__prompts__/arc/arc/plain.txt",
        "-| A: ⟨end⟩",
        "+| Answer:⟨end⟩",
    ]:
        assert line in plain
    assert "cause: tasks/arc.yaml:5:1 doc_to_text" in plain

    # From a sub-folder, exactly this command accepts exactly this item.
    (project.root / "tasks/sub").mkdir()
    monkeypatch.chdir(project.root / "tasks/sub")
    below = project.run("../arc.yaml", "../wic.yaml")
    command = next(words for words in accept_commands(below) if "../" in words[1] or "arc.yaml" in words[1])
    assert command[1].endswith("arc.yaml::arc::snapshot[plain]")
    project.start(*command).assert_outcomes(passed=1)
    after = project.snapshots()
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"tasks/__prompts__/arc/arc/plain.txt"}
    assert set(after) == set(before)
    project.start(*(word for word in command if word != "--snapshot-update")).assert_outcomes(passed=1)


def test_one_edit_that_changes_many_tasks_is_shown_once(project: Project) -> None:
    project.write("tasks/_shared_yaml", 'doc_to_text: "Q: {{question}}\\nA:"\ndoc_to_target: answer\n')
    for number in range(MANY):
        project.write(
            f"tasks/t{number:03}.yaml",
            f"include: _shared_yaml\ntask: t{number:03}\ndataset_path: nowhere/x\noutput_type: generate_until\n"
            "test_split: test\n",
        )
    project.accept("tasks")
    project.edit("tasks/_shared_yaml", "A:", "Answer:")
    result = project.run("tasks", "--junitxml", "report.xml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    output = result.stdout.str()
    assert output.count("-| A:⟨end⟩") == 2, "one diff of two docs"
    assert f"changed, {2 * MANY} tests of {MANY} tasks: " in output
    assert "tasks/_shared_yaml:1:1 doc_to_text" in output
    assert f"{2 * MANY} failed; {2 * MANY - 1} of them for the same cause as a failure above" in output
    assert f"t007 and {MANY - 8} more" in output
    assert output.partition("= FAILURES =")[2].count("\n") < 40

    text = (project.root / "report.xml").read_text("utf-8")
    assert "\x1b" not in text
    assert "#x1B" not in text
    suite = ElementTree.fromstring(text)[0]
    assert suite.get("failures") == str(2 * MANY)
    assert len(suite.findall("testcase/failure")) == 2 * MANY
    assert all("accept: pytest" in (found.text or "") for found in suite.findall("testcase/failure"))

    again = project.run("tasks", "--lf", "-n", "2", "-q")
    assert f"{2 * MANY} failed in " in again.stdout.str()
    assert f"changed, {2 * MANY} tests of {MANY} tasks: " in again.stdout.str()
    assert again.stdout.str().count("-| A:⟨end⟩") == 2

    listed = project.run("tasks", "-v", "--promptfmt-profile", "plain", "--promptfmt-task", "t0[0-4]*").stdout.str()
    assert "t000, t001" in listed
    assert "t049" in listed.partition("= prompt formats =")[2], "-v names every task"


COUNT_DIFFS = """
import pytest_promptfmt.results.failures as failures
import pytest_promptfmt.snapshots.changes as comparison

counted = {"diff": 0, "changes": 0}
unified_diff, changes = failures.unified_diff, comparison.changes

def count_diff(*args):
    counted["diff"] += 1
    return unified_diff(*args)

def count_changes(*args):
    counted["changes"] += 1
    return changes(*args)

failures.unified_diff, comparison.changes = count_diff, count_changes

def pytest_unconfigure():
    print("counted:", counted)
"""


def test_the_work_for_equal_failures_grows_with_their_number_only(project: Project) -> None:
    for number in range(20):
        project.task(f"tasks/t{number}.yaml")
    project.accept("tasks", "--promptfmt-profile", "plain")
    for number in range(20):
        project.edit(f"tasks/t{number}.yaml", "A:", "Answer:")
    project.write("conftest.py", COUNT_DIFFS)
    told = project.run("tasks", "--promptfmt-profile", "plain", "--promptfmt-workers", "0").outlines[-1]
    assert told.startswith("counted: ")
    assert told == "counted: {'diff': 1, 'changes': 20}", "one diff is shown; each snapshot is compared once"


def test_each_category_is_told_by_its_name(project: Project) -> None:
    for name in ("changed", "damaged", "new", "old_name", "stale", "fine"):
        project.task(f"tasks/{name}.yaml", doc_to_text=f"{name} {{{{question}}}}")
    project.accept("tasks", "--promptfmt-profile", "plain")
    folder = project.root / "tasks/__prompts__"
    project.edit("tasks/changed.yaml", "changed {{", "altered {{")
    project.edit("tasks/__prompts__/damaged/damaged/plain.txt", "damaged «", "danaged «")
    (folder / "new/new/plain.txt").unlink()
    project.edit("tasks/old_name.yaml", 'task: "old_name"', 'task: "new_name"')
    project.edit("tasks/__prompts__/stale/stale/plain.txt", "docs: 2", "docs: 4")
    arguments = ("tasks", "--promptfmt-profile", "plain")
    result = project.run(*arguments)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    counts = result.parseoutcomes()
    assert counts["passed"] == 2, "a header out of date is no failure"
    assert counts["failed"] == 4
    section = [line.partition(",")[0] for line in result.outlines if ", 1 test of 1 task: " in line]
    assert section == ["damaged", "changed", "new", "renamed", "header-only"]
    old, new = (f"tasks/__prompts__/old_name/{name}/plain.txt" for name in ("old_name", "new_name"))
    assert f"renamed {old} → {new}" in result.outlines
    assert "prompt formats" in project.run(*arguments, "-q").stdout.str()
    update = project.run(*arguments, "--snapshot-update")
    update.assert_outcomes(passed=6)
    assert "header-only" not in update.stdout.str()
    clean = project.run(*arguments)
    clean.assert_outcomes(passed=6)
    assert "prompt formats" not in clean.stdout.str()
    assert not (folder / "old_name/old_name").exists()
    assert os.listdir(folder / "old_name") == ["new_name"]
