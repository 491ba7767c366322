"""Prompts run despite errors during collection.

A folder of tasks may hold test modules that cannot be imported here, as lm-eval's own does. pytest would run nothing at
all then. Prompts do not depend on those modules, so they are tested; ordinary tests are left out, as without this
plugin. pytest was asked to collect the modules, so the exit status is not 0.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_promptfmt.core.errors import display_path
from pytest_promptfmt.plugin.items.item import PromptItem
from pytest_promptfmt.plugin.run import Run
from pytest_promptfmt.plugin.unchanged import Unchanged
from pytest_promptfmt.results.wording import counted


class CollectionErrors:
    """The hooks that let a run continue after errors during collection."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._of_conftests: dict[str, tuple[Path, pytest.CollectReport]] = {}
        self._left_out: list[Path] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Collect a folder without its conftest if that cannot be imported, which remains an error of what is in it.

        An update does not: a conftest may define formats and systems, whose snapshots would be obsolete without it.
        """
        report = yield
        conftest, option = _broken_conftest(report), collector.config.option
        updates = option.update_snapshots or option.update_new_snapshots_only
        if conftest is None or updates or collector.nodeid in self._of_conftests:
            self._left_out += [collector.path] if conftest is not None and updates else []
            return report
        self._of_conftests[collector.nodeid] = collector.path, report
        collector.config.pluginmanager.register(ModuleType("conftest"), str(conftest))
        again: pytest.CollectReport = collector.ihook.pytest_make_collect_report(collector=collector)
        return again

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Report the error of a conftest for whose folder something was collected, and cache no outcome of that.

        What the conftest would have done is not among the inputs.
        """
        paths = {item.path for item in session.items} if self._of_conftests else ()
        for nodeid, (folder, report) in [*self._of_conftests.items()]:
            below = [path for path in paths if folder in path.parents]
            if below:
                session.config.hook.pytest_collectreport(report=report)
            else:
                del self._of_conftests[nodeid]
            for path in below:
                self._run.cache.watched.refuse(path, "a conftest that cannot be imported")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Run only our items after errors during collection; then pytest's own message ends the run."""
        option, errors = session.config.option, session.testsfailed
        is_ours = not (option.collectonly or session.shouldfail or session.shouldstop)
        if not errors or not is_ours:
            return (yield)
        ours = [item for item in session.items if isinstance(item, PromptItem | Unchanged)]
        others = len(session.items) - len(ours)
        if not ours:
            return (yield)
        is_module = errors > len(self._of_conftests) + len(self._left_out)
        self._run.found.notes.append(_note(errors, self._left_out, is_module=is_module))
        if option.continue_on_collection_errors:
            return (yield)
        session.items[:] = ours
        option.continue_on_collection_errors = True
        try:
            result = yield
        finally:
            option.continue_on_collection_errors = False
        if others:
            raise session.Interrupted(
                f"{counted(errors, 'error')} during collection. {counted(others, 'test')} without prompts did not run"
            )
        return result


def _note(errors: int, left_out: Sequence[Path], *, is_module: bool) -> str:
    """Return the line for the end of a run; no error may be that of a module, then all are those of conftests."""
    folders = ", ".join(display_path(folder) for folder in dict.fromkeys(left_out))
    apart = f", except in {folders}: updating snapshots there needs the conftest.py" if folders else ""
    remedy = (
        "test only prompts, use promptfmt check, or --ignore-glob='*.py'"
        if is_module
        else "run without conftest.py, use --noconftest"
    )
    return (
        f"{counted(errors, 'file')} could not be collected (see ERRORS), so the run fails. Prompts were tested{apart}. "
        f"To {remedy}"
    )


def _broken_conftest(report: pytest.CollectReport) -> Path | None:
    """Return the conftest that a folder failed for, None for any other result."""
    call: Any = getattr(report, "call", None)
    error: Any = call.excinfo.value if report.failed and call is not None and call.excinfo is not None else None
    return error.path if type(error).__name__ == "ConftestImportFailure" else None
