"""Snapshots that are not accepted yet fail from the cache, and are never taken for new where they are renamed ones."""

import pytest
from plugin_project import Project
from promptfmt_command import promptfmt

from pytest_promptfmt.engine.processes import CAN_FORK

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CAN_FORK, reason="only outcomes of workers are cached")]


@pytest.fixture
def project(cached_project: Project) -> Project:
    return cached_project


STAMPS = """
import os
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    report = yield
    report.user_properties.append(("process", str(os.getpid())))
    return report

def pytest_runtest_logreport(report):
    if report.when == "call":
        with open("processes.txt", "a") as file:
            print(report.nodeid, dict(report.user_properties)["process"], file=file)
"""


def processes(project: Project) -> dict[str, str]:
    """Return in which process each item ran, in this run or in the one whose outcome is shown."""
    file = project.root / "processes.txt"
    file.unlink(missing_ok=True)
    project.run("tasks", "-p", "stamps")
    return dict(line.rsplit(maxsplit=1) for line in file.read_text("utf-8").splitlines())


def test_a_tree_without_accepted_snapshots_is_not_tested_again(project: Project) -> None:
    project.write("stamps.py", STAMPS)
    for number in range(9):
        project.task(f"tasks/task{number}.yaml")
    project.settle()
    first, second = processes(project), processes(project)
    assert len(first) == 27
    # The first files have the text of the failures that the others repeat.
    kept = {name.partition(".yaml")[0] for name in first if first[name] == second[name]}
    assert kept >= {f"tasks/task{number}" for number in range(4, 9)}
    found = project.found("tasks")
    assert found["counts"]["new"] == 18
    assert found == project.found("tasks", "--promptfmt-no-cache")


def test_accepted_snapshots_are_tested(project: Project) -> None:
    for name in ("arc", "boolq"):
        project.task(f"tasks/{name}.yaml")
    project.settle()
    assert "2 without snapshots" in promptfmt(project.root, "check", "tasks").stderr
    project.accept("tasks")
    assert "without" not in promptfmt(project.root, "check", "tasks").stderr
    project.edit("tasks/arc.yaml", "Q: ", "Question: ")
    assert promptfmt(project.root, "check", "tasks").returncode == 1


@pytest.mark.parametrize("how", ["renamed", "removed"])
def test_a_snapshot_that_a_task_leaves_is_found_for_an_unchanged_file(project: Project, how: str) -> None:
    project.task("tasks/a.yaml", doc_to_text="first {{question}}")
    project.task("tasks/old.yaml")
    project.accept("tasks")
    project.task("tasks/new.yaml")  # with the same prompts
    project.settle()
    for _ in range(2):
        assert project.found("tasks")["counts"]["new"] == 2
    if how == "renamed":
        project.edit("tasks/old.yaml", 'task: "old"', 'task: "other"')
    else:
        project.edit("tasks/old.yaml", "Q: ", "Question: ")
        project.edit("tasks/old.yaml", 'task: "old"', 'task: "other"')
    project.settle()
    found = project.found("tasks")
    assert found == project.found("tasks", "--promptfmt-no-cache")
    assert found["counts"]["renamed"] >= 2
