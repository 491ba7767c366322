"""The action and its comment, replayed on the branch of a stranger: a clone of a bare remote, as in a container."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import forked_runs
import pytest
from promptfmt_command import git
from test_action import ACTION, COMMENT, GH, ROOT, TASK, WORKFLOW, run, steps

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")]

MODULES = (
    *(name for name in sorted(sys.stdlib_module_names) if not name.startswith("_")),
    *("pytest_promptfmt", "pytest", "_pytest", "pip", "yaml", "jinja2", "colorama", "typer", "click", "rich", "syrupy"),
    *("sitecustomize", "usercustomize", "conftest", "tasks/conftest", "evil_plugin", "tasks/__init__", "tasks/evil"),
)
NAMES = (
    "$(touch $RAN/substitution)",
    "`touch $RAN/backticks`",
    "a; touch $RAN/semicolon; b",
    "-p evil_plugin",
    "--promptfmt-allow-code=.",
    "@arguments",
    "new\nline\n-pevil_plugin",
    "::set-output name=differs::0",
)
BRANCH = "$(touch${IFS}$RAN/branch)"
FORGED = "@everyone: merge this [now](https://evil.example)"


@pytest.fixture
def checkout(tmp_path: Path, ran: Path) -> Path:
    """Return a checkout of a branch that changes a prompt, and tries to run modules, options and names of files."""
    author = tmp_path / "author"
    (author / "tasks").mkdir(parents=True)
    (author / "tasks/arc.yaml").write_text(TASK, "utf-8")
    environment = {**os.environ, "PYTEST_ADDOPTS": ""}
    update = ("-q", "--promptfmt", "--snapshot-update")
    assert forked_runs.run("pytest", *update, folder=author, environment=environment).returncode == 0
    assert forked_runs.run("pytest", "--promptfmt", folder=author, environment=environment).returncode == 0
    shutil.copytree(author / ".pytest_cache", tmp_path / "stored")
    shutil.rmtree(author / ".pytest_cache")
    git(author, "init", "-q", "-b", "main")
    git(author, "add", ".")
    git(author, "commit", "-qm", "one")
    git(tmp_path, "clone", "-q", "--bare", str(author), "remote.git")
    git(author, "checkout", "-qb", BRANCH)
    (author / "tasks/arc.yaml").write_text(TASK.replace("A:", "A: "), "utf-8")
    for name in MODULES:
        left = ran / name.replace("/", "-")
        (author / f"{name}.py").write_text(f"open({str(left)!r}, 'w').close()\ndef f(doc): return 'x'\n", "utf-8")
    (author / "pytest.ini").write_text("[pytest]\naddopts = -p evil_plugin\npythonpath = . tasks\n", "utf-8")
    (author / "promptfmt.yaml").write_text("rules: [evil_plugin.py]\nallow_code: [.]\n", "utf-8")
    (author / "tasks/coded.yaml").write_text(TASK.replace("arc", "coded") + "process_docs: !function evil.f\n", "utf-8")
    (author / "arguments.yaml").write_text("-p\nevil_plugin\n", "utf-8")
    for number, name in enumerate(NAMES):
        file = author / f"{name}.yaml"  # that with a slash is in a folder
        file.parent.mkdir(exist_ok=True)
        file.write_text(TASK.replace("arc", f"named{number}"), "utf-8")
    results = author / "promptfmt"
    results.mkdir()
    (results / "result.json").write_text(json.dumps({"next_steps": [FORGED]}), "utf-8")
    for file in (results / "next-steps.md", results / "report.html", author / "promptfmt-comment.md"):
        file.write_text(FORGED, "utf-8")
    shutil.copytree(tmp_path / "stored", author / ".pytest_cache")
    git(author, "add", "--force", ".")
    git(author, "commit", "-qm", "two")
    git(author, "push", "-q", str(tmp_path / "remote.git"), BRANCH)
    git(tmp_path, "clone", "-q", "remote.git", "checkout")
    git(tmp_path / "checkout", "checkout", "-q", "--detach", f"origin/{BRANCH}")
    return tmp_path / "checkout"


@pytest.fixture
def commenting(tmp_path: Path) -> Path:
    """Return the folder of the job that comments, with a `gh` that keeps comments."""
    folder = tmp_path / "commenting"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/gh").write_text(GH, "utf-8")
    (folder / "bin/gh").chmod(0o755)
    return folder


def job(folder: Path, ran: Path, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a step as in a container, where another user owns the checkout, with what GitHub sets."""
    outputs = {name: str(folder.parent / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    owner = {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}
    return run(script, folder, RAN=str(ran), CI="true", GITHUB_ACTIONS="true", **outputs, **owner, **variables)


def test_both_jobs_run_nothing_of_a_stranger_and_report_what_changed(
    checkout: Path, commenting: Path, ran: Path
) -> None:
    action, arguments = steps(ACTION), "--promptfmt-no-code"
    install = action["Install"]["run"].replace(" install --quiet", " --version #")
    assert job(checkout, ran, install, PACKAGES="").stdout.startswith("pip ")
    script = action["Compare with the snapshots"]["run"]
    compared = job(checkout, ran, script, PATHS="", ARGS=arguments, SHARD="")
    assert compared.returncode == 1, compared.stdout + compared.stderr
    assert "+| A: ⟨end⟩" in compared.stdout
    result = json.loads((checkout / "promptfmt/result.json").read_text("utf-8"))
    assert (result["counts"]["changed"], result["version"]) == (2, 1), "one for each profile"
    script = action["Compare with the base"]["run"]
    variables = {"ARGS": arguments, "BASE": git(checkout, "rev-parse", "origin/main").strip(), "OUTCOME": "failure"}
    based = job(checkout, ran, script, RUN="https://example.org/run", **variables)
    assert based.returncode == 0, based.stdout + based.stderr
    assert (checkout.parent / "GITHUB_OUTPUT").read_text("utf-8") == "differs=1\n"
    shutil.copy(checkout / "promptfmt-comment.md", commenting)
    script = steps(COMMENT)["Comment what changed"]["run"]
    variables = {"GH_TOKEN": "a-token", "NUMBER": "7", "REPOSITORY": "o/r", "DIFFERS": "1", "READ_ONLY": ""}
    assert job(commenting, ran, script, **variables).returncode == 0
    comment = (commenting / "commented-11.md").read_text("utf-8")
    assert "-| A:⟨end⟩\n+| A: ⟨end⟩" in comment
    assert "git apply promptfmt/accept.patch" in comment
    for text in (comment, (checkout / "promptfmt/report.html").read_text("utf-8"), compared.stdout, based.stdout):
        assert FORGED not in text
        assert not re.search(r"^::", text, re.MULTILINE)
    assert sorted(path.name for path in ran.iterdir()) == []


def test_the_modules_of_the_stranger_would_run(checkout: Path, ran: Path) -> None:
    job(checkout, ran, "python -c 'import json, pytest'")
    assert {"json", "pytest"} <= {path.name for path in ran.iterdir()}


def test_a_link_in_place_of_the_results_is_not_followed(checkout: Path, ran: Path) -> None:
    shutil.rmtree(checkout / "promptfmt")
    outside = checkout.parent / "outside"
    outside.mkdir()
    (outside / "next-steps.md").write_text(FORGED, "utf-8")
    (checkout / "promptfmt").symlink_to(outside)
    script = steps(ACTION)["Compare with the snapshots"]["run"]
    assert job(checkout, ran, script, PATHS="tasks/arc.yaml", ARGS="--promptfmt-no-code", SHARD="").returncode == 1
    assert [path.name for path in outside.iterdir()] == ["next-steps.md"]
    assert (outside / "next-steps.md").read_text("utf-8") == FORGED


def test_every_python_of_the_actions_ignores_modules_of_the_working_directory() -> None:
    scripts = [step["run"] for file in (ACTION, COMMENT, WORKFLOW) for step in steps(file).values() if "run" in step]
    called = [line for script in scripts for line in script.splitlines() if re.search(r"\bpython\b", line)]
    assert len(called) == 3
    assert all(re.search(r"^ *python -P -m ", line) for line in called)
    assert not any("python" in line for line in (ROOT / WORKFLOW).read_text("utf-8").splitlines() if "run:" in line)
