"""Outcomes that depend on the order of a set, found by running tests in other processes with other hash seeds.

Python orders the strings of a set by hashes, which differ between processes (`PYTHONHASHSEED`): a prompt that shows
such an order is another one in each run, so its outcome is not cached. Only files whose code may depend on it are run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from xml.etree import ElementTree

import pytest

from pytest_promptfmt.inputs.places import digest_of

_SEEDS: Final = ("1", "2", "3", "4")
"""All of them order the same two strings alike in one of eight cases."""

_AT_ONCE: Final = 2
"""The number of processes that run at the same time; each has the memory of what tasks import."""

_MOST_SECONDS: Final = 600
"""The time for all of them."""

_START: Final = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); import pytest; sys.exit(pytest.main())"
_ISOLATION: Final = "pytest_promptfmt.plugin.isolation"


def varying(config: pytest.Config, files: Collection[Path]) -> frozenset[Path]:
    """Return the files whose outcomes are not the same under each of some hash seeds; all if that is unknown."""
    if not files:
        return frozenset()
    with TemporaryDirectory(prefix="promptfmt-") as folder:
        runs: list[subprocess.Popen[bytes]] = []
        end = time.monotonic() + _MOST_SECONDS
        try:
            for number, seed in enumerate(_SEEDS, 1):
                runs.append(_start(config, files, seed, Path(folder, seed)))
                for run in runs if number % _AT_ONCE == 0 else ():
                    run.wait(max(0, end - time.monotonic()))
            found = [_reports_in(Path(folder, seed)) for seed in _SEEDS]
        except (OSError, ElementTree.ParseError, subprocess.TimeoutExpired):
            return frozenset(files)
        finally:
            for run in runs:
                run.kill()
                run.wait()
    names = {path: os.path.relpath(path, config.rootpath) for path in files}
    digests = {path: [each.get(name) for each in found] for path, name in names.items()}
    return frozenset(path for path, each in digests.items() if None in each or len(set(each)) > 1)


def _start(config: pytest.Config, files: Collection[Path], seed: str, output: Path) -> subprocess.Popen[bytes]:
    plugins = ["syrupy", "promptfmt", "no:cacheprovider", "no:xdist"]
    plugins += [_ISOLATION] if config.pluginmanager.hasplugin(_ISOLATION) else []
    options = [f"-p{name}" for name in plugins]
    options += ["--promptfmt", "--promptfmt-no-cache", "--promptfmt-workers=1", "-q"]
    options += [f"--junitxml={output}", f"--rootdir={config.rootpath}"]
    options += ["-c", str(config.inipath)] if config.inipath is not None else []
    options += [f"--override-ini={each}" for each in config.getoption("override_ini") or ()]
    options += ["--override-ini=junit_family=xunit1"]  # which names the files of tests
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


def _reports_in(path: Path) -> dict[str, str]:
    """Return a digest of the reports of each file, without their times, by its path below the rootdir."""
    found: dict[str, list[bytes]] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        case.attrib.pop("time", None)
        found.setdefault(case.get("file", ""), []).append(ElementTree.tostring(case))
    return {file: digest_of(b"\n".join(reports)) for file, reports in found.items()}
