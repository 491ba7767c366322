"""Process groups: started, limited, watched and ended with everything that they started themselves.

Linux and macOS. A worker leads a process group of its own, so that a signal reaches its children and their children,
and a terminal's Ctrl-C reaches none of them.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

from pytest_promptfmt.engine import reaper

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

CAN_FORK: Final = hasattr(os, "fork") and resource is not None
"""Whether jobs can run in worker processes here."""

_LENGTH: Final = struct.Struct(">I")
_PROC: Final = Path("/proc")


def forked(child: Callable[[], None]) -> int:
    """Return the id of a new process that calls `child` and ends; it begins a process group of its own.

    Ctrl-C is held back until the child stands on its own, so that it never runs this process's handlers.
    """
    signals = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: those here hold none of our locks
            pid = os.fork()
        if pid == 0:
            _begin(child, before)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with suppress(OSError):
        os.setpgid(pid, pid)  # here as well, for whichever of the two comes first
    return pid


def _begin(child: Callable[[], None], mask: set[signal.Signals] | set[int]) -> NoReturn:
    status = 1
    try:
        with suppress(OSError):
            os.setpgid(0, 0)
        gc.freeze()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        child()
        status = 0
    except BaseException:  # noqa: BLE001, RUF100  # whatever it is, it must not unwind into the copy of the caller
        pass
    os._exit(status)


def limit_processor_time(seconds: float) -> None:
    """Let the kernel kill this process once it has worked so many seconds more, rounded up to whole ones."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    ceiling = int(usage.ru_utime + usage.ru_stime + seconds) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (ceiling, hard))


def limit_memory(size: int) -> None:
    """Let this process have at most so many bytes of data; what would take more raises MemoryError."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (size, hard))


def data_bytes() -> int:
    """Return how much data this process has, as the limit of it counts; 0 where that cannot be known."""
    try:
        return int((_PROC / "self" / "statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


class Resident:
    """How much memory this process has in use; its file is opened once, for a worker's files are watched."""

    def __init__(self) -> None:
        try:
            self._file: int | None = os.open(_PROC / "self" / "statm", os.O_RDONLY)
        except OSError:
            self._file = None

    def bytes(self) -> int:
        """Return the size, 0 where that cannot be known."""
        if self._file is None:
            return 0
        try:
            return int(os.pread(self._file, 200, 0).split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, IndexError):
            return 0


def worked_seconds(group: int) -> float | None:
    """Return the processor time that the processes of a group have used so far, None where that cannot be known."""
    if not (_PROC / "self" / "stat").exists():
        return None
    ticks = 0
    for name in os.listdir(_PROC):
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                fields = (_PROC / name / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
                if int(fields[2]) == group:
                    ticks += sum(map(int, fields[11:15]))  # own time and that of children that have ended
    return ticks / os.sysconf("SC_CLK_TCK")


def end_group(group: int, *, is_over: bool) -> None:
    """Kill every process of a group; the one that leads it is waited for, unless that `is_over` already."""
    with suppress(OSError):
        os.killpg(group, signal.SIGKILL)
    if not is_over:
        with suppress(OSError):
            os.waitpid(group, 0)


def send(pipe: int, message: Any) -> None:
    """Write one message, whatever JSON can hold, to a pipe; raises OSError where nobody reads it."""
    content = json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    rest = memoryview(_LENGTH.pack(len(content)) + content)
    while rest:
        rest = rest[os.write(pipe, rest) :]


def receive(pipe: int) -> Any:
    """Return the next message of a pipe; raises EOFError at its end."""
    return json.loads(_exactly(pipe, _LENGTH.unpack(_exactly(pipe, _LENGTH.size))[0]))


def _exactly(pipe: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(pipe, min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class Inbox:
    """Messages that arrive on a pipe piece by piece; whoever writes them is not trusted to be brief or right."""

    MOST: Final = 1 << 30
    """The largest message that is read, in bytes."""

    def __init__(self) -> None:
        self._received = bytearray()

    def add(self, content: bytes) -> list[bytes]:
        """Return the messages that are complete now, as they were written; raises ValueError for what is none."""
        self._received += content
        messages = []
        while len(self._received) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._received)
            if size > self.MOST:
                raise ValueError("a message of more than a gigabyte")
            end = _LENGTH.size + size
            if len(self._received) < end:
                break
            messages.append(bytes(self._received[_LENGTH.size : end]))
            del self._received[:end]
        return messages


class Reaper:
    """A small process that kills the groups that it watches as soon as this process is gone, however that ended."""

    def __init__(self) -> None:
        null = subprocess.DEVNULL
        command = [sys.executable, "-I", "-S", reaper.__file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=null, stderr=null, process_group=0)
        assert self._process.stdin is not None
        self._pipe = self._process.stdin

    def watch(self, group: int) -> None:
        """Kill this group as well."""
        self._tell(group)

    def forget(self, group: int) -> None:
        """Leave this group alone: it has ended, and its number may be given to another."""
        self._tell(-group)

    def leave(self) -> None:
        """Let go of the pipe in a process that was forked from this one."""
        self._pipe.close()

    def close(self) -> None:
        """End it; what it still watches is killed."""
        self.leave()
        self._process.wait()

    def _tell(self, number: int) -> None:
        os.write(self._pipe.fileno(), b"%d\n" % number)
