"""The kinds of test: one table, and the items and hooks of pytest that each gives a run.

The modules of this package are the pytest items: what each tests, when it skips, and how its failure reads. pytest
imports this module at every start of every project: it imports nothing heavy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import pytest

if TYPE_CHECKING:
    from pytest_promptfmt.core.profile import Profile
    from pytest_promptfmt.core.task import Task
    from pytest_promptfmt.plugin.run import Run
    from pytest_promptfmt.rules.rule_views import FileView
    from pytest_promptfmt.settings import Settings


class KindEntry(NamedTuple):
    """One kind of test: its name, a description for its marker, and its class as `module:Class` of this package.

    `snapshot_names` are the names of its snapshots that are not those of profiles.
    """

    name: str
    help: str
    where: str
    snapshot_names: tuple[str, ...] = ()

    @property
    def marker(self) -> str:
        """Return the name of the marker of its items."""
        return f"promptfmt_{self.name}"


KINDS: Final = (
    KindEntry("snapshot", "the prompts of a task compared with their snapshot", "prompt_items:SnapshotKind"),
    KindEntry("variant", "a variant of a format, rendered without a snapshot", "prompt_items:VariantKind"),
    KindEntry("lint", "a task or group checked by the rules", "lint_items:LintKind"),
    KindEntry(
        "extraction",
        "whether a task's filters read answers as they should",
        "answer_items:ExtractionKind",
        ("extraction",),
    ),
    KindEntry("scoring", "whether a task's metrics separate right from wrong answers", "answer_items:ScoringKind"),
    KindEntry("recording", "recorded completions, replayed", "answer_items:RecordingKind"),
    KindEntry("model", "a task put to a model", "prompt_items:ModelKind"),
    KindEntry(
        "recorded",
        "prompts and completions of a recorded run, made again",
        "answer_items:RecordedKind",
        ("recorded",),
    ),
)
"""Every kind of test, in the order of a task's items."""


class TaskLike(Protocol):
    """A collected task@format, as kinds use it."""

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
        """Return the task, its code imported; None if that fails."""
        ...

    def make(self, item: Any, name: str, **given: Any) -> pytest.Item:
        """Return an item of the task."""
        ...

    def make_with_snapshot(self, kind: str, item: Any, name: str, **given: Any) -> pytest.Item:
        """Return an item that has a snapshot of this name, or one that fails because it cannot have it."""
        ...


class Kind(ABC):
    """One kind of test in one run. It is registered as a plugin of pytest, so that it may have hooks."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @abstractmethod
    def items(self, node: TaskLike) -> Iterable[pytest.Item]:
        """Yield the items of a task@format; none where the kind does not apply to it."""

    def file_items(self, _node: pytest.File, _view: FileView, /) -> Iterable[pytest.Item]:
        """Yield the items of a file none of whose tasks can be tested."""
        return ()


def load_kinds(run: Run) -> tuple[Kind, ...]:
    """Return every kind for a run; raises SettingsError for invalid options of a kind."""
    made = []
    for entry in KINDS:
        module, _, name = entry.where.partition(":")
        made.append(getattr(import_module(f"{__name__}.{module}"), name)(run))
    return tuple(made)


LOADED: Final[pytest.StashKey[tuple[Kind, ...]]] = pytest.StashKey()
"""Where the config keeps the kinds of the run."""
