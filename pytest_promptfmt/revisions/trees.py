"""Both sides of a comparison as folders with the files that rendering may need: not the task files that are the same.

Those are found by git's ids of contents and an index of task files and Python modules from earlier comparisons: a file
is not read again if its content, and that of its includes, is known.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Final

from pytest_promptfmt.core.files import cache_directory
from pytest_promptfmt.inputs.places import digest_of
from pytest_promptfmt.inputs.store import Store
from pytest_promptfmt.revisions.git import Repository
from pytest_promptfmt.revisions.unaffected import (
    IDLE_SUFFIXES,
    TASK_SUFFIXES,
    Imports,
    ModuleText,
    TaskSource,
    bytes_of,
    imports_of,
    included_by,
    is_setting,
    members_of,
    module_text,
    reached_modules,
    sources_below,
    unaffected_files,
)
from pytest_promptfmt.snapshots.paths import DIRECTORY

_SIDECAR: Final = re.compile(r"\.docs(?:\.[^/]+)?\.jsonl$")
"""The end of the path of docs next to a task, or in the tree of docs."""

_SOURCES: Final = "sources 3"
_MODULES: Final = "modules 2"

Blobs = Mapping[str, str]
"""The files of one side, below its top, each with an id of its content."""


class Trees:
    """The folders `before` and `after`, and the known facts about the files of both sides.

    `sources` are the task files of the second side, `earlier` those of the first that differ; `unaffected` those that
    need no rendering. `modules` are the Python files that differ or may import one that does.
    """

    def __init__(self, repository: Repository, commits: tuple[str, str | None], scratch: Path) -> None:
        self.before, self.after = scratch / "a", scratch / "b"
        self._repository, self._commits = repository, commits
        self.blobs = tuple(_without_snapshots(repository.blobs(commit)) for commit in commits)
        names = {*self.blobs[0], *self.blobs[1]}
        self.changed = frozenset(name for name in names if self.blobs[0].get(name) != self.blobs[1].get(name))
        index = SourceIndex(repository.top)
        known, texts = index.sources(self.blobs[1]), index.modules(self.blobs[1])
        unread = [name for name in self.blobs[1] if name.endswith(TASK_SUFFIXES) and name not in known]
        new = [name for name in self.blobs[1] if name.endswith(".py") and name not in texts]
        if unread or new:
            whole = self._whole(self.blobs[1])
            read = sources_below(whole, unread)
            certain = {name: read.get(name) for name in unread if name in read or not _may_include(whole / name)}
            added = {name: module_text(whole / name, name) for name in new}
            index.keep(self.blobs[1], certain)
            index.keep_modules(self.blobs[1], added)
            index.write()
            known |= {name: read.get(name) for name in unread}
            texts |= added
        self.sources = {name: source for name, source in known.items() if source is not None}
        same = self.sources.keys() | texts.keys() | {name for name in names if name.endswith(IDLE_SUFFIXES)}
        same |= {part for source in self.sources.values() for part in source.parts}
        of_changed = {part for name in self.changed & self.sources.keys() for part in self.sources[name].parts}
        self._absent = same - self.changed - of_changed
        self._lay_out(names - self._absent)
        self.earlier = self._read_earlier()
        self.unaffected = unaffected_files(self.after, self.changed, self.sources, self.earlier, texts, self._text)
        self.modules = _reaching(self.changed, imports_of(texts))
        self._lay_out(self._absent & self._needed(texts))
        self._share_docs()

    def _share_docs(self) -> None:
        """Copy docs that only one side has to the other, so that both sides render the same docs."""
        folders = (self.before, self.after)
        for (source, target), (own, others) in zip(
            (folders, folders[::-1]), (self.blobs, self.blobs[::-1]), strict=True
        ):
            for name in sorted(own.keys() - others.keys()):
                if _SIDECAR.search(name) and (source / name).is_file() and not (source / name).is_symlink():
                    (target / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(source / name, target / name)

    def _needed(self, texts: Mapping[str, ModuleText]) -> frozenset[str]:
        """Return the files that rendering needs in addition to those laid out; all if that is unknown."""
        affected = self.sources.keys() - self.unaffected
        files = members_of(affected, self.sources) | members_of(self.earlier, self.earlier)
        names = {*self.blobs[0], *self.blobs[1]}
        if len(affected) == len(self.sources) or any(is_setting(name) and self._names_files(name) for name in names):
            return frozenset(names)
        sources = [side[name] for side in (self.sources, self.earlier) for name in files if name in side]
        modules = {module for source in sources for module in source.modules}
        modules |= {name for name in names if name.endswith(("conftest.py", "sitecustomize.py"))}
        if not modules <= names:
            return frozenset(names)
        old = {name: module_text(self.before / name, name) for name in self.changed if name.endswith(".py")}
        reached: set[str] = set()
        for known in (texts, {**texts, **old}):
            found = reached_modules(modules, imports_of(known))
            if any(known[name].reads_files for name in found):
                return frozenset(names)
            reached |= found
        folders = {name.rpartition("/")[0] for name in (*files, *reached)}
        beside = {name for name in names - self.sources.keys() if name.rpartition("/")[0] in folders}
        packages = {
            f"{above}/__init__.py" for folder in folders for above in (folder, *map(str, PurePosixPath(folder).parents))
        }
        return frozenset(files | reached | beside | packages)

    def has(self, path: PurePosixPath) -> bool:
        """Return whether a side has a file or folder of this path."""
        text = path.as_posix()
        return text == "." or any(name == text or name.startswith(f"{text}/") for side in self.blobs for name in side)

    def beside(self, path: PurePosixPath) -> set[str]:
        """Return the names in the folder of a path."""
        above = path.parent
        names = (PurePosixPath(name) for side in self.blobs for name in side)
        return {name.parts[len(above.parts)] for name in names if name.is_relative_to(above)}

    def lay_out_all(self) -> None:
        """Add the files that are the same, and count none as unaffected."""
        self.unaffected = frozenset()
        self._lay_out(frozenset(self._absent))

    def _lay_out(self, names: Iterable[str]) -> None:
        wanted = {*names}
        self._absent -= wanted
        for tree, commit, blobs in zip((self.before, self.after), self._commits, self.blobs, strict=True):
            self._repository.lay_out(commit, tree, sorted(wanted & blobs.keys()))

    def _whole(self, names: Iterable[str]) -> Path:
        """Return a folder in which these files of the second side are: the work tree, or one that is laid out."""
        wanted = sorted(names)
        commit, top = self._commits[1], self._repository.top
        if commit is None and all(os.path.lexists(top / name) for name in wanted):
            return top
        folder = self.after.with_name("whole")
        self._repository.lay_out(commit, folder, wanted)
        return folder

    def _read_earlier(self) -> dict[str, TaskSource]:
        """Return the sources of the first side that differ; the files that they include are laid out first."""
        waiting = {name for name in self.changed & self.blobs[0].keys() if name.endswith(TASK_SUFFIXES)}
        while waiting:
            included = {each for name in waiting for each in included_by(self.before, name)} & self._absent
            self._lay_out(included)
            waiting = included
        return sources_below(self.before, self.changed)

    def _text(self, name: str) -> str:
        """Return the text of a module of the second side."""
        if name in self._absent:
            return bytes_of(self._modules / name).decode("utf-8", "replace")
        return self._bytes(name).decode("utf-8", "replace")

    @cached_property
    def _modules(self) -> Path:
        return self._whole(name for name in self.blobs[1] if name.endswith(".py"))

    def _bytes(self, name: str) -> bytes:
        return bytes_of(self.after / name)

    def _names_files(self, name: str) -> bool:
        """Return whether a settings file may name Python files of tasks and the like."""
        text = self._bytes(name)
        return b"promptfmt" in text or b"task_modules" in text


def _may_include(path: Path) -> bool:
    """Return whether a file that defines no task now may do so once the file that it includes is there."""
    return b"include" in bytes_of(path)


def _reaching(changed: Collection[str], imports: Imports) -> frozenset[str]:
    found = {name for name in imports if name in changed}
    while more := {name for name in imports.keys() - found if not found.isdisjoint(imports[name])}:
        found |= more
    return frozenset(found)


def _without_snapshots(blobs: Mapping[str, str]) -> dict[str, str]:
    return {name: blob for name, blob in blobs.items() if DIRECTORY not in name.split("/")}


def single_tasks(sources: Mapping[str, TaskSource]) -> dict[str, TaskSource]:
    """Return the sources that define one task each, and nothing else."""
    return {name: source for name, source in sources.items() if source.name}


def moves(trees: Trees) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the tasks that another file defines now: name of the task to the old and new file."""
    now: dict[str, list[str]] = {}
    then: dict[str, list[str]] = {}
    for found, names in ((trees.sources, now), (trees.earlier, then)):
        for name, source in single_tasks(found).items():
            names.setdefault(source.name, []).append(name)
    for task, files in then.items():
        new = now.get(task, [])
        if len(files) == len(new) == 1 and files != new and new[0] not in trees.blobs[0]:
            yield task, (files[0], new[0])


class SourceIndex:
    """The index of one repository, in the user's cache folder; it is empty without such a folder."""

    def __init__(self, top: Path) -> None:
        cache = cache_directory()
        name = digest_of(str(top).encode("utf-8", "surrogateescape"))
        self._store = Store(cache / "diff" / name if cache is not None else None)
        self._known: dict[str, dict[str, Any]] = {}

    def sources(self, blobs: Blobs) -> dict[str, TaskSource | None]:
        """Return the known task files of a side; None for a file that defines no task."""
        found: dict[str, TaskSource | None] = {}
        for name, row in self._rows(_SOURCES, (name for name in blobs if name.endswith(TASK_SUFFIXES))):
            try:
                if all(blobs.get(part) == blob for part, blob in row["parts"]):
                    found[name] = _source(row["source"])
            except (KeyError, TypeError, ValueError):
                continue
        return found

    def modules(self, blobs: Blobs) -> dict[str, ModuleText]:
        """Return the known Python files of a side."""
        found: dict[str, ModuleText] = {}
        for name, row in self._rows(_MODULES, (name for name in blobs if name.endswith(".py"))):
            try:
                if row["blob"] == blobs[name]:
                    found[name] = ModuleText(tuple(map(str, row["ends"])), bool(row["reads"]))
            except (KeyError, TypeError, ValueError):
                continue
        return found

    def keep(self, blobs: Blobs, sources: Mapping[str, TaskSource | None]) -> None:
        """Keep the sources of task files."""
        for name, source in sources.items():
            parts = sorted(source.parts | {name}) if source is not None else [name]
            if _can_be_kept(name) and all(part in blobs for part in parts):
                row = {"parts": [[part, blobs[part]] for part in parts], "source": _row(source)}
                self._store.put(_SOURCES, name, row)

    def keep_modules(self, blobs: Blobs, modules: Mapping[str, ModuleText]) -> None:
        """Keep the facts of Python files."""
        for name, text in modules.items():
            if _can_be_kept(name) and name in blobs:
                row = {"blob": blobs[name], "ends": text.ends, "reads": text.reads_files}
                self._store.put(_MODULES, name, row)

    def write(self) -> None:
        """Write the kept rows."""
        self._store.write()

    def _rows(self, kind: str, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
        if kind not in self._known:
            self._known[kind] = self._store.rows(kind)
        for name in names:
            if self._known[kind].get(name) is not None:
                yield name, self._known[kind][name]


def _can_be_kept(name: str) -> bool:
    """Return whether a path is valid text; others are read again each time."""
    return name.encode("utf-8", "replace").decode("utf-8") == name


def _row(source: TaskSource | None) -> list[Any] | None:
    if source is None:
        return None
    sets = (source.parts, source.modules, source.texts, source.labels)
    return [source.name, *(sorted(each) for each in sets)]


def _source(row: Any) -> TaskSource | None:
    """Return the source in a row; raises TypeError or ValueError for an invalid one."""
    if row is None:
        return None
    name, *sets = row
    parts, modules, texts, labels = (frozenset(map(str, each)) for each in sets)
    return TaskSource(str(name), parts, modules, texts, labels)
