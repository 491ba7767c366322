"""On a system that cannot fork (Windows) every module imports, and a run tests in pytest's own process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
HIDE = """
import asyncio, ctypes, multiprocessing, os, signal, subprocess, sys, tempfile  # which ask for some of it themselves
import pytest
for name in ("fork", "forkpty", "register_at_fork", "wait", "waitpid", "WNOHANG", "waitstatus_to_exitcode", "killpg",
             "getpgid", "setpgid", "getuid", "geteuid", "sched_getaffinity", "sysconf",
             "O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_DIRECTORY"):
    vars(os).pop(name, None)
for name in ("setitimer", "getitimer", "ITIMER_PROF", "SIGPROF", "SIGALRM", "SIGKILL", "SIGXCPU",
             "pthread_sigmask", "SIG_BLOCK", "SIG_SETMASK"):
    vars(signal).pop(name, None)
sys.modules |= dict.fromkeys(("resource", "fcntl", "termios", "pwd", "grp"))
"""
IMPORT_ALL = """
import importlib, pkgutil, pytest_promptfmt
for module in pkgutil.walk_packages(pytest_promptfmt.__path__, "pytest_promptfmt."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""
COMMANDS = {
    "pytest": 'sys.exit(pytest.main(["--promptfmt", "tasks"]))',
    "check": 'from pytest_promptfmt.cli import main\nsys.argv = ["promptfmt", "check", "tasks"]\nmain()',
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_gallery_passes_where_processes_cannot_be_forked(tmp_path: Path, command: str) -> None:
    for name in ("formats", "harbour"):
        shutil.copytree(ROOT / "fixtures/tasks" / name, tmp_path / "tasks" / name)
    (tmp_path / "pytest.ini").write_text("[pytest]\n", "utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment["PYTEST_PLUGINS"] = "syrupy,pytest_promptfmt.plugin"
    code = HIDE + IMPORT_ALL * (command == "pytest") + COMMANDS[command]
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("snapshots passed" if command == "pytest" else "no errors") in done.stdout + done.stderr
