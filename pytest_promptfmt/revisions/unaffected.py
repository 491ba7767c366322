"""Task files whose prompts cannot have changed, because nothing that they are made of has.

Rendering is deterministic, so these are not rendered at all. Whatever is not understood counts as changed: settings,
groups, classes, code that may read any file.
"""

from __future__ import annotations

import ast
import filecmp
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.task import FunctionRef
from pytest_promptfmt.revisions.git import files_below
from pytest_promptfmt.settings.file import FILE_NAMES
from pytest_promptfmt.systems.lm_eval.kinds import kind_of, read_if_task

_SETTINGS: Final = frozenset(
    {*FILE_NAMES, "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "pyproject.toml", "tox.ini", "setup.cfg"}
)
_RULES: Final = frozenset({*_SETTINGS, "conftest.py", "sitecustomize.py"})
"""Files that may change how every task is rendered."""

_IDLE_SUFFIXES: Final = (".md", ".rst", ".png", ".svg", ".sh", ".gitignore", ".gitattributes")
"""Files that no prompt is made of, unless a task or setting names them."""

_TASK_SUFFIXES: Final = (".yaml", ".yml")

_PATH: Final = re.compile(r"[^\s{}]{1,1000}")
"""What may be a path, a pattern for paths, or a name with a path in it."""


def changed_files(before: Path, after: Path) -> frozenset[str]:
    """Return the paths, below either folder, of files that only one of them has or that differ."""
    names = set(files_below(before)), set(files_below(after))
    common = names[0] & names[1]
    differing = (name for name in common if not _same(before / name, after / name))
    return frozenset({*(names[0] ^ names[1]), *differing})


def unaffected_files(
    after: Path,
    changed: Mapping[str, frozenset[str]],
    sources: Mapping[str, TaskSource],
    earlier: Mapping[str, TaskSource],
) -> frozenset[str]:
    """Return the task files of the tree `after` that need no rendering.

    `changed` are the paths that differ, each with the words of the tasks or groups that it defines on either side,
    none for any other file. `sources` are the files of the tree that define one task each, `earlier` those of the
    other tree that differ.
    """
    if any(PurePosixPath(name).name in _RULES for name in changed) or _named_by_settings(after, changed, sources):
        return frozenset()
    facts = module_facts(after)
    includes = {part for source in (*sources.values(), *earlier.values()) for part in source.parts}
    data = _Data(name for name, words in changed.items() if not words and name not in includes)
    words = frozenset[str]().union(*changed.values())
    judged: dict[frozenset[str], bool] = {}

    def runs_other_code(modules: frozenset[str]) -> bool:
        if modules not in judged:
            reached = reached_modules(sorted(modules), facts)
            judged[modules] = not changed.keys().isdisjoint(reached | modules) or any(
                data.may_be_read_by(module, facts[module].text) for module in reached if facts[module].reads_files
            )
        return judged[modules]

    return frozenset(
        name
        for name, source in sources.items()
        # A name that two files define is a mistake to report, so these are rendered together.
        if source.name not in words
        and changed.keys().isdisjoint(source.parts)
        and not runs_other_code(source.modules)
        and not data.may_be_of(name, source)
    )


class _Data:
    """What changed beside tasks, their includes and code: docs, prompt libraries and whatever else."""

    def __init__(self, names: Iterable[str]) -> None:
        self._files = [PurePosixPath(name) for name in names if not name.endswith((".py", *_IDLE_SUFFIXES))]

    def may_be_of(self, name: str, source: TaskSource) -> bool:
        """Return whether a task may take anything from these files: it names one or its folder, or lies beside it."""
        if not self._files:
            return False
        path = PurePosixPath(name)
        if any(file.parent == path.parent and file.name.startswith(f"{path.stem}.") for file in self._files):
            return True
        names = {part for file in self._files for part in file.parts}.difference(path.parent.parts)
        return any(
            text in (".", "..") or "*" in text or not names.isdisjoint(text.replace(":", "/").split("/"))
            for text in source.texts
            if _PATH.fullmatch(text)
        )

    def may_be_read_by(self, module: str, text: str) -> bool:
        """Return whether code that reads files may read one of these: it lies below the code, or is named there."""
        folder = PurePosixPath(module).parent
        return any(
            file.is_relative_to(folder) or any(part in text for part in file.parts if part not in folder.parts)
            for file in self._files
        )


def _named_by_settings(tree: Path, changed: Iterable[str], sources: Mapping[str, TaskSource]) -> bool:
    """Return whether a settings file mentions a changed file, or a folder above it that holds no tasks."""
    texts = [
        (PurePosixPath(name).parent, (tree / name).read_bytes().decode("utf-8", "replace"))
        for name in files_below(tree)
        if PurePosixPath(name).name in _SETTINGS and (tree / name).is_file()
    ]
    with_tasks = {folder for name in sources for folder in PurePosixPath(name).parents}
    others = [PurePosixPath(name) for name in changed if name not in sources]
    named = {place for other in others for place in (other, other.with_suffix(""), *other.parents)} - with_tasks
    for folder, text in texts:
        for place in named:
            shown = os.path.relpath(place, folder)
            if shown in text or shown.replace("/", ".") in text:
                return True
    return False


def _same(one: Path, other: Path) -> bool:
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and one.readlink() == other.readlink()
    return filecmp.cmp(one, other, shallow=False)


_READS_FILES: Final = re.compile(
    r"\b(?:open|Path|read_text|read_bytes|glob|listdir|walk|load_dataset|exec|eval|__import__|read_\w+)\s*\("
    r"|\bimportlib\b|\bpkgutil\b|\b__file__\b"
)


@dataclass(frozen=True, slots=True)
class TaskSource:
    """What a YAML file of tasks is made of; `name` is its task, "" for a group or class.

    `parts` are the files it is merged from, `modules` those of its functions, all below the tree, with slashes;
    `texts` are all texts in it, its names among them.
    """

    name: str
    parts: frozenset[str]
    modules: frozenset[str]
    texts: frozenset[str]


def sources_below(tree: Path, names: Iterable[str]) -> dict[str, TaskSource]:
    """Return which of the files `names` of a resolved tree hold tasks, with what they are made of."""
    found = {name: _source(tree / name, tree) for name in names if name.endswith(_TASK_SUFFIXES)}
    return {name: source for name, source in found.items() if source is not None}


def single_tasks(sources: Mapping[str, TaskSource]) -> dict[str, TaskSource]:
    """Return those that define one task each, and nothing else."""
    return {name: source for name, source in sources.items() if source.name}


def reached_modules(modules: Sequence[str], known: Mapping[str, ModuleFacts]) -> frozenset[str]:
    """Return those of these modules that are `known`, and all Python files that they may import, directly or not."""
    reached: set[str] = set()
    waiting = [name for name in modules if name in known]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += known[name].imports
    return frozenset(reached)


@dataclass(frozen=True, slots=True)
class ModuleFacts:
    """What the `text` of a Python file shows: which files of the tree it may import, and whether it may read any."""

    imports: tuple[str, ...]
    text: str
    reads_files: bool


def module_facts(tree: Path) -> dict[str, ModuleFacts]:
    """Return the facts of every Python file of a tree; imports go by the end of the path, so there may be too many."""
    names = [name for name in files_below(tree) if name.endswith(".py")]
    by_end: dict[str, list[str]] = {}
    for name in names:
        parts = name.split("/")
        for start in range(len(parts)):
            by_end.setdefault("/".join(parts[start:]), []).append(name)
    found = {}
    for name in names:
        text = (tree / name).read_bytes().decode("utf-8", "replace") if (tree / name).is_file() else ""
        try:
            ends = [*_imported_ends(ast.parse(text), name)]
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            ends = []  # nothing is imported of what cannot be compiled
        imports = tuple(dict.fromkeys(target for end in ends for target in by_end.get(end, ())))
        found[name] = ModuleFacts(imports, text, reads_files=_READS_FILES.search(text) is not None)
    return found


def _imported_ends(module: ast.Module, name: str) -> Iterator[str]:
    """Yield how the paths of the files that a module imports may end."""
    folder = name.split("/")[:-1]
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            dotted = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) - node.level + 1] if node.level else []
            base = [*base, *(node.module.split(".") if node.module else [])]
            dotted = [base, *([*base, alias.name] for alias in node.names)]
        else:
            continue
        for parts in dotted:
            for end in range(1, len(parts) + 1):
                yield "/".join(parts[:end]) + ".py"
                yield "/".join((*parts[:end], "__init__.py"))


def _source(path: Path, top: Path) -> TaskSource | None:
    """Return what a file is made of; None for one that defines nothing, cannot be read or is of another system."""
    try:
        file = read_if_task(path)
    except (PromptfmtError, OSError):
        return None
    if file is None:
        return None
    name = file.config.get("task")
    values = [*_values(file.config, set())]
    return TaskSource(
        name=name if isinstance(name, str) and kind_of(file.config) == "task" else "",
        parts=frozenset(_below(part.path, top) for part in file.parts),
        modules=frozenset(_below(value.file, top) for value in values if isinstance(value, FunctionRef)),
        texts=frozenset(value for value in values if isinstance(value, str)),
    )


def _values(value: Any, seen: set[int]) -> Iterator[str | FunctionRef]:
    if isinstance(value, str | FunctionRef):
        yield value
    elif isinstance(value, Mapping | list | tuple) and id(value) not in seen:
        seen.add(id(value))
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _values(part, seen)


def _below(path: Path, top: Path) -> str:
    return path.relative_to(top).as_posix() if path.is_relative_to(top) else path.as_posix()
