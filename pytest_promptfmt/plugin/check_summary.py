"""A run of all tests of task files that is not shown as pytest shows it: only what it finds out comes back."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_promptfmt.core.errors import SettingsError, display_path
from pytest_promptfmt.plugin.collected import start
from pytest_promptfmt.plugin.progress import Steps
from pytest_promptfmt.plugin.run import OUTCOMES_ONLY
from pytest_promptfmt.plugin.unchanged import UnchangedFiles, UnchangedItem
from pytest_promptfmt.results.run_result import RunResult


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckSummary:
    """What a run found out. `files` were tested, `unchanged` of them are as they were in an earlier run.

    `remarks` are warnings and what could not be collected. Unless `is_good`, pytest ends with a failure for the same.
    """

    result: RunResult
    is_good: bool
    files: int
    unchanged: int
    remarks: tuple[str, ...]


def check(paths: Sequence[Path], options: Sequence[str]) -> CheckSummary:
    """Return what `pytest --promptfmt` finds out about these paths; raises SettingsError where it cannot run."""
    steps = Steps()
    taker = _Taker(steps)
    try:
        status = start([*options, *map(str, paths)], taker)
    finally:
        steps.end()
    if taker.result is None:
        raise SettingsError(f"pytest ended with status {status} before anything was tested")
    return CheckSummary(
        result=taker.result,
        is_good=status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED),
        files=taker.files,
        unchanged=taker.unchanged,
        remarks=tuple(dict.fromkeys(taker.remarks)),
    )


class _Taker:
    """A plugin that takes what a run finds out, and shows how far it is."""

    def __init__(self, steps: Steps) -> None:
        self.result: RunResult | None = None
        self.files = self.unchanged = 0
        self._steps = steps
        self._read = self._run = self._all = 0
        self.remarks: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[OUTCOMES_ONLY] = True

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: Sequence[pytest.Item]) -> None:
        same = [item for item in items if isinstance(item, UnchangedItem | UnchangedFiles)]
        self.unchanged = sum(len(item.files) for item in same)
        self.files = self.unchanged + len({item.path for item in items} - {item.path for item in same})
        self._all = len(items) - len(same)

    def pytest_runtest_logfinish(self) -> None:
        self._run += 1
        self._steps.show("tests", self._run, self._all)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._read += 1
        self._steps.show("files, folders and tasks read", self._read)
        if report.failed:
            self.remarks.append(report.longreprtext)

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str) -> None:
        if when != "config":  # about pytest, which nobody asked for here
            self.remarks.append(f"{display_path(Path(warning_message.filename))}: {warning_message.message}")

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self, config: pytest.Config) -> None:
        closing = config.pluginmanager.get_plugin("promptfmt-Closing")
        self.result = closing.result if closing is not None else None
