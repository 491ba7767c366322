"""Files of which nothing has changed since an earlier run: one item each, whatever that run found out about them.

Those of a folder in which nothing has changed are one item, as far as nobody needs to see them one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.core.errors import Position, SnapshotError
from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.plugin.collection import TaskFileNode, TaskNode, task_file_node
from pytest_promptfmt.plugin.items.base import PromptItem, accept_command_of
from pytest_promptfmt.plugin.known_files import Remembered
from pytest_promptfmt.plugin.run import RUN, Run
from pytest_promptfmt.results.failures import said_again
from pytest_promptfmt.snapshots.expected import Defined
from pytest_promptfmt.snapshots.paths import Place


class UnchangedFolder(pytest.Directory):
    """A folder in which nothing has changed: it is not gone into, and `known` says what there is to say of its files.

    They stand in the order of collection, by their paths.
    """

    def __init__(self, *, known: Mapping[str, Remembered], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.known = known

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        """Yield an item for as many files in a row as need not be shown, and one for each of the others."""
        run = self.config.stash[RUN]
        root = run.folders.root_of(self.path, self.session)
        files = [(Path(name), remembered) for name, remembered in self.known.items()]
        for (how, folder), group in groupby(files, lambda each: (self._how(each[0], each[1], root), each[0].parent)):
            if how == "counted":
                yield UnchangedFiles.from_parent(self, name=folder.name, path=folder, known=dict(group))
                continue
            for path, remembered in group:
                item = unchanged_item(path, self, remembered) if how == "shown" else None
                yield item or task_file_node(self, path)

    def _how(self, path: Path, remembered: Remembered, root: Path) -> str:
        run = self.config.stash[RUN]
        if not all(run.folders.is_first(*task, root) for task in _placed(remembered, path)):
            return "run"
        if remembered.is_quiet:
            return "counted"
        if run.shows_only_outcomes:
            return "counted" if remembered.says_all else "run"
        return "shown"


class UnchangedFiles(pytest.Item):
    """Files of one folder of which nothing has changed, and that are only counted: they are not run."""

    is_counted = True

    def __init__(self, *, known: Mapping[Path, Remembered], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.known = known

    def __repr__(self) -> str:
        """Return the line of --collect-only."""
        return f"<Unchanged {self.name}/>"

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the folder."""
        return self.path, 0, self.name

    def runtest(self) -> None:
        """Do nothing: nothing has changed."""

    @property
    def place(self) -> Place | None:
        """Return the first snapshot."""
        tree = self.config.stash[RUN].expected.tree
        claims = ((path, *claim) for path, remembered in self.known.items() for claim in remembered.claims)
        return next((Place(str(tree.path(path, task, name)), f"{task}/{name}") for path, task, name in claims), None)

    def without_first(self) -> tuple[Path, list[UnchangedFiles]]:
        """Return the first file, and an item of the others where there are any."""
        (first, _), *others = self.known.items()
        if not others:
            return first, []
        assert self.parent is not None
        made: UnchangedFiles = UnchangedFiles.from_parent(
            self.parent, name=self.name, path=self.path, known=dict(others)
        )
        return first, [made]


class UnchangedItem(pytest.Item):
    """A file that was tested in an earlier run, and of which nothing has changed: it is not run.

    Where all its tests passed it is counted; else the reports of that run are shown again.
    """

    def __init__(self, *, remembered: Remembered, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.remembered = remembered
        self.known = {self.path: remembered}
        self.places: Sequence[Place] = ()

    def __repr__(self) -> str:
        """Return the line of --collect-only."""
        return f"<Unchanged {self.name}>"

    @property
    def is_counted(self) -> bool:
        """Return whether the file is counted, and its items are not shown one by one."""
        return self.remembered.is_quiet or self.config.stash[RUN].shows_only_outcomes

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the file."""
        return self.path, 0, self.name

    def runtest(self) -> None:
        """Do nothing: nothing has changed."""

    @property
    def place(self) -> Place | None:
        """Return the first snapshot."""
        return next(iter(self.places), None)

    def stored(self) -> Iterator[tuple[StoredItem, Mapping[str, Any]]]:
        """Yield the items of the file with what each showed."""
        run = self.config.stash[RUN]
        places = {place.name: place for place in self.places}
        for shown in self.remembered.items.values():
            nodeid, location, marker, repeats, place = shown["about"]
            path, line, name = location
            yield (
                StoredItem(run, self, nodeid, (path, line, name), marker, repeats, places.get(place)),
                shown,
            )


@dataclass(frozen=True, slots=True)
class StoredItem:
    """What a report needs of an item that is not collected again."""

    run: Run
    file: UnchangedItem
    nodeid: str
    location: tuple[str, int | None, str]
    marker: str
    repeats: str
    place: Place | None

    @property
    def name(self) -> str:
        """Return the last part of the node id."""
        return self.nodeid.rpartition("::")[2]

    @property
    def ihook(self) -> Any:
        """Return the hooks of the file's folder."""
        return self.file.ihook

    def repeated(self, outcome: Outcome, first: str) -> str | None:
        """Return the text of the item where the item `first` had the same problem; None to say it in full again."""
        path = self.file.path
        return said_again(
            self.repeats, outcome, first, lambda: accept_command_of(self.run, path, self.nodeid, outcome.task)
        )


def unchanged(path: Path, parent: pytest.Collector) -> UnchangedItem | None:
    """Return one item for all tests of a file that are as they were, None where nobody knows."""
    run, session = parent.config.stash[RUN], parent.session
    if not _is_below_named(path, session):
        return None  # pytest comes by here on its way to a folder that was named, and looks at no file
    root = run.folders.root_of(path, session)
    known = run.memory.of(path)
    if known is None or (run.shows_only_outcomes and not (known.is_quiet or known.says_all)):
        return None
    if not all(run.folders.is_first(*task, root) for task in _placed(known, path)):
        return None
    return unchanged_item(path, parent, known)


def unchanged_folder(folder: Path, parent: pytest.Collector) -> UnchangedFolder | None:
    """Return a node for a folder in which nothing is other than it was, None where nobody knows."""
    run, session = parent.config.stash[RUN], parent.session
    if session.isinitpath(folder, with_parents=True) or not _is_below_named(folder, session):
        return None
    known = run.memory.below(folder, run.folders.root_of(folder, session))
    return UnchangedFolder.from_parent(parent, path=folder, known=known) if known is not None else None


def children_of(collected: Iterable[pytest.Item | pytest.Collector]) -> list[str] | None:
    """Return the names of what was collected in a folder, those of folders with a slash at the end.

    None where anything of it is nobody's but pytest's, or another plugin's: that has to be collected each time.
    """
    found: list[str] = []
    for node in collected:
        if not isinstance(node, pytest.Directory | TaskFileNode | UnchangedItem):
            return None
        found.append(f"{node.path.name}/" if isinstance(node, pytest.Directory) else node.path.name)
    return found


def _is_below_named(path: Path, session: pytest.Session) -> bool:
    return any(session.isinitpath(above) for above in path.parents)


def _placed(known: Remembered, path: Path) -> Iterator[tuple[str, Path, Position]]:
    """Yield the tasks of a file with where each is written."""
    return ((task, path, Position(path, line, column)) for task, _, _, line, column in known.tasks)


def unchanged_item(path: Path, parent: pytest.Collector, known: Remembered) -> UnchangedItem | None:
    """Return the item of a file that is as it was, None where its snapshots are those of another."""
    run = parent.config.stash[RUN]
    try:
        claimed = [run.expected.claim(path, task, profile) for task, profile in known.claims]
    except SnapshotError:
        return None
    run.expected.define(path, (Defined(*task[:3]) for task in known.tasks))
    item: UnchangedItem = UnchangedItem.from_parent(parent, name=path.name, path=path, remembered=known)
    item.places = claimed
    return item


def expanded(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the items, those of a file one by one where its items have to be run again.

    What there is to say about a profile itself is said with the first file that has it, so nothing is remembered of
    that. A failure that repeats an earlier one was kept without its text: where no file before says it, it is run.
    """
    known: set[int] = set()
    said: set[tuple[str, str]] = set()
    for item in items:
        if isinstance(item, UnchangedFiles):
            profiles = item.config.stash[RUN].folders.settings_for(item.path / "-").profiles
            rest = [item]
            if not known.issuperset(map(id, profiles)):
                known.update(map(id, profiles))
                first, rest = item.without_first()
                assert item.parent is not None
                yield from item.session.genitems(task_file_node(item.parent, first))
            yield from rest
            continue
        if not isinstance(item, UnchangedItem):
            node = item.parent
            known.update(map(id, node.profiles) if isinstance(node, TaskNode) else ())
            yield item
            continue
        profiles = item.config.stash[RUN].folders.settings_for(item.path).profiles
        if known.issuperset(map(id, profiles)) and (item.is_counted or _says_everything(item.remembered, said)):
            yield item
            continue
        assert item.parent is not None
        known.update(map(id, profiles))
        yield from item.session.genitems(task_file_node(item.parent, item.path))


def _says_everything(remembered: Remembered, said: set[tuple[str, str]]) -> bool:
    """Return whether the reports of a file say everything, with those of the files before, whose problems are `said`.

    Afterwards the problems of this file are said, too.
    """
    is_whole = len(remembered.items) == remembered.size and all(map(_is_complete, remembered.items.values()))
    remembered.forget_items()
    for _, outcome in remembered.said:
        if outcome.category not in ("passed", "accepted", "skipped"):
            problem = outcome.category, outcome.key
            is_whole = is_whole and (bool(outcome.detail) or problem in said)
            said.add(problem)
    return is_whole


def about(item: PromptItem) -> list[object]:
    """Return what a `StoredItem` has to know of an item."""
    place: Place | None = getattr(item, "place", None)
    return [item.nodeid, item.location, item.marker, item.repeats, place.name if place is not None else None]


def _is_complete(shown: Mapping[str, Any]) -> bool:
    """Return whether the store says all that is needed to show an item: it is somebody else's data."""
    match shown.get("about"):
        case [str(), [str(), int() | None, str()], str(), str(), str() | None]:
            return True
    return False
