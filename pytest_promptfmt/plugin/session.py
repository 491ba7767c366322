"""A run that tests prompts: the plugins that it is made of, the paths that it may open, and the hooks of collecting."""

from __future__ import annotations

import copy
import gc
import os
import re
import shlex
from collections.abc import Generator, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import pytest

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import SettingsError, did_you_mean, display_path
from pytest_promptfmt.core.limits import TOKENIZERS, go_offline
from pytest_promptfmt.core.profile import DEFAULT_PROFILES
from pytest_promptfmt.core.text import escape_controls
from pytest_promptfmt.engine.confinement import possible
from pytest_promptfmt.formats import base_format
from pytest_promptfmt.inputs.outcome_cache import OutcomeCache
from pytest_promptfmt.plugin.collection import (
    TaskFileNode,
    irregular_files,
    lost_its_tasks,
    may_define_tasks,
    task_file_node,
    warn_of_file,
)
from pytest_promptfmt.plugin.collection_errors import CollectionErrors
from pytest_promptfmt.plugin.items import KINDS
from pytest_promptfmt.plugin.items.item import PromptItem, Selectable
from pytest_promptfmt.plugin.items.task_node import LOADED, TaskNode, load_kinds
from pytest_promptfmt.plugin.outcome_reports import Closing, Interruption, OutcomeReports
from pytest_promptfmt.plugin.progress import ReadingLines
from pytest_promptfmt.plugin.run import RUN, Run
from pytest_promptfmt.plugin.unchanged import (
    Unchanged,
    UnchangedFolder,
    cache_of,
    children_of,
    collapses,
    expanded,
    is_below_named,
    unchanged,
    unchanged_folder,
)
from pytest_promptfmt.plugin.worker_processes import workers_of, xdist_workers
from pytest_promptfmt.plugin.worker_runs import WorkerRuns
from pytest_promptfmt.plugin.xdist_runs import MainProcess
from pytest_promptfmt.results.terminal import header_lines
from pytest_promptfmt.results.wording import listed
from pytest_promptfmt.settings import Settings, SettingsTree
from pytest_promptfmt.settings.setting_lookup import SettingLookup, given_places
from pytest_promptfmt.snapshots import extension as snapshots
from pytest_promptfmt.snapshots.paths import DIRECTORY
from pytest_promptfmt.systems import recognized, systems_for
from pytest_promptfmt.systems.lm_eval import SYSTEM as LM_EVAL
from pytest_promptfmt.tasks import is_copied_harness

_RUN_PYTHON: Final = ("python", "unittest", "doctest")
"""The plugins of pytest that run the code of test modules, packages and doctests."""

_MANY_ITEMS: Final = 5_000
"""The number of items from which collecting leaves enough garbage to collect."""

_WILDCARDS: Final = re.compile(r"[*?]+")
_SHOWN_NAMES: Final = 3


@runtime_checkable
class CollectedByName(Protocol):
    """A system whose files are collected only from the rootdir itself, below named folders, and by globs."""

    collected_by_name: bool


def activate(config: pytest.Config) -> None:
    """Register the plugins of a run, and choose the paths to collect if neither the command line nor pytest does.

    Raises SettingsError for invalid settings, also if syrupy is switched off.
    """
    if not snapshots.syrupy_is_active(config):
        raise SettingsError(
            "the plugin syrupy compares the prompts, but it is switched off", hint="remove -p no:syrupy"
        )
    # No network by default: user code that would load data or metrics from a hub fails at once, without retries.
    go_offline()
    TOKENIZERS.begin()
    # As for pytest's testpaths: settings choose the paths only where the rootdir is the invocation directory.
    is_named = config.args_source is pytest.Config.ArgsSource.ARGS or config.invocation_params.dir != config.rootpath
    places = [Path(path.partition("::")[0]) for path in config.args] if is_named else [config.rootpath]
    names = [name for entry in KINDS for name in entry.snapshot_names]
    _limit_paths(config, places)
    run = config.stash[RUN] = Run(config, SettingsTree(config, DEFAULT_PROFILES, places), names)
    snapshots.cover(config, run.expected.tree, places)
    kinds = config.stash[LOADED] = load_kinds(run)
    workers = workers_of(config)
    run.use_cache(cache_of(run, workers))
    plugins = [
        PromptfmtPlugin(run),
        CollectionErrors(run),
        ReadingLines(config),
        WorkerRuns(run, workers),
        OutcomeReports(config, run.tally),
        NewFirst(config, run.cache),
        *kinds,
        Interruption(run),
        Closing(run),
        *([MainProcess(run)] if xdist_workers(config) else []),
    ]
    for plugin in plugins:
        config.pluginmanager.register(plugin, f"promptfmt-{type(plugin).__name__}")
    if not is_named:
        paths = [str(path) for path in run.settings.paths]
        root = [str(config.rootpath)]
        given = (paths or root) if config.getoption("promptfmt") else [*config.args, *paths]
        if pytest.version_tuple < (9,):  # of a folder and one below it, pytest 8 collects only the second
            given = [each for each in given if not any(other in map(str, Path(each).parents) for other in given)]
        config.args = given


def _limit_paths(config: pytest.Config, places: Sequence[Path]) -> None:
    """Let this run open and write only files below the rootdir and those that the command line names, until its end."""
    config.add_cleanup(partial(gate.restore, gate.limits()))
    is_without_code = bool(SettingLookup(config).option("no_code"))
    gate.forbid_code(is_without_code)
    for name in _RUN_PYTHON if is_without_code else ():
        if config.pluginmanager.hasplugin(name):
            config.pluginmanager.unregister(name=name)
    gate.limit_to(_allowed_places(config, places))


def _allowed_places(config: pytest.Config, paths: Sequence[Path]) -> list[Path]:
    """Return the rootdir, and the places outside of it that the command line names; `paths` are those to collect.

    Only what the user typed counts, without an ini's `addopts`.
    """
    if config.getini("addopts"):
        words = [*shlex.split(os.environ.get("PYTEST_ADDOPTS", "")), *map(str, config.invocation_params.args)]
        typed = config._parser.parse_known_args(words)
        config = copy.copy(config)
        config.option = typed
        given = {Path(path.partition("::")[0]) for path in typed.file_or_dir}
        paths = [path for path in paths if path in given]
    return [config.rootpath, *given_places(SettingLookup(config), paths)]


class PromptfmtPlugin:
    """The hooks of collecting."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._collapses = collapses(run)

    def pytest_report_header(self) -> list[str]:
        """Return the lines about profiles, about whose code may run, and, with -v, about what it may do here."""
        lines = header_lines(self._run.settings)
        if self._run.config.get_verbosity() > 0 and not self._run.settings.no_code:
            note = (
                possible().note()
                if workers_of(self._run.config)
                else "without workers, code of tasks can write all your files and use the network"
            )
            lines += [f"promptfmt: {note}"] if note else []
        return [escape_controls(line) for line in lines]

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Exclude imported and configured objects from garbage collection."""
        gc.freeze()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Exclude the collected tree, which lives to the end: a tenth of the time of a run over 26,000 items."""
        if len(session.items) > _MANY_ITEMS:
            gc.collect()
        gc.freeze()

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Keep pytest out of folders that are left out, and of our snapshot folders, which count as visited.

        Also of a copy of a harness in another project, unless the command line names it or something in it.
        """
        if collection_path.name == DIRECTORY:
            self._run.expected.visit(collection_path)
            return True
        if is_copied_harness(collection_path) and not self._names(collection_path):
            shown = display_path(collection_path)
            self._run.found.notes.append(f"{shown} is a copy of a library; to test its tasks: promptfmt check {shown}")
            self._enter(collection_path.parent, None)
            return True
        return str(collection_path) in (self._run.outputs.left_out or ()) or None

    def _names(self, folder: Path) -> bool:
        """Return whether this run was given a path in a folder."""
        config = self._run.config
        given = (os.path.normpath(config.invocation_params.dir / arg.partition("::")[0]) for arg in config.args)
        return any(Path(path).is_relative_to(folder) for path in given)

    def pytest_collect_directory(self, path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """Return a node for an unchanged folder, which is not searched for files."""
        outputs = self._run.outputs
        is_one = len(self._run.config.args) == 1  # else names are looked up below several folders
        is_ours = self._collapses and is_one and outputs.shard is None and not outputs.left_out
        return unchanged_folder(path, parent) if is_ours else None

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """Return a node for every file with the shape of a task or group; other YAML and JSON is ignored quietly."""
        if not may_define_tasks(self._run, file_path):
            return None
        is_named = parent.session.isinitpath(file_path)
        by_name = any(isinstance(each, CollectedByName) for each in systems_for(file_path))
        is_asked = not by_name or self._defines_tasks(file_path, parent)  # an earlier run may have named its folder
        if self._collapses and not is_named and is_asked and self._is_read(file_path):
            same = unchanged(file_path, parent)
            if same is not None:
                return same  # type: ignore[return-value]  # an item without a collector represents the file
        if not (is_named or self._defines_tasks(file_path, parent)):
            return None
        if not self._is_read(file_path):
            self._run.found.other_shards += not self._is_in_shard(file_path)
            return None
        return task_file_node(parent, file_path)

    def _defines_tasks(self, file: Path, parent: pytest.Collector) -> bool:
        """Return whether a file has the shape of a task file, had it before, or cannot be read and may have it."""
        if file.suffix == ".py":
            return True
        try:
            system = recognized(file)
            if system is None:
                return lost_its_tasks(self._run, file)
            return not isinstance(system, CollectedByName) or self._is_requested(file, parent)
        except OSError as error:
            if file.suffix in LM_EVAL.suffixes:
                return True  # its item fails; other files may be of any kind
            if isinstance(error, gate.RefusedError):
                warn_of_file(file, f"not read: {error.strerror}")
                self._enter(file.parent, None)
            return False

    def _is_requested(self, file: Path, parent: pytest.Collector) -> bool:
        """Return whether files of this kind are tested here: in the rootdir, below a named folder, or by a glob."""
        settings = self._run.settings
        named = (folder for folder in file.parents if folder != settings.rootdir and parent.session.isinitpath(folder))
        if file.parent == settings.rootdir or any(named) or settings.names_template(file):
            return True
        top = file.relative_to(settings.rootdir).parts[0] if file.is_relative_to(settings.rootdir) else str(file.parent)
        if top not in self._run.found.template_folders:
            self._run.found.template_folders.append(top)
        return False

    def _is_read(self, file: Path) -> bool:
        """Return whether this run reads a task file: it is in the shard, and `promptfmt diff` does not leave it out."""
        return self._is_in_shard(file) and str(file) not in (self._run.outputs.left_out or ())

    def _is_in_shard(self, file: Path) -> bool:
        shard = self._run.outputs.shard
        return shard is None or shard.holds(file, self._run.settings.rootdir)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Note the children of a collector, and add files that pytest skips in a folder.

        Those are broken links, pipes and devices with the name of a task file.
        """
        report = yield
        if isinstance(collector, TaskFileNode | TaskNode) and report.passed:
            self._run.cache.planned.offer(collector, report.result)
        is_folder = isinstance(collector, pytest.Directory) and not isinstance(collector, UnchangedFolder)
        if is_folder and report.passed:
            is_named = any(map(collector.session.isinitpath, (collector.path, *collector.path.parents)))
            self._run.expected.enter(collector.path, is_whole=is_named)
            irregular = irregular_files(collector.path, LM_EVAL.suffixes)
            if self._collapses and is_below_named(collector.path / "-", collector.session):
                self._enter(collector.path, None if irregular else children_of(report.result))
            for path in irregular:
                if self._run.expected.has_snapshots(path) and self._is_in_shard(path):
                    report.result.append(task_file_node(collector, path))
                elif not path.is_dir():
                    warn_of_file(path, "this is not a regular file, so it is not read as a task")
        return report

    def _enter(self, folder: Path, children: Sequence[str] | None) -> None:
        """Note the collected children of a folder for the cache; None for a folder to collect each time."""
        self._run.cache.folders.enter(folder, children)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect the tasks that globs and formats do not choose; files that cannot be read are always kept."""
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
            (chosen if task is None or _chooses(settings, task) else left_out).append(item)
        found.unmatched = list(_unmatched(settings, known.values()))
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = chosen


def _chooses(settings: Settings, task: Selectable) -> bool:
    """Return whether the task globs and formats of a run choose a task."""
    if settings.formats and base_format(task.format) not in settings.formats:
        return False
    return not settings.task_globs or any(_matches(task, pattern) for pattern in settings.task_globs)


def _unmatched(settings: Settings, tasks: Iterable[Selectable]) -> Iterator[str]:
    """Yield a line for each task glob and format that no task matches, with the closest name."""
    known = list(tasks)
    names = list(dict.fromkeys(name for task in known for name in (task.name, task.id)))
    for pattern in settings.task_globs:
        if not any(_matches(task, pattern) for task in known):
            yield _nothing(f"--promptfmt-task {pattern!r}", len(known), _WILDCARDS.sub("", pattern), names)
    formats = [name for name in dict.fromkeys(base_format(task.format) for task in known) if name is not None]
    for chosen in settings.formats:
        if chosen not in formats:
            yield _nothing(f"--promptfmt-format {chosen!r}", len(known), chosen, formats, "; formats of the tasks: ")


def _matches(task: Selectable, pattern: str) -> bool:
    return fnmatchcase(task.name, pattern) or fnmatchcase(task.id, pattern)


def _nothing(option: str, number: int, name: str, known: Sequence[str], listing: str = ": ") -> str:
    if not number:
        return f"{option} matches nothing: there are no tasks"
    there = f"{option} matches none of the {number:,} tasks" if number > 1 else f"{option} does not match the only task"
    hint = did_you_mean(name, known)
    return f"{there}; {hint}" if hint else f"{there}{listing}{listed(known, _SHOWN_NAMES)}" if known else there


class NewFirst:
    """The hooks for `--new-first`: files with cached outcomes are known, so pytest need not keep the ids of our items.

    It reads, sorts and writes all ids in each run: in a large tree that takes longer than to detect that nothing has
    changed. Without a cache, pytest keeps them.
    """

    def __init__(self, config: pytest.Config, cache: OutcomeCache) -> None:
        self._config = config
        self._cache = cache

    @property
    def _known(self) -> set[Any]:
        """Return pytest's own set of known ids, which it will write."""
        plugin: Any = self._config.pluginmanager.get_plugin("nfplugin")
        return set() if plugin is None else plugin.cached_nodeids

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Add known items to pytest's set if it sorts by that."""
        if getattr(self._config.option, "newfirst", False):
            ours = (item for item in items if isinstance(item, PromptItem) and self._cache.knows(item.path))
            self._known.update(map(_id_of, ours))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Remove our items from pytest's set."""
        if self._cache.is_on and not self._config.option.collectonly:
            ours = (item for item in session.items if isinstance(item, PromptItem | Unchanged))
            self._known.difference_update(map(_id_of, ours))


def _id_of(item: pytest.Item) -> Any:
    return getattr(item, "id", item.nodeid)  # since pytest 9.2 an id is more than its text
