"""The node of a task, and the base of the kinds of test, each of which yields its items."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property
from importlib import import_module
from typing import Any, Final

import pytest

from pytest_promptfmt.core.errors import PromptfmtError, SnapshotError
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.formats import is_variant
from pytest_promptfmt.plugin.items import KINDS
from pytest_promptfmt.plugin.items.item import LoadItem, PromptItem
from pytest_promptfmt.plugin.printed_output import silenced
from pytest_promptfmt.plugin.run import RUN, Run
from pytest_promptfmt.rules.rule_views import FileView
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.study import Study


class TaskNode(pytest.Class):
    """One task@format; its children are the items of every kind of test that applies to it.

    To pytest it is a class, because editors show the names of tests only below classes.
    """

    obj: Any = None
    """The Python class behind it: none."""

    def __init__(self, *, task: Task, error: PromptfmtError | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.task = task
        self.error = error
        self.file: FileView | None = None
        self.profiles: tuple[Profile, ...] = ()

    def __repr__(self) -> str:
        """Return the line of --collect-only: `<Task arc@mcqa>`."""
        return f"<Task {self.name}>"

    def collect(self) -> Iterator[pytest.Item]:
        """Yield the items of each kind, or one failing item for a task that cannot be tested."""
        run = self.config.stash[RUN]
        try:
            if self.error is not None:
                raise self.error
            self.profiles = run.folders.profiles_for(self.task)
        except PromptfmtError as error:
            yield self.make(LoadItem, "load", error=error)
            return
        for kind in self.config.stash[LOADED]:
            yield from kind.items(self)

    @property
    def settings(self) -> Settings:
        """Return the settings of the task's folder."""
        return self.config.stash[RUN].folders.settings_for(self.path)

    @property
    def is_variant(self) -> bool:
        """Return whether the format is a variant of another one."""
        return is_variant(self.task.format)

    @cached_property
    def imported(self) -> Task | None:
        """Return the task; a class is imported if only its code defines how it reads and scores answers.

        None if that fails, which the snapshot items report.
        """
        if self.task.assembly.describes_scoring:
            return self.task
        try:
            with silenced(self.config):
                return Study(self.task, self.settings).bound_for_scoring
        except PromptfmtError:
            return None

    def make(self, item: type[PromptItem], name: str, **given: Any) -> pytest.Item:
        """Return an item of the task."""
        return item.from_parent(self, name=name, task=self.task, **given)

    def make_with_snapshot(self, kind: str, item: type[PromptItem], name: str, **given: Any) -> pytest.Item:
        """Return an item that has a snapshot of this name, or one that fails because it cannot have it."""
        profile_id = self.settings.run_id(kind)
        try:
            run = self.config.stash[RUN]
            place = run.expected.claim(self.path, self.task.id, profile_id)
            run.cache.watched.claim(self.path, self.task.id, profile_id)
        except SnapshotError as error:
            return self.make(LoadItem, f"load[{profile_id}]", error=error)
        return self.make(item, name, place=place, **given)


class Kind(ABC):
    """One kind of test in one run. It is registered as a plugin of pytest, so that it may have hooks."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @abstractmethod
    def items(self, node: TaskNode) -> Iterable[pytest.Item]:
        """Yield the items of a task@format; none where the kind does not apply to it."""

    def file_items(self, _node: pytest.File, _view: FileView, /) -> Iterable[pytest.Item]:
        """Yield the items of a file none of whose tasks can be tested."""
        return ()


def load_kinds(run: Run) -> tuple[Kind, ...]:
    """Return every kind for a run; raises SettingsError for invalid options of a kind."""
    made = []
    for entry in KINDS:
        module, _, name = entry.where.partition(":")
        made.append(getattr(import_module(f"{__package__}.{module}"), name)(run))
    return tuple(made)


LOADED: Final[pytest.StashKey[tuple[Kind, ...]]] = pytest.StashKey()
"""Where the config keeps the kinds of the run."""
