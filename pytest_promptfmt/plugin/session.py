"""A run that asked for prompt-format tests: its hooks, and the state that collecting, testing and reporting share."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_promptfmt.checks.registry import known_checks
from pytest_promptfmt.checks.running import Checked, Linter
from pytest_promptfmt.checks.selection import Selection
from pytest_promptfmt.core.errors import SettingsError, traceback_of_user
from pytest_promptfmt.core.finding import Reported, Severity
from pytest_promptfmt.core.network import go_offline
from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.core.profile import BUILTIN_PROFILES, DEFAULT_PROFILES, Profile
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.formats import Attempt, attempts
from pytest_promptfmt.models.running import ModelRun
from pytest_promptfmt.plugin.collection import TaskFileNode
from pytest_promptfmt.plugin.items import PLUGIN, PromptItem
from pytest_promptfmt.plugin.items.models import read_model_settings
from pytest_promptfmt.plugin.outputs import read_outputs
from pytest_promptfmt.plugin.selection import Selectable, chooses, unmatched
from pytest_promptfmt.results.baseline import BaselineRun
from pytest_promptfmt.results.edits import Edit
from pytest_promptfmt.results.failures import FailureText
from pytest_promptfmt.results.run_result import RunResult, Tally, content_of, used_globs
from pytest_promptfmt.results.terminal import archetypes_of, header_lines, sections
from pytest_promptfmt.results.writers import publish
from pytest_promptfmt.settings import Settings, SettingsTree
from pytest_promptfmt.settings.file import FILE_NAMES
from pytest_promptfmt.settings.profiles import task_profiles
from pytest_promptfmt.snapshots import extension as snapshots
from pytest_promptfmt.snapshots.lock import FILE_NAME as LOCK_NAME
from pytest_promptfmt.snapshots.lock import Lock
from pytest_promptfmt.snapshots.recorded import RECORDED
from pytest_promptfmt.snapshots.verdicts import EXTRACTION
from pytest_promptfmt.study import Studies
from pytest_promptfmt.systems import recognized, systems_for
from pytest_promptfmt.systems.lm_eval import SYSTEM as LM_EVAL
from pytest_promptfmt.systems.lm_eval.functions import load_function
from pytest_promptfmt.systems.lm_eval.index import TaskIndex

REPEATED: Final = "repeated"
"""How pytest's summary counts failures with the cause of an earlier one."""


def activate(config: pytest.Config) -> None:
    """Register the working plugin, and choose the paths to collect when the command line names none.

    Raises SettingsError for settings that make no sense, also when syrupy is switched off.
    """
    if not snapshots.syrupy_is_active(config):
        raise SettingsError("prompts are compared through syrupy, which is switched off", hint="drop -p no:syrupy")
    # No network unless asked: user code that would load data or metrics from a hub fails at once, without retries.
    go_offline()
    is_asked = config.args_source is pytest.Config.ArgsSource.ARGS
    places = [Path(path.partition("::")[0]) for path in config.args] if is_asked else [config.rootpath]
    plugin = PromptfmtPlugin(config, SettingsTree(config, DEFAULT_PROFILES, places))
    config.stash[PLUGIN] = plugin
    config.pluginmanager.register(plugin, "promptfmt-active")
    paths = [str(path) for path in plugin.settings.paths]
    if not is_asked:
        if config.getoption("promptfmt"):
            config.args = paths or [str(config.rootpath)]
        else:
            config.args = [*config.args, *paths]


class PromptfmtPlugin:
    """The hooks of a run that asked for prompt-format tests, and the state they share."""

    def __init__(self, config: pytest.Config, tree: SettingsTree) -> None:
        self.config = config
        self.settings = settings = tree.root
        self.index = TaskIndex()
        self.studies = Studies(self.settings_of)
        self.linter = Linter()
        self.expected = snapshots.ExpectedSnapshots()
        settings_of_model = read_model_settings(config)
        self.model = ModelRun(settings_of_model) if settings_of_model is not None else None
        self.outputs = read_outputs(config)
        self.baseline = BaselineRun(self.outputs.baseline, self.outputs.baseline_update, settings.rootdir)
        self.is_worker = hasattr(config, "workerinput")
        needs_all = self.outputs.baseline is not None or self.outputs.needs_views
        self.tally = Tally("none" if self.is_worker else "all" if needs_all else "remarkable")
        self.other_shards = 0
        if self.outputs.shard is not None:
            self.expected.limit_to(partial(self.outputs.shard.holds, rootdir=settings.rootdir))
        self.lock = Lock(settings.rootdir / LOCK_NAME)
        self._lock_lines: list[str] = []
        self._exit_status: int | None = None
        self._found_nothing = False
        self.unmatched: list[str] = []
        self._tree = tree
        self._known_checks = known_checks(settings.checks)
        self._selections: dict[int, tuple[Settings, Selection]] = {}
        self._profile_names: dict[str, None] = dict.fromkeys((*BUILTIN_PROFILES, EXTRACTION, RECORDED))
        self._first_named: dict[tuple[Path, str], Task] = {}
        self._roots: dict[Path, Path] = {}
        self.checks = self._selection(settings)

    def settings_for(self, file: Path) -> Settings:
        """Return the settings for a task file; raises SettingsError for a `promptfmt.yaml` that makes no sense."""
        folder = file.parent
        settings = self._tree.of(folder, self._roots.get(folder, folder))
        self._selection(settings)
        return settings

    def settings_of(self, task: Task) -> Settings:
        """Return the settings for a task, as for its file."""
        return self.settings if task.path is None else self.settings_for(task.path)

    def checks_for(self, file: Path) -> Selection:
        """Return the rules that look at a task file, and what is ignored there; raises as `settings_for`."""
        return self._selection(self.settings_for(file))

    def _selection(self, settings: Settings) -> Selection:
        """Return the rules that settings choose, and learn the names of the profiles that they define."""
        known = self._selections.get(id(settings))
        if known is None:
            known = self._selections[id(settings)] = settings, Selection.of(settings, self._known_checks)
            self._profile_names.update(dict.fromkeys(settings.defined))
            self.expected.set_profiles(self._profile_names)
        return known[1]

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

    def profiles_for(self, task: Task) -> tuple[Profile, ...]:
        """Return the profiles that a task is rendered for; raises SettingsError for one that it names wrongly."""
        settings = self.settings_of(task)
        if settings.has_chosen_profiles or "profiles" not in task.own_metadata:
            return settings.profiles
        return task_profiles(task, settings.profiles, settings.defined)

    def attempts(self, task: Task) -> Iterable[Attempt]:
        """Return the task in every format and variant that is tested."""
        resolve = partial(load_function, trusted=self.settings.trusts)
        return attempts(task, self.settings.formats, variants=self.settings.variants, resolve=resolve)

    def earlier_definition(self, task: Task, root: Path) -> Task | None:
        """Return the task of the same name in another file that was met before below the same root, if any."""
        first = self._first_named.setdefault((root, task.id), task)
        return first if first.path != task.path else None

    def pytest_report_header(self) -> list[str]:
        """Say what is rendered, and whose code may run."""
        return header_lines(self.settings)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Keep pytest out of our snapshot folders, and remember that this run came by."""
        if collection_path.name == snapshots.DIRECTORY:
            self.expected.visit(collection_path)
            return True
        return None

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """Return a node for every file with the shape of a task or group; other YAML and JSON is ignored quietly."""
        is_python = file_path.suffix == ".py"
        if not systems_for(file_path) or file_path.name in FILE_NAMES:
            return None
        if is_python and not self.settings.names_module(file_path):
            return None
        if not is_python and not parent.session.isinitpath(file_path):
            try:
                if recognized(file_path) is None:
                    return None
            except OSError:
                if file_path.suffix not in LM_EVAL.suffixes:
                    return None  # other files may be anything; YAML that cannot be read is a failing item
        if str(file_path) in (self.outputs.left_out or ()):
            return None
        if self.outputs.shard is not None and not self.outputs.shard.holds(file_path, self.settings.rootdir):
            self.other_shards += 1
            return None
        return TaskFileNode.from_parent(parent, path=file_path)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Deselect what the task globs and formats do not choose; a file that cannot be read might be what is meant."""
        self._found_nothing = not items
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
        """Send what collecting found from an xdist worker, which alone collects, to the controller."""
        output = getattr(session.config, "workeroutput", None)
        if self.model is not None:
            self.model.close(joins=output is None)
        if output is not None:
            output["promptfmt_unmatched"] = self.unmatched
            output["promptfmt_defined"] = self.baseline.defined
            output["promptfmt_other_shards"] = self.other_shards
            return
        self._lock_lines += self._locked()
        if self.other_shards and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK  # with more shards than files, some have nothing to do
        self._exit_status = int(session.exitstatus)

    def _locked(self) -> list[str]:
        """Write the lock when this run may, and return what there is to say of it."""
        option = self.config.option
        if option.update_snapshots or option.update_new_snapshots_only:
            return list(self.lock.renew(self.tally.tokenizers, only_new=not option.update_snapshots))
        return list(self.lock.out_of_date(self.tally.tokenizers))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker sent; each of them collected the same."""
        output = getattr(node, "workeroutput", {})
        self.unmatched = output.get("promptfmt_unmatched") or self.unmatched
        self.baseline.defined = output.get("promptfmt_defined") or self.baseline.defined
        self.other_shards = output.get("promptfmt_other_shards") or self.other_shards

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
        if call.when != "call" and report.failed and isinstance(item, PromptItem):
            report.promptfmt_not_run = True  # type: ignore[attr-defined]
        if call.when == "call" and isinstance(item, PromptItem) and item.outcome is not None:
            outcome, item.outcome = item.outcome, None  # pytest keeps every item to the end of the run
            report.promptfmt = outcome  # type: ignore[attr-defined]
            if report.skipped and not hasattr(report, "wasxfail"):
                # pytest names the line of this module that called skip; the reader wants the task's.
                path, line, _ = item.location
                report.longrepr = (path, (line or 0) + 1, f"Skipped: {outcome.title}")
            if report.failed and item.config.getoption("usepdb", False):
                call.excinfo = _error_of_user(call.excinfo)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_report_to_serializable(self, report: pytest.TestReport) -> Generator[None, Any, Any]:
        """Let the outcome of one of our items travel with its report."""
        data = yield
        outcome = getattr(report, "promptfmt", None)
        return {**data, "promptfmt": outcome.to_json()} if data is not None and outcome is not None else data

    @pytest.hookimpl(wrapper=True)
    def pytest_report_from_serializable(self) -> Generator[None, Any, Any]:
        """Read the outcome that travelled with a report."""
        report = yield
        if report is not None and hasattr(report, "promptfmt"):
            report.promptfmt = Outcome.from_json(report.promptfmt)
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, None, None]:
        """Count the outcome where the terminal is: here, or in the controller under xdist."""
        if getattr(report, "promptfmt_not_run", False):
            self.tally.not_run.append(report.nodeid)
        outcome: Outcome | None = getattr(report, "promptfmt", None)
        if outcome is not None:
            if not self.is_worker:
                del report.promptfmt  # pytest keeps every report to the end of the run
            repeats = self.tally.add(outcome, report.nodeid)
            report.promptfmt_repeats = repeats  # type: ignore[attr-defined]
            if isinstance(report.longrepr, str):
                report.longrepr = FailureText(report.longrepr)
        yield
        self._let_go(report)

    def _let_go(self, report: pytest.TestReport) -> None:
        """Drop the report of a setup or teardown that went well, which the terminal keeps for --durations alone.

        Two of three reports, which are a sixth of the memory of a large run.
        """
        reporter = self.config.pluginmanager.getplugin("terminalreporter")
        if report.when == "call" or not report.passed or reporter is None or self.config.option.durations is not None:
            return
        kept = reporter.stats.get("")
        if kept and kept[-1] is report:
            kept.pop()

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Count failures that repeat an earlier one apart, so that pytest does not print each again.

        Its failure section takes time quadratic in the failed reports. Exit status, JUnit files and --lf look at the
        report itself and see every one as failed.
        """
        if report.failed and getattr(report, "promptfmt_repeats", False):
            return REPEATED, "F", "FAILED"
        return None

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, exitstatus: int | pytest.ExitCode
    ) -> None:
        """Print what went wrong, each distinct problem once, and write the files that were asked for."""
        result, written = self._close(int(exitstatus))
        for title, lines in sections(result, verbosity=self.config.get_verbosity(), more=written):
            terminalreporter.section(title)
            for line in lines:
                terminalreporter.write_line(line)

    def _close(self, exit_status: int) -> tuple[RunResult, list[str]]:
        """Write the files that were asked for; return the result of the run, and a line for each file."""
        tally, outputs = self.tally, self.outputs
        tally.add_obsolete(snapshots.obsolete_snapshots(self.config))
        notes = list(self._lock_lines)
        if self._found_nothing and not notes and not self.unmatched and not self.other_shards:
            notes.append("there is no task file here; `promptfmt init` writes an example")
        lock = self.lock.would_write(tally.tokenizers)
        result = RunResult(
            rootdir=self.settings.rootdir,
            arguments=tuple(self.config.invocation_params.args),
            patch=outputs.patch,
            exit_status=exit_status,
            outcomes=tuple(tally.outcomes),
            counts=tally.counts,
            edits=tuple(tally.edits()) if outputs.needs_edits else (),
            lock=None if lock is None else Edit(path=lock[0], old=content_of(lock[0]), new=lock[1].encode()),
            baseline=self.baseline.result(tally.outcomes, codes_for=self._codes_for, not_run=tally.not_run),
            archetypes=archetypes_of(self.settings),
            not_run=tuple(tally.not_run),
            unmatched=tuple(self.unmatched),
            unmatched_globs=tuple(self._unmatched_globs()),
            notes=tuple(notes),
            defined=None if outputs.left_out is None else self.baseline.defined,
        )
        return result, list(publish(result, outputs.files, step_summary=outputs.step_summary))

    def _unmatched_globs(self) -> Iterable[str]:
        """Return the per-file ignores that fit no file."""
        matched = used_globs(self.tally.outcomes)
        chosen = [checks for settings, checks in self._selections.values() if settings.lint]
        return dict.fromkeys(glob for checks in chosen for glob in checks.globs_of_nothing(matched))

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Write the files also where nothing is printed (`-p no:terminal`)."""
        is_worker = hasattr(config, "workerinput")
        if self._exit_status is not None and not is_worker and not config.pluginmanager.has_plugin("terminalreporter"):
            self._close(self._exit_status)

    def _codes_for(self, file: Path) -> dict[str, bool]:
        """Return the codes of the rules that look at a task file, and whether the items `scoring` apply them."""
        codes = {check.code: check.scope == "scoring" for check in self.checks_for(file).chosen}
        return codes if self.settings_for(file).lint else {code: True for code, scores in codes.items() if scores}

    def wanted(self, checked: Checked, file: Path) -> tuple[Reported, ...]:
        """Return the findings of a task file to report: infos only with -v, or where the rule was selected."""
        checks = self.checks_for(file)
        return tuple(
            finding
            for finding in checked.findings
            if finding.severity is not Severity.INFO
            or self.config.get_verbosity() > 0
            or checks.is_asked_for(finding.code)
        )


def _error_of_user(info: pytest.ExceptionInfo[BaseException] | None) -> pytest.ExceptionInfo[BaseException] | None:
    """Return what the debugger opens: the task's own function where that failed, not what called it."""
    cause = info.value.__cause__ if info is not None else None
    traceback = traceback_of_user(cause) if cause is not None else None
    if cause is None or traceback is None:
        return info
    return pytest.ExceptionInfo.from_exc_info((type(cause), cause.with_traceback(traceback), traceback))
