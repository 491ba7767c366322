"""An optional slice can be deleted: its folder and its line in a registry, and everything else works without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pytest_promptfmt"
IMPORT_ALL = """
import importlib, pkgutil, pytest_promptfmt
for module in pkgutil.walk_packages(pytest_promptfmt.__path__, "pytest_promptfmt."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(pytest_promptfmt.__file__)
"""


@dataclass(frozen=True)
class Slice:
    """A folder of the package, and the line that names it in a registry."""

    folder: str
    registry: str
    line: str


SLICES = (
    Slice("systems/helm", "systems/__init__.py", '    "helm",\n'),
    Slice("systems/eval_framework", "systems/__init__.py", '    "eval_framework",\n'),
    Slice("systems/templates", "systems/__init__.py", '    "templates",\n'),
    Slice("models", "rules/rule_registry.py", '"models.model_rules",'),
)


@pytest.fixture
def without(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a folder with a copy of the package that lacks a slice, and the gallery of tasks."""
    part: Slice = request.param
    copy = tmp_path / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(copy / part.folder)
    registry = copy / part.registry
    text = registry.read_text("utf-8")
    assert text.count(part.line) == 1
    registry.write_text(text.replace(part.line, ""), "utf-8")
    shutil.copytree(ROOT / "fixtures" / "tasks", tmp_path / "tasks")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", "utf-8")
    return tmp_path


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTEST_ADDOPTS": "-p no:hypothesispytest"}
    return subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True)


def ids(part: Slice) -> str:
    return part.folder


@pytest.mark.parametrize("without", SLICES, ids=ids, indirect=True)
def test_every_other_module_imports_without_a_slice(without: Path) -> None:
    done = python(without, "-c", IMPORT_ALL)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(without)


@pytest.mark.parametrize("without", SLICES, ids=ids, indirect=True)
def test_the_gallery_passes_without_a_slice(without: Path) -> None:
    done = python(without, "-m", "pytest", "--promptfmt", "-q", "-ra", "tasks")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " failed" not in done.stdout
    assert " passed" in done.stdout


@pytest.mark.parametrize("without", SLICES[-1:], ids=ids, indirect=True)
def test_asking_a_model_without_the_slice_ends_with_one_message(without: Path) -> None:
    done = python(without, "-m", "pytest", "--promptfmt", "--promptfmt-model", "tiny", "tasks")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    said = "--promptfmt-model needs pytest_promptfmt.models, which this installation lacks"
    assert done.stderr.strip() == f"ERROR: promptfmt: {said}"
