"""Conditions under which authors' code runs: limits of processor time, no exits, no network.

Limits hold in a process that was made for such code, a worker or a command, once that has called `apply_here`: there a
timer interrupts the code, with a message that names it. In any other process, such as pytest's own or a notebook's,
nothing is interrupted outside a block of `applied`. Code that swallows every interruption, or never returns from C, is
ended with its worker. Processor time is counted, so that a verdict is the same on a busy machine. Sizes are limited in
core/sandbox.py.
"""

from __future__ import annotations

import gc
import math
import mmap
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn

from pytest_promptfmt.core.errors import LimitExceededError, Position

_REPEAT_SECONDS: Final = 0.05
"""How soon code that swallowed the interruption is interrupted again."""

_ENDLESS: Final = "look for an endless loop, or a regular expression that backtracks too much"

_running: list[_Limit] = []
"""The limits around what runs now, the outermost first."""

_applies = False


class _TimeUp(BaseException):
    """The interruption itself: an `except Exception` in the interrupted code does not stop it."""


def apply_here() -> None:
    """Let limits hold in this process from now on, in its main thread; systems without such a timer have none."""
    global _applies
    if hasattr(signal, "setitimer") and not _applies:
        signal.signal(signal.SIGPROF, _interrupt)
        _applies = True


@contextmanager
def applied() -> Iterator[None]:
    """Let limits hold inside the block: in the main thread, unless other code of the process handles the signal."""
    global _applies
    is_main = threading.current_thread() is threading.main_thread()
    if not (is_main and hasattr(signal, "setitimer") and signal.getsignal(signal.SIGPROF) == signal.SIG_DFL):
        yield
        return
    apply_here()
    try:
        yield
    finally:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        _applies = False


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Let Python's collector run rarely inside the block: nearly all objects live to its end."""
    usual = gc.get_threshold()
    gc.set_threshold(100_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def are_applied() -> bool:
    """Return whether limits hold here."""
    return _applies and threading.current_thread() is threading.main_thread()


def must_propagate(error: BaseException) -> bool:
    """Return whether an exception must not be handled here: Ctrl-C, or the end of an outer limit."""
    return isinstance(error, KeyboardInterrupt | _TimeUp)


@contextmanager
def exits_raise() -> Iterator[None]:
    """Make `os._exit` raise SystemExit inside the block: a task's code must not end the run silently.

    In a process that was forked inside the block it ends that process, as usual.
    """
    own, leave = os.getpid(), os._exit

    def raised(status: int = 0) -> NoReturn:
        if os.getpid() != own:
            leave(status)
        raise SystemExit(status)

    os._exit = raised
    try:
        yield
    finally:
        os._exit = leave


def time_limit(
    seconds: float,
    what: str,
    position: Position | None = None,
    *,
    hint: str = _ENDLESS,
    error: type[LimitExceededError] = LimitExceededError,
) -> AbstractContextManager[None]:
    """Return a context manager that ends its block with `error` after `seconds` of processor time.

    `what` is the subject of the message (`doc_to_text did not finish within 10 s of processor time`). Limits nest. Zero
    and infinity mean no limit.
    """
    if seconds <= 0 or math.isinf(seconds) or not are_applied():
        return nullcontext()

    def exceeded() -> LimitExceededError:  # made where it is raised: there are many limits, and few errors
        return error(f"{what} did not finish within {seconds:g} s of processor time", position=position, hint=hint)

    return _Limit(seconds, exceeded)


class _Limit:
    """One limit: what `exceeded` returns is raised once processor time has come to `deadline`."""

    def __init__(self, seconds: float, exceeded: Callable[[], LimitExceededError]) -> None:
        self._seconds = seconds
        self._exceeded = exceeded
        self.deadline = math.inf
        self.is_over = False

    def __enter__(self) -> None:
        self.deadline = time.process_time() + self._seconds
        _running.append(self)
        _wind()

    def __exit__(self, kind: type[BaseException] | None, raised: BaseException | None, _: TracebackType | None) -> None:
        _running.remove(self)
        _wind()
        # Also when the block swallowed the interruption or turned it into another error.
        if self.is_over and not isinstance(raised, KeyboardInterrupt):
            raise self._exceeded() from (None if isinstance(raised, _TimeUp) else raised)


def _wind() -> None:
    """Set the timer to the next deadline."""
    first = min((limit.deadline for limit in _running), default=0.0)
    left = max(first - time.process_time(), 1e-6) if first else 0.0
    signal.setitimer(signal.ITIMER_PROF, left, _REPEAT_SECONDS if left else 0.0)


def _interrupt(_number: int, frame: FrameType | None) -> None:
    # Raised while a limit is set or lifted it would skip the clean-up; the timer repeats, or the block is over anyway.
    if _is_ours(frame):
        return
    now = time.process_time()
    over = [limit for limit in _running if limit.is_over or limit.deadline <= now]
    for limit in over:
        limit.is_over = True
    if over:
        raise _TimeUp


def _is_ours(frame: FrameType | None) -> bool:
    for _ in range(_FRAMES_IN_SIGNAL):
        if frame is None:
            return False
        if frame.f_code in _LIMIT_CODE:
            return True
        frame = frame.f_back
    return False


_FRAMES_IN_SIGNAL: Final = 4
_LIMIT_CODE: Final = (_Limit.__enter__.__code__, _Limit.__exit__.__code__, _wind.__code__)


class RunBudget:
    """Processor seconds that a run, with all processes that are forked from this one, may spend on one kind of work."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._spent = mmap.mmap(-1, _DOUBLE.size)  # shared with forks

    def begin(self) -> None:
        """Forget what was spent: a run begins."""
        self._spent[:] = _DOUBLE.pack(0)

    def spend(self, seconds: float) -> None:
        """Note that so many seconds were spent."""
        self._spent[:] = _DOUBLE.pack(_DOUBLE.unpack(self._spent)[0] + seconds)

    @property
    def is_spent(self) -> bool:
        """Return whether nothing is left."""
        spent: float = _DOUBLE.unpack(self._spent)[0]
        return spent >= self.seconds


_DOUBLE: Final = struct.Struct("d")

TOKENIZERS: Final = RunBudget(300)
"""For tokenizers that transformers cannot load, or only slowly."""


# -- network: Hugging Face's libraries read these variables when they are imported -------------------------------------

_HUB: Final = "HF_HUB_OFFLINE"
_VARIABLES: Final = (_HUB, "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE")

_set_here: set[str] = set()
"""The variables that the user had not set."""


def go_offline() -> None:
    """Make Hugging Face's libraries fail at once, without retries, where they would ask the hub; keeps what is set."""
    for name in _VARIABLES:
        if name not in os.environ:
            os.environ[name] = "1"
            _set_here.add(name)


def is_offline() -> bool:
    """Return whether neither the user nor this run lets Hugging Face's libraries ask the hub."""
    return os.environ.get(_HUB, "").upper() in ("1", "ON", "YES", "TRUE")


@contextmanager
def online() -> Iterator[None]:
    """Undo `go_offline` inside the block; the user's own variables still apply."""
    taken = {name: os.environ.pop(name) for name in _set_here if name in os.environ}
    _update_loaded_hub(taken, offline=False)
    try:
        yield
    finally:
        os.environ.update(taken)
        _update_loaded_hub(taken, offline=True)


def _update_loaded_hub(taken: dict[str, str], *, offline: bool) -> None:
    # huggingface_hub reads the variable once, and this constant before each request.
    constants: Any = sys.modules.get("huggingface_hub.constants")
    if constants is not None and _HUB in taken:
        constants.HF_HUB_OFFLINE = offline
