"""A run with pytest-xdist: prompts are tested in its main process, with the workers of any run; xdist tests the rest.

Each process of xdist collects all tests, which for task files takes longer than to test them again, and has its own
studies of their tasks.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.plugin.collection import TaskFileNode, may_define_tasks
from pytest_promptfmt.plugin.run import Run


class MainProcess:
    """The hooks of the process that starts those of xdist."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Send a process of xdist the paths of other tests, none for a run without their code."""
        node.workerinput["promptfmt"] = [*self._arguments(of_prompts=False)] if not self._run.settings.no_code else []

    def _arguments(self, *, of_prompts: bool) -> Iterator[str]:
        """Yield the paths and ids to collect for prompts, or for other tests; folders and Python files have both."""
        for written in self._run.config.args:
            name, is_id, _ = written.partition("::")
            is_ours = may_define_tasks(self._run, Path(name))
            if is_ours or not is_id if of_prompts else not is_ours or name.endswith(".py"):
                yield written

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """Collect task files; the hook of xdist, which follows, collects nothing here."""
        session.perform_collect([*self._arguments(of_prompts=True)])

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> pytest.CollectReport | None:
        """Collect nothing in files of other tests."""
        is_other = isinstance(collector, pytest.File) and not isinstance(collector, TaskFileNode)
        return pytest.CollectReport(collector.nodeid, "passed", None, []) if is_other else None

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Run our items, and then let xdist run the others, which have their own percentages."""
        plugins: Any = session.config.pluginmanager
        plugins.getplugin("main").pytest_runtestloop(session)
        ours = session.testscollected
        getattr(plugins.getplugin("terminalreporter"), "_progress_nodeids_reported", set()).clear()
        result = yield
        session.testscollected += ours
        self._run.found.has_items = session.testscollected > 0
        return result
