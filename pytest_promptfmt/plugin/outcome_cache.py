"""What earlier runs found out about task files: outcomes that still hold are shown again, and nothing is run for them.

An outcome holds as long as everything it was made of is the same: the file with its includes, the code of its
functions, docs, the snapshot, the names in its folder, what the index said, settings and versions. What a worker opens
counts as well, and what asks for anything that is no input is not kept. A stale outcome is the worst that can happen
here, so whatever is not understood is run again.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_promptfmt.core.profile import NODE_ENGINE
from pytest_promptfmt.core.task import FunctionRef, Task
from pytest_promptfmt.engine.contents import OTHER, Contents, Input, digest_of
from pytest_promptfmt.engine.store import Store, mapping
from pytest_promptfmt.engine.traces import AccessedPaths
from pytest_promptfmt.formats.format_registry import format_files
from pytest_promptfmt.plugin.cached_files import (
    Remembered,
    Shown,
    TaskRow,
    read_entry,
    remembered,
    summary,
    written_entry,
)
from pytest_promptfmt.plugin.cached_folders import KINDS, FileResult, KnownFolder, KnownFolders, folder_of
from pytest_promptfmt.plugin.folders import Folders
from pytest_promptfmt.plugin.shared_inputs import Surroundings
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.snapshots.expected import ExpectedSnapshots
from pytest_promptfmt.snapshots.lock import FILE_NAME as LOCK_NAME
from pytest_promptfmt.systems import known_systems
from pytest_promptfmt.tasks import IndexEntry, TaskFile, functions_of

_OUTCOMES: Final = "outcomes"
_SUMMARIES: Final = "summaries"
_ITEMS: Final = "items"
"""Three rows of a file: what its outcomes were made of, what they come to, and what each item showed."""

MET: Final = "met"
"""The names of the items of a file that any run met."""

_ENTRIES: Final = "entries"
_INPUTS: Final = "inputs"
"""Inputs by a digest of themselves: most are those of many files, and each is kept once."""

_KEY_LENGTH: Final = 20
"""Hexadecimal characters of the digest by which an input is found again."""

_MOST_TEXT: Final = 300
_PROMPT_KEYS: Final = frozenset(
    {
        *("doc_to_text", "doc_to_target", "doc_to_choice", "description", "gen_prefix", "doc_to_decontamination_query"),
        *("target_delimiter", "fewshot_delimiter", "filter_list", "generation_kwargs", "metric_list"),
    }
)
"""Keys of a task whose texts are parts of prompts and patterns, never paths."""

_DATA_KEYS: Final = ("dataset_path", "dataset_kwargs")
"""Keys of a task whose texts may be paths, whatever they look like."""


@dataclass(slots=True)
class _Watched:
    """A file that is tested in this run: what its outcomes are made of so far, and what its items showed.

    What its code `loads` from a hub is not known by the files that are seen to be opened.
    """

    settings: Settings
    paths: set[str]
    asked: set[tuple[str, str]]
    tasks: list[TaskRow]
    claims: list[tuple[str, str]] = field(default_factory=list)
    items: dict[str, Shown] = field(default_factory=dict)
    refused: str = ""
    loads: bool = False
    brings_profiles: bool = False

    def add(self, seen: AccessedPaths, *, is_of_module: bool) -> None:
        """Take note of what was seen while a module of the tasks, or anything else, was at work."""
        self.paths |= seen.paths
        self.refused = self.refused or seen.refused
        if self.loads and is_of_module and not all(path.endswith(".py") for path in seen.paths):
            self.refused = self.refused or "what a library may have loaded"


class OutcomeCache:
    """The outcomes of earlier runs, where the run `shows` them, and those of this one that are worth keeping.

    `folder` is where they are kept; None for nowhere.
    """

    def __init__(self, config: pytest.Config, folders: Folders, folder: Path | None, *, shows: bool) -> None:
        self._folders = folders
        self._shows = shows
        self._contents = Contents()
        self._store = Store(folder) if folder is not None else None
        self._watched: dict[str, _Watched] = {}
        self._seen: dict[str, AccessedPaths] = defaultdict(AccessedPaths)
        self._surroundings = Surroundings(config, folders, self._contents)
        self._held: dict[str, Remembered | None] = {}
        self._found: dict[str, tuple[Sequence[str], Mapping[str, Any]]] = {}
        self.folders = (
            KnownFolders(config, self._store, self._contents, self._surroundings, folders)
            if self._store is not None and shows
            else None
        )
        self._same: dict[str, bool] = {}
        self._inputs: dict[str, Any] = {}
        self._stored: set[str] = set()
        self._planned: Counter[str] = Counter()
        self._parts: dict[str, set[str]] = defaultdict(set)
        self._unexplained: set[pytest.Item] = set()

    @property
    def is_on(self) -> bool:
        """Return whether this run remembers anything."""
        return self._store is not None

    @property
    def store(self) -> Store | None:
        """Return where it is kept, None for nowhere; `write` writes what others put there, too."""
        return self._store

    # -- what is known -------------------------------------------------------------------------------------------------

    def of(self, path: Path) -> Remembered | None:
        """Return what is known of a task file, None where something that it is made of is not the same."""
        if not self._shows or self._store is None:
            return None
        name = str(path)
        if name not in self._held:
            row = mapping(self._store.row(_OUTCOMES, name))
            self._stored.update([name] if row else [])
            self._held[name] = self._checked(path, row) if row else None
        return self._held[name]

    def _checked(self, path: Path, row: Mapping[str, Any]) -> Remembered | None:
        store = self._store
        assert store is not None
        try:
            context = self._surroundings.digest(self._folders.settings_for(path))
            if context == OTHER or row["context"] != context:
                return None
            if not all(map(self._is_same, row["inputs"])):
                return None
            if not self._has_same_answers(row):
                return None
        except Exception:  # somebody else's data: whatever is wrong with it, it says nothing
            return None
        kept = self._summary_of(path, _made(row))
        found = self._remembered(path, kept)
        if found is not None:
            self._found[str(path)] = row["inputs"], kept
        return found

    def folder(self, folder: Path) -> KnownFolder | None:
        """Return what is known of the files right in a folder, None where something may have changed."""
        return self.folders.of(folder) if self.folders is not None else None

    def tasks_in(self, folder: Path) -> list[tuple[str, str, int | None, int | None]]:
        """Return the tasks of the files in a folder that is known: id, name of the file, line and column."""
        return self.folders.tasks_in(folder) if self.folders is not None else []

    def made_as(self, path: Path, made: str) -> Remembered | None:
        """Return what is known of a file whose outcomes were made of this digest, None where others are kept."""
        return self._remembered(path, self._summary_of(path, made))

    def _summary_of(self, path: Path, made: str) -> Mapping[str, Any]:
        """Return the row of what the outcomes of a file come to, empty where others are kept."""
        row = mapping(self._store.row(_SUMMARIES, str(path)) if self._store is not None else None)
        return row if row.get("made") == made else {}

    def _remembered(self, path: Path, row: Mapping[str, Any]) -> Remembered | None:
        assert self._store is not None
        try:
            return remembered(row, partial(self._store.text, _ITEMS, str(path))) if row else None
        except Exception:  # as above
            return None

    def _is_same(self, key: str) -> bool:
        """Return whether what an outcome was made of is the same; `key` is that of one of the kept inputs."""
        same = self._same.get(key)
        if same is None:
            same = self._same[key] = self._contents.is_same(self._input(key) or ())
        return same

    def _has_same_answers(self, row: Mapping[str, Any]) -> bool:
        """Return whether the index says what it said: all of it, or each answer."""
        if not row["asked"] or (row["names"] is not None and row["names"] == self._names()):
            return True
        return all(self._answered(question, about) == answer for question, about, answer in row["asked"])

    def _names(self) -> str | None:
        """Return the digest of all that the index says, None where nobody has it."""
        is_one = self.folders is not None and len(self._folders.index.roots) == 1
        return self.folders.digest_of_names() if self.folders is not None and is_one else None

    def _answered(self, question: str, about: str) -> str:
        """Return the digest of what the index says to a question; some answers are long, and given to many files."""
        return digest_of(repr(self._folders.index.answer(question, about)).encode("utf-8", "backslashreplace"))

    def _input(self, key: str) -> Any:
        """Return one of the kept inputs, None where it is not known."""
        if key not in self._inputs:
            self._inputs[key] = self._store.row(_INPUTS, key) if self._store is not None else None
        return self._inputs[key]

    def shown(self, item: pytest.Item) -> Shown | None:
        """Return what an item showed, where that still holds."""
        known = self._held.get(str(item.path))
        if known is None or getattr(item, "introduces", None) or known.size != self._planned[str(item.path)]:
            return None  # some rules look at what else is in the run
        return None if item in self._unexplained else known.items.get(_name_of(item))

    # -- of the index --------------------------------------------------------------------------------------------------

    def get(self, path: Path) -> tuple[IndexEntry | None] | None:
        """Return the entry of a file in the index as a tuple of one, None where it is not known."""
        row = mapping(self._store.row(_ENTRIES, str(path)) if self._store is not None else None)
        try:
            if not row or not all(map(self._contents.is_same, row["inputs"])):
                return None
            return (None if row["entry"] is None else read_entry(row["entry"]),)
        except (KeyError, TypeError, ValueError):
            return None

    def put(self, path: Path, entry: IndexEntry | None, made_of: Iterable[str]) -> None:
        """Keep the entry of a file in the index."""
        inputs = self._contents.all(made_of) if self._store is not None else None
        if inputs is not None and self._store is not None:
            written = None if entry is None else written_entry(entry)
            self._store.put(_ENTRIES, str(path), {"inputs": inputs, "entry": written})

    def below(self, folder: Path) -> list[IndexEntry] | None:
        """Return the entries of all files below a folder, None where one may be another now."""
        return self.folders.entries_below(folder) if self.folders is not None else None

    # -- what this run finds out ---------------------------------------------------------------------------------------

    def watch(self, path: Path, file: TaskFile, tasks: Iterable[Task], settings: Settings) -> None:
        """Take note of a file that was read: what it is made of as far as reading shows."""
        read = _read_for(file) if self._store is not None else None
        if read is None:
            return
        made = list(tasks)
        paths = {str(path), f"{path.parent}/", str(settings.rootdir / LOCK_NAME), *read}
        self._contents.take(f"{path.parent}/")
        for folder in {path.parent, *(task.path.parent for task in made if task.path is not None)}:
            paths.update(format_files(folder))
        watched = _Watched(settings, paths, set(), [(t.id, t.name, t.format, *_line_of(t)) for t in made])
        watched.asked |= self._folders.index.asked
        watched.brings_profiles = any(task.assembly.brings_profiles for task in made)
        whole = file.yaml.config if file.yaml is not None else {}
        configs = [whole, *(task.config for task in made if task.config != whole)]
        texts, modules = _texts_and_modules(configs)
        modules |= {str(ref.file) for task in made for ref in functions_of(task)}
        reached = self._surroundings.reached_from(modules, settings)
        watched.refused, watched.loads = reached.asks, reached.loads
        if watched.brings_profiles and NODE_ENGINE in settings.template_engines:
            watched.refused = "what another program renders"
        if path.is_symlink():
            watched.refused = "a link, whose tasks stand in another file"
        watched.paths |= reached.files | reached.facts
        self._take_conftests(path.parent, watched)
        if reached.loads:
            watched.paths.add(f"{Path.cwd()}/")  # what is called like a repository of a hub comes before it
        for text in texts:
            if "*" in text:
                watched.refused = "a pattern of paths"
            else:
                watched.paths.update(os.path.normpath(folder / text) for folder in (path.parent, Path.cwd()))
        self._watched[str(path)] = watched

    def _take_conftests(self, folder: Path, watched: _Watched) -> None:
        """Take note of the conftests of a folder: pytest reads them where it comes to it, not when it begins."""
        conftests = self._surroundings.conftests_above(folder)
        watched.paths.update(conftests)
        reached = self._surroundings.reached_from(filter(os.path.isfile, conftests), watched.settings)
        watched.paths |= reached.files | reached.facts
        if reached.reads:
            watched.refused = watched.refused or "a file that a conftest reads"

    def claim(self, path: Path, task: str, profile: str) -> None:
        """Take note of a snapshot that a task of a file has."""
        watched = self._watched.get(str(path))
        if watched is not None:
            watched.claims.append((task, profile))

    def offer(self, node: pytest.Collector, children: Iterable[pytest.Item | pytest.Collector]) -> None:
        """Take note of what a file or a task of it consists of: all of that is to be run, not what `-k` left of it."""
        parts = self._parts[str(node.path)]
        parts.discard(_name_of(node))
        parts.update(map(_name_of, children))

    def plan(self, items: Iterable[pytest.Item]) -> None:
        """Take note of the items that a run has, after selection.

        A failure that repeats an earlier one was kept without its text: where none before it says it, it is run again.
        """
        planned = list(items)
        self._planned = Counter(str(item.path) for item in planned)
        self._unexplained.clear()
        said: set[tuple[str, str]] = set()
        for item in planned:
            for report in (self.shown(item) or {}).get("reports", ()):
                outcome = mapping(report.get("promptfmt"))
                problem = str(outcome.get("category")), str(outcome.get("key"))
                if report.get("outcome") != "failed" or problem in said:
                    continue
                if outcome.get("detail"):
                    said.add(problem)
                else:
                    self._unexplained.add(item)

    def enter(self, folder: Path, children: Sequence[str] | None) -> None:
        """Take note of what was collected in a folder, as `KnownFolders.enter`."""
        if self.folders is not None:
            self.folders.enter(folder, children)

    def refuse(self, path: Path, reason: str) -> None:
        """Do not keep what becomes of a file."""
        watched = self._watched.get(str(path))
        if watched is not None:
            watched.refused = watched.refused or reason

    def settle(self, item: pytest.Item, shown: Shown, seen: Mapping[str, Any]) -> None:
        """Take note of what an item showed, and of what its worker saw it open and ask for."""
        watched = self._watched.get(str(item.path))
        if watched is None:
            return
        watched.items[_name_of(item)] = shown
        if getattr(item, "introduces", None):
            watched.refused = watched.refused or "what it says about a profile"
        watched.asked.update((str(question), str(about)) for question, about in seen["asked"])
        for file, paths, refused in seen["files"]:
            watched.add(AccessedPaths(set(paths), refused), is_of_module=bool(file))
            self._seen[file].paths.update(paths)
            self._seen[file].refused = self._seen[file].refused or refused

    def write(self, expected: ExpectedSnapshots) -> None:
        """Keep what this run found out about the files whose items were all run; `expected` are their snapshots."""
        if self._store is None:
            return
        index = self._folders.index
        self._share_what_modules_saw()
        for name, watched in self._watched.items():
            if not watched.items and self._held.get(name) is not None:
                continue  # what is known of it was shown again item by item
            if any(map(_may_be_renamed, watched.items.values())):
                watched.refused = watched.refused or "a snapshot that another task may leave to this one"
            context = self._surroundings.digest(watched.settings)
            is_whole = watched.items.keys() == self._parts[name] and len(watched.items) == self._planned[name] > 0
            self._found.pop(name, None)
            if watched.refused or context == OTHER or not is_whole:
                if name in self._stored and self._held.get(name) is None:
                    for kind in (_OUTCOMES, _SUMMARIES, _ITEMS):
                        self._store.put(kind, name, None)
                continue
            asked = sorted(watched.asked)
            paths = watched.paths | {path for question in asked for path in index.files_in(*question)}
            paths.update(str(expected.tree.path(Path(name), *claim)) for claim in watched.claims)  # absent ones, too
            inputs = self._contents.all(paths)
            if inputs is None:
                continue
            row: dict[str, Any] = {
                "context": context,
                "inputs": [self._kept(each) for each in inputs],
                "asked": [[*question, self._answered(*question)] for question in asked],
                "names": self._names() if asked else None,
            }
            made_of = {"made": _made(row), "tasks": watched.tasks, "claims": watched.claims}
            found = {**made_of, "brings_profiles": watched.brings_profiles, **summary(watched.items)}
            self._found[name] = row["inputs"], found
            self._store.put(_OUTCOMES, name, row)
            self._store.put(_SUMMARIES, name, found)
            self._store.put(_ITEMS, name, watched.items)
        if self.folders is not None:
            self.folders.write({name: self._found_of(name) for name in {*self._watched, *self._found}}, expected)
        if self._store.is_changed:
            self._forget()
        self._store.write()

    def _found_of(self, name: str) -> FileResult:
        if name not in self._found:
            return FileResult(is_open=not self._watched[name].refused)
        inputs, row = self._found[name]
        return FileResult(row["made"], [self._inputs[key][0] for key in inputs], row)

    def _kept(self, found: Input) -> str:
        """Return the key of an input, which is kept."""
        path, digest, stamp = found
        key = digest_of(repr((path, digest)).encode("utf-8", "backslashreplace"))[:_KEY_LENGTH]
        assert self._store is not None
        written = [path, digest, None if stamp is None else list(stamp)]
        if self._input(key) != written:
            self._inputs[key] = written
            self._store.put(_INPUTS, key, written)
        self._same[key] = True
        return key

    def _forget(self) -> None:
        """Remove what is known of files that are gone, and inputs that no longer are as they were."""
        assert self._store is not None
        is_gone = lru_cache(maxsize=None)(lambda path: not os.path.lexists(path))  # five rows are about one file
        for kind in (_OUTCOMES, _SUMMARIES, _ITEMS, _ENTRIES, MET):
            for path in filter(is_gone, self._store.paths(kind)):
                self._store.put(kind, path, None)
        for kind in KINDS:
            for key in self._store.paths(kind):
                if not os.path.lexists(folder_of(key)):
                    self._store.put(kind, key, None)
        for key, is_same in self._same.items():
            if not is_same and self._inputs.get(key) is not None:
                self._store.put(_INPUTS, key, None)

    def _share_what_modules_saw(self) -> None:
        """Add what a module opened to all files that use it; what belongs to none, a rule's or a conftest's, to all."""
        self._seen.pop("", None)
        used = {path for watched in self._watched.values() for path in watched.paths}
        for module, seen in self._seen.items():
            for watched in self._watched.values():
                if module in watched.paths or module not in used:
                    watched.add(seen, is_of_module=module in watched.paths)


def _made(row: Mapping[str, Any]) -> str:
    """Return the digest of what the outcomes of a file were made of."""
    return digest_of(repr((row["context"], row["inputs"], row["asked"])).encode("utf-8", "backslashreplace"))


def _read_for(file: TaskFile) -> Collection[str] | None:
    """Return the paths of what was read for a file besides itself, None where nobody can say."""
    if file.yaml is not None:
        return [*(str(part.path) for part in file.yaml.parts), *file.yaml.named]
    system = known_systems().get(file.tasks[0].system) if file.tasks else None
    return system.made_of(file.path) if system is not None else None


def _may_be_renamed(shown: Shown) -> bool:
    """Return whether an item has no snapshot: one of the same docs that no task defines would be said to be its own."""
    outcomes = (mapping(report.get("promptfmt")) for report in shown["reports"])
    return any(outcome.get("category") in ("new", "renamed") for outcome in outcomes)


def _name_of(node: pytest.Item | pytest.Collector) -> str:
    return node.nodeid.partition("::")[2]


def _line_of(task: Task) -> tuple[int | None, int | None]:
    position = task.position("task")
    return (position.line, position.column) if position is not None else (None, None)


def _texts_and_modules(configs: Sequence[Mapping[Any, Any]]) -> tuple[set[str], set[str]]:
    """Return the texts of configs that may be paths, and the files of their functions.

    Those of a file and of its tasks: a member of a group has what another file says, and what the group changes.
    """
    modules = {str(leaf.file) for leaf in _leaves(configs) if isinstance(leaf, FunctionRef)}
    leaves = _leaves([value for config in configs for key, value in config.items() if key not in _PROMPT_KEYS])
    texts = {leaf for leaf in leaves if isinstance(leaf, str) and _may_be_path(leaf)}
    named = (leaf for config in configs for key in _DATA_KEYS for leaf in _leaves(config.get(key)))
    return texts | {leaf for leaf in named if isinstance(leaf, str) and 0 < len(leaf) <= _MOST_TEXT}, modules


def _may_be_path(text: str) -> bool:
    is_word = len(text) <= _MOST_TEXT and not any(c.isspace() or c in "{}\0" for c in text)
    return is_word and ("/" in text or "." in text or "\\" in text)


def _leaves(config: object) -> Iterator[object]:
    """Yield what is in mappings and sequences, at any depth; each of these once."""
    waiting = [config]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if not isinstance(value, Mapping | list | tuple):
            yield value
        elif id(value) not in seen:
            seen.add(id(value))
            waiting += value.values() if isinstance(value, Mapping) else value
