"""Process groups: started, limited, watched and ended together with the processes that they started themselves.

Linux and macOS. Each worker leads a separate process group, so that a signal reaches its children and their children,
and a terminal's Ctrl-C reaches none of them.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import secrets
import signal
import struct
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from hmac import compare_digest
from pathlib import Path
from typing import Any, Final, NoReturn

from pytest_promptfmt.engine import reaper

try:
    import fcntl
    import resource
except ImportError:  # Windows
    fcntl = resource = None  # type: ignore[assignment]

CAN_FORK: Final = hasattr(os, "fork") and resource is not None
"""Whether jobs can run in worker processes here."""

_ENDING: Final = frozenset({signal.SIGINT, signal.SIGTERM})

_LENGTH: Final = struct.Struct(">I")
_DIGEST_BYTES: Final = 16
_HEAD: Final = _LENGTH.size + _DIGEST_BYTES
_START: Final = _HEAD + _DIGEST_BYTES
_PATIENCE_SECONDS: Final = 10.0
"""The time in which a process ends that has nothing left to do."""

_PROC: Final = Path("/proc")
_DESCRIPTORS: Final = "/dev/fd"
_HIGH: Final = 4096
"""The numbers of hidden descriptors are below; larger ones cost each process a larger table."""


def pipe(opened: ExitStack) -> tuple[int, int]:
    """Return a pipe whose two ends are closed with others that are `opened`; raises OSError."""
    ends = os.pipe()
    for end in ends:
        opened.callback(os.close, end)
    return ends


def forked(child: Callable[[], None]) -> int:
    """Return the id of a new process that calls `child` and ends; it begins a new process group.

    Signals are blocked until the child has its own handlers, so that it never runs those of this process.
    """
    with uninterrupted():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: those here hold none of our locks
            pid = os.fork()
        if pid == 0:
            _begin(child)
    with suppress(OSError):
        os.setpgid(pid, pid)  # here as well: either process may be first
    return pid


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put off the signals that end a run to the end of the block, so that nothing in it is done by half."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # raises for a signal that came before
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def on_sigterm(end: Callable[[], NoReturn] | None = None) -> Iterator[None]:
    """Call a function that raises if SIGTERM arrives during the block, unless the signal is used for something else.

    By default, the block ends as that of Ctrl-C, with what it started. A second signal ends the process at once.
    """
    is_free = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not is_free or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ended(_number: int, _frame: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if end is not None:
            end()
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, ended)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _begin(child: Callable[[], None]) -> NoReturn:
    status = 1
    try:
        with suppress(OSError):
            os.setpgid(0, 0)
        gc.freeze()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        child()
        status = 0
    except BaseException:  # noqa: BLE001, RUF100  # it must not unwind into the copy of the caller
        pass
    os._exit(status)


def hidden(descriptor: int) -> int:
    """Move a descriptor to a high number that cannot be guessed; no program that this process starts inherits it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    half = (_HIGH if soft in (-1, resource.RLIM_INFINITY) else min(soft, _HIGH)) // 2
    try:
        number = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, half + secrets.randbelow(max(half // 2, 1)))
    except OSError:  # too few are allowed
        return descriptor
    os.close(descriptor)
    return number


def drop_descriptors(*, but: Collection[int]) -> None:
    """Cut this process off from every file that it inherited, except the standard streams and those of `but`.

    Their numbers name the null device from now on: objects of the copied process still close them, and must not close
    a file that was opened under the same number since.
    """
    try:
        numbers = [int(name) for name in os.listdir(_DESCRIPTORS)]
    except OSError:
        numbers = [*range(_HIGH // 4)]
    null = os.open(os.devnull, os.O_RDWR)
    for number in numbers:
        if number > 2 and number != null and number not in but:
            with suppress(OSError):
                os.fstat(number)
                os.dup2(null, number, inheritable=False)
    os.close(null)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The limits of a worker.

    `processor`: seconds of processor time for each number of a job. `waiting`: seconds with hardly any processor time.
    `memory`: bytes in addition to those that the worker began with; `retire`: such bytes after a job above which the
    worker is replaced. So it is after so many `jobs`: it has its own copy of all that they touched of the memory that
    it began with, which its successor shares again.
    """

    processor: float = 60.0
    memory: int = 2**30
    waiting: float = 30.0
    retire: int = 3 * 2**28
    jobs: int = 3_000


def limit_processor_time(seconds: float) -> None:
    """Let the kernel kill this process after so many more seconds of processor time, rounded up to whole ones."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    ceiling = int(usage.ru_utime + usage.ru_stime + seconds) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (ceiling, hard))


def limit_memory(size: int) -> None:
    """Limit the data of this process to so many bytes; an allocation beyond that raises MemoryError."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (size, hard))


@contextmanager
def limited_memory(size: int) -> Iterator[None]:
    """Inside the block, limit the data of this process to so many bytes more than it has now, as in a worker."""
    if not CAN_FORK:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit_memory(MemoryUse().data() + size)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


class MemoryUse:
    """The memory of this process; its file is opened once, because the files that a worker opens are traced."""

    def __init__(self) -> None:
        try:
            self._file: int | None = os.open(_PROC / "self" / "statm", os.O_RDONLY)
        except OSError:
            self._file = None

    def resident(self) -> int:
        """Return the bytes in use, 0 if unknown."""
        return self._pages(1)

    def data(self) -> int:
        """Return the bytes of data, as the limit of memory counts them; 0 if unknown."""
        return self._pages(5)

    def _pages(self, field: int) -> int:
        if self._file is None:
            return 0
        try:
            return int(os.pread(self._file, 200, 0).split()[field]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, IndexError):
            return 0


def used_seconds(group: int) -> tuple[float, float] | None:
    """Return the processor time that the processes of a group have used so far, None if unknown.

    The second value is the time for which they could not run because others used the processors.
    """
    if not (_PROC / "self" / "stat").exists():
        return None
    ticks = delays = 0
    for name in os.listdir(_PROC):
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                fields = (_PROC / name / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
                if int(fields[2]) == group:
                    ticks += sum(map(int, fields[11:15]))  # own time and that of children that have ended
                    delays += int((_PROC / name / "schedstat").read_text("utf-8").split()[1])
    return ticks / os.sysconf("SC_CLK_TCK"), delays / 1e9


def send(pipe: int, message: Any) -> None:
    """Write one message of JSON values to a pipe; raises OSError if its other end is closed."""
    _write(pipe, _LENGTH.pack(len(content := _encoded(message))) + content)


def receive(pipe: int) -> Any:
    """Return the next message of a pipe; raises EOFError at its end."""
    return json.loads(_exactly(pipe, _LENGTH.unpack(_exactly(pipe, _LENGTH.size))[0]))


def sealed_sender(pipe: int, key: bytes) -> Callable[[Any], None]:
    """Return a function that writes messages of JSON values to a pipe for an `Inbox` with this key."""
    numbers = itertools.count()

    def send_sealed(message: Any) -> None:
        content = _encoded(message)
        head = _LENGTH.pack(len(content)) + _digest(content)
        _write(pipe, head + _seal(key, next(numbers), head) + content)

    return send_sealed


def _encoded(message: Any) -> bytes:
    return json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode("ascii")


def _write(pipe: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(pipe, rest) :]


def _exactly(pipe: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(pipe, min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _digest(content: bytes, key: bytes = b"") -> bytes:
    return blake2b(content, key=key, digest_size=_DIGEST_BYTES).digest()


def _seal(key: bytes, number: int, head: bytes) -> bytes:
    """Return what only the holder of the key can make for the head of the `number`th message."""
    return _digest(number.to_bytes(8) + head, key)


class Inbox:
    """Sealed messages that arrive on a pipe piece by piece; anything else may be written to it as well.

    A message has the length and digest of its content, the seal of both, and the content.
    """

    MOST: Final = 1 << 30
    """The largest message that is read, in bytes."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0
        self._received = bytearray()

    def add(self, content: bytes) -> Iterator[bytes]:
        """Yield the messages that are complete now, as they were written; raises ValueError for any other input."""
        self._received += content
        while len(self._received) >= _START:
            head, seal = bytes(self._received[:_HEAD]), self._received[_HEAD:_START]
            (size,) = _LENGTH.unpack_from(head)
            if size > self.MOST or not compare_digest(seal, _seal(self._key, self._number, head)):
                raise ValueError("the worker process sent an invalid message")
            end = _START + size
            if len(self._received) < end:
                break
            message = bytes(self._received[_START:end])
            if _digest(message) != head[_LENGTH.size :]:
                raise ValueError("a message between two processes is damaged")
            self._number += 1
            del self._received[:end]
            yield message


class Reaper:
    """A small process that kills what it watches as soon as this process has ended, for any reason."""

    def __init__(self) -> None:
        null = subprocess.DEVNULL
        command = [sys.executable, "-I", "-S", reaper.__file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=null, stderr=null, process_group=0)
        assert self._process.stdin is not None
        self._pipe = self._process.stdin

    def watch(self, group: int, network: int = 0) -> None:
        """Kill this group as well, and the processes in its network if that is not shared."""
        self._send(group, network)

    def forget(self, group: int) -> None:
        """Do not kill this group: it has ended, and its number may be reused."""
        self._send(-group, 0)

    def leave(self) -> None:
        """Close the pipe in a process that was forked from this one."""
        self._pipe.close()

    def close(self) -> None:
        """End it; the groups that it still watches are killed, unless it has been stopped."""
        self.leave()
        try:
            self._process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, number: int, network: int) -> None:
        os.write(self._pipe.fileno(), b"%d %d\n" % (number, network))
