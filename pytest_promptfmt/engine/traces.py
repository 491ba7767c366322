"""What code opens and asks for while it runs, seen by Python's own audit hook: the inputs that nobody declared."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Final

_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_ASKS: Final = (
    "socket.",
    "subprocess.",
    "os.system",
    "os.exec",
    "os.spawn",
    "os.posix_spawn",
    "os.fork",
    "urllib.",
    "http.",
    "sqlite3.",
)
_CHANGING: Final = ("/proc/", "/sys/", "/dev/", "/run/")
_OWN: Final = ".promptfmt-"


class Trace:
    """The paths that this process opens or lists, from `begin` on; those that `is_left_out` accepts do not count.

    A hook of Python's cannot be taken away, so that a process has at most one trace: a worker.
    """

    def __init__(self, is_left_out: Callable[[str], bool]) -> None:
        self._is_left_out = is_left_out
        self._known: dict[str, bool] = {}
        self.paths: set[str] = set()
        self.refused = ""

    def begin(self) -> None:
        """See everything that is opened from now on."""
        sys.addaudithook(self._see)

    def taken(self) -> tuple[list[str], str]:
        """Return the paths since the last call, and what was asked for that is no input, "" for nothing."""
        found = sorted(self.paths), self.refused
        self.paths, self.refused = set(), ""
        return found

    def _see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            self._opened(path, flags if isinstance(flags, int) else 0)
        elif event in ("os.listdir", "os.scandir"):
            self._opened(arguments[0], 0, listed=True)
        elif event.startswith(_ASKS):
            self._refuse(event)

    def _refuse(self, what: str) -> None:
        if not self.refused and not self._loads_library():
            self.refused = what

    def _loads_library(self) -> bool:
        """Return whether a library is being imported: what it asks for then is the same for every task."""
        frame = sys._getframe(2)
        while frame is not None:
            code, caller = frame.f_code, frame.f_back
            is_import = caller is not None and caller.f_code.co_filename.startswith("<frozen importlib")
            if is_import and code.co_name == "<module>" and self._is_left_out(code.co_filename):
                return True
            frame = caller  # type: ignore[assignment]
        return False

    def _opened(self, path: Any, flags: int, *, listed: bool = False) -> None:
        if isinstance(path, int):
            return  # what has a number was opened by name before
        try:
            name = os.path.abspath(os.fsdecode(path if path is not None else "."))
        except (TypeError, ValueError):
            return
        left_out = self._known.get(name)
        if left_out is None:
            left_out = self._known[name] = name.endswith(".pyc") or _OWN in name or self._is_left_out(name)
        if left_out:
            return
        if name.startswith(_CHANGING) and name != os.devnull:
            self._refuse(name)
        elif flags & _WRITES:
            self._refuse("a file that is written")
        elif name != os.devnull and not (name not in self.paths and self._loads_library()):
            self.paths.add(f"{name}/" if listed else name)
