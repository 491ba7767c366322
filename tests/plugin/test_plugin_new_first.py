"""`--new-first` knows our files by their cached outcomes, while pytest itself keeps only the items of others."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from plugin_project import Project

from pytest_promptfmt.engine.processes import CAN_FORK

pytestmark = pytest.mark.slow

ORDER = (
    "import os\n\n\ndef pytest_collection_finish(session):\n"
    "    names = [item.nodeid for item in session.items]\n"
    "    open('order-' + os.environ.get('PYTEST_XDIST_WORKER', 'here'), 'w').write('\\n'.join(names))\n"
)
TEST = "def test_it():\n    pass\n"
needs_store = pytest.mark.skipif(not CAN_FORK, reason="outcomes are remembered of workers alone")


@pytest.fixture
def tree(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Return a project with two tasks and a test of somebody else, all of them unknown and two hours old."""
    monkeypatch.setenv("PROMPTFMT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")
    project.write("pytest.ini", "[pytest]\npromptfmt_profiles = plain\n")
    project.write("conftest.py", ORDER)
    for name in ("arc", "boolq"):
        project.task(f"tasks/{name}.yaml")
    project.write("tasks/test_one.py", TEST)
    project.accept("tasks")
    for folder in (project.root / ".pytest_cache", tmp_path / "cache/outcomes"):
        shutil.rmtree(folder)
    age(project, 2)
    return project


def age(project: Project, hours: int) -> None:
    """Make all files and folders as old as this; boolq is the youngest, then test_one, then arc."""
    for path in project.root.rglob("*"):
        shift = {"boolq.yaml": 60, "test_one.py": 30}.get(path.name, 0)
        os.utime(path, (1_600_000_000 - hours * 3600 + shift,) * 2)


def add_old_files(project: Project) -> None:
    for path in (project.task("tasks/added.yaml"), project.write("tasks/test_added.py", TEST)):
        os.utime(path, (1_500_000_000,) * 2)
    project.accept("tasks/added.yaml", "-p", "no:cacheprovider")


def order(project: Project, worker: str = "here") -> list[str]:
    """Return the files of the items of the last run in their order, each once."""
    names = (project.root / f"order-{worker}").read_text("utf-8").splitlines()
    return list(dict.fromkeys(Path(name.partition("::")[0]).stem for name in names))


def kept(project: Project) -> set[str]:
    """Return the files whose items pytest keeps as known."""
    ids = json.loads((project.root / ".pytest_cache/v/cache/nodeids").read_text("utf-8"))
    return {Path(each.partition("::")[0]).stem for each in ids}


@pytest.mark.parametrize("options", [pytest.param([], marks=needs_store, id="store"), ["--promptfmt-no-cache"]])
def test_items_of_files_that_no_run_met_come_first(tree: Project, options: list[str]) -> None:
    tree.run("tasks", *options)
    assert kept(tree) == ({"arc", "boolq", "test_one"} if options else {"test_one"})
    add_old_files(tree)
    for _ in range(2):  # a run that only collects meets nothing
        tree.run("tasks", "--nf", "--collect-only", *options)
        assert order(tree) == ["added", "test_added", "boolq", "test_one", "arc"]
    tree.run("tasks", "--nf", *options)
    assert order(tree) == ["added", "test_added", "boolq", "test_one", "arc"]
    tree.run("tasks", "--nf", "--collect-only", *options)
    assert order(tree) == ["boolq", "test_one", "arc", "added", "test_added"]


@needs_store
def test_pytest_keeps_no_ids_of_ours_where_outcomes_are_cached(tree: Project) -> None:
    tree.run("tasks", "--promptfmt-no-cache")
    assert kept(tree) == {"arc", "boolq", "test_one"}
    tree.run("tasks")
    assert kept(tree) == {"test_one"}


@needs_store
def test_failures_stay_known_to_pytest(tree: Project) -> None:
    tree.edit("tasks/boolq.yaml", "A:", "B:")
    tree.run("tasks").assert_outcomes(passed=4, failed=1)
    tree.run("tasks", "--ff", "--collect-only")
    assert order(tree) == ["boolq", "arc", "test_one"]
    tree.run("tasks", "--lf").assert_outcomes(failed=1)
    assert kept(tree) == {"test_one"}
