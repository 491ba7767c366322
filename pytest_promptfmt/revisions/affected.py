"""Task files whose prompts may have changed: those that are made of a changed file, or that code of one may read.

Rendering is deterministic, so no other file is rendered. Files that may depend on a changed one are found by the words
in them, and only these are read exactly.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path, PurePosixPath
from typing import Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.task import FunctionRef, leaves
from pytest_promptfmt.core.yaml_parser import parse_file
from pytest_promptfmt.inputs.code_inputs import ModuleFacts
from pytest_promptfmt.revisions.code_changes import class_refs, places_of
from pytest_promptfmt.settings.file import FILE_NAMES
from pytest_promptfmt.tasks import kind_of, names_in, read_if_task, tags_of

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

_PATH: Final = re.compile(r"[^\s{}]{1,1000}")
"""A text that may be a path, a pattern for paths, or a name with a path in it."""

_ESCAPED: Final = re.compile(rb"\\(?:[xuU]|\r?\n)|^(?:\xff\xfe|\xfe\xff)")
"""YAML in which a name may be written in another way."""

_NAMING: Final = re.compile(rb"""(?:include|class)["']?\s*:\s*[^\n]*(?:\n[ \t]*-[^\n]*)*|!function\s+[^\n]*""")
"""The parts of YAML that name other files."""

_ANY_PATH: Final = re.compile(rb"\*|(?<![\w.])\.\.?(?![\w.])")
"""A pattern of paths, or the folder of a file or above it."""


@dataclass(frozen=True, slots=True)
class TaskSource:
    """The inputs of a YAML file of tasks; `name` is its task, "" for a group or class.

    `parts` are the files it is merged from, `modules` those of its functions, all below the tree, with slashes;
    `texts` are those in it that may be names or paths, `labels` the names by which a group may list it.
    """

    name: str
    parts: frozenset[str]
    modules: frozenset[str]
    texts: frozenset[str]
    labels: frozenset[str]

    @property
    def made_of(self) -> frozenset[str]:
        """Return the files of the task."""
        return self.parts | self.modules


class Affected:
    """The task files of one side that the files of it that differ may affect.

    `texts` are the contents of all files that may define tasks, be included or imported; `read` returns the sources of
    some of them. `changed` are the paths that differ, `earlier` the sources of the other side that do. `sources` are
    the files that were read, `names` those that have to be rendered, None for all; `partly` are groups among them of
    which only the members in these files have to be. `modules` are the Python files that differ or may import one that
    does.
    """

    def __init__(
        self,
        texts: Mapping[str, bytes],
        read: Callable[[Collection[str]], Mapping[str, TaskSource]],
        changed: Collection[str],
        earlier: Mapping[str, TaskSource],
    ) -> None:
        self._texts = texts
        self._read_from = read
        self._facts = cache(lambda name: ModuleFacts(texts[name]))
        named = {name: [*names_in(text)] for name, text in texts.items() if name.endswith(TASK_SUFFIXES)}
        self.named = {name: pairs for name, pairs in named.items() if pairs}
        self.sources: dict[str, TaskSource] = {}
        self._read({name for name in named if name in changed or not named[name]})
        self.modules = {name for name in changed if name.endswith(".py")}
        self.names: set[str] | None = None
        self.partly: set[str] = set()
        """Groups of which only members in other files need rendering."""
        if any(PurePosixPath(name).name in _RULES for name in changed) or self._is_named_by_settings(changed):
            self._spread_to_modules()
            self._read(named)
        else:
            self._find(changed, earlier)

    @property
    def single_tasks(self) -> dict[str, str]:
        """Return the files that define one task each, with its name as their text shows it."""
        tasks = {name: next((each for kind, each in pairs if kind == "task"), "") for name, pairs in self.named.items()}
        return {name: task for name, task in tasks.items() if task}

    def members_of(self, sources: Mapping[str, TaskSource]) -> frozenset[str]:
        """Return these files and those that they are made of, or take members of groups from, directly or not."""
        found: set[str] = set()
        waiting = {*sources}
        while waiting:
            self._read(waiting & self.named.keys() - sources.keys())
            found |= waiting
            made_of = [each for name in waiting if (each := sources.get(name) or self.sources.get(name)) is not None]
            texts = {text for source in made_of if not source.name for text in source.texts}
            waiting = set[str]().union(
                *(each.parts for each in made_of), *(self._labelled[text] for text in texts if text in self._labelled)
            )
            waiting -= found
        return frozenset(found)

    @cached_property
    def _labelled(self) -> Mapping[str, set[str]]:
        """Return the files in which each name is that of a task or group."""
        labelled: dict[str, set[str]] = {}
        for name, pairs in self.named.items():
            for _, label in pairs:
                labelled.setdefault(label, set()).add(name)
        return labelled

    def may_read_tasks(self, sources: Iterable[TaskSource]) -> bool:
        """Return whether code next to the functions of these may read files of tasks."""
        folders = {_folder(name) for source in sources for name in source.modules}
        beside = (name for name in self._texts if name.endswith(".py") and _folder(name) in folders)
        return any(b".y" in self._texts[name] and self._facts(name).opens for name in beside)

    def _read(self, names: Iterable[str]) -> None:
        self.sources |= self._read_from({*names} - self.sources.keys())

    # -- from changed files to tasks -----------------------------------------------------------------------------------

    def _find(self, changed: Collection[str], earlier: Mapping[str, TaskSource]) -> None:
        self._read(self._mentioning(changed) & self.named.keys())
        parts = {part for source in (*self.sources.values(), *earlier.values()) for part in source.parts}
        data = _Data(name for name in changed if name not in parts)
        if data:
            readers = {
                name for name, text in self._texts.items() if name.endswith(".py") and data.may_be_of(name, text)
            }
            self.modules |= {name for name in readers if self._facts(name).opens}
        self._spread_to_modules()
        differing = self.modules | {*changed}
        touched = [side[name] for name in changed for side in (self.sources, earlier) if name in side]
        words = frozenset[str]().union(*(source.texts | source.labels for source in touched))
        # A name that two files define is a mistake to report, so these are rendered together.
        self._read(
            name for name, pairs in self.named.items() if any(kind == "task" and each in words for kind, each in pairs)
        )
        self._read(self._mentioning(differing - {*changed}) & self.named.keys())
        self._read(name for name in self.named if data and data.may_be_of(name, self._texts[name]))
        names = {
            name
            for name, source in self.sources.items()
            if not differing.isdisjoint({name, *source.parts, *source.modules})
            or source.name in words
            or (data and data.may_be_of(name, os.fsencode("\n".join(source.texts))))
        }
        beginnings = [*touched, *map(self.sources.__getitem__, names)]
        reached = self._groups_around(names, beginnings)
        self.partly = reached - self._groups_around(names, [each for each in beginnings if not each.name])
        self.names = names | reached

    def _groups_around(self, names: Collection[str], sources: Iterable[TaskSource]) -> set[str]:
        """Return the groups, except `names`, that list these, directly or in other groups."""
        labels = {label for source in sources for label in source.labels}
        may_be_groups = [name for name, pairs in self.named.items() if "task" not in dict(pairs)]
        found: set[str] = set()
        while labels:
            listed = re.compile(b"|".join(re.escape(label.encode()) for label in labels))
            self._read(n for n in may_be_groups if listed.search(self._texts[n]) or _is_escaped(self._texts[n]))
            groups = {name for name, source in self.sources.items() if not source.name} - found
            reached = {name for name in groups.difference(names) if not labels.isdisjoint(self.sources[name].texts)}
            found |= reached
            labels = {label for name in reached for label in self.sources[name].labels}
        return found

    def _spread_to_modules(self) -> None:
        """Add the modules that may import one of `modules`, by the ends of paths, so there may be too many."""
        waiting = {*self.modules}
        while waiting:
            ends = {"/".join(name.split("/")[start:]) for name in waiting for start in range(name.count("/") + 1)}
            near = _Nearness(waiting)
            others = [name for name in self._texts if name.endswith(".py") and name not in self.modules]
            importing = [name for name in others if near.is_named_in(name, self._texts[name], anywhere=True)]
            waiting = {name for name in importing if not ends.isdisjoint(_ends_of(self._facts(name), name))}
            self.modules |= waiting

    def _mentioning(self, differing: Collection[str]) -> set[str]:
        """Return the files that may include one of these, or use a function of it, directly or through others."""
        found: set[str] = set()
        waiting = {*differing}
        while waiting:
            found |= waiting
            near = _Nearness(waiting)
            waiting = {
                name for name, text in self._naming.items() if name not in found and near.is_named_in(name, text)
            }
        return found

    @cached_property
    def _naming(self) -> Mapping[str, bytes]:
        """Return the part of each file that may include others, or have functions, which names these."""
        found = {name: _NAMING.findall(text) for name, text in self._texts.items() if not name.endswith(".py")}
        return {name: b"\n".join(parts) for name, parts in found.items() if parts}

    def _is_named_by_settings(self, changed: Iterable[str]) -> bool:
        """Return whether a settings file mentions a changed file, or a folder above it that holds no tasks."""
        others = [PurePosixPath(name) for name in changed if name not in self.named]
        if not others:
            return False
        folders = {_folder(name) for name in self.named}  # thousands of files are in some hundred of them
        with_tasks = {above for folder in folders for above in (PurePosixPath(folder), *PurePosixPath(folder).parents)}
        named = {place for other in others for place in (other, other.with_suffix(""), *other.parents)} - with_tasks
        for name in filter(is_setting, self._texts):
            text = self._texts[name].decode("utf-8", "replace")
            shown = [os.path.relpath(place, _folder(name) or ".") for place in named]
            if any(each in text or each.replace("/", ".") in text for each in shown):
                return True
        return False


class _Nearness:
    """Files by their folders: others name those of their own folder and of those above it by their name only."""

    def __init__(self, names: Iterable[str]) -> None:
        self._words: dict[str, set[bytes]] = {}
        for name in names:
            stem = PurePosixPath(name).name.partition(".")[0] or PurePosixPath(name).name
            self._words.setdefault(_folder(name), set()).add(b"" if stem == "__init__" else os.fsencode(stem))
        self._any = re.compile(b"|".join(map(re.escape, sorted(set[bytes]().union(*self._words.values())))))

    def is_named_in(self, name: str, text: bytes, *, anywhere: bool = False) -> bool:
        """Return whether a file may name one of these; a module may be named from `anywhere` without its folder."""
        own = _folder(name)
        for folder, words in self._words.items() if self._any.search(text) else ():
            is_near = not folder or own == folder or own.startswith(f"{folder}/")
            is_named = is_near or os.fsencode(folder.rpartition("/")[2]) in text or (anywhere and words != {b""})
            if is_named and any(word in text for word in words):
                return True
        return not name.endswith(".py") and _is_escaped(text)


def _is_escaped(text: bytes) -> bool:
    return (b"\\" in text or text[:1] in (b"\xff", b"\xfe")) and _ESCAPED.search(text) is not None


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


class _Data:
    """Changed files other than tasks, their includes and code: docs, prompt libraries and the like."""

    def __init__(self, names: Iterable[str]) -> None:
        self._files = [PurePosixPath(name) for name in names if not name.endswith((".py", *IDLE_SUFFIXES))]

    def __bool__(self) -> bool:
        return bool(self._files)

    def may_be_of(self, name: str, content: bytes) -> bool:
        """Return whether a file may read one of these: it is next to it or below it, or its name is in the content.

        The content is all of the file, or, of one that was read, the texts that may be paths.
        """
        path = PurePosixPath(name)
        return any(
            (name.endswith(".py") and file.is_relative_to(path.parent))
            or (file.parent == path.parent and file.name.startswith(f"{path.stem}."))
            or any(os.fsencode(part) in content for part in file.parts if part not in path.parent.parts)
            for file in self._files
        ) or (not name.endswith(".py") and _ANY_PATH.search(content) is not None)


# -- task files that are read ------------------------------------------------------------------------------------------


def is_setting(name: str) -> bool:
    """Return whether a file is one that settings are written in."""
    return name.rpartition("/")[2] in _SETTINGS


def is_searched(name: str) -> bool:
    """Return whether a file may define tasks, be included or imported."""
    last = name.rpartition("/")[2]
    return name.endswith(".py") or _INCLUDED.fullmatch(last) is not None


def sources_below(tree: Path, names: Iterable[str]) -> dict[str, TaskSource]:
    """Return which of the files `names` of a resolved tree hold tasks, with what they are made of."""
    with gate.limited_to([tree]):
        found = {name: _source(tree / name, tree) for name in names if name.endswith(TASK_SUFFIXES)}
    return {name: source for name, source in found.items() if source is not None}


def included_by(tree: Path, name: str) -> Iterator[str]:
    """Yield the paths of the files that a YAML file includes, below the tree and with slashes."""
    try:
        written = parse_file(tree / name, gate.status_of(tree / name)).values.get("include")
    except (PromptfmtError, OSError, ValueError):
        return
    for each in written if isinstance(written, list) else [written]:
        if isinstance(each, str):
            yield posixpath.normpath(posixpath.join(posixpath.dirname(name), each))


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


def _source(path: Path, top: Path) -> TaskSource | None:
    """Return what a file is made of; None for one that defines nothing, cannot be read or is of another system."""
    try:
        file = read_if_task(path)
    except (PromptfmtError, OSError):
        return None
    if file is None:
        return None
    name = file.config.get("task")
    group = file.config.get("group")
    labels = [name, *(group if isinstance(group, list) else [group]), *tags_of(file.config)]
    values = [*leaves(file.config)]
    refs = [place for value in values if isinstance(value, FunctionRef) for place in places_of(value, top)]
    return TaskSource(
        name=name if isinstance(name, str) and kind_of(file.config) == "task" else "",
        parts=frozenset(_below(part.path, top) for part in file.parts),
        modules=frozenset(_below(ref.file, top) for ref in (*refs, *class_refs(file.config, path, top))),
        texts=frozenset(value for value in values if isinstance(value, str) and _PATH.fullmatch(value)),
        labels=frozenset(label for label in labels if isinstance(label, str)),
    )


def _below(path: Path, top: Path) -> str:
    return path.as_posix().removeprefix(f"{top.as_posix()}/")
