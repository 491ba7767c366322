"""A run that is cut ends in order, reports what it did not reach, and keeps what it finished."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from plugin_project import Project

from pytest_promptfmt.engine.processes import CAN_FORK
from pytest_promptfmt.plugin import hash_seeds

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CAN_FORK, reason="only outcomes of worker processes are cached")]

ENDLESS = """
def text(doc):
    open("started", "w").close()
    while True:
        pass
"""


@pytest.fixture
def tree(cached_project: Project) -> Project:
    """Return a folder with three adopted tasks."""
    project = cached_project
    for name in ("one", "three", "two"):
        project.task(f"tasks/a/{name}.yaml")
    project.accept("tasks")
    project.settle()
    return project


def add_endless(tree: Project) -> None:
    """Add a task that never ends, after the others."""
    tree.write("tasks/z/utils.py", ENDLESS)
    file = tree.task("tasks/z/endless.yaml", doc_to_text=None)
    file.write_text(file.read_text("utf-8") + "doc_to_text: !function utils.text\n", "utf-8")
    tree.write("promptfmt.yaml", "time_limit: 1000\n")
    tree.settle()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_in_order_and_the_next_run_continues(tree: Project, number: signal.Signals) -> None:
    add_endless(tree)
    command = [sys.executable, "-m", "pytest", "--promptfmt", "tasks", "--cache-clear", "--promptfmt-workers=1"]
    # A shell in the background has SIGINT ignored, which new processes inherit.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run = subprocess.Popen(command, cwd=tree.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    with run:
        try:
            assert _wait_for(tree.root / "started"), "the task never ran"
            run.send_signal(number)
            output, _ = run.communicate(timeout=600)
        finally:
            run.kill()
    assert run.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "the run ended early: " in output
    assert "the results of finished files are cached, so the next run continues with the others" in output
    (tree.root / "tasks/z/endless.yaml").unlink()
    assert tree.run("tasks").parseoutcomes() == {"unchanged": 9}


def test_a_check_that_is_cut_names_the_tests_that_did_not_run(tree: Project) -> None:
    add_endless(tree)
    command = [sys.executable, "-m", "pytest_promptfmt", "check", "tasks", "--output-format", "json"]
    with subprocess.Popen(command, cwd=tree.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        try:
            assert _wait_for(tree.root / "started"), "the task never ran"
            run.send_signal(signal.SIGTERM)
            output, errors = run.communicate(timeout=600)
        finally:
            run.kill()
    not_run = json.loads(output)["not_run"]
    assert run.returncode == 1
    assert any("endless.yaml" in name for name in not_run), not_run
    assert f"the run ended early (4 files checked, {len(not_run)} tests did not run" in errors


def test_exit_first_keeps_the_files_before_the_failure(tree: Project) -> None:
    tree.edit("tasks/a/two.yaml", "Q: ", "Question: ")
    tree.settle()
    cut = tree.run("tasks", "-x", "--cache-clear")
    cut.stdout.fnmatch_lines(["the run ended early: 2 prompt tests did not run; the results of finished files *"])
    assert tree.run("tasks").parseoutcomes()["unchanged"] == 6


def test_a_run_that_reaches_its_end_adds_no_line(tree: Project) -> None:
    tree.run("tasks", "--cache-clear").stdout.no_fnmatch_line("the run ended early*")
    tree.run("tasks").stdout.no_fnmatch_line("the run ended early*")
    tree.run("tasks", "--collect-only").stdout.no_fnmatch_line("the run ended early*")


def test_a_handler_of_the_project_remains(tree: Project) -> None:
    tree.write(
        "conftest.py",
        "import os, signal, sys\n"
        "def pytest_configure():\n"
        "    signal.signal(signal.SIGTERM, lambda *_: os.write(2, b'own handler'))\n"
        "def pytest_runtest_logfinish():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n",
    )
    result = tree.run("tasks", "-s")
    assert result.ret == 0
    assert "own handler" in result.stderr.str()


def _wait_for(path: Path) -> bool:
    for _ in range(6000):
        if path.exists():
            return True
        time.sleep(0.1)
    return False


def test_unchanged_files_that_a_cut_run_did_not_reach_are_not_counted(tree: Project) -> None:
    tree.write("pytest.ini", "[pytest]\npromptfmt_profiles = plain\npromptfmt_lint = false\n")
    tree.settle()
    tree.run("tasks")
    tree.edit("tasks/a/three.yaml", "Q: ", "Question: ")
    tree.settle()
    result = tree.run("tasks", "-x", "--promptfmt-json=found.json")
    assert result.parseoutcomes() == {"failed": 1, "unchanged": 1}
    counts = json.loads((tree.root / "found.json").read_text("utf-8"))["counts"]
    assert counts == {"changed": 1, "passed": 1}


def test_a_process_with_a_hash_seed_ends_if_the_next_one_cannot_start(
    monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(*_: object) -> subprocess.Popen[bytes]:
        if started:
            raise OSError(11, "no more processes")
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        return started[0]

    monkeypatch.setattr(hash_seeds, "_start", start)
    file = Path("a.yaml")
    assert hash_seeds.varying(pytestconfig, [file]) == {file}
    assert started[0].returncode is not None
