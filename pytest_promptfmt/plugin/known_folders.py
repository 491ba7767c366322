"""Folders in which nothing has changed since an earlier run, known by the stamps of all that their files are made of.

Where the stamps are the same, nobody has to go into the folder, read what is known of its files one by one, or build
the index. Where they are not, each file is looked at by what is in it: then a new stamp alone changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_promptfmt.core.errors import SettingsError
from pytest_promptfmt.engine.contents import OTHER, Contents, digest_of
from pytest_promptfmt.engine.store import Store, mapping
from pytest_promptfmt.plugin.folders import Folders
from pytest_promptfmt.plugin.surroundings import Surroundings
from pytest_promptfmt.snapshots.expected import ExpectedSnapshots
from pytest_promptfmt.systems import systems_for

FOLDERS: Final = "folders"
_NAMES: Final = "names"

_COLLECTING: Final = ("ignore", "ignore_glob", "noconftest", "confcutdir", "importmode", "keepduplicates", "plugins")
_COLLECTING_INI: Final = ("norecursedirs", "python_files")
"""Options and settings of pytest that say what is collected in a folder."""


class KnownFolders:
    """What earlier runs know of whole folders, and what this one finds out about those that it goes into."""

    def __init__(
        self, config: pytest.Config, store: Store, contents: Contents, surroundings: Surroundings, folders: Folders
    ) -> None:
        self._config = config
        self._store = store
        self._contents = contents
        self._surroundings = surroundings
        self._folders = folders
        self._held: dict[str, Mapping[str, str] | None] = {}
        self._collected: dict[str, tuple[str, ...]] = {}
        self._unfit: set[str] = set()
        self._names: dict[str, str] = {}

    # -- what is known -------------------------------------------------------------------------------------------------

    def files_below(self, folder: Path, root: Path) -> Mapping[str, str] | None:
        """Return the task files below a folder in the order of collection, None where something may have changed.

        With each comes the digest of what its outcomes were made of: a run with other options or another environment
        may have kept others since. Names are looked up below `root`.
        """
        name = str(folder)
        if name not in self._held:
            row = mapping(self._store.row(FOLDERS, self._key(name)))
            self._held[name] = self._same(folder, root, row) if row else None
        return self._held[name]

    def _same(self, folder: Path, root: Path, row: Mapping[str, Any]) -> Mapping[str, str] | None:
        try:
            context = self._context(folder)
            if context == OTHER or row["context"] != context:
                return None
            if row["names"] != self._names_below(root) or row["stamps"] != self._contents.stamps_now(row["inputs"]):
                return None
            found: dict[str, str] = {}
            for child, made in row["children"]:
                if not child.endswith("/"):
                    found[f"{folder}{os.sep}{child}"] = made
                    continue
                below = self.files_below(folder / child[:-1], root)
                if below is None:
                    return None
                found |= below
            return found
        except Exception:  # somebody else's data: whatever is wrong with it, it says nothing
            return None

    def _context(self, folder: Path) -> str:
        """Return the digest of what holds for all files of a folder; `OTHER` where its settings make no sense."""
        try:
            return self._surroundings.digest(self._folders.settings_for(folder / "-"))
        except SettingsError:
            return OTHER

    def _names_below(self, root: Path) -> str:
        """Return the digest of all that the index says; it is read only where a file or folder below has changed."""
        known = self._names.get(str(root))
        if known is None:
            row = mapping(self._store.row(_NAMES, str(root)))
            same = bool(row) and row.get("stamps") == self._stamps_of_texts(row.get("inputs"))
            known = self._names[str(root)] = str(row.get("digest")) if same else self._folders.index.digest()
        return known

    def _stamps_of_texts(self, paths: object) -> str | None:
        if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
            return None
        return self._contents.stamps_now(paths)

    # -- what this run finds out ---------------------------------------------------------------------------------------

    def enter(self, folder: Path, children: Sequence[str] | None) -> None:
        """Take note of what was collected in a folder: files, and folders with a slash at the end.

        None for what has to be collected again each time: test modules, what a warning is about.
        """
        if children is None:
            self._unfit.add(str(folder))
        else:
            self._collected[str(folder)] = tuple(children)

    def write(self, made_of: Callable[[str], tuple[str, Iterable[str]] | None], expected: ExpectedSnapshots) -> None:
        """Keep the folders of whose files all are kept; `made_of` says what each is made of: a digest, and paths."""
        if not self._collected or len(self._folders.index.roots) != 1:
            return
        (root,) = self._folders.index.roots
        obsolete = {str(path) for path in expected.obsolete()}
        fit: dict[str, bool] = {}
        for folder in sorted(self._collected, reverse=True):  # what lies below comes first
            made = {child: made_of(f"{folder}{os.sep}{child}") for child in self._collected[folder]}
            inputs = self._inputs_of(Path(folder), fit, made, expected, obsolete)
            stamps = self._contents.stamps(inputs) if inputs is not None else None
            fit[folder] = stamps is not None
            if stamps is not None:
                row = {
                    "context": self._context(Path(folder)),
                    "names": self._names_below(root),
                    "inputs": inputs,
                    "stamps": stamps,
                    "children": [(child, known[0] if known is not None else "") for child, known in made.items()],
                }
                self._store.put(FOLDERS, self._key(folder), row)
        if any(fit.values()):
            self._write_names(root)

    def _inputs_of(
        self,
        folder: Path,
        fit: Mapping[str, bool],
        made: Mapping[str, tuple[str, Iterable[str]] | None],
        expected: ExpectedSnapshots,
        obsolete: set[str],
    ) -> list[str] | None:
        """Return what a folder is made of besides what lies below, None where it has to be collected again."""
        if self._context(folder) == OTHER or str(folder) in self._unfit or os.path.lexists(folder / "conftest.py"):
            return None
        directory = expected.tree.directory(folder)
        inputs = {f"{folder}/", f"{directory.parent}/", *_folders_of_snapshots(str(directory))}
        if any(path.startswith(f"{directory}{os.sep}") for path in obsolete):
            return None
        for child, known in made.items():
            name = f"{folder}{os.sep}{child}"
            if name.endswith("/"):
                if not (fit.get(name[:-1]) or self._held.get(name[:-1])):
                    return None
            elif known is None:
                return None
            else:
                inputs.update(known[1])
        with os.scandir(folder) as entries:
            inputs.update(entry.path for entry in entries if entry.is_file() and systems_for(Path(entry.path)))
        return sorted(inputs)

    def _write_names(self, root: Path) -> None:
        index = self._folders.index
        inputs = sorted(set(index.places()))
        is_seen = not index.errors and all(self._contents.is_older(path) for path in inputs if path.endswith("/"))
        stamps = self._contents.stamps(inputs) if is_seen else None
        if stamps is not None:
            row = {"digest": self._names_below(root), "inputs": inputs, "stamps": stamps}
            self._store.put(_NAMES, str(root), row)

    def _key(self, folder: str) -> str:
        return f"{self._collecting} {folder}"

    @cached_property
    def _collecting(self) -> str:
        """Return the digest of what says which files pytest collects in a folder."""
        config = self._config
        options = [(name, repr(getattr(config.option, name, None))) for name in _COLLECTING]
        written = [(name, repr(config.getini(name))) for name in _COLLECTING_INI]
        return digest_of(repr((options, written)).encode())[:8]


def folder_of(key: str) -> str:
    """Return the folder that a row is about."""
    return key.partition(" ")[2]


def _folders_of_snapshots(directory: str) -> Iterator[str]:
    """Yield a folder of snapshots with those of its files and tasks."""
    yield f"{directory}/"
    for stem in _folders_in(directory):
        yield f"{stem}/"
        yield from (f"{task}/" for task in _folders_in(stem))


def _folders_in(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
