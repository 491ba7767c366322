"""Task files whose prompts cannot have changed, because nothing that they are made of has.

Rendering is deterministic, so these are not rendered at all. Sources that cannot be analysed count as changed:
settings, groups, classes, code that may read any file.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.task import FunctionRef, leaves
from pytest_promptfmt.core.yaml_parser import parse_file
from pytest_promptfmt.inputs.code_inputs import ModuleFacts
from pytest_promptfmt.revisions.code_changes import class_refs, places_of
from pytest_promptfmt.revisions.git import files_below
from pytest_promptfmt.settings.file import FILE_NAMES
from pytest_promptfmt.tasks import kind_of, read_if_task, tags_of

_SETTINGS: Final = frozenset(
    {*FILE_NAMES, "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "pyproject.toml", "tox.ini", "setup.cfg"}
)
_RULES: Final = frozenset({*_SETTINGS, "conftest.py", "sitecustomize.py"})
"""Files that may change how every task is rendered."""

IDLE_SUFFIXES: Final = (".md", ".rst", ".png", ".svg", ".sh", ".gitignore", ".gitattributes")
"""Files that no prompt is made of, unless a task or setting names them."""

TASK_SUFFIXES: Final = (".yaml", ".yml")

Imports = Mapping[str, Sequence[str]]
"""The files of a tree that each of its Python files may import."""

_PATH: Final = re.compile(r"[^\s{}]{1,1000}")
"""A text that may be a path, a pattern for paths, or a name with a path in it."""


def unaffected_files(
    after: Path,
    changed: Collection[str],
    sources: Mapping[str, TaskSource],
    earlier: Mapping[str, TaskSource],
    modules: Mapping[str, ModuleText],
    text: Callable[[str], str],
) -> frozenset[str]:
    """Return the files of tasks and groups of the tree `after` that need no rendering.

    `changed` are the paths that differ, `sources` all files of the tree that define something, `earlier` those of the
    other tree that differ, `modules` the Python files of the tree, whose content `text` returns. The tree may
    lack files that do not differ.
    """
    if any(PurePosixPath(name).name in _RULES for name in changed) or _named_by_settings(after, changed, sources):
        return frozenset()
    includes = {part for source in (*sources.values(), *earlier.values()) for part in source.parts}
    touched = [side[name] for name in changed for side in (sources, earlier) if name in side]
    data = _Data(name for name in changed if name not in includes and name not in sources and name not in earlier)
    words = frozenset[str]().union(*(source.texts | source.labels for source in touched))
    judged: dict[frozenset[str], bool] = {}
    imports = imports_of(modules)

    def runs_other_code(own: frozenset[str]) -> bool:
        if own not in judged:
            reached = reached_modules(own, imports)
            judged[own] = not differing.isdisjoint(reached | own) or any(
                data.may_be_read_by(module, text(module)) for module in reached if data and modules[module].reads_files
            )
        return judged[own]

    def is_same(name: str, source: TaskSource) -> bool:
        is_made_of_others = not differing.isdisjoint({*source.parts, name}) or runs_other_code(source.modules)
        return not is_made_of_others and not data.may_be_of(name, source)

    differing = {*changed}
    # A name that two files define is a mistake to report, so these are rendered together.
    same = {name for name, source in sources.items() if is_same(name, source) and source.name not in words}
    labels = {label for source in touched for label in source.labels}
    labels |= {label for name, source in sources.items() if name not in same for label in source.labels}
    # A group renders what it lists, and other groups may list the group.
    groups = {name for name in same if not sources[name].name}
    while reached := {name for name in groups if not labels.isdisjoint(sources[name].texts)}:
        groups -= reached
        same -= reached
        labels |= {label for name in reached for label in sources[name].labels}
    return frozenset(same)


def members_of(affected: Iterable[str], sources: Mapping[str, TaskSource]) -> frozenset[str]:
    """Return the files that these files are made of, or take members of groups from, directly or not."""
    labelled: dict[str, list[str]] = {}
    for name, source in sources.items():
        for label in source.labels:
            labelled.setdefault(label, []).append(name)
    found: set[str] = set()
    waiting = [*affected]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            made_of = sources.get(name)
            if made_of is not None:
                found |= made_of.parts - sources.keys()
                waiting += made_of.parts & sources.keys()
                waiting += [each for text in made_of.texts if not made_of.name for each in labelled.get(text, ())]
    return frozenset(found)


class _Data:
    """Changed files other than tasks, their includes and code: docs, prompt libraries and the like."""

    def __init__(self, names: Iterable[str]) -> None:
        self._files = [PurePosixPath(name) for name in names if not name.endswith((".py", *IDLE_SUFFIXES))]

    def __bool__(self) -> bool:
        return bool(self._files)

    def may_be_of(self, name: str, source: TaskSource) -> bool:
        """Return whether a task may read one of these files: it names one or its folder, or is next to it."""
        if not self._files:
            return False
        path = PurePosixPath(name)
        if any(file.parent == path.parent and file.name.startswith(f"{path.stem}.") for file in self._files):
            return True
        names = {part for file in self._files for part in file.parts}.difference(path.parent.parts)
        return any(
            text in (".", "..") or "*" in text or not names.isdisjoint(text.replace(":", "/").split("/"))
            for text in source.texts
        )

    def may_be_read_by(self, module: str, text: str) -> bool:
        """Return whether code that reads files may read one of these: it lies below the code, or is named there."""
        folder = PurePosixPath(module).parent
        return any(
            file.is_relative_to(folder) or any(part in text for part in file.parts if part not in folder.parts)
            for file in self._files
        )


def is_setting(name: str) -> bool:
    """Return whether a file is one that settings are written in."""
    return PurePosixPath(name).name in _SETTINGS


def _named_by_settings(tree: Path, changed: Iterable[str], sources: Mapping[str, TaskSource]) -> bool:
    """Return whether a settings file mentions a changed file, or a folder above it that holds no tasks."""
    texts = [
        (PurePosixPath(name).parent, bytes_of(tree / name).decode("utf-8", "replace"))
        for name in files_below(tree)
        if is_setting(name) and (tree / name).is_file()
    ]
    if not texts:
        return False
    folders = {name.rpartition("/")[0] for name in sources}  # thousands of files are in some hundred of them
    with_tasks = {above for folder in folders for above in (PurePosixPath(folder), *PurePosixPath(folder).parents)}
    others = [PurePosixPath(name) for name in changed if name not in sources]
    named = {place for other in others for place in (other, other.with_suffix(""), *other.parents)} - with_tasks
    for folder, text in texts:
        for place in named:
            shown = os.path.relpath(place, folder)
            if shown in text or shown.replace("/", ".") in text:
                return True
    return False


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


def reached_modules(modules: Iterable[str], known: Imports) -> frozenset[str]:
    """Return those of these modules that are `known`, and all Python files that they may import, directly or not."""
    reached: set[str] = set()
    waiting = [name for name in modules if name in known]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += known[name]
    return frozenset(reached)


@dataclass(frozen=True, slots=True)
class ModuleText:
    """How the paths of files that a Python file imports may end, and whether it may read files."""

    ends: tuple[str, ...]
    reads_files: bool


def bytes_of(path: Path) -> bytes:
    """Return the content of a file of a tree, empty for one that is missing or may not be opened."""
    try:
        return gate.read_bytes(path) if path.is_file() else b""
    except OSError:
        return b""


def module_text(path: Path, name: str) -> ModuleText:
    """Return the facts that the text of a Python file shows; one that cannot be compiled imports nothing."""
    known = ModuleFacts(bytes_of(path))
    ends = (end for level, parts in known.imports for end in _ends_of(level, parts, name))
    return ModuleText(tuple(dict.fromkeys(ends)), known.opens)


def imports_of(texts: Mapping[str, ModuleText]) -> Imports:
    """Return which files each Python file of a tree may import, by the ends of paths, so there may be too many."""
    by_end: dict[str, list[str]] = {}
    for name in texts:
        parts = name.split("/")
        for start in range(len(parts)):
            by_end.setdefault("/".join(parts[start:]), []).append(name)
    return {name: [each for end in text.ends for each in by_end.get(end, ())] for name, text in texts.items()}


def _ends_of(level: int, parts: Sequence[str], name: str) -> Iterator[str]:
    """Yield how the paths of the files that an import in a file may run can end."""
    folder = name.split("/")[:-1]
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
