"""Code of tasks in a worker that the kernel confines: no file outside scratch, no network, no process of others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from plugin_project import Project

from pytest_promptfmt.engine.confinement import Confinement, Possible, possible
from pytest_promptfmt.engine.processes import CAN_FORK, forked

needs_files = pytest.mark.skipif(not (CAN_FORK and possible().files), reason="this kernel does not confine files")
needs_network = pytest.mark.skipif(not (CAN_FORK and possible().network), reason="this kernel confines no network")

QUIET = ("-q", "--promptfmt-profile", "plain", "-m", "promptfmt_snapshot")


@pytest.fixture
def confined(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project outside the folder for temporary files, which tests are usually in."""
    scratch = project.root / "scratch"
    scratch.mkdir()
    for name in ("TMPDIR", "HF_HOME", "PROMPTFMT_CACHE_DIR"):
        monkeypatch.setenv(name, str(scratch / name))
        (scratch / name).mkdir(mode=0o700)
    project.root = project.root / "repository"
    project.root.mkdir()
    monkeypatch.chdir(project.root)
    project.write("pytest.ini", "[pytest]\n")
    return project


def task_with_code(project: Project, body: str) -> None:
    """Write a task whose prompt is the text that code makes of what it could do."""
    project.write(
        "utils.py",
        "import ctypes, os, socket, subprocess, sys, tempfile\nfrom pathlib import Path\n\n\ndef text(doc):\n"
        f"    try:\n        {body}\n    except OSError as error:\n        return f'refused: {{error.strerror}}'\n"
        "    return 'done'\n",
    )
    file = project.task("t.yaml", doc_to_text=None)
    file.write_text(file.read_text("utf-8") + "doc_to_text: !function utils.text\n", "utf-8")


def made(project: Project, body: str) -> str:
    """Return the part of a prompt that says what the code could do, from a run that writes no snapshot."""
    task_with_code(project, body)
    said = project.run(*QUIET).stdout.str()
    return next(line.partition("| ")[2].removesuffix("⟨end⟩") for line in said.splitlines() if "| " in line)


@needs_files
@pytest.mark.parametrize(
    "body",
    ["Path('x').write_text('x')", "Path('t.yaml').write_text('x')", "os.truncate('t.yaml', 0)", "os.unlink('t.yaml')",
     "os.rename('t.yaml', 'u.yaml')", "os.mkdir('folder')", "os.symlink('/', 'link')", "os.link('t.yaml', 'u.yaml')",
     "os.mkfifo('pipe')", "Path('.git/hooks/post-checkout').write_text('x')", "Path(os.__file__).write_text('x')",
     "Path('../x').write_text('x')", "subprocess.run(['touch', 'x'], check=True)",
     "os.close(os.open('x', os.O_CREAT | os.O_RDWR))"],
)  # fmt: skip
def test_no_file_outside_scratch_is_written(confined: Project, body: str) -> None:
    confined.write(".git/hooks/readme", "")
    task_with_code(confined, body)
    before = {path: path.lstat().st_mtime_ns for path in sorted(confined.root.rglob("*")) if path.is_file()}
    library = Path(os.__file__).read_bytes()
    confined.run(*QUIET)
    after = {path: path.lstat().st_mtime_ns for path in sorted(confined.root.rglob("*")) if path.is_file()}
    new = {path for path in after.keys() - before.keys() if not {".pytest_cache", "__pycache__"} & {*path.parts}}
    assert new == set()
    assert before.items() <= after.items()
    assert not (confined.root.parent / "x").exists()
    assert Path(os.__file__).read_bytes() == library


@needs_files
@pytest.mark.parametrize(
    "body",
    ["tempfile.NamedTemporaryFile().write(b'x')", "Path(tempfile.mkdtemp(), 'x').write_text('x')",
     "Path('/dev/null').write_text('x')", "Path(os.environ['HF_HOME'], 'x.lock').write_text('x')",
     "__import__('multiprocessing').Lock()", "os.close(os.openpty()[0])",
     "subprocess.run('echo x > /dev/null', shell=True, check=True)"],
)  # fmt: skip
def test_scratch_is_written_as_ever(confined: Project, body: str) -> None:
    assert made(confined, body) == "done"


@needs_files
def test_an_update_writes_snapshots_and_gives_the_same_verdict(confined: Project) -> None:
    task_with_code(confined, "pass")
    confined.accept()
    assert len(confined.snapshots()) > 0
    assert confined.run(*QUIET).ret == 0


@needs_files
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at /proc")
@pytest.mark.parametrize("body", ["os.kill(os.getppid(), 9)", "open(f'/proc/{os.getppid()}/mem', 'rb').read(1)"])
def test_no_process_of_others_is_reached(confined: Project, body: str) -> None:
    assert made(confined, body).startswith(("refused", "done") if "kill" in body else "refused")
    assert confined.run(*QUIET).ret == 1


@needs_network
@pytest.mark.parametrize(
    "code",
    ["socket.create_connection(('192.0.2.1', 80), 5)",
     "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))"],
)  # fmt: skip
def test_programs_have_no_network(confined: Project, code: str) -> None:
    program = f"[sys.executable, '-c', {f'import socket; {code}'!r}]"
    body = f"raise OSError(0, subprocess.run({program}, stderr=-1).stderr.decode().splitlines()[-1])"
    assert "Network is unreachable" in made(confined, body)


@needs_network
def test_a_worker_can_talk_to_itself(confined: Project) -> None:
    body = "server = socket.create_server(('127.0.0.1', 0)); socket.create_connection(server.getsockname(), 5)"
    assert made(confined, body) == "done"


@pytest.mark.skipif(not CAN_FORK, reason="workers are processes")
def test_a_run_that_does_not_confine_reports_that(project: Project) -> None:
    project.task("t.yaml")
    said = project.run("-v", "--collect-only").stdout.str()
    note = possible().note()
    assert ("are not confined" in said) == bool(note)
    assert note in said
    without = project.run("-v", "--collect-only", "--promptfmt-workers", "0").stdout.str()
    assert "without workers, code of tasks can write all your files and use the network" in without


def test_the_note_names_what_is_not_restricted() -> None:
    assert Possible(files=True, network=True).note() == ""
    assert "use the network" in Possible(files=True, network=False).note()
    assert "write all your files" in Possible(files=False, network=True).note()


@needs_network
def test_the_user_of_a_confined_process_is_the_same() -> None:
    own = (os.getuid(), os.getgid(), str(Path("~").expanduser()))

    def compare() -> None:
        Confinement(writable=(), has_network=False).apply()
        assert (os.getuid(), os.getgid(), str(Path("~").expanduser())) == own

    _, status = os.waitpid(forked(compare), 0)
    assert status == 0
