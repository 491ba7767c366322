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

pytestmark = [pytest.mark.parity, pytest.mark.slow]

FOLDER = os.environ.get("PROMPTFMT_LM_EVAL_RELEASES", "")
COUNT = 400 if os.environ.get("PROMPTFMT_PARITY") == "all" else 20


RELEASES = ("0.4.3", "0.4.4", "0.4.5", "0.4.7", "0.4.8", "0.4.9", "0.4.10", "0.4.11", "0.4.12")


@pytest.mark.parametrize("version", RELEASES)
def test_prompts_and_requests_are_those_of_the_release(version: str) -> None:
    if not FOLDER or not Path(FOLDER, version, "lm_eval").is_dir():
        pytest.skip("the files of the release are not there: set PROMPTFMT_LM_EVAL_RELEASES")
    script = Path(__file__).with_name("release_comparison.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(FOLDER, version)), str(script.parent)])}
    command = [sys.executable, str(script), version, str(COUNT), "7"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(ran.stdout)
    assert found["tasks"] == COUNT
    assert found["texts"] > 50 * COUNT
    assert not found["wrong"], "\n".join(found["wrong"][:10])
