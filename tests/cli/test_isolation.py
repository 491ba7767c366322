"""No plugin of another package takes part in a command, and settings for such plugins are no errors."""

from __future__ import annotations

import os
from pathlib import Path

import forked_runs
import pytest
from promptfmt_command import git, write_task

PLUGIN = """\
import pytest

@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    config.pluginmanager.getplugin("terminalreporter").config  # as pytest-sugar does
    print("a plugin of another package")
"""
INI = """\
[pytest]
addopts = --option-of-another --strict-config
required_plugins = noisy pytest-promptfmt
mode_of_another = auto
strict_config = true
filterwarnings = error
promptfmt_profiles = plain
"""
CONFTEST = """\
def pytest_hook_of_another(session):
    pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project made for another plugin, which is installed and works only with a terminal."""
    installed = tmp_path / "installed"
    (installed / "noisy-1.0.dist-info").mkdir(parents=True)
    (installed / "noisy.py").write_text(PLUGIN, "utf-8")
    (installed / "noisy-1.0.dist-info/METADATA").write_text("Name: noisy\nVersion: 1.0\n", "utf-8")
    (installed / "noisy-1.0.dist-info/entry_points.txt").write_text("[pytest11]\nnoisy = noisy\n", "utf-8")
    project = tmp_path / "project"
    write_task(project, "arc", "Q: {{question}}\\nA: ")
    (project / "pytest.ini").write_text(INI, "utf-8")
    (project / "conftest.py").write_text(CONFTEST, "utf-8")
    git(project, "init", "-q")
    git(project, "add", ".")
    git(project, "commit", "-qm", "tasks")
    return project


@pytest.mark.parametrize(
    ("command", "status", "expected"),
    [
        (["check"], 0, "arc"),
        (["show", "arc"], 0, "Q: "),
        (["fix"], 1, "1 finding in 1 file can be fixed"),
        (["diff"], 0, ""),
        (["review", "--list"], 1, "new  tasks/__prompts__/arc/arc/plain.txt"),
        (["accept"], 2, "no earlier run"),
        (["init", "--baseline", "--kind", "fork"], 0, "promptfmt-baseline.jsonl written"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_commands_stand_by_themselves(project: Path, command: list[str], status: int, expected: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    environment |= {"PYTHONPATH": str(project.parent / "installed"), "PYTEST_PLUGINS": "noisy"}
    environment["PROMPTFMT_CACHE_DIR"] = str(project.parent / "cache")
    done = forked_runs.run("pytest_promptfmt", *command, folder=project, environment=environment, is_merged=True)
    assert done.returncode == status, done.stdout
    assert expected in done.stdout
    for text in ("Traceback", "INTERNALERROR", "a plugin of another package", "_of_another"):
        assert text not in done.stdout


def test_pytest_itself_loads_the_plugin(project: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(project.parent / "installed")}
    done = forked_runs.run("pytest", "-o", "addopts=", folder=project, environment=environment, is_merged=True)
    assert "mode_of_another" in done.stdout  # unknown, and the project is strict


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.yaml"], "no such file or folder: missing.yaml"),
        (["--profile", "plian"], "'plian'"),
        (["--select", "PF999"], "PF999"),
    ],
)
def test_a_refusal_is_one_message_that_names_no_run_below(project: Path, arguments: list[str], message: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = forked_runs.run("pytest_promptfmt", "check", *arguments, folder=project, environment=environment)
    assert done.returncode == 2
    assert message in done.stderr
    assert "ERROR" not in done.stderr
    assert "see above" not in done.stderr
