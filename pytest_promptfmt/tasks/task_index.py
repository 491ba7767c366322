"""The names of tasks, groups and tags below folders, as lm-eval 0.4.13's index finds them.

The index only answers lookups. A file that cannot be read is left out, and its error kept: collecting that file
reports it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import Position, SourceError
from pytest_promptfmt.tasks.harness import Harness, forget_places, harness_around, installed_harness
from pytest_promptfmt.tasks.recognition import kind_of, names_its_sets, read_candidate, read_if_task
from pytest_promptfmt.tasks.yaml_file import YamlFile, resolved

_SKIPPED: Final = frozenset({"__pycache__", ".ipynb_checkpoints", "__prompts__"})
"""Folders in which there are no tasks: the last holds our snapshots."""


@dataclass(frozen=True)
class IndexEntry:
    """A name of the index, and the file at `path` that defines it, made of `parts`, with the tags that this has.

    A tag has no file, but the names of the tasks that carry it, sorted.
    """

    name: str
    kind: Literal["class", "group", "task", "tag"]
    path: Path | None = None
    parts: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    tagged: tuple[str, ...] = ()

    @cached_property
    def file(self) -> YamlFile | None:
        """Return the file; None for a tag, and for a file that cannot be read any more."""
        if self.path is None:
            return None
        try:
            return read_if_task(self.path)
        except (SourceError, OSError):
            return None

    @property
    def position(self) -> Position | None:
        """Return where the name is written; None for a tag."""
        if self.file is None:
            return None
        key = "group" if self.kind == "group" else "task"
        return self.file.locate((key,)) or Position(self.file.path)


class KnownEntries(Protocol):
    """The entries of files as earlier runs found them."""

    def get(self, path: Path) -> tuple[IndexEntry | None] | None:
        """Return the entry of a file (None: it has none) as a tuple of one; None if unknown."""

    def put(self, path: Path, entry: IndexEntry | None, paths: Iterable[str]) -> None:
        """Keep what was found in a file; what is at these paths makes it what it is."""

    def below(self, folder: Path) -> Sequence[IndexEntry] | None:
        """Return the entries of all files below a folder, sorted by path; None where one may be another now."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A definition that lm-eval 0.4.13 drops because `first` has the same name in the same folder tree."""

    name: str
    first: IndexEntry
    dropped: IndexEntry


class TaskIndex:
    """The names below some folders; read when first asked, each file parsed once per process.

    Within one folder tree the first file (sorted by path) keeps a name; a folder added later wins over earlier ones.
    """

    def __init__(self, folders: Iterable[Path] = (), known: KnownEntries | None = None) -> None:
        self._known = known
        self.asked: set[tuple[str, str]] = set()
        self._folders: list[Path] = []
        self._read = 0
        self._entries: list[IndexEntry] = []
        self._names: dict[str, IndexEntry] = {}
        self._dropped: dict[Path, list[Duplicate]] = {}
        self._nameless: set[str] = set()
        self._errors: dict[Path, SourceError] = {}
        self._elsewhere: dict[str, IndexEntry | None] = {}
        forget_places()
        for folder in folders:
            self.add(folder)

    def add(self, folder: Path) -> None:
        """Add a folder; nothing happens when it lies below one that is there already."""
        real = resolved(folder)
        if not self.covers(real):
            self._folders.append(real)

    def covers(self, path: Path) -> bool:
        """Return whether the resolved path lies below a folder of the index."""
        return any(path.is_relative_to(folder) for folder in self._folders)

    @property
    def roots(self) -> Sequence[Path]:
        """Return the folders of the index."""
        return self._folders

    def state(self) -> tuple[object, ...]:
        """Return all that the index may answer, except from the files of the `outer` harness; its `repr` is stable."""
        self.read()
        names = sorted((name, _in_json(entry), entry.tags) for name, entry in self._names.items())
        dropped = (each for found in self._dropped.values() for each in found)
        duplicates = [(each.name, _in_json(each.first), _in_json(each.dropped)) for each in dropped]
        errors = sorted(map(str, self._errors))
        harness = self._harness
        return names, duplicates, errors, None if harness is None else harness.description

    @property
    def checkout(self) -> Harness | None:
        """Return the harness if its files may change without its release."""
        harness = self._harness
        return harness if harness is not None and harness.is_checkout else None

    @property
    def outer(self) -> Harness | None:
        """Return the harness if its tasks may change, and are not below the folders: they define more names."""
        checkout = self.checkout
        return checkout if checkout is not None and not self.covers(checkout.tasks) else None

    @property
    def entries(self) -> Sequence[IndexEntry]:
        """Return the entries of all files, those of each folder sorted by path; they may share names."""
        self.read()
        return self._entries

    def places(self) -> Iterator[str]:
        """Yield the files that the index reads, and the folders that it looks into, these with a slash at the end."""
        self.read()
        for entry in self._entries:
            yield from entry.parts
        yield from self._nameless
        for folder in self._folders:
            for root, folders, files in _walk(folder):
                yield from (f"{root}/{name}" for name in files)
                yield f"{root}/"
                yield from (f"{root}/{name}/" for name in folders)  # a link to one is not gone into
        if self.checkout is not None:
            yield from self.checkout.places(with_tasks=self.outer is not None)

    def find(self, name: str) -> IndexEntry | None:
        """Return the entry of a task, group or tag, None when no file defines it."""
        self.asked.add(("find", name))
        self.read()
        return self._names.get(name)

    def member(self, name: str) -> IndexEntry | None:
        """Return the entry of a name that a group lists: of these folders, else of the harness; None if unknown."""
        self.asked.add(("member", name))
        return self._member(name)

    def _member(self, name: str) -> IndexEntry | None:
        self.read()
        if name not in self._names and name not in self._elsewhere:
            self._elsewhere[name] = self._of_harness(name)
        return self._names.get(name) or self._elsewhere.get(name)

    @cached_property
    def _harness(self) -> Harness | None:
        around = (harness_around(folder) for folder in self._folders)
        return next(filter(None, around), None) or installed_harness()

    @property
    def harness(self) -> Harness | None:
        """Return the harness that the files of the first folder belong to, else the installed one; None without one."""
        self.asked.add(("harness", ""))
        return self._harness

    def _of_harness(self, name: str) -> IndexEntry | None:
        harness = self._harness
        if harness is None:
            return None
        found = harness.defining(name) if not self.covers(harness.tasks) else None
        if found is None:
            registered = harness.registrations("task").get(name)
            return IndexEntry(name, "class", registered.file, (str(registered.file),)) if registered else None
        kind, paths = found
        entries: list[IndexEntry] = []
        with gate.also_reading(harness.folder):
            for path in paths:
                try:
                    file = read_if_task(path)
                except (SourceError, OSError):
                    continue
                entry = entry_of(file) if file is not None else None
                if entry is not None and (name in entry.tags if kind == "tag" else entry.name == name):
                    entries.append(entry)
        if kind != "tag":
            return next(iter(entries), None)
        self._elsewhere |= {entry.name: entry for entry in entries if entry.name not in self._elsewhere}
        return IndexEntry(name, "tag", tagged=tuple(sorted({entry.name for entry in entries}))) if entries else None

    @property
    def names(self) -> Mapping[str, IndexEntry]:
        """Return every name with its entry."""
        self.asked.add(("names", ""))
        self.read()
        return self._names

    def duplicates_in(self, path: Path) -> tuple[Duplicate, ...]:
        """Return what lm-eval drops of the file at a resolved path, because of an earlier definition of the name."""
        self.asked.add(("duplicates", str(path)))
        self.read()
        return tuple(self._dropped.get(path, ()))

    def answer(self, question: str, about: str) -> Any:
        """Return, in JSON's types, the answer to a question of `asked`: with another one, the outcome may be another.

        What is in the files that an answer names is not part of it.
        """
        self.read()
        if question == "find":
            return _in_json(self._names.get(about))
        if question == "member":
            entry, harness = self._member(about), self._harness
            if entry is None or harness is None or about in self._names:
                return _in_json(entry)
            return [_in_json(entry), harness.digest(entry.parts)]
        if question == "harness":
            return None if self._harness is None else self._harness.description
        if question == "duplicates":
            return [[each.name, _in_json(each.first)] for each in self._dropped.get(Path(about), ())]
        return sorted(map(str, self._names))

    def files_in(self, question: str, about: str) -> tuple[str, ...]:
        """Return the files that an answer may have been read from."""
        entry = self._member(about) if question in ("find", "member") else None
        return entry.parts if entry is not None and about in self._names else ()  # others are part of the answer

    @property
    def errors(self) -> Mapping[Path, SourceError]:
        """Return the files that look like tasks and cannot be read, with the reason."""
        self.read()
        return self._errors

    def read(self) -> None:
        """Read the files below the folders that were added since the last call."""
        while self._read < len(self._folders):
            folder = self._folders[self._read]
            self._read += 1
            self._names |= self._scan(folder)

    def _scan(self, folder: Path) -> dict[str, IndexEntry]:
        names: dict[str, IndexEntry] = {}
        tagged: dict[str, set[str]] = {}
        known = self._known.below(folder) if self._known is not None else None
        found = known if known is not None else [*filter(None, map(self._entry, yaml_files(folder)))]
        self._entries += found
        for entry in found:
            if entry.name in names or entry.name in tagged:
                first = names.get(entry.name) or IndexEntry(entry.name, "tag")
                if entry.path is not None:
                    self._dropped.setdefault(entry.path, []).append(Duplicate(entry.name, first, entry))
                continue
            names[entry.name] = entry
            if entry.kind != "group":
                for tag in entry.tags:
                    if tag not in names:
                        tagged.setdefault(tag, set()).add(entry.name)
        return names | {tag: IndexEntry(tag, "tag", tagged=tuple(sorted(tasks))) for tag, tasks in tagged.items()}

    def _entry(self, path: Path) -> IndexEntry | None:
        known = self._known.get(path) if self._known is not None else None
        if known is not None:
            return known[0]
        file, is_task = None, False
        try:
            file, is_task = read_candidate(path)
        except SourceError as error:
            self._errors[path] = error
        except OSError:
            pass  # a lookup ignores unreadable files
        entry = entry_of(file) if file is not None and is_task else None
        parts = _parts_of(file) if file is not None else ()
        if entry is None and len(parts) > 1:  # an include may come to name a task
            self._nameless.update(parts)
        elif self._known is not None and path not in self._errors:
            self._known.put(path, entry, [str(path), *parts])
        return entry


def entry_of(file: YamlFile) -> IndexEntry | None:
    """Return the entry that a file makes: None where lm-eval 0.4.13 finds no usable name in it."""
    kind = kind_of(file.config)
    if kind is None:
        return None
    name = file.config.get("group" if kind == "group" else "task")
    if not isinstance(name, str):
        return None
    made = IndexEntry(name, kind, file.path, _parts_of(file), tuple(tags_of(file.config)))
    made.__dict__["file"] = file  # which is read already
    return made


def _parts_of(file: YamlFile) -> tuple[str, ...]:
    """Return the files that a file is made of, each include also as it is named: it may be a link."""
    return tuple(dict.fromkeys([*(str(part.path) for part in file.parts), *map(os.path.normpath, file.named)]))


def _in_json(entry: IndexEntry | None) -> Any:
    if entry is None:
        return None
    return [entry.kind, str(entry.path or ""), sorted(set(entry.parts)), list(entry.tagged)]


def tags_of(config: Mapping[Any, Any]) -> list[str]:
    """Return the tags of a task, whether written as text or as a list; up to lm-eval 0.4.3 the key was `group`."""
    keys = ("tag", "group") if names_its_sets(config) else ("tag",)
    lists = (config[key] if isinstance(config[key], list) else [config[key]] for key in keys if key in config)
    return [tag for tags in lists for tag in tags if isinstance(tag, str) and tag]


def _walk(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _SKIPPED]
        yield root, folders, [name for name in files if name.endswith(".yaml")]


def yaml_files(folder: Path) -> Iterator[Path]:
    """Yield every `*.yaml` below a folder, sorted by path, as lm-eval 0.4.13 visits them."""
    found = [f"{root}/{name}" for root, _, files in _walk(folder) for name in files]
    yield from (Path(path) for path in sorted(path.replace(os.sep, "/") for path in found))
