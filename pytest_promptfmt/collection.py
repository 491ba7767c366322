"""From task files to pytest items: nodes, node ids, selection, and what becomes of each item.

Only this module and `plugin.py` import pytest. What an item compares and says is made by the rooms to the left.
"""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from functools import partial
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
    did_you_mean,
    display_path,
)
from pytest_promptfmt.formats import Attempt, attempts, is_variant, remarks
from pytest_promptfmt.pipeline import Pipeline, Rendered
from pytest_promptfmt.profiles import BUILTIN_PROFILES, DEFAULT_PROFILES, Profile, profiles_of, resolve_profiles
from pytest_promptfmt.reports.failures import accept_command, failure_text, outcome_of, repeated_text
from pytest_promptfmt.reports.findings import finding_lines
from pytest_promptfmt.reports.outcomes import Outcome, Tally
from pytest_promptfmt.reports.scoring import extraction_text, findings_text
from pytest_promptfmt.reports.terminal import header_lines, summary_lines
from pytest_promptfmt.scoring.checked import Scoring
from pytest_promptfmt.scoring.told import tells_scoring
from pytest_promptfmt.selection import Selectable, chooses, unmatched
from pytest_promptfmt.settings import Settings, read_settings
from pytest_promptfmt.snapshots import extension as snapshots
from pytest_promptfmt.snapshots.verdicts import EXTRACTION, extraction_document
from pytest_promptfmt.sources.functions import load_function
from pytest_promptfmt.sources.index import TaskIndex
from pytest_promptfmt.sources.lm_eval import TaskFile, looks_like_task, read_task_file
from pytest_promptfmt.tasks import Task

SUFFIXES: Final = (".yaml", ".yml")
"""The endings of files that may define tasks. lm-eval itself only looks at `.yaml`."""

SETTINGS_FILES: Final = frozenset({"promptfmt.yaml", "promptfmt.yml"})
PLUGIN: Final = pytest.StashKey["PromptfmtPlugin"]()
ALIKE: Final = "failed alike"


class PromptfmtWarning(pytest.PytestWarning):
    """A remark about a task file that works here, and that lm-eval drops or reads differently."""


class ScoringFailedError(Exception):
    """Answers that are not read or scored as they should be; the message is the whole failure text."""


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
        self.checks = Selection(
            checks=known_checks(settings.checks),
            select=settings.select,
            ignore=settings.ignore,
            per_file=parse_per_file(settings.per_file_ignores),
            rootdir=settings.rootdir,
        )
        self.expected = snapshots.ExpectedSnapshots()
        self.expected.know_profiles((*BUILTIN_PROFILES, EXTRACTION))
        self.scoring = Scoring(settings)
        self.tally = Tally()
        self.unmatched: list[str] = []
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

    def profiles_for(self, task: Task) -> tuple[Profile, ...]:
        """Return the profiles that a task is rendered for; raises SettingsError for one that it names wrongly."""
        if self.settings.has_chosen_profiles or "profiles" not in task.own_metadata:
            return self.profiles
        return profiles_of(task, self.settings.profiles)

    def attempts(self, task: Task) -> Iterable[Attempt]:
        """Return the task in every format and variant that is tested."""
        resolve = partial(load_function, trusted=self.settings.trusts)
        return attempts(task, self.settings.formats, variants=self.settings.variants, resolve=resolve)

    def earlier_definition(self, task: Task, root: Path) -> Task | None:
        """Return the task of the same name in another file that was met before below the same root, if any."""
        first = self._first_named.setdefault((root, task.id), task)
        return first if first.path != task.path else None

    def run_id(self, kind: str) -> str:
        """Return the name of a snapshot that no profile has: `extraction`, or `extraction-5shot` with an override."""
        shots = self.settings.num_fewshot
        return kind if shots is None else f"{kind}-{shots}shot"

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

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Deselect what the task globs and formats do not choose; a file that cannot be read might be what is meant."""
        if not (self.settings.task_globs or self.settings.formats):
            return
        chosen: list[pytest.Item] = []
        left_out: list[pytest.Item] = []
        known: dict[str, Selectable] = {}
        for item in items:
            task = item.selectable if isinstance(item, PromptItem) else None
            if task is not None:
                known[task.id] = task
            (chosen if task is None or chooses(self.settings, task) else left_out).append(item)
        self.unmatched = list(unmatched(self.settings, known.values()))
        if left_out:
            self.config.hook.pytest_deselected(items=left_out)
            items[:] = chosen

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send what the selection missed from an xdist worker, which alone collects, to the controller."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["promptfmt_unmatched"] = self.unmatched

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker sent; each of them collected the same."""
        self.unmatched = getattr(node, "workeroutput", {}).get("promptfmt_unmatched") or self.unmatched

    def pytest_collection_finish(self) -> None:
        """Keep the garbage collector from walking the collected tree, which lives to the end, over and over.

        A tenth of the time of a run over 26,000 items.
        """
        gc.collect()
        gc.freeze()

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
        verbosity = self.config.get_verbosity()
        arguments = self.config.invocation_params.args
        lines = [*self.unmatched, *summary_lines(self.tally, arguments=arguments, verbosity=verbosity)]
        if lines:
            terminalreporter.section("prompt formats")
            for line in lines:
                terminalreporter.write_line(line)
        findings = finding_lines(self.tally.checks, verbosity=verbosity)
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
            or self.checks.is_asked_for(finding.code)
        )


class TaskFileNode(pytest.File):
    """A file that looks like a task or group; its children are the tasks it defines."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """Return a node per task@format, or one failing item when the file cannot be read."""
        self._refused: list[LoadItem] = []
        plugin = self.config.stash[PLUGIN]
        root = plugin.root_of(self)
        try:
            file = read_task_file(self.path, plugin.index)
        except PromptfmtError as error:
            return [LoadItem.from_parent(self, name="load", error=error)]
        if file is None:
            return self._no_task()
        if file.kind == "class":
            return [ClassItem.from_parent(self, task_name=file.names[0], reason=file.notes[-1])]
        self._remark(*file.notes, *_likely_misspelt(file, plugin.index))
        found = [attempt for task in file.tasks for attempt in plugin.attempts(task)]
        plugin.expected.define(self.path, [attempt.task for attempt in found])
        nodes: list[pytest.Item | pytest.Collector] = [self._task_node(plugin, root, attempt) for attempt in found]
        if file.yaml is not None:
            view = FileView(path=self.path, yaml=file.yaml, file=file, index=plugin.index)
            first = next((node for node in nodes if isinstance(node, TaskNode) and node.error is None), None)
            if first is not None:
                first.file = view
            elif plugin.settings.lint:
                nodes.append(FileLintItem.from_parent(self, name="lint", view=view))
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
            hint="a task has a `task` key, a group `group` and `task`, at the top level",
        )
        return [LoadItem.from_parent(self, name="load", error=error)]

    def _task_node(self, plugin: PromptfmtPlugin, root: Path, attempt: Attempt) -> TaskNode:
        task, error = attempt.task, attempt.error
        if task.format not in plugin.settings.formats:  # a format that is merely tried replaces what it must
            self._remark(*remarks(task))
        earlier = plugin.earlier_definition(task, root)
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
        """Yield one snapshot or variant item per profile, or one failing item for a task that cannot be tested."""
        plugin = self.config.stash[PLUGIN]
        if self.error is not None:
            yield LoadItem.from_parent(self, name="load", error=self.error, task=self.task)
            return
        try:
            profiles = plugin.profiles_for(self.task)
        except SettingsError as error:
            yield LoadItem.from_parent(self, name="load", error=error, task=self.task)
            return
        for profile in profiles:
            profile_id = plugin.profile_id(profile)
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
        if plugin.settings.lint and not is_variant(self.task.format):
            yield LintItem.from_parent(self, name="lint", task=self.task, file=self.file)
            yield from self._scoring_items(plugin)

    def _scoring_items(self, plugin: PromptfmtPlugin) -> Iterator[pytest.Item]:
        wanted = plugin.settings.tries_scoring or tells_scoring(self.task)
        if not wanted or self.task.output_type not in ("generate_until", "multiple_choice"):
            return
        if self.task.output_type == "generate_until":
            try:
                place = plugin.expected.claim(self.path, self.task.id, plugin.run_id(EXTRACTION))
            except SnapshotError as error:
                yield LoadItem.from_parent(self, name="load[extraction]", error=error, task=self.task)
            else:
                yield ExtractionItem.from_parent(self, name="extraction", task=self.task, place=place)
        yield ScoringItem.from_parent(self, name="scoring", task=self.task)


class PromptItem(pytest.Item):
    """What our items share: an outcome, a location in the YAML, and failures told in words."""

    marker = "promptfmt_snapshot"

    def __init__(self, *, name: str, parent: pytest.Collector, task: Task | None = None, **kwargs: Any) -> None:
        # As text, so that pytest 9.2 parses it as it parses the ids it stored: else --lf and --ff find none of ours.
        super().__init__(name=name, parent=parent, nodeid=f"{parent.nodeid}::{name}", **kwargs)
        self.task = task
        self.selectable = Selectable(name=task.name, id=task.id, format=task.format) if task is not None else None
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
        if isinstance(excinfo.value, (PromptfmtError, SnapshotMismatchError, FindingsError, ScoringFailedError)):
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

    def __init__(self, *, task_name: str, reason: str, **kwargs: Any) -> None:
        super().__init__(name=_node_name(task_name), **kwargs)
        self.selectable = Selectable(name=task_name, id=task_name)
        self.task_name = task_name
        self.reason = reason

    def runtest(self) -> None:
        """Skip, saying why."""
        outcome = Outcome(task=self.task_name, file=str(self.path))
        self.outcome = outcome.skipped("Python task classes make their own prompts")
        pytest.skip(self.reason)


class RenderedItem(PromptItem):
    """What items share that look at the prompts of one task@format for one profile."""

    def __init__(self, *, task: Task, profile: Profile, **kwargs: Any) -> None:
        super().__init__(task=task, **kwargs)
        self.tested = task
        self.profile = profile

    def runtest(self) -> None:
        """Render and judge; skip where something is withheld that rendering needs."""
        plugin = self.config.stash[PLUGIN]
        profile_id = plugin.profile_id(self.profile)
        self.outcome = outcome = Outcome(task=self.tested.id, file=str(self.path), profile=profile_id)
        try:
            rendered = plugin.pipeline.render(self.tested, self.profile, profile_id)
        except WithheldError as error:
            self.outcome = outcome.skipped(error.reason)
            pytest.skip(str(error))
        except PromptfmtError as error:
            self.outcome = outcome.failed(error)
            raise
        self.judge(plugin, rendered, outcome)

    def judge(self, plugin: PromptfmtPlugin, rendered: Rendered, outcome: Outcome) -> None:
        """Raise what is wrong with the prompts; rendering alone proves that they can be made."""


class VariantItem(RenderedItem):
    """A variant of a format: rendered for each doc, without a snapshot.

    That it differs from its format in what it says and in nothing else was proved when it was laid out.
    """

    marker = "promptfmt_variant"


class SnapshotItem(RenderedItem):
    """The prompts of one task@format for one profile, compared with their snapshot."""

    def __init__(self, *, place: snapshots.Place, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.place = place

    def judge(self, plugin: PromptfmtPlugin, rendered: Rendered, outcome: Outcome) -> None:
        """Compare with the snapshot; raises SnapshotMismatchError."""
        verdict = snapshots.check(
            self.config,
            self,
            self.place,
            rendered.document,
            expected=plugin.expected,
            narrowed_run=plugin.settings.is_narrowed,
        )
        self.outcome = outcome = outcome_of(verdict, rendered.instances, outcome)
        if verdict.passed:
            return
        names = self.nodeid.partition("::")[2]
        command = accept_command(display_path(self.path), names, plugin.settings.repeat, self.tested.id)
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
            checked = plugin.pipeline.checked(self.tested, plugin.checks, self.file)
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
        self.subject = view.file.names[0] if view.file.names else self.path.name
        self.selectable = Selectable(name=self.subject, id=self.subject)

    def runtest(self) -> None:
        """Check."""
        plugin = self.config.stash[PLUGIN]
        checked = check_view(plugin.checks, path=self.path, name=self.subject, file=self.view)
        self.outcome = _with_findings(plugin, Outcome(task=self.subject, file=str(self.path)), checked)
        _raise_errors(plugin, self.outcome, checked)


def _with_findings(plugin: PromptfmtPlugin, item: Outcome, checked: Checked) -> Outcome:
    globs = plugin.checks.per_file_ignores(Path(item.file))
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


def _likely_misspelt(file: TaskFile, index: TaskIndex) -> Iterator[str]:
    """Yield a remark for each member of a group that nobody defines, but that reads like a name somebody does.

    Others may be names of tasks that come with lm-eval.
    """
    for name in file.unresolved:
        hint = did_you_mean(name, index.names)
        if hint is not None:
            yield f"group {file.names[0]!r} lists {name!r}, which no file here defines; {hint}"


class ExtractionItem(PromptItem):
    """The phrasing battery of one task@format: rules of its own, and a verdict matrix compared with its snapshot."""

    marker = "promptfmt_extraction"

    def __init__(self, *, task: Task, place: snapshots.Place, **kwargs: Any) -> None:
        super().__init__(task=task, **kwargs)
        self.tested = task
        self.place = place

    def runtest(self) -> None:
        """Try every phrasing; skip where something is withheld."""
        plugin = self.config.stash[PLUGIN]
        item = Outcome(task=self.tested.id, file=str(self.path), profile=plugin.run_id(EXTRACTION))
        try:
            tried = plugin.scoring.extraction(self.tested)
        except WithheldError as error:
            self.outcome = item.skipped(error.reason)
            pytest.skip(str(error))
        except PromptfmtError as error:
            self.outcome = item.failed(error)
            raise
        header = {"task": self.tested.id, "profile": item.profile, "docs": tried.docs}
        document = extraction_document(header, tried.matrix)
        verdict = snapshots.check(self.config, self, self.place, document, expected=plugin.expected)
        self.outcome = outcome_of(verdict, (), item)
        if tried.failing or tried.problems:
            self.outcome = item.misread(tried.failing[0].id if tried.failing else "expected failures", tried.title)
        elif verdict.passed:
            return
        names = self.nodeid.partition("::")[2]
        command = accept_command(display_path(self.path), names, plugin.settings.repeat, self.tested.id)
        text = extraction_text(self.tested.id, tried.failing, tried.problems, verdict, command=command)
        raise ScoringFailedError(text)


class ScoringItem(PromptItem):
    """The scorer checks of one task@format."""

    marker = "promptfmt_scoring"

    def __init__(self, *, task: Task, **kwargs: Any) -> None:
        super().__init__(task=task, **kwargs)
        self.tested = task

    def runtest(self) -> None:
        """Score made-up answers; skip where something is withheld."""
        plugin = self.config.stash[PLUGIN]
        item = Outcome(task=self.tested.id, file=str(self.path), profile="scoring")
        self.outcome = item
        try:
            findings = plugin.scoring.findings(self.tested)
        except WithheldError as error:
            self.outcome = item.skipped(error.reason)
            pytest.skip(str(error))
        except PromptfmtError as error:
            self.outcome = item.failed(error)
            raise
        if findings:
            self.outcome = item.misread(findings[0].name, f"{findings[0].name}: {findings[0].message}")
            raise ScoringFailedError(findings_text(self.tested.id, findings))


def _node_name(task_id: str) -> str:
    """Return a task's name as part of a node id, where `::` separates names and `[` begins the last of them."""
    return task_id.replace("::", ".").replace("[", "(").replace("]", ")")
