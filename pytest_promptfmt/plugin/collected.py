"""The tasks that a pytest run would test, for commands that only look at them: pytest collects, nothing runs.

So that a command sees exactly what a test sees: the same files, settings, formats and profiles.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_promptfmt.core.errors import PromptfmtError, SettingsError
from pytest_promptfmt.core.finding import Reported
from pytest_promptfmt.plugin.folders import Folders
from pytest_promptfmt.plugin.items.item import LoadItem
from pytest_promptfmt.plugin.items.lint_items import LintItem, wanted
from pytest_promptfmt.plugin.items.prompt_items import SnapshotItem
from pytest_promptfmt.plugin.run import RUN
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
        self.profile_id = self._run.folders.settings_of(item.tested).run_id(item.profile.name)

    @property
    def folders(self) -> Folders:
        """Return what holds for the task files of each folder."""
        return self._run.folders

    @property
    def seen(self) -> ProfileView:
        """Return the task as the profile sees it; its `render` raises the PromptfmtError that stops it."""
        return seen_by(self._run.studies.of(self.task), self.profile, self.profile_id)

    def findings(self) -> Sequence[Reported]:
        """Return what the rules say of the profile; with the first profile of the task also of the task.

        Nothing where the rules are switched off.
        """
        if self._lint is None:
            return ()
        try:
            checked = self.seen.study.once("findings", self._lint.check)
        except PromptfmtError:
            return ()  # rendering says why
        reported = wanted(self._run, checked, self.path)
        is_first = self.profile is self._lint.profiles[0]
        found = [finding.limited_to([self.profile_id]) for finding in reported if self.profile_id in finding.profiles]
        return [finding for finding in reported if is_first and not finding.profiles] + found


@dataclass(slots=True)
class Collection:
    """What was found: how many prompts, files and tasks that cannot be read, and options that match no task."""

    found: int = 0
    errors: Sequence[PromptfmtError] = ()
    unmatched: Sequence[str] = ()


class _Catcher:
    """A plugin that hands the collected items over instead of running them."""

    def __init__(self, use: Callable[[Sequence[CollectedPrompts]], None]) -> None:
        self.use = use
        self.result = Collection()
        self.raised: PromptfmtError | SystemExit | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        lints = {item.parent: item for item in session.items if isinstance(item, LintItem)}
        found = [
            CollectedPrompts(item, lints.get(item.parent)) for item in session.items if isinstance(item, SnapshotItem)
        ]
        self.result = Collection(
            found=len(found),
            errors=[item.error for item in session.items if isinstance(item, LoadItem)],
            unmatched=session.config.stash[RUN].found.unmatched,
        )
        try:
            self.use(found)
        except (PromptfmtError, SystemExit) as error:
            # pytest would print either as an internal error; rich exits when its output is closed (`| head`).
            self.raised = error
        return True


def with_collected(
    use: Callable[[Sequence[CollectedPrompts]], None], paths: Sequence[Path], options: Sequence[str]
) -> Collection:
    """Call `use` with what `pytest --promptfmt` collects in these paths with these options, and return what was found.

    The settings are those of the project. Raises SettingsError where pytest refuses to start, and what `use` raises.
    """
    catcher = _Catcher(use)
    start(["-p", "no:cacheprovider", "-s", *options, *map(str, paths)], catcher)
    if catcher.raised is not None:
        raise catcher.raised
    return catcher.result


class _Reader:
    """A plugin that takes the settings and collects nothing."""

    def __init__(self) -> None:
        self.settings: Settings | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        self.settings = session.config.stash[RUN].settings
        return True


def settings_around(path: Path) -> Settings:
    """Return the settings of the project that a file or folder belongs to, as `pytest --promptfmt` with it has them.

    Raises SettingsError where pytest refuses to start.
    """
    reader = _Reader()
    status = start(["-p", "no:cacheprovider", "-s", str(path)], reader)
    if reader.settings is None:
        raise SettingsError(f"pytest ended with {status} before it had read its settings")
    return reader.settings


class _NoTests(pytest.Module):
    """A Python file that was named and is not imported: what tests it has are not asked for."""

    def collect(self) -> Sequence[pytest.Item]:
        return ()


class _TaskFilesAlone:
    """A plugin that keeps pytest from its own tests, also in files that it is given by name."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> pytest.Module:
        module: pytest.Module = _NoTests.from_parent(parent, path=module_path)
        return module


def start(arguments: Sequence[str], plugin: object) -> int:
    """Return the exit status of pytest for task files alone, with a plugin that takes what it is for; nothing is shown.

    Raises SettingsError where pytest refuses to start.
    """
    # What a project always passes to pytest (-n, --cov) is about running tests.
    added = os.environ.pop("PYTEST_ADDOPTS", None)
    alone = ["--promptfmt", "-p", "no:terminal", "-p", "no:xdist", "-o", "addopts=", "-o", "python_files="]
    try:
        status = pytest.main([*alone, *arguments], plugins=[plugin, _TaskFilesAlone()])
    finally:
        if added is not None:
            os.environ["PYTEST_ADDOPTS"] = added
    if status == pytest.ExitCode.USAGE_ERROR:
        raise SettingsError("pytest exited with a usage error (see above)")
    return int(status)
