"""Users' filters and metrics under a time limit, always with Python's own `re`.

In the main thread a timer signal interrupts a match: `re` checks for signals while it backtracks. Elsewhere the match
itself cannot be interrupted, so the call runs in one long-lived worker process, which is killed when it is too slow.
Budgets are processor time, so that a busy machine does not change a verdict.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final

from pytest_promptfmt.core.errors import LimitExceededError, ScoringError
from pytest_promptfmt.core.limits import can_interrupt, processor_time_limit, time_limit

BUDGET_SECONDS: Final = 0.5
"""The processor time that one filter pipeline has for one completion."""

_PATIENCE: Final = 20
"""Wall-clock seconds for each second of the budget, until code that waits or shares the processor is killed."""

_PATIENCE_WITHOUT_SIGNALS: Final = 4
"""The same where a match cannot be interrupted, so that each endless one costs this much."""


def within_budget(call: Callable[..., Any], *arguments: Any, what: str, seconds: float = BUDGET_SECONDS) -> Any:
    """Return `call(*arguments)`; raises LimitExceededError when it works longer, else whatever the call raises.

    Outside the main thread the call and its arguments travel to a worker process; ScoringError where they cannot.
    """
    if can_interrupt("SIGPROF"):
        return _interrupted(call, arguments, what, seconds)
    return _worker.run(call, arguments, what, seconds)


def _interrupted(call: Callable[..., Any], arguments: tuple[Any, ...], what: str, seconds: float) -> Any:
    with time_limit(seconds * _PATIENCE, what), processor_time_limit(seconds, what):
        return call(*arguments)


def _measured(call: Callable[..., Any], arguments: tuple[Any, ...], what: str, seconds: float) -> Any:
    """Return the call's result; a slow call is refused once it is over, an endless one is killed by the parent."""
    began = time.process_time()
    value = call(*arguments)
    if time.process_time() - began > seconds:
        raise LimitExceededError(f"{what} did not finish within {seconds:g} s of processor time")
    return value


class _Worker:
    """One process that answers calls, one at a time, until one of them is too slow."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: Any = None
        self._pipe: Connection | None = None

    def run(self, call: Callable[..., Any], arguments: tuple[Any, ...], what: str, seconds: float) -> Any:
        try:
            message = pickle.dumps((call, arguments, what, seconds))
        except Exception as error:
            raise ScoringError(
                f"{what} cannot be limited in time outside the main thread: {error}",
                hint="run it in the main thread, or define the function at the top level of a module",
            ) from error
        with self._lock:
            pipe = self._started()
            pipe.send_bytes(message)
            patience = seconds * (2 * _PATIENCE if hasattr(signal, "setitimer") else _PATIENCE_WITHOUT_SIGNALS)
            if not pipe.poll(patience):
                self._stop()
                raise LimitExceededError(f"{what} did not finish within {seconds:g} s of processor time")
            try:
                succeeded, value = pickle.loads(pipe.recv_bytes())
            except EOFError as error:
                self._stop()
                raise ScoringError(f"{what} ended the process that ran it") from error
        if succeeded:
            return value
        raise value

    def _started(self) -> Connection:
        if self._pipe is None or not self._process.is_alive():
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            limited = _interrupted if hasattr(signal, "setitimer") else _measured
            self._process = context.Process(
                target=_serve, args=(theirs, limited), daemon=True, name="promptfmt-scoring"
            )
            self._process.start()
            theirs.close()
            self._pipe.recv_bytes()  # the first budget must not pay for the start
        return self._pipe

    def _stop(self) -> None:
        self._process.kill()
        self._process.join()
        if self._pipe is not None:
            self._pipe.close()
        self._pipe = self._process = None


def _serve(pipe: Connection, limited: Callable[..., Any]) -> None:
    pipe.send_bytes(b"ready")
    with contextlib.suppress(EOFError, OSError):
        while True:
            message = pipe.recv_bytes()
            try:
                call, arguments, what, seconds = pickle.loads(message)
                answer = pickle.dumps((True, limited(call, arguments, what, seconds)))
            except Exception as error:
                answer = _pickled_error(error)
            pipe.send_bytes(answer)


def _pickled_error(error: Exception) -> bytes:
    try:
        return pickle.dumps((False, error))
    except Exception:
        return pickle.dumps((False, ScoringError(f"{type(error).__name__}: {error}")))


_worker: Final = _Worker()
