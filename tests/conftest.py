"""Fixtures of all tests: pytester, and runs without lint items and cached outcomes, which have their own tests."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from plugin_project import Project

from pytest_promptfmt.core import limits

pytest_plugins = ["pytester"]

# Hypothesis' own plugin imports much at the end of each run, a quarter of the time of a small one. A second worker
# takes another quarter; tests/engine/test_workers.py and the runs of test_faults.py have several.
RUN_OPTIONS = "-o promptfmt_lint=false -p no:hypothesispytest --promptfmt-no-cache --promptfmt-workers=1"

# On a busy machine any example takes long. Examples share the folder of their test: each writes all that it reads.
_UNCHECKED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("promptfmt", settings(), deadline=None, suppress_health_check=_UNCHECKED)
settings.load_profile("promptfmt")


# Where pytest looks for settings, from the folder of a run up to the root.
_CONFIGURING = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")


def pytest_configure(config: pytest.Config) -> None:
    chosen = config.getoption("basetemp") or os.environ.get("PYTEST_DEBUG_TEMPROOT") or tempfile.gettempdir()
    folder = Path(chosen).resolve()
    for file in (above / name for above in (folder, *folder.parents) for name in _CONFIGURING):
        if file.exists():
            raise pytest.UsageError(
                f"{file} configures the runs that tests start below {folder}: remove it, or set TMPDIR"
            )
    limits.apply_here()  # as in a worker
    os.environ["PYTEST_ADDOPTS"] = RUN_OPTIONS
    for variable in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
        os.environ.pop(variable, None)  # runs that a test starts are no workers of the run that the test is in
    if getattr(config, "cache", None) is not None:  # not the caches of whoever runs the tests
        os.environ.setdefault("PROMPTFMT_CACHE_DIR", str(config.cache.mkdir("promptfmt")))


@pytest.fixture
def pytester(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_ADDOPTS", RUN_OPTIONS)  # pytester discards what was set outside
    for variable in ("CI", "BUILD_NUMBER"):  # where they are set, pytest prints more
        monkeypatch.delenv(variable, raising=False)
    return pytester


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for what several tests of a module begin with."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def project(pytester: pytest.Pytester) -> Project:
    """Return the folder that a test of the plugin works in."""
    return Project(pytester)


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """Return the folder in which each program and module that should not run leaves a file."""
    folder = tmp_path / "ran"
    folder.mkdir()
    return folder


SETTLED = """
def pytest_configure(config):
    from pytest_promptfmt.inputs import contents

    contents._SETTLED_NS = 0
"""


@pytest.fixture
def cached_project(
    project: Project, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Project:
    """Return a folder in which runs cache outcomes, also those of files that have just changed.

    Two seconds are for file systems that count in such steps; a test would have to wait for them.
    """
    project.write("settled.py", SETTLED)
    monkeypatch.setenv("PROMPTFMT_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest -p settled --promptfmt-workers=1")
    return project
