"""Items run in worker processes: the plugin hands them out, and shows pytest what the workers report.

A worker is a copy of this process after collection, so it has every item; what it sends back is each item's reports, as
xdist's workers send theirs. Nothing of a task's own code runs in pytest's process, except where `workers` is 0.
"""

from __future__ import annotations

import faulthandler
import gc
import itertools
import os
import sys
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_promptfmt.core import limits
from pytest_promptfmt.core.network import is_offline
from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.engine.store import FILE_NAME as STORE_NAME
from pytest_promptfmt.engine.workers import Job, Lost, Pool
from pytest_promptfmt.plugin.cached_files import own_copy
from pytest_promptfmt.plugin.items.item import PromptItem
from pytest_promptfmt.plugin.run import Run
from pytest_promptfmt.plugin.shared_inputs import FileTrace
from pytest_promptfmt.plugin.unchanged import StoredItem, UnchangedFiles, UnchangedItem, about
from pytest_promptfmt.plugin.worker_errors import error_of, limits_of
from pytest_promptfmt.settings.setting_lookup import SettingLookup
from pytest_promptfmt.snapshots import extension as snapshots
from pytest_promptfmt.snapshots.paths import SnapshotPath
from pytest_promptfmt.snapshots.tracked import is_tracked

UNCHANGED: Final = "unchanged"
"""How pytest's summary counts files of which nothing has changed."""

_GC_THRESHOLDS: Final = (10_000, 20, 20)
"""Of Python's collector in a worker, where tasks make many objects that are gone without it."""

_PHASES: Final = ("pytest_runtest_setup", "pytest_runtest_call", "pytest_runtest_teardown")
_MARKS: Final = ("skip", "skipif", "xfail")
_KNOWN_PLUGINS: Final = ("_pytest.", "pytest_promptfmt.", "syrupy", "xdist", "_hypothesis_", "anyio.")
"""Plugins whose part in running a test is known, and is none where the test is ours."""


def kept_in(run: Run, workers: int) -> tuple[Path | None, bool]:
    """Return the folder of the outcomes of earlier runs, None for nowhere, and whether this run shows them.

    They are those of workers, for only those are watched. What a run writes about each prompt needs the prompt.
    """
    config, outputs = run.config, run.outputs
    cache = getattr(config, "cache", None)
    is_off = SettingLookup(config).value("no_cache") or hasattr(config, "workerinput") or not workers
    if cache is None or is_off or outputs.needs_views or outputs.needs_edits:
        return None, False
    updates = config.option.update_snapshots or config.option.update_new_snapshots_only
    folder: Path = cache.mkdir("promptfmt")
    if (folder / STORE_NAME).exists() and is_tracked(folder / STORE_NAME):
        return None, False  # outcomes that came with the repository are a claim of whoever committed them
    return folder, not (updates or outputs.baseline_update)


def collapses(run: Run) -> bool:
    """Return whether files of which nothing has changed may be shown as one: nobody asked for their items."""
    option, settings = run.config.option, run.settings
    names = ("keyword", "markexpr", "collectonly", "deselect", "lf", "failedfirst", "newfirst", "stepwise", "xmlpath")
    asked = (
        getattr(option, "verbose", 0) > 0
        or any(getattr(option, name, None) for name in names)
        or settings.task_globs
        or settings.formats
        or option.include_snapshot_details
    )
    return run.memory.is_on and not asked and run.outputs.baseline is None


class WorkerRuns:
    """The hooks that take the place of pytest's own way to run an item, for items of tasks."""

    def __init__(self, run: Run, workers: int) -> None:
        self._run = run
        self._config = config = run.config
        self._workers = workers
        self._memory = run.memory
        self._is_worker = False
        self._is_plain = True
        self._shows_phases = False
        self._is_alone = not hasattr(config, "workerinput")  # else xdist chooses what runs here
        self._limits = limits_of(config)
        self._pool: Pool | None = None
        self._items: Sequence[pytest.Item] = ()
        self._before: dict[pytest.Item, list[UnchangedItem | UnchangedFiles]] = {}
        self._after: list[UnchangedItem | UnchangedFiles] = []
        self._matched = 0
        self._numbers: dict[pytest.Item, int] = {}
        self._reports: list[pytest.TestReport] = []
        self._warnings: list[dict[str, Any]] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run one of our items in a worker, or, in that worker, here; pytest runs the others."""
        if not self._is_worker:
            self._count(self._before.pop(item, ()))
        if not self._workers or not isinstance(item, PromptItem) or not item.runs_in_worker:
            return None
        if self._is_worker:
            self._reports = self._run_here(item, nextitem)
            return True
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports_of(item):
            self._show(item, report)
        self._tear_down(item, nextitem)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _tear_down(self, item: PromptItem, nextitem: pytest.Item | None) -> None:
        """Let end what earlier items of other kinds set up, and the next one does not need."""
        state: Any = item.session._setupstate
        if state.stack:
            call = pytest.CallInfo.from_call(lambda: state.teardown_exact(nextitem), when="teardown")
            if call.excinfo is not None:
                self._show(item, item.ihook.pytest_runtest_makereport(item=item, call=call))

    def _show(self, item: PromptItem | StoredItem, report: pytest.TestReport) -> None:
        """Show a report; with those of setting up and tearing down, which are nothing here, where somebody waits."""
        show = item.ihook.pytest_runtest_logreport
        is_whole = report.when == "call" and self._shows_phases
        if is_whole:
            show(report=_passed(item, "setup", 0.0))
        show(report=report)
        if is_whole:
            show(report=_passed(item, "teardown", 0.0))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Count the files of which nothing has changed, and leave them out of what is run."""
        same = [item for item in session.items if isinstance(item, UnchangedItem | UnchangedFiles)]
        if same and not session.config.option.collectonly:
            waiting: list[UnchangedItem | UnchangedFiles] = []
            for item in session.items:
                if isinstance(item, UnchangedItem | UnchangedFiles):
                    waiting.append(item)
                elif waiting:
                    self._before[item], waiting = waiting, []
            session.items[:] = [item for item in session.items if not isinstance(item, UnchangedItem | UnchangedFiles)]
            self._after = waiting
            reporter: Any = self._config.pluginmanager.getplugin("terminalreporter")
            if reporter is not None:
                counted = [item for item in same if item.is_counted for _ in item.files]
                reporter.stats.setdefault(UNCHANGED, []).extend(counted)
        self._memory.plan(session.items)
        wants_times = session.config.option.durations is not None
        self._shows_phases = wants_times or _has_others(self._config, ["pytest_runtest_logreport"])
        result = yield
        self._count(self._after)
        return result

    def _count(self, items: Iterable[UnchangedItem | UnchangedFiles]) -> None:
        """Count files of which nothing has changed, and show again what is not only counted; in collection order."""
        reporter: Any = self._config.pluginmanager.getplugin("terminalreporter")
        wants_each = self._shows_phases or reporter is None or any(map(reporter.hasopt, "pP"))
        for item in items:
            if isinstance(item, UnchangedItem) and not item.is_counted:
                if not wants_each:
                    passed = pytest.TestReport(item.nodeid, item.location, {}, "passed", None, "call")
                    reporter.stats.setdefault("passed", []).extend(itertools.repeat(passed, item.counted.passed))
                self._show_again(item.stored(quiet=wants_each))
                item.remembered.pack()
                if wants_each:
                    continue
            counted = item.counted
            item.session.testsfailed += counted.failed
            self._run.tally.counts.update(counted.counts)
            for name, outcome in counted.said:
                self._run.tally.add(outcome, f"{item.path.name}::{name}")
            self._matched += counted.matched
            if counted.matched and item.place is not None:
                snapshots.count_matched(self._config, item, item.place, expected=self._run.expected)
                self._matched -= 1

    def _show_again(self, items: Iterable[tuple[StoredItem, Mapping[str, Any]]]) -> None:
        """Show what items showed."""
        for item, shown in items:
            self._show_rest(item, shown, item.place)
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            for data in shown["reports"]:
                self._show(item, self._report(item, data))
            item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self) -> Generator[None, object, object]:
        """End the workers, and keep what was found out."""
        result = yield
        snapshots.add_matched(self._config, self._matched)
        self.pytest_unconfigure()
        self._memory.write(self._run.expected)
        return result

    def pytest_unconfigure(self) -> None:
        """End the workers of a run that was broken off."""
        if self._pool is not None and not self._is_worker:
            self._pool.close()
            self._pool = None

    # -- in pytest's process -------------------------------------------------------------------------------------------

    def _reports_of(self, item: PromptItem) -> Iterator[pytest.TestReport]:
        result = self._memory.shown(item)
        if result is None:
            if self._pool is None:
                self._pool = self._start(item.session)
            result = self._pool.result(self._numbers[item])
            if isinstance(result, Lost):
                yield self._lost(item, result)
                return
            seen = result.pop("seen")
            self._memory.settle(item, {**result, "about": about(item)}, seen)
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
                snapshots.count(self._config, source, place, counted, expected=self._run.expected)

    def _start(self, session: pytest.Session) -> Pool:
        self._items = [item for item in session.items if self._is_to_run(item)]
        self._numbers = {item: number for number, item in enumerate(self._items)}
        jobs = [tuple(job) for _, job in groupby(range(len(self._items)), lambda n: id(self._items[n].parent))]
        count = max(1, min(self._workers, len(jobs)))
        self._run.expected.obsolete()  # looked up once, before there are workers that ask for it
        pool = Pool(self._work, count=count, limits=self._limits, prepare=self._prepare)
        if self._is_alone:
            for _, together in groupby(jobs, lambda job: self._items[job[0]].path.parent):
                pool.plan(together)
        return pool

    def _is_to_run(self, item: pytest.Item) -> bool:
        return isinstance(item, PromptItem) and item.runs_in_worker and self._memory.shown(item) is None

    def _report(self, item: PromptItem | StoredItem, data: Mapping[str, Any]) -> pytest.TestReport:
        """Return a report that a worker sent; a problem that an earlier item had is not shown in full again."""
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
            first = self._run.tally.first_item(outcome)
            text = item.repeated(outcome, first) if first is not None else None
            if text is not None:
                report.longrepr = text
        return report

    def _lost(self, item: PromptItem, lost: Lost) -> pytest.TestReport:
        """Return the report of an item that ended its worker."""
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

    # -- in a worker ---------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Make the copy of pytest's process a worker: nothing that it does or prints reaches the one it comes from."""
        self._is_worker = True
        self._run.in_worker = True
        self._run.tally.keeps = "none"
        limits.apply_here()
        faulthandler.disable()  # what ends a worker is said in one message
        null = os.open(os.devnull, os.O_RDWR)
        capture: Any = self._config.pluginmanager.getplugin("capturemanager")
        if capture is not None and capture.is_globally_capturing():
            capture.suspend_global_capture(in_=True)
            capture._global_capturing = None  # its files are those of pytest's process
            for number in (0, 1, 2):
                os.dup2(null, number)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            capture.start_global_capturing()
        os.close(null)
        self._is_plain = not _has_others(self._config, _PHASES)
        gc.freeze()  # what pytest's process holds stays, and need not be looked through
        gc.set_threshold(*_GC_THRESHOLDS)
        session = self._items[0].session
        self._trace = FileTrace(self._run.settings.rootdir, is_offline=is_offline() and not self._run.settings.download)
        self._trace.begin(above=WorkerRuns._work.__code__)
        session._setupstate = type(session._setupstate)()  # what is set up belongs to pytest's process

    def _work(self, job: Job) -> list[Any]:
        items = [self._items[number] for number in job]
        return [self._result_of(item, after) for item, after in zip(items, [*items[1:], None], strict=True)]

    def _result_of(self, item: pytest.Item, following: pytest.Item | None) -> dict[str, Any]:
        assertions = snapshots.number_taken(self._config)
        self._warnings = []
        asked = self._run.folders.index.asked
        asked.clear()
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        for report in self._reports:
            outcome = getattr(report, "promptfmt", None)
            if outcome is not None:
                self._run.tally.add(outcome, report.nodeid)
        return {
            "seen": {"files": self._trace.taken(), "asked": sorted(asked)},
            "reports": [self._serialized(report) for report in self._reports],
            "warnings": self._warnings,
            "counted": snapshots.taken(self._config, since=assertions),
        }

    def _run_here(self, item: PromptItem, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        """Return the reports of an item, made in pytest's own three phases only where somebody has a part in them."""
        if not self._is_plain or any(item.get_closest_marker(mark) for mark in _MARKS):
            runner: Any = self._config.pluginmanager.getplugin("runner")
            found: list[pytest.TestReport] = runner.runtestprotocol(item, log=False, nextitem=nextitem)
            return found
        call = pytest.CallInfo.from_call(item.runtest, when="call", reraise=(pytest.exit.Exception,))
        out, err = self._captured()
        for stream, text in (("stdout", out), ("stderr", err)):
            item.add_report_section("call", stream, text)
        return [item.ihook.pytest_runtest_makereport(item=item, call=call)]

    def _captured(self) -> tuple[str, str]:
        capture: Any = self._config.pluginmanager.getplugin("capturemanager")
        return capture.read_global_capture() if capture is not None and capture.is_globally_capturing() else ("", "")

    def _serialized(self, report: pytest.TestReport) -> dict[str, Any]:
        if report.passed and not report.sections and not report.user_properties and report.longrepr is None:
            outcome = getattr(report, "promptfmt", None)
            known = {"promptfmt": outcome.to_json()} if outcome is not None else {}
            if known or report.when != "call":
                return {"passed": report.duration, "when": report.when, **known}
        data: dict[str, Any] = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        return data

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        """Send a warning along with the reports of its item."""
        if self._is_worker:
            self._warnings.append(
                {
                    "text": str(warning_message.message),
                    "module": warning_message.category.__module__,
                    "category": warning_message.category.__qualname__,
                    "filename": warning_message.filename,
                    "lineno": warning_message.lineno,
                    "when": when,
                    "nodeid": nodeid,
                    "location": location,
                }
            )


def _passed(item: PromptItem | StoredItem, when: Any, duration: float) -> pytest.TestReport:
    """Return the report of a phase that went well; making it as pytest does takes longer than many an item."""
    return pytest.TestReport(
        item.nodeid, item.location, {item.name: 1, item.marker: 1}, "passed", None, when, duration=duration
    )


def _has_others(config: pytest.Config, hooks: Sequence[str]) -> bool:
    """Return whether a plugin or conftest of somebody else has a part in these hooks."""
    return any(
        not implementation.function.__module__.startswith(_KNOWN_PLUGINS)
        for hook in hooks
        for implementation in getattr(config.hook, hook).get_hookimpls()
    )
