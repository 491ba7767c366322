"""Frozen docs in a tree of their own: written there, read from there, and noticed when they come."""

import json
import subprocess
from pathlib import Path

import forked_runs
import pytest
from plugin_project import Project

ROWS = [{"question": "Is ice cold?", "answer": "yes"}, {"question": "Is fire cold?", "answer": "no"}]
PLACE = "tests/docs/pkg/tasks/arc.docs.jsonl"
INI = "[pytest]\npromptfmt_profiles = plain\npromptfmt_lint = false\npromptfmt_docs_dir = tests/docs\n"


@pytest.fixture
def project(pytester: pytest.Pytester) -> Project:
    project = Project(pytester)
    project.write("pytest.ini", INI)
    project.task("pkg/tasks/arc.yaml")
    return project


def lines(*rows: dict[str, str]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def freeze(project: Project, *args: str) -> subprocess.CompletedProcess[str]:
    return forked_runs.run("pytest_promptfmt", "freeze", *args, folder=project.root)


def prompts(project: Project) -> str:
    (text,) = project.snapshots().values()
    return text.decode()


def test_docs_that_come_into_the_tree_are_noticed_and_those_beside_the_task_come_first(project: Project) -> None:
    only = ["-m", "promptfmt_snapshot"]
    project.accept(*only)
    assert "docs: 2 synthetic" in prompts(project)
    assert project.run("-q", *only).ret == 0, "and remembered"
    project.write(PLACE, lines(*ROWS))
    assert project.run("-q", *only).ret == 1
    project.accept(*only)
    assert "docs: 2 from arc.docs.jsonl" in prompts(project)
    assert "Q: Is ice cold?" in prompts(project)
    project.write("pkg/tasks/arc.docs.jsonl", lines({"question": "Is snow white?", "answer": "yes"}))
    project.accept(*only)
    assert "Q: Is snow white?" in prompts(project)


def test_freeze_writes_into_the_tree_and_checks_what_is_there(project: Project) -> None:
    project.write("data.jsonl", lines(*ROWS))
    done = freeze(project, "pkg/tasks/arc.yaml", "--from", "data.jsonl", "--count", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert (project.root / PLACE).read_text("utf-8") == lines(ROWS[0])
    assert json.loads((project.root / "tests/docs/pkg/tasks/arc.docs.origin.json").read_text("utf-8"))["rows"] == [0]
    assert [path.name for path in (project.root / "pkg/tasks").iterdir()] == ["arc.yaml"], (
        "nothing lies beside the task"
    )
    project.write("data.jsonl", lines({"query": "Is ice cold?", "answer": "yes"}))
    done = freeze(project, "pkg/tasks/arc.yaml", "--check", "--from", "data.jsonl")
    assert done.returncode == 1
    assert done.stdout == f"{PLACE}: the columns of the dataset changed; removed: question; new: query\n"


def test_a_folder_outside_of_the_rootdir_and_a_link_to_it_are_refused(project: Project, tmp_path: Path) -> None:
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (outside / "arc.docs.jsonl").write_text(lines(*ROWS), "utf-8")
    (project.root / "tests/docs/pkg").mkdir(parents=True)
    (project.root / "tests/docs/pkg/tasks").symlink_to(outside)
    (failure,) = project.failures("-m", "promptfmt_snapshot")
    assert "arc.docs.jsonl" in failure
    assert "is outside the rootdir" in failure
    done = freeze(project, "pkg/tasks/arc.yaml", "--from", f"{outside}/arc.docs.jsonl", "--force")
    assert done.returncode == 1
    assert "the docs cannot be written: a folder of the path is a link to a place outside the repository" in done.stderr
    assert (outside / "arc.docs.jsonl").read_text("utf-8") == lines(*ROWS)
    project.write("pytest.ini", INI.replace("tests/docs", "../elsewhere"))
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*docs_dir,*elsewhere, is outside *"])
