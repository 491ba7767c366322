"""How the outcome of an item travels with pytest's report of it, to where the outcomes of a run are counted."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

import pytest

from pytest_promptfmt.core.errors import traceback_of_user
from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.core.text import escape_controls
from pytest_promptfmt.plugin.items.item import PromptItem
from pytest_promptfmt.results.failures import FailureText
from pytest_promptfmt.results.run_result import Tally

REPEATED: Final = "repeated"
"""How failures with the cause of an earlier one are set apart until pytest has printed all failures."""


class OutcomeReports:
    """The hooks of reports. Outcomes are counted here, and under xdist in the controller as well."""

    def __init__(self, tally: Tally, *, is_worker: bool) -> None:
        self._tally = tally
        self._is_worker = is_worker

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Let the report carry what became of one of our items."""
        report = yield
        if call.when != "call" and report.failed and isinstance(item, PromptItem):
            report.promptfmt_not_run = True  # type: ignore[attr-defined]
        if call.when == "call" and isinstance(item, PromptItem) and item.outcome is not None:
            outcome, item.outcome = item.outcome, None  # pytest keeps every item to the end of the run
            report.promptfmt = outcome  # type: ignore[attr-defined]
            if report.skipped and not hasattr(report, "wasxfail"):
                # pytest names the line of the module that called skip; the reader wants the task's.
                path, line, _ = item.location
                report.longrepr = (path, (line or 0) + 1, escape_controls(f"Skipped: {outcome.title}"))
            if report.failed and item.config.getoption("usepdb", False):
                call.excinfo = _error_of_user(call.excinfo)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_report_to_serializable(self, report: pytest.TestReport) -> Generator[None, Any, Any]:
        """Send the outcome with the report of an xdist worker."""
        data = yield
        outcome = getattr(report, "promptfmt", None)
        return {**data, "promptfmt": outcome.to_json()} if data is not None and outcome is not None else data

    @pytest.hookimpl(wrapper=True)
    def pytest_report_from_serializable(self) -> Generator[None, Any, Any]:
        """Read the outcome that came with a report."""
        report = yield
        if report is not None and hasattr(report, "promptfmt"):
            report.promptfmt = Outcome.from_json(report.promptfmt)
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, None, None]:
        """Count the outcome."""
        if getattr(report, "promptfmt_not_run", False):
            self._tally.not_run.append(report.nodeid)
        outcome: Outcome | None = getattr(report, "promptfmt", None)
        if outcome is not None:
            if not self._is_worker:
                del report.promptfmt  # pytest keeps every report to the end of the run
            report.promptfmt_repeats = self._tally.add(outcome, report.nodeid)  # type: ignore[attr-defined]
            if isinstance(report.longrepr, str):
                report.longrepr = FailureText(escape_controls(report.longrepr))
        yield

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
        """Count repeated failures with the others, now that failures and short summary are printed."""
        yield
        repeats = terminalreporter.stats.pop(REPEATED, [])
        if repeats:
            terminalreporter.stats.setdefault("failed", []).extend(repeats)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Set failures apart that repeat an earlier one, so that pytest does not print each again.

        Its failure section takes time quadratic in the failed reports. Exit status, JUnit files and --lf look at the
        report itself and see every one as failed.
        """
        if report.failed and getattr(report, "promptfmt_repeats", False):
            return REPEATED, "F", "FAILED"
        return None


def _error_of_user(info: pytest.ExceptionInfo[BaseException] | None) -> pytest.ExceptionInfo[BaseException] | None:
    """Return what the debugger opens: the task's own function where that failed, not what called it."""
    cause = info.value.__cause__ if info is not None else None
    traceback = traceback_of_user(cause) if cause is not None else None
    if cause is None or traceback is None:
        return info
    return pytest.ExceptionInfo.from_exc_info((type(cause), cause.with_traceback(traceback), traceback))
