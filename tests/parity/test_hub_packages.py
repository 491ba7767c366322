"""Packages that load from a hub, as they are: what of them is imported for a task that only loads a metric."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

PUT_OFF = """
import importlib.util
import sys
from pytest_promptfmt.tasks.deferred_imports import Deferred, put_off

with put_off(b"import evaluate; evaluate.load('accuracy')"):
    import evaluate
    assert type(evaluate.load("accuracy")) is Deferred
assert evaluate.load.__module__.startswith("evaluate.")
assert "torch" not in sys.modules
assert "transformers.pipelines" not in sys.modules
assert importlib.util.find_spec("transformers.pipelines") is not None  # whoever wants it can still import it
"""


@pytest.mark.parity
@pytest.mark.skipif(importlib.util.find_spec("evaluate") is None, reason="evaluate is not installed")
def test_a_package_of_metrics_brings_no_framework_for_models() -> None:
    done = subprocess.run([sys.executable, "-c", PUT_OFF], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
