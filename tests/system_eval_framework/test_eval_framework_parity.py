"""Task classes, formatters and log-likelihood metrics against the real eval-framework, in an interpreter that has it.

eval-framework needs Python 3.12, and versions of libraries that do not go with those of the other parity tests.
CONTRIBUTING says how to make that interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.parity

VARIABLE = "PROMPTFMT_EVAL_FRAMEWORK_PYTHON"
ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("eval_framework_side.py")
GUIDE = ROOT.parent / "shared" / "seeds" / "004_bf14e405095dad9d.txt"
SECONDS = 550


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    python = os.environ.get(VARIABLE)
    if not python:
        pytest.skip(f"{VARIABLE} names no interpreter with eval-framework")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [python, str(SCRIPT), *([str(GUIDE)] if GUIDE.is_file() else [])],
        capture_output=True,
        text=True,
        cwd=tmp_path_factory.mktemp("side"),
        env=environment,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def test_nothing_differs_from_eval_framework(report: Any) -> None:
    shown = json.dumps(report["different"], indent=1, ensure_ascii=False)
    assert report["differences"] == 0, shown


def test_every_benchmark_of_eval_framework_was_fed(report: Any) -> None:
    assert report["unfed"] == {}


@pytest.mark.parametrize(
    ("kind", "tasks", "comparisons"),
    [
        ("samples of benchmarks", 130, 1300),
        ("messages, gold and candidates of hooks", 125, 2700),
        ("BaseTask against the benchmark it was made from", 125, 225),
        ("prompt of hooks, concat", 125, 1350),
        ("prompt of hooks, llama3", 125, 1350),
        ("formatter no-strip-concat", 130, 1400),
        ("metric DistributionalCorrectnessScore", 1, 2000),
        ("task styles as formats", 7, 70),
    ],
)
def test_so_much_was_compared(report: Any, kind: str, tasks: int, comparisons: int) -> None:
    assert report["tasks"].get(kind, 0) >= tasks
    assert report["equal"].get(kind, 0) >= comparisons


@pytest.mark.skipif(not GUIDE.is_file(), reason="the guide is not here")
def test_the_classes_of_the_guide_do_here_what_they_do_there(report: Any) -> None:
    assert report["tasks"]["guide as written"] == 4
    assert report["tasks"]["guide: not built without REVISION_LOCKFILE"] == 4
