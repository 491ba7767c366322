"""Findings about a profile belong to the first file of a run that uses it, whether that is tested or shown again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from plugin_project import Project
from promptfmt_command import promptfmt

from pytest_promptfmt.engine.processes import CAN_FORK

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CAN_FORK, reason="only outcomes of workers are cached")]

TEMPLATE = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] | escape }}<|end|>\n{% endfor %}<|assistant|>"


@pytest.fixture
def tree(cached_project: Project) -> Project:
    """Return a project with two files and a profile whose template escapes HTML."""
    project = cached_project
    project.write("pytest.ini", "[pytest]\n")
    project.write("mine.jinja", TEMPLATE)
    project.write("promptfmt.yaml", "profiles:\n  mine: {chat_template: mine.jinja}\ndefault_profiles: [plain, mine]\n")
    project.task("tasks/a.yaml")
    project.task("tasks/sub/b.yaml")
    project.accept("tasks")
    project.settle()
    return project


def unchanged(project: Project, *options: str) -> int:
    return project.run(*options).parseoutcomes().get("unchanged", 0)


def test_a_project_with_one_file_is_shown_again(tree: Project) -> None:
    (tree.root / "tasks/sub/b.yaml").unlink()
    _fixed(tree)  # a warning is left
    tree.accept("tasks")
    for _ in range(2):
        again = tree.run("tasks")
        assert again.parseoutcomes()["unchanged"] == 3
        again.stdout.fnmatch_lines(["*: warning: PF442 *"])


def test_an_error_of_a_profile_is_shown_again(tree: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "")
    for _ in range(2):
        again = tree.run("tasks")
        assert (again.ret, again.parseoutcomes()["failed"]) == (1, 1)
        again.stdout.fnmatch_lines(["*: error: PF406 *"])
        assert "tasks/a.yaml: cached: " in promptfmt(tree.root, "why", "tasks").stdout


def _same(_project: Project) -> None:
    """Change nothing."""


def _first_removed(project: Project) -> None:
    (project.root / "tasks/a.yaml").unlink()


def _another_first(project: Project) -> None:
    project.task("tasks/0.yaml")


def _fixed(project: Project) -> None:
    project.edit("mine.jinja", " | escape", "")


CHANGES = [_same, _first_removed, _another_first, _fixed]
WAYS = [("tasks",), ("tasks/sub",), ("tasks", "-k", "b"), ("tasks", "-v"), ("tasks", "-n", "2")]


@pytest.mark.parametrize("change", CHANGES)
def test_a_run_with_the_cache_finds_what_one_without_finds(tree: Project, change: Callable[[Project], None]) -> None:
    tree.run("tasks")
    change(tree)
    tree.settle()
    for way in WAYS:
        fresh = tree.found(*way, "--promptfmt-no-cache")
        for _ in range(2):
            assert tree.found(*way) == fresh, way


def test_files_that_come_first_in_turn_are_shown_from_the_second_time_on(tree: Project) -> None:
    _fixed(tree)
    tree.accept("tasks")
    for _ in range(2):
        tree.run("tasks")
        tree.run("tasks/sub")
    assert unchanged(tree, "tasks") == 6
    assert unchanged(tree, "tasks/sub") == 3
    for _ in range(2):
        listed = tree.run("tasks", "-vv")
    listed.stdout.fnmatch_lines(["tasks/a.yaml: cached: nothing that the file uses has changed"])
