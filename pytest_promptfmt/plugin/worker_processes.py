"""The worker processes of a run: their number and limits, the error when one dies, and how one runs its items."""

from __future__ import annotations

import faulthandler
import gc
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_promptfmt.core import limits
from pytest_promptfmt.core.errors import OUT_OF_MEMORY, LimitExceededError, Position, PromptfmtError
from pytest_promptfmt.core.files import hub_caches, private_directory
from pytest_promptfmt.core.limits import is_offline
from pytest_promptfmt.engine.confinement import Confinement, possible
from pytest_promptfmt.engine.plan import Job
from pytest_promptfmt.engine.processes import CAN_FORK, Limits
from pytest_promptfmt.engine.workers import Lost, Pool
from pytest_promptfmt.inputs.places import digest_of
from pytest_promptfmt.inputs.traces import Trace
from pytest_promptfmt.plugin.items.item import PromptItem
from pytest_promptfmt.plugin.printed_output import PrintedOutput, bounded, capture_of
from pytest_promptfmt.plugin.run import RUN, Run
from pytest_promptfmt.settings.setting_lookup import SettingLookup
from pytest_promptfmt.snapshots import extension as snapshots
from pytest_promptfmt.snapshots.paths import take_written
from pytest_promptfmt.tasks import import_from_source

MEGABYTE: Final = 2**20
DEFAULT_MEMORY: Final = 1024
"""The memory of a worker in addition to that of pytest's process, in megabytes."""

_GC_THRESHOLDS: Final = (10_000, 20, 20)
"""Of Python's collector in a worker: the many objects of a task are freed without it."""

_MOST_WARNINGS: Final = 100
_PHASES: Final = ("pytest_runtest_setup", "pytest_runtest_call", "pytest_runtest_teardown")
_MARKS: Final = ("skip", "skipif", "xfail")
_KNOWN_PLUGINS: Final = ("_pytest.", "pytest_promptfmt.", "syrupy", "xdist", "_hypothesis_", "anyio.")
"""Plugins that do nothing in the phases of our tests."""


def workers_of(config: pytest.Config) -> int:
    """Return the number of worker processes of a run: that of the settings, of pytest-xdist, or one for each core.

    0 for a debugger, and on systems without fork: then everything runs in pytest's process.
    """
    if config.getoption("usepdb", False) or config.getoption("trace", False) or not CAN_FORK:
        return 0
    asked: int | None = SettingLookup(config).value("workers")
    if asked is not None:
        return asked
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return xdist_workers(config) or cores


def xdist_workers(config: pytest.Config) -> int:
    """Return the number of processes of pytest-xdist in a run, 0 without it."""
    is_on = config.getoption("dist", "no") != "no" and not config.option.collectonly
    return len(config.getoption("tx", None) or ()) if is_on else 0


def limits_of(config: pytest.Config) -> Limits:
    """Return the limits of each worker of a run."""
    memory = (SettingLookup(config).value("memory") or DEFAULT_MEMORY) * MEGABYTE
    return Limits(memory=memory, retire=memory * 3 // 4)


def confinement_of(config: pytest.Config) -> Confinement:
    """Return the restrictions of each worker of a run, and find out which of them are possible here.

    A worker writes temporary files, the caches of Hugging Face's libraries, frozen tokenizers, and, if the run updates
    snapshots, below the rootdir and the paths of the command line. It has a network if the run has.
    """
    possible()
    folders = [tempfile.gettempdir(), *hub_caches()]
    for folder in folders:
        with suppress(OSError):
            Path(folder).mkdir(parents=True, exist_ok=True)
    tokenizers = private_directory("tokenizers")
    folders += [str(tokenizers)] if tokenizers is not None else []
    if config.option.update_snapshots or config.option.update_new_snapshots_only:
        places = [config.rootpath, *(Path(path.partition("::")[0]) for path in config.args)]
        folders += [str(place if place.is_dir() else place.parent) for place in places]
    has_network = not is_offline() or config.stash[RUN].settings.download
    return Confinement(writable=tuple(folders), has_network=has_network)


def try_in_worker(config: pytest.Config, path: Path, what: str, work: Callable[[], object]) -> None:
    """Do some work in a temporary process first, because the code of a file has no limits in pytest's process.

    Raises LimitExceededError if it is over a limit or ends its process; other errors will be raised again there.
    """
    if not workers_of(config):
        return
    confinement = confinement_of(config)

    def prepare() -> None:
        _become_silent()
        confinement.apply()

    pool = Pool(lambda _: [_limit_over(work)], count=1, limits=limits_of(config), prepare=prepare)
    try:
        found: Any = pool.result(0)
    finally:
        pool.close()
    if isinstance(found, Lost):
        raise error_of(what, found, Position(path))
    if found is not None:
        raise LimitExceededError(found[0], position=Position(path), hint=found[1])


def _limit_over(work: Callable[[], object]) -> tuple[str, str | None] | None:
    try:
        work()
    except PromptfmtError as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, MemoryError):
                raise cause from None
            if isinstance(cause, LimitExceededError):
                return error.message, error.hint
            cause = cause.__cause__
    return None


def _become_silent() -> None:
    limits.apply_here()
    faulthandler.disable()
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for number in (0, 1, 2):
        os.dup2(sys.stdout.fileno(), number)


def error_of(name: str, lost: Lost, position: Position | None) -> LimitExceededError:
    """Return the error message when a worker dies."""
    endless = "look for an endless loop, or a regular expression that backtracks too much"
    if lost.reason == "processor":
        text, hint = f"{name} did not finish within {lost.limit:g} s of processor time", endless
    elif lost.reason == "memory":
        text = f"{name} took more than {lost.limit / MEGABYTE:,.0f} MB of memory"
        hint = OUT_OF_MEMORY
    elif lost.reason == "waiting":
        text = f"{name} waited for {lost.limit:g} s, almost without using the processor"
        hint = "look for code that waits for a network, a lock or an input"
    elif lost.reason == "forged":
        text = f"{name} damaged the connection to its worker process"
        hint = "look for code that writes to a file descriptor without opening it"
    elif lost.reason == "unstarted":
        reason = os.strerror(lost.status) if lost.status else "the worker ended before it was ready"
        text = f"{name} did not run: no worker can be started ({reason})"
        hint = "raise the limits of open files and processes (ulimit), or use fewer workers (--promptfmt-workers)"
    elif lost.status < 0:
        text = f"{name} ended its worker process (signal {-lost.status})"
        hint = "look for native code that crashes"
    else:
        text, hint = f"{name} ended its worker process (exit status {lost.status})", "look for os._exit"
    return LimitExceededError(text, position=position, hint=hint)


class ItemRunner:
    """A copy of pytest's process that runs `items`, and returns their reports, warnings and traces in JSON's types."""

    def __init__(self, run: Run, items: Sequence[pytest.Item], confinement: Confinement) -> None:
        self._run = run
        self._confinement = confinement
        self._config = run.config
        self._items = items
        self._path = Path()
        self._is_plain = not has_other_plugins(run.config, _PHASES)
        self._is_reported_plainly = not has_other_plugins(run.config, ["pytest_runtest_makereport"])
        self._trace = Trace(run.cache.shared.is_library, is_offline=is_offline() and not run.settings.download)
        self._reports: list[pytest.TestReport] = []
        self._warnings: list[dict[str, Any]] = []
        self._printed: PrintedOutput | None = None  # with -s it is shown at once
        self._kept: Any = None  # pytest's own capture: its files would warn that nothing has closed them

    def prepare(self) -> None:
        """Make this process a worker: nothing that it does or prints reaches the process that it is a copy of."""
        import_from_source()
        self._run.tally.keeps = "none"
        limits.apply_here()
        faulthandler.disable()  # one message reports the end of a worker
        capture = capture_of(self._config)
        if capture is not None:
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.close(null)
            self._kept = capture._global_capturing
            capture._global_capturing = self._printed = PrintedOutput()
        self._confinement.apply()
        gc.freeze()  # the objects of pytest's process stay alive
        gc.set_threshold(*_GC_THRESHOLDS)
        session = self._items[0].session
        self._trace.begin(above=ItemRunner.work.__code__)
        snapshots.taken(self._config)  # those of tests that ran in pytest's process
        session._setupstate = type(session._setupstate)()  # fixtures that are set up belong to pytest's process

    def work(self, job: Job) -> list[Any]:
        """Return the results of the items with these numbers."""
        items = [self._items[number] for number in job]
        return [self._result_of(item, after) for item, after in zip(items, [*items[1:], None], strict=True)]

    def _result_of(self, item: pytest.Item, following: pytest.Item | None) -> dict[str, Any]:
        self._warnings = []
        if self._printed is not None:
            self._printed.begin_item()
        if item.path != self._path:
            self._path = item.path
            self._run.tally.forget_problems()  # the text of each is among the outcomes of its file
        asked = self._run.folders.index.asked
        asked.clear()
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        for report in self._reports:
            outcome = getattr(report, "promptfmt", None)
            if outcome is not None:
                self._run.tally.add(outcome, report.nodeid)
        wrote = [(path, digest_of(content)) for path, content in take_written().items()]
        return {
            "seen": {"files": self._trace.taken(is_last=following is None), "asked": sorted(asked), "wrote": wrote},
            "reports": [self._serialized(report) for report in self._reports],
            "warnings": self._warnings,
            "counted": snapshots.taken(self._config),
        }

    def run(self, item: PromptItem, nextitem: pytest.Item | None) -> None:
        """Run an item in pytest's three phases, or only call it if no plugin uses the other phases."""
        if not self._is_plain or any(item.get_closest_marker(mark) for mark in _MARKS):
            runner: Any = self._config.pluginmanager.getplugin("runner")
            self._reports = runner.runtestprotocol(item, log=False, nextitem=nextitem)
            return
        call = pytest.CallInfo.from_call(item.runtest, when="call", reraise=(pytest.exit.Exception,))
        if self._printed is not None:
            for stream, text in zip(("stdout", "stderr"), self._printed.readouterr(), strict=True):
                item.add_report_section("call", stream, text)
        is_plain = self._is_reported_plainly and not item._report_sections and not item.user_properties
        if is_plain and call.excinfo is None and item.outcome is not None:  # pytest's own way takes longer
            report = pytest.TestReport(item.nodeid, ("", 0, ""), {}, "passed", None, "call", duration=call.duration)
            report.promptfmt, item.outcome = item.outcome, None  # type: ignore[attr-defined]
            self._reports = [report]
            return
        self._reports = [item.ihook.pytest_runtest_makereport(item=item, call=call)]

    def _serialized(self, report: pytest.TestReport) -> dict[str, Any]:
        if report.passed and not report.sections and not report.user_properties and report.longrepr is None:
            outcome = getattr(report, "promptfmt", None)
            known = {"promptfmt": outcome.to_json()} if outcome is not None else {}
            if known or report.when != "call":
                return {"passed": report.duration, "when": report.when, **known}
        report.sections = bounded(report.sections)
        data: dict[str, Any] = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        return data

    def warn(self, message: warnings.WarningMessage, when: str, nodeid: str, location: Any) -> None:
        """Send a warning with the reports of its item; a long text is cut, and after many of them no more is sent."""
        [(_, text)] = bounded([("", str(message.message))])
        if len(self._warnings) >= _MOST_WARNINGS:
            return
        self._warnings.append(
            {
                "text": text,
                "module": message.category.__module__,
                "category": message.category.__qualname__,
                "filename": message.filename,
                "lineno": message.lineno,
                "when": when,
                "nodeid": nodeid,
                "location": location,
            }
        )


def has_other_plugins(config: pytest.Config, hooks: Sequence[str]) -> bool:
    """Return whether other plugins or conftests implement these hooks."""
    return any(
        not implementation.function.__module__.startswith(_KNOWN_PLUGINS)
        for hook in hooks
        for implementation in getattr(config.hook, hook).get_hookimpls()
    )
