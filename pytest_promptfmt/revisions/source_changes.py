"""The differences of a task's source between two revisions: its keys, and the code behind its functions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final, Literal

from jinja2 import Environment, TemplateError, nodes

from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.task import FunctionRef, Locate, leaves, locate_nowhere
from pytest_promptfmt.revisions.affected import TASK_SUFFIXES, bytes_of
from pytest_promptfmt.revisions.code_changes import (
    Closure,
    CodeChange,
    class_refs,
    classes_of,
    closure_of,
    code_changes,
    file_of,
)
from pytest_promptfmt.systems.task_files import read_task_file
from pytest_promptfmt.tasks import TaskIndex, kind_of, read_if_task

Use = Literal["prompt", "docs", "reading"]
"""The effect of a key: how docs are shown, which docs there are, how answers are read and scored."""

_NO_USE: Final = frozenset(
    {
        *("task", "task_alias", "group", "group_alias", "tag", "include", "metadata", "task_list", "unsafe_code"),
        *("should_decontaminate", "doc_to_decontamination_query"),
    }
)
_USES: Final[Mapping[str, Use]] = {
    **dict.fromkeys(("dataset_path", "dataset_name", "dataset_kwargs", "custom_dataset", "process_docs"), "docs"),
    **dict.fromkeys(("training_split", "validation_split", "test_split", "fewshot_split"), "docs"),
    **dict.fromkeys(("fewshot_config.split", "fewshot_config.process_docs", "fewshot_config.samples"), "docs"),
    **dict.fromkeys(("filter_list", "metric_list", "generation_kwargs", "repeats", "process_results"), "reading"),
}
_IDLE_ARGUMENTS: Final = frozenset({"trust_remote_code"})
"""Keys of `dataset_kwargs` that decide whether data is available, not which."""

_MOST_LETTERS: Final = 120
_MATCHES: Final = {**dict.fromkeys("wSD", "k"), "d": "7", "s": " ", "W": "-", "n": "\n", "t": "\t"}
"""A text that each class of a regular expression matches."""


@dataclass(frozen=True)
class WrittenTask:
    """A task as its file and includes write it: `values` by key, with a dot for the keys of `fewshot_config`.

    `config` are all keys, with their places. A group is one without values.
    """

    name: str
    values: Mapping[str, Any]
    top: Path
    config: Mapping[Any, Any] = field(default_factory=dict)
    locate: Locate = locate_nowhere

    @cached_property
    def forms(self) -> Mapping[str, str]:
        """Return the values as texts that are equal for values of the same meaning; functions by their names."""
        return {key: _form(key, value) for key, value in self.values.items()}

    def closure(self, key: str) -> Closure:
        """Return the code behind the functions of a key."""
        found: dict[str, Any] = {}
        for ref in _functions(self.values.get(key)):
            found |= closure_of(file_of(ref, self.top), ref.name, self.top)
        return found


@dataclass(frozen=True)
class KeyChange:
    """A key that differs: its `use`, whether its value differs, and the changes of the code behind it."""

    key: str
    use: Use
    is_rewritten: bool
    code: tuple[CodeChange, ...]
    closures: tuple[Closure, Closure]

    def __str__(self) -> str:
        """Return `doc_to_text`, or `process_docs (utils.py:3 clean)` where the code behind it changed."""
        return self.key if self.is_rewritten or not self.code else f"{self.key} ({self.code[0].shown})"


@dataclass(frozen=True)
class SourceDifference:
    """A task that is written differently; `file` is where the second revision has it."""

    old: WrittenTask
    new: WrittenTask
    file: str
    changes: tuple[KeyChange, ...]

    def of(self, use: Use) -> list[KeyChange]:
        """Return the keys of one use that differ."""
        return [change for change in self.changes if change.use == use]

    def words(self) -> list[str]:
        """Return the texts that changed code and templates compare with or search, to be put into docs."""
        found = [text for change in self.changes for each in change.code for text in each.constants()]
        for change in self.of("prompt"):
            for side in (self.old, self.new):
                found += [text for spec in _templates(side.values.get(change.key)) for text in _constants(spec)]
        return _words_of(found)

    def parts(self, side: WrittenTask) -> list[str]:
        """Return the texts of changed templates that are in a prompt only if a branch is taken."""
        specs = (spec for change in self.of("prompt") for spec in _templates(side.values.get(change.key)))
        return [*dict.fromkeys(part for spec in specs for part in _parts(spec))]


def differences(before: Path, after: Path, files: Mapping[str, str]) -> Iterator[SourceDifference]:
    """Yield the tasks that both trees define and write differently.

    `files` maps those of the second tree to those of the first, relative to either.
    """
    for new_file, old_file in files.items():
        old, new = written_in(before, old_file), written_in(after, new_file)
        for name in old.keys() & new.keys():
            changes = tuple(_changes(old[name], new[name]))
            if changes:
                yield SourceDifference(old[name], new[name], new_file, changes)


def unreadable(before: Path, after: Path, files: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the files, as `differences` takes them, that neither side can read: a name and the second side's error.

    A group whose `task` is no list is one of them: it has no members.
    """
    for new_file, old_file in files.items():
        if _failure(before, old_file) and (failure := _failure(after, new_file)):
            yield new_file, failure


def _failure(tree: Path, name: str) -> tuple[str, str] | None:
    try:
        found = [*_read(tree, name).values()]
    except PromptfmtError as error:
        return Path(name).stem, error.message
    except OSError:
        return None
    task = found[0].config.get("task") if len(found) == 1 and kind_of(found[0].config) == "group" else None
    text = "the group has no list under `task`, so in lm-eval 0.4.13 it has no members"
    return (task, text) if isinstance(task, str) else None


def meaning_of(path: Path) -> object:
    """Return a value that is equal for two files of the same meaning: JSON by value, templates by syntax tree."""
    data = bytes_of(path)
    text = data.decode("utf-8", "replace")
    if path.suffix == ".json":
        with suppress(ValueError, RecursionError):
            return json.loads(text)
    tree = _tree(text) if path.suffix == ".jinja" else None
    return data if tree is None else repr(tree)


def _changes(old: WrittenTask, new: WrittenTask) -> Iterator[KeyChange]:
    for key in sorted({*old.values, *new.values}):
        closures = old.closure(key), new.closure(key)
        is_rewritten = old.forms.get(key) != new.forms.get(key)
        code = tuple(code_changes(*closures)) if all(closures) else ()
        if is_rewritten and code == () and all(closures) and _is_same_but_for_names(old, new, key):
            continue
        if is_rewritten or code:
            yield KeyChange(key, _USES.get(key, "prompt"), is_rewritten, code, closures)


def _is_same_but_for_names(old: WrittenTask, new: WrittenTask, key: str) -> bool:
    """Return whether a function was moved to another file as it is."""
    functions = _functions(old.values.get(key)), _functions(new.values.get(key))
    return [ref.name for ref in functions[0]] == [ref.name for ref in functions[1]] and all(
        isinstance(side.values.get(key), FunctionRef) for side in (old, new)
    )


def written_in(tree: Path, name: str) -> Mapping[str, WrittenTask]:
    """Return the tasks of a file of a tree, and the group that it defines; none of one that cannot be read."""
    try:
        return _read(tree, name)
    except (PromptfmtError, OSError):
        return {}  # reported by the comparison of errors, or as unknown where both sides fail


@lru_cache(maxsize=4096)
def _read(tree: Path, name: str) -> Mapping[str, WrittenTask]:
    path = tree / name
    if path.suffix == ".py":
        return {ref.name: WrittenTask(ref.name, {"class": ref}, tree) for ref in classes_of(path)}
    file = read_if_task(path) if name.endswith(TASK_SUFFIXES) else None
    if file is None:
        return {}
    if kind_of(file.config) == "group" and (found := read_task_file(path, _index_of(tree))) is not None:
        tasks = [
            WrittenTask(each.name, dict(_values(each.config)), tree, each.config, each.locate) for each in found.tasks
        ]
        group = WrittenTask(str(file.config["group"]), {}, tree, file.config, file.locate)
        return {each.name: each for each in (*tasks, group)}
    values = dict(_values(file.config))
    refs = [*class_refs(file.config, path, tree)]
    known = [ref for ref in refs if ref.file.is_file()]
    values |= {"class": known[0]} if known else {}
    task = str(file.config.get("task", refs[0].name if refs else None))
    return {task: WrittenTask(task, values, tree, file.config, file.locate)}


@lru_cache(maxsize=2)
def _index_of(tree: Path) -> TaskIndex:
    return TaskIndex([tree])  # else the members of a group would be looked up in an installed lm-eval


def _values(config: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    metadata = config.get("metadata")
    if isinstance(metadata, Mapping) and "promptfmt" in metadata:
        yield "metadata.promptfmt", metadata["promptfmt"]
    for key, value in config.items():
        if key == "fewshot_config" and isinstance(value, Mapping):
            yield from ((f"{key}.{name}", item) for name, item in value.items())
        elif key == "dataset_kwargs" and isinstance(value, Mapping):
            kept = {name: item for name, item in value.items() if name not in _IDLE_ARGUMENTS}
            if kept:
                yield key, kept
        elif key not in _NO_USE and value is not None:
            yield str(key), value


def _functions(value: Any) -> list[FunctionRef]:
    return [leaf for leaf in leaves(value) if isinstance(leaf, FunctionRef)]


def _form(key: str, value: Any) -> str:
    if isinstance(value, FunctionRef):
        return f"!function {value}"
    if isinstance(value, Mapping):
        return repr({str(name): _form(key, item) for name, item in value.items()})
    if isinstance(value, list | tuple):
        return repr([_form(key, item) for item in value])
    tree = _tree(value) if isinstance(value, str) and "{" in value else None
    return repr(tree if tree is not None else value)


# -- templates ---------------------------------------------------------------------------------------------------------


def _templates(value: Any) -> list[str]:
    return [leaf for leaf in leaves(value) if isinstance(leaf, str) and "{" in leaf]


@lru_cache(maxsize=4096)
def _tree(source: str) -> nodes.Template | None:
    try:
        return Environment(keep_trailing_newline=True).parse(source)
    except (TemplateError, RecursionError):
        return None


def _constants(source: str) -> Iterable[str]:
    tree = _tree(source)
    found = tree.find_all(nodes.Const) if tree is not None else ()
    return [node.value for node in found if isinstance(node.value, str)]


def _parts(source: str) -> Iterator[str]:
    """Yield the texts that a template prints only where a branch is taken."""
    tree = _tree(source)
    for branch in tree.find_all((nodes.If, nodes.For, nodes.CondExpr)) if tree is not None else ():
        inner = [branch.expr1, branch.expr2] if isinstance(branch, nodes.CondExpr) else [branch]
        for node in inner:
            if isinstance(node, nodes.Const) and isinstance(node.value, str) and node.value.strip():
                yield node.value
            yield from (text.data for text in node.find_all(nodes.TemplateData) if text.data.strip()) if node else ()


def _words_of(constants: Iterable[str]) -> list[str]:
    """Return the texts to put into docs for those that code compares, replaces or matches: each, and a match of it."""
    found: dict[str, None] = {}
    for text in constants:
        if 0 < len(text) <= _MOST_LETTERS:
            found[text] = None
            found[_match_of(text)] = None
    found.pop("", None)
    return [*found]


def _match_of(pattern: str) -> str:
    """Return a text that a simple regular expression may match: its characters, one for each class, once each."""
    text = re.sub(r"\(\?[:=!<P][^)>]*>?", "(", pattern)
    text = re.sub(r"\\([dwsSWDbntAZ])", lambda found: _MATCHES.get(found[1], ""), text)
    text = re.sub(r"(?<!\\)\[\^.[^\]]*\]", "k", text)
    text = re.sub(r"(?<!\\)\[(?:\\)?(.)[^\]]*\]", r"\1", text)
    text = re.sub(
        r"(?<!\\)\{\d+(?:,\d*)?\}|(?<![\\*+?])[*+?]\??|(?<!\\)[()^$]", "", text.replace(".*", "k").replace(".+", "k")
    )
    return re.sub(r"\\(.)", r"\1", text.partition("|")[0])
