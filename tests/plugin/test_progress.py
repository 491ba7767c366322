"""How far a run is: one changing line on a terminal, lines at intervals in a log."""

import os
from pathlib import Path

import pytest
from plugin_project import Project

from pytest_promptfmt.plugin.progress import Pace, Progress


def test_a_log_gets_a_line_when_one_is_due(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        progress = Progress(log, pace=Pace(0))
        progress.show_read(3)
        progress.show_tests(1, 2000, 0)
        progress.show_tests(1_500, 2_000, 12)
        progress.end()
        progress.show_read(4)
    assert (tmp_path / "log").read_text() == (
        "promptfmt: 3 files, folders and tasks read\n"
        "promptfmt: 1 of 2,000 tests\n"
        "promptfmt: 1,500 of 2,000 tests, 12 failed\n"
    )


def test_a_short_run_leaves_nothing_in_a_log(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        progress = Progress(log, pace=Pace(3600))
        for number in range(1_000):
            progress.show_read(number)
            progress.show_tests(number, 1_000, 0)
        progress.end()
    assert (tmp_path / "log").read_text() == ""


def test_a_terminal_shows_a_changing_line_and_no_more_after_the_end() -> None:
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal:
        progress = Progress(terminal)
        progress.show_read(9)
        progress.show_read(10)
        progress.show_tests(7, 50, 0)
        progress.show_tests(50, 200, 0)
        progress.end()
        print("end", file=terminal, flush=True)
        shown = ""
        while not shown.endswith("end\r\n"):  # it comes in parts, and what a closed terminal holds may be lost
            shown += os.read(ours, 4096).decode()
    lines = ["", "promptfmt: 10 files, folders and tasks read", "promptfmt: 50 of 200 tests", "end\r\n"]
    assert shown.split("\r\x1b[2K") == lines
    os.close(ours)


def test_pytest_reports_in_a_log_how_many_files_were_read(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.task("arc.yaml")
    project.write(
        "conftest.py",
        "from pytest_promptfmt.plugin.progress import Pace, ReadingLines\n"
        "def pytest_configure(config):\n"
        "    config.pluginmanager.register(ReadingLines(config, pace=Pace(0)))\n",
    )
    assert "promptfmt: 2 files, folders and tasks read" in project.run("arc.yaml").outlines
    assert not any("tasks read" in line for line in project.run("arc.yaml", "-q").outlines)
