"""What the kernel lets a worker do: Linux without root, by namespaces and Landlock, through system calls of libc.

A confined process writes only below named folders, sends signals only to processes that it started, and, if the run is
offline, has no network but a loopback interface of its own. Reading stays as it is, because Python imports from
anywhere. Sources: landlock(7), user_namespaces(7), network_namespaces(7).
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.engine.processes import forked

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture but Alpha
_ABI_VERSION: Final = 1  # a flag
_FIRST_ABI: Final = 3
"""Linux 6.2: earlier ones do not restrict truncation."""
_SIGNALS_ABI: Final = 6
"""Linux 6.12: signals and abstract sockets can be restricted, too."""
_SCOPES: Final = 0b11

_WRITE_FILE: Final = 1 << 1
_TRUNCATE: Final = 1 << 14
_ON_FILES: Final = _WRITE_FILE | _TRUNCATE
_WRITES: Final = _ON_FILES | sum(1 << bit for bit in range(4, 14))  # remove, make each kind of file, link or rename
_BENEATH_PATH: Final = 1

_CHILD_SUBREAPER: Final = 36
_NO_NEW_PRIVILEGES: Final = 38
_NEW_USER: Final = 0x10000000
_NEW_NETWORK: Final = 0x40000000
_CAPABILITIES: Final = struct.pack("<Ii", 0x20080522, 0)
_SET_INTERFACE: Final = 0x8914
_UP: Final = 0x41  # and running

_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty", "ptmx")


@dataclass(frozen=True, kw_only=True, slots=True)
class Possible:
    """The parts of a confinement that this kernel allows."""

    files: bool
    network: bool

    def note(self) -> str:
        """Return what workers can do because the kernel does not restrict it, "" for nothing."""
        lacking = [] if self.files else ["write all your files (preventing this requires Landlock, Linux 6.2)"]
        lacking += [] if self.network else ["use the network (preventing this requires user namespaces)"]
        return f"workers are not confined: code of tasks can {' and '.join(lacking)}" if lacking else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Confinement:
    """Restrictions of a worker: it writes only below `writable`, and has a network only if `has_network`."""

    writable: tuple[str, ...]
    has_network: bool

    def apply(self) -> None:
        """Restrict this process and those that it starts, for ever, as far as is possible here."""
        found = possible()
        with suppress(OSError):  # such as too many namespaces at once
            if found.network and not self.has_network:
                _leave_network()
        with suppress(OSError):
            if found.files:
                _restrict_files(self.writable)


def adopt_orphans() -> None:
    """Become the parent of each process below this one whose own parent ends, so that it can be found (Linux)."""
    if sys.platform.startswith("linux"):
        _libc().prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)


@cache
def possible() -> Possible:
    """Return what is possible here; tried in a process of its own, because a part cannot be undone."""
    if not sys.platform.startswith("linux") or platform.machine() == "alpha":
        return Possible(files=False, network=False)
    files = _abi() >= _FIRST_ABI and _succeeds(lambda: _restrict_files(()))
    return Possible(files=files, network=_succeeds(_leave_network))


def _succeeds(restrict: Callable[[], None]) -> bool:
    try:
        pid = forked(restrict)
    except OSError:
        return False
    _, status = os.waitpid(pid, os.WUNTRACED)
    while os.WIFSTOPPED(status):
        os.kill(pid, signal.SIGCONT)
        _, status = os.waitpid(pid, os.WUNTRACED)
    return status == 0


def _call(number: int, *arguments: Any) -> int:
    """Return the result of a system call; raises OSError."""
    result: int = _libc().syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


# -- files: Landlock ---------------------------------------------------------------------------------------------------


def _abi() -> int:
    try:
        return _call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_ABI_VERSION))
    except OSError:
        return 0


def _restrict_files(writable: Iterable[str]) -> None:
    """Let this process write only below some folders, and to devices that keep nothing; raises OSError."""
    scopes = _SCOPES if _abi() >= _SIGNALS_ABI else 0
    attributes = struct.pack("=QQQ", _WRITES, 0, scopes)[: 24 if scopes else 8]
    rules = _call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0))
    try:
        for device in _DEVICES:
            _allow(rules, f"/dev/{device}", _ON_FILES)
        _allow(rules, "/dev/pts", _ON_FILES)
        for folder in ("/dev/shm", *writable):
            _allow(rules, folder, _WRITES)
        _checked(_libc().prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
        _call(_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint(0))
    finally:
        os.close(rules)


def _allow(rules: int, path: str, access: int) -> None:
    with suppress(OSError):  # it does not exist
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            is_folder = os.path.isdir(path)
            rule = struct.pack("=Qi", access if is_folder else access & _ON_FILES, place)
            _call(_ADD_RULE, ctypes.c_int(rules), ctypes.c_int(_BENEATH_PATH), rule, ctypes.c_uint(0))
        finally:
            os.close(place)


# -- network: namespaces -----------------------------------------------------------------------------------------------


def _leave_network() -> None:
    """Move this process to a network of its own, in which only the loopback interface is up; raises OSError."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:  # root needs no other user namespace, in which it may not read the files of other users
        _checked(_libc().unshare(_NEW_NETWORK))
    else:
        _checked(_libc().unshare(_NEW_USER | _NEW_NETWORK))
        for name, content in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            Path(f"/proc/self/{name}").write_text(content, "utf-8")
    with suppress(OSError):
        _raise_loopback()
    if user != 0:  # it has all capabilities in its namespace, such as to read its own files whatever their mode
        _checked(_libc().capset(_CAPABILITIES, bytes(24)))


def _raise_loopback() -> None:
    import fcntl
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SET_INTERFACE, struct.pack("16sH22x", b"lo", _UP))
