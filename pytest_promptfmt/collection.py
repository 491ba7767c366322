"""From task files to pytest items: nodes, node ids, selection, and what becomes of each item.

Only this module and `plugin.py` import pytest. What an item compares and says is made by the rooms to the left.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_promptfmt.checks.findings import Reported, Severity
from pytest_promptfmt.checks.registry import known_checks
from pytest_promptfmt.checks.running import Checked, check_view
from pytest_promptfmt.checks.selection import Selection, parse_per_file
from pytest_promptfmt.checks.views import FileView
from pytest_promptfmt.errors import (
    Position,
    PromptfmtError,
    SettingsError,
    SnapshotError,
    SourceError,
    WithheldError,
    display_path,
)
from pytest_promptfmt.formats import laid_out
from pytest_promptfmt.pipeline import Pipeline
from pytest_promptfmt.profiles import BUILTIN_PROFILES, DEFAULT_PROFILES, Profile, resolve_profiles
from pytest_promptfmt.reports.failures import accept_command, failure_text, outcome_of, repeated_text
from pytest_promptfmt.reports.findings import finding_lines
from pytest_promptfmt.reports.outcomes import Outcome, Tally
from pytest_promptfmt.reports.terminal import header_lines, summary_lines
from pytest_promptfmt.settings import Settings, read_settings
from pytest_promptfmt.snapshots import extension as snapshots
from pytest_promptfmt.sources.index import TaskIndex
from pytest_promptfmt.sources.lm_eval import looks_like_task, read_task_file
from pytest_promptfmt.tasks import Task

SUFFIXES: Final = (".yaml", ".yml")
"""The endings of files that may define tasks. lm-eval itself only looks at `.yaml`."""

SETTINGS_FILES: Final = frozenset({"promptfmt.yaml", "promptfmt.yml"})
PLUGIN: Final = pytest.StashKey["PromptfmtPlugin"]()
ALIKE: Final = "failed alike"


class PromptfmtWarning(pytest.PytestWarning):
    """A remark about a task file that works here, and that lm-eval drops or reads differently."""


class SnapshotMismatchError(Exception):
    """A snapshot that is missing, differs or cannot be trusted; the message is the whole failure text."""


class FindingsError(Exception):
    """Errors that the checks found; the message is the whole failure text."""


def activate(config: pytest.Config) -> None:
    """Register the working plugin, and choose the paths to collect when the command line names none.

    Raises SettingsError for settings that make no sense, also when syrupy is switched off.
    """
    if not snapshots.syrupy_is_active(config):
        raise SettingsError("prompts are compared through syrupy, which is switched off", hint="drop -p no:syrupy")
    # No network unless asked: user code that would load data or metrics from a hub fails at once, without retries.
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE"):
        os.environ.setdefault(variable, "1")
    plugin = PromptfmtPlugin(config, read_settings(config, DEFAULT_PROFILES))
    config.stash[PLUGIN] = plugin
    config.pluginmanager.register(plugin, "promptfmt-active")
    paths = [str(path) for path in config.getini("promptfmt_paths")]
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        if config.getoption("promptfmt"):
            config.args = paths or [str(config.rootpath)]
        else:
            config.args = [*config.args, *paths]


class PromptfmtPlugin:
    """The hooks of a run that asked for prompt-format tests, and the state they share."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config = config
        self.settings = settings
        self.profiles = resolve_profiles(settings.profiles)
        self.index = TaskIndex()
        self.pipeline = Pipeline(settings)
        self.selection = Selection(
            checks=known_checks(settings.checks),
            select=settings.select,
            ignore=settings.ignore,
            per_file=parse_per_file(settings.per_file_ignores),
            rootdir=settings.rootdir,
        )
        self.expected = snapshots.ExpectedSnapshots()
        self.expected.know_profiles(BUILTIN_PROFILES)
        self.tally = Tally()
        self._first_named: dict[tuple[Path, str], Task] = {}
        self._roots: dict[Path, Path] = {}

    def root_of(self, node: pytest.Collector) -> Path:
        """Return the folder named on the command line that a file was found below, else the file's own folder.

        Names are looked up below it, and two definitions of one name below it are a mistake.
        """
        folder = node.path.parent
        root = self._roots.get(folder)
        if root is None:
            named = (above for above in node.path.parents if node.session.isinitpath(above))
            root = self._roots[folder] = next(named, folder)
            self.index.add(root)
        return root

    def profile_id(self, profile: Profile) -> str:
        """Return the name that stands in node ids and snapshot files: `plain`, or `plain-5shot` with an override."""
        shots = self.settings.num_fewshot
        return profile.name if shots is None else f"{profile.name}-{shots}shot"

    def earlier_definition(self, task: Task, root: Path) -> Task | None:
        """Return the task of the same name in another file that was met before below the same root, if any."""
        first = self._first_named.setdefault((root, task.id), task)
        return first if first.path != task.path else None

    def chooses(self, task: Task) -> bool:
        """Return whether the task globs and formats of this run choose a task."""
        globs, formats = self.settings.task_globs, self.settings.formats
        if formats and task.format not in formats:
            return False
        return not globs or any(fnmatchcase(name, glob) for glob in globs for name in (task.name, task.id))

    def pytest_report_header(self) -> list[str]:
        """Say what is rendered, and whose code may run."""
        return header_lines(self.settings, [self.profile_id(profile) for profile in self.profiles])

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Keep pytest out of our snapshot folders, and remember that this run came by."""
        if collection_path.name == snapshots.DIRECTORY:
            self.expected.visit(collection_path)
            return True
        return None

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """Return a node for every file with the shape of a task or group; other YAML is ignored quietly."""
        if file_path.suffix not in SUFFIXES or file_path.name in SETTINGS_FILES:
            return None
        if not parent.session.isinitpath(file_path):
            try:
                if not looks_like_task(file_path.read_bytes()):
                    return None
            except OSError:
                pass  # reported as a failing item
        return TaskFileNode.from_parent(parent, path=file_path)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Deselect what the task globs and formats do not choose."""
        if not (self.settings.task_globs or self.settings.formats):
            return
        chosen: list[pytest.Item] = []
        left_out: list[pytest.Item] = []
        for item in items:
            is_chosen = not isinstance(item, PromptItem) or item.task is None or self.chooses(item.task)
            (chosen if is_chosen else left_out).append(item)
        if left_out:
            self.config.hook.pytest_deselected(items=left_out)
            items[:] = chosen

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Let the report carry what became of one of our items, also from an xdist worker."""
        report = yield
        if call.when == "call" and isinstance(item, PromptItem) and item.outcome is not None:
            report.promptfmt = item.outcome.to_json()  # type: ignore[attr-defined]
            if report.skipped:
                # pytest names the line of this module that called skip; the reader wants the task's.
                path, line, _ = item.location
                report.longrepr = (path, (line or 0) + 1, f"Skipped: {item.outcome.title}")
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the outcome where the terminal is: here, or in the controller under xdist."""
        data = getattr(report, "promptfmt", None)
        if data is not None:
            repeats = self.tally.add(Outcome.from_json(data), report.nodeid)
            report.promptfmt_repeats = repeats  # type: ignore[attr-defined]

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Count failures that repeat an earlier one apart, so that pytest does not print each again.

        Its failure section takes time quadratic in the failed reports. Exit status, JUnit files and --lf look at the
        report itself and see every one as failed.
        """
        if report.failed and getattr(report, "promptfmt_repeats", False):
            return ALIKE, "F", "FAILED"
        return None

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print what went wrong, each distinct problem once."""
        lines = summary_lines(self.tally, verbosity=self.config.get_verbosity())
        if lines:
            terminalreporter.section("prompt formats")
            for line in lines:
                terminalreporter.write_line(line)
        findings = finding_lines(self.tally.checks, verbosity=self.config.get_verbosity())
        if findings:
            terminalreporter.section("prompt checks")
            for line in findings:
                terminalreporter.write_line(line)

    def wanted(self, checked: Checked) -> tuple[Reported, ...]:
        """Return the findings to report: infos only with -v, or where the rule was selected."""
        return tuple(
            finding
            for finding in checked.findings
            if finding.severity is not Severity.INFO
            or self.config.get_verbosity() > 0
            or self.selection.is_asked_for(finding.code)
        )


class TaskFileNode(pytest.File):
    """A file that looks like a task or group; its children are the tasks it defines."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """Return a node per task@format, or one failing item when the file cannot be read."""
        plugin = self.config.stash[PLUGIN]
        root = plugin.root_of(self)
        try:
            file = read_task_file(self.path, plugin.index)
        except PromptfmtError as error:
            return [LoadItem.from_parent(self, name="load", error=error)]
        if file is None:
            return self._no_task()
        for note in file.notes if file.kind != "class" else ():
            self.warn(PromptfmtWarning(note))
        if file.kind == "class":
            return [ClassItem.from_parent(self, name=_node_name(file.names[0]), reason=file.notes[-1])]
        tasks: list[Task] = []
        nodes: list[pytest.Item | pytest.Collector] = []
        complete = True
        for base in file.tasks:
            try:
                formatted = laid_out(base, plugin.settings.formats)
            except PromptfmtError as error:
                nodes.append(TaskNode.from_parent(self, name=_node_name(base.id), task=base, error=error))
                complete = False
                continue
            tasks += formatted
            nodes += [self._task_node(plugin.earlier_definition(task, root), task) for task in formatted]
        if complete:
            plugin.expected.define(self.path, tasks)
        view = FileView(path=self.path, yaml=file.yaml, file=file, index=plugin.index) if file.yaml else None
        first = next((node for node in nodes if isinstance(node, TaskNode) and node.error is None), None)
        if first is not None:
            first.file = view
        elif view is not None and complete:
            nodes.append(FileLintItem.from_parent(self, name="lint", view=view))
        return nodes

    def _no_task(self) -> list[pytest.Item]:
        if not self.session.isinitpath(self.path):
            return []
        error = SourceError(
            "this file defines no task",
            position=Position(self.path),
            hint="a task has a `task` key, a group `group` and `task`, at the top level",
        )
        return [LoadItem.from_parent(self, name="load", error=error)]

    def _task_node(self, earlier: Task | None, task: Task) -> TaskNode:
        error = None
        if earlier is not None:
            error = SourceError(
                f"task {task.id!r} is also defined in {earlier.position('task')}",
                position=task.position("task"),
                hint="rename one of them; lm-eval keeps the first and drops the other with a mere warning",
            )
        return TaskNode.from_parent(self, name=_node_name(task.id), task=task, error=error)


class TaskNode(pytest.Collector):
    """One task@format; its children are the items of each profile."""

    def __init__(self, *, task: Task, error: PromptfmtError | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.task = task
        self.error = error
        self.file: FileView | None = None

    def collect(self) -> Iterator[pytest.Item]:
        """Yield one snapshot item per profile, or one failing item for a task that cannot be tested."""
        plugin = self.config.stash[PLUGIN]
        if self.error is not None:
            yield LoadItem.from_parent(self, name="load", error=self.error, task=self.task)
            return
        for profile in plugin.profiles:
            profile_id = plugin.profile_id(profile)
            try:
                place = plugin.expected.claim(self.path, self.task.id, profile_id)
            except SnapshotError as error:
                yield LoadItem.from_parent(self, name=f"load[{profile_id}]", error=error, task=self.task)
                continue
            yield SnapshotItem.from_parent(
                self, name=f"snapshot[{profile_id}]", task=self.task, profile=profile, place=place
            )
        yield LintItem.from_parent(self, name="lint", task=self.task, file=self.file)


class PromptItem(pytest.Item):
    """What our items share: an outcome, a location in the YAML, and failures told in words."""

    marker = "promptfmt_snapshot"

    def __init__(self, *, task: Task | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.task = task
        self.outcome: Outcome | None = None
        self.own_markers.append(getattr(pytest.mark, self.marker).mark)

    def place_in_file(self) -> Position | None:
        """Return the line of the file that reports and annotations point at."""
        return self.task.position("task") if self.task is not None else None

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the YAML file, the line (from 0) of the task, and the item's name."""
        position = self.place_in_file()
        line = 0
        if position is not None and position.line is not None and position.path.name == self.path.name:
            line = position.line - 1
        return self.path, line, self.nodeid.partition("::")[2]

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the message of our own errors; a traceback only for what is a defect of this plugin."""
        if isinstance(excinfo.value, (PromptfmtError, SnapshotMismatchError, FindingsError)):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)


class LoadItem(PromptItem):
    """A file, task or snapshot place that could not be made into tests: always fails, with one message."""

    def __init__(self, *, error: PromptfmtError, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.error = error

    def place_in_file(self) -> Position | None:
        """Return the place that the error points at."""
        return self.error.position or super().place_in_file()

    def runtest(self) -> None:
        """Raise what went wrong at collection."""
        name = self.task.id if self.task is not None else self.path.name
        self.outcome = Outcome(task=name, file=str(self.path)).failed(self.error)
        raise self.error


class ClassItem(PromptItem):
    """An lm-eval task written as a Python class: its prompts are made by code of its own."""

    def __init__(self, *, reason: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.reason = reason

    def runtest(self) -> None:
        """Skip, saying why."""
        outcome = Outcome(task=self.name, file=str(self.path))
        self.outcome = outcome.skipped("Python task classes make their own prompts")
        pytest.skip(self.reason)


class SnapshotItem(PromptItem):
    """The prompts of one task@format for one profile, compared with their snapshot."""

    def __init__(self, *, task: Task, profile: Profile, place: snapshots.Place, **kwargs: Any) -> None:
        super().__init__(task=task, **kwargs)
        self.tested = task
        self.profile = profile
        self.place = place

    def runtest(self) -> None:
        """Render and compare; skip where something is withheld that rendering needs."""
        plugin = self.config.stash[PLUGIN]
        profile_id = plugin.profile_id(self.profile)
        item = Outcome(task=self.tested.id, file=str(self.path), profile=profile_id)
        try:
            rendered = plugin.pipeline.render(self.tested, self.profile, profile_id)
        except WithheldError as error:
            self.outcome = item.skipped(error.reason)
            pytest.skip(str(error))
        except PromptfmtError as error:
            self.outcome = item.failed(error)
            raise
        verdict = snapshots.check(
            self.config,
            self,
            self.place,
            rendered.document,
            expected=plugin.expected,
            narrowed_run=plugin.settings.is_narrowed,
        )
        self.outcome = outcome = outcome_of(verdict, rendered.instances, item)
        if verdict.passed:
            return
        names = self.nodeid.partition("::")[2]
        command = accept_command(display_path(self.path), names, plugin.settings.repeat)
        first = plugin.tally.first_item(outcome)
        if first is None:
            raise SnapshotMismatchError(failure_text(verdict, rendered.instances, outcome, command=command))
        raise SnapshotMismatchError(repeated_text(outcome, first, command=command))


class LintItem(PromptItem):
    """One task@format, looked at by the checks; with the first task of a file, the file as well."""

    marker = "promptfmt_lint"

    def __init__(self, *, task: Task, file: FileView | None, **kwargs: Any) -> None:
        super().__init__(task=task, **kwargs)
        self.tested = task
        self.file = file

    def runtest(self) -> None:
        """Check; what stops rendering is an error, except where something is withheld."""
        plugin = self.config.stash[PLUGIN]
        item = Outcome(task=self.tested.id, file=str(self.path))
        try:
            checked = plugin.pipeline.checked(self.tested, plugin.selection, self.file)
        except PromptfmtError as error:
            self.outcome = item.failed(error)
            raise
        self.outcome = outcome = _with_findings(plugin, item, checked)
        if checked.failure is not None and not isinstance(checked.failure, WithheldError):
            self.outcome = replace(outcome.failed(checked.failure), findings=outcome.findings)
            raise checked.failure
        _raise_errors(plugin, outcome, checked)


class FileLintItem(PromptItem):
    """A file without tasks of its own, such as a plain group, looked at by the checks."""

    marker = "promptfmt_lint"

    def __init__(self, *, view: FileView, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.view = view

    def runtest(self) -> None:
        """Check."""
        plugin = self.config.stash[PLUGIN]
        name = self.view.file.names[0] if self.view.file.names else self.path.name
        checked = check_view(plugin.selection, path=self.path, name=name, file=self.view)
        self.outcome = _with_findings(plugin, Outcome(task=name, file=str(self.path)), checked)
        _raise_errors(plugin, self.outcome, checked)


def _with_findings(plugin: PromptfmtPlugin, item: Outcome, checked: Checked) -> Outcome:
    globs = plugin.selection.per_file_ignores(Path(item.file))
    findings = tuple(finding.to_json() for finding in plugin.wanted(checked))
    item = replace(item, findings=findings, globs=tuple(globs), used_globs=checked.used_globs)
    if not checked.errors:
        return item
    key = "\0".join(sorted({"|".join(error.cluster) for error in checked.errors}))
    return replace(item, category="finding", key=key, title=checked.errors[0].message)


def _raise_errors(plugin: PromptfmtPlugin, outcome: Outcome, checked: Checked) -> None:
    if not checked.errors:
        return
    first = plugin.tally.first_item(outcome)
    if first is not None:
        codes = ", ".join(dict.fromkeys(error.code for error in checked.errors))
        raise FindingsError(f"{outcome.task}: {codes}, as {first}")
    raise FindingsError("\n".join(str(error) for error in checked.errors))


def _node_name(task_id: str) -> str:
    """Return a task's name as part of a node id, whose own separator is `::`."""
    return task_id.replace("::", ".")
