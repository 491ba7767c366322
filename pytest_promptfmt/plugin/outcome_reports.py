"""Outcomes in pytest's reports: sent with those of items, counted, and shown at the end of a run, also of a cut one."""

from __future__ import annotations

import shlex
from collections.abc import Generator
from functools import cached_property
from typing import Any, Final, NoReturn

import pytest

from pytest_promptfmt.core import writing
from pytest_promptfmt.core.errors import traceback_of_user
from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.core.release import numbers_of
from pytest_promptfmt.core.text import escape_controls
from pytest_promptfmt.engine.processes import on_sigterm
from pytest_promptfmt.plugin.items.item import PromptItem
from pytest_promptfmt.plugin.run import Run
from pytest_promptfmt.plugin.worker_processes import has_other_plugins
from pytest_promptfmt.results.failures import FailureText
from pytest_promptfmt.results.pending import Edit, keep_last_run, last_run_of
from pytest_promptfmt.results.run_result import RunResult, Tally, content_of, used_globs
from pytest_promptfmt.results.terminal import archetypes_of, finding_lines, release_note, sections
from pytest_promptfmt.results.wording import counted
from pytest_promptfmt.results.writers import publish
from pytest_promptfmt.snapshots import extension as snapshots

_FIRST_WITH_YAML: Final = [0, 4]
"""The numbers of the first lm-eval whose tasks are YAML."""

REPEATED: Final = "repeated"
"""The status of failures with the cause of an earlier one, until pytest has printed all failures."""


class OutcomeReports:
    """The hooks of reports, with their outcomes."""

    def __init__(self, config: pytest.Config, tally: Tally) -> None:
        self._config = config
        self._tally = tally

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach the outcome of one of our items to its report."""
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
        """Send the outcome with the report of a worker."""
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
        """Count the outcome, and drop reports that pytest would keep to the end of the run.

        The terminal keeps those that passed only to count them, and for --durations, `-rp`, `-rP` and other summaries.
        """
        if getattr(report, "promptfmt_not_run", False):
            self._tally.not_run.append(report.nodeid)
        outcome: Outcome | None = getattr(report, "promptfmt", None)
        if outcome is not None:
            del report.promptfmt  # pytest keeps every report to the end of the run
            report.promptfmt_repeats = repeats = self._tally.add(outcome, report.nodeid)  # type: ignore[attr-defined]
            if report.failed and outcome.category == "finding" and not repeats:
                self._tally.failures.update(error.cluster for error in outcome.errors)
            if isinstance(report.longrepr, str):
                report.longrepr = FailureText(escape_controls(report.longrepr))
            report.sections = [(escape_controls(heading), escape_controls(text)) for heading, text in report.sections]
        yield
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        if not report.passed or reporter is None or self._config.option.durations is not None:
            return
        kept = reporter.stats.get("passed" if report.when == "call" else "")
        if not kept or kept[-1] is not report:
            return
        if report.when != "call":
            kept.pop()
        elif outcome is not None and not self._shows_passed:
            kept[-1] = kept[0]

    @cached_property
    def _shows_passed(self) -> bool:
        """Return whether the summary of this run, or that of another plugin, may show tests that passed."""
        reporter: Any = self._config.pluginmanager.getplugin("terminalreporter")
        return any(map(reporter.hasopt, "pP")) or has_other_plugins(self._config, ["pytest_terminal_summary"])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
        """Count repeated failures with the others, now that failures and short summary are printed."""
        yield
        repeats = terminalreporter.stats.pop(REPEATED, [])
        if repeats:
            terminalreporter.stats.setdefault("failed", []).extend(repeats)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Return a separate status for failures that repeat an earlier one, so that pytest does not print each again.

        Its failure section takes time quadratic in the failed reports. Exit status, JUnit files and --lf use the report
        itself and count every one as failed.
        """
        if report.failed and getattr(report, "promptfmt_repeats", False):
            return REPEATED, "F", "FAILED"
        return None


def _error_of_user(info: pytest.ExceptionInfo[BaseException] | None) -> pytest.ExceptionInfo[BaseException] | None:
    """Return the error to open in the debugger: that of the task's own function instead of its caller."""
    cause = info.value.__cause__ if info is not None else None
    traceback = traceback_of_user(cause) if cause is not None else None
    if cause is None or traceback is None:
        return info
    return pytest.ExceptionInfo.from_exc_info((type(cause), cause.with_traceback(traceback), traceback))


class Interruption:
    """The hooks that end a run early; outcomes of finished files are cached at the end of each run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._waiting: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Note the tests that will run, and run them."""
        if not session.config.option.collectonly:
            self._waiting = {item.nodeid for item in session.items if isinstance(item, PromptItem)}
        with on_sigterm(_exit):
            return (yield)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note that a test has run."""
        self._waiting.discard(nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Add a line about the tests that did not run."""
        if not self._waiting:
            return
        kept = (
            "; the results of finished files are cached, so the next run continues with the others"
            if self._run.cache.is_on
            else ""
        )
        text = f"the run ended early: {counted(len(self._waiting), 'prompt test')} did not run{kept}"
        self._run.found.notes.append(text)
        self._run.tally.not_run.extend(sorted(self._waiting))


def _exit() -> NoReturn:
    pytest.exit("terminated by SIGTERM")  # with another exit status pytest would show no summary


class Closing:
    """The hooks of the end of a run, in the process that has the terminal."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._notes: list[str] = []
        self._exit_status: int | None = None
        self.result: RunResult | None = None

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the lock if this run may; with more shards than files some are empty, which is allowed."""
        run, option = self._run, session.config.option
        for folder in (*run.expected.visited_folders(), run.settings.rootdir):
            writing.remove_left_over(folder)
        if option.update_snapshots or option.update_new_snapshots_only:
            self._notes += run.lock.renew(run.tally.tokenizers, only_new=not option.update_snapshots)
        else:
            self._notes += run.lock.out_of_date(run.tally.tokenizers)
        if run.found.other_shards and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK
        self._exit_status = int(session.exitstatus)

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, exitstatus: int | pytest.ExitCode
    ) -> None:
        """Print each distinct problem once, and write the requested files."""
        result, written = self._close(int(exitstatus))
        repeats = len(terminalreporter.stats.get(REPEATED, ()))
        if repeats:
            failed = len(terminalreporter.stats.get("failed", ())) + repeats
            written.append(f"{failed:,} failed; {repeats:,} of them for the same cause as a failure above")
        verbosity, option = self._run.config.get_verbosity(), self._run.config.option
        has_failures = option.tbstyle not in ("no", "line") and not option.no_summary
        above = self._run.tally.failures if has_failures else ()
        findings = finding_lines(result.findings, is_verbose=verbosity > 0, result=result, above=above)
        for title, lines in sections(result, verbosity=verbosity, more=written, findings=findings):
            terminalreporter.section(title)
            for line in lines:
                terminalreporter.write_line(escape_controls(line))

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Write the files also if nothing is printed: with `-p no:terminal`, and `--no-summary` of pytest 8."""
        is_silent = config.getoption("no_summary", False) or not config.pluginmanager.has_plugin("terminalreporter")
        if self._exit_status is not None and self.result is None and is_silent:
            self._close(self._exit_status)

    @property
    def _has_header(self) -> bool:
        config = self._run.config
        return config.pluginmanager.has_plugin("terminalreporter") and config.get_verbosity() >= 0

    def _close(self, exit_status: int) -> tuple[RunResult, list[str]]:
        """Write the requested files; return the result of the run, and a line for each file."""
        run = self._run
        tally, outputs, found, folders = run.tally, run.outputs, run.found, run.folders
        tally.add_obsolete(snapshots.obsolete_snapshots(run.config))
        outcomes = tally.in_order()
        notes = [*found.notes, *self._notes, *run.expected.notes()]
        if not found.has_items and not notes and not found.unmatched and not found.other_shards:
            notes.append(_nothing_here(found.template_folders, run.settings.release.version))
        elif found.has_items and not run.settings.release.is_compared and not self._has_header:
            notes.append(release_note(run.settings))
        lock = run.lock.would_write(tally.tokenizers)
        baseline = run.baseline.result(
            outcomes, defined=found.defined, codes_for=folders.codes_for, not_run=tally.not_run
        )
        result = RunResult(
            rootdir=run.settings.rootdir,
            arguments=tuple(run.config.invocation_params.args),
            patch=outputs.patch,
            exit_status=exit_status,
            outcomes=outcomes,
            counts=tally.counts,
            edits=tuple(tally.edits()) if outputs.needs_edits else (),
            lock=None if lock is None else Edit(path=lock[0], old=content_of(lock[0]), new=lock[1].encode()),
            baseline=baseline,
            archetypes=archetypes_of(run.settings),
            not_run=tuple(tally.not_run),
            unmatched=tuple(found.unmatched),
            unmatched_globs=tuple(dict.fromkeys(folders.unmatched_globs(used_globs(outcomes)))),
            notes=tuple(notes),
            defined=None if outputs.left_out is None else found.defined,
            earlier=outputs.earlier,
        )
        self.result = result
        # Without pytest's cache nothing is kept, unless a review shows the result.
        is_kept = getattr(run.config, "cache", None) is not None or any(name == "pending" for name, _ in outputs.files)
        is_run = found.has_items and exit_status != pytest.ExitCode.USAGE_ERROR and not run.config.option.collectonly
        if is_run and is_kept and (outcomes or not found.unmatched):
            keep_last_run(last_run_of(result.rootdir, outcomes, run.settings.repeat))
        return result, list(publish(result, outputs.files, step_summary=outputs.step_summary))


def _nothing_here(template_folders: list[str], release: str) -> str:
    """Return the note of a run without tests; chat templates below the rootdir are tested only in named folders."""
    if not template_folders and numbers_of(release) < _FIRST_WITH_YAML:
        return f"there is no task file here: lm-eval {release} defines tasks in Python, but only YAML tasks are tested"
    if not template_folders:
        return "there is no task file here; `promptfmt init` writes an example"
    named = " ".join(map(shlex.quote, sorted(template_folders)))
    return f"there is no task file here; to test the chat templates in these folders, run `promptfmt check {named}`"
