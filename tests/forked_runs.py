"""`python -m pytest` and `python -m pytest_promptfmt` as processes that need not import everything again.

Each process of tests has a server that imports the package once and runs nothing. A run is a fork of the server: a
process with its own folder, environment and files, ready in a tenth of the time. Where a test sets a variable that
Python or a package reads at its start, or a path on which this package or `sitecustomize` is found first, and on
systems without fork, a run is a new interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import IO, Any, Final, NoReturn
from unittest.mock import patch

TIMEOUT: Final = 900
_READ_AT_START: Final = ("PYTHON", "LC_", "LANG", "LD_")
_SET_LATER: Final = "PYTHONPATH"
_ROOT: Final = Path(__file__).resolve().parents[1]
_IMPORTED_FIRST: Final = ("pytest_promptfmt", "sitecustomize.py", "usercustomize.py")
_AT_USE: Final = ("pdb", "typer._adapters", "hypothesis")  # imported by pytest, typer and a plugin in each run
_LATER: Final = {"datasets", "huggingface_hub", "tokenizers", "torch", "transformers"}  # they read variables, too
_NUMBER: Final = struct.Struct(">i")


def run(
    module: str,
    *args: str,
    folder: Path = Path(),
    environment: Mapping[str, str] | None = None,
    typed: str = "",
    is_script: bool = False,
    is_merged: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Return what `python -m MODULE ARGS` did in a folder; raises subprocess.TimeoutExpired.

    The console script of the module, where it `is_script`, finds no modules in the working directory. Standard output
    of a run that `is_merged` has what it wrote to standard error as well, in order.
    """
    variables = dict(os.environ if environment is None else environment)
    command = [sys.executable, *["-P"] * is_script, "-m", module, *args]
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(typed.encode())
        stdin.seek(0)
        errors = stdout if is_merged else stderr
        if hasattr(os, "fork") and _read_at_start(variables) == _OWN_VARIABLES and not _replaced(variables, folder):
            request = {
                "module": module,
                "args": args,
                "folder": str(folder.absolute()),
                "environment": variables,
                "is_script": is_script,
            }
            status = _server().run(request, [file.fileno() for file in (stdin, stdout, errors)], command)
        else:
            status = subprocess.run(
                command, cwd=folder, env=variables, stdin=stdin, stdout=stdout, stderr=errors, timeout=TIMEOUT
            ).returncode
        return subprocess.CompletedProcess(command, status, _written(stdout), _written(stderr))


def _read_at_start(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith(_READ_AT_START) and name != _SET_LATER}


def _replaced(variables: Mapping[str, str], folder: Path) -> bool:
    """Return whether another path of imports has what the server has imported from its own."""
    path = variables.get(_SET_LATER, "")
    found = [folder / each / name for each in path.split(os.pathsep) for name in _IMPORTED_FIRST]
    return path != _OWN_PATH and any(file.exists() and file.resolve().parent != _ROOT for file in found)


def _folders_of(path: str) -> list[str]:
    return [os.path.abspath(each) for each in path.split(os.pathsep)] if path else []


def _written(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # without compiled files each new interpreter compiles the package
_OWN_VARIABLES: Final = _read_at_start(os.environ)
_OWN_PATH: Final = os.environ.get(_SET_LATER, "")
_servers: Final[dict[int, _Server]] = {}


def _server() -> _Server:
    """Return the server of this process; a fork of it must not use the same socket."""
    if os.getpid() not in _servers:
        _servers[os.getpid()] = _Server()
    return _servers[os.getpid()]


class _Server:
    """The side of the tests: one request at a time."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair()
        command = [sys.executable, __file__, str(other.fileno())]
        environment = {**os.environ, "PYTEST_ADDOPTS": "", _SET_LATER: _OWN_PATH}  # those of a test are for its runs
        given: dict[str, Any] = {"pass_fds": [other.fileno()], "stdin": subprocess.DEVNULL, "env": environment}
        self._process = subprocess.Popen(command, cwd=os.sep, **given)  # not of a test, whose conftest it would read
        other.close()
        atexit.register(self._end)

    def run(self, request: Mapping[str, Any], files: Sequence[int], command: Sequence[str]) -> int:
        """Return the exit status of a fork that reads and writes these files."""
        content = json.dumps(request).encode()
        socket.send_fds(self._socket, [_NUMBER.pack(len(content))], files)
        self._socket.sendall(content)
        pid = _received(self._socket)
        self._socket.settimeout(TIMEOUT)
        try:
            return _received(self._socket)
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(command, TIMEOUT) from None

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()


def _received(connection: socket.socket) -> int:
    (number,) = _NUMBER.unpack(connection.recv(_NUMBER.size, socket.MSG_WAITALL))
    assert isinstance(number, int)
    return number


def _serve(connection: socket.socket) -> None:
    """Fork for each request until the tests are over."""
    _import_all()
    own = _folders_of(_OWN_PATH)
    path = [each for each in sys.path[1:] if each not in own]
    while True:
        size, files, *_ = socket.recv_fds(connection, _NUMBER.size, 3)
        if not size:
            return
        content = connection.recv(_NUMBER.unpack(size)[0], socket.MSG_WAITALL)
        pid = os.fork()
        if pid == 0:
            connection.close()
            _start(json.loads(content), files, path)
        for file in files:
            os.close(file)
        connection.sendall(_NUMBER.pack(pid))
        _, status = os.waitpid(pid, 0)
        connection.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(status)))


def _import_all() -> None:
    import pytest

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        pytest.main(["-VV", "-c", os.devnull])  # imports all plugins in pytest's own way, and configures none
    package = importlib.import_module("pytest_promptfmt")
    for module in pkgutil.walk_packages(package.__path__, "pytest_promptfmt."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in _AT_USE:
        with contextlib.suppress(ImportError):
            used = importlib.import_module(name)
            used.__doc__ = f"{used.__doc__}\nPYTEST_DONT_REWRITE"  # else each run warns that it is imported already
    with patch.dict(sys.modules):
        del sys.modules["pytest"]  # the command that compares revisions asks before it imports pytest
        can_be_copied = sys.modules["pytest_promptfmt.revisions.pytest_process"]._can_be_copied()
    assert can_be_copied
    assert not _LATER & sys.modules.keys()
    _read_installed_once()
    gc.freeze()


def _read_installed_once() -> None:
    """Keep the metadata of installed packages, which each run of pytest reads several times."""
    installed: Any = metadata.PathDistribution
    text_of, metadata_of = installed.read_text, installed.metadata.fget
    text_at = cache(lambda path, name: text_of(installed(path), name))
    metadata_at = cache(lambda path: metadata_of(installed(path)))
    installed.read_text = lambda self, name: text_at(self._path, name)
    installed.metadata = property(lambda self: metadata_at(self._path))
    for distribution in metadata.distributions():
        assert distribution.metadata
        distribution.read_text("entry_points.txt")


def _start(request: Mapping[str, Any], files: Sequence[int], path: Sequence[str]) -> NoReturn:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # it may be another one in this environment
    sys.argv = ["", *request["args"]]
    sys.path[:] = [*[os.getcwd()] * (not request["is_script"]), *_folders_of(os.environ.get(_SET_LATER, "")), *path]
    if "xdist.plugin" in sys.modules:
        sys.modules["xdist.plugin"]._sys_path[:] = sys.path  # which it gives its workers
    time.tzset()
    if request["module"] == "pytest":
        sys.modules["pytest_promptfmt.revisions.pytest_process"]._can_be_copied.cache_clear()
    status = 0
    try:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except SystemExit as leaving:
        if not isinstance(leaving.code, int | None):
            raise
        status = leaving.code or 0
    _leave(status)


def _leave(status: int) -> NoReturn:
    """End as Python does, but without taking apart all modules, a large part of the time of a small run."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status & 0xFF)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as served:
        _serve(served)
