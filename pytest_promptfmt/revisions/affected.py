"""Task files whose prompts may have changed: those that are made of a changed file, or that code of one may read.

Rendering is deterministic, so no other file is rendered. What a file is made of is found in its text, without parsing
it: thousands of files are searched in less time than a hundred are read. The text may name more than the file is made
of, never less.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.inputs.code_inputs import ModuleFacts
from pytest_promptfmt.settings.file import FILE_NAMES
from pytest_promptfmt.tasks import names_in

_SETTINGS: Final = frozenset(
    {*FILE_NAMES, "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "pyproject.toml", "tox.ini", "setup.cfg"}
)
_RULES: Final = frozenset({*_SETTINGS, "conftest.py", "sitecustomize.py"})
"""Files that may change how every task is rendered."""

IDLE_SUFFIXES: Final = (".md", ".rst", ".png", ".svg", ".sh", ".gitignore", ".gitattributes")
"""Files that no prompt is made of, unless a task or setting names them."""

TASK_SUFFIXES: Final = (".yaml", ".yml")
_INCLUDED: Final = re.compile(r"[^.]*|.*\.(?:ya?ml|inc|base|te?mpl|template|j2|jinja2?)")
"""The names of files that tasks may include, and that may include others."""

_NAMING: Final = re.compile(rb"""(?:include|class)["']?\s*:([^\n]*(?:\n[ \t]*-[^\n]*)*)|!function\s+([^\n]*)""")
"""The parts of YAML that name other files."""

_NAME: Final = re.compile(rb"""[^\s,\[\]{}"']+""")
_WORD: Final = re.compile(rb"\w+(?:[.-]+\w+)*")
"""A name, or a part of a path, in any text."""

_ESCAPED: Final = re.compile(rb"\\(?:[xuU]|\r?\n)|\A(?:\xff\xfe|\xfe\xff)")
_ELSEWHERE: Final = re.compile(rb"\s*[*&|>]")
"""YAML in which a name may be written in another way, or in another place."""

_ANYTHING: Final = ""
"""The path that stands for any file: a file that is made of it may be made of each one."""

_ANY_PATH: Final = re.compile(
    rb"""(?:^|[\s"'\[\],])(?:[^\s"'\[\],(){}|^$\\*]*\*[^\s"'\[\],(){}|^$\\]*|\.\.?/?)(?=["'\s,\[\]]|$)"""
)
"""A pattern of paths, or the folder of a file or above it."""

Pairs = list[tuple[Any, str]]
"""Kinds and names: of a task, a group or tags."""


class Affected:
    """The task files of one side that the files of it that differ may affect.

    `texts` are the contents of all files that may define tasks, be included or imported, `earlier` those of the other
    side that differ. `changed` are the paths that differ. `tasks` are the files that may define tasks, `named` the
    kinds and names that their texts show, `names` those that have to be rendered; `partly` are groups among them of
    which only the members in these files have to be. `modules` are the Python files that differ or may import one that
    does.
    """

    def __init__(self, texts: Mapping[str, bytes], changed: Set[str], earlier: Mapping[str, bytes]) -> None:
        self._texts = texts
        self._facts = cache(lambda name: ModuleFacts(texts[name]))
        self.tasks = frozenset(name for name in texts if name.endswith(TASK_SUFFIXES) and not is_setting(name))
        self.named, self.earlier = (
            {name: [*names_in(text)] for name, text in side.items() if not name.endswith(".py")}
            for side in (texts, earlier)
        )
        self._parts: dict[str, set[str]] = defaultdict(set)
        for name, text in (*texts.items(), *earlier.items()):
            self._add_parts(name, text)
        self._whole: dict[str, set[str]] = defaultdict(set)
        for name, parts in self._parts.items():
            for part in parts:
                self._whole[part].add(name)
        self._labelled: dict[str, set[str]] = defaultdict(set)
        for name, pairs in self.named.items():
            for kind, label in pairs:
                is_shared = kind != "task" and name in self._whole
                self._labelled[label] |= _closure({name}, self._whole) if is_shared else {name}
        groups = (name for name in self.tasks if "task" not in dict(self.named[name]))
        self._groups = {name: self._labelled.keys() & _words(texts[name]) for name in groups}
        reached = self._reached_from(changed)
        self.modules = {name for name in reached if name.endswith(".py")}
        self.partly: set[str] = set()
        is_rule = any(posixpath.basename(name) in _RULES for name in changed) or self._is_named_by_settings(changed)
        self.names = {*self.tasks} if is_rule else self._found(reached, changed, earlier)

    def _add_parts(self, name: str, text: bytes) -> None:
        if name.endswith(".py"):
            return
        found = _NAMING.findall(text)
        is_escaped = _ESCAPED.search(b"".join(chain(*found)) if self.named.get(name) else text)
        if is_escaped or any(_ELSEWHERE.match(written) for written, _ in found):
            self._parts[name].add(_ANYTHING)
        for each in found:
            self._parts[name] |= _paths_in(_folder(name), *each)

    def made_of(self, names: Iterable[str]) -> set[str]:
        """Return these files and all that they are made of."""
        return _closure(names, self._parts)

    def needed(self, names: Iterable[str]) -> set[str]:
        """Return which of these files rendering may need: not other tasks, nor code, docs and includes of theirs."""
        members = {name: [*map(self._labelled.__getitem__, labels)] for name, labels in self._groups.items()}
        groups = {name: self._parts.get(name, set()).union(*found) for name, found in members.items()}
        made_of = _closure({*self.names, *self.earlier}, {**self._parts, **groups})
        idle = {_folder(name) for name in self.tasks if self.named[name]}
        idle -= {str(above) for name in made_of & self.tasks for above in PurePosixPath(name).parents}
        has_code = any(name.endswith(".py") for name in made_of & self._texts.keys())
        words = _words(b"\n".join(self._texts[name] for name in self._texts if name in made_of or is_setting(name)))

        def is_needed(name: str) -> bool:
            if name in made_of or (name in self.tasks and self.named[name]):
                return name in made_of
            path = PurePosixPath(name)
            is_of_others = _folder(name) in idle and path.suffix in ("", ".py", *TASK_SUFFIXES, *IDLE_SUFFIXES)
            return has_code or not is_of_others or not words.isdisjoint({path.name, path.stem})

        return {*filter(is_needed, names)}

    def may_read_tasks(self) -> bool:
        """Return whether code next to the functions of the tasks may read files of tasks."""
        made_of = self.made_of({*self.names, *self.earlier})
        folders = {_folder(name) for name in made_of if name.endswith(".py") and name in self._texts}
        beside = (name for name in self._texts if name.endswith(".py") and _folder(name) in folders)
        return any(b".y" in self._texts[name] and self._facts(name).opens for name in beside)

    # -- from changed files to tasks -----------------------------------------------------------------------------------

    def _reached_from(self, changed: Set[str]) -> set[str]:
        """Return the changed files, and those that are made of them, import them or may read them."""
        data = _Data(n for n in changed if n not in self._whole and not self.named.get(n) and not self.earlier.get(n))
        reading = {name for name, text in self._texts.items() if data and data.may_be_of(name, text)}
        found = {name for name in reading if not name.endswith(".py") or self._facts(name).opens}
        waiting = {*changed, _ANYTHING, *found}
        while waiting:
            found |= waiting
            waiting = (_closure(waiting, self._whole) | self._importing(waiting)) - found
        return found

    def _importing(self, names: Iterable[str]) -> set[str]:
        """Return the modules that may import one of these, by the ends of paths, so there may be too many."""
        modules = [name for name in names if name.endswith(".py")]
        if not modules:
            return set()
        ends = {"/".join(name.split("/")[start:]) for name in modules for start in range(name.count("/") + 1)}
        packages = tuple(name.removesuffix("__init__.py") for name in modules if name.endswith("__init__.py"))
        stems = {PurePosixPath(name.removesuffix("/__init__.py")).stem for name in modules}
        named = re.compile(b"|".join(re.escape(os.fsencode(stem)) for stem in stems))
        python = ((name, text) for name, text in self._texts.items() if name.endswith(".py"))
        others = [name for name, text in python if name.startswith(packages) or named.search(text)]
        return {name for name in others if not ends.isdisjoint(_ends_of(self._facts(name), name))}

    def _found(self, reached: Set[str], changed: Set[str], earlier: Mapping[str, bytes]) -> set[str]:
        """Return the task files among those that were reached, those of the same names, and the groups around them."""
        touched = {name for name in changed if name.endswith(TASK_SUFFIXES)}
        sides = [side[name] for side in (self._texts, earlier) for name in touched & side.keys()]
        words = frozenset[str]().union(*map(_words, sides))
        # A name that two files define is a mistake to report, so these are rendered together.
        names = (reached & self.tasks) | {name for name, task in single_tasks(self.named).items() if task in words}
        around = self._groups_around(names, names | touched)
        alone = single_tasks(self.named).keys() | single_tasks(self.earlier).keys()
        self.partly = around - self._groups_around(names, (names | touched) - alone)
        return {*names, *around}

    def _groups_around(self, names: Set[str], listed: Iterable[str]) -> set[str]:
        """Return the groups, except `names`, that list the tasks or groups of these, directly or in other groups."""
        found: set[str] = set()
        labels = self._labels_of({*listed})
        while labels:
            others = self._groups.keys() - found - names
            reached = {name for name in others if not labels.isdisjoint(self._groups[name])}
            found |= reached
            labels = self._labels_of(reached)
        return found

    def _labels_of(self, names: Set[str]) -> set[str]:
        """Return the names by which a group may list these files: some are written in a file that they include."""
        sides = (self.named, self.earlier)
        pairs = ((name, *pair) for name in self.made_of(names) for side in sides for pair in side.get(name, ()))
        return {label for name, kind, label in pairs if kind != "task" or name in names}

    def _is_named_by_settings(self, changed: Iterable[str]) -> bool:
        """Return whether a settings file mentions a changed file, or a folder above it that holds no tasks."""
        others = [PurePosixPath(name) for name in changed if not self.named.get(name)]
        if not others:
            return False
        folders = {_folder(name) for name in self.tasks}  # thousands of files are in some hundred of them
        with_tasks = {above for folder in folders for above in (PurePosixPath(folder), *PurePosixPath(folder).parents)}
        named = {place for other in others for place in (other, other.with_suffix(""), *other.parents)} - with_tasks
        for name in filter(is_setting, self._texts):
            text = self._texts[name].decode("utf-8", "replace")
            shown = [os.path.relpath(place, _folder(name) or ".") for place in named]
            if any(each in text or each.replace("/", ".") in text for each in shown):
                return True
        return False


def single_tasks(named: Mapping[str, Pairs]) -> dict[str, str]:
    """Return the files that define one task each, with its name as their text shows it."""
    tasks = {name: dict(pairs).get("task", "") for name, pairs in named.items() if name.endswith(TASK_SUFFIXES)}
    return {name: task for name, task in tasks.items() if task}


def _closure(names: Iterable[str], edges: Mapping[str, Set[str]]) -> set[str]:
    """Return these names, and those that edges lead to from them."""
    found: set[str] = set()
    waiting = {*names}
    while waiting:
        found |= waiting
        waiting = set[str]().union(*(edges.get(name, ()) for name in waiting)) - found
    return found


@lru_cache(maxsize=1024)  # many files of a folder include the same one
def _paths_in(folder: str, written: bytes, function: bytes) -> frozenset[str]:
    """Return the paths that an include, a class or a function may mean: a module may be below any folder above."""
    value = written.decode("utf-8", "replace").strip(" \t\r\"'")
    names = [each.decode("utf-8", "replace") for each in _NAME.findall(written + function)]
    paths = {posixpath.normpath(posixpath.join(folder, name)) for name in (value, *names)}
    for name in names:
        module = name.partition(":")[0] if ":" in name else name.rpartition(".")[0]
        places = [folder, *map(str, PurePosixPath(folder).parents)] if "." in module or ":" in name else [folder]
        path = module if "/" in module else module.replace(".", "/")
        paths |= {posixpath.normpath(posixpath.join(place, f"{path}.py")) for place in places if path}
    return frozenset(paths)


def _words(text: bytes) -> frozenset[str]:
    return frozenset(word.decode("utf-8", "replace") for word in _WORD.findall(text))


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


class _Data:
    """Changed files other than tasks, their includes and code: docs, prompt libraries and the like."""

    def __init__(self, names: Iterable[str]) -> None:
        self._files = [PurePosixPath(name) for name in names if not name.endswith((".py", *IDLE_SUFFIXES))]

    def __bool__(self) -> bool:
        return bool(self._files)

    def may_be_of(self, name: str, content: bytes) -> bool:
        """Return whether a file may read one of these: it is next to it or below it, or its name is in the content."""
        path = PurePosixPath(name)
        is_code = name.endswith(".py")
        words = frozenset() if is_code else _words(content)
        for file in self._files:
            parts = [part for part in (*file.parts, file.stem) if part not in path.parent.parts]
            if (
                (is_code and file.is_relative_to(path.parent))
                or (file.parent == path.parent and file.name.startswith(f"{path.stem}."))
                or any(os.fsencode(part) in content if is_code else part in words for part in parts)
            ):
                return True
        return not is_code and _ANY_PATH.search(content) is not None


# -- kinds of files ----------------------------------------------------------------------------------------------------


def is_setting(name: str) -> bool:
    """Return whether a file is one that settings are written in."""
    return posixpath.basename(name) in _SETTINGS


def is_searched(name: str) -> bool:
    """Return whether a file may define tasks, be included or imported, or hold settings."""
    return name.endswith(".py") or _INCLUDED.fullmatch(posixpath.basename(name)) is not None or is_setting(name)


def bytes_of(path: Path) -> bytes:
    """Return the content of a file of a tree, empty for one that is missing or may not be opened."""
    try:
        return gate.read_bytes(path) if path.is_file() else b""
    except OSError:
        return b""


def _ends_of(module: ModuleFacts, name: str) -> Iterator[str]:
    """Yield how the paths of the files that the imports of a module may run can end."""
    folder = name.split("/")[:-1]
    for level, parts in module.imports:
        whole = [*(folder[: len(folder) - level + 1] if level else []), *parts]
        for end in range(1, len(whole) + 1):
            yield "/".join(whole[:end]) + ".py"
            yield "/".join((*whole[:end], "__init__.py"))
