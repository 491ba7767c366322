"""From task files to pytest nodes: a file, its tasks in every format, and the items of each."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_promptfmt.answers.recordings import recording_name, recordings_of
from pytest_promptfmt.checks.views import FileView
from pytest_promptfmt.core.errors import (
    CodeNotAllowedError,
    Position,
    PromptfmtError,
    ScoringError,
    SettingsError,
    SnapshotError,
    SourceError,
    did_you_mean,
)
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.recorded import RecordedAssembly
from pytest_promptfmt.core.task import CodeAssembly, Task
from pytest_promptfmt.formats import Attempt, is_variant, remarks
from pytest_promptfmt.plugin.items import (
    PLUGIN,
    ClassItem,
    FileLintItem,
    LintItem,
    LoadItem,
    ModelItem,
    ScoringItem,
    SnapshotItem,
    VariantItem,
    node_name,
)
from pytest_promptfmt.plugin.items.answers import ExtractionItem, RecordingItem
from pytest_promptfmt.plugin.items.recorded import RecordedPromptsItem, RecordedScoresItem
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.snapshots.recorded import RECORDED
from pytest_promptfmt.snapshots.verdicts import EXTRACTION, RECORDING
from pytest_promptfmt.study import Study
from pytest_promptfmt.study.expectations import has_expectations
from pytest_promptfmt.systems import TaskFile, shapes
from pytest_promptfmt.systems.lm_eval.index import TaskIndex
from pytest_promptfmt.systems.lm_eval.scoring.filters import looks_for_answers
from pytest_promptfmt.systems.task_files import read_task_file

if TYPE_CHECKING:
    from pytest_promptfmt.plugin.session import PromptfmtPlugin


class PromptfmtWarning(pytest.PytestWarning):
    """A remark about a task file that works here, and that lm-eval drops or reads differently."""


class TaskFileNode(pytest.File):
    """A file that looks like a task or group; its children are the tasks it defines."""

    def __repr__(self) -> str:
        """Return the line of --collect-only: `<TaskFile arc.yaml>`."""
        return f"<TaskFile {self.name}>"

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """Return a node per task@format, or one failing item when the file cannot be read."""
        self._refused: list[LoadItem] = []
        plugin = self.config.stash[PLUGIN]
        root = plugin.root_of(self)
        try:
            settings = plugin.settings_for(self.path)
            file = read_task_file(self.path, plugin.index, trusted=settings.trusts, import_limit=settings.import_limit)
        except CodeNotAllowedError as error:
            return [ClassItem.from_parent(self, task_name=self.path.stem, reason=str(error))]
        except PromptfmtError as error:
            return [LoadItem.from_parent(self, name="load", error=error)]
        if file is None:
            return self._no_task()
        if file.kind == "class" and not file.tasks:
            return [ClassItem.from_parent(self, task_name=file.names[0], reason=file.notes[-1])]
        if not (settings.lint and file.yaml is not None):  # else PF101, PF131 and PF136 tell it
            self._remark(*file.notes, *_likely_misspelt(file, plugin.index))
        found = [attempt for task in file.tasks for attempt in plugin.attempts(task)]
        plugin.expected.define(self.path, [attempt.task for attempt in found])
        plugin.baseline.define(self.path, (*file.names, *(attempt.task.id for attempt in found)))
        nodes: list[pytest.Item | pytest.Collector] = [self._task_node(plugin, root, attempt) for attempt in found]
        if file.yaml is not None:
            view = FileView(path=self.path, yaml=file.yaml, file=file, index=plugin.index)
            first = next((node for node in nodes if isinstance(node, TaskNode) and node.error is None), None)
            if first is not None:
                first.file = view
            elif settings.lint:
                nodes.append(FileLintItem.from_parent(self, name="lint", view=view))
        nodes += [
            LoadItem.from_parent(self, name=f"load[{number}]", error=problem)
            for number, problem in enumerate(file.problems, start=1)
        ]
        return [*nodes, *self._refused]

    def _remark(self, *notes: str) -> None:
        for note in notes:
            try:
                warnings.warn_explicit(PromptfmtWarning(note), category=None, filename=str(self.path), lineno=1)
            except PromptfmtWarning:  # -W error: a failing item of its own, and the tasks of the file still run
                name = f"remark[{len(self._refused) + 1}]"
                self._refused.append(LoadItem.from_parent(self, name=name, error=SourceError(note)))

    def _no_task(self) -> list[pytest.Item]:
        if not self.session.isinitpath(self.path):
            return []
        error = SourceError(
            "this file defines no task",
            position=Position(self.path),
            hint=shapes(),
        )
        return [LoadItem.from_parent(self, name="load", error=error)]

    def _task_node(self, plugin: PromptfmtPlugin, root: Path, attempt: Attempt) -> TaskNode:
        task, error = attempt.task, attempt.error
        if task.format not in plugin.settings.formats:  # a format that is merely tried replaces what it must
            self._remark(*remarks(task, replaced=not plugin.settings_for(self.path).lint))  # PF103 tells it
        earlier = plugin.earlier_definition(task, root)
        if earlier is not None:
            error = SourceError(
                f"task {task.id!r} is also defined in {earlier.position('task')}",
                position=task.position("task"),
                hint="rename one of them; lm-eval keeps the first and drops the other with a mere warning",
            )
        return TaskNode.from_parent(self, name=node_name(task.id), task=task, error=error)


class TaskNode(pytest.Collector):
    """One task@format; its children are the items of each profile."""

    def __init__(self, *, task: Task, error: PromptfmtError | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.task = task
        self.error = error
        self.file: FileView | None = None

    def __repr__(self) -> str:
        """Return the line of --collect-only: `<Task arc@mcqa>`."""
        return f"<Task {self.name}>"

    def collect(self) -> Iterator[pytest.Item]:
        """Yield one snapshot or variant item per profile, or one failing item for a task that cannot be tested."""
        plugin = self.config.stash[PLUGIN]
        settings = plugin.settings_for(self.path)
        if self.error is not None:
            yield LoadItem.from_parent(self, name="load", error=self.error, task=self.task)
            return
        try:
            profiles = plugin.profiles_for(self.task)
        except SettingsError as error:
            yield LoadItem.from_parent(self, name="load", error=error, task=self.task)
            return
        for profile in profiles:
            profile_id = settings.run_id(profile.name)
            if is_variant(self.task.format):
                name = f"variant[{profile_id}]"
                yield VariantItem.from_parent(self, name=name, task=self.task, profile=profile)
                continue
            try:
                place = plugin.expected.claim(self.path, self.task.id, profile_id)
            except SnapshotError as error:
                yield LoadItem.from_parent(self, name=f"load[{profile_id}]", error=error, task=self.task)
                continue
            yield SnapshotItem.from_parent(
                self, name=f"snapshot[{profile_id}]", task=self.task, profile=profile, place=place
            )
        if not is_variant(self.task.format):
            if settings.lint:
                yield LintItem.from_parent(self, name="lint", task=self.task, profiles=profiles, file=self.file)
            yield from self._answer_items(plugin, settings)
            yield from self._model_items(plugin, settings, profiles)
        yield from self._recorded_items(plugin, settings)

    def _recorded_items(self, plugin: PromptfmtPlugin, settings: Settings) -> Iterator[pytest.Item]:
        assembly = self.task.assembly
        if not isinstance(assembly, RecordedAssembly):
            return
        if assembly.has_recorded_prompts:
            yield RecordedPromptsItem.from_parent(self, name="recorded[prompts]", task=self.task)
        if assembly.has_recorded_answers:
            yield from self._placed(plugin, settings, RECORDED, RecordedScoresItem, name="recorded[scores]")

    def _answer_items(self, plugin: PromptfmtPlugin, settings: Settings) -> Iterator[pytest.Item]:
        """Yield what tries how answers are read and scored, by what the run and the task ask for."""
        answers = settings.answers
        task = self._with_its_class(settings) if answers != "none" else self.task
        if task is None:
            return
        tries = answers != "none" and (answers == "all" or looks_for_answers(task) or has_expectations(task))
        task, output_type = self.task, task.output_type
        generates = output_type == "generate_until"
        if not (generates or output_type == "multiple_choice"):
            return
        if tries and (generates or answers == "all" or has_expectations(task)):
            if generates:
                yield from self._placed(plugin, settings, EXTRACTION, ExtractionItem, name="extraction")
            yield ScoringItem.from_parent(self, name="scoring", task=task)
        if not generates:
            return
        try:
            recordings = recordings_of(task)
        except ScoringError as error:
            yield LoadItem.from_parent(self, name="load[recordings]", error=error, task=task)
            return
        for path in recordings:
            name = recording_name(task, path)
            kind, title = (f"{RECORDING}-{name}", f"{RECORDING}[{node_name(name)}]") if name else (RECORDING, RECORDING)
            items = self._placed(
                plugin, settings, kind, RecordingItem, name=title, recording=path, profile=settings.run_id(kind)
            )
            yield from items if answers != "none" else ()

    def _placed(
        self, plugin: PromptfmtPlugin, settings: Settings, kind: str, item: type[pytest.Item], **given: Any
    ) -> Iterable[pytest.Item]:
        """Return an item with a snapshot of this kind, or one that fails because that cannot be."""
        try:
            place = plugin.expected.claim(self.path, self.task.id, settings.run_id(kind))
        except SnapshotError as error:
            return [LoadItem.from_parent(self, name=f"load[{kind}]", error=error, task=self.task)]
        return [item.from_parent(self, task=self.task, place=place, **given)]

    def _with_its_class(self, settings: Settings) -> Task | None:
        """Return the task; where it is a class, imported, as nothing else says how it reads and scores answers.

        None where that fails, which the snapshot items tell.
        """
        if not isinstance(self.task.assembly, CodeAssembly):
            return self.task
        try:
            return Study(self.task, settings).bound_for_scoring
        except PromptfmtError:
            return None

    def _model_items(
        self, plugin: PromptfmtPlugin, settings: Settings, profiles: Sequence[Profile]
    ) -> Iterator[pytest.Item]:
        if plugin.model is None or self.task.output_type == "loglikelihood_rolling":
            return
        for profile in profiles:
            if not profile.is_archetype or profile.tokenizer is None:  # no model has the tokenizer of an archetype
                name = f"model[{settings.run_id(profile.name)}]"
                yield ModelItem.from_parent(self, name=name, task=self.task, profile=profile)


def _likely_misspelt(file: TaskFile, index: TaskIndex) -> Iterator[str]:
    """Yield a remark for each member of a group that nobody defines, but that reads like a name somebody does.

    Others may be names of tasks that come with lm-eval.
    """
    for name in file.unresolved:
        hint = did_you_mean(name, index.names)
        if hint is not None:
            yield f"group {file.names[0]!r} lists {name!r}, which no file here defines; {hint}"
