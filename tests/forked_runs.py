"""`python -m pytest` and `python -m pytest_promptfmt` as processes that need not import everything again.

Each process of tests has a server that imports the package once and runs nothing. A run is a fork of the server: a
process with its own folder, environment and files, ready in a tenth of the time. Where a test sets a variable that
Python or a package reads at its start, and on systems without fork, a run is a new interpreter.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, NoReturn

TIMEOUT: Final = 900
_READ_AT_START: Final = ("PYTHON", "LC_", "LANG", "TZ", "LD_")
_AT_USE: Final = ("pdb", "typer._adapters", "hypothesis")  # imported by pytest, typer and a plugin in each run
_LATER: Final = {"datasets", "huggingface_hub", "tokenizers", "torch", "transformers"}  # they read variables, too
_NUMBER: Final = struct.Struct(">i")


def run(
    module: str, *args: str, folder: Path = Path(), environment: Mapping[str, str] | None = None, typed: str = ""
) -> subprocess.CompletedProcess[str]:
    """Return what `python -m MODULE ARGS` did in a folder; raises subprocess.TimeoutExpired."""
    variables = dict(os.environ if environment is None else environment)
    command = [sys.executable, "-m", module, *args]
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(typed.encode())
        stdin.seek(0)
        if hasattr(os, "fork") and _read_at_start(variables) == _OWN_VARIABLES:
            request = {"module": module, "args": args, "folder": str(folder.absolute()), "environment": variables}
            status = _server().run(request, [file.fileno() for file in (stdin, stdout, stderr)], command)
        else:
            status = subprocess.run(
                command, cwd=folder, env=variables, stdin=stdin, stdout=stdout, stderr=stderr, timeout=TIMEOUT
            ).returncode
        return subprocess.CompletedProcess(command, status, _written(stdout), _written(stderr))


def _read_at_start(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith(_READ_AT_START)}


def _written(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # without compiled files each new interpreter compiles the package
_OWN_VARIABLES: Final = _read_at_start(os.environ)
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
        environment = {**os.environ, "PYTEST_ADDOPTS": ""}  # those of a test are for its runs
        null = subprocess.DEVNULL
        self._process = subprocess.Popen(command, pass_fds=[other.fileno()], stdin=null, env=environment)
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
    path = sys.path[1:]
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
    revision_runs = importlib.import_module("pytest_promptfmt.revisions.runs")
    can_be_copied = revision_runs._can_be_copied()  # before pytest is imported, as in the command
    assert can_be_copied
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
    assert not _LATER & sys.modules.keys()
    gc.freeze()


def _start(request: Mapping[str, Any], files: Sequence[int], path: Sequence[str]) -> NoReturn:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # it may be another one in this environment
    sys.argv = ["", *request["args"]]
    sys.path[:] = [os.getcwd(), *path]
    if request["module"] == "pytest":
        sys.modules["pytest_promptfmt.revisions.runs"]._can_be_copied.cache_clear()
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
