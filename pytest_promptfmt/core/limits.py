"""Time limits around users' code: templates, functions, regular expressions.

In the main thread of a POSIX system an interval timer interrupts the code, everywhere else a watchdog thread does.
A limit counts wall-clock seconds, or processor time where a verdict must not depend on the load of the machine.
It can also limit how much memory the process takes: many texts of allowed size can be too much together. Limits
of size live where the text is made.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Final, NoReturn

from pytest_promptfmt.core.errors import LimitExceededError, Position

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_REPEAT_SECONDS: Final = 0.05
"""How soon code that swallowed the interruption is interrupted again, and how often memory is checked."""
_FIRST_LOOK_SECONDS: Final = 0.2
"""When memory is checked first: most work is done by then, and has cost nothing."""

RENDERING_MEMORY: Final = 2**32
"""By how many bytes rendering a task may grow the process: functions of the task may load what they need."""


class _TimeUp(BaseException):
    """The interruption itself: an `except Exception` in the interrupted code does not stop it."""


def must_propagate(error: BaseException) -> bool:
    """Return whether an exception must not be handled here: Ctrl-C, or the end of an outer time limit."""
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


_ENDLESS: Final = "look for an endless loop or a regular expression that backtracks without end"


def time_limit(
    seconds: float,
    what: str,
    position: Position | None = None,
    *,
    hint: str = _ENDLESS,
    memory: int | None = None,
) -> AbstractContextManager[None]:
    """Return a context manager that ends its block with LimitExceededError after `seconds`.

    `what` is the subject of the message (`doc_to_text did not finish within 10 s`). Limits nest, and an earlier
    SIGALRM handler with its timer (pytest-timeout uses the same one) is put back with the time it had left.
    Zero and infinity mean no limit. Code inside C that never looks for signals is interrupted when it returns.

    `memory` is by how many bytes the peak size of the process may grow inside the block, counted from the first check
    after a moment; only on POSIX systems.
    """
    if seconds <= 0 or math.isinf(seconds):
        return nullcontext()
    error = LimitExceededError(
        f"{what} did not finish within {seconds:g} s",
        position=position,
        hint=hint,
    )
    growth = None
    if memory is not None and resource is not None:
        growth = _Growth(memory, what, position)
    if can_interrupt("SIGALRM"):
        return _TimerLimit(seconds, error, _Timer(signal.SIGALRM, signal.ITIMER_REAL, time.monotonic), growth)
    return _watchdog_limit(seconds, error, growth)


def processor_time_limit(seconds: float, what: str) -> AbstractContextManager[None]:
    """Return a context manager that ends its block with LimitExceededError after `seconds` of this thread's work.

    Only where `can_interrupt("SIGPROF")`. Code that waits and does not work is not ended.
    """
    error = LimitExceededError(
        f"{what} did not finish within {seconds:g} s of processor time",
        hint="look for a regular expression that backtracks without end",
    )
    return _TimerLimit(seconds, error, _Timer(signal.SIGPROF, signal.ITIMER_PROF, time.thread_time))


def can_interrupt(signal_name: str) -> bool:
    """Return whether a timer of this signal can interrupt code of the current thread: POSIX, and the main thread.

    A handler set by C code cannot be put back from Python, so its signal is left alone.
    """
    return (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(getattr(signal, signal_name)) is not None
    )


@dataclass(frozen=True, slots=True)
class _Timer:
    """An interval timer: the signal it sends, its number, and the clock that it follows."""

    signal: int
    number: int
    now: Callable[[], float]


class _Growth:
    """By how much the largest size of this process grows from the first look on."""

    def __init__(self, most: int, what: str, position: Position | None) -> None:
        self._most = most
        self._what = what
        self._position = position
        self._before: int | None = None  # asking costs as much as rendering a short template

    def error(self) -> LimitExceededError:
        return LimitExceededError(
            f"{self._what} took more than {self._most / 2**20:,.0f} MB of memory",
            position=self._position,
            hint="look for a loop that keeps or prints more and more",
        )

    def is_too_large(self) -> bool:
        size = _largest_size()
        if self._before is None:
            self._before = size
        return size - self._before > self._most


def _largest_size() -> int:
    """Return the peak resident size of this process, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class _TimerLimit:
    """The limit of the main thread: `setitimer`, repeated until the block ends."""

    def __init__(self, seconds: float, error: LimitExceededError, timer: _Timer, growth: _Growth | None = None) -> None:
        self._seconds = seconds
        self._error = error
        self._timer = timer
        self._growth = growth
        self._fired: LimitExceededError | None = None

    def __enter__(self) -> None:
        timer = self._timer
        self._started = timer.now()
        self._deadline = self._started + self._seconds
        self._earlier_handler = signal.signal(timer.signal, self._interrupt)
        first = self._seconds if self._growth is None else min(self._seconds, _FIRST_LOOK_SECONDS)
        earlier_delay, self._earlier_interval = signal.setitimer(timer.number, first, _REPEAT_SECONDS)
        self._earlier_deadline = self._started + earlier_delay if earlier_delay else math.inf
        if self._earlier_deadline < self._started + first:
            signal.setitimer(timer.number, max(earlier_delay, 1e-6), _REPEAT_SECONDS)

    def __exit__(self, kind: type[BaseException] | None, raised: BaseException | None, _: TracebackType | None) -> None:
        timer = self._timer
        signal.setitimer(timer.number, 0)
        signal.signal(timer.signal, self._earlier_handler)
        if self._earlier_deadline < math.inf:
            left = max(self._earlier_deadline - timer.now(), 1e-6)
            signal.setitimer(timer.number, left, self._earlier_interval)
        # Also when the block swallowed the interruption or turned it into another error.
        if self._fired is not None and not isinstance(raised, KeyboardInterrupt):
            raise self._fired from (None if isinstance(raised, _TimeUp) else raised)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        # Raised in __enter__ or __exit__ it would skip the clean-up; the timer repeats, or the block is over anyway.
        if _is_ours(frame):
            return
        now = self._timer.now()
        if now >= self._earlier_deadline:
            self._earlier_deadline = now + self._earlier_interval if self._earlier_interval else math.inf
            if callable(self._earlier_handler):
                self._earlier_handler(number, frame)
        if now >= self._deadline or self._fired is not None:
            self._fired = self._fired or self._error
            raise _TimeUp
        next_stop = min(self._deadline, self._earlier_deadline)
        if self._growth is not None:
            if self._growth.is_too_large():
                self._fired = self._growth.error()
                raise _TimeUp
            next_stop = min(next_stop, now + _REPEAT_SECONDS)
        signal.setitimer(self._timer.number, max(next_stop - now, 1e-6), _REPEAT_SECONDS)


def _is_ours(frame: FrameType | None) -> bool:
    """Return whether the interrupted code is a limit being set or lifted, or what it calls in `signal`."""
    for _ in range(_FRAMES_IN_SIGNAL):
        if frame is None:
            return False
        if frame.f_code in _LIMIT_CODE:
            return True
        frame = frame.f_back
    return False


_FRAMES_IN_SIGNAL: Final = 3
_LIMIT_CODE: Final = (_TimerLimit.__enter__.__code__, _TimerLimit.__exit__.__code__)


@contextmanager
def _watchdog_limit(seconds: float, error: LimitExceededError, growth: _Growth | None) -> Iterator[None]:
    """Limit the block from a second thread, which raises in this one until the block is over."""
    thread = threading.get_ident()
    done = threading.Event()
    lock = threading.Lock()
    fired: LimitExceededError | None = None
    deadline = time.monotonic() + seconds

    def watch() -> None:
        nonlocal fired
        wait = seconds if growth is None else min(seconds, _FIRST_LOOK_SECONDS)
        while not done.wait(wait):
            wait = _REPEAT_SECONDS
            with lock:
                if done.is_set():
                    return
                if fired is None and time.monotonic() >= deadline:
                    fired = error
                elif fired is None and growth is not None and growth.is_too_large():
                    fired = growth.error()
                if fired is not None:
                    _raise_in_thread(thread, _TimeUp)

    threading.Thread(target=watch, name="promptfmt-time-limit", daemon=True).start()
    raised: BaseException | None = None
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit):
        done.set()
        raise
    except BaseException as caught:
        raised = caught
    finally:
        while not done.is_set():
            try:
                with lock:
                    done.set()
                    _raise_in_thread(thread, None)
            except _TimeUp:
                continue
    if fired is not None:
        raise fired from (None if isinstance(raised, _TimeUp) else raised)
    if raised is not None:
        raise raised


def _raise_in_thread(thread: int, error: type[BaseException] | None) -> None:
    argument = ctypes.py_object(error) if error is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), argument)
