"""The command as a process of its own, in a folder: it starts pytest, which keeps settings on classes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import forked_runs

IDENTITY = ["-c", "user.name=A", "-c", "user.email=a@example.org"]


def promptfmt(folder: Path, *args: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    """Return what the command did; nothing of it was a traceback."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTEST_ADDOPTS", "CI")}
    environment["COLUMNS"] = "200"
    done = forked_runs.run("pytest_promptfmt", *args, folder=folder, environment=environment, typed=typed)
    assert "Traceback" not in done.stderr + done.stdout, done.stderr
    return done


def git(folder: Path, *args: str) -> str:
    """Return what git printed; it went well."""
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(
        ["git", *IDENTITY, *args], cwd=folder, capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout


def write_task(folder: Path, name: str, text: str = "Q: {{question}}\\nA:", **keys: str) -> Path:
    """Write a task with made-up docs and return its file."""
    lines = [
        f"task: {name}",
        "test_split: test",
        "output_type: generate_until",
        f'doc_to_text: "{text}"',
        "doc_to_target: answer",
        *(f"{key}: {value}" for key, value in keys.items()),
    ]
    file = folder / "tasks" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return file
