"""The task files of a tree: under which name each is known, and what else of the tree its prompts are made of."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.task import FunctionRef
from pytest_promptfmt.revisions.git import files_below
from pytest_promptfmt.systems.lm_eval.kinds import kind_of, read_if_task

TASK_SUFFIXES: Final = (".yaml", ".yml")
_READS_FILES: Final = re.compile(
    r"\b(?:open|Path|read_text|read_bytes|glob|listdir|walk|load_dataset|exec|eval|__import__|read_\w+)\s*\("
    r"|\bimportlib\b|\bpkgutil\b|\b__file__\b"
)


@dataclass(frozen=True, slots=True)
class TaskSource:
    """A YAML file that defines one task and nothing else.

    `parts` are the files it is merged from, `modules` those of its functions, all below the tree, with slashes;
    `texts` is everything it says.
    """

    name: str
    parts: frozenset[str]
    modules: frozenset[str]
    texts: frozenset[str]


def task_sources(tree: Path) -> dict[str, TaskSource]:
    """Return the files of a tree that define one task each, by their path below it.

    Groups, classes, files that cannot be read and those of other systems are not among them.
    """
    top = tree.resolve()
    found: dict[str, TaskSource] = {}
    for name in files_below(top):
        if name.endswith(TASK_SUFFIXES):
            source = task_source(top / name, top)
            if source is not None:
                found[name] = source
    return found


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


def task_source(path: Path, top: Path) -> TaskSource | None:
    """Return what a file that defines one task is made of; None for any other. `top` is the resolved tree."""
    try:
        file = read_if_task(path)
    except (PromptfmtError, OSError):
        return None
    name = None if file is None else file.config.get("task")
    if file is None or kind_of(file.config) != "task" or not isinstance(name, str):
        return None
    values = [*_values(file.config, set())]
    return TaskSource(
        name=name,
        parts=frozenset(_below(part.path, top) for part in file.parts),
        modules=frozenset(_below(value.file, top) for value in values if isinstance(value, FunctionRef)),
        texts=frozenset(value for value in values if isinstance(value, str)),
    )


def words_of(path: Path) -> frozenset[str]:
    """Return every text that a file of tasks or groups holds, its names among them; nothing for any other."""
    try:
        file = read_if_task(path)
    except (PromptfmtError, OSError):
        return frozenset()
    return frozenset() if file is None else frozenset(v for v in _values(file.config, set()) if isinstance(v, str))


def _values(value: Any, seen: set[int]) -> Iterator[str | FunctionRef]:
    if isinstance(value, str | FunctionRef):
        yield value
    elif isinstance(value, Mapping | list | tuple) and id(value) not in seen:
        seen.add(id(value))
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _values(part, seen)


def _below(path: Path, top: Path) -> str:
    return path.relative_to(top).as_posix() if path.is_relative_to(top) else path.as_posix()
