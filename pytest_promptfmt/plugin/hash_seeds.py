"""Outcomes that depend on the order of a set, found by running tests in other processes with other hash seeds.

Python orders the strings of a set by hashes, which differ between processes (`PYTHONHASHSEED`): a prompt that shows
such an order is another one in each run, so its outcome is not cached. Only files whose code may depend on it are run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from pytest_promptfmt.inputs.places import digest_of

_SEEDS: Final = ("1", "2", "3", "4")
"""All of them order the same two strings alike in one of eight cases."""

_MOST_SECONDS: Final = 600
_START: Final = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); import pytest; sys.exit(pytest.main())"
_ISOLATION: Final = "pytest_promptfmt.plugin.isolation"
_OPTION: Final = "--promptfmt-outcomes"


def varying(config: pytest.Config, files: Collection[Path]) -> frozenset[Path]:
    """Return the files whose outcomes are not the same under each of some hash seeds; all if that is unknown."""
    if not files:
        return frozenset()
    with TemporaryDirectory(prefix="promptfmt-") as folder:
        runs = [_start(config, files, seed, Path(folder, seed)) for seed in _SEEDS]
        try:
            for run in runs:
                run.wait(_MOST_SECONDS)
            found = [json.loads(Path(folder, seed).read_text("utf-8")) for seed in _SEEDS]
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return frozenset(files)
        finally:
            for run in runs:
                run.kill()
                run.wait()
    digests = {path: [digests.get(str(path)) for digests in found] for path in files}
    return frozenset(path for path, each in digests.items() if None in each or len(set(each)) > 1)


def _start(config: pytest.Config, files: Collection[Path], seed: str, output: Path) -> subprocess.Popen[bytes]:
    plugins = ["syrupy", "promptfmt", "no:cacheprovider", "no:xdist", __name__]
    plugins += [_ISOLATION] if config.pluginmanager.hasplugin(_ISOLATION) else []
    options = [f"-p{name}" for name in plugins]
    options += ["--promptfmt", "--promptfmt-no-cache", "--promptfmt-workers=1", "-q"]
    options += [f"{_OPTION}={output}", f"--rootdir={config.rootpath}"]
    options += ["-c", str(config.inipath)] if config.inipath is not None else []
    options += [f"--override-ini={each}" for each in config.getoption("override_ini") or ()]
    profiles = config.getoption("promptfmt_profile", None) or ()
    options += [f"--promptfmt-profile={profile}" for profile in profiles]
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _START, json.dumps(sys.path), *options, *map(str, files)],
        cwd=config.invocation_params.dir,
        env={**os.environ, "PYTHONHASHSEED": seed},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


# -- the plugin of these processes -------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the file of the result."""
    parser.addoption(_OPTION, type=Path)


def pytest_configure(config: pytest.Config) -> None:
    """Take the reports of all items."""
    config.pluginmanager.register(_Reports(config.rootpath, config.getoption("promptfmt_outcomes")))


class _Reports:
    """Writes a digest of the reports of each file."""

    def __init__(self, rootdir: Path, output: Path) -> None:
        self._rootdir = rootdir
        self._output = output
        self._found: dict[str, list[object]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            file = self._rootdir / report.nodeid.partition("::")[0]
            self._found.setdefault(str(file), []).append((report.nodeid, report.outcome, report.longreprtext))

    def pytest_sessionfinish(self) -> None:
        digests = {file: digest_of(repr(found).encode()) for file, found in self._found.items()}
        self._output.write_text(json.dumps(digests), "utf-8")
