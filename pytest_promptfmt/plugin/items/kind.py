"""What a kind of test gives a run: the items of a task, and hooks of pytest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest

from pytest_promptfmt.plugin.kind_registry import KINDS

if TYPE_CHECKING:
    from pytest_promptfmt.core.profile import Profile
    from pytest_promptfmt.core.task import Task
    from pytest_promptfmt.plugin.run import Run
    from pytest_promptfmt.rules.rule_views import FileView
    from pytest_promptfmt.settings import Settings


class TaskLike(Protocol):
    """What a kind sees of a task@format that was collected."""

    task: Task
    profiles: tuple[Profile, ...]
    file: FileView | None

    @property
    def settings(self) -> Settings:
        """Return the settings of the task's folder."""
        ...

    @property
    def is_variant(self) -> bool:
        """Return whether the format is a variant of another one."""
        ...

    @property
    def imported(self) -> Task | None:
        """Return the task; where it is code, imported; None where that fails."""
        ...

    def make(self, item: Any, name: str, **given: Any) -> pytest.Item:
        """Return an item of the task."""
        ...

    def make_with_snapshot(self, kind: str, item: Any, name: str, **given: Any) -> pytest.Item:
        """Return an item that has a snapshot of this name, or one that fails because it cannot have it."""
        ...


class Kind(ABC):
    """One kind of test in one run. It is registered as a plugin of pytest, so that it may have hooks of its own."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @abstractmethod
    def items(self, node: TaskLike) -> Iterable[pytest.Item]:
        """Yield the items of a task@format; none where the kind does not apply to it."""

    def file_items(self, _node: pytest.File, _view: FileView, /) -> Iterable[pytest.Item]:
        """Yield the items of a file none of whose tasks can be tested."""
        return ()


def load_kinds(run: Run) -> tuple[Kind, ...]:
    """Return every kind for a run; raises SettingsError for options of a kind that make no sense."""
    made = []
    for entry in KINDS:
        module, _, name = entry.where.partition(":")
        made.append(getattr(import_module(f"pytest_promptfmt.plugin.{module}"), name)(run))
    return tuple(made)


LOADED: Final[pytest.StashKey[tuple[Kind, ...]]] = pytest.StashKey()
"""Where the config keeps the kinds of the run."""
