"""What an audit hook sees of the code of tasks; a hook cannot be removed, so each trace has its own process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WRITING = """
import sys
from pathlib import Path

from pytest_promptfmt.inputs.traces import Trace

trace = Trace(lambda path: False)
trace.begin()
Path(sys.argv[1]).write_text("")
print({refused for _, _, refused in trace.taken()} - {""})
"""


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("hub/modules/__init__.py", set()),
        ("hub/modules/data.txt", {"a file that the code writes"}),
        ("other/__init__.py", {"a file that the code writes"}),
    ],
)
def test_only_the_marker_of_a_new_cache_is_written_without_a_refusal(
    tmp_path: Path, name: str, refused: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    (tmp_path / name).parent.mkdir(parents=True)
    run = subprocess.run(
        [sys.executable, "-c", WRITING, str(tmp_path / name)], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == str(refused)
