"""The tasks that a file, a folder or a mapping defines, of any system."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import Position, PromptfmtError, SourceError, place_in_user_code
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.systems import ReadContext, System, endings_of, head_of, known_systems, shapes, systems_for
from pytest_promptfmt.tasks import (
    IMPORT_SECONDS,
    TaskFile,
    TaskIndex,
    bind_functions,
    bind_scoring,
    resolved,
    tasks_of_mapping,
)


@runtime_checkable
class ListsFiles(Protocol):
    """A system that finds its files below a folder in its own way."""

    def files(self, folder: Path) -> Iterator[Path]:
        """Yield the files that `load_tasks` reads, sorted."""
        ...


def files_of(system: System, folder: Path) -> Iterator[Path]:
    """Yield the files of a system below a folder: those that it recognizes, sorted, unless it lists others."""
    if isinstance(system, ListsFiles):
        yield from system.files(folder)
        return
    for path in sorted(file for file in folder.rglob("*") if file.name.endswith(endings_of(system)) and file.is_file()):
        with _unreadable(path):
            is_ours = system.recognizes(path, head_of(path))
        if is_ours:
            yield path


@contextmanager
def _unreadable(path: Path) -> Iterator[None]:
    """Make any error of the block, which runs a system's code, the error about a file that cannot be read."""
    try:
        yield
    except PromptfmtError:
        raise
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        place = place_in_user_code(error)
        hint = f"reading it failed at {place}" if place else None
        raise SourceError(f"the file cannot be read: {reason}", position=Position(path), hint=hint) from error


def read_task_file(
    path: Path,
    index: TaskIndex | None = None,
    *,
    trusted: Callable[[Path], bool] = lambda _path: False,
    import_limit: float = IMPORT_SECONDS,
) -> TaskFile | None:
    """Return what a file defines; None for files that have nothing to do with tasks.

    Members of groups are looked up in `index`, else below the file's own folder. `trusted` decides whether a Python
    file may be imported, `import_limit` seconds long. Raises SourceError, with the position, for a file that looks like
    one with tasks and cannot be read.
    """
    path = Path(path)
    with _unreadable(path):
        head = head_of(path)
    context = ReadContext(index=index, trusted=trusted, import_limit=import_limit)
    for system in systems_for(path):
        with _unreadable(path):  # to recognize a long file, it is read whole
            file = system.read(path, context) if system.recognizes(path, head) else None
            if not isinstance(file, TaskFile | None):
                raise TypeError(f"{type(system).__name__}.read returned {type(file).__name__}, not a TaskFile")
        if file is not None:
            return file
    return None


def load_tasks(source: str | Path | Mapping[str, Any], *, allow_code: bool = False) -> list[Task]:
    """Return the tasks of a file, of all task files below a folder, or of a mapping with the keys of a task.

    With `allow_code`, the Python functions of the tasks are imported, and a Python file gives its task classes. Without
    it, rendering a task that needs a function raises CodeNotAllowedError. Raises SourceError for the first broken file,
    FunctionError for the first function that cannot be imported, and ScoringError if the package of a filter or metric
    does not load.
    """
    tasks = tasks_of_mapping(source) if isinstance(source, Mapping) else _tasks_of(resolved(Path(source)), allow_code)
    if not allow_code:
        return list(tasks)
    bound = (bind_functions(task, trusted=lambda _path: True) for task in tasks)
    return [bind_scoring(task, trusted=lambda _path: True) for task in bound]


def _tasks_of(path: Path, allow_code: bool) -> tuple[Task, ...]:
    if path.is_dir():
        index = TaskIndex([path])
        systems = reversed(tuple(known_systems().values()))  # YAML first
        found = (read_task_file(file, index) for system in systems for file in files_of(system, path))
        return tuple(task for file in found if file is not None for task in file.tasks)
    if not path.exists():
        raise SourceError("there is no such file or folder", position=Position(path), hint=gate.missing_hint(path))
    file = read_task_file(path, trusted=lambda _path: allow_code)
    if file is None:
        raise SourceError("this file defines no task", position=Position(path), hint=shapes())
    return file.tasks
