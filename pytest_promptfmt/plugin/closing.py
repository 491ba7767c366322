"""The end of a run: the lock is written, the files that were asked for, and what the terminal shows."""

from __future__ import annotations

import pytest

from pytest_promptfmt.core.text import escape_controls
from pytest_promptfmt.plugin.outcome_reports import REPEATED
from pytest_promptfmt.plugin.run import Run
from pytest_promptfmt.results.pending import Edit, keep_last_run, last_run_of
from pytest_promptfmt.results.run_result import RunResult, content_of, used_globs
from pytest_promptfmt.results.terminal import archetypes_of, sections
from pytest_promptfmt.results.writers import publish
from pytest_promptfmt.snapshots import extension as snapshots
from pytest_promptfmt.snapshots.expected import left_over_files


class Closing:
    """The hooks of the end of a run, in the process that has the terminal."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._notes: list[str] = []
        self._exit_status: int | None = None
        self.result: RunResult | None = None

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the lock when this run may; with more shards than files, some have nothing to do, and that is well."""
        run, option = self._run, session.config.option
        for path in (*run.expected.left_over(), *left_over_files(run.settings.rootdir)):
            path.unlink(missing_ok=True)
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
        """Print what went wrong, each distinct problem once, and write the files that were asked for."""
        result, written = self._close(int(exitstatus))
        repeats = len(terminalreporter.stats.get(REPEATED, ()))
        if repeats:
            failed = len(terminalreporter.stats.get("failed", ())) + repeats
            written.append(f"{failed:,} failed, {repeats:,} of them repeats of a failure above")
        for title, lines in sections(result, verbosity=self._run.config.get_verbosity(), more=written):
            terminalreporter.section(title)
            for line in lines:
                terminalreporter.write_line(escape_controls(line))

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Write the files also where nothing is printed (`-p no:terminal`)."""
        if self._exit_status is not None and not config.pluginmanager.has_plugin("terminalreporter"):
            self._close(self._exit_status)

    def _close(self, exit_status: int) -> tuple[RunResult, list[str]]:
        """Write the files that were asked for; return the result of the run, and a line for each file."""
        run = self._run
        tally, outputs, found, folders = run.tally, run.outputs, run.found, run.folders
        tally.add_obsolete(snapshots.obsolete_snapshots(run.config))
        outcomes = tally.in_order()
        notes = list(self._notes)
        if not found.has_items and not notes and not found.unmatched and not found.other_shards:
            notes.append("there is no task file here; `promptfmt init` writes an example")
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
        )
        self.result = result
        if found.has_items and getattr(run.config, "cache", None) is not None and not run.config.option.collectonly:
            keep_last_run(last_run_of(result.rootdir, outcomes, run.settings.repeat))
        return result, list(publish(result, outputs.files, step_summary=outputs.step_summary))
