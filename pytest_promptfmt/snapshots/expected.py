"""Which snapshot files this run's task files define, and hence which files no task needs any more.

Obsolete means that no task file defines it. A file that this run did not reach (deselected, ignored, broken YAML,
interrupted, another profile) is never obsolete.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_promptfmt.core import gate, writing
from pytest_promptfmt.core.errors import Position, SnapshotError
from pytest_promptfmt.core.git import GitError
from pytest_promptfmt.core.profile import TEMPLATE, TOKENIZER
from pytest_promptfmt.snapshots.document import MAGIC, read_document
from pytest_promptfmt.snapshots.paths import (
    BESIDE,
    DIRECTORY,
    SUFFIX,
    Claims,
    SnapshotPath,
    Tree,
    absent_files,
    decode_name,
    read_snapshot,
    require_no_link,
)
from pytest_promptfmt.systems import file_suffixes

if TYPE_CHECKING:
    from pytest_promptfmt.snapshots.document import DocRecord, Document

_TASK_SUFFIXES = (".yaml", ".yml")
_SHOTS = re.compile(r"-\d+shot")


class ExpectedSnapshots:
    """The snapshots that should exist according to one run; filled while collecting."""

    def __init__(self, tree: Tree = BESIDE) -> None:
        self.tree = tree
        self._claims = Claims()
        self._tasks: dict[Path, set[tuple[str, str | None]]] = {}
        self._visited: set[Path] = set()
        self._is_in_run: Callable[[Path], bool] = lambda _file: True
        self._profiles: frozenset[str] | None = None
        self._everywhere: frozenset[str] = frozenset()
        self._absent: dict[Path, frozenset[str] | GitError] = {}
        self._obsolete: tuple[Path, ...] | None = None
        self._unclaimed: dict[Path, set[str]] = {}
        self._obsolete_by_docs: dict[tuple[DocRecord, ...], list[Path]] | None = None

    def set_profiles(self, names: Iterable[str], *, everywhere: Iterable[str] = ()) -> None:
        """Set which profiles exist; without this, none makes a file obsolete.

        Those `everywhere` exist with any settings.
        """
        self._everywhere = frozenset(everywhere)
        self._profiles = self._everywhere.union(names)
        self._obsolete = self._obsolete_by_docs = None

    def claim(self, task_file: Path, task_id: str, profile: str) -> SnapshotPath:
        """Return the place of a snapshot; raises SnapshotError when the name is too long or taken."""
        place = self.place(task_file, task_id, profile)
        self._claims.claim(Path(place.path), f"{task_id} [{profile}] in {task_file.name}", Position(task_file))
        return place

    def place(self, task_file: Path, task_id: str, profile: str) -> SnapshotPath:
        """Return the place of a snapshot that is not claimed: it is known that no other task has it."""
        return SnapshotPath(str(self.tree.path(task_file, task_id, profile)), f"{task_id}/{profile}")

    def define(self, task_file: Path, tasks: Iterable[tuple[str, str, str | None]]) -> None:
        """Record that `task_file` was read completely and defines exactly these tasks, selected or not.

        Tasks are ids, names and formats, those that the file itself declares; a task without format also keeps the
        snapshots of formats that were tried on it from the command line.
        """
        known = self._tasks.setdefault(task_file, set())
        known.update((task_id, name if format_ is None else None) for task_id, name, format_ in tasks)
        self._obsolete = self._obsolete_by_docs = None

    def limit_to(self, holds: Callable[[Path], bool]) -> None:
        """Limit the run to these task files: snapshot folders of other, missing files are not orphans."""
        self._is_in_run = holds
        self._obsolete = self._obsolete_by_docs = None

    def has_snapshots(self, task_file: Path) -> bool:
        """Return whether there are snapshots for a file of this name."""
        return any(_is_ours(path) for path in _snapshot_files(self.tree.folder(task_file)))

    def visited_folders(self) -> Iterator[Path]:
        """Yield the folders with snapshots below the visited folders."""
        for directory in self._visited:
            for folder in _folders(directory):
                yield from _folders(folder)

    def _is_absent(self, owner: Path) -> bool:
        """Return whether a sparse checkout leaves out a file that is missing, or may do so."""
        top = writing.top_of(owner.parent)
        if top not in self._absent:
            try:
                self._absent[top] = absent_files(top)
            except GitError as error:
                self._absent[top] = error
        absent = self._absent[top]
        return isinstance(absent, GitError) or str(owner) in absent

    def notes(self) -> Iterator[str]:
        """Yield a message where git does not answer which files are absent only from this checkout."""
        for error in self._absent.values():
            if isinstance(error, GitError):
                yield f"snapshots of missing task files are kept, because git fails: {error}"

    def visit(self, directory: Path) -> None:
        """Record that this run visited a `__prompts__` folder, so that orphans in it count."""
        self._visited.add(directory)
        self._obsolete = self._obsolete_by_docs = None

    def enter(self, folder: Path, *, is_whole: bool) -> None:
        """Record that this run collects a folder, whose snapshots may be elsewhere.

        Where it is collected as a `whole`, its folders that are gone are visited as well.
        """
        directory = self.tree.directory(folder)
        if directory == folder / DIRECTORY:
            return  # pytest comes by itself
        found = [directory]
        for mirrored in _folders(directory.parent) if is_whole else ():
            if mirrored.name != DIRECTORY and not gate.is_there(folder / mirrored.name):
                found += [Path(parent) / DIRECTORY for parent, names, _ in os.walk(mirrored) if DIRECTORY in names]
        for each in found:
            self.visit(each)

    def obsolete(self) -> tuple[Path, ...]:
        """Return the snapshot files that no task defines, sorted. Looked up once, then cached."""
        if self._obsolete is None:
            self._unclaimed.clear()
            self._obsolete = tuple(sorted({*self._undefined(), *self._orphans()}))
        return self._obsolete

    def rests_on_others(self, directory: Path, names: Collection[str]) -> bool:
        """Return whether a file in a `__prompts__` folder is not obsolete for a profile other than these.

        Only settings of another folder define that, where no item of this run has the file.
        """
        self.obsolete()
        known = self._everywhere.union(names)
        return not all(_is_named(profile, known) for profile in self._unclaimed.get(directory, ()))

    def obsolete_like(self, document: Document) -> Path | None:
        """Return the obsolete file with the same docs and any header; None unless exactly one has them."""
        if self._obsolete_by_docs is None:
            self._obsolete_by_docs = {}
            for path in self.obsolete():
                if (stored := stored_document(path)) is not None:
                    self._obsolete_by_docs.setdefault(stored.docs, []).append(path)
        same = self._obsolete_by_docs.get(document.docs, [])
        return same[0] if len(same) == 1 else None

    def _undefined(self) -> Iterator[Path]:
        """Yield files of fully read task files whose task or profile does not exist."""
        for folder in {self.tree.folder(file): None for file in self._tasks}:
            place = self.tree.folder_of(folder.parent)
            owners = [place / f"{folder.name}{suffix}" for suffix in file_suffixes()]
            # A JSON or Python file of the same name may be anything, such as the data of the task.
            owners = [
                owner for owner in owners if owner in self._tasks or (owner.suffix in _TASK_SUFFIXES and owner.exists())
            ]
            if not all(owner in self._tasks for owner in owners):
                continue  # arc.yml next to arc.yaml shares the folder, and was not read
            tasks = [task for owner in owners for task in self._tasks[owner]]
            ids, open_names = {task_id for task_id, _ in tasks}, {name for _, name in tasks}
            lost = []
            for path in _snapshot_files(folder):
                task_id = decode_name(path.parent.name)
                defined = task_id in ids or any(
                    task_id[: at.start()] in open_names  # a name may contain an @, too
                    for at in re.finditer("@", task_id)
                )
                profile = decode_name(path.name.removesuffix(SUFFIX))
                if defined and self._claims.hold(path):
                    continue
                if defined and (self._profiles is None or _is_named(profile, self._profiles)):
                    self._unclaimed.setdefault(folder.parent, set()).add(profile)
                elif _is_ours(path):
                    lost.append(path)
            absent = (place / f"{folder.name}{suffix}" for suffix in _TASK_SUFFIXES if lost)
            if not any(map(self._is_absent, absent)):
                yield from lost

    def _orphans(self) -> Iterator[Path]:
        """Yield files in visited folders whose task file is gone."""
        defined = {self.tree.folder(file) for file in self._tasks}
        for directory in self._visited:
            place, is_left = self.tree.folder_of(directory), self.tree.is_left(directory)
            for folder in _folders(directory):
                owners = [place / f"{folder.name}{suffix}" for suffix in file_suffixes()]
                is_others = not self._is_in_run(place / f"{folder.name}.yaml")
                if folder in defined or is_others or (not is_left and any(map(gate.is_there, owners))):
                    continue
                lost = [path for path in _snapshot_files(folder) if _is_ours(path)]
                if is_left:  # obsolete once it is in the other tree, not before
                    now = self.tree.directory(place)
                    yield from (path for path in lost if (now / path.relative_to(directory)).exists())
                elif lost and not any(self._is_absent(owner) for owner in owners):
                    yield from lost


def _is_named(profile: str, names: Collection[str]) -> bool:
    """Return whether a snapshot's profile is one of these, with or without arguments, or given on a command line."""
    name = _SHOTS.sub("", profile)  # arguments of the command line follow the name, or are all of it
    return profile in names or name.startswith((TOKENIZER, TEMPLATE)) or name.partition(",")[0] in names


def stored_document(path: Path) -> Document | None:
    """Return the document of a snapshot file; None for one that cannot be read."""
    with suppress(OSError, UnicodeDecodeError, SnapshotError):
        return read_document((read_snapshot(str(path)) or b"").decode(), path)
    return None


def is_snapshot_location(path: str) -> bool:
    """Return whether a file could be one of our snapshots, by its place: `__prompts__/<stem>/<task>/<profile>.txt`."""
    parts = Path(path).parts
    return len(parts) > 3 and parts[-4] == DIRECTORY and path.endswith(SUFFIX)


def _snapshot_files(folder: Path) -> Iterator[Path]:
    for task_folder in _folders(folder):
        try:
            with os.scandir(task_folder) as entries:
                files = (each for each in entries if each.name.endswith(SUFFIX) and not each.name.startswith("."))
                yield from (Path(each.path) for each in files if each.is_file(follow_symlinks=False))
        except OSError:
            continue


def _folders(folder: Path) -> list[Path]:
    try:
        require_no_link(folder)
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _is_ours(path: Path) -> bool:
    try:
        require_no_link(path)
        with gate.open_file(path) as file:
            return file.read(len(MAGIC)) == MAGIC.encode()
    except OSError:
        return False
