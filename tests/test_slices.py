"""An optional slice can be deleted: its folder and its line in a registry, and everything else works without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from slices import PACKAGE, SLICES, Slice

ROOT = Path(__file__).parents[1]
IMPORT_ALL = """
import importlib, pkgutil, pytest_promptfmt
for module in pkgutil.walk_packages(pytest_promptfmt.__path__, "pytest_promptfmt."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(pytest_promptfmt.__file__)
"""
ALL = "all of them"
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__")


def deleted(name: str, package: Path) -> list[Slice]:
    """Delete a slice from a copy of the package, with its line in a registry, or all slices; return them."""
    parts = list(SLICES.values()) if name == ALL else [SLICES[name]]
    for part in parts:
        shutil.rmtree(package / part.folder)
        registry = package / part.registry
        text = registry.read_text("utf-8")
        assert text.count(part.line) == 1
        registry.write_text(text.replace(part.line, ""), "utf-8")
    return parts


@pytest.fixture
def without(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a folder with a copy of the package that lacks a slice, and the gallery of tasks."""
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=NOT_COPIED)
    deleted(request.param, tmp_path / PACKAGE.name)
    shutil.copytree(ROOT / "fixtures" / "tasks", tmp_path / "tasks")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", "utf-8")
    return tmp_path


@pytest.fixture
def repository_without(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a copy of the repository that lacks a slice and its tests, or all slices."""
    copy = tmp_path / "repository"
    shutil.copytree(ROOT, copy, ignore=NOT_COPIED, symlinks=True)
    for part in deleted(request.param, copy / PACKAGE.name):
        shutil.rmtree(copy / "tests" / part.tests)
    user = ("-c", "user.name=tests", "-c", "user.email=tests@localhost")
    for arguments in (("init", "--quiet"), ("add", "--all"), (*user, "commit", "--quiet", "--message=copy")):
        subprocess.run(["git", *arguments], cwd=copy, check=True)
    return copy


def python(folder: Path, *arguments: str, inside: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTEST_ADDOPTS": "-p no:hypothesispytest"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=inside or folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("without", [*SLICES, ALL], indirect=True)
def test_every_other_module_imports_without_a_slice(without: Path) -> None:
    done = python(without, "-c", IMPORT_ALL)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(without)


@pytest.mark.slow
@pytest.mark.parametrize("without", [*SLICES, ALL], indirect=True)
def test_the_gallery_passes_without_a_slice(without: Path) -> None:
    done = python(without, "-m", "pytest", "--promptfmt", "-q", "-ra", "tasks")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " failed" not in done.stdout
    assert " passed" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("without", ["models"], indirect=True)
def test_asking_a_model_without_the_slice_ends_with_one_message(without: Path) -> None:
    done = python(without, "-m", "pytest", "--promptfmt", "--promptfmt-model", "tiny", "tasks")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    said = "--promptfmt-model needs pytest_promptfmt.models, which is not installed"
    assert done.stderr.strip() == f"ERROR: promptfmt: {said}"


@pytest.mark.nightly
@pytest.mark.parametrize("repository_without", [*SLICES, ALL], indirect=True)
def test_all_other_tests_pass_without_a_slice(repository_without: Path, tmp_path: Path) -> None:
    found = python(
        repository_without, "-c", "import pytest_promptfmt; print(pytest_promptfmt.__file__)", inside=tmp_path
    )
    assert Path(found.stdout.strip()).is_relative_to(repository_without), "runs of tests import another copy"
    chosen = ("-m", "not nightly", "--ignore=tests/test_slices.py")
    done = python(repository_without, "-m", "pytest", "-q", "-rf", "-n", "auto", *chosen)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
