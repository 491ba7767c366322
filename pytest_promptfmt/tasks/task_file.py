"""A file that defines tasks, and how lm-eval 0.4.13 reads one of a YAML file or a mapping, with the tasks of a group.

Of a group only the tasks that it defines or changes are made. What overrides what follows lm-eval: a member's own YAML,
then the extra keys of the group that lists it, then what comes from outer groups, then the keys of the member's entry.
Where lm-eval's loader fails on a group that is plainly meant (loaded by path, an inline member with `include` or `tag`,
overrides for a whole group or tag), the group works here, with a note that lm-eval itself fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pytest_promptfmt.core.errors import (
    OwnPromptsError,
    Position,
    SourceError,
    UnavailableError,
    did_you_mean,
    display_path,
    raising,
)
from pytest_promptfmt.core.task import FunctionRef, Locate, Task, locate_nowhere, nearest
from pytest_promptfmt.tasks.recognition import FileKind, kind_of, read_if_task
from pytest_promptfmt.tasks.task_config import check_name, task_from_config
from pytest_promptfmt.tasks.task_index import IndexEntry, TaskIndex
from pytest_promptfmt.tasks.yaml_file import YamlFile, read_include

ClassReader = Callable[[YamlFile, Path], Task | None]
"""Makes a task of a YAML file with the key `class`; None for a class of another kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskFile:
    """A file that defines tasks: one, a group, or Python task classes.

    `names` are the names that it registers; `tasks` are the tasks that it defines or changes. `unresolved` are members
    of a group that the index does not know, `yaml` is what was read of a YAML file. `untested` are the names of what
    is not made a task, and why. `notes` are for people. `group_notes` are those of a group, and whether
    a member is lost there. `problems` are parts that cannot be used, while the rest can.
    """

    path: Path
    kind: FileKind = "task"
    tasks: tuple[Task, ...] = ()
    names: tuple[str, ...] = ()
    untested: Mapping[str, UnavailableError] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    group_notes: Mapping[str, bool] = field(default_factory=dict)
    unresolved: tuple[str, ...] = ()
    yaml: YamlFile | None = None
    problems: tuple[SourceError, ...] = ()


def read_task_yaml(
    path: Path, index: TaskIndex | None = None, class_readers: Iterable[ClassReader] = ()
) -> TaskFile | None:
    """Return what a YAML file defines; None for YAML that has nothing to do with tasks.

    Members of a group are looked up in `index`, else below the file's own folder. `class_readers` make the task of a
    class. Raises SourceError, with the position, for a file that looks like a task or group and cannot be read as one.
    """
    with raising(SourceError, "the file cannot be read", Position(path)):
        file = read_if_task(path)
    if file is None:
        return None
    notes = tuple(
        f"{position}: {key!r} is written twice; only the later value counts" for key, position, _ in file.repeated
    )
    match kind_of(file.config):
        case "class":
            return _class_file(path, file, notes, class_readers)
        case "group":
            index = TaskIndex() if index is None else index
            if not index.covers(file.path):
                index.add(file.path.parent)
            found = group_tasks(file.config, path=path, locate=file.locate, index=index)
            return TaskFile(
                path=path,
                kind="group",
                tasks=tuple(found.tasks.values()),
                names=(file.config["group"],),
                untested=found.untested,
                notes=(*notes, *found.notes),
                group_notes=found.notes,
                unresolved=tuple(found.unresolved),
                yaml=file,
            )
        case _:
            task = task_from_config(file.config, path=path, locate=file.locate)
            return TaskFile(path=path, tasks=(task,), names=(task.name,), notes=notes, yaml=file)


def tasks_of_mapping(config: Mapping[str, Any]) -> tuple[Task, ...]:
    """Return the task, or the tasks of the group, whose keys a mapping holds; raises SourceError."""
    if kind_of(config) == "group":
        return tuple(group_tasks(config, path=None, locate=locate_nowhere, index=TaskIndex()).tasks.values())
    return (task_from_config(config, path=None, locate=locate_nowhere),)


def _class_file(path: Path, file: YamlFile, notes: tuple[str, ...], class_readers: Iterable[ClassReader]) -> TaskFile:
    for class_task in class_readers:
        task = class_task(file, path)
        if task is not None:
            return TaskFile(path=path, kind="class", tasks=(task,), names=(task.name,), notes=notes, yaml=file)
    name = file.config.get("task")
    if not isinstance(name, str) or not name:
        raise SourceError(
            "a Python task class needs a name: the key `task` is missing",
            position=file.locate(("class",)),
            hint="lm-eval 0.4.13 ignores the file",
        )
    check_name(name, file.locate(("task",)))
    untested = {name: OwnPromptsError.of(name, file.config["class"])}
    return TaskFile(path=path, kind="class", names=(name,), untested=untested, notes=notes, yaml=file)


# -- groups ------------------------------------------------------------------------------------------------------------

GROUP_KEYS: Final = ("group", "group_alias", "task", "aggregate_metric_list", "metadata")
"""Keys that describe a group; every other key overrides its members."""
_AGGREGATE_KEYS: Final = ("metric", "filter_list", "aggregation", "weight_by_size")
_NAMING_KEYS: Final = frozenset({"task", "task_alias", "tag", "group", "task_list", "metadata"})
"""Keys that change neither prompts nor scores."""
_MAX_NESTING: Final = 50
_MAX_MEMBERS: Final = 100_000


def group_tasks(config: Mapping[Any, Any], *, path: Path | None, locate: Locate, index: TaskIndex) -> GroupTasks:
    """Return the tasks that a group's merged mapping defines or changes.

    Raises SourceError with the position for a member of the wrong shape, an unknown key of aggregate_metric_list,
    and groups that contain each other.
    """
    name = config.get("group")
    if not isinstance(name, str) or not name:
        hint = "to label tasks, use `tag:` instead (since lm-eval 0.4.4)" if isinstance(name, list) else None
        position = locate(("group",)) or (Position(path) if path is not None else None)
        raise SourceError("the name of a group must be text", position=position, hint=hint)
    found = GroupTasks(index, path)
    found.group(name, config, _Origins(locate, ()), {}, (name,))
    return found


@dataclass(frozen=True, slots=True)
class _Origins:
    """Where the keys of one mapping were written: a file's `locate`, and the path to the mapping in that file."""

    locate: Locate
    prefix: tuple[str | int, ...]

    def at(self, *keys: str | int) -> Position | None:
        """Return the place of a key, or of the nearest parent that is written."""
        return nearest(self.locate, (*self.prefix, *keys))


_Overrides = Mapping[Any, tuple[Any, _Origins]]
"""Key to its value and the mapping it was written in."""


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where a member is listed: its group by dotted name, the groups around that, their overrides, and the place."""

    name: str
    route: tuple[str, ...]
    overrides: _Overrides
    place: _Origins


@dataclass
class GroupTasks:
    """The tasks that a group file adds to those that exist without it, found in one walk over it.

    `tasks` are its inline tasks and the members whose config it changes, named `group.member`. `unresolved` are the
    names of members that the index does not know, `untested` those that are not made tasks, and why. `notes` are places
    where lm-eval 0.4.13 itself fails or does nothing, and whether a member is lost there.
    """

    index: TaskIndex
    path: Path | None
    tasks: dict[str, Task] = field(default_factory=dict)
    unresolved: dict[str, None] = field(default_factory=dict)
    untested: dict[str, UnavailableError] = field(default_factory=dict)
    notes: dict[str, bool] = field(default_factory=dict)
    without_circles: set[str] = field(default_factory=set)
    visits: int = 0
    suffix: str = ""
    """`@format` where the members being visited were named with one."""

    def group(
        self, name: str, config: Mapping[Any, Any], origins: _Origins, outer: _Overrides, route: tuple[str, ...]
    ) -> None:
        """Visit a group: `name` is its dotted name, `outer` what outer groups override, `route` the groups it is in."""
        _check_aggregation(config, origins, self.index)
        overrides = {**_overriding(config, origins), **outer}
        members = config.get("task")
        if not isinstance(members, list):
            self.notes[f"group {name!r} has no list under `task`, so in lm-eval 0.4.13 it has no members"] = False
            return
        for number, member in enumerate(members):
            spot = _Spot(name, route, overrides, _Origins(origins.locate, (*origins.prefix, "task", number)))
            self.visits += 1
            if self.visits > _MAX_MEMBERS:
                raise self._error(spot, f"this group has more than {_MAX_MEMBERS:,} members")
            if isinstance(member, str):
                self._named(spot, member, {})
            elif isinstance(member, Mapping):
                self._mapping(spot, member)
            else:
                raise self._error(spot, f"a member of a group must be a name or a mapping, but this one is {member!r}")

    def _mapping(self, spot: _Spot, member: Mapping[Any, Any]) -> None:
        if "group" in member:
            inner = self._member_name(member, "group", spot.place)
            entry = self.index.member(inner)
            within = replace(spot, overrides={**spot.overrides, **_overriding(member, spot.place)})
            if entry is None and self.index.member(inner.rpartition("@")[0]) is not None:
                self._named(within, inner, {})
            elif entry is not None and entry.kind == "group":
                self._known_group(within, entry)
            else:
                self.group(f"{spot.name}.{inner}", member, spot.place, spot.overrides, self._deeper(spot, inner))
            return
        prompts, harness = member.get("use_prompt"), self.index.harness
        names = [str(member[key]) for key in ("task", "dataset_path", "dataset_name") if member.get(key)]
        has_wildcard = isinstance(prompts, str) and prompts.endswith("*")
        if has_wildcard and names and harness is not None and harness.registers_tasks:
            name = "_".join(names)
            message = f"{name} stands for several tasks, one for each prompt of {prompts}"
            error = UnavailableError(message, position=spot.place.at())
            error.because("`use_prompt` has a wildcard, which lm-eval 0.4.2 and later do not accept")
            self.untested[f"{name} ({prompts})" if name in self.untested else name] = error
            return
        if "task" not in member:
            keys = ", ".join(f"`{key}`" for key in list(member)[:5]) or "nothing"
            message = f"a member of group {spot.name!r} needs the key `task` or `group`; this member has only {keys}"
            raise self._error(spot, message, hint="add the key. Until then, lm-eval 0.4.13 does not load the group")
        own = {key: (value, spot.place) for key, value in member.items()}
        self._named(spot, self._member_name(member, "task", spot.place), own)

    def _named(self, spot: _Spot, member: str, own: _Overrides) -> None:
        entry = self.index.member(member)
        outer_suffix = self.suffix
        if entry is None and "@" in member:  # the whole name comes first: a task's own name may contain an @
            known, _, format_name = member.rpartition("@")
            entry = self.index.member(known)
            if entry is not None:
                member, self.suffix = known, f"@{format_name}"
        together = {**spot.overrides, **own}
        if entry is None:
            self._unknown(spot, member, together, own)
        elif entry.kind == "group":
            self._note_renamed(own, member, "group")
            self._known_group(
                replace(spot, overrides={key: value for key, value in together.items() if key != "task"}), entry
            )
        elif entry.kind == "tag":
            self._note_renamed(own, member, "tag")
            for tagged in entry.tagged:
                child = self.index.member(tagged)
                if child is not None:
                    self._changed(spot, child, together)
        elif entry.path is not None and entry.path.suffix == ".py":
            self.untested[member] = OwnPromptsError.of(member, display_path(entry.path))
        else:
            self._changed(spot, entry, together)
        self.suffix = outer_suffix

    def _note_renamed(self, own: _Overrides, member: str, kind: str) -> None:
        if own:
            is_group = kind == "group"
            advice = f"write `- group: {member}` to override a group" if is_group else "list each task instead"
            note = (
                f"lm-eval 0.4.13 gives all tasks of {member!r} the same name, and runs only the last of them; {advice}"
            )
            self.notes[note] = True

    def _known_group(self, spot: _Spot, entry: IndexEntry) -> None:
        assert entry.file is not None
        deeper = self._deeper(spot, entry.name)
        if not spot.overrides and not self.suffix:
            # Taken over as it is: nothing below it can differ from what its own file defines.
            self._check_circles(replace(spot, route=deeper), entry)
            return
        origins = _Origins(entry.file.locate, ())
        self.group(f"{spot.name}.{entry.name}", entry.file.config, origins, spot.overrides, deeper)

    def _check_circles(self, spot: _Spot, entry: IndexEntry) -> None:
        if entry.name in self.without_circles or entry.file is None:
            return
        members = entry.file.config.get("task")
        for member in members if isinstance(members, list) else ():
            name = member.get("group", member.get("task")) if isinstance(member, Mapping) else member
            inner = self.index.member(name) if isinstance(name, str) else None
            if inner is not None and inner.kind == "group":
                self._check_circles(replace(spot, route=self._deeper(spot, inner.name)), inner)
        self.without_circles.add(entry.name)

    def _deeper(self, spot: _Spot, name: str) -> tuple[str, ...]:
        route = spot.route
        if name in route:
            circle = " -> ".join((*route[route.index(name) :], name))
            raise self._error(spot, f"these groups contain each other: {circle}")
        if len(route) >= _MAX_NESTING:
            raise self._error(spot, f"groups are nested more than {_MAX_NESTING} deep")
        return (*route, name)

    def _changed(self, spot: _Spot, entry: IndexEntry, overrides: _Overrides) -> None:
        """Add a member when the overrides change what it asks or how it is scored."""
        if entry.kind != "task" or entry.file is None:
            return
        child = entry.file.config
        if "include" in overrides:  # its keys count less than those of the task, as in releases that took it
            written, place = overrides["include"]
            included = self._included(entry.name, written, place)
            more = {key: (value, _Origins(included.locate, ())) for key, value in included.config.items()}
            more = {key: value for key, value in more.items() if key not in child}
            overrides = {**more, **{key: value for key, value in overrides.items() if key != "include"}}
        changes = {
            key: value
            for key, value in overrides.items()
            if key != "task" and (key not in child or not _same(child[key], value[0]))
        }
        if not self.suffix and not any(_matters(key, child.get(key), value[0]) for key, value in changes.items()):
            return
        config = {**child, **{key: value[0] for key, value in changes.items()}}
        self._add(spot.name, entry.name + self.suffix, config, _combined(changes, entry.file.locate))

    def _unknown(self, spot: _Spot, member: str, together: _Overrides, own: _Overrides) -> None:
        """Add a member that no file defines, if its keys make a task of it."""
        keys = {key: value[0] for key, value in together.items()}
        if "class" in own:
            self.untested[member] = OwnPromptsError.of(member, keys["class"])
            return
        included: YamlFile | None = None
        if "include" in own:
            included = self._included(member, keys.pop("include"), spot.place)
            keys = {**included.config, **keys}
        whole = "dataset_path" in keys or "custom_dataset" in keys or {"doc_to_text", "doc_to_target"} <= keys.keys()
        if not own or (included is None and not whole):
            self.unresolved[member] = None
            return
        beneath = included.locate if included is not None else locate_nowhere
        config = {**keys, "task": member}
        self._add(spot.name, member if "@" in member else member + self.suffix, config, _combined(together, beneath))

    def _included(self, member: str, written: Any, place: _Origins) -> YamlFile:
        self.notes[f"lm-eval 0.4.13 does not accept the member {member!r}, because it has `include`"] = True
        return read_include(written, (*place.prefix, "include"), place.locate, self.path)

    def _add(self, group: str, member: str, config: Mapping[Any, Any], locate: Locate) -> None:
        name = f"{group}.{member}"
        if name in self.tasks:
            self.notes[f"{name!r} is defined twice in this group; lm-eval 0.4.13 uses only the last definition"] = False
        self.tasks[name] = task_from_config(
            MappingProxyType(dict(config)), path=self.path, locate=locate, name=name, group=group
        )

    def _member_name(self, member: Mapping[Any, Any], key: str, place: _Origins) -> str:
        name = member[key]
        if isinstance(name, str) and name:
            return name
        hint = "a list of tasks needs a group name: write `- group: name` with this list under `task`"
        message = f"`{key}` of a group member must be one name, not {name!r}"
        raise SourceError(message, position=place.at(key), hint=hint if isinstance(name, list) else None)

    def _error(self, spot: _Spot, message: str, hint: str | None = None) -> SourceError:
        position = spot.place.at() or (Position(self.path) if self.path is not None else None)
        return SourceError(message, position=position, hint=hint)


def _overriding(config: Mapping[Any, Any], origins: _Origins) -> _Overrides:
    return {key: (value, origins) for key, value in config.items() if key not in GROUP_KEYS}


def _combined(overrides: _Overrides, beneath: Locate) -> Locate:

    def locate(keys: tuple[str | int, ...]) -> Position | None:
        if keys and keys[0] in overrides:
            origins = overrides[keys[0]][1]
            return origins.locate((*origins.prefix, *keys))
        return beneath(keys)

    return locate


def _matters(key: Any, before: Any, after: Any) -> bool:
    if key == "metadata":
        own = [each.get("promptfmt") if isinstance(each, Mapping) else None for each in (before, after)]
        return not _same(*own)
    return key not in _NAMING_KEYS


def _same(first: Any, second: Any) -> bool:
    """Return whether two values mean the same; a function is the same in all places where its tag is written."""
    if isinstance(first, FunctionRef) and isinstance(second, FunctionRef):
        return (first.module, first.name, first.directory) == (second.module, second.name, second.directory)
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(_same(first[key], second[key]) for key in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(_same, first, second))
    return type(first) is type(second) and bool(first == second)


def _check_aggregation(config: Mapping[Any, Any], origins: _Origins, index: TaskIndex) -> None:
    written = config.get("aggregate_metric_list")
    for number, entry in enumerate(written if isinstance(written, list) else [] if written is None else [written]):
        keys = ("aggregate_metric_list", *((number,) if isinstance(written, list) else ()))
        position = origins.at(*keys)
        if not isinstance(entry, Mapping) or "metric" not in entry:
            raise SourceError(
                "an entry of aggregate_metric_list must be a mapping with the key `metric`", position=position
            )
        for key in entry:
            if key not in _AGGREGATE_KEYS:
                message = f"unknown key {key!r} in aggregate_metric_list"
                hint = did_you_mean(str(key), _AGGREGATE_KEYS)
                raise SourceError(message, position=origins.at(*keys, key), hint=hint)
        aggregation = entry.get("aggregation", "mean")
        if aggregation == "mean" or isinstance(aggregation, FunctionRef) or callable(aggregation):
            continue
        if index.harness is None or aggregation not in index.harness.group_aggregations:
            message = f"aggregation must be mean or a !function, not {aggregation!r}"
            raise SourceError(message, position=origins.at(*keys, "aggregation"))
