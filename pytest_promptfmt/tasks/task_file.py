"""A file that defines tasks, as every system reads it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pytest_promptfmt.core.errors import SourceError
    from pytest_promptfmt.core.task import Task
    from pytest_promptfmt.tasks.yaml_file import YamlFile

FileKind = Literal["task", "group", "class"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskFile:
    """A file that defines tasks: one, a group, or Python task classes.

    `names` are the names that it registers; `tasks` are the tasks that it defines or changes. `unresolved` are members
    of a group that the index does not know, `yaml` is what was read of a YAML file. `notes` are remarks for people; for
    a class of lm-eval's own, why it has no tasks. `problems` are parts that cannot be used, while the rest can.
    """

    path: Path
    kind: FileKind = "task"
    tasks: tuple[Task, ...] = ()
    names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()
    yaml: YamlFile | None = None
    problems: tuple[SourceError, ...] = ()
