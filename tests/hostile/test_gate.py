"""The one way to files: what is below the allowed folders and ordinary is opened, everything else is one error."""

import ast
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from slices import is_missing

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import display_path

SECRET = "a secret of somebody else"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A folder that is allowed, beside one that is not."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret.txt").write_text(SECRET, "utf-8")
    root = tmp_path / "root"
    root.mkdir()
    (root / "own.txt").write_text("own", "utf-8")
    with gate.limited_to([root]):
        yield root


def refusal(path: Path | str) -> str:
    with pytest.raises(gate.RefusedError) as caught:
        gate.read_bytes(path)
    assert SECRET not in str(caught.value)
    return str(caught.value.strerror)


def test_files_below_the_root_are_read_also_through_links_that_stay_there(root: Path) -> None:
    (root / "link.txt").symlink_to("own.txt")
    (root / "folder").mkdir()
    (root / "folder/up").symlink_to("..")
    assert gate.read_bytes(root / "link.txt") == b"own"
    assert gate.read_text(root / "folder/up/own.txt") == "own"
    assert gate.read_bytes(root / "folder/../own.txt") == b"own"


def test_a_missing_file_or_folder_is_named_with_the_closest_one(root: Path) -> None:
    assert gate.missing_hint(root / "won.txt") == "did you mean 'own.txt'?"
    assert gate.missing_hint(root / "sub/own.txt") == f"there is no folder {display_path(root / 'sub')}"
    (root / ".hidden").touch()
    shown = f"the folder {display_path(root)} contains 'own.txt'"
    assert gate.missing_hint(root / "nothing") == shown
    for name in "abcd":
        (root / f"own.txt.{name}").touch()
    shown += "".join(f", 'own.txt.{name}'" for name in "abcd")
    assert gate.missing_hint(root / "nothing") == shown, "five names"
    (root / "own.txt.e").touch()
    assert gate.missing_hint(root / "nothing") == f"{shown}, …"


def test_links_and_paths_that_lead_outside_are_refused(root: Path) -> None:
    (root / "link.txt").symlink_to(root.parent / "outside/secret.txt")
    (root / "folder").symlink_to(root.parent / "outside")
    for path in ("link.txt", "folder/secret.txt", "../outside/secret.txt", "../outside/none.txt", "/etc/passwd"):
        assert "outside the rootdir; to allow its folder, use --promptfmt-allow-path" in refusal(root / path)
    assert gate.names_in(root / "folder") == []
    with gate.limited_to([root, root.parent / "outside"]):
        assert gate.read_text(root / "link.txt") == SECRET


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_what_is_not_an_ordinary_file_is_refused_without_being_opened(root: Path) -> None:
    os.mkfifo(root / "pipe")
    (root / "folder").mkdir()
    (root / "circle").symlink_to("circle")
    with socket.socket(socket.AF_UNIX) as listening:
        before = Path.cwd()
        os.chdir(root)  # the name of a socket may not be long
        listening.bind("socket")
        os.chdir(before)
        assert refusal(root / "socket") == "a socket, not a regular file"
    assert refusal(root / "pipe") == "a named pipe, not a regular file"
    assert refusal(root / "folder") == "a folder, not a regular file"
    assert refusal(root / "circle") == "a link, not a regular file"


@pytest.mark.parametrize("path", ["/proc/self/environ", "/sys/kernel/notes", "/dev/zero", "/dev/stdin", "/proc"])
def test_files_of_the_system_are_refused_wherever_the_root_is(tmp_path: Path, path: str) -> None:
    (tmp_path / "link").symlink_to(path)
    for limit in (None, [Path("/")], [Path("/proc"), Path("/dev"), Path("/sys")]):
        with gate.limited_to(limit):
            for each in (path, tmp_path / "link"):
                assert refusal(each)


def test_large_files_are_refused_before_they_are_read(root: Path) -> None:
    with (root / "large.bin").open("wb") as file:
        file.truncate(5 * 2**30)  # a hole, which takes no room
    assert refusal(root / "large.bin") == "the file is larger than 256 MiB"
    with pytest.raises(gate.RefusedError, match="larger than 2 bytes"):
        gate.read_bytes(root / "own.txt", limit=2)


def test_a_link_that_appears_after_the_look_is_not_followed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = gate.allowed(root / "own.txt")

    lstat = os.lstat

    def swapped(path: str) -> os.stat_result:
        found = lstat(path)
        (root / "own.txt").rename(root / "old.txt")
        (root / "own.txt").symlink_to(root.parent / "outside/secret.txt")
        return found

    monkeypatch.setattr("os.lstat", swapped)
    with pytest.raises(OSError, match=r"symbolic links|a link") as caught:
        gate.read_bytes(real)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "written",
    ["C:\\secret", "c:/secret", "\\\\server\\share\\x", "//server/share", "\\\\.\\pipe\\x", "\\\\?\\C:\\x", "NUL",
     "nul.txt", "a/CON", "a\\aux.json", "COM1", "lpt9.csv", "conin$", "com¹", "nul:", "a\0b"],
)  # fmt: skip
def test_names_of_windows_drives_shares_and_devices_are_refused_everywhere(written: str) -> None:
    assert gate.refusal_of_name(written, windows=False) is not None
    assert gate.refusal_of_name(written, windows=True) is not None
    with pytest.raises(gate.RefusedError):
        gate.named("folder", written)


@pytest.mark.parametrize(
    "written", ["docs.jsonl", "../docs.jsonl", "/srv/docs.jsonl", "null.csv", "console/x", "a:b.csv"]
)
def test_other_names_are_taken(written: str) -> None:
    assert gate.refusal_of_name(written, windows=False) is None
    assert (gate.refusal_of_name(written, windows=True) is None) == (":" not in written)


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 300, "x/" * 3000])
def test_names_that_no_file_can_have_are_one_error(root: Path, name: str) -> None:
    with pytest.raises(OSError, match=r"no file can have|too long|File name"):
        gate.read_bytes(root / name)
    assert not gate.is_there(root / name)


def test_the_limit_is_inherited_and_restored(root: Path) -> None:
    inner = gate.limits()
    with gate.limited_to(None):
        assert gate.read_text(root.parent / "outside/secret.txt") == SECRET
        gate.forbid_code(True)
        assert not gate.allows_code()
    assert gate.limits() == inner
    assert gate.allows_code()
    os.environ[gate.VARIABLE] = "not ours"
    assert "outside" in refusal(root / "own.txt")


OPENS_BY_ITSELF = {
    "rules/documentation.py": "examples in our own docstrings",
    "rules/fixing.py": "a file that it is about to write",
    "cli/verify.py": "what its own run has written",
    "cli/__init__.py": "its own modules, for their help",
    "cli/init.py": "our own data, metadata of this distribution, and the settings of the repository that adopts",
    "core/data_tables.py": "our own data",
    "core/profile.py": "our own data",
    "settings/table.py": "our own data",
    "inputs/code_inputs.py": "modules that Python would import, of which nothing is shown",
    "engine/processes.py": "what the system says of our processes",
    "engine/reaper.py": "what the system says of our processes",
    "plugin/items/command_items.py": "a file of the command that started the run",
    "plugin/printed_output.py": "the null device",
    "plugin/run.py": "a file of the command that started the run",
    "plugin/worker_processes.py": "the null device, and the streams of a worker",
    "results/html.py": "our own data",
    "results/pending.py": "the user's private cache",
    "revisions/pytest_process.py": "what its own run has printed",
    "revisions/release_scores.py": "what its own runs have written",
    "revisions/runs.py": "what its own run has written",
    "revisions/task_rendering.py": "what its own workers have written",
    "revisions/upstream.py": "what was downloaded",
    "systems/templates/engines.py": "our own data",
    "systems/templates/llama_build.py": "our own data, and an archive that the user names",
    "tasks/functions.py": "a module that is trusted and about to run",
    "profiles/tokenizer_freezing.py": "what a conversion has made, in the user's cache",
    "profiles/frozen_tokenizers.py": "what a conversion has made, in the user's cache",
}
"""The modules that open files without the gate, and what these are: nothing that a repository names."""


def opens_by_itself(called: ast.expr) -> bool:
    if isinstance(called, ast.Attribute) and called.attr in ("read_text", "read_bytes"):
        return not (isinstance(called.value, ast.Name) and called.value.id == "gate")
    return isinstance(called, ast.Name) and called.id == "open"


def test_only_these_modules_open_files_without_the_gate() -> None:
    root = Path(gate.__file__).parents[1]
    found = set()
    for path in root.rglob("*.py"):
        if not re.search("open|read_", text := path.read_text("utf-8")):
            continue
        calls = (node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
        if any(map(opens_by_itself, calls)):
            found.add(path.relative_to(root).as_posix())
    assert found == {name for name in OPENS_BY_ITSELF if not is_missing(name)}
