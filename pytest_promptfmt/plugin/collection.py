"""From task files to pytest nodes: a file, its tasks in every format, and the items of each."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import pytest

from pytest_promptfmt.core.errors import (
    Position,
    PromptfmtError,
    SourceError,
    UnavailableError,
    did_you_mean,
)
from pytest_promptfmt.core.task import FunctionRef, Task
from pytest_promptfmt.core.text import escape_controls
from pytest_promptfmt.formats import Attempt, attempts, layout_notes
from pytest_promptfmt.formats.apply import template_type
from pytest_promptfmt.plugin.items.item import ClassItem, LoadItem, node_name
from pytest_promptfmt.plugin.items.task_node import LOADED, TaskNode
from pytest_promptfmt.plugin.printed_output import silenced
from pytest_promptfmt.plugin.run import RUN, Run
from pytest_promptfmt.plugin.worker_processes import try_in_worker
from pytest_promptfmt.revisions.pytest_process import MEMBERS
from pytest_promptfmt.rules.rule_views import FileView
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.settings.file import FILE_NAMES
from pytest_promptfmt.systems import endings_of, known_systems, recognized, shapes, systems_for
from pytest_promptfmt.systems.task_files import read_task_file
from pytest_promptfmt.tasks import CodeImporter, TaskFile, TaskIndex


def may_define_tasks(run: Run, file: Path) -> bool:
    """Return whether a file has the name of a task file, without reading it."""
    if not systems_for(file) or file.name in FILE_NAMES:
        return False
    return file.suffix != ".py" or run.settings.names_module(file)


class PromptfmtWarning(pytest.PytestWarning):
    """A note about a task file that works here, and that lm-eval drops or reads differently."""


class TaskFileNode(pytest.File):
    """A file that looks like a task or group; its children are the tasks it defines."""

    def __repr__(self) -> str:
        """Return the line of --collect-only: `<TaskFile arc.yaml>`."""
        return f"<TaskFile {self.name}>"

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """Return a node per task@format, or one failing item when the file cannot be read."""
        self._refused: list[LoadItem] = []
        run = self.config.stash[RUN]
        folders = run.folders
        folders.enter(self.path.parent, self.session.isinitpath)
        run.cache.decision(self.path)
        folders.index.asked.clear()
        try:
            settings = folders.settings_for(self.path)
            limit = settings.import_limit
            read = partial(read_task_file, self.path, folders.index, trusted=settings.trusts, import_limit=limit)
            if self.path.suffix == ".py" and settings.trusts(self.path):
                try_in_worker(self.config, self.path, "importing this file", read)
            with self._silenced(self.path.suffix == ".py"):
                file = read()
            tasks = [*self._tested(run, file.tasks)] if file is not None else []
            lay_out = partial(_attempts, tasks, run.settings)
            has_code = any(isinstance(template_type(task), FunctionRef) for task in tasks)
            if has_code:
                try_in_worker(self.config, self.path, "the template of this file", lambda: _raise_first(lay_out()))
            with self._silenced(has_code):
                found = lay_out()
        except UnavailableError as error:
            return [ClassItem.from_parent(self, task_name=self.path.stem, error=error)]
        except PromptfmtError as error:
            return [LoadItem.from_parent(self, name="load", error=error)]
        if file is None:
            return self._no_task()
        untested = file.untested.items()
        skipped = [ClassItem.from_parent(self, task_name=name, error=error) for name, error in untested]
        if file.kind == "class" and not file.tasks:
            return [*skipped, *self._file_items(file, folders.index)]
        notes: tuple[str, ...] = ()
        if not (settings.lint and file.yaml is not None):  # else PF101 and PF131 report them
            notes = (*file.notes, *_likely_misspelt(file, folders.index))
        made = [attempt.task for attempt in found]
        run.expected.define(self.path, [(task.id, task.name, task.format) for task in made])
        if run.cache.is_on:
            run.cache.watched.add(self.path, file, made, settings)
        self._warn(*notes)
        if run.outputs.baseline is not None:
            run.found.defined[str(self.path)] = [*file.names, *(task.id for task in made)]
        nodes: list[pytest.Item | pytest.Collector] = [self._task_node(run, attempt) for attempt in found]
        if file.yaml is not None:
            view = FileView(path=self.path, yaml=file.yaml, file=file, index=folders.index)
            first = next((node for node in nodes if isinstance(node, TaskNode) and node.error is None), None)
            if first is not None:
                first.file = view
            else:
                nodes += self._file_items(file, folders.index)
        nodes += [
            LoadItem.from_parent(self, name=f"load[{number}]", error=problem)
            for number, problem in enumerate(file.problems, start=1)
        ]
        return [*nodes, *skipped, *self._refused]

    def _tested(self, run: Run, tasks: Iterable[Task]) -> Iterator[Task]:
        """Yield the tasks, of a group without its members in files that are left out."""
        left_out = run.outputs.left_out or ()
        for task in tasks:
            place = task.position("task") if f"{self.path}{MEMBERS}" in left_out else None
            if place is None or str(place.path) not in left_out:
                yield task

    def _silenced(self, runs_code: bool) -> AbstractContextManager[None]:
        return silenced(self.config) if runs_code else nullcontext()

    def _file_items(self, file: TaskFile, index: TaskIndex) -> list[pytest.Item]:
        """Return the items about a file by itself: one without tasks, or whose tasks cannot be laid out."""
        if file.yaml is None:
            return []
        view = FileView(path=self.path, yaml=file.yaml, file=file, index=index)
        return [item for kind in self.config.stash[LOADED] for item in kind.file_items(self, view)]

    def _warn(self, *notes: str) -> None:
        for note in notes:
            self.config.stash[RUN].cache.watched.refuse(self.path, "a note")
            try:
                _warn_of(self.path, note)
            except PromptfmtWarning:  # -W error: a separate failing item, and the tasks of the file still run
                name = f"note[{len(self._refused) + 1}]"
                self._refused.append(LoadItem.from_parent(self, name=name, error=SourceError(note)))

    def _no_task(self) -> list[pytest.Item]:
        error = SourceError("this file defines no task", position=Position(self.path), hint=shapes())
        if not self.session.isinitpath(self.path):
            if not self.config.stash[RUN].expected.has_snapshots(self.path):
                return []
            hint = "restore the task. If you removed it on purpose, delete the folder of its snapshots"
            error = SourceError("this file has snapshots, but defines no task", position=Position(self.path), hint=hint)
        return [LoadItem.from_parent(self, name="load", error=error)]

    def _task_node(self, run: Run, attempt: Attempt) -> TaskNode:
        task = attempt.task
        if task.format not in run.settings.formats:  # a format that is merely tried replaces what it must
            lint = run.folders.settings_for(self.path).lint
            self._warn(*layout_notes(task, replaced=not lint))  # PF103 reports it
        return TaskNode.from_parent(self, name=node_name(task.id), task=task, error=attempt.error)


def task_file_node(parent: pytest.Collector, path: Path) -> TaskFileNode:
    """Return the node of a file; its id has no characters that a terminal would obey."""
    if path.as_posix().isprintable() and "/::" not in path.as_posix() and "##" not in path.as_posix():
        return TaskFileNode.from_parent(parent, path=path)
    shown = escape_controls(os.path.relpath(path, parent.config.rootpath).replace(os.sep, "/"))
    return TaskFileNode.from_parent(parent, path=path, nodeid=node_name(shown))


def warn_of_file(path: Path, note: str) -> None:
    """Warn of a file that is skipped."""
    _warn_of(path.parent, f"{path.name}: {note}")  # not under its own name: Python would read the file for a line of it


def _warn_of(path: Path, note: str) -> None:
    name = escape_controls(str(path))
    warnings.warn_explicit(PromptfmtWarning(escape_controls(note)), category=None, filename=name, lineno=1)


def irregular_files(folder: Path, suffixes: Collection[str]) -> list[Path]:
    """Return the paths in a folder with the name of a task file that are not files: broken links, pipes, folders."""
    try:
        with os.scandir(folder) as entries:
            found = [each for each in entries if each.name.endswith(tuple(suffixes))]
            return sorted(Path(each.path) for each in found if not os.path.isfile(each.path))
    except OSError:
        return []


def lost_its_tasks(run: Run, path: Path) -> bool:
    """Return whether a file that defines no task has snapshots that belong to no other file."""
    if not run.expected.has_snapshots(path):
        return False
    for other in (path.with_suffix(suffix) for system in known_systems().values() for suffix in endings_of(system)):
        try:
            if other != path and other.is_file():
                if other.suffix == ".py" and run.settings.names_module(other):
                    return False
                if other.suffix != ".py" and recognized(other) is not None:
                    return False
        except OSError:
            continue
    return True


def _raise_first(found: Iterable[Attempt]) -> None:
    for attempt in found:
        if attempt.error is not None:
            raise attempt.error


def _attempts(tasks: Iterable[Task], settings: Settings) -> list[Attempt]:
    """Return the tasks in every format and variant that is tested; one that brings its profiles has none."""
    resolve = CodeImporter(settings.trusts, settings.import_limit).function
    found: list[Attempt] = []
    for task in tasks:
        if task.assembly.brings_profiles:
            found.append(Attempt(task))
        else:
            found += attempts(task, settings.formats, variants=settings.variants, resolve=resolve)
    return found


def _likely_misspelt(file: TaskFile, index: TaskIndex) -> Iterator[str]:
    """Yield a note for each member of a group that no file defines, but that is close to a defined name.

    Others may be tasks of lm-eval itself.
    """
    for name in file.unresolved:
        hint = did_you_mean(name, index.names)
        if hint is not None:
            yield f"group {file.names[0]!r} lists the unknown task {name!r}; {hint}"
