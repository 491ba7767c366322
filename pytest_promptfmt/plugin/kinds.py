"""The kinds of test in one table, and what each of them gives a run: the items of a task.

pytest imports this module at every start of every project: it imports nothing heavy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import pytest

if TYPE_CHECKING:
    from pytest_promptfmt.checks.views import FileView
    from pytest_promptfmt.core.profile import Profile
    from pytest_promptfmt.core.task import Task
    from pytest_promptfmt.plugin.run import Run
    from pytest_promptfmt.settings import Settings


class KindEntry(NamedTuple):
    """One kind of test: its name, of which its marker is made, what it is about, and its class as `module:Class`.

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
    KindEntry("snapshot", "the prompts of a task compared with their snapshot", "items.prompts:SnapshotKind"),
    KindEntry("variant", "a variant of a format, rendered without a snapshot", "items.prompts:VariantKind"),
    KindEntry("lint", "a task or group looked at by the rules", "items.lint:LintKind"),
    KindEntry(
        "extraction",
        "whether a task's filters read answers as they should",
        "items.answers:ExtractionKind",
        ("extraction",),
    ),
    KindEntry("scoring", "whether a task's metrics tell right from wrong answers", "items.answers:ScoringKind"),
    KindEntry("recording", "recorded completions, replayed", "items.answers:RecordingKind"),
    KindEntry("model", "a task put to a model", "items.models:ModelKind"),
    KindEntry(
        "recorded",
        "prompts and completions of a recorded run, made again",
        "items.recorded:RecordedKind",
        ("recorded",),
    ),
)
"""Every kind of test, in the order of a task's items."""


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
        made.append(getattr(import_module(f"{__package__}.{module}"), name)(run))
    return tuple(made)


LOADED: Final[pytest.StashKey[tuple[Kind, ...]]] = pytest.StashKey()
"""Where the config keeps the kinds of the run."""
