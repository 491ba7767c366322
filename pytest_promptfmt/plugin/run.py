"""What the hooks, nodes and items of one run share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from pytest_promptfmt.core.profile import BUILTIN_PROFILES
from pytest_promptfmt.plugin.folders import Folders
from pytest_promptfmt.plugin.outputs import read_outputs
from pytest_promptfmt.results.baseline import BaselineRun
from pytest_promptfmt.results.run_result import Tally
from pytest_promptfmt.rules.linter import Linter
from pytest_promptfmt.settings import Settings, SettingsTree
from pytest_promptfmt.snapshots.expected import ExpectedSnapshots
from pytest_promptfmt.snapshots.lock import FILE_NAME as LOCK_NAME, Lock
from pytest_promptfmt.snapshots.paths import BESIDE, Tree
from pytest_promptfmt.study import Studies
from pytest_promptfmt.tasks import TaskIndex

if TYPE_CHECKING:
    from pytest_promptfmt.plugin.outcome_cache import OutcomeCache

RUN: Final[pytest.StashKey[Run]] = pytest.StashKey()
"""Where the config keeps the run."""

OUTCOMES_ONLY: Final[pytest.StashKey[bool]] = pytest.StashKey()
"""Set in a config whose run shows no items: only what it finds out is wanted."""


@dataclass
class CollectionResult:
    """What collecting found, in types of JSON: under xdist the workers alone collect, and send it.

    `unmatched` has a line for each option that matches no task, `defined` are the files that were read to their end
    with the names of their tasks, `other_shards` counts the files of other shards, `has_items` says whether there was
    anything.
    """

    unmatched: list[str] = field(default_factory=list)
    defined: dict[str, list[str]] = field(default_factory=dict)
    other_shards: int = 0
    has_items: bool = True


def _tree(settings: Settings) -> Tree:
    settings.mirror("docs_dir")  # a mistake is reported once, before any task is read
    mirror = None if settings.beside else settings.mirror("snapshot_dir")
    return BESIDE if mirror is None else Tree(settings.rootdir, mirror)


class Run:
    """One run: its settings by folder, the studies of its tasks, and what became of the items."""

    def __init__(self, config: pytest.Config, tree: SettingsTree, snapshot_names: Iterable[str]) -> None:
        """Raise SettingsError for options that make no sense; `snapshot_names` are those that no profile has."""
        self.config = config
        self.outputs = outputs = read_outputs(config)
        self.expected = ExpectedSnapshots(_tree(tree.root))
        self.expected.set_rootdir(tree.root.rootdir)
        names = (*BUILTIN_PROFILES, *snapshot_names)
        self.folders = Folders(tree, lambda defined: self.expected.set_profiles(defined, everywhere=names))
        self.studies = Studies(self.folders.settings_of)
        self.linter = Linter()
        needs_all = outputs.baseline is not None or outputs.needs_views
        self.tally = Tally("none" if hasattr(config, "workerinput") else "all" if needs_all else "remarkable")
        self.baseline = BaselineRun(outputs.baseline, outputs.baseline_update, tree.root.rootdir)
        self.lock = Lock(tree.root.rootdir / LOCK_NAME)
        self.memory: OutcomeCache
        self.found = CollectionResult()
        self.in_worker = False
        self.shows_only_outcomes = config.stash.get(OUTCOMES_ONLY, False)
        if outputs.shard is not None:
            self.expected.limit_to(partial(outputs.shard.holds, rootdir=tree.root.rootdir))

    def remember(self, memory: OutcomeCache) -> None:
        """Let the run know the outcomes of earlier ones."""
        self.memory = memory
        self.folders.index = TaskIndex(known=memory)

    @property
    def settings(self) -> Settings:
        """Return the settings of the rootdir."""
        return self.folders.settings
