"""The files whose cached outcomes hold, and for the others the reason; asked without running any test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_promptfmt.core.errors import SettingsError
from pytest_promptfmt.inputs.store import store_folder
from pytest_promptfmt.plugin.collected import start
from pytest_promptfmt.plugin.items.item import PromptItem
from pytest_promptfmt.plugin.run import RUN
from pytest_promptfmt.plugin.unchanged import Unchanged, UnchangedItem


@dataclass(frozen=True, slots=True)
class CacheStates:
    """The store of a project, None for none, and for each task file why the next run shows it again or runs it.

    `held` are the files that it shows again.
    """

    store: Path | None = None
    reasons: Mapping[Path, str] = field(default_factory=dict)
    held: frozenset[Path] = frozenset()


def cache_states(paths: Sequence[Path], options: Sequence[str]) -> CacheStates:
    """Return the states of the task files in these paths; raises SettingsError if pytest cannot run."""
    asker = _Asker()
    start([*options, *map(str, paths)], asker)
    if asker.found is None:
        raise SettingsError("the run ended before anything was collected")
    return asker.found


class _Asker:
    """A plugin that asks the cache about the collected files instead of running them."""

    def __init__(self) -> None:
        self.found: CacheStates | None = None
        self._files: list[Path] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: Sequence[pytest.Item]) -> None:
        self._files = [*dict.fromkeys(_files_of(items))]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        cache = session.config.stash[RUN].cache
        reasons, held = {}, set()
        for path in self._files:
            held |= {path} if cache.file(path) is not None else set()
            reasons[path] = cache.reasons.get(str(path), "nothing is cached in this run")
        self.found = CacheStates(store_folder(session.config.rootpath), reasons, frozenset(held))
        cache.store.is_on = False  # nothing ran, so nothing is written
        return True


def _files_of(items: Sequence[pytest.Item]) -> Iterator[Path]:
    for item in items:
        if isinstance(item, Unchanged):
            folder = item.path.parent if isinstance(item, UnchangedItem) else item.path
            yield from (folder / name for name in item.files)
        elif isinstance(item, PromptItem):
            yield item.path
