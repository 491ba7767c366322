"""However a run ends, no process of it is left: neither a worker nor what code of a task started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from plugin_project import Project

from pytest_promptfmt.engine.confinement import possible
from pytest_promptfmt.engine.processes import CAN_FORK

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CAN_FORK, reason="only worker processes are ended"),
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks at /proc"),
]

MARK = f"PROMPTFMT_TEST_OF={os.getpid()}"
CODE = """
import multiprocessing, os, subprocess, sys, time

def endless():
    time.sleep(3600)

def text(doc):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            endless()
        os._exit(0)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    multiprocessing.get_context("fork").Process(target=endless).start()
    if os.fork() == 0:
        endless()
    open("started", "w").close()
    while True:
        pass
"""


def processes(mark: str) -> list[int]:
    return [int(place.name) for place in Path("/proc").glob("[0-9]*") if _is_alive_with(place, mark)]


def _is_alive_with(place: Path, mark: str) -> bool:
    try:
        has_mark = mark.encode() in (place / "environ").read_bytes().split(b"\0")
        return has_mark and (place / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], object], *, seconds: float = 900) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


LEAVING = """
import os, subprocess, sys, time

def text(doc):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            code = "import time; open('started', 'w').close(); time.sleep(3600)"
            command = ["env", "{mark}", sys.executable, "-c", code]
            subprocess.Popen(command, start_new_session=True)
        os._exit(0)
    while not os.path.exists("started"):
        time.sleep(0.01)
    {then}
    return "Q"
"""


@pytest.mark.parametrize("then", ["pass", "while True: pass", "import ctypes; ctypes.string_at(0)"])
@pytest.mark.skipif(not (CAN_FORK and possible().network), reason="this kernel confines no network")
def test_a_process_that_leaves_its_group_is_ended(project: Project, then: str) -> None:
    mark = f"{MARK}-{project.root.name}"
    project.write("utils.py", LEAVING.format(then=then, mark=mark))
    file = project.task("one.yaml", doc_to_text=None)
    file.write_text(file.read_text("utf-8") + "doc_to_text: !function utils.text\n", "utf-8")
    project.write("promptfmt.yaml", "time_limit: 2\n")
    result = project.run("-q", "--promptfmt-profile", "plain", "-m", "promptfmt_snapshot")
    assert result.parseoutcomes()["failed"] == 1
    assert (project.root / "started").exists()
    assert wait_for(lambda: not processes(mark), seconds=50)


@pytest.mark.parametrize(
    ("how", "options"),
    [
        ("interrupted", ()),
        ("terminated", ()),
        ("killed", ()),
        ("worker killed", ()),
        ("interrupted", ("-n", "2")),
    ],
)
def test_no_process_is_left(project: Project, how: str, options: tuple[str, ...]) -> None:
    if options:
        pytest.importorskip("xdist")
    project.write("utils.py", CODE)
    for name in ("one", "two", "three"):
        file = project.task(f"{name}.yaml", doc_to_text=None)
        file.write_text(file.read_text("utf-8") + "doc_to_text: !function utils.text\n", "utf-8")
    project.write("promptfmt.yaml", "time_limit: 3\n" if how == "worker killed" else "time_limit: 1000\n")
    mark = f"{MARK}-{project.root.name}"
    name, _, value = mark.partition("=")
    command = [sys.executable, "-m", "pytest", "--promptfmt", "-q", "--promptfmt-profile", "plain", *options]
    with subprocess.Popen(
        command,
        cwd=project.root,
        env={**os.environ, name: value},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as run:
        try:
            assert wait_for((project.root / "started").exists), "the task never ran"
            if how == "worker killed":
                os.kill(max(pid for pid in processes(mark) if _is_worker(pid, run.pid)), signal.SIGKILL)
            else:
                run.send_signal(
                    {"interrupted": signal.SIGINT, "terminated": signal.SIGTERM, "killed": signal.SIGKILL}[how]
                )
            run.wait(timeout=900)
        finally:
            run.kill()
    is_clean = wait_for(lambda: not processes(mark), seconds=50)  # sooner than a limit ends what was forgotten
    left = processes(mark)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert is_clean, f"{len(left)} processes are left"


def _is_worker(pid: int, parent: int) -> bool:
    """Return whether a process leads a group of its own, and is not pytest itself."""
    try:
        return os.getpgid(pid) == pid and pid != parent
    except ProcessLookupError:
        return False
