"""What earlier runs found out about task files: outcomes that still hold are shown again, and nothing is run for them.

An outcome holds as long as everything it was made of is the same: the file with its includes, the code of its
functions, docs, the snapshot, the names in its folder, what the index said, settings and versions. What a worker opens
counts as well, and what asks for anything that is no input is not kept. A stale outcome is the worst that can happen
here, so whatever is not understood is run again.
"""

from __future__ import annotations

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from functools import cached_property, lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.core.task import FunctionRef, Task
from pytest_promptfmt.engine.code import reached_from
from pytest_promptfmt.engine.contents import OTHER, Contents, Input, digest_of
from pytest_promptfmt.engine.store import Store, mapping
from pytest_promptfmt.engine.traces import Seen, Trace
from pytest_promptfmt.plugin.folders import Folders
from pytest_promptfmt.plugin.outputs import Outputs
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.snapshots.lock import FILE_NAME as LOCK_NAME
from pytest_promptfmt.systems import TaskFile
from pytest_promptfmt.systems.lm_eval.functions import functions_of
from pytest_promptfmt.systems.lm_eval.index import Entry

_OUTCOMES: Final = "outcomes"
_ITEMS: Final = "items"
_ENTRIES: Final = "entries"
_INPUTS: Final = "inputs"
"""Inputs by a digest of themselves: most are those of many files, and each is kept once."""

_KEY_LENGTH: Final = 20
"""Hexadecimal characters of the digest by which an input is found again."""

_PACKAGE: Final = str(Path(__file__).absolute().parents[1])
_LIBRARIES: Final = ("site-packages", "dist-packages")
_ENVIRONMENT: Final = ("PROMPTFMT_", "HF_", "TRANSFORMERS_", "PYTHON", "TZ", "LC_", "LANG")
_MOST_TEXT: Final = 300
_PROMPT_KEYS: Final = frozenset(
    {
        *("doc_to_text", "doc_to_target", "doc_to_choice", "description", "gen_prefix", "doc_to_decontamination_query"),
        *("target_delimiter", "fewshot_delimiter", "filter_list", "generation_kwargs", "metric_list"),
    }
)
"""Keys of a task whose texts are parts of prompts and patterns, never paths."""

TaskRow = tuple[str, str, str | None, int | None, int | None]
"""A task as id, name, format, and where it is written, line and column."""

_SHOWN: Final = {"about", "reports", "warnings", "counted"}

Shown = Mapping[str, Any]
"""What a worker sent of one item: its reports, warnings, what syrupy is to count, and what is `about` the item."""


@dataclass(frozen=True)
class Remembered:
    """What is known of a file whose inputs are the same as then.

    `tasks` are those that it defines; `claims` the snapshots that they have, as task and profile. `counts` are its
    outcomes by category, `said` those that say more than that a test passed, by the rest of the node id. It `is_quiet`
    where every item passed without a warning: then nobody needs to see them one by one. It `is_told` where at least all
    that there is to say stands in the outcomes. `size` counts its items, `failed` those that failed.
    """

    tasks: tuple[TaskRow, ...]
    claims: tuple[tuple[str, str], ...]
    size: int
    is_quiet: bool
    is_told: bool
    failed: int
    counts: Mapping[str, int]
    said: tuple[tuple[str, Outcome], ...]
    read: Callable[[], Any]

    @cached_property
    def items(self) -> Mapping[str, Shown]:
        """Return what each item showed, by the rest of its node id; of one that cannot be read nothing."""
        items = {str(key): mapping(shown) for key, shown in mapping(self.read()).items()}
        return {key: shown for key, shown in items.items() if shown.keys() >= _SHOWN}


def _summary(items: Mapping[str, Shown]) -> dict[str, Any]:
    """Return what a run has to know of items that it does not show one by one."""
    counts: Counter[str] = Counter()
    said: list[tuple[str, Any]] = []
    is_quiet = is_told = True
    failed = 0
    tokenizers: set[str] = set()
    for name, shown in items.items():
        is_quiet = is_quiet and not shown["warnings"] and all("passed" in report for report in shown["reports"])
        is_told = is_told and not shown["warnings"]
        for report in shown["reports"]:
            has_failed = report.get("outcome") == "failed"
            failed += has_failed
            is_told = is_told and not (has_failed and not mapping(report.get("promptfmt")).get("detail"))
            if "promptfmt" not in report:
                continue
            outcome = Outcome.from_json(report["promptfmt"])
            used = outcome.tokenizer.name if outcome.tokenizer is not None else ""
            if outcome.is_remarkable or (used and used not in tokenizers):
                said.append((name, report["promptfmt"]))
            else:
                counts[outcome.category] += 1
            tokenizers.add(used)
    kept = {"size": len(items), "is_quiet": is_quiet, "is_told": is_told, "failed": failed}
    return {**kept, "counts": counts, "said": said}


@dataclass(slots=True)
class _Watched:
    """A file that is tested in this run: what its outcomes are made of so far, and what its items showed."""

    settings: Settings
    paths: set[str]
    asked: set[tuple[str, str]]
    tasks: list[TaskRow]
    claims: list[tuple[str, str]] = field(default_factory=list)
    items: dict[str, Shown] = field(default_factory=dict)
    refused: str = ""


class Memory:
    """The outcomes of earlier runs, where the run `shows` them, and those of this one that are worth keeping.

    `folder` is where they are kept; None for nowhere.
    """

    def __init__(
        self, config: pytest.Config, folders: Folders, outputs: Outputs, folder: Path | None, *, shows: bool
    ) -> None:
        self._config = config
        self._folders = folders
        self._outputs = outputs
        self._shows = shows
        self._contents = Contents()
        self._store = Store(folder) if folder is not None else None
        self._watched: dict[str, _Watched] = {}
        self._seen: dict[str, Seen] = defaultdict(Seen)
        self._contexts: dict[int, tuple[Settings, str]] = {}
        self._base: str | None = None
        self._is_library = lru_cache(maxsize=None)(partial(_is_library, rootdir=config.rootpath))
        self._is_linked = lru_cache(maxsize=None)(partial(_is_linked, rootdir=str(config.rootpath)))
        self._held: dict[str, Remembered | None] = {}
        self._same: dict[str, bool] = {}
        self._stored: set[str] = set()
        self._planned: Counter[str] = Counter()
        self._unexplained: set[pytest.Item] = set()

    @property
    def is_on(self) -> bool:
        """Return whether this run remembers anything."""
        return self._store is not None

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
            context = self._context_of(self._folders.settings_for(path))
            if context == OTHER or row["context"] != context:
                return None
            if not all(map(self._is_same, row["inputs"])):
                return None
            index = self._folders.index
            if any(index.answer(question, about) != answer for question, about, answer in row["asked"]):
                return None
            found = Remembered(
                tasks=tuple((str(a), str(b), c, d, e) for a, b, c, d, e in row["tasks"]),
                claims=tuple((str(a), str(b)) for a, b in row["claims"]),
                size=int(row["size"]),
                is_quiet=row["is_quiet"] is True,
                is_told=row["is_told"] is True,
                failed=int(row["failed"]),
                counts={str(category): int(count) for category, count in row["counts"].items()},
                said=tuple((str(name), Outcome.from_json(outcome)) for name, outcome in row["said"]),
                read=partial(store.row, _ITEMS, str(path)),
            )
        except Exception:  # somebody else's data: whatever is wrong with it, it says nothing
            return None
        return found

    def _is_same(self, key: str) -> bool:
        """Return whether what an outcome was made of is the same; `key` is that of one of the kept inputs."""
        same = self._same.get(key)
        if same is None:
            same = self._same[key] = self._contents.is_same(self._inputs.get(key) or ())
        return same

    @cached_property
    def _inputs(self) -> dict[str, Any]:
        return self._store.rows(_INPUTS) if self._store is not None else {}

    def shown(self, item: pytest.Item) -> Shown | None:
        """Return what an item showed, where that still holds."""
        known = self._held.get(str(item.path))
        if known is None or getattr(item, "introduces", None) or known.size != self._planned[str(item.path)]:
            return None  # some rules look at what else is in the run
        return None if item in self._unexplained else known.items.get(_name_of(item))

    # -- of the index --------------------------------------------------------------------------------------------------

    def get(self, path: Path) -> tuple[Entry | None] | None:
        """Return the entry of a file in the index as a tuple of one, None where it is not known."""
        row = mapping(self._store.row(_ENTRIES, str(path)) if self._store is not None else None)
        try:
            if not row or not all(map(self._contents.is_same, row["parts"])):
                return None
            written = row["entry"]
            if written is None:
                return (None,)
            name, kind, place, tags = written
            parts = tuple(str(part[0]) for part in row["parts"])
            return (Entry(name, kind, Path(place), parts, tuple(tags)),)
        except (KeyError, TypeError, ValueError):
            return None

    def put(self, path: Path, entry: Entry | None, parts: Iterable[str]) -> None:
        """Keep the entry of a file in the index."""
        inputs = self._contents.all(parts) if self._store is not None else None
        if inputs is not None and self._store is not None:
            written = None if entry is None else [entry.name, entry.kind, str(entry.path), list(entry.tags)]
            self._store.put(_ENTRIES, str(path), {"parts": inputs, "entry": written})

    # -- what this run finds out ---------------------------------------------------------------------------------------

    def watch(self, path: Path, file: TaskFile, tasks: Iterable[Task], settings: Settings) -> None:
        """Take note of a file that was read: what it is made of as far as reading shows."""
        if self._store is None or file.yaml is None:
            return
        made = list(tasks)
        paths = {str(path), f"{path.parent}/", str(settings.rootdir / LOCK_NAME)}
        self._contents.take(f"{path.parent}/")
        paths.update(str(part.path) for part in file.yaml.parts)
        watched = _Watched(settings, paths, set(), [(t.id, t.name, t.format, *_line_of(t)) for t in made])
        watched.asked |= self._folders.index.asked
        texts, modules = _texts_and_modules(file.yaml.config)
        modules |= {str(ref.file) for task in made for ref in functions_of(task)}
        reached = reached_from(modules, (str(settings.rootdir), *_search_path()), self._is_library)
        watched.refused = reached.asks
        if any(map(self._is_linked, reached.files)):
            watched.refused = watched.refused or "a module behind a link, which it may look for its files by"
        watched.paths |= reached.files
        for text in texts:
            if "*" in text:
                watched.refused = "a pattern of paths"
            else:
                watched.paths.update(os.path.normpath(folder / text) for folder in (path.parent, Path.cwd()))
        self._watched[str(path)] = watched

    def claim(self, path: Path, task: str, profile: str) -> None:
        """Take note of a snapshot that a task of a file has."""
        watched = self._watched.get(str(path))
        if watched is not None:
            watched.claims.append((task, profile))

    def plan(self, items: Iterable[pytest.Item]) -> None:
        """Take note of the items that a run has, after selection: a file is kept when all of its items were run.

        A failure that repeats an earlier one was kept without its text: where none before it tells it, it is run again.
        """
        planned = list(items)
        self._planned = Counter(str(item.path) for item in planned)
        self._unexplained.clear()
        told: set[tuple[str, str]] = set()
        for item in planned:
            for report in (self.shown(item) or {}).get("reports", ()):
                outcome = mapping(report.get("promptfmt"))
                problem = str(outcome.get("category")), str(outcome.get("key"))
                if report.get("outcome") != "failed" or problem in told:
                    continue
                if outcome.get("detail"):
                    told.add(problem)
                else:
                    self._unexplained.add(item)

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
            watched.paths.update(paths)
            watched.refused = watched.refused or refused
            self._seen[file].paths.update(paths)
            self._seen[file].refused = self._seen[file].refused or refused

    def write(self) -> None:
        """Keep what this run found out about the files whose items were all run."""
        if self._store is None:
            return
        index = self._folders.index
        self._share_what_modules_saw()
        for name, watched in self._watched.items():
            context = self._context_of(watched.settings)
            is_whole = watched.items and len(watched.items) == self._planned[name]
            if watched.refused or context == OTHER or not is_whole:
                if name in self._stored and self._held.get(name) is None:
                    self._store.put(_OUTCOMES, name, None)
                    self._store.put(_ITEMS, name, None)
                continue
            asked = sorted(watched.asked)
            paths = watched.paths | {path for question in asked for path in index.files_in(*question)}
            inputs = self._contents.all(paths)
            if inputs is None:
                continue
            row = {
                "context": context,
                "inputs": [self._kept(each) for each in inputs],
                "asked": [[*question, index.answer(*question)] for question in asked],
                "tasks": watched.tasks,
                "claims": watched.claims,
                **_summary(watched.items),
            }
            self._store.put(_OUTCOMES, name, row)
            self._store.put(_ITEMS, name, watched.items)
        if self._store.is_changed:
            self._forget()
        self._store.write()

    def _kept(self, found: Input) -> str:
        """Return the key of an input, which is kept."""
        key = digest_of(repr(found).encode("utf-8", "backslashreplace"))[:_KEY_LENGTH]
        assert self._store is not None
        if key not in self._inputs:
            self._inputs[key] = found
            self._same[key] = True
            self._store.put(_INPUTS, key, found)
        return key

    def _forget(self) -> None:
        """Remove what is known of files that are gone, and inputs that no longer are as they were."""
        assert self._store is not None
        for kind in (_OUTCOMES, _ITEMS, _ENTRIES):
            for path in self._store.paths(kind):
                if not os.path.lexists(path):
                    self._store.put(kind, path, None)
        for key, is_same in self._same.items():
            if not is_same and key in self._inputs:
                self._store.put(_INPUTS, key, None)

    def _share_what_modules_saw(self) -> None:
        """Add what a module opened to all files that use it; what belongs to none, a rule's or a conftest's, to all."""
        self._seen.pop("", None)
        used = {path for watched in self._watched.values() for path in watched.paths}
        for module, seen in self._seen.items():
            for watched in self._watched.values():
                if module in watched.paths or module not in used:
                    watched.paths |= seen.paths
                    watched.refused = watched.refused or seen.refused

    # -- what holds for all tasks of a folder --------------------------------------------------------------------------

    def _context_of(self, settings: Settings) -> str:
        """Return the digest of what holds for all tasks of a folder; `OTHER` where nobody can say what that is."""
        known = self._contexts.get(id(settings))
        if known is None:
            if self._base is None:
                self._base = digest_of(repr(list(self._of_this_run())).encode("utf-8", "backslashreplace"))
            own = [self._base, _plain(settings), *self._files_named_by(settings)]
            digest = digest_of(repr(own).encode("utf-8", "backslashreplace"))
            known = self._contexts[id(settings)] = settings, OTHER if OTHER in own else digest
        return known[1]

    def _of_this_run(self) -> Iterator[object]:
        """Yield what holds for every task: versions, the code of this package and of conftests, options."""
        config = self._config
        yield sys.version, sys.platform, version("pytest-promptfmt"), os.getcwd(), str(config.rootpath)
        for folder, _, names in sorted(os.walk(_PACKAGE)):
            stamps = ((name, os.stat(f"{folder}/{name}")) for name in sorted(names) if name.endswith(".py"))
            yield from ((folder, name, stamp.st_size, stamp.st_mtime_ns) for name, stamp in stamps)
        for folder in _search_path():
            with suppress(OSError):
                yield folder, sorted(name for name in os.listdir(folder) if name.endswith((".dist-info", ".egg-link")))
            if _is_below(folder, str(config.rootpath)):
                yield folder, sorted(_importable_in(folder))
        plugins = {str(getattr(plugin, "__file__", "") or "") for plugin in config.pluginmanager.get_plugins()}
        root = str(config.rootpath)
        own = [name for name in plugins if name.startswith(root) and not self._is_library(name)]
        yield sorted(self._contents.input(name)[:2] for name in reached_from(own, (root,), self._is_library).files)
        yield config.getoption("pythonwarnings", None), list(config.getini("filterwarnings"))
        yield config.get_verbosity() > 0, config.getoption("promptfmt"), sorted(self._folders.settings.repeat)
        yield sorted((name, value) for name, value in os.environ.items() if name.startswith(_ENVIRONMENT))
        baseline = self._outputs.baseline
        yield None if baseline is None else self._contents.input(str(baseline))[:2], self._outputs.baseline_update

    def _files_named_by(self, settings: Settings) -> Iterator[object]:
        """Yield the contents of files that settings name; `OTHER` where nobody can say what they are."""
        for file in settings.checks:
            reached = reached_from([str(file)], (str(settings.rootdir),), self._is_library)
            yield sorted(self._contents.input(name)[:2] for name in reached.files)
            yield OTHER if reached.asks else None
        for profile in settings.profiles:
            tokenizer = profile.tokenizer
            if tokenizer is None or profile.is_archetype:
                continue
            place = Path(tokenizer)
            if place.is_dir():
                yield sorted(self._contents.input(f"{place}/{name}")[:2] for name in os.listdir(place))
            else:
                yield self._contents.input(str(place))[:2] if place.exists() else OTHER


class FileTrace(Trace):
    """What items of a worker open, apart from Python's own files, those of libraries and of this package."""

    def __init__(self, rootdir: Path) -> None:
        super().__init__(lambda path: _is_library(path, rootdir) or path.startswith(_PACKAGE))


def _name_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[2]


def _line_of(task: Task) -> tuple[int | None, int | None]:
    position = task.position("task")
    return (position.line, position.column) if position is not None else (None, None)


def _search_path() -> list[str]:
    return [folder for folder in sys.path if folder and os.path.isdir(folder)]


def _is_library(path: str, rootdir: Path) -> bool:
    """Return whether a file belongs to an installed distribution or to Python, whose version speaks for it."""
    if path.startswith(f"{rootdir}{os.sep}"):
        inside = path[len(str(rootdir)) :]
        return any(f"{os.sep}{name}{os.sep}" in inside for name in _LIBRARIES)
    return any(f"{os.sep}{name}{os.sep}" in path for name in _LIBRARIES) or path.startswith(
        (sys.prefix, sys.base_prefix)
    )


def _is_below(path: str, rootdir: str) -> bool:
    return path == rootdir or path.startswith(f"{rootdir}{os.sep}")


def _importable_in(folder: str) -> Iterator[str]:
    """Yield the names that an import finds in a folder before it looks further: modules and packages."""
    with suppress(OSError):
        for name in os.listdir(folder):
            if name.endswith(".py") or os.path.isfile(f"{folder}/{name}/__init__.py"):
                yield name


def _is_linked(path: str, rootdir: str) -> bool:
    """Return whether a file, or a folder on the way to it from the rootdir, is a link."""
    if not _is_below(path, rootdir):
        return False
    return os.path.realpath(path) != os.path.realpath(rootdir) + path[len(rootdir) :]


def _texts_and_modules(config: Mapping[Any, Any]) -> tuple[set[str], set[str]]:
    """Return the texts of a config that may be paths, and the files of its functions."""
    modules = {str(leaf.file) for leaf in _leaves(config) if isinstance(leaf, FunctionRef)}
    leaves = _leaves([value for key, value in config.items() if key not in _PROMPT_KEYS])
    return {leaf for leaf in leaves if isinstance(leaf, str) and _may_be_path(leaf)}, modules


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


def _plain(value: object) -> object:
    """Return a value of settings so that equal ones, and no others, look alike."""
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, [(each.name, _plain(getattr(value, each.name))) for each in fields(value)]
    if isinstance(value, Mapping):
        return sorted((str(key), repr(_plain(item))) for key, item in value.items())
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(repr(_plain(each)) for each in value)
    return str(value) if isinstance(value, Path | datetime) else value
