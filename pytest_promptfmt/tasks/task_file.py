"""A file that defines tasks, and how lm-eval 0.4.13 reads one of a YAML file or a mapping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_promptfmt.core.errors import OwnPromptsError, Position, SourceError, UnavailableError
from pytest_promptfmt.core.task import Task, locate_nowhere
from pytest_promptfmt.tasks.groups import group_tasks
from pytest_promptfmt.tasks.recognition import FileKind, kind_of, read_if_task
from pytest_promptfmt.tasks.task_config import check_name, task_from_config
from pytest_promptfmt.tasks.task_index import TaskIndex
from pytest_promptfmt.tasks.yaml_file import YamlFile

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
    try:
        file = read_if_task(path)
    except OSError as error:
        raise SourceError(f"the file cannot be read: {error.strerror}", position=Position(path)) from error
    if file is None:
        return None
    notes = tuple(f"{position}: {key!r} is written twice; the later one wins" for key, position, _ in file.repeated)
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
