"""Unchanged files: one item for each, or for all quiet ones of an unchanged folder; and whether a run may show them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_promptfmt.core.errors import SnapshotError
from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.inputs.cached_files import CachedFile, Counted
from pytest_promptfmt.inputs.cached_folders import QUIET, RUN_AGAIN, CachedFolder
from pytest_promptfmt.inputs.outcome_cache import OutcomeCache
from pytest_promptfmt.inputs.store import remove_store, store_folder
from pytest_promptfmt.inputs.task_inputs import RunInputs
from pytest_promptfmt.plugin.collection import TaskFileNode, task_file_node
from pytest_promptfmt.plugin.hash_seeds import varying
from pytest_promptfmt.plugin.items.item import PromptItem, accept_command_of
from pytest_promptfmt.plugin.run import RUN, Run
from pytest_promptfmt.results.failures import repeated_failure
from pytest_promptfmt.settings.setting_lookup import SettingLookup
from pytest_promptfmt.snapshots.paths import SnapshotPath


class UnchangedFolder(pytest.Directory):
    """An unchanged folder, with the `cached` outcomes of the files directly in it.

    It is entered only for files that run each time or have to be shown, and for its folders.
    """

    def __init__(self, *, cached: CachedFolder, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cached = cached

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        """Yield the folders, one item for each file that is not quiet, and one for the others, which introduce none."""
        run, cached, quiet = self.config.stash[RUN], self.cached, []
        for name, made in cached.children:
            if name.endswith("/"):  # a separate node, because pytest reads the conftests of each
                yield self.ihook.pytest_collect_directory(path=self.path / name, parent=self)
            elif made == QUIET:
                quiet.append(name)
            else:
                path = self.path / name
                file = run.cache.file_with(path, made) if made is not RUN_AGAIN else None
                if file is None:
                    yield task_file_node(self, path)
                else:  # like those of quiet files, its snapshots belong to no other file, and none is obsolete
                    yield UnchangedItem.from_parent(self, name=name, path=path, cached=file)
        if quiet:
            yield UnchangedFiles.from_parent(self, name=self.name, path=self.path, cached=cached, files=quiet)


class Unchanged(pytest.Item):
    """An item for `files` of one folder that does not run: its outcomes are `counted`, or shown again.

    `introduces` are the keys of the profiles about which it has the findings.
    """

    files: Sequence[str]
    counted: Counted
    is_counted = True
    introduces: Collection[str] = ()

    def __repr__(self) -> str:
        """Return the line of --collect-only."""
        return f"<Unchanged {self.name}>"

    @property
    def paths(self) -> Iterator[Path]:
        """Yield the paths of the files."""
        folder = self.path.parent if isinstance(self, UnchangedItem) else self.path
        return (folder / name for name in self.files)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the file or folder."""
        return self.path, 0, self.name

    def runtest(self) -> None:
        """Do nothing."""


class UnchangedFiles(Unchanged):
    """Files of one unchanged folder that are only counted."""

    def __init__(self, *, cached: CachedFolder, files: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cached = cached
        self.files = files
        self.counted = cached.counted

    def __repr__(self) -> str:
        """Return the line of --collect-only."""
        return f"<Unchanged {self.name}/>"

    def apart(self) -> Iterator[pytest.Item]:
        """Yield the unchanged item of each file, or the items of the file."""
        assert self.parent is not None
        for path in self.paths:
            yield from self.session.genitems(unchanged(path, self.parent) or task_file_node(self.parent, path))


class UnchangedItem(Unchanged):
    """An unchanged file: it is counted if all its tests passed; else the reports of its earlier run are shown again."""

    def __init__(self, *, cached: CachedFile, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cached = cached
        self.files = (self.path.name,)
        self.introduces = cached.introduces
        self.is_counted = cached.is_quiet
        self.counted = cached.quiet

    @cached_property
    def ihook(self) -> Any:
        """Return the hooks of the folder, which pytest would look up each time."""
        return super().ihook

    def shown_count(self, *, quiet: bool) -> int:
        """Return the number of items that `stored` yields."""
        return self.cached.size - (0 if quiet else self.cached.quiet.passed)

    def stored(self, *, quiet: bool) -> Iterator[tuple[StoredItem, Mapping[str, Any]]]:
        """Yield the items of the file with their results, the quiet ones only if wanted."""
        run = self.config.stash[RUN]
        claimed = (run.expected.place(self.path, task, profile) for task, profile in self.cached.claims)
        places = {place.name: place for place in claimed}
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
        """Return the short text for a problem that the item `first` had; None for the full one."""
        path = self.file.path
        return repeated_failure(
            self.repeats, outcome, first, lambda: accept_command_of(self.run, path, self.nodeid, outcome.task)
        )


def unchanged(path: Path, parent: pytest.Collector) -> UnchangedItem | None:
    """Return one item for all tests of an unchanged file, None if it may have changed."""
    run, session = parent.config.stash[RUN], parent.session
    if not is_below_named(path, session):
        return None  # pytest passes here on its way to a folder that was named
    run.folders.enter(path.parent, session.isinitpath)
    cached = run.cache.decision(path).file
    if cached is None:
        return None
    try:
        for task, profile in cached.claims:
            run.expected.claim(path, task, profile)
    except SnapshotError:
        return None  # another file has one of its snapshots
    run.expected.define(path, cached.tasks)
    item: UnchangedItem = UnchangedItem.from_parent(parent, name=path.name, path=path, cached=cached)
    return item


def unchanged_folder(folder: Path, parent: pytest.Collector) -> UnchangedFolder | None:
    """Return a node for an unchanged folder, None if it may have changed."""
    if not is_below_named(folder / "-", parent.session):
        return None
    run = parent.config.stash[RUN]
    run.folders.enter(folder, parent.session.isinitpath)
    cached = run.cache.folders.of(folder)
    return None if cached is None else UnchangedFolder.from_parent(parent, path=folder, cached=cached)


def children_of(collected: Iterable[pytest.Item | pytest.Collector]) -> list[str] | None:
    """Return the names of the children of a folder, those of folders with a slash at the end.

    None if a child belongs to pytest or another plugin: then the folder has to be collected each time.
    """
    found: list[str] = []
    for node in collected:
        if not isinstance(node, pytest.Directory | TaskFileNode | UnchangedItem):
            return None
        found.append(f"{node.path.name}/" if isinstance(node, pytest.Directory) else node.path.name)
    return found


def is_below_named(path: Path, session: pytest.Session) -> bool:
    """Return whether a path is below a folder of the command line."""
    return any(session.isinitpath(above) for above in path.parents)


def expanded(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the items, with unchanged files replaced by their own items if these have to run again.

    These are a file that comes first with other profiles than before, about which it reports the findings, and one with
    a missing snapshot that `may_be_renamed`.
    """
    known: set[str] = set()
    waiting = [iter(items)]
    while waiting:
        item = next(waiting[-1], None)
        if item is None:
            waiting.pop()
        elif isinstance(item, UnchangedFiles):
            if item.cached.profiles <= known:
                yield item
            else:
                waiting.append(item.apart())
        elif isinstance(item, UnchangedItem):
            same = _first_with(item, known)
            if same is not None and _is_settled(same):
                known |= same.cached.profiles
                yield same
            else:
                assert item.parent is not None
                waiting.append(iter(item.session.genitems(task_file_node(item.parent, item.path))))
        else:
            known.update(map(item.config.stash[RUN].cache.shared.profile_key, getattr(item, "met", ())))
            yield item


def _first_with(item: UnchangedItem, known: Set[str]) -> UnchangedItem | None:
    """Return the item with the outcomes of its file as the first one with all profiles that are not known yet."""
    run, new = item.config.stash[RUN], item.cached.profiles - known
    if new == item.cached.introduces:
        return item
    cached = run.cache.decision(item.path, new).file
    if cached is None or item.parent is None:
        return None
    same: UnchangedItem = UnchangedItem.from_parent(item.parent, name=item.name, path=item.path, cached=cached)
    return same


def _is_settled(item: UnchangedItem) -> bool:
    """Return whether the outcomes of a file can be shown: they are all there, and nothing of it may be renamed.

    A renamed task leaves its snapshot to another one, and all obsolete ones are known once all files are collected.
    """
    run, cached = item.config.stash[RUN], item.cached
    return cached.is_quiet or (cached.is_whole and not (cached.has_new and run.expected.obsolete()))


def about(item: PromptItem) -> list[object]:
    """Return the fields of a `StoredItem` in JSON's types."""
    place: SnapshotPath | None = getattr(item, "place", None)
    return [item.nodeid, item.location, item.marker, item.repeats, place.name if place is not None else None]


# -- the cache ---------------------------------------------------------------------------------------------------------

_COLLECTING: Final = ("ignore", "ignore_glob", "noconftest", "confcutdir", "importmode", "keepduplicates", "plugins")
_COLLECTING_INI: Final = ("norecursedirs", "python_files")
"""Options and settings of pytest that decide which files are collected in a folder."""


def inputs_of(run: Run) -> RunInputs:
    """Return the inputs of a run of pytest; plugins may change them until they are read."""
    config, outputs, option = run.config, run.outputs, run.config.option

    def options() -> Sequence[object]:
        filters = config.getoption("pythonwarnings", None), list(config.getini("filterwarnings"))
        return [*filters, config.get_verbosity() > 0, option.promptfmt, outputs.baseline_update]

    def collecting() -> Sequence[object]:
        options = [(name, repr(getattr(option, name, None))) for name in _COLLECTING]
        settings = [(name, repr(config.getini(name))) for name in _COLLECTING_INI]
        named = sorted({os.path.abspath(each.partition("::")[0]) for each in config.args})  # where templates are tested
        return [named, options, settings]

    return RunInputs(
        rootdir=config.rootpath,
        plugins=lambda: (str(getattr(each, "__file__", "") or "") for each in config.pluginmanager.get_plugins()),
        options=options,
        baseline=outputs.baseline,
        written=[str(file) for _, file in outputs.files],
        collecting=collecting,
        can_try_orders=lambda: not option.promptfmt_no_code and not option.noconftest,  # else code would run here
        varying=partial(varying, config),
        needs_snapshots=lambda: run.needs_snapshots,
    )


def cache_of(run: Run, workers: int) -> OutcomeCache:
    """Return the cache of a run with so many workers."""
    folder, shows = _folder_of(run, workers)
    return OutcomeCache(inputs_of(run), run.folders, folder, run.expected.tree, shows=shows)


def _folder_of(run: Run, workers: int) -> tuple[Path | None, bool]:
    """Return the folder of the cached outcomes, None for no cache, and whether this run shows them.

    Only outcomes of workers are cached, because only those are traced. A run that writes each prompt has to render all.
    """
    config, outputs = run.config, run.outputs
    if getattr(config, "cache", None) is None:
        return None, False
    folder = store_folder(config.rootpath)
    if folder is not None and config.option.cacheclear:
        remove_store(folder)
    is_off = SettingLookup(config).value("no_cache") or not workers
    if is_off or outputs.needs_views or outputs.needs_edits:
        return None, False
    updates = config.option.update_snapshots or config.option.update_new_snapshots_only
    return folder, not (updates or outputs.baseline_update)


def collapses(run: Run) -> bool:
    """Return whether unchanged files may be shown as one item each: no option needs their items."""
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
