"""lm-evaluation-harness 0.4.13: YAML with `task`, `group` or `class`; docs, prompts, filters, metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_promptfmt import tasks
from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import FunctionError
from pytest_promptfmt.systems import HEAD_BYTES, ReadContext, ReadsClasses, System, known_systems

if TYPE_CHECKING:
    from pytest_promptfmt.core.docs import TaskDocs
    from pytest_promptfmt.core.profile import Profile
    from pytest_promptfmt.core.task import Task
    from pytest_promptfmt.tasks import TaskFile, YamlFile


class LmEval(System):
    """The system whose vocabulary all tasks have: field mappings, splits, filters, metrics."""

    name = "lm-eval"
    suffixes = (".yaml", ".yml")
    shape = "`task` (task); `group` and `task` (group)"
    packages = ("lm_eval",)
    distribution = "lm-eval"
    sends_whole = False
    harness = __name__

    def recognizes(self, path: Path, head: bytes) -> bool:
        """Return whether the top-level keys are those of a task, group or class, wherever in the file they are."""
        return tasks.looks_like_task(head if len(head) < HEAD_BYTES else gate.read_bytes(path))

    def read(self, path: Path, context: ReadContext) -> TaskFile | None:
        """Return the task, the group or the class of a file; raises SourceError."""
        readers = [system.class_task for system in known_systems().values() if isinstance(system, ReadsClasses)]
        return tasks.read_task_yaml(path, context.index, readers)

    def class_task(self, file: YamlFile, path: Path) -> Task | None:
        """Return the task of a class of lm-eval's Python interface; None for another class."""
        return tasks.task_of_class(file, path)

    def files(self, folder: Path) -> Iterator[Path]:
        """Yield every `*.yaml`, as lm-eval finds them; the other ending is for files that are named."""
        return tasks.yaml_files(folder)


def sees(_task: Task, profile: Profile) -> bool:
    """Return whether lm-eval has prompts for a profile; formatters are eval-framework's."""
    return profile.formatter is None


def requests_of(task: Task, docs: TaskDocs, shots: int) -> Callable[[Profile], list[list[Any]]]:
    """Return what makes the requests by the installed lm-eval; raises FunctionError, RenderError."""
    if not (task.assembly.renders_fields or task.assembly.is_class):
        raise FunctionError("this task does not use lm-eval's fields for its prompts")
    made = tasks.HarnessTask(task, docs, shots)
    return lambda profile: made.requests(profile, with_media=True)


SYSTEM: Final = LmEval()
