"""Versions of tasks and groups against what changed: a score may be compared only where the version is the same.

Rendering says what changed; this module reads the versions of both revisions and says which of them were forgotten.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from pytest_promptfmt.core.errors import Position, PromptfmtError
from pytest_promptfmt.core.task import FunctionRef, Locate
from pytest_promptfmt.revisions.named_code import class_refs, classes_of
from pytest_promptfmt.revisions.source_changes import SourceDifference
from pytest_promptfmt.revisions.statements import CLASS_VERSIONS, closure_of
from pytest_promptfmt.settings.file import find_settings_file, read_settings_file
from pytest_promptfmt.snapshots.changes import FEW_SHOT
from pytest_promptfmt.snapshots.content import COLUMNS, SCORING
from pytest_promptfmt.snapshots.token_sections import TITLE as TOKENS
from pytest_promptfmt.systems.task_files import read_task_file
from pytest_promptfmt.tasks import TaskIndex

Part = Literal["text", "request", "target", "stops", "metric"]
Kind = Literal["kept", "unsure", "elsewhere", "members", "missing", "raised", "alone"]

PARTS: Final[tuple[Part, ...]] = get_args(Part)

_SECTIONS: Final[Mapping[str, Part]] = {
    "prompt": "text",
    "context": "text",
    "continuations": "request",
    "rolling text": "request",
    "generate": "stops",
    "target": "target",
    FEW_SHOT: "text",
    SCORING: "metric",
}
_KEYS: Final[Mapping[str, Part]] = {
    "doc_to_choice": "request",
    "output_type": "request",
    "target_delimiter": "request",
    "doc_to_target": "target",
    "generation_kwargs": "stops",
    **dict.fromkeys(("filter_list", "metric_list", "process_results", "repeats"), "metric"),
}
_OWN_DOCS: Final = "metadata.promptfmt"
_OF_SECTION: Final = re.compile(r" (?:\d+ of \d+|without context)$")
_SUFFIXES: Final = (".yaml", ".yml")
_AT_TOP: Final = ("metadata", "version")


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionFinding:
    """Tasks whose version and prompts did not change together, or did; those with one version in one place.

    `kind` is `kept` (what is asked or scored changed, the version did not), `unsure` (the same where nobody could see
    whether it did), `elsewhere` (prompts changed and the version did not, nor did keys or functions: docs, settings,
    templates did), `members` (a group kept its version, tasks of it changed), `missing` (changed, and there is no
    version), `raised` (both changed) or `alone` (the version changed, nothing else did). `place` is where the version
    is written, relative to the folders that were compared; None where there is none.
    """

    kind: Kind
    tasks: tuple[str, ...]
    parts: tuple[Part, ...]
    before: Any
    after: Any
    place: Position | None = None

    @property
    def is_error(self) -> bool:
        """Return whether a version was forgotten."""
        return self.kind == "kept"

    def to_json(self) -> dict[str, Any]:
        """Return a mapping that JSON knows."""
        versions = {name: None if value is None else str(value) for name, value in self._versions.items()}
        place = None if self.place is None else {"file": self.place.path.as_posix(), "line": self.place.line}
        return {"kind": self.kind, "tasks": list(self.tasks), "parts": list(self.parts), **versions, "place": place}

    @property
    def _versions(self) -> dict[str, Any]:
        return {"before": self.before, "after": self.after}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Read:
    """A task or group of one revision: its version, where that is written; of a group its scoring, of a class its code.

    `members` are names of tasks, groups and tags.
    """

    version: Any
    place: Position | None
    scoring: str = ""
    code: str = ""
    members: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()


def counted_parts(rootdir: Path) -> frozenset[str]:
    """Return the parts that count as a change, by the settings file of a rootdir; raises SettingsError for that."""
    path = find_settings_file(rootdir)
    values = read_settings_file(path, is_at_rootdir=True).values if path is not None else {}
    return frozenset(values.get("version_parts", PARTS))


def changed_parts(clusters: Iterable[Mapping[str, Any]]) -> dict[str, frozenset[Part]]:
    """Return what changed in each task of a result, as JSON has it.

    Tokens are about the tokenizer and do not count; nor do the names of columns, which say nothing of what is in them.
    """
    found: dict[str, frozenset[Part]] = {}
    for cluster in clusters:
        for member in cluster["members"] if cluster["category"] == "changed" else ():
            titles = {title for title in member.get("sections", ()) if not title.startswith((TOKENS, COLUMNS))}
            parts = {_SECTIONS.get(_OF_SECTION.sub("", title), "metric") for title in titles}
            found[member["task"]] = found.get(member["task"], frozenset()) | parts
    return found


def version_gate(
    before: Path,
    after: Path,
    changed: Mapping[str, Collection[Part]],
    *,
    files: Mapping[str, str],
    counts: Collection[str],
    differences: Iterable[SourceDifference] = (),
    unknown: Collection[str] = (),
    unrendered: Collection[str] = (),
) -> tuple[VersionFinding, ...]:
    """Return how versions and changes fit together, forgotten versions first.

    `before` and `after` are folders with both revisions. `changed` is what rendering found, by `name` or
    `name@format`; `files` are the task files to read, those of `after` with what each was called in `before`; `counts`
    are the parts that count as a change. `differences` are the tasks that are written differently, `unknown` those of
    which rendering could not say whether they changed, `unrendered` those that were not rendered. No code is run.
    """
    old, new = _read_all(before, files.values()), _read_all(after, files)
    written = {each.new.name: each for each in differences}
    found: dict[tuple[Kind, Position | None, str, str], tuple[list[str], set[Part], _Read, _Read]] = {}

    def add(kind: Kind, name: str, parts: Collection[Part] = ()) -> None:
        key = (kind, new[name].place, str(old[name].version), str(new[name].version))
        names, known, _, _ = found.setdefault(key, ([], set(), old[name], new[name]))
        names.append(name)
        known.update(parts)

    shown: dict[str, set[Part]] = {}
    for id_, sections in changed.items():
        shown.setdefault(_name(id_, new), set()).update(sections)
    unseen = {_name(id_, new) for id_ in unknown}
    touched: set[str] = set()
    for name in sorted(old.keys() & new.keys()):
        one, other = old[name], new[name]
        parts = shown.get(name, set())
        if (one.scoring, one.members) != (other.scoring, other.members):
            parts = {*parts, "metric"}
        keys = {change.key for change in written[name].changes} if name in written else set()
        is_own = (
            bool(keys - {_OWN_DOCS})
            or one.code != other.code
            or (one.members, one.scoring)
            != (
                other.members,
                other.scoring,
            )
        )
        is_seen = bool(parts)
        if not parts and name in unseen:
            parts = {_KEYS.get(key, "text") for key in keys} or {"text"}
        parts = {part for part in parts if part in counts}
        if parts:
            touched |= {name, *other.tags}
        if one.version != other.version:
            if parts or (name not in unrendered and name not in unseen):
                add("raised" if parts else "alone", name, parts)
        elif parts and (is_seen or other.version is not None):
            kind: Kind = "missing" if other.version is None else "unsure" if not is_seen else "elsewhere"
            add("kept" if kind == "elsewhere" and is_own else kind, name, parts)
    for name in sorted(_groups_of(touched, new) & old.keys() - touched):
        if old[name].version is not None and old[name].version == new[name].version:
            add("members", name)
    order = get_args(Kind)
    findings = [
        VersionFinding(
            kind=kind,
            tasks=tuple(names),
            parts=tuple(part for part in PARTS if part in parts),
            before=one.version,
            after=other.version,
            place=_below(other.place, after),
        )
        for (kind, *_), (names, parts, one, other) in found.items()
    ]
    return tuple(sorted(findings, key=lambda finding: (order.index(finding.kind), finding.tasks)))


def _name(task_id: str, known: Collection[str]) -> str:
    return task_id if task_id in known else task_id.rpartition("@")[0] or task_id


def _groups_of(names: Collection[str], known: Mapping[str, _Read]) -> set[str]:
    """Return the groups that hold one of these names, directly or through other groups."""
    reached, found = set(names), set[str]()
    while True:
        more = {name for name, read in known.items() if name not in found and not read.members.isdisjoint(reached)}
        if not more:
            return found
        found |= more
        reached |= more


def _read_all(tree: Path, files: Collection[str]) -> dict[str, _Read]:
    index = TaskIndex()
    found: dict[str, _Read] = {}
    for name in files:
        path = tree / name
        if path.suffix == ".py":
            found |= {ref.name: _class(ref, tree) for ref in classes_of(path)}
        elif path.suffix in _SUFFIXES and path.is_file():
            found |= _of_file(path, index, tree)
    return found


def _of_file(path: Path, index: TaskIndex, tree: Path) -> dict[str, _Read]:
    try:
        file = read_task_file(path, index)
    except (PromptfmtError, OSError):
        return {}  # reported where the file is run
    if file is None:
        return {}
    found = {task.name: _read(task.metadata, task.config, task.locate) for task in file.tasks}
    for task in file.tasks:
        refs = [ref for ref in class_refs(task.config, path, tree) if ref.file.is_file()]
        if refs and found[task.name].version is None:
            found[task.name] = _class(refs[0], tree)
    if file.kind == "group" and file.yaml is not None:
        found[file.names[0]] = _read(file.yaml.config.get("metadata"), file.yaml.config, file.yaml.locate)
    return found


def _read(metadata: Any, config: Mapping[Any, Any], locate: Locate) -> _Read:
    tags = config.get("tag")
    return _Read(
        version=metadata.get("version") if isinstance(metadata, Mapping) else None,
        place=locate(_AT_TOP),
        scoring=repr(config.get("aggregate_metric_list")),
        members=frozenset(_members(config)),
        tags=frozenset(tag for tag in (tags if isinstance(tags, list) else [tags]) if isinstance(tag, str)),
    )


def _members(config: Mapping[Any, Any]) -> Iterator[str]:
    """Yield the names in the list of a group, and in the groups that are written inside it."""
    entries = config.get("task")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping):
            yield from _members(entry)
        name = entry.get("task") if isinstance(entry, Mapping) else entry
        if isinstance(name, str):
            yield name.partition("@")[0]


def _class(ref: FunctionRef, tree: Path) -> _Read:
    """Return what is read of a class: its version is its own, or that of the next class above it in the tree."""
    closure = closure_of(ref.file, ref.name, tree)
    classes = {
        node.name: (tree / each.file, node)
        for each in closure.values()
        for node in each.nodes
        if isinstance(node, ast.ClassDef)
    }
    code = repr(sorted((key, *(piece.form for piece in each.pieces)) for key, each in closure.items()))
    waiting, seen = [ref.name], set[str]()
    while waiting:
        current = waiting.pop(0)
        if current in seen or current not in classes:
            continue
        seen.add(current)
        path, node = classes[current]
        for target, value in _assigned(node):
            if target in CLASS_VERSIONS and isinstance(value, ast.Constant):
                place = Position(path, value.lineno, value.col_offset + 1)
                return _Read(version=value.value, place=place, code=code)
        waiting += [base.id for base in node.bases if isinstance(base, ast.Name)]
    return _Read(version=None, place=None, code=code)


def _assigned(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr | None]]:
    for statement in node.body:
        if isinstance(statement, ast.Assign):
            yield from ((target.id, statement.value) for target in statement.targets if isinstance(target, ast.Name))
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, statement.value


def _below(place: Position | None, tree: Path) -> Position | None:
    return place and Position(Path(os.path.relpath(place.path, tree)), place.line, place.column)
