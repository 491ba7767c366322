"""Versions of tasks and groups against changes: scores may be compared only if the version is the same.

Rendering finds the changes; this module reads the versions of both revisions, finds those that were forgotten, and
edits the number in the file that holds it, without changing any other byte.
"""

from __future__ import annotations

import ast
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any, Final, Literal, get_args

from pytest_promptfmt.core import gate, writing
from pytest_promptfmt.core.errors import Position, SourceError
from pytest_promptfmt.core.task import FunctionRef
from pytest_promptfmt.revisions.code_changes import CLASS_VERSIONS, closure_of
from pytest_promptfmt.revisions.source_changes import SourceDifference, WrittenTask, written_in
from pytest_promptfmt.revisions.verdicts import SOME_DOCS, Place
from pytest_promptfmt.settings.file import find_settings_file, read_settings_file
from pytest_promptfmt.snapshots.changes import FEW_SHOT, SCORING
from pytest_promptfmt.snapshots.content import COLUMNS
from pytest_promptfmt.snapshots.token_sections import TITLE as TOKENS

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
_UNCERTAIN: Final = (TOKENS, COLUMNS, SOME_DOCS)
_OWN_DOCS: Final = "metadata.promptfmt"
_OF_SECTION: Final = re.compile(r" (?:\d+ of \d+|without context)$")
_AT_TOP: Final = ("metadata", "version")


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionFinding:
    """How the version and the prompts of tasks changed; the tasks share one version in one place.

    `kind` is `kept` (prompts or scoring changed, the version did not), `unsure` (the same, but the change is only
    possible), `elsewhere` (prompts changed, but neither the version nor keys nor functions: docs, settings or templates
    did), `members` (tasks of a group changed, its version did not), `missing` (changed without a version), `raised`
    (both changed) or `alone` (only the version changed). `place` is the line of the version, relative to the compared
    folders; None for a missing version.
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
        both = {"before": self.before, "after": self.after}
        versions = {name: None if value is None else str(value) for name, value in both.items()}
        place = None if self.place is None else {"file": self.place.path.as_posix(), "line": self.place.line}
        return {"kind": self.kind, "tasks": list(self.tasks), "parts": list(self.parts), **versions, "place": place}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Read:
    """A task or group of one revision: its version with its place, and the scoring of a group.

    `members` are names of tasks, groups and tags.
    """

    version: Any
    place: Position | None
    scoring: str = ""
    members: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()


def counted_parts(rootdir: Path) -> frozenset[str]:
    """Return the parts that count as a change, by the settings file of a rootdir; raises SettingsError for that."""
    path = find_settings_file(rootdir)
    values = read_settings_file(path, is_at_rootdir=True).values if path is not None else {}
    return frozenset(values.get("version_parts", PARTS))


def changed_parts(clusters: Iterable[Mapping[str, Any]]) -> dict[Place, frozenset[Part]]:
    """Return the changed parts of each task of a result in JSON's types.

    Tokens depend on the tokenizer and do not count; nor do names of columns, which do not change their content, nor
    changes that only variants of docs show.
    """
    found: dict[Place, frozenset[Part]] = {}
    for cluster in clusters:
        for member in cluster["members"] if cluster["category"] == "changed" else ():
            titles = {title for title in member.get("sections", ()) if not title.startswith(_UNCERTAIN)}
            parts = {_SECTIONS.get(_OF_SECTION.sub("", title), "metric") for title in titles}
            place = member["file"], member["task"]
            found[place] = found.get(place, frozenset()) | parts
    return found


def version_gate(
    before: Path,
    after: Path,
    changed: Mapping[Place, Collection[Part]],
    *,
    files: Mapping[str, str],
    counts: Collection[str],
    differences: Iterable[SourceDifference] = (),
    unknown: Collection[Place] = (),
    unrendered: Collection[Place] = (),
) -> tuple[VersionFinding, ...]:
    """Return how versions and changes fit together, forgotten versions first. No code is run.

    `before` and `after` are folders with both revisions. `changed` are the parts that rendering found, by file with
    `name` or `name@format`; `files` maps the task files of `after` to their names in `before`; `counts` are the parts
    that count as a change. `differences` are the tasks that are written differently, `unknown` those for which
    rendering could not decide whether they changed, `unrendered` those that were not rendered.
    """
    sides = [
        [(name, task) for name, own in paths.items() for task in written_in(tree, own).values()]
        for tree, paths in ((before, files), (after, {name: name for name in files}))
    ]
    several = {name for side in sides for name in repeated((file, task.name) for file, task in side)}

    def place_of(file: str, name: str) -> Place:
        return file if name in several else "", name

    old, new = ({place_of(file, task.name): _read(task) for file, task in side} for side in sides)

    def known_place(file: str, id_: str) -> Place:
        place = place_of(file, id_)
        return place if place in new else place_of(file, id_.rpartition("@")[0] or id_)

    written = {place_of(each.file, each.new.name): each for each in differences}
    found: dict[tuple[Kind, Position | None, str, str], tuple[list[str], set[Part], _Read, _Read]] = {}

    def add(kind: Kind, place: Place, parts: Collection[Part] = ()) -> None:
        key = (kind, new[place].place, str(old[place].version), str(new[place].version))
        names, known, _, _ = found.setdefault(key, ([], set(), old[place], new[place]))
        if place[1] not in names:
            names.append(place[1])
        known.update(parts)

    shown: dict[Place, set[Part]] = {}
    for (file, id_), sections in changed.items():
        shown.setdefault(known_place(file, id_), set()).update(sections)
    unseen, unrendered = ({known_place(*each) for each in places} for places in (unknown, unrendered))
    touched: set[str] = set()
    for place in sorted(old.keys() & new.keys(), key=lambda place: place[::-1]):
        name, one, other = place[1], old[place], new[place]
        is_regrouped = (one.scoring, one.members) != (other.scoring, other.members)
        parts = {*shown.get(place, ())}
        if is_regrouped:
            parts.add("metric")
        keys = {change.key for change in written[place].changes} if place in written else set()
        is_own = bool(keys - {_OWN_DOCS}) or is_regrouped
        is_seen = bool(parts)
        if not parts and place in unseen:
            parts = {_KEYS.get(key, "text") for key in keys} or {"text"}
        parts = {part for part in parts if part in counts}
        if parts:
            touched |= {name, *other.tags}
        if one.version != other.version:
            if parts or (place not in unrendered and place not in unseen):
                add("raised" if parts else "alone", place, parts)
        elif parts and (is_seen or other.version is not None):
            kind: Kind = "missing" if other.version is None else "unsure" if not is_seen else "elsewhere"
            add("kept" if kind == "elsewhere" and is_own else kind, place, parts)
    for place in sorted(_groups_of(touched, new) & old.keys()):
        is_same = old[place].version is not None and old[place].version == new[place].version
        if place[1] not in touched and is_same:
            add("members", place)
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


def repeated(places: Iterable[Place]) -> frozenset[str]:
    """Return the names that several files define; a class with the name of a YAML file's task is that task."""
    counts = Counter(name for file, name in {*places} if not file.endswith(".py"))
    return frozenset(name for name, count in counts.items() if count > 1)


def _groups_of(names: Collection[str], known: Mapping[Place, _Read]) -> set[Place]:
    """Return the groups that hold one of these names, directly or through other groups."""
    found, held = set[Place](), {*names}
    while more := {place for place in known.keys() - found if not known[place].members.isdisjoint(held)}:
        found |= more
        held |= {name for _, name in more}
    return found


def _read(task: WrittenTask) -> _Read:
    config = task.config
    metadata, tags, ref = config.get("metadata"), config.get("tag"), task.values.get("class")
    version = metadata.get("version") if isinstance(metadata, Mapping) else None
    if version is None and isinstance(ref, FunctionRef):
        return _class(ref, task.top)
    return _Read(
        version=version,
        place=task.locate(_AT_TOP),
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
    """Return a class with its version, or with that of its nearest base class in the tree."""
    closure = closure_of(ref.file, ref.name, tree)
    classes = {
        node.name: (tree / each.file, node)
        for each in closure.values()
        for node in each.nodes
        if isinstance(node, ast.ClassDef)
    }
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
                return _Read(version=value.value, place=place)
        waiting += [base.id for base in node.bases if isinstance(base, ast.Name)]
    return _Read(version=None, place=None)


def _assigned(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr | None]]:
    for statement in node.body:
        if isinstance(statement, ast.Assign):
            yield from ((target.id, statement.value) for target in statement.targets if isinstance(target, ast.Name))
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, statement.value


def _below(place: Position | None, tree: Path) -> Position | None:
    return place and Position(Path(os.path.relpath(place.path, tree)), place.line, place.column)


# -- raised versions ---------------------------------------------------------------------------------------------------

_VERSION: Final = re.compile(r"(v?)([0-9]+)((?:\.[0-9]+)*)")
_WRITTEN: Final = re.compile(rb"""(?:["']?version["']?\s*:\s*)?["']?(v?[0-9]+(?:\.[0-9]+)*)["']?(?=[\s,}#\])]|$)""")
"""A version where it begins in Python, or with its key in YAML."""


@dataclass(frozen=True, slots=True)
class Bump:
    """A file with raised versions: its path as findings name it, and its bytes before and after."""

    name: Path
    before: bytes
    after: bytes

    @property
    def diff(self) -> list[str]:
        """Return the edit as a unified diff, line by line."""
        old, new = (text.decode("utf-8", "replace").splitlines() for text in (self.before, self.after))
        name = self.name.as_posix()
        return [*unified_diff(old, new, f"a/{name}", f"b/{name}", n=1, lineterm="")]


def next_version(version: object) -> str | None:
    """Return the next whole version in the same notation (`1.0`: `2.0`); None for a version that is not a number."""
    match = _VERSION.fullmatch(str(version))
    return match and f"{match[1]}{int(match[2]) + 1}{re.sub('[0-9]+', '0', match[3])}"


def bumps(findings: Iterable[VersionFinding], folder: Path, top: Path) -> tuple[list[Bump], list[SourceError]]:
    """Return the edits that raise the versions of errors, and errors for those that cannot be raised.

    Nothing is written. Paths are relative to `folder`; a link, or a file outside of `top`, is refused.
    """
    places: dict[Path, list[Position]] = {}
    for finding in findings:
        if finding.is_error and finding.place is not None:
            places.setdefault(finding.place.path, []).append(finding.place)
    made: list[Bump] = []
    refused: list[SourceError] = []
    for name, positions in places.items():
        try:
            before = after = _editable(folder / name, top)
            # From the end, so that a longer number does not move the places that follow.
            for place in sorted(set(positions), key=lambda place: (place.line or 0, place.column or 0), reverse=True):
                after = _raised(after, place)
            made.append(Bump(name, before, after))
        except SourceError as error:
            refused.append(error)
    return made, refused


def write_bumps(made: Iterable[Bump], folder: Path) -> None:
    """Write the edits; raises OSError."""
    for bump in made:
        writing.write(folder / bump.name, bump.after)


def _editable(path: Path, top: Path) -> bytes:
    try:
        if path.is_symlink() or not path.resolve().is_relative_to(top):
            raise gate.RefusedError("the file is a link, or outside the repository", path)
        return gate.read_bytes(path)
    except OSError as error:
        raise SourceError(f"the version cannot be raised: {error.strerror or error}", position=Position(path)) from None


def _raised(data: bytes, place: Position) -> bytes:
    lines, column = data.splitlines(keepends=True), (place.column or 1) - 1
    before, line = lines[: (place.line or 1) - 1], b"".join(lines[(place.line or 1) - 1 :][:1])
    if place.path.suffix != ".py":  # where columns count characters
        column = len(line.decode("utf-8", "replace")[:column].encode())
    match = _WRITTEN.match(data, sum(map(len, before)) + column)
    new = None if match is None else next_version(match[1].decode())
    if match is None or new is None:
        raise SourceError(
            "this version is not a number, so it cannot be raised automatically",
            position=place,
            hint="write the new version into the file",
        )
    return data[: match.start(1)] + new.encode() + data[match.end(1) :]
