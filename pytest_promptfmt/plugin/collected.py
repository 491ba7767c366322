"""Runs of pytest for commands: the tasks that it collects, or the result of all tests, with nothing of pytest shown.

So a command uses exactly the files, settings, formats and profiles of a test run.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Generic, TypeVar

import pytest

from pytest_promptfmt.core import gate, limits
from pytest_promptfmt.core.errors import PromptfmtError, SettingsError, display_path
from pytest_promptfmt.core.finding import Reported
from pytest_promptfmt.core.outcome import CATEGORIES
from pytest_promptfmt.engine.processes import limited_memory
from pytest_promptfmt.inputs.outcome_cache import Decision
from pytest_promptfmt.inputs.store import store_folder
from pytest_promptfmt.plugin.items.item import LoadItem, PromptItem
from pytest_promptfmt.plugin.items.lint_items import LintItem, wanted
from pytest_promptfmt.plugin.items.prompt_items import SnapshotItem
from pytest_promptfmt.plugin.progress import Progress
from pytest_promptfmt.plugin.run import RUN
from pytest_promptfmt.plugin.unchanged import Unchanged
from pytest_promptfmt.plugin.worker_processes import limits_of
from pytest_promptfmt.results.run_result import RunResult
from pytest_promptfmt.revisions.pytest_process import ISOLATED, isolated
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.study import ProfileView, seen_by


class CollectedPrompts:
    """One task@format for one profile, found and not yet rendered."""

    def __init__(self, item: SnapshotItem, lint: LintItem | None) -> None:
        self._lint = lint
        self.task = item.tested
        self.profile = item.profile
        self.path = item.path
        self.snapshot = Path(item.place.path)
        self._run = item.run
        self.folders = item.run.folders
        self.profile_id = self.folders.settings_of(item.tested).run_id(item.profile.name)

    @property
    def seen(self) -> ProfileView:
        """Return the task as the profile sees it; its `render` raises the PromptfmtError that stops it."""
        return seen_by(self._run.studies.of(self.task), self.profile, self.profile_id)

    def findings(self) -> Sequence[Reported]:
        """Return the findings about the profile, and for the first profile of the task also those about the task.

        Nothing if the rules are switched off.
        """
        if self._lint is None:
            return ()
        try:
            checked = self.seen.study.once("findings", self._lint.check)
        except PromptfmtError:
            return ()  # rendering reports why
        reported = wanted(self._run, checked, self.path)
        is_first = self.profile is self._lint.profiles[0]
        found = [finding.limited_to([self.profile_id]) for finding in reported if self.profile_id in finding.profiles]
        return [finding for finding in reported if is_first and not finding.profiles] + found


@dataclass(slots=True)
class Collection:
    """The number of collected prompts, errors of what cannot be read, and options that match no task."""

    found: int = 0
    errors: Sequence[PromptfmtError] = ()
    unmatched: Sequence[str] = ()


_Taken = TypeVar("_Taken")


class _SessionReader(Generic[_Taken]):
    """A plugin that reads something from a session, in place of running its items, or of collecting any."""

    def __init__(self, take: Callable[[pytest.Session, Sequence[pytest.Item]], _Taken], *, collects: bool) -> None:
        self._take = take
        self._collects = collects
        self._items: Sequence[pytest.Item] = ()
        self._found: list[_Taken] = []
        self._raised: PromptfmtError | SystemExit | None = None

    def of_run(self, arguments: Sequence[str]) -> _Taken:
        """Return what a run gives; raises SettingsError if it ends before that, and the errors of taking it."""
        status = start(arguments, self)
        if self._raised is not None:
            raise self._raised
        if not self._found:
            raise SettingsError(f"pytest ended with status {status} before the collection")
        return self._found[0]

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool | None:
        return None if self._collects else self._taken(session)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: Sequence[pytest.Item]) -> None:
        self._items = [*items]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        return not self._collects or self._taken(session)

    def _taken(self, session: pytest.Session) -> bool:
        try:
            self._found.append(self._take(session, self._items))
        except (PromptfmtError, SystemExit) as error:
            # pytest would print either as an internal error; rich exits when its output is closed (`| head`).
            self._raised = error
        return True


def with_collected(
    use: Callable[[Sequence[CollectedPrompts]], None], paths: Sequence[Path], options: Sequence[str]
) -> Collection:
    """Call `use` with the prompts that `pytest --promptfmt` collects in these paths with these options.

    Returns a summary. The settings are those of the project. `use` has the time and memory of a worker. Raises
    SettingsError if pytest refuses to start, and errors of `use`.
    """

    def take(session: pytest.Session, items: Sequence[pytest.Item]) -> Collection:
        lints = {item.parent: item for item in items if isinstance(item, LintItem)}
        found = [CollectedPrompts(item, lints.get(item.parent)) for item in items if isinstance(item, SnapshotItem)]
        with limits.applied(), limited_memory(limits_of(session.config).memory):
            use(found)
        errors = [item.error for item in items if isinstance(item, LoadItem)]
        return Collection(len(found), errors, session.config.stash[RUN].found.unmatched)

    return _SessionReader(take, collects=True).of_run(["-p", "no:cacheprovider", "-s", *options, *map(str, paths)])


def settings_around(path: Path, options: Sequence[str]) -> Settings:
    """Return the settings of the project that a file or folder belongs to, as `pytest --promptfmt` with it has them.

    Raises SettingsError if pytest refuses to start.
    """
    reader = _SessionReader(lambda session, _: session.config.stash[RUN].settings, collects=False)
    return reader.of_run(["-p", "no:cacheprovider", "-s", *options, str(path)])


class _Refusal:
    """A plugin that takes the reason why pytest refuses to run: a message, or a conftest that cannot be loaded."""

    message = conftest = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_load_initial_conftests(self) -> Generator[None, object, object]:
        try:
            return (yield)
        except pytest.UsageError:
            raise
        except Exception as error:  # pytest's class of one that cannot be imported is private
            path, cause = getattr(error, "path", None), getattr(error, "cause", None)
            self.conftest = f"{display_path(path)}: {cause}" if path is not None and cause is not None else str(error)
            raise

    @pytest.hookimpl(wrapper=True)
    def pytest_cmdline_main(self) -> Generator[None, object, object]:
        try:
            return (yield)
        except pytest.UsageError as error:
            self.message = "\n".join(map(str, error.args)).removeprefix("promptfmt: ")
            return pytest.ExitCode.USAGE_ERROR


def start(arguments: Sequence[str], plugin: object) -> int:
    """Return the exit status of pytest for task files only, with a plugin that takes the result; nothing is shown.

    Where a conftest cannot be loaded, it runs without conftests, unless it updates snapshots. Raises SettingsError if
    pytest refuses to start, or ends by an error that is not of a test.
    """
    refusal, before = _Refusal(), dict(os.environ)
    os.environ.clear()
    os.environ.update(isolated(before))
    try:
        status = pytest.main([*ISOLATED, "-p", "no:terminal", *arguments], plugins=[plugin, refusal])
    except Exception as error:  # such as two options of one name, which pytest may find after it read conftests
        if "--noconftest" in arguments:
            raise
        refusal.conftest = refusal.message = refusal.conftest or str(error)
        status = pytest.ExitCode.USAGE_ERROR
    finally:
        os.environ.clear()
        os.environ.update(before)
    if refusal.conftest and "--snapshot-update" not in arguments:
        sys.stderr.write(f"tested without conftest.py files, because this one cannot be loaded: {refusal.conftest}\n")
        return start(["--noconftest", "--promptfmt-no-cache", *arguments], plugin)
    if status == pytest.ExitCode.USAGE_ERROR:
        raise _refused(_in_words_of_command(refusal.message, arguments))
    if status == pytest.ExitCode.INTERNAL_ERROR:
        hint = "if a conftest.py is the cause, use --no-code: then no conftest.py is loaded. Otherwise report a bug"
        raise SettingsError("an error of pytest or of a conftest.py ended the run (see above)", hint=hint)
    return int(status)


def _refused(message: str) -> SettingsError:
    """Return the error for a refusal of pytest: about a path or an id, with a message of ours, or without any."""
    if not message:
        hint = "use --no-code: then pytest loads no conftest.py and ignores addopts"
        return SettingsError("pytest cannot start here (see above)", hint=hint)
    what, found, name = message.partition("\n")[0].partition("not found: ")
    path, _, test = name.partition("::")
    if not found or what not in ("", "file or directory "):
        return SettingsError(message)
    shown = display_path(Path(path))
    if what:
        return SettingsError(f"no such file or folder: {shown}", hint=gate.missing_hint(Path(path)))
    if not test:
        return SettingsError(
            f"{shown} is not a task file or chat template", hint="name a task file, a chat template, or a folder"
        )
    hint = f"`pytest --promptfmt --collect-only -q {shown}` lists ids"
    return SettingsError(f"{shown} has no test {test}", hint=hint)


def _in_words_of_command(message: str, arguments: Sequence[str]) -> str:
    """Return a message with the names of the options that the command was given, in place of those of pytest."""
    for option in {argument.partition("=")[0] for argument in arguments if argument.startswith("--promptfmt-")}:
        message = message.replace(option, f"--{option.removeprefix('--promptfmt-')}")
    return message


# -- what the next run would do ----------------------------------------------------------------------------------------


def decisions(paths: Sequence[Path], options: Sequence[str]) -> tuple[Path | None, dict[Path, Decision]]:
    """Return the store of a project, None for none, and what the next run does with each task file in these paths.

    Raises SettingsError if pytest cannot run.
    """

    def take(session: pytest.Session, items: Sequence[pytest.Item]) -> tuple[Path | None, dict[Path, Decision]]:
        cache = session.config.stash[RUN].cache
        ours = (item for item in items if isinstance(item, Unchanged | PromptItem))
        files = (path for item in ours for path in (item.paths if isinstance(item, Unchanged) else [item.path]))
        found = {path: cache.decision(path) for path in dict.fromkeys(files)}
        cache.store.is_on = False  # nothing ran, so nothing is written
        return store_folder(session.config.rootpath), found

    return _SessionReader(take, collects=True).of_run([*options, *map(str, paths)])


# -- a run of all tests ------------------------------------------------------------------------------------------------

_FAILING: Final = ("finding", *(each for each in CATEGORIES if each not in ("new", "header-only")))
"""The categories that are shown as failed while a run goes on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckSummary:
    """The result of a run of `files`, of which `unchanged` have outcomes of an earlier run.

    The missing snapshots of the files `without_snapshots` are not part of the result. `notes` are warnings and errors
    of collecting. `is_good` states whether nothing in the result fails. `template_folders` have chat templates that
    were not tested, because no path of the run names them.
    """

    result: RunResult
    is_good: bool
    files: int
    unchanged: int
    without_snapshots: int
    notes: tuple[str, ...]
    template_folders: tuple[Path, ...]


def check(paths: Sequence[Path], options: Sequence[str]) -> CheckSummary:
    """Return the result of `pytest --promptfmt` for these paths; raises SettingsError if it cannot run."""
    progress = Progress()
    taker = _Taker(progress)
    try:
        status = start([*options, *map(str, paths)], taker)
    finally:
        progress.end()
    if taker.result is None:
        raise SettingsError("the run ended before anything was tested")
    found = taker.result.outcomes
    kept = tuple(each for each in found if each.category != "new" or each.file not in taker.first_files)
    missing = len(found) - len(kept)
    if missing:  # the text of the first is shown for all, and that may be one of those left out
        kept = tuple(replace(each, detail="") if each.category == "new" else each for each in kept)
    counts = {name: count - missing * (name == "new") for name, count in taker.result.counts.items()}
    is_good = status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    return CheckSummary(
        result=replace(
            taker.result,
            outcomes=kept,
            counts={name: count for name, count in counts.items() if count},
            unmatched=tuple(_in_words_of_command(line, options) for line in taker.result.unmatched),
        ),
        is_good=is_good or (status == pytest.ExitCode.TESTS_FAILED and taker.failed == missing),
        files=taker.files,
        unchanged=taker.unchanged,
        without_snapshots=len(taker.first_files),
        notes=tuple(dict.fromkeys(taker.notes)),
        template_folders=tuple(taker.result.rootdir / name for name in taker.template_folders),
    )


class _Taker:
    """A plugin that takes the result of a run, and shows its progress."""

    def __init__(self, progress: Progress) -> None:
        self.result: RunResult | None = None
        self.files = self.unchanged = self.failed = 0
        self.first_files: frozenset[str] = frozenset()
        self.template_folders: list[str] = []
        self._progress = progress
        self._read = self._run = 0
        self._counts: Counter[str] = Counter()
        self.notes: list[str] = []

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        session.config.stash[RUN].needs_snapshots = False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: Sequence[pytest.Item]) -> None:
        self._session, self._counts = session, session.config.stash[RUN].tally.counts
        same = [item for item in items if isinstance(item, Unchanged)]
        self.unchanged = sum(len(item.files) for item in same)
        self.files = self.unchanged + len({item.path for item in items} - {item.path for item in same})

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.failed = session.testsfailed

    def pytest_runtest_logfinish(self) -> None:
        self._run += 1
        failed = sum(self._counts[category] for category in _FAILING)
        self._progress.show_tests(self._run, self._session.testscollected, failed)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._read += 1
        self._progress.show_read(self._read)
        if report.failed:
            self.notes.append(report.longreprtext)

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str) -> None:
        if when != "config":  # those are about pytest itself
            self.notes.append(f"{display_path(Path(warning_message.filename))}: {warning_message.message}")

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self, config: pytest.Config) -> None:
        closing = config.pluginmanager.get_plugin("promptfmt-Closing")
        self.result = closing.result if closing is not None else None
        if self.result is not None:
            new = {each.file for each in self.result.outcomes if each.category == "new"}
            expected, self.template_folders = config.stash[RUN].expected, config.stash[RUN].found.template_folders
            self.first_files = frozenset(file for file in new if not expected.has_snapshots(Path(file)))
