"""A folder of task files, and pytest to be run in it as a process of its own: syrupy keeps settings on classes."""

from __future__ import annotations

import json
import os
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked_runs
import pytest

from pytest_promptfmt.inputs.store import FILE_NAME as STORE_NAME, store_folder


def run_pytest(*args: str) -> pytest.RunResult:
    """Return what `python -m pytest` did in this folder; a test that fails shows what it printed."""
    ran = forked_runs.run("pytest", *args, folder=Path.cwd())
    print(ran.stdout, ran.stderr, sep="\n")
    return pytest.RunResult(ran.returncode, ran.stdout.splitlines(), ran.stderr.splitlines(), duration=0)


class Project:
    """What the tests of the plugin write and run."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.root = pytester.path
        self.write("pytest.ini", "[pytest]\npromptfmt_profiles = plain chat-chatml\n")

    def write(self, path: str, text: str) -> Path:
        """Write a file and return its path."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
        return file

    def task(self, path: str, name: str | None = None, **keys: Any) -> Path:
        """Write a task file: JSON is YAML. Its name is that of the file where none is given."""
        config = {
            "task": Path(path).stem if name is None else name,
            "dataset_path": "nowhere/docs",
            "output_type": "generate_until",
            "test_split": "test",
            "doc_to_text": "Q: {{question}}\nA:",
            "doc_to_target": "answer",
        }
        lines = [f"{key}: {json.dumps(value)}" for key, value in (config | keys).items() if value is not None]
        return self.write(path, "\n".join(lines) + "\n")

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace a text of a file."""
        text = (self.root / path).read_text("utf-8")
        assert old in text
        (self.root / path).write_text(text.replace(old, new), "utf-8")

    def start(self, *args: str) -> pytest.RunResult:
        """Return what pytest did; nothing of it was an error of pytest or of ours."""
        result = run_pytest(*args)
        output = result.stdout.str() + result.stderr.str()
        assert "INTERNALERROR" not in output
        assert "Traceback" not in output
        assert "pytest_promptfmt/" not in output, "a place in the plugin is no help to a user"
        return result

    def run(self, *args: str) -> pytest.RunResult:
        """Return what `pytest --promptfmt` did; equal failures after the first are short."""
        return self.start("--promptfmt", *args)

    def found(self, folder: str, *options: str) -> dict[str, Any]:
        """Return what a run of a folder found, as JSON, without what quotes the options."""
        self.run(folder, "--promptfmt-json=found.json", *options)
        found: dict[str, Any] = json.loads((self.root / "found.json").read_text("utf-8"))
        del found["command"], found["next_steps"]
        return found

    @property
    def store(self) -> Path:
        """Return the file of cached outcomes."""
        folder = store_folder(self.root)
        assert folder is not None
        return folder / STORE_NAME

    def settle(self) -> None:
        """Make the files look older than the run: outcomes of files that changed since it began are not cached."""
        for path in sorted(self.root.rglob("*"), reverse=True):
            if ".pytest_cache" not in path.parts and path.exists():
                os.utime(path, (1_600_000_000, 1_600_000_000))

    def make_once(self, kept: Path, make: Callable[[], None]) -> None:
        """Write what `make` writes here: the first time by calling it, later from the copy that was kept of it.

        The copy has no cache: its rows are about files of the folder that it was made in.
        """
        if kept.exists():
            shutil.copytree(kept, self.root, dirs_exist_ok=True, symlinks=True)
        else:
            make()
            shutil.copytree(self.root, kept, symlinks=True, ignore=shutil.ignore_patterns(".pytest_cache"))

    def accept(self, *args: str) -> None:
        """Write the snapshots of everything that passes."""
        self.run("-q", "--snapshot-update", *args)

    def collected(self, *args: str) -> list[str]:
        """Return the node ids that `--collect-only -q` prints."""
        result = self.start("--collect-only", "-q", *args)
        return [line for line in result.outlines if "::" in line]

    def snapshots(self) -> dict[str, bytes]:
        """Return the content of every snapshot file."""
        found = (path for path in self.root.rglob("*.txt") if "__prompts__" in path.parts)
        return {path.relative_to(self.root).as_posix(): path.read_bytes() for path in found}

    def failures(self, *args: str) -> list[str]:
        """Return the whole text of each failure of a run, those that repeat another one too."""
        file = self.root / "report.xml"
        self.run(*args, "--junitxml", str(file))
        return [found.text or "" for found in ElementTree.parse(file).iter("failure")]
