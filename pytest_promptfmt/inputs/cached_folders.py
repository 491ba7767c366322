"""Unchanged folders, detected from the sizes and times of all inputs of their files.

If these are the same, the run does not enter the folder, read the rows of its files, or build the index, except for
files whose outcomes have to be shown, and those that run each time. Else each file is checked by contents.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import SettingsError
from pytest_promptfmt.inputs.cached_files import Counted, read_entry, together, written_entry
from pytest_promptfmt.inputs.contents import OTHER, Contents
from pytest_promptfmt.inputs.folders import Folders
from pytest_promptfmt.inputs.places import digest_of
from pytest_promptfmt.inputs.store import Store, StoredInputs, mapping
from pytest_promptfmt.inputs.task_inputs import RunInputs, SharedInputs
from pytest_promptfmt.snapshots.expected import ExpectedSnapshots
from pytest_promptfmt.snapshots.paths import DIRECTORY, SUFFIX, folded
from pytest_promptfmt.systems import systems_for
from pytest_promptfmt.tasks import IndexEntry

FOLDERS: Final = "folders"
_INDEX: Final = "index"

_BELOW_SNAPSHOTS: Final = f"{os.sep}{DIRECTORY}{os.sep}"

QUIET: Final = ""
"""The state of a file whose tests all passed: it is counted with the other quiet files of its folder."""

RUN_AGAIN: Final = None
"""The state of a file without cached outcomes: it runs each time."""


@dataclass(frozen=True, slots=True)
class CachedFolder:
    """The cached outcomes of an unchanged folder.

    `children` are its files and folders in the order of collection, folders with a slash at the end. A file is `QUIET`,
    `RUN_AGAIN`, or has the digest of its inputs: a run with other options or another environment may have stored other
    outcomes since. The quiet ones are `counted` together, and use `profiles` that other files introduce.
    """

    children: tuple[tuple[str, str | None], ...]
    counted: Counted
    profiles: frozenset[str]


@dataclass(frozen=True, slots=True)
class FileResult:
    """The result of a file at the end of a run: its `row`, the `paths` of its inputs, and their digest.

    It has no row if it `is_open`, because not all of its items ran, or if the digest is `RUN_AGAIN`.
    """

    made: str | None = RUN_AGAIN
    paths: Sequence[str] = ()
    row: Mapping[str, Any] = field(default_factory=dict)
    is_open: bool = False

    @property
    def state(self) -> str | None:
        """Return the state of the file in the row of its folder."""
        is_quiet = self.made is not None and self.row["is_quiet"] and not self.row["introduces"]
        return QUIET if is_quiet else self.made


class CachedFolders:
    """The rows of folders: those of earlier runs, if this one `shows` them, and new ones for the folders it enters."""

    def __init__(
        self,
        run: RunInputs,
        store: Store,
        inputs: StoredInputs,
        contents: Contents,
        shared: SharedInputs,
        folders: Folders,
        *,
        shows: bool,
    ) -> None:
        self.shows = shows
        self._run = run
        self._store = store
        self._inputs = inputs
        self._contents = contents
        self._shared = shared
        self._folders = folders
        self._held: dict[Path, CachedFolder] = {}
        self._collected: dict[str, tuple[str, ...]] = {}
        self._unfit: set[str] = set()
        self._names: str | None = None

    # -- cached rows ---------------------------------------------------------------------------------------------------

    def of(self, folder: Path) -> CachedFolder | None:
        """Return the outcomes of the files directly in a folder, None if something may have changed."""
        row = mapping(self._store.row(FOLDERS, self._key(str(folder)))) if self.shows else {}
        try:
            context = self._context(folder)
            if not row or OTHER in (context, row["names"]) or row["context"] != context:
                return None
            if row["names"] != self.digest_of_names():
                return None
            if not (self._has_stamps(row) and _names_own_files(row, str(folder))):
                return None
            found = CachedFolder(
                children=tuple((str(name), None if made is None else str(made)) for name, made in row["children"]),
                counted=Counted.read(row["counted"]),
                profiles=frozenset(map(str, row["profiles"])),
            )
        except Exception:  # invalid data of any kind
            return None
        self._held[folder] = found
        return found

    def _context(self, folder: Path) -> str:
        """Return the digest of the inputs shared by all files of a folder; `OTHER` for invalid settings."""
        try:
            return self._shared.digest(self._folders.settings_for(folder / "-"))
        except SettingsError:
            return OTHER

    def entries_below(self, folder: Path) -> list[IndexEntry] | None:
        """Return the entries of the index below a folder, sorted by path; None if a file or folder has changed."""
        if str(folder) != self._root:
            return None
        try:
            return [read_entry(written) for written in json.loads(self._index["entries"])]
        except (KeyError, TypeError, ValueError, RecursionError):
            return None

    def digest_of_names(self) -> str:
        """Return the digest of the whole index, `OTHER` if unknown; it is built only if a file or folder changed."""
        if self._names is None:
            self._names = str(self._index["digest"]) if "digest" in self._index else self._digest_of_index()
        return self._names

    def _digest_of_index(self) -> str:
        index = self._folders.index
        outer = index.outer
        if outer is None:
            return self._contents.places.digest(index.state())
        with gate.also_reading(outer.folder.parent):
            around = self._inputs.digest_of("harness", [*map(str, outer.files)])
        return OTHER if around == OTHER else self._contents.places.digest((index.state(), around))

    @cached_property
    def _index(self) -> Mapping[str, Any]:
        """Return the row of the index, empty if a file or folder has changed; its entries are seldom parsed."""
        row = mapping(self._store.row(_INDEX, self._key(self._root)))
        return {name: row[name] for name in ("digest", "entries")} if self._has_stamps(row) else {}

    def _has_stamps(self, row: Mapping[str, Any]) -> bool:
        """Return whether the inputs of a row have the same sizes and times as then."""
        inputs = row.get("inputs")
        if not row or not isinstance(inputs, list) or not all(isinstance(path, str) for path in inputs):
            return False
        return bool(row.get("stamps") == self._contents.stamps_now(inputs, _may_be_shared))

    @property
    def _root(self) -> str:
        """Return the folder below which names are looked up: there is one if folders are not entered."""
        return str(self._folders.index.roots[0])

    # -- new rows ------------------------------------------------------------------------------------------------------

    def enter(self, folder: Path, children: Sequence[str] | None) -> None:
        """Note the collected children of a folder: files, and folders with a slash at the end.

        None for a folder that has to be collected each time: with test modules, or a warning about a file.
        """
        if children is None:
            self._unfit.add(str(folder))
        else:
            self._collected[str(folder)] = tuple(children)

    def write(self, found: Mapping[str, FileResult], expected: ExpectedSnapshots) -> None:
        """Keep the folders that were collected; `found` are the results of their files."""
        self._forget(found)
        if not self._collected or len(self._folders.index.roots) != 1:
            return
        obsolete = {str(path) for path in expected.obsolete()}
        for folder, children in self._collected.items():
            known = {child: found.get(f"{folder}{os.sep}{child}") for child in children}
            inputs = self._inputs_of(Path(folder), known, expected, obsolete)
            stamps = self._contents.stamps(inputs) if inputs is not None else None
            if stamps is not None:
                self._put(folder, known, {"inputs": inputs, "stamps": stamps})
        if not self._index:
            self._write_index()

    def _forget(self, found: Mapping[str, FileResult]) -> None:
        """Remove the row of a folder if a file of it ran again and has another state now."""
        for folder, known in self._held.items():
            now = ((found.get(f"{folder}{os.sep}{child}"), made) for child, made in known.children)
            if any(each is not None and (each.is_open or each.state != made) for each, made in now):
                self._store.put(FOLDERS, self._key(str(folder)), None)

    def _put(self, folder: str, known: Mapping[str, FileResult | None], made_of: Mapping[str, object]) -> None:
        states = [(child, QUIET if child.endswith("/") else each and each.state) for child, each in known.items()]
        rows = [(child, each.row) for child, each in known.items() if each is not None and each.state == QUIET]
        row = {
            "context": self._context(Path(folder)),
            "names": self.digest_of_names(),
            **made_of,
            "children": states,
            "counted": together(rows),
            "profiles": sorted({profile for _, each in rows for profile in each["profiles"]}),
        }
        self._store.put(FOLDERS, self._key(folder), row)

    def _inputs_of(
        self, folder: Path, known: Mapping[str, FileResult | None], expected: ExpectedSnapshots, obsolete: set[str]
    ) -> list[str] | None:
        """Return the inputs of a folder, without its subfolders; None if it has to be collected each time."""
        if self._context(folder) == OTHER or str(folder) in self._unfit or os.path.lexists(folder / "conftest.py"):
            return None
        directory = expected.tree.directory(folder)
        inputs = {f"{folder}/", f"{directory.parent}/", *_folders_of_snapshots(str(directory))}
        inputs.update(self._shared.conftests_above(folder))
        if any(path.startswith(f"{directory}{os.sep}") for path in obsolete):
            return None
        if expected.rests_on_others(directory, self._folders.settings_for(folder / "-").defined):
            return None  # obsolete once that profile is gone
        if directory.parent != folder and os.path.lexists(folder / DIRECTORY):
            return None  # not moved yet: each is obsolete once it is in the other tree
        stems = [folded(child.rpartition(".")[0]) for child in known if not child.endswith("/")]
        if len(set(stems)) < len(stems):
            return None  # their snapshots may be claimed twice
        for each in known.values():
            if each is not None and each.is_open:
                return None
            inputs.update(each.paths if each is not None else ())
        with os.scandir(folder) as entries:
            inputs.update(each.path for each in entries if os.path.isfile(each.path) and systems_for(Path(each.path)))
        return sorted(inputs)

    def _write_index(self) -> None:
        index = self._folders.index
        inputs = sorted(set(index.places()))
        is_seen = not index.errors and all(
            map(self._contents.holds_same_names, (path for path in inputs if path.endswith("/")))
        )
        with nullcontext() if index.checkout is None else gate.also_reading(index.checkout.folder.parent):
            stamps = self._contents.stamps(inputs) if is_seen and self.digest_of_names() != OTHER else None
        if stamps is not None:
            entries = [written_entry(entry) for entry in index.entries]
            written = json.dumps(entries, separators=(",", ":"))
            row = {"digest": self.digest_of_names(), "inputs": inputs, "stamps": stamps, "entries": written}
            self._store.put(_INDEX, self._key(self._root), row)

    def _key(self, folder: str) -> str:
        return f"{self._collecting} {folder}"

    @cached_property
    def _collecting(self) -> str:
        """Return the digest of the checkout, and of what decides which files pytest collects in a folder."""
        whole = repr((str(self._run.rootdir), self._run.collecting()))
        return digest_of(whole.encode("utf-8", "backslashreplace"))[:8]


def folder_of(key: str) -> str:
    """Return the folder of a row's key."""
    return key.partition(" ")[2]


def _names_own_files(row: Mapping[str, Any], folder: str) -> bool:
    """Return whether the inputs of a row include its folder, the files in it, and a snapshot for each that matched."""
    inputs = set(row["inputs"])
    files = (f"{folder}{os.sep}{name}" for name, _ in row["children"] if not name.endswith("/"))
    snapshots = sum(path.endswith(SUFFIX) and not _may_be_shared(path) for path in inputs)
    return inputs.issuperset((f"{folder}/", *files)) and snapshots >= int(row["counted"]["matched"])


def _may_be_shared(path: str) -> bool:
    """Return whether a file may be an input of several folders: a snapshot is one of a single folder."""
    return _BELOW_SNAPSHOTS not in path


def _folders_of_snapshots(directory: str) -> Iterator[str]:
    """Yield a folder of snapshots, and its subfolders for files and tasks."""
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
