"""Unchanged files: one item for each, and whether a run may show it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.core.errors import SnapshotError
from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.inputs.cached_files import CachedFile, Shown, problems
from pytest_promptfmt.inputs.store import mapping
from pytest_promptfmt.plugin.collection import task_file_node
from pytest_promptfmt.plugin.items.item import PromptItem, accept_command_of
from pytest_promptfmt.plugin.run import RUN, Run
from pytest_promptfmt.results.failures import repeated_failure
from pytest_promptfmt.snapshots.expected import Defined
from pytest_promptfmt.snapshots.paths import SnapshotPath


class Unchanged(pytest.Item):
    """An unchanged file: it is counted if all its tests passed; else the reports of its earlier run are shown again."""

    def __init__(self, *, cached: CachedFile, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cached = cached

    def __repr__(self) -> str:
        """Return the line of --collect-only."""
        return f"<Unchanged {self.name}>"

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the file."""
        return self.path, 0, self.name

    def runtest(self) -> None:
        """Do nothing."""

    @cached_property
    def ihook(self) -> Any:
        """Return the hooks of the folder, which pytest would look up each time."""
        return super().ihook

    def places(self) -> Iterator[SnapshotPath]:
        """Yield the snapshots of the file."""
        expected = self.config.stash[RUN].expected
        return (expected.place(self.path, task, profile) for task, profile in self.cached.claims)

    def stored(self, *, quiet: bool) -> Iterator[tuple[StoredItem, Mapping[str, Any]]]:
        """Yield the items of the file with their results, the quiet ones only if wanted."""
        run = self.config.stash[RUN]
        places = {place.name: place for place in self.places()}
        for shown in self.cached.items.values() if quiet else self.cached.loud():
            nodeid, location, marker, repeats, place = shown["about"]
            path, line, name = location
            yield (
                StoredItem(run, self, nodeid, (path, line, name), marker, repeats, places.get(place)),
                shown,
            )


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item that is not collected again, with the fields that a report needs."""

    run: Run
    file: Unchanged
    nodeid: str
    location: tuple[str, int | None, str]
    marker: str
    repeats: str
    place: SnapshotPath | None

    @property
    def name(self) -> str:
        """Return the last part of the node id."""
        return self.nodeid.rpartition("::")[2]

    @property
    def ihook(self) -> Any:
        """Return the hooks of the file's folder."""
        return self.file.ihook

    def repeated(self, outcome: Outcome, first: str) -> str | None:
        """Return the short text for a problem that the item `first` had; None for the full one."""
        path = self.file.path
        return repeated_failure(
            self.repeats, outcome, first, lambda: accept_command_of(self.run, path, self.nodeid, outcome.task)
        )


def unchanged(path: Path, parent: pytest.Collector) -> Unchanged | None:
    """Return one item for all tests of an unchanged file, None if it may have changed."""
    run, session = parent.config.stash[RUN], parent.session
    if not is_below_named(path, session):
        return None  # pytest passes here on its way to a folder that was named
    root = run.folders.root_of(path, session.isinitpath)
    cached = run.cache.decision(path).file
    if cached is None:
        return None
    tasks = [(task, path, line, column) for task, _, _, line, column in cached.tasks]
    root = path.parent if cached.brings_profiles else root  # as `earlier_definition`
    if not all(run.folders.is_first(task, path, root) for task, *_ in tasks):
        return None
    run.folders.add_known(root, tasks)
    try:
        for task, profile in cached.claims:
            run.expected.claim(path, task, profile)
    except SnapshotError:
        return None  # another file has one of its snapshots
    run.expected.define(path, (Defined(*task[:3]) for task in cached.tasks))
    item: Unchanged = Unchanged.from_parent(parent, name=path.name, path=path, cached=cached)
    return item


def is_below_named(path: Path, session: pytest.Session) -> bool:
    """Return whether a path is below a folder of the command line."""
    return any(session.isinitpath(above) for above in path.parents)


def expanded(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the items, with unchanged files replaced by their own items if these have to run again.

    These are a file that comes first with other profiles than before, about which it reports the findings; a failure
    that is stored without its text, because it repeats one of another file, if no earlier item has the text; a file
    with a task that an earlier, changed file defines; and one with a missing snapshot that `may_be_renamed`.
    """
    known: set[str] = set()
    explained: set[tuple[str, str]] = set()
    waiting = [iter(items)]
    while waiting:
        item = next(waiting[-1], None)
        if item is None:
            waiting.pop()
        elif isinstance(item, Unchanged):
            same = _first_with(item, known)
            if same is not None and _is_settled(same, explained):
                known |= same.cached.profiles
                yield same
            else:
                assert item.parent is not None
                waiting.append(iter(item.session.genitems(task_file_node(item.parent, item.path))))
        else:
            known.update(map(item.config.stash[RUN].cache.shared.profile_key, getattr(item, "met", ())))
            yield item


def _first_with(item: Unchanged, known: Set[str]) -> Unchanged | None:
    """Return the item with the outcomes of its file as the first one with all profiles that are not known yet."""
    run, new = item.config.stash[RUN], item.cached.profiles - known
    if item.path in run.folders.overtaken:
        return None
    if new == item.cached.introduces:
        return item
    cached = run.cache.decision(item.path, new).file
    if cached is None or item.parent is None:
        return None
    same: Unchanged = Unchanged.from_parent(item.parent, name=item.name, path=item.path, cached=cached)
    return same


def may_be_renamed(run: Run, shown: Shown) -> bool:
    """Return whether a cached result is about a missing snapshot, which an obsolete one may replace in this run.

    A renamed task leaves its snapshot to another one, and all obsolete ones are known once all files are collected.
    """
    categories = {mapping(report.get("promptfmt")).get("category") for report in shown["reports"]}
    return "new" in categories and bool(run.expected.obsolete())


def _is_settled(item: Unchanged, explained: set[tuple[str, str]]) -> bool:
    """Return whether all failures of a file have their text, or repeat one that is `explained`; adds its problems."""
    cached = item.cached
    if cached.is_quiet:
        return True
    if any(may_be_renamed(item.config.stash[RUN], shown) for shown in cached.loud()):
        return False
    is_whole = len(cached.items) == cached.size
    for shown in cached.loud():
        for problem, has_text in problems(shown):
            is_whole = is_whole and (has_text or problem in explained)
            explained.add(problem)
    cached.pack()
    return is_whole


def about(item: PromptItem) -> list[object]:
    """Return the fields of a `StoredItem` in JSON's types."""
    place: SnapshotPath | None = getattr(item, "place", None)
    return [item.nodeid, item.location, item.marker, item.repeats, place.name if place is not None else None]
