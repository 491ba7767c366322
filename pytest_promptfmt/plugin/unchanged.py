"""Files of which nothing has changed since an earlier run: one item each, whatever that run found out about them.

Those of a folder in which nothing has changed are one item, as far as nobody needs to see them one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.core.errors import SnapshotError
from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.engine.store import FILE_NAME as STORE_NAME, mapping
from pytest_promptfmt.plugin.cached_files import Counted, Remembered
from pytest_promptfmt.plugin.cached_folders import QUIET, RUN_AGAIN, KnownFolder
from pytest_promptfmt.plugin.collection import TaskFileNode, TaskNode, task_file_node
from pytest_promptfmt.plugin.folders import Known
from pytest_promptfmt.plugin.items.item import PromptItem, accept_command_of
from pytest_promptfmt.plugin.run import RUN, Run
from pytest_promptfmt.results.failures import repeated_failure
from pytest_promptfmt.settings.setting_lookup import SettingLookup
from pytest_promptfmt.snapshots.expected import Defined
from pytest_promptfmt.snapshots.paths import SnapshotPath, is_tracked


class UnchangedFolder(pytest.Directory):
    """A folder in which nothing has changed: `known` is what there is to say of the files right in it.

    Nobody goes into it but for files that are run each time, and into those of its folders in which something changed.
    """

    def __init__(self, *, known: KnownFolder, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.known = known

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        """Yield an item for all files that need not be shown, one for each of the others, and the folders."""
        run, known = self.config.stash[RUN], self.known
        quiet = [name for name, made in known.children if made == QUIET and not name.endswith("/")]
        counted_at = known.first[0] if known.first is not None else next(iter(quiet), None)
        for name, made in known.children:
            if name.endswith("/"):  # a node of its own, for pytest reads the conftests of each
                yield self.ihook.pytest_collect_directory(path=self.path / name, parent=self)
            elif made == QUIET:
                if name == counted_at:  # those before it say nothing of a profile
                    yield UnchangedFiles.from_parent(self, name=self.name, path=self.path, known=known, files=quiet)
            else:
                path = self.path / name
                remembered = run.cache.made_as(path, made) if made is not RUN_AGAIN else None
                if remembered is None or (run.shows_only_outcomes and remembered.counted is None):
                    yield task_file_node(self, path)
                else:  # as of the quiet ones, their snapshots are those of no other file, and none is obsolete
                    yield UnchangedItem.from_parent(self, name=name, path=path, remembered=remembered)


class UnchangedFiles(pytest.Item):
    """Files of one folder of which nothing has changed, and that are only counted: they are not run."""

    is_counted = True

    def __init__(self, *, known: KnownFolder, files: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.known = known
        self.files = files
        self.counted = known.counted

    def __repr__(self) -> str:
        """Return the line of --collect-only."""
        return f"<Unchanged {self.name}/>"

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the folder."""
        return self.path, 0, self.name

    def runtest(self) -> None:
        """Do nothing: nothing has changed."""

    @property
    def place(self) -> SnapshotPath | None:
        """Return the first snapshot."""
        if self.known.first is None:
            return None
        file, task, name = self.known.first
        return self.config.stash[RUN].expected.place(self.path / file, task, name)

    def apart(self) -> Iterator[pytest.Item]:
        """Yield the items of the first file that has a profile, which are run, and what is known of the others."""
        assert self.parent is not None
        has_profile = False
        for file in self.files:
            path = self.path / file
            same = unchanged(path, self.parent) if has_profile else None
            for item in self.session.genitems(same or task_file_node(self.parent, path)):
                has_profile = has_profile or isinstance(item.parent, TaskNode)
                yield item


class UnchangedItem(pytest.Item):
    """A file that was tested in an earlier run, and of which nothing has changed: it is not run.

    Where all its tests passed it is counted; else the reports of that run are shown again.
    """

    def __init__(self, *, remembered: Remembered, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.remembered = remembered
        self.files = (self.path.name,)

    def __repr__(self) -> str:
        """Return the line of --collect-only."""
        return f"<Unchanged {self.name}>"

    @cached_property
    def ihook(self) -> Any:
        """Return the hooks of the folder, which pytest looks up each time."""
        return super().ihook

    @property
    def is_counted(self) -> bool:
        """Return whether the file is counted, and its items are not shown one by one."""
        return self.remembered.is_quiet or self.config.stash[RUN].shows_only_outcomes

    @property
    def counted(self) -> Counted:
        """Return what is only counted."""
        every = self.remembered.counted if self.config.stash[RUN].shows_only_outcomes else None
        return every if every is not None else self.remembered.quiet

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the file."""
        return self.path, 0, self.name

    def runtest(self) -> None:
        """Do nothing: nothing has changed."""

    @property
    def place(self) -> SnapshotPath | None:
        """Return the first snapshot."""
        return next(self._places(), None)

    def _places(self) -> Iterator[SnapshotPath]:
        expected = self.config.stash[RUN].expected
        return (expected.place(self.path, task, profile) for task, profile in self.remembered.claims)

    def stored(self, *, quiet: bool) -> Iterator[tuple[StoredItem, Mapping[str, Any]]]:
        """Yield the items of the file with what each showed; those that are quiet only where they are wanted."""
        run = self.config.stash[RUN]
        places = {place.name: place for place in self._places()}
        for shown in self.remembered.items.values() if quiet else self.remembered.loud():
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
        """Return the text of the item where the item `first` had the same problem; None to say it in full again."""
        path = self.file.path
        return repeated_failure(
            self.repeats, outcome, first, lambda: accept_command_of(self.run, path, self.nodeid, outcome.task)
        )


def unchanged(path: Path, parent: pytest.Collector) -> UnchangedItem | None:
    """Return one item for all tests of a file that are as they were, None where nobody knows."""
    run, session = parent.config.stash[RUN], parent.session
    if not is_below_named(path, session):
        return None  # pytest comes by here on its way to a folder that was named, and looks at no file
    root = run.folders.root_of(path, session)
    known = run.cache.of(path)
    if known is None or (run.shows_only_outcomes and known.counted is None):
        return None
    tasks = [(task, path, line, column) for task, _, _, line, column in known.tasks]
    root = path.parent if known.brings_profiles else root  # as `earlier_definition`
    if not all(run.folders.is_first(task, path, root) for task, *_ in tasks):
        return None
    run.folders.meet(root, tasks)
    return unchanged_item(path, parent, known)


def unchanged_folder(folder: Path, parent: pytest.Collector) -> UnchangedFolder | None:
    """Return a node for a folder in which nothing is other than it was, None where nobody knows."""
    if not is_below_named(folder / "-", parent.session):
        return None
    run = parent.config.stash[RUN]
    root = run.folders.root_of(folder / "-", parent.session)
    known = run.cache.folder(folder)
    if known is None:
        return None

    def tasks() -> Iterator[Known]:
        paths: dict[str, Path] = {}
        for task, name, line, column in run.cache.tasks_in(folder):
            if name not in paths:
                paths[name] = folder / name
            yield task, paths[name], line, column

    if not run.folders.names_are_indexed and not all(run.folders.is_first(*task[:2], root) for task in tasks()):
        return None
    run.folders.pass_over(root, tasks)
    return UnchangedFolder.from_parent(parent, path=folder, known=known)


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


def is_below_named(path: Path, session: pytest.Session) -> bool:
    """Return whether a folder that was named on the command line holds a path."""
    return any(session.isinitpath(above) for above in path.parents)


def unchanged_item(path: Path, parent: pytest.Collector, known: Remembered) -> UnchangedItem | None:
    """Return the item of a file that is as it was, None where its snapshots are those of another."""
    run = parent.config.stash[RUN]
    try:
        for task, profile in known.claims:
            run.expected.claim(path, task, profile)
    except SnapshotError:
        return None
    run.expected.define(path, (Defined(*task[:3]) for task in known.tasks))
    item: UnchangedItem = UnchangedItem.from_parent(parent, name=path.name, path=path, remembered=known)
    return item


def expanded(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the items, those of a file one by one where its items have to be run again.

    What there is to say about a profile itself is said with the first file that has it, so nothing is remembered of
    that. A failure that repeats an earlier one was kept without its text: where no file before says it, it is run. So
    is a file with a task that one before it, which was read, defines.
    """
    known: set[int] = set()
    said: set[tuple[str, str]] = set()
    for item in items:
        if isinstance(item, UnchangedFiles):
            folders = item.config.stash[RUN].folders
            profiles = folders.settings_for(item.path / "-").profiles
            is_overtaken = any(path.parent == item.path and path.name in item.files for path in folders.overtaken)
            if known.issuperset(map(id, profiles)) and not is_overtaken:
                yield item
            else:
                known.update(map(id, profiles))
                yield from item.apart()
            continue
        if not isinstance(item, UnchangedItem):
            node = item.parent
            known.update(map(id, node.profiles) if isinstance(node, TaskNode) else ())
            yield item
            continue
        folders = item.config.stash[RUN].folders
        profiles = () if item.remembered.brings_profiles else folders.settings_for(item.path).profiles
        is_whole = known.issuperset(map(id, profiles)) and item.path not in folders.overtaken
        if is_whole and (item.is_counted or _says_everything(item.remembered, said)):
            yield item
            continue
        assert item.parent is not None
        known.update(map(id, profiles))
        yield from item.session.genitems(task_file_node(item.parent, item.path))


def _says_everything(remembered: Remembered, said: set[tuple[str, str]]) -> bool:
    """Return whether the reports of a file say everything, with those of the files before, whose problems are `said`.

    Afterwards the problems of this file are said, too.
    """
    is_whole = remembered.is_complete
    for shown in remembered.loud():
        for report in shown["reports"]:
            outcome = mapping(report.get("promptfmt"))
            problem = str(outcome.get("category")), str(outcome.get("key"))
            if report.get("outcome") == "failed":
                is_whole = is_whole and (bool(outcome.get("detail")) or problem in said)
                said.add(problem)
    remembered.pack()
    return is_whole


def about(item: PromptItem) -> list[object]:
    """Return what a `StoredItem` has to know of an item."""
    place: SnapshotPath | None = getattr(item, "place", None)
    return [item.nodeid, item.location, item.marker, item.repeats, place.name if place is not None else None]


def cache_folder(run: Run, workers: int) -> tuple[Path | None, bool]:
    """Return the folder of the cached outcomes, None for no cache, and whether this run shows them.

    Only outcomes of workers are cached, because only those are traced. A run that writes each prompt has to render all.
    """
    config, outputs = run.config, run.outputs
    cache = getattr(config, "cache", None)
    is_off = SettingLookup(config).value("no_cache") or hasattr(config, "workerinput") or not workers
    if cache is None or is_off or outputs.needs_views or outputs.needs_edits:
        return None, False
    updates = config.option.update_snapshots or config.option.update_new_snapshots_only
    folder: Path = cache.mkdir("promptfmt")
    if (folder / STORE_NAME).exists() and is_tracked(folder / STORE_NAME):
        return None, False  # outcomes of a committed file are untrusted
    return folder, not (updates or outputs.baseline_update)


def collapses(run: Run) -> bool:
    """Return whether unchanged files may be shown as one item each: no option needs the items of tasks."""
    option, settings = run.config.option, run.settings
    names = ("keyword", "markexpr", "collectonly", "deselect", "lf", "failedfirst", "newfirst", "stepwise", "xmlpath")
    asked = (
        getattr(option, "verbose", 0) > 0
        or any(getattr(option, name, None) for name in names)
        or settings.task_globs
        or settings.formats
        or option.include_snapshot_details
    )
    return run.cache.is_on and not asked and run.outputs.baseline is None
