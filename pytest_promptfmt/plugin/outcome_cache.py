"""The cache of outcomes: those that still hold are shown again, and their tests do not run.

An outcome holds as long as all its inputs are the same: the file with its includes, the code of its functions, docs,
the snapshot, the names in its folder, the answers of the index, the files that a worker opened, settings and versions.
An outcome that depends on anything else is not cached. A stale outcome is the worst bug possible here, so a test with
an unknown input runs again. A row is untrusted: it holds only if its inputs include the file, its folder and its
snapshots.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_promptfmt.engine.contents import OTHER, Contents, Input, digest_of
from pytest_promptfmt.engine.store import Store, mapping
from pytest_promptfmt.plugin.cached_files import CachedFile, read_entry, summary, written_entry
from pytest_promptfmt.plugin.cached_folders import KINDS, CachedFolders, FileResult, folder_of
from pytest_promptfmt.plugin.folders import Folders
from pytest_promptfmt.plugin.item_results import Shown
from pytest_promptfmt.plugin.task_inputs import SharedInputs, WatchedFile, WatchedFiles, name_of
from pytest_promptfmt.snapshots.expected import ExpectedSnapshots
from pytest_promptfmt.snapshots.paths import Tree
from pytest_promptfmt.tasks import IndexEntry

_OUTCOMES: Final = "outcomes"
_SUMMARIES: Final = "summaries"
_ITEMS: Final = "items"
"""Three rows of a file: the inputs of its outcomes, their counts, and the result of each item."""

MET: Final = "met"
"""The names of the items of a file in any earlier run."""

_ENTRIES: Final = "entries"
_INPUTS: Final = "inputs"
_KEY_LENGTH: Final = 20
"""Hexadecimal characters of the digest that is the key of an input."""


class StoredInputs:
    """Inputs in the store, by a digest of themselves: most belong to many files, and each is stored once."""

    def __init__(self, store: Store, contents: Contents) -> None:
        self._store = store
        self._contents = contents
        self._rows: dict[str, Any] = {}
        self._same: dict[str, bool] = {}

    def is_same(self, key: str) -> bool:
        """Return whether the input of a key is the same now; an unknown one is not."""
        same = self._same.get(key)
        if same is None:
            same = self._same[key] = self._contents.is_same(self._row(key) or ())
        return same

    def path(self, key: str) -> str:
        """Return the path of an input that was kept, or is the same."""
        return str(self._row(key)[0])

    def keep(self, found: Input) -> str:
        """Store an input, and return its key."""
        path, digest, stamp = found
        key = _digest((path, digest))[:_KEY_LENGTH]
        written = [path, digest, None if stamp is None else list(stamp)]
        if self._row(key) != written:
            self._rows[key] = written
            self._store.put(_INPUTS, key, written)
        self._same[key] = True
        return key

    def remove_changed(self) -> None:
        """Remove the inputs that are not the same any more."""
        for key, is_same in self._same.items():
            if not is_same and self._rows.get(key) is not None:
                self._store.put(_INPUTS, key, None)

    def _row(self, key: str) -> Any:
        if key not in self._rows:
            self._rows[key] = self._store.row(_INPUTS, key)
        return self._rows[key]


class OutcomeCache:
    """The outcomes of earlier runs, if the run `shows` them, and those of this one; without a `folder` it is off."""

    def __init__(
        self, config: pytest.Config, folders: Folders, folder: Path | None, tree: Tree, *, shows: bool
    ) -> None:
        kinds = (_OUTCOMES, _SUMMARIES, _ITEMS, *KINDS)
        self.store = Store(folder, by_context=kinds, context=lambda: self._context)
        self._folders = folders
        self._tree = tree
        self._contents = Contents()
        self._shared = SharedInputs(config, folders, self._contents, self.store)
        self._inputs = StoredInputs(self.store, self._contents)
        self.folders: CachedFolders | None = None
        if self.store.is_on and shows:
            self.folders = CachedFolders(config, self.store, self._contents, self._shared, folders)
        self.watched = WatchedFiles(self._shared, folders, self._contents)
        self._files: dict[str, CachedFile | None] = {}
        self._found: dict[str, tuple[list[str], Mapping[str, Any]]] = {}
        self._planned: Counter[str] = Counter()
        self._parts: dict[str, set[str]] = defaultdict(set)
        self._unexplained: set[pytest.Item] = set()

    @property
    def is_on(self) -> bool:
        """Return whether this run reads and writes the cache."""
        return self.store.is_on

    @cached_property
    def _context(self) -> str:
        """Return the inputs shared by all tasks of the rootdir; outcomes of several contexts are side by side."""
        return self._shared.digest(self._folders.settings)

    # -- cached outcomes -----------------------------------------------------------------------------------------------

    def file(self, path: Path) -> CachedFile | None:
        """Return the cached outcomes of a task file, None if one of its inputs is not the same."""
        if self.folders is None:
            return None
        name = str(path)
        if name not in self._files:
            self._files[name] = self._checked(path, mapping(self.store.row(_OUTCOMES, name)))
        return self._files[name]

    def _checked(self, path: Path, row: Mapping[str, Any]) -> CachedFile | None:
        if not row:
            return None
        try:
            context = self._shared.digest(self._folders.settings_for(path))
            if context == OTHER or row["context"] != context:
                return None
            if not (all(map(self._inputs.is_same, row["inputs"])) and self._has_same_answers(row)):
                return None
        except Exception:  # invalid data of any kind
            return None
        kept = self._summary_of(path, _digest_of_inputs(row))
        found = self._cached(path, kept)
        if found is None or not self._are_inputs(self._own_paths(path, found.claims), row["inputs"]):
            return None
        self._found[str(path)] = row["inputs"], kept
        return found

    def _own_paths(self, path: Path, claims: Iterable[tuple[str, str]]) -> set[str]:
        """Return the paths that are inputs of each outcome of a file."""
        return {str(path), f"{path.parent}/", *(str(self._tree.path(path, *claim)) for claim in claims)}

    def _are_inputs(self, paths: set[str], keys: Iterable[str]) -> bool:
        known = set(map(self._inputs.path, keys))
        return known.issuperset(self._contents.without_implied(paths))

    def file_with(self, path: Path, made: str) -> CachedFile | None:
        """Return the cached outcomes of a file with this digest of inputs, None if the stored ones have another."""
        return self._cached(path, self._summary_of(path, made))

    def _summary_of(self, path: Path, made: str) -> Mapping[str, Any]:
        """Return the row of a file's counts, empty if it belongs to other inputs."""
        row = mapping(self.store.row(_SUMMARIES, str(path)))
        return row if row.get("made") == made else {}

    def _cached(self, path: Path, row: Mapping[str, Any]) -> CachedFile | None:
        try:
            return CachedFile.of(row, partial(self.store.text, _ITEMS, str(path))) if row else None
        except Exception:  # invalid data of any kind
            return None

    def _has_same_answers(self, row: Mapping[str, Any]) -> bool:
        """Return whether the whole index is the same, or each of its answers to the file."""
        if not row["asked"] or (row["names"] is not None and row["names"] == self._names()):
            return True
        return all(self._answered(question, about) == answer for question, about, answer in row["asked"])

    def _names(self) -> str | None:
        """Return the digest of the whole index, None if unknown."""
        is_one = self.folders is not None and len(self._folders.index.roots) == 1
        return self.folders.digest_of_names() if self.folders is not None and is_one else None

    def _answered(self, question: str, about: str) -> str:
        """Return the digest of the index's answer to a question; some answers are long, and given to many files."""
        return _digest(self._folders.index.answer(question, about))

    def shown(self, item: pytest.Item) -> Shown | None:
        """Return the cached result of an item, if it holds and can be shown."""
        cached = self._files.get(str(item.path))
        if cached is None or getattr(item, "introduces", None) or cached.size != self._planned[str(item.path)]:
            return None  # some rules use the other items of the run
        return None if item in self._unexplained else cached.items.get(name_of(item))

    # -- the index -----------------------------------------------------------------------------------------------------

    def get(self, path: Path) -> tuple[IndexEntry | None] | None:
        """Return the entry of a file in the index as a tuple of one, None if it is unknown."""
        row = mapping(self.store.row(_ENTRIES, str(path)))
        try:
            if not row or not all(map(self._contents.is_same, row["inputs"])):
                return None
            return (None if row["entry"] is None else read_entry(row["entry"]),)
        except (KeyError, TypeError, ValueError):
            return None

    def put(self, path: Path, entry: IndexEntry | None, made_of: Iterable[str]) -> None:
        """Store the entry of a file in the index."""
        inputs = self._contents.all(made_of) if self.is_on else None
        if inputs is not None:
            written = None if entry is None else written_entry(entry)
            self.store.put(_ENTRIES, str(path), {"inputs": inputs, "entry": written})

    def below(self, folder: Path) -> list[IndexEntry] | None:
        """Return the entries of all files below a folder, None if one may have changed."""
        return self.folders.entries_below(folder) if self.folders is not None else None

    # -- outcomes of this run ------------------------------------------------------------------------------------------

    def offer(self, node: pytest.Collector, children: Iterable[pytest.Item | pytest.Collector]) -> None:
        """Note the children of a file or task: all of them have to run, also those that `-k` deselects."""
        parts = self._parts[str(node.path)]
        parts.discard(name_of(node))
        parts.update(map(name_of, children))

    def plan(self, items: Iterable[pytest.Item]) -> None:
        """Note the items of the run after selection.

        A failure that repeats an earlier one is stored without its text: if no item before it has the text, it runs.
        """
        planned = list(items)
        self._planned = Counter(str(item.path) for item in planned)
        self._unexplained.clear()
        explained: set[tuple[str, str]] = set()
        for item in planned:
            for report in (self.shown(item) or {}).get("reports", ()):
                outcome = mapping(report.get("promptfmt"))
                problem = str(outcome.get("category")), str(outcome.get("key"))
                if report.get("outcome") != "failed" or problem in explained:
                    continue
                if not outcome.get("detail"):
                    self._unexplained.add(item)  # it gets the text, for the same inputs fail in the same way
                explained.add(problem)

    def write(self, expected: ExpectedSnapshots) -> None:
        """Store the outcomes of this run for the files whose items all ran; `expected` are their snapshots."""
        if not self.is_on:
            return
        self.watched.share_traces()
        for name, watched in self.watched.files.items():
            if not watched.items and self._files.get(name) is not None:
                continue  # its cached items were shown
            self._found.pop(name, None)
            context = self._shared.digest(watched.settings)
            is_whole = watched.items.keys() == self._parts[name] and len(watched.items) == self._planned[name] > 0
            if watched.refused or context == OTHER or not is_whole:
                self._remove_stale(name)
                continue
            row = self._row(name, watched)
            if row is not None:
                self._keep(name, watched, {"context": context, **row})
        if self.folders is not None:
            found = {name: self._result_of(name) for name in {*self.watched.files, *self._found}}
            self.folders.write(found, expected)
        self.store.keep_context()
        if self.store.is_changed:
            self._remove_missing()
        self.store.write()

    def _row(self, name: str, watched: WatchedFile) -> dict[str, Any] | None:
        """Return the inputs of a file's outcomes, None if one of them may have changed during this run."""
        asked = sorted(watched.asked)
        paths = watched.paths | {path for question in asked for path in self._folders.index.files_in(*question)}
        paths.update(self._own_paths(Path(name), watched.claims))  # absent ones, too
        inputs = self._contents.all(paths)
        if inputs is None:
            return None
        return {
            "inputs": [self._inputs.keep(each) for each in inputs],
            "asked": [[*question, self._answered(*question)] for question in asked],
            "names": self._names() if asked else None,
        }

    def _keep(self, name: str, watched: WatchedFile, row: dict[str, Any]) -> None:
        made_of = {"made": _digest_of_inputs(row), "tasks": watched.tasks, "claims": watched.claims}
        found = {**made_of, "brings_profiles": watched.brings_profiles, **summary(watched.items)}
        self._found[name] = row["inputs"], found
        for kind, content in ((_OUTCOMES, row), (_SUMMARIES, found), (_ITEMS, watched.items)):
            self.store.put(kind, name, content)

    def _result_of(self, name: str) -> FileResult:
        if name not in self._found:
            return FileResult(is_open=not self.watched.files[name].refused)
        inputs, row = self._found[name]
        return FileResult(row["made"], [self._inputs.path(key) for key in inputs], row)

    def _remove_stale(self, name: str) -> None:
        """Remove the outcomes of a file if they are known not to hold."""
        if name in self._files and self._files[name] is None and self.store.text(_OUTCOMES, name) is not None:
            for kind in (_OUTCOMES, _SUMMARIES, _ITEMS):
                self.store.put(kind, name, None)

    def _remove_missing(self) -> None:
        """Remove the rows of files and folders that no longer exist, and changed inputs."""
        is_missing = cache(lambda path: not os.path.lexists(path))  # a file has five rows
        for kind in (_OUTCOMES, _SUMMARIES, _ITEMS, _ENTRIES, MET):
            for path in filter(is_missing, self.store.paths(kind)):
                self.store.put(kind, path, None)
        for kind in KINDS:
            for key in self.store.paths(kind):
                if is_missing(folder_of(key)):
                    self.store.put(kind, key, None)
        self._inputs.remove_changed()


def _digest_of_inputs(row: Mapping[str, Any]) -> str:
    return _digest((row["context"], row["inputs"], row["asked"]))


def _digest(value: object) -> str:
    return digest_of(repr(value).encode("utf-8", "backslashreplace"))
