"""A run that asked for prompt-format tests: what it is made of, and the hooks of collecting."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pytest

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import SettingsError
from pytest_promptfmt.core.network import go_offline
from pytest_promptfmt.core.profile import DEFAULT_PROFILES
from pytest_promptfmt.core.text import escape_controls
from pytest_promptfmt.plugin.closing import Closing
from pytest_promptfmt.plugin.collection import (
    TaskFileNode,
    TaskNode,
    irregular_files,
    lost_its_tasks,
    task_file_node,
    warn_of_file,
)
from pytest_promptfmt.plugin.items.item import PromptItem
from pytest_promptfmt.plugin.items.kind import LOADED, load_kinds
from pytest_promptfmt.plugin.kind_registry import KINDS
from pytest_promptfmt.plugin.large_runs import LargeRuns
from pytest_promptfmt.plugin.new_first import NewFirst
from pytest_promptfmt.plugin.outcome_cache import OutcomeCache
from pytest_promptfmt.plugin.outcome_reports import OutcomeReports
from pytest_promptfmt.plugin.path_limits import limit_paths
from pytest_promptfmt.plugin.run import RUN, CollectionResult, Run
from pytest_promptfmt.plugin.task_selection import Selectable, chooses, unmatched
from pytest_promptfmt.plugin.unchanged import (
    UnchangedFolder,
    children_of,
    expanded,
    is_below_named,
    unchanged,
    unchanged_folder,
)
from pytest_promptfmt.plugin.worker_errors import workers_of
from pytest_promptfmt.plugin.worker_runs import WorkerRuns, collapses, kept_in
from pytest_promptfmt.results.terminal import header_lines
from pytest_promptfmt.settings import SettingsTree
from pytest_promptfmt.settings.file import FILE_NAMES
from pytest_promptfmt.snapshots import extension as snapshots
from pytest_promptfmt.snapshots.paths import DIRECTORY
from pytest_promptfmt.systems import recognized, systems_for
from pytest_promptfmt.systems.lm_eval import SYSTEM as LM_EVAL


@runtime_checkable
class CollectedByName(Protocol):
    """A system whose files are collected only from the rootdir itself, by name on the command line, and by globs."""

    collected_by_name: bool


def activate(config: pytest.Config) -> None:
    """Register the plugins of a run, and choose the paths to collect when the command line names none.

    Raises SettingsError for settings that make no sense, also when syrupy is switched off.
    """
    if not snapshots.syrupy_is_active(config):
        raise SettingsError("prompts are compared through syrupy, which is switched off", hint="drop -p no:syrupy")
    # No network unless asked: user code that would load data or metrics from a hub fails at once, without retries.
    go_offline()
    is_asked = config.args_source is pytest.Config.ArgsSource.ARGS
    places = [Path(path.partition("::")[0]) for path in config.args] if is_asked else [config.rootpath]
    names = [name for entry in KINDS for name in entry.snapshot_names]
    limit_paths(config, places)
    run = config.stash[RUN] = Run(config, SettingsTree(config, DEFAULT_PROFILES, places), names)
    snapshots.cover(config, run.expected.tree, places)
    kinds = config.stash[LOADED] = load_kinds(run)
    is_worker = hasattr(config, "workerinput")
    workers = workers_of(config)
    folder, shows = kept_in(run, workers)
    memory = OutcomeCache(config, run.folders, run.outputs, folder, shows=shows)
    run.remember(memory)
    plugins = [
        PromptfmtPlugin(run),
        WorkerRuns(run, workers),
        OutcomeReports(run.tally, is_worker=is_worker),
        LargeRuns(config),
        NewFirst(config, memory.store),
        *kinds,
    ]
    for plugin in plugins if is_worker else (*plugins, Closing(run)):
        config.pluginmanager.register(plugin, f"promptfmt-{type(plugin).__name__}")
    if not is_asked:
        paths = [str(path) for path in run.settings.paths]
        root = [str(config.rootpath)]
        config.args = (paths or root) if config.getoption("promptfmt") else [*config.args, *paths]


class PromptfmtPlugin:
    """The hooks of collecting."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._collapses = collapses(run)

    def pytest_report_header(self) -> list[str]:
        """Say what is rendered, and whose code may run."""
        return [escape_controls(line) for line in header_lines(self._run.settings)]

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Keep pytest out of our snapshot folders, and remember that this run came by."""
        if collection_path.name == DIRECTORY:
            self._run.expected.visit(collection_path)
            return True
        return None

    def pytest_collect_directory(self, path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """Return a node that goes not into a folder in which nothing has changed."""
        outputs = self._run.outputs
        is_one = len(self._run.config.args) == 1  # else names are looked up below several folders
        is_ours = self._collapses and is_one and outputs.shard is None and not outputs.left_out
        return unchanged_folder(path, parent) if is_ours else None

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """Return a node for every file with the shape of a task or group; other YAML and JSON is ignored quietly."""
        settings, outputs = self._run.settings, self._run.outputs
        is_python = file_path.suffix == ".py"
        if not systems_for(file_path) or file_path.name in FILE_NAMES:
            return None
        if is_python and not settings.names_module(file_path):
            return None
        if self._collapses and not parent.session.isinitpath(file_path) and self._is_in_run(file_path):
            same = unchanged(file_path, parent)
            if same is not None:
                return same  # type: ignore[return-value]  # an item without a collector is all that is left of the file
        if not is_python and not parent.session.isinitpath(file_path):
            try:
                system = recognized(file_path)
                if system is None and not lost_its_tasks(self._run, file_path):
                    return None
                if isinstance(system, CollectedByName) and not self._asks_for(file_path, parent):
                    return None
            except OSError as error:
                if file_path.suffix not in LM_EVAL.suffixes:
                    if isinstance(error, gate.RefusedError):
                        warn_of_file(file_path, f"not read: {error.strerror}")
                        self._run.memory.enter(file_path.parent, None)
                    return None  # other files may be anything; YAML that cannot be read is a failing item
        if str(file_path) in (outputs.left_out or ()):
            return None
        if outputs.shard is not None and not outputs.shard.holds(file_path, settings.rootdir):
            self._run.found.other_shards += 1
            return None
        return task_file_node(parent, file_path)

    def _is_in_run(self, file: Path) -> bool:
        outputs = self._run.outputs
        is_mine = outputs.shard is None or outputs.shard.holds(file, self._run.settings.rootdir)
        return is_mine and str(file) not in (outputs.left_out or ())

    def _asks_for(self, file: Path, parent: pytest.Collector) -> bool:
        """Return whether a file of its kind is tested here: its folder is the rootdir or named, or a glob matches."""
        settings = self._run.settings
        folder = file.parent
        return folder == settings.rootdir or parent.session.isinitpath(folder) or settings.names_template(file)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Take note of what there is to run, and add what pytest passes over in a folder.

        That is links to nothing, pipes and devices that are named like a task file.
        """
        report = yield
        if isinstance(collector, TaskFileNode | TaskNode) and report.passed:
            self._run.memory.offer(collector, report.result)
        is_folder = isinstance(collector, pytest.Directory) and not isinstance(collector, UnchangedFolder)
        if is_folder and report.passed:
            is_named = any(map(collector.session.isinitpath, (collector.path, *collector.path.parents)))
            self._run.expected.enter(collector.path, is_whole=is_named)
            irregular = irregular_files(collector.path, LM_EVAL.suffixes)
            if self._collapses and is_below_named(collector.path / "-", collector.session):
                self._run.memory.enter(collector.path, None if irregular else children_of(report.result))
            for path in irregular:
                if self._is_ours(path):
                    report.result.append(task_file_node(collector, path))
                elif not path.is_dir():
                    warn_of_file(path, "this is not a regular file, so it is not read as a task")
        return report

    def _is_ours(self, path: Path) -> bool:
        if self._run.expected.has_snapshots(path):
            return self._run.outputs.shard is None or self._run.outputs.shard.holds(path, self._run.settings.rootdir)
        return False

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect what the task globs and formats do not choose; a file that cannot be read might be what is meant."""
        settings, found = self._run.settings, self._run.found
        items[:] = expanded(items)
        found.has_items = bool(items)
        if not (settings.task_globs or settings.formats):
            return
        chosen: list[pytest.Item] = []
        left_out: list[pytest.Item] = []
        known: dict[str, Selectable] = {}
        for item in items:
            task = item.selectable if isinstance(item, PromptItem) else None
            if task is not None:
                known[task.id] = task
            (chosen if task is None or chooses(settings, task) else left_out).append(item)
        found.unmatched = list(unmatched(settings, known.values()))
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = chosen

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send what collecting found from an xdist worker, which alone collects, to the controller."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["promptfmt"] = asdict(self._run.found)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker sent; each of them collected the same."""
        sent = getattr(node, "workeroutput", {}).get("promptfmt")
        if sent is not None:
            known = asdict(self._run.found)
            self._run.found = CollectionResult(**{name: value or known[name] for name, value in sent.items()})
