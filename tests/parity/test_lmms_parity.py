"""Prompts of lmms-eval's tasks are its own: texts, content parts and requests.

Needs a checkout, whose package cannot be installed without torch: PROMPTFMT_LMMS_EVAL=DIR, and the packages that it
imports (`pip install loguru tenacity pillow openai tqdm pytz`). PROMPTFMT_PARITY=all compares 200 tasks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.parity, pytest.mark.slow]

FOLDER = os.environ.get("PROMPTFMT_LMMS_EVAL", "")
COUNT = 200 if os.environ.get("PROMPTFMT_PARITY") == "all" else 20


def test_prompts_are_those_of_lmms_eval(tmp_path: Path) -> None:
    if not FOLDER or not Path(FOLDER, "lmms_eval").is_dir():
        pytest.skip("a checkout of lmms-eval is not there: set PROMPTFMT_LMMS_EVAL")
    script = Path(__file__).with_name("lmms_comparison.py")
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    environment = {**os.environ, **offline, "PYTHONPATH": os.pathsep.join([FOLDER, str(script.parents[2])])}
    command = [sys.executable, str(script), str(COUNT), "7"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["tasks"] == COUNT, found["left"]
    assert found["chat"] > COUNT
    assert found["media"] > COUNT // 2
    assert not found["wrong"], "\n".join(found["wrong"][:10])
