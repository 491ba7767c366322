"""Prompts and requests are those of older releases of lm-eval, on tasks of their own trees.

Needs the files of the releases, which no environment holds together: `pip install --no-deps --target DIR/0.4.9
lm_eval==0.4.9` and so on, and PROMPTFMT_LM_EVAL_RELEASES=DIR. PROMPTFMT_PARITY=all compares 400 tasks of each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.release import OLDEST, release_of
from pytest_promptfmt.tasks import value_kinds
from pytest_promptfmt.tasks.harness import Harness

pytestmark = [pytest.mark.parity, pytest.mark.slow]

FOLDER = os.environ.get("PROMPTFMT_LM_EVAL_RELEASES", "")
COUNT = 400 if os.environ.get("PROMPTFMT_PARITY") == "all" else 20


RELEASES = ("0.4.3", "0.4.4", "0.4.5", "0.4.7", "0.4.8", "0.4.9", "0.4.10", "0.4.11", "0.4.12")


def package_of(version: str) -> Path:
    """Return the folder of a release's package; skips the test without it."""
    if not FOLDER or not Path(FOLDER, version, "lm_eval").is_dir():
        pytest.skip("the files of the release are not there: set PROMPTFMT_LM_EVAL_RELEASES")
    return Path(FOLDER, version, "lm_eval")


@pytest.mark.parametrize("version", RELEASES)
def test_the_code_of_a_release_tells_which_it_is_like(version: str, tmp_path: Path) -> None:
    package = tmp_path / "lm_eval"  # nothing next to it states a version
    package.symlink_to(package_of(version), target_is_directory=True)
    found = Harness(package, is_installed=False).release
    assert found in data_table("release_code") or (not found and version == OLDEST)
    assert not release_of(found or OLDEST).differs_from(release_of(version))


@pytest.mark.parametrize("version", RELEASES)
def test_the_keys_that_stop_a_task_are_those_of_the_release(version: str) -> None:
    """Every key of 0.4.13 is given to the release's own `TaskConfig`."""
    package = package_of(version)
    script = (
        "import json, sys, types\n"
        "package = sys.modules['lm_eval'] = types.ModuleType('lm_eval')\n"  # its `__init__` imports torch
        "package.__path__ = [sys.argv[1]]\n"
        "from lm_eval.api.task import TaskConfig\n"
        "refused = []\n"
        "for key in json.loads(sys.argv[2]):\n"
        "    try:\n"
        "        TaskConfig(**{key: None})\n"
        "    except TypeError as error:\n"
        "        refused += [key] if 'unexpected keyword' in str(error) else []\n"
        "print(json.dumps(refused))"
    )
    keys = [*value_kinds()]
    command = [sys.executable, "-c", script, str(package), json.dumps(keys)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    outside = {"tag", "group", "task_list", "include", "class"}  # taken out before
    assert {*json.loads(ran.stdout)} - outside == release_of(version).unknown_keys


@pytest.mark.parametrize("version", RELEASES)
def test_prompts_and_requests_are_those_of_the_release(version: str) -> None:
    package = package_of(version)
    script = Path(__file__).with_name("release_comparison.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(package.parent), str(script.parent)])}
    command = [sys.executable, str(script), version, str(COUNT), "7"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(ran.stdout)
    assert found["tasks"] == COUNT
    assert found["texts"] > 50 * COUNT
    assert not found["wrong"], "\n".join(found["wrong"][:10])
