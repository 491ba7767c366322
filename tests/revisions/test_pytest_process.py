"""pytest for one side of a comparison: a process of its own, forked where pytest is not loaded yet, else started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from promptfmt_command import write_task

from pytest_promptfmt.core.errors import PromptfmtError, SettingsError
from pytest_promptfmt.revisions.pytest_process import RevisionError, run_pytest

FORKED = """
import json, sys
from pathlib import Path
from pytest_promptfmt.revisions.pytest_process import run_pytest
try:
    run_pytest(Path(sys.argv[1]), json.loads(sys.argv[2]), [])
except Exception as error:
    print(type(error).__name__, error)
assert "pytest" in sys.modules, "it was forked from here"
"""


def problem(folder: Path, way: str, *options: str) -> str:
    """Return the type and the message of the error, empty where there was none."""
    if way == "forked":
        command = [sys.executable, "-c", FORKED, str(folder), json.dumps(options)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    try:
        run_pytest(folder, options, [])
    except PromptfmtError as error:
        return f"{type(error).__name__} {error}"
    return ""


def test_the_command_has_not_loaded_pytest_before_it_forks() -> None:
    code = "import sys, pytest_promptfmt.cli.diff; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("way", ["started", "forked"])
def test_a_wrong_option_is_an_error_of_settings_without_the_words_of_pytest(way: str, tmp_path: Path) -> None:
    write_task(tmp_path, "a")
    found = problem(tmp_path, way, "--promptfmt-profile=nosuch")
    assert found.startswith(f"{SettingsError.__name__} unknown profile 'nosuch'")


@pytest.mark.parametrize("way", ["started", "forked"])
def test_a_run_that_does_not_finish_is_an_error_with_what_it_printed(way: str, tmp_path: Path) -> None:
    write_task(tmp_path, "a")
    (tmp_path / "conftest.py").write_text(
        "import sys, pytest\n"
        "def pytest_sessionstart():\n"
        "    print('no room left', file=sys.stderr)\n"
        "    pytest.exit('stop', returncode=7)\n",
        "utf-8",
    )
    found = problem(tmp_path, way)
    assert found.startswith(f"{RevisionError.__name__} pytest ended with 7: ")
    assert "no room left" in found


@pytest.mark.parametrize("way", ["started", "forked"])
def test_variables_of_pytest_and_of_ci_are_not_those_of_the_run(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path, "a")
    lines = ("import json, os", "open('seen.json', 'w').write(json.dumps([os.getcwd(), dict(os.environ)]))")
    (tmp_path / "conftest.py").write_text("\n".join(lines), "utf-8")
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "GITHUB_STEP_SUMMARY", "OWN"):
        monkeypatch.setenv(name, "--nothing")
    monkeypatch.chdir(tmp_path.parent)
    assert problem(tmp_path, way) == ""
    folder, variables = json.loads((tmp_path / "seen.json").read_text("utf-8"))
    assert Path(folder).samefile(tmp_path)
    assert not {"PYTEST_ADDOPTS", "PYTEST_PLUGINS", "GITHUB_STEP_SUMMARY"} & variables.keys()
    assert variables["OWN"] == "--nothing"
    assert variables["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] == "1"


def test_a_folder_without_tests_and_one_with_failures_end_well(tmp_path: Path) -> None:
    assert problem(tmp_path, "started") == ""
    write_task(tmp_path, "a")  # without a snapshot it fails
    assert problem(tmp_path, "started") == ""
