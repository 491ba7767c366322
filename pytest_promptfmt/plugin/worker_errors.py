"""How many worker processes a run has, what each may use, and what is said of what ended one."""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_promptfmt.core import limits
from pytest_promptfmt.core.errors import OUT_OF_MEMORY, LimitExceededError, Position, PromptfmtError
from pytest_promptfmt.engine.processes import CAN_FORK
from pytest_promptfmt.engine.workers import Limits, Lost, Pool
from pytest_promptfmt.settings.setting_lookup import SettingLookup

MEGABYTE: Final = 2**20
DEFAULT_MEMORY: Final = 1024
"""What a worker may hold besides what pytest's process holds, in megabytes."""


def workers_of(config: pytest.Config) -> int:
    """Return how many worker processes a run has: what was asked for, else one for each core.

    0, which means that everything runs in pytest's process, for a debugger and where processes cannot be forked.
    """
    if config.getoption("usepdb", False) or config.getoption("trace", False) or not CAN_FORK:
        return 0
    asked: int | None = SettingLookup(config).value("workers")
    if asked == 0 or not hasattr(config, "workerinput"):
        return _cores() if asked is None else asked
    return 1


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def limits_of(config: pytest.Config) -> Limits:
    """Return what each worker of a run may use."""
    memory = (SettingLookup(config).value("memory") or DEFAULT_MEMORY) * MEGABYTE
    return Limits(memory=memory, retire=memory * 3 // 4)


def try_in_worker(config: pytest.Config, path: Path, what: str, work: Callable[[], object]) -> None:
    """Do some work in a process that is thrown away, before code of a file does it in pytest's, which has no limits.

    Raises LimitExceededError where it is over a limit or ends its process; other errors will come again.
    """
    if not workers_of(config):
        return
    pool = Pool(lambda _: [_limit_over(work)], count=1, limits=limits_of(config), prepare=_become_silent)
    try:
        found: Any = pool.result(0)
    finally:
        pool.close()
    if isinstance(found, Lost):
        raise error_of(what, found, Position(path))
    if found is not None:
        raise LimitExceededError(found[0], position=Position(path), hint=found[1])


def _limit_over(work: Callable[[], object]) -> tuple[str, str | None] | None:
    try:
        work()
    except PromptfmtError as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, MemoryError):
                raise cause from None
            if isinstance(cause, LimitExceededError):
                return error.message, error.hint
            cause = cause.__cause__
    return None


def _become_silent() -> None:
    limits.apply_here()
    faulthandler.disable()
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for number in (0, 1, 2):
        os.dup2(sys.stdout.fileno(), number)


def error_of(name: str, lost: Lost, position: Position | None) -> LimitExceededError:
    """Return the message about what ended its worker."""
    endless = "look for an endless loop or a regular expression that backtracks without end"
    if lost.reason == "processor":
        said, hint = f"{name} did not finish within {lost.limit:g} s of processor time", endless
    elif lost.reason == "memory":
        said = f"{name} took more than {lost.limit / MEGABYTE:,.0f} MB of memory"
        hint = OUT_OF_MEMORY
    elif lost.reason == "waiting":
        said = f"{name} waited for {lost.limit:g} s and used next to no processor time"
        hint = "look for code that waits for a network, a lock or an input"
    elif lost.status < 0:
        said, hint = (
            f"{name} ended the process that it ran in, by signal {-lost.status}",
            "look for native code that crashes",
        )
    else:
        said, hint = f"{name} ended the process that it ran in, with exit status {lost.status}", "look for os._exit"
    return LimitExceededError(said, position=position, hint=hint)
