"""Items run in worker processes: the hooks that assign them, and that show the reports of workers and earlier runs.

A worker is a copy of this process after collection, so it has every item; it sends the reports of each. A task's own
code does not run in pytest's process, unless there are no workers.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import display_path
from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.core.text import escape_controls
from pytest_promptfmt.engine.confinement import Confinement
from pytest_promptfmt.engine.plan import Job
from pytest_promptfmt.engine.processes import uninterrupted
from pytest_promptfmt.engine.workers import Lost, Pool
from pytest_promptfmt.inputs.cached_files import Shown, is_new
from pytest_promptfmt.plugin.collection import warn_of_file
from pytest_promptfmt.plugin.item_results import is_sent, own_copy
from pytest_promptfmt.plugin.items.item import PromptItem
from pytest_promptfmt.plugin.printed_output import silenced
from pytest_promptfmt.plugin.run import Run
from pytest_promptfmt.plugin.unchanged import StoredItem, Unchanged, UnchangedItem, about
from pytest_promptfmt.plugin.worker_processes import (
    ItemRunner,
    confinement_of,
    error_of,
    has_other_plugins,
    limits_of,
)
from pytest_promptfmt.snapshots import extension as snapshots
from pytest_promptfmt.snapshots.paths import SnapshotPath
from pytest_promptfmt.tasks import import_shared

_MANY_JOBS: Final = 500
"""The number of tasks from which packages are imported once for all workers, and not by each."""

UNCHANGED: Final = "unchanged"
"""The status of items of unchanged files in pytest's summary."""


class WorkerRuns:
    """The hooks that run items of tasks instead of pytest."""

    def __init__(self, run: Run, workers: int) -> None:
        self._run = run
        self._config = run.config
        self._workers = workers
        self._worker: ItemRunner | None = None  # set in a worker
        self._shows_phases = False
        self._pool: Pool | None = None
        self._items: Sequence[pytest.Item] = ()
        self._comparisons: Counter[snapshots.Counted] = Counter()  # in syrupy's report, apart from those it knows
        self._is_known_to_syrupy = False
        self._numbers: dict[pytest.Item, int] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run one of our items in a worker, or, in that worker, here, and count unchanged files; pytest runs others."""
        if isinstance(item, Unchanged):
            self._count(item)
            self._tear_down(item, nextitem)
            return True
        if not self._workers or not isinstance(item, PromptItem) or not item.runs_in_worker:
            return None
        if self._worker is not None:
            self._worker.run(item, nextitem)
            return True
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports_of(item):
            self._show(item, report)
        self._tear_down(item, nextitem)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _tear_down(self, item: PromptItem | Unchanged, nextitem: pytest.Item | None) -> None:
        """Tear down fixtures of earlier items of other kinds that the next one does not need."""
        state: Any = item.session._setupstate
        if state.stack:
            call = pytest.CallInfo.from_call(lambda: state.teardown_exact(nextitem), when="teardown")
            if call.excinfo is not None:
                report = item.ihook.pytest_runtest_makereport(item=item, call=call)
                item.ihook.pytest_runtest_logreport(report=report)

    def _show(self, item: PromptItem | StoredItem, report: pytest.TestReport) -> None:
        """Show a report; with empty ones of setup and teardown if a plugin uses them."""
        show = item.ihook.pytest_runtest_logreport
        is_whole = report.when == "call" and self._shows_phases
        if is_whole:
            show(report=_passed(item, "setup", 0.0))
        show(report=report)
        if is_whole:
            show(report=_passed(item, "teardown", 0.0))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Plan the run, and let pytest's percentage be of the tests that are shown."""
        same = [item for item in session.items if isinstance(item, Unchanged)]
        others = [item for item in session.items if not isinstance(item, Unchanged)]
        reporter: Any = self._config.pluginmanager.getplugin("terminalreporter")
        self._run.cache.plan(others)
        if reporter is not None and self._config.get_verbosity() > 1:
            for path, decision in self._run.cache.decisions.items():
                reporter.write_line(escape_controls(f"{display_path(Path(path))}: {decision}"))
        wants_times = session.config.option.durations is not None
        self._shows_phases = wants_times or has_other_plugins(self._config, ["pytest_runtest_logreport"])
        wants_each = self._wants_each(reporter)
        again = [item for item in same if isinstance(item, UnchangedItem) and not item.is_counted]
        shown = sum(item.shown_count(quiet=wants_each) for item in again)
        # pytest's percentage is of it; if it were 0 since all items are only counted, the run would fail.
        session.testscollected = len(others) + shown or session.testscollected
        return (yield)

    def _count(self, item: Unchanged) -> None:
        """Count an unchanged file, and show the reports that are not only counted."""
        reporter: Any = self._config.pluginmanager.getplugin("terminalreporter")
        if item.is_counted and reporter is not None:
            reporter.stats.setdefault(UNCHANGED, []).extend(itertools.repeat(item, item.counted.passed))
        if isinstance(item, UnchangedItem) and not item.is_counted:
            wants_each = self._wants_each(reporter)
            if not wants_each and reporter is not None:
                passed = pytest.TestReport(item.nodeid, item.location, {}, "passed", None, "call")
                reporter.stats.setdefault("passed", []).extend(itertools.repeat(passed, item.counted.passed))
            self._show_again(item.stored(quiet=wants_each))
            item.cached.pack()
            if wants_each:
                return
        counted = item.counted
        self._run.tally.counts.update(counted.counts)
        for name, outcome in counted.notable:
            self._run.tally.add(outcome, f"{item.path.name}::{name}")
        if counted.matched:
            self._count_comparison(item, SnapshotPath(str(item.path), item.name), "matched", counted.matched)

    def _wants_each(self, reporter: Any) -> bool:
        """Return whether the passed items of a file that is shown again are reported one by one."""
        return self._shows_phases or (reporter is not None and any(map(reporter.hasopt, "pP")))

    def _show_again(self, items: Iterable[tuple[StoredItem, Mapping[str, Any]]]) -> None:
        """Show the reports of items again."""
        for item, shown in items:
            self._show_rest(item, shown, item.place)
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            for data in shown["reports"]:
                self._show(item, self._report(item, data))
            item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> Generator[None, object, object]:
        """End the workers, and write the cache."""
        result = yield
        snapshots.add_counts(self._config, self._comparisons)
        self._keep_finished()
        self.pytest_unconfigure()
        is_cut = exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)
        varying = self._run.cache.write(self._run.expected, is_cut=is_cut)
        if varying:
            more = f" and {len(varying) - 1} more" if len(varying) > 1 else ""
            warn_of_file(varying[0], f"the prompts of this file{more} depend on the order of a set; sort the set")
        return result

    def _keep_finished(self) -> None:
        """Cache the results of items that ran in a worker before the run was cut, and were not shown."""
        if self._pool is None or self._worker is not None:
            return
        for number, sent in self._pool.finished().items():
            item = self._items[number]
            if isinstance(item, PromptItem) and is_sent(sent, item.nodeid):
                self._settle(item, sent)

    def _settle(self, item: PromptItem, sent: dict[str, Any]) -> None:
        """Cache what a worker sent about an item."""
        seen = sent.pop("seen")
        self._run.cache.settle(item, {**sent, "about": about(item)}, seen)

    def pytest_unconfigure(self) -> None:
        """End the workers of a run that was interrupted."""
        if self._pool is not None and self._worker is None:
            self._pool.close()
            self._pool = None

    def _reports_of(self, item: PromptItem) -> Iterator[pytest.TestReport]:
        result = self._cached(item)
        if result is None:
            try:
                if self._pool is None:
                    self._pool = self._start(item.session)
                self._pool.wait_for(self._numbers[item])
            except OSError as error:
                yield self._lost(item, Lost("unstarted", error.errno or 0))
                return
            with uninterrupted():
                sent = self._pool.result(self._numbers[item])
                is_good = is_sent(sent, item.nodeid)
                if is_good:
                    self._settle(item, sent)
            if not is_good:
                yield self._lost(item, sent if isinstance(sent, Lost) else Lost("forged"))
                return
            result = sent
        self._show_rest(item, result, getattr(item, "place", None))
        for data in result["reports"]:
            yield self._report(item, data)

    def _show_rest(self, item: PromptItem | StoredItem, shown: Mapping[str, Any], place: SnapshotPath | None) -> None:
        """Show the warnings of an item, and let syrupy count its comparisons."""
        for written in shown["warnings"]:
            self._warn(written)
        if place is not None:
            source = item.file if isinstance(item, StoredItem) else item
            for counted in shown["counted"]:
                self._count_comparison(source, place, counted)

    def _count_comparison(
        self, item: pytest.Item, place: SnapshotPath, counted: snapshots.Counted, number: int = 1
    ) -> None:
        """Let syrupy count comparisons: the first one, since it looks for unused snapshots where it knows of others.

        It needs each one to list them, and the item of a failed one.
        """
        is_each = self._config.option.include_snapshot_details
        if is_each or counted == "failed" or not self._is_known_to_syrupy:
            snapshots.count(self._config, item, place, counted, expected=self._run.expected)
            self._is_known_to_syrupy = True
            number -= 1
        self._comparisons[counted] += number

    def _start(self, session: pytest.Session) -> Pool:
        self._items = [
            item
            for item in session.items
            if isinstance(item, PromptItem) and item.runs_in_worker and self._cached(item) is None
        ]
        self._numbers = {item: number for number, item in enumerate(self._items)}
        jobs = [tuple(job) for _, job in groupby(range(len(self._items)), lambda n: id(self._items[n].parent))]
        count = max(1, min(self._workers, len(jobs)))
        self._run.expected.obsolete()  # computed once, before there are workers that use it
        self._run.folders.index.read()  # here: the files that it reads in a worker would be inputs
        if len(jobs) >= _MANY_JOBS and gate.allows_code():
            with silenced(self._config):
                import_shared(self._run.cache.watched.packages)
        prepare = partial(self._prepare, confinement_of(self._config))
        pool = Pool(self._work, count=count, limits=limits_of(self._config), prepare=prepare)
        for _, together in groupby(jobs, lambda job: self._items[job[0]].path.parent):
            pool.plan(together)
        return pool

    def _prepare(self, confinement: Confinement) -> None:
        self._worker = ItemRunner(self._run, self._items, confinement)
        self._worker.prepare()

    def _work(self, job: Job) -> list[Any]:
        assert self._worker is not None
        return self._worker.work(job)

    def _cached(self, item: pytest.Item) -> Shown | None:
        """Return the cached result of an item, None if it has to run: an obsolete snapshot may be its missing one."""
        shown = self._run.cache.shown(item)
        return None if shown is not None and is_new(shown) and self._run.expected.obsolete() else shown

    def _report(self, item: PromptItem | StoredItem, data: Mapping[str, Any]) -> pytest.TestReport:
        """Return a report that a worker sent; its text is short if an earlier item had the same problem."""
        if "passed" in data:
            passed = _passed(item, data["when"], data["passed"])
            if data["when"] == "call":
                passed.promptfmt = Outcome.from_json(data["promptfmt"])  # type: ignore[attr-defined]
            return passed
        given = own_copy(data)
        report: pytest.TestReport = self._config.hook.pytest_report_from_serializable(config=self._config, data=given)
        if report.skipped and isinstance(report.longrepr, list):
            report.longrepr = tuple(report.longrepr)
        outcome: Outcome | None = getattr(report, "promptfmt", None)
        if outcome is not None and report.failed:
            first = self._run.tally.first_item(outcome, item.nodeid)
            text = item.repeated(outcome, first) if first is not None else None
            if text is not None:
                report.longrepr = text
                if item.repeats == "change":  # that of the first is shown
                    report.promptfmt = replace(outcome, detail="")  # type: ignore[attr-defined]
        return report

    def _lost(self, item: PromptItem, lost: Lost) -> pytest.TestReport:
        """Return the report of an item that ended its worker, or got none."""
        outcome = Outcome(task=item.task.id if item.task is not None else item.name, file=str(item.path))
        name = item.nodeid.partition("::")[2]
        call = pytest.CallInfo.from_call(
            lambda: item.fail_with(error_of(name, lost, item.place_in_file()), outcome), when="call"
        )
        report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
        return report

    def _warn(self, written: Mapping[str, Any]) -> None:
        category = getattr(sys.modules.get(written["module"]), written["category"], None)
        if not (isinstance(category, type) and issubclass(category, Warning)):
            category = UserWarning
        message = warnings.WarningMessage(
            written["text"], category, written["filename"], written["lineno"], source=None
        )
        location = tuple(written["location"]) if written["location"] else None
        known = {"when": written["when"], "nodeid": written["nodeid"], "location": location}
        self._config.hook.pytest_warning_recorded.call_historic(kwargs={"warning_message": message, **known})

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        """Send a warning of an item from its worker."""
        if self._worker is not None:
            self._worker.warn(warning_message, when, nodeid, location)


def _passed(item: PromptItem | StoredItem, when: Any, duration: float) -> pytest.TestReport:
    """Return the report of a phase that passed; pytest's own way takes longer than many an item."""
    return pytest.TestReport(
        item.nodeid, item.location, {item.name: 1, item.marker: 1}, "passed", None, when, duration=duration
    )
