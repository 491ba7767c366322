"""The inputs that code uses while it runs without declaring them, traced by Python's audit hook."""

from __future__ import annotations

import errno
import os
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.files import hub_caches
from pytest_promptfmt.inputs.code_inputs import asks_for
from pytest_promptfmt.inputs.places import PACKAGE

_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_ASKS: Final = (
    *("socket.", "subprocess.", "os.system", "os.exec", "os.spawn", "os.posix_spawn", "os.fork", "os.chdir", "os.kill"),
    *("os.remove", "os.rename", "os.rmdir", "tempfile.", "shutil.", "urllib.", "http.", "sqlite3."),
)
_LOOKS_UP: Final = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyname_ex")
_CHANGING: Final = ("/proc/", "/sys/", "/dev/", "/run/")
_THIS_MACHINE: Final = ("localhost", "::1", "0.0.0.0", "", None)
_OWN: Final = ".promptfmt-"
_DESCRIPTORS: Final = "/proc/self/fd"
_MARKER: Final = f"{os.sep}__init__.py"
"""An empty file that Hugging Face's libraries write into a new cache, which makes it a package."""

_COMPILED: Final = f"{os.sep}__pycache__{os.sep}"
_LOADER: Final = os.path.join(PACKAGE, "profiles", "tokenizer_loader.py")

CONVERSION: Final = "a tokenizer that is converted"
"""In place of what is not an input: converting only needs the tokenizer's files, but may fail for other reasons."""


@dataclass(slots=True)
class AccessedPaths:
    """The paths that were opened or listed, and the first use of something that is not an input, "" for none."""

    paths: set[str] = field(default_factory=set)
    refused: str = ""


class Trace:
    """The paths that this process opens or lists, from `begin` on, except those that `is_left_out` accepts.

    They are kept for each Python file on the call stack, and for "": a module may keep the content of a file that one
    task made it open, so that other tasks that use it do not open it again. An audit hook cannot be removed, so a
    process has at most one trace: a worker. If the run `is_offline`, code of tasks has no network either, so that its
    result is the same on every machine.
    """

    def __init__(self, is_left_out: Callable[[str], bool], *, is_offline: bool = False) -> None:
        self._is_left_out = is_left_out
        self._is_offline = is_offline
        self._above: CodeType | None = None
        self._known: dict[str, bool] = {}
        self._seen: dict[str, AccessedPaths] = defaultdict(AccessedPaths)
        self._descriptors: frozenset[str] = frozenset()

    def begin(self, *, above: CodeType | None = None) -> None:
        """Trace from now on; `above` is the function that calls all code of tasks."""
        self._above = above
        self._add_open_files()
        self._seen.clear()
        sys.addaudithook(self._see)

    def taken(self, *, is_last: bool = True) -> list[tuple[str, list[str], str]]:
        """Return the trace since the last call: Python file, paths, and what is not an input.

        Files that are still open are added at the `is_last` call for a task.
        """
        if is_last:
            self._add_open_files()
        found = [(file, sorted(seen.paths), seen.refused) for file, seen in self._seen.items()]
        self._seen.clear()
        return found

    def _add_open_files(self) -> None:
        """Add the files that are open since the last call, also those that compiled code has opened, on Linux."""
        try:
            now = frozenset(os.listdir(_DESCRIPTORS))
        except OSError:
            return
        new, self._descriptors = now - self._descriptors, now
        for number in new:
            with suppress(OSError):
                path = str(Path(_DESCRIPTORS, number).readlink())
                if os.path.isfile(path) and not self._leaves_out(path) and not path.startswith(_CHANGING):
                    self._seen[""].paths.add(path)

    def _see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            self._opened(path, flags if isinstance(flags, int) else 0)
        elif event in ("os.listdir", "os.scandir"):
            # code_inputs.py finds the files that an import may read
            if arguments[0] is not _DESCRIPTORS and not _is_import(sys._getframe().f_back):
                self._opened(arguments[0], 0, listed=True)
        elif not (event == "exec" or event.startswith(_ASKS)) or _is_import(sys._getframe().f_back):
            return  # an import runs code, and keeps what it compiled
        elif event in ("os.rename", "os.remove") and _OWN in str(arguments[0]):
            return  # a file of ours that is written, or may not be written
        elif event == "exec":
            asked = asks_for(arguments[0])
            if asked:
                self._refuse(f"code passed to exec or eval: {asked}")
        elif not (self._is_offline and self._is_kept_from(event, arguments)):
            self._refuse(event)

    def _is_kept_from(self, event: str, arguments: tuple[Any, ...]) -> bool:
        """Return whether an event would reach another machine; raises OSError if code of a task caused it."""
        if event.startswith(("urllib.", "http.")):
            return True  # a lookup of the name follows, or it stays on this machine
        if event in _LOOKS_UP:
            host = arguments[0]
        elif event == "socket.connect" and isinstance(arguments[1], tuple):
            host = arguments[1][0]
        else:
            return False
        name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
        if name in _THIS_MACHINE or (isinstance(name, str) and name.startswith("127.")):
            return False
        if self._files_at_work() > {""}:
            raise OSError(errno.ENETUNREACH, "a run uses no network by default")
        return False

    def _refuse(self, what: str) -> None:
        what = CONVERSION if self._is_converting() else what
        for file in self._files_at_work():
            if self._seen[file].refused in ("", CONVERSION):
                self._seen[file].refused = what

    def _is_converting(self) -> bool:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code is not self._above:
            if frame.f_code.co_filename == _LOADER:
                return True
            frame = frame.f_back
        return False

    def _files_at_work(self) -> set[str]:
        """Return the Python files on the call stack, and "" for all of them.

        Nothing while a library is imported: what it uses then is the same for every task.
        """
        files = {""}
        frame = sys._getframe(3)
        while frame is not None:
            code, caller = frame.f_code, frame.f_back
            if code is self._above:
                break
            name = code.co_filename
            if not self._leaves_out(name):
                files.add(name)
            elif code.co_name == "<module>" and _is_import(caller):
                return set()
            frame = caller  # type: ignore[assignment]
        return files

    def _leaves_out(self, name: str) -> bool:
        left_out = self._known.get(name)
        if left_out is None:
            is_made = name.startswith("<") or name.endswith(".pyc") or _OWN in name or _COMPILED in name
            left_out = self._known[name] = is_made or self._is_left_out(name)
        return left_out

    def _opened(self, path: Any, flags: int, *, listed: bool = False) -> None:
        if isinstance(path, int):
            return  # a file descriptor was opened by name before
        try:
            name = os.path.abspath(os.fsdecode(path if path is not None else "."))
        except (TypeError, ValueError):
            return
        if name == os.devnull or self._leaves_out(name):
            return
        if name.startswith(_CHANGING):
            self._refuse(name)
        elif flags & _WRITES:
            if not (name.endswith(_MARKER) and gate.is_below(name, hub_caches())):
                self._refuse("a file that the code writes")
        else:
            for file in self._files_at_work():
                self._seen[file].paths.add(f"{name}/" if listed else name)


def _is_import(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_code.co_filename.startswith("<frozen importlib")
