"""The kinds of test in one table, and what each of them gives a run: the items of a task.

pytest imports this module at every start of every project: it imports nothing heavy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import pytest

    from pytest_promptfmt.checks.views import FileView
    from pytest_promptfmt.plugin.collection import TaskFileNode, TaskNode
    from pytest_promptfmt.plugin.run import Run


class KindEntry(NamedTuple):
    """One kind of test: its name, of which its marker is made, what it is about, and its class as `module:Class`."""

    name: str
    help: str
    where: str

    @property
    def marker(self) -> str:
        """Return the name of the marker of its items."""
        return f"promptfmt_{self.name}"


KINDS: Final = (
    KindEntry("snapshot", "the prompts of a task compared with their snapshot", "items.prompts:SnapshotKind"),
    KindEntry("variant", "a variant of a format, rendered without a snapshot", "items.prompts:VariantKind"),
    KindEntry("lint", "a task or group looked at by the rules", "items.lint:LintKind"),
    KindEntry("extraction", "whether a task's filters read answers as they should", "items.answers:ExtractionKind"),
    KindEntry("scoring", "whether a task's metrics tell right from wrong answers", "items.answers:ScoringKind"),
    KindEntry("recording", "recorded completions, replayed", "items.answers:RecordingKind"),
    KindEntry("model", "a task put to a model", "items.models:ModelKind"),
    KindEntry("recorded", "prompts and completions of a recorded run, made again", "items.recorded:RecordedKind"),
)
"""Every kind of test, in the order of a task's items."""


class Kind(ABC):
    """One kind of test in one run. It is registered as a plugin of pytest, so that it may have hooks of its own."""

    snapshot_names: tuple[str, ...] = ()
    """The names of its snapshots that are not those of profiles."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @abstractmethod
    def items(self, node: TaskNode) -> Iterable[pytest.Item]:
        """Yield the items of a task@format; none where the kind does not apply to it."""

    def file_items(self, _node: TaskFileNode, _view: FileView, /) -> Iterable[pytest.Item]:
        """Yield the items of a file none of whose tasks can be tested."""
        return ()


def load_kinds(run: Run) -> tuple[Kind, ...]:
    """Return every kind for a run; raises SettingsError for options of a kind that make no sense."""
    made = []
    for entry in KINDS:
        module, _, name = entry.where.partition(":")
        made.append(getattr(import_module(f"{__package__}.{module}"), name)(run))
    return tuple(made)
