"""Task files of lm-evaluation-harness 0.4.13: which tasks a file, a folder or a mapping defines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_promptfmt.core.errors import Position, SourceError, did_you_mean
from pytest_promptfmt.core.task import Task, locate_nowhere
from pytest_promptfmt.systems.eval_framework.tasks import names_task_class, task_of_class_file, tasks_of_module
from pytest_promptfmt.systems.helm.helm_file import SUFFIXES as HELM_SUFFIXES
from pytest_promptfmt.systems.helm.helm_file import looks_like_helm
from pytest_promptfmt.systems.lm_eval.groups import group_tasks
from pytest_promptfmt.systems.lm_eval.index import TaskIndex, yaml_files
from pytest_promptfmt.systems.lm_eval.kinds import Kind, kind_of, looks_like_task, read_if_task
from pytest_promptfmt.systems.lm_eval.task_config import check_name, task_from_config
from pytest_promptfmt.systems.lm_eval.yaml import YamlFile, resolved

__all__ = ["Kind", "TaskFile", "kind_of", "load_tasks", "looks_like_task", "read_task_file", "task_from_config"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskFile:
    """A file that defines a task, a group or Python task classes.

    `names` is the name it registers; `tasks` are the tasks that this file defines or changes. `unresolved` are
    members of a group that the index does not know, `yaml` what was read. `notes` are remarks for
    people; for a class of lm-eval's, why it has no tasks. `problems` are parts that cannot be used, while the rest can.
    """

    path: Path
    kind: Kind
    tasks: tuple[Task, ...] = ()
    names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()
    yaml: YamlFile | None = None
    problems: tuple[SourceError, ...] = ()


def read_task_file(path: Path, index: TaskIndex | None = None) -> TaskFile | None:
    """Return what a YAML file or a HELM adapter file defines; None for files that have nothing to do with tasks.

    Members of a group are looked up in `index`, to which the file's own folder is added where it does not cover it.
    Raises SourceError for a file that looks like a task and is broken.
    """
    path = Path(path)
    if path.suffix in HELM_SUFFIXES:
        return _helm_file(path)
    try:
        file = read_if_task(path)
    except OSError as error:
        raise SourceError(f"the file cannot be read: {error.strerror}", position=Position(path)) from error
    if file is None:
        return None
    notes = tuple(f"{position}: {key!r} is written twice; the later one wins" for key, position in file.repeated)
    match kind_of(file.config):
        case "class":
            return _class_file(path, file, notes)
        case "group":
            index = TaskIndex() if index is None else index
            if not index.covers(file.path):
                index.add(file.path.parent)
            found = group_tasks(file.config, path=path, locate=file.locate, index=index)
            return TaskFile(
                path=path,
                kind="group",
                tasks=found.tasks,
                names=(file.config["group"],),
                notes=(*notes, *found.notes),
                unresolved=found.unresolved,
                yaml=file,
            )
        case _:
            task = task_from_config(file.config, path=path, locate=file.locate)
            return TaskFile(path=path, kind="task", tasks=(task,), names=(task.name,), notes=notes, yaml=file)


def load_tasks(source: str | Path | Mapping[str, Any], *, allow_code: bool = False) -> list[Task]:
    """Return the tasks of a file, of all `*.yaml` and HELM files below a folder, or of a mapping with a task's keys.

    A Python file gives its task classes; that needs `allow_code`.

    With `allow_code` the Python functions of the tasks are imported and bound; without it they stay references, and
    rendering a task that needs one raises CodeNotAllowedError. Raises SourceError for the first file that is broken,
    FunctionError for the first function that cannot be imported.
    """
    if allow_code and not isinstance(source, Mapping) and Path(source).suffix == ".py":
        tasks = list(tasks_of_module(resolved(Path(source)), trusted=lambda _path: True))
    else:
        tasks = list(_tasks_of(source))
    if not allow_code:
        return tasks
    from pytest_promptfmt.systems.lm_eval.functions import bind_functions  # only where code may run

    return [bind_functions(task, trusted=lambda _path: True) for task in tasks]


def _tasks_of(source: str | Path | Mapping[str, Any]) -> tuple[Task, ...]:
    if isinstance(source, Mapping):
        if kind_of(source) == "group":
            return group_tasks(source, path=None, locate=locate_nowhere, index=TaskIndex()).tasks
        return (task_from_config(source, path=None, locate=locate_nowhere),)
    path = resolved(Path(source))
    if path.is_dir():
        index = TaskIndex([path])
        helm = (
            file for file in sorted(path.rglob("*.json*")) if file.suffix in HELM_SUFFIXES and looks_like_helm(file)
        )
        files = (read_task_file(file, index) for file in (*yaml_files(path), *helm))
        return tuple(task for file in files if file is not None for task in file.tasks)
    if not path.exists():
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise SourceError(
            "there is no such file or folder", position=Position(path), hint=did_you_mean(path.name, siblings)
        )
    file = read_task_file(path)
    if file is None:
        raise SourceError(
            "this file defines no task",
            position=Position(path),
            hint="a task has a `task` key, a group `group` and `task`, at the top level",
        )
    return file.tasks


def _helm_file(path: Path) -> TaskFile | None:
    from pytest_promptfmt.systems.helm.helm_tasks import read_helm_tasks  # only where there is such a file

    found = read_helm_tasks(path)
    if found is None:
        return None
    names = tuple(task.name for task in found.tasks)
    return TaskFile(path=path, kind="task", tasks=found.tasks, names=names, problems=found.source.bad)


def _class_file(path: Path, file: YamlFile, notes: tuple[str, ...]) -> TaskFile:
    if names_task_class(file.config, file.path):
        task = task_of_class_file(file, path)
        return TaskFile(path=path, kind="class", tasks=(task,), names=(task.name,), notes=notes, yaml=file)
    name = file.config.get("task")
    if not isinstance(name, str) or not name:
        raise SourceError(
            "a Python task class needs a name: the key `task` is missing",
            position=file.locate(("class",)),
            hint="lm-eval 0.4.13 drops the file without a word",
        )
    check_name(name, file.locate(("task",)))
    reason = f"{name} is a Python task class ({file.config['class']}): its prompts are made by its own code"
    return TaskFile(path=path, kind="class", names=(name,), notes=(*notes, reason))
