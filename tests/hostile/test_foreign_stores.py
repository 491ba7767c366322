"""Outcomes that somebody else stored: those in a repository are not read, nor those without the inputs of a file."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from plugin_project import Project

import pytest_promptfmt
from pytest_promptfmt.engine.processes import CAN_FORK
from pytest_promptfmt.inputs.contents import Contents
from pytest_promptfmt.inputs.outcome_rows import OutcomeRows
from pytest_promptfmt.inputs.places import Places
from pytest_promptfmt.inputs.store import FILE_NAME, Store, store_folder

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CAN_FORK, reason="only outcomes of workers are cached")]

TASK = "tasks/t/t.yaml"
SNAPSHOT = "tasks/t/__prompts__/t/t/plain.txt"
UNCHANGED = {"unchanged": 2}
FAILS = {"failed": 1, "unchanged": 1}
PACKAGE = Path(pytest_promptfmt.__file__).parent


@pytest.fixture
def warm(cached_project: Project, kept: Path) -> Project:
    """Return a project with cached outcomes of two tasks."""
    cached_project.make_once(kept / "project", lambda: write(cached_project))
    cached_project.settle()
    cached_project.run("tasks")
    assert cached_project.run("tasks").parseoutcomes() == UNCHANGED
    return cached_project


def write(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\npromptfmt_profiles = plain\npromptfmt_lint = false\n")
    project.task("tasks/first.yaml")
    project.task(TASK)
    project.accept("tasks")


@contextlib.contextmanager
def rows_of(project: Project, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a kind by path, and write them back; there is one context at most."""
    with contextlib.closing(sqlite3.connect(project.store)) as connection, connection:
        kinds = connection.execute("SELECT DISTINCT kind FROM rows WHERE kind = ? OR kind LIKE ? || ' %'", (kind, kind))
        [(kind,)] = kinds.fetchall() or [(kind,)]
        found = connection.execute("SELECT path, content FROM rows WHERE kind = ?", (kind,)).fetchall()
        places = Places(project.root)
        rows = {places.here(path): json.loads(places.read(content)) for path, content in found}
        yield rows
        connection.execute("DELETE FROM rows WHERE kind = ?", (kind,))
        written = [(kind, places.neutral(path), places.written(json.dumps(row))) for path, row in rows.items()]
        connection.executemany("INSERT INTO rows VALUES (?, ?, ?)", written)


def forge(project: Project, *, without: Path | str = "", folders: bool = False) -> None:
    """Make the store say that the outcomes are those of the files as they are now, `without` one of the inputs."""
    places = Places(project.root)
    contents = Contents(places)
    with rows_of(project, "inputs") as inputs:
        left_out = {key for key, (path, *_) in inputs.items() if path == str(without)}
        assert bool(left_out) == bool(without)
        inputs.update({key: contents.input(path) for key, (path, *_) in inputs.items()})
    with rows_of(project, "outcomes") as outcomes:
        for [row] in outcomes.values():
            row["inputs"] = [key for key in row["inputs"] if key not in left_out]
            row["made"] = OutcomeRows(Store(None), places).digest(row)
    for kind in ("folders", "index"):
        with rows_of(project, kind) as rows:
            for row in rows.values():
                row["inputs"] = [path for path in row["inputs"] if path != str(without)]
                row["stamps"] = contents.stamps_now(row["inputs"], lambda _: False)
            if not folders:
                rows.clear()


def without_index(project: Project) -> None:
    (project.root / ".git/index").write_bytes(b"DIRC damaged")


GIT: dict[str, tuple[Callable[[Project], object], dict[str, str]]] = {
    "of a repository": (lambda _: None, {}),
    "of somebody else": (lambda _: None, {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}),
    "with a damaged index": (without_index, {}),
    "with another GIT_DIR": (lambda _: None, {"GIT_DIR": "/nowhere"}),
    "without git": (lambda _: None, {"PATH": "/nowhere"}),
    "of an archive": (lambda project: shutil.rmtree(project.root / ".git"), {}),
}


@pytest.mark.parametrize("state", GIT)
def test_a_store_that_comes_with_the_repository_is_not_read(
    warm: Project, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm.edit(TASK, "Q: ", "Question: ")
    forge(warm)
    assert warm.run("tasks").parseoutcomes() == UNCHANGED, "else this test shows nothing"
    below = warm.store.relative_to(os.environ["PROMPTFMT_CACHE_DIR"])
    for place in (f".pytest_cache/d/promptfmt/{FILE_NAME}", f"cache/{below}"):
        (warm.root / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(warm.store, warm.root / place)
    for words in (["init", "-q"], ["add", "-f", "."]):
        subprocess.run(["git", *words], cwd=warm.root, check=True, capture_output=True)
    prepare, variables = GIT[state]
    prepare(warm)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for folder in (warm.root.parent / "empty", warm.root / "cache"):
        monkeypatch.setenv("PROMPTFMT_CACHE_DIR", str(folder))
        assert warm.run("tasks").parseoutcomes() == {"failed": 1, "passed": 1}


def test_there_is_no_store_in_the_work_tree_of_a_rootdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "repository/tasks"
    root.mkdir(parents=True)
    (tmp_path / "linked").symlink_to(tmp_path / "repository")
    monkeypatch.setenv("PROMPTFMT_CACHE_DIR", str(tmp_path / "linked/cache"))
    assert store_folder(root) is not None
    (tmp_path / "repository/.git").mkdir()
    assert store_folder(root) is None
    monkeypatch.setenv("PROMPTFMT_CACHE_DIR", str(tmp_path / "repository/tasks/cache"))
    assert store_folder(root) is None
    monkeypatch.setenv("PROMPTFMT_CACHE_DIR", str(tmp_path / "cache"))
    assert store_folder(root) == store_folder(tmp_path / "linked/tasks")
    (tmp_path / "cache/outcomes").chmod(0o777)
    monkeypatch.setenv("PROMPTFMT_CACHE_DIR", str(tmp_path / "other/../cache"))
    assert store_folder(root) is None


CHANGES: dict[str, Callable[[Project], object]] = {
    TASK: lambda project: project.edit(TASK, "Q: ", "Question: "),
    SNAPSHOT: lambda project: project.edit(SNAPSHOT, "Q: ", "Question: "),
    "tasks/t/": lambda project: project.write("tasks/t/t.docs.jsonl", '{"question": "Why?", "answer": "So."}\n'),
}


@pytest.mark.parametrize("folders", [False, True], ids=["files", "folders"])
@pytest.mark.parametrize("name", CHANGES)
def test_an_outcome_without_an_input_that_each_has_is_not_believed(warm: Project, name: str, folders: bool) -> None:
    CHANGES[name](warm)
    forge(warm, folders=folders)
    assert warm.run("tasks").parseoutcomes() == UNCHANGED, "else this test shows nothing"
    forge(warm, without=f"{warm.root}/{name}", folders=folders)
    assert warm.run("tasks").parseoutcomes() == FAILS


def test_the_recipe_for_github_keeps_no_outcomes_of_foreign_code() -> None:
    page = (PACKAGE.parent / "docs/running.md").read_text("utf-8")
    [recipe] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    restore, run, save = yaml.safe_load(recipe)
    assert restore["uses"].startswith("actions/cache/restore@")
    assert restore["if"] == "github.event.pull_request.head.repo.fork != true"
    assert run == {"run": "pytest --promptfmt"}
    assert save["uses"].startswith("actions/cache/save@")
    assert save["if"] == "always() && github.ref == 'refs/heads/main'"
    assert restore["with"]["path"] == save["with"]["path"]


def test_the_package_counts_by_its_contents(warm: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the package again in the same place: the times of its files are others, their contents are not."""
    site = warm.root.parent / f"{warm.root.name}-site"
    installed = site / PACKAGE.name
    monkeypatch.setenv("PYTHONPATH", str(site))

    def install() -> None:
        shutil.rmtree(site, ignore_errors=True)
        for name in (path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"):
            (installed / name.relative_to(PACKAGE)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(name, installed / name.relative_to(PACKAGE))

    install()
    assert warm.run("tasks").parseoutcomes() == UNCHANGED
    install()
    assert warm.run("tasks").parseoutcomes() == UNCHANGED
    with (installed / "core/text.py").open("a") as module:
        module.write("# changed\n")
    assert warm.run("tasks").parseoutcomes() == {"passed": 2}
