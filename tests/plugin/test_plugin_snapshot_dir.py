"""Snapshots in a tree of their own: written, compared, accepted and cleaned up there, and nothing beside the tasks."""

import json
import shutil
from pathlib import Path

import pytest
from plugin_project import Project

PLACE = "tests/prompts/pkg/tasks/__prompts__"


@pytest.fixture
def project(pytester: pytest.Pytester) -> Project:
    project = Project(pytester)
    project.write("pytest.ini", "[pytest]\npromptfmt_profiles = plain\npromptfmt_snapshot_dir = tests/prompts\n")
    project.task("pkg/tasks/arc.yaml")
    project.task("pkg/tasks/old/gone.yaml")
    return project


def test_the_tree_mirrors_the_rootdir_and_nothing_is_beside_the_tasks(project: Project) -> None:
    project.accept()
    assert set(project.snapshots()) == {
        f"{PLACE}/arc/arc/plain.txt",
        "tests/prompts/pkg/tasks/old/__prompts__/gone/gone/plain.txt",
    }
    assert project.run("-q").ret == 0
    assert project.run("-q", "pkg/tasks/arc.yaml").ret == 0
    project.edit("pkg/tasks/arc.yaml", "Q: {{", "Question: {{")
    result = project.run("--promptfmt-write", "pending=pending.jsonl", "--promptfmt-patch", "accept.patch")
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"--- {PLACE}/arc/arc/plain.txt"])
    assert json.loads((project.root / "pending.jsonl").read_text("utf-8"))["path"] == f"{PLACE}/arc/arc/plain.txt"
    assert f"+++ b/{PLACE}/arc/arc/plain.txt\n" in (project.root / "accept.patch").read_text("utf-8")


def test_what_no_task_defines_is_obsolete_also_where_the_whole_folder_of_the_task_is_gone(project: Project) -> None:
    project.accept()
    shutil.rmtree(project.root / "pkg/tasks/old")
    assert project.run("-q", "pkg/tasks/arc.yaml").ret == 0, "a run that did not come by says nothing"
    result = project.run("pkg", "--snapshot-details")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*1 snapshot unused*"])
    project.accept("pkg")
    assert set(project.snapshots()) == {f"{PLACE}/arc/arc/plain.txt"}


def test_an_ignored_folder_keeps_its_snapshots(project: Project) -> None:
    project.accept()
    project.accept("pkg", "--ignore", "pkg/tasks/old")
    assert len(project.snapshots()) == 2


def test_snapshots_move_when_the_setting_is_made_and_none_is_lost_before(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\npromptfmt_profiles = plain\n")
    project.accept()
    project.write("pytest.ini", "[pytest]\npromptfmt_profiles = plain\n")
    project.write("promptfmt.yaml", "snapshot_dir: tests/prompts\n")
    project.accept("--promptfmt-task", "gone")
    beside = Path("pkg/tasks/__prompts__/arc/arc/plain.txt")
    assert (project.root / beside).exists(), "its task was not rendered into the tree yet"
    project.accept()
    project.accept()
    assert all(name.startswith("tests/prompts/") for name in project.snapshots())
    assert len(project.snapshots()) == 2


def test_a_folder_outside_of_the_rootdir_is_refused(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\npromptfmt_snapshot_dir = ../elsewhere\n")
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*snapshot_dir,*elsewhere, is outside *"])
