"""Runs that are cut: SIGTERM ends them in order, as Ctrl-C does, and each reports how far it came."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest

from pytest_promptfmt.plugin.items.item import PromptItem
from pytest_promptfmt.plugin.run import Run
from pytest_promptfmt.results.wording import counted


class Interruption:
    """The hooks that end a run early; outcomes of finished files are cached at the end of each run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._waiting: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Note the tests that will run, and run them."""
        if not session.config.option.collectonly:
            self._waiting = {item.nodeid for item in session.items if isinstance(item, PromptItem)}
        with _ended_by_signal():
            return (yield)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note that a test has run."""
        self._waiting.discard(nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Add a line about the tests that did not run."""
        if not self._waiting:
            return
        kept = "; finished files are cached, so the next run continues there" if self._run.cache.is_on else ""
        text = f"the run ended early: {counted(len(self._waiting), 'test')} of prompts did not run{kept}"
        self._run.found.notes.append(text)


@contextmanager
def _ended_by_signal() -> Iterator[None]:
    """Let SIGTERM end the block as pytest.exit does, unless the signal is used for something else."""
    is_free = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not is_free or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(_number: int, _frame: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends the process at once
        pytest.exit("terminated by SIGTERM")  # with another exit status pytest would show no summary

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
