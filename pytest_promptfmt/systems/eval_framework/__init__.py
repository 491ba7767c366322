"""eval-framework 0.15.4: tasks that are Python classes, named in YAML by `class` or found in Python files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_promptfmt.systems import ReadContext, System
from pytest_promptfmt.tasks import TaskFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_promptfmt.core.task import Task
    from pytest_promptfmt.tasks import YamlFile


class EvalFramework(System):
    """Task classes and objects that yield samples."""

    name = "eval-framework"
    suffixes = (".py",)
    rules = ("pytest_promptfmt.systems.eval_framework.class_rules",)
    packages = ("eval_framework", "template_formatting")
    distribution = "eval-framework"
    sends_whole = False
    harness = "pytest_promptfmt.systems.eval_framework.harness_side"

    def recognizes(self, path: Path, head: bytes) -> bool:
        """Return True: a Python file is only asked about where it was named."""
        return True

    def read(self, path: Path, context: ReadContext) -> TaskFile:
        """Return the task classes of a Python file, which is imported; raises CodeNotAllowedError, FunctionError."""
        from pytest_promptfmt.systems.eval_framework.tasks import tasks_of_module

        tasks = tasks_of_module(path, trusted=context.trusted, time_limit=context.import_limit)
        return TaskFile(path=path, kind="class", tasks=tasks, names=tuple(task.name for task in tasks))

    def files(self, folder: Path) -> Iterator[Path]:
        """Yield nothing: no code runs because a folder is loaded."""
        return iter(())

    def class_task(self, file: YamlFile, path: Path) -> Task | None:
        """Return the task of a file that gives docs or names the class by its module; None for a class of lm-eval's."""
        from pytest_promptfmt.systems.eval_framework.tasks import names_task_class, task_of_class_file

        return task_of_class_file(file, path) if names_task_class(file.config, file.path) else None


SYSTEM: Final = EvalFramework()
