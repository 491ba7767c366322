"""The one way to write: whole or not at all, never through a link, outside the root only where the user typed it."""

from __future__ import annotations

import ast
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from plugin_project import Project
from promptfmt_command import git, promptfmt, write_task
from slices import is_missing

from pytest_promptfmt.core import gate, writing

PRECIOUS = "precious"
LEFT_OVER = ".promptfmt-4194999-7.tmp"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a repository that is the working directory and allowed, next to a folder of somebody else."""
    root = tmp_path / "root"
    (root / ".git").mkdir(parents=True)
    (tmp_path / "outside/folder").mkdir(parents=True)
    (tmp_path / "outside/file").write_text(PRECIOUS, "utf-8")
    monkeypatch.chdir(root)
    with gate.limited_to([root]):
        yield root


def refusal(path: Path | str, *also: Path) -> str:
    with pytest.raises(gate.RefusedError) as caught:
        writing.write(path, "x", also=also)
    return str(caught.value.strerror)


# -- how ---------------------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_whole_and_keeps_its_permissions(root: Path) -> None:
    file = root / "folder/file"
    writing.write(file, "né\n")
    assert file.read_bytes() == "né\n".encode()
    file.chmod(0o640)
    before = file.stat().st_ino
    writing.write(file, b"\xff")
    assert file.read_bytes() == b"\xff"
    assert file.stat().st_ino != before
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert [path.name for path in file.parent.iterdir()] == ["file"]


def test_what_fails_leaves_nothing_behind(root: Path) -> None:
    (root / "file").write_text("old", "utf-8")
    with pytest.raises(UnicodeEncodeError):
        writing.write(root / "file", "\ud800")
    assert (root / "file").read_text("utf-8") == "old"
    assert {path.name for path in root.iterdir()} == {".git", "file"}


def test_files_are_created_appended_to_and_removed(root: Path) -> None:
    with writing.create(root / "a/b/part") as file:
        file.write(b"one\n")
    writing.append(root / "a/b/part", b"two\n")
    assert (root / "a/b/part").read_bytes() == b"one\ntwo\n"
    with pytest.raises(FileExistsError):
        writing.create(root / "a/b/part")
    writing.remove(root / "a/b/part")
    assert (root / "a/b").is_dir()
    writing.remove(root / "a/b/part", empty_folders=2)
    assert not (root / "a").exists()


def test_what_a_killed_process_left_is_removed_by_the_next_write(root: Path) -> None:
    folder = root / "folder"
    folder.mkdir()
    for name in (LEFT_OVER, f".promptfmt-{os.getppid()}-0.tmp", ".promptfmt-notes.tmp"):
        (folder / name).write_text("half", "utf-8")
    writing.write(folder / "file", "x")
    left = {path.name for path in folder.iterdir()}
    assert left == {"file", f".promptfmt-{os.getppid()}-0.tmp", ".promptfmt-notes.tmp"}


def test_temporary_files_of_ended_processes_alone_are_left_over() -> None:
    assert writing.is_left_over(LEFT_OVER)
    assert not writing.is_left_over(f".promptfmt-{os.getpid()}-3.tmp")
    assert not writing.is_left_over(f".promptfmt-{os.getppid()}-0.tmp")
    assert not writing.is_left_over("promptfmt-4194999-3.tmp")


# -- where -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_limited", [True, False])
def test_no_link_leads_out_of_the_repository(root: Path, is_limited: bool) -> None:
    outside = root.parent / "outside"
    (root / "file").symlink_to(outside / "file")
    (root / "new").symlink_to(outside / "new")
    (root / "folder").symlink_to(outside / "folder")
    (root.parent / "another name").symlink_to(root)
    with gate.limited_to([root] if is_limited else None):
        assert "the path is a symbolic link" in refusal("file")
        assert "the path is a symbolic link" in refusal("new")
        for path in ("folder/new", root / "folder/new", root.parent / "another name/folder/new", "folder/a/b/new"):
            assert "is a link to a place outside the repository" in refusal(path)
            assert "is a link to a place outside the repository" in refusal(path, outside), (
                "also where the place is the user's"
            )
    assert [path.name for path in (outside / "folder").iterdir()] == []
    assert (outside / "file").read_text("utf-8") == PRECIOUS


def test_links_that_stay_inside_and_links_to_the_repository_work(root: Path) -> None:
    (root / "real").mkdir()
    (root / "folder").symlink_to("real")
    (root.parent / "another name").symlink_to(root)
    writing.write("folder/file", "x")
    writing.write(root.parent / "another name/real/other", "x")
    assert sorted(path.name for path in (root / "real").iterdir()) == ["file", "other"]


def test_other_folders_need_a_place_of_the_user(root: Path) -> None:
    outside = root.parent / "outside"
    for path in ("../outside/new", outside / "new", "/new"):
        assert "such a path is allowed only on the command line" in refusal(path)
    writing.write("../outside/a/new", "x", also=[outside / "a"])
    writing.write("../outside/file of a user", "x", also=[outside / "file of a user"])
    with gate.limited_to(None):
        writing.write("../outside/new", "x")
    assert (outside / "a/new").read_text("utf-8") == "x"
    assert (
        refusal(outside / "folder", outside)
        == "the path is a folder, not a regular file; remove it, or choose another path"
    )


def test_git_keeps_its_own_folder(root: Path) -> None:
    (root / "alias").symlink_to(".git")
    for path in (".git/config", "alias/hooks/pre-commit", ".git", "sub/.GIT/config"):
        assert refusal(path) == "the path is in the .git folder"
    (root / ".git/tree").mkdir()
    (root / ".git/tree/.git").write_text("gitdir: ../worktrees/tree", "utf-8")
    writing.write(root / ".git/tree/file", "x")  # a work tree of its own


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_only_regular_files_are_replaced(root: Path) -> None:
    os.mkfifo(root / "pipe")
    (root / "folder").mkdir()
    assert refusal("pipe") == "the path is a named pipe, not a regular file; remove it, or choose another path"
    assert refusal("folder") == "the path is a folder, not a regular file; remove it, or choose another path"
    with gate.limited_to(None):
        assert refusal("/dev/null") == "files of the operating system are never written"
        assert refusal("/proc/self/comm") == "files of the operating system are never written"
        assert refusal("/") == "the path is a folder, not a regular file; remove it, or choose another path"
    for name in ("a\0b", "\ud800"):
        assert refusal(name) == "no file can have this name"


# -- every writer ------------------------------------------------------------------------------------------------------

SCRATCH = "in a temporary folder of its own"
CACHE = "in the user's cache folder"
WRITES_BY_ITSELF = {
    "cli/diff.py": "a temporary page",
    "cli/review.py": SCRATCH,
    "cli/verify.py": SCRATCH,
    "core/files.py": "makes the user's cache folder",
    "core/git.py": "what git prints, in temporary files",
    "engine/confinement.py": "the namespaces of a worker, in /proc",
    "engine/processes.py": "the null device",
    "inputs/store.py": "the file of SQLite, made without following links",
    "plugin/hash_seeds.py": SCRATCH,
    "plugin/items/command_items.py": "in the temporary folder of the command that started the run",
    "plugin/printed_output.py": "the null device, and a temporary file without a name",
    "plugin/worker_processes.py": "the null device, and the folders of caches",
    "profiles/frozen_tokenizers.py": CACHE,
    "profiles/tokenizer_freezing.py": SCRATCH,
    "profiles/tokenizer_loader.py": SCRATCH,
    "revisions/git.py": SCRATCH,
    "revisions/pytest_process.py": "what pytest prints, in temporary files",
    "revisions/release_scores.py": SCRATCH,
    "revisions/runs.py": SCRATCH,
    "revisions/trees.py": SCRATCH,
    "rules/fixing.py": SCRATCH,
    "systems/templates/llama_build.py": "in a temporary folder, and the program into the user's cache",
    "tasks/docs/doc_functions.py": SCRATCH,
}
"""The modules that leave files without the gate, and where: never where a repository could choose."""

_METHODS = {
    "write_text", "write_bytes", "mkdir", "makedirs", "unlink", "rename", "renames", "rmdir", "removedirs", "rmtree",
    "touch", "symlink_to", "symlink", "hardlink_to", "link", "chmod", "utime", "truncate", "mkfifo", "copy", "copy2",
    "copyfile", "copytree", "move", "NamedTemporaryFile", "TemporaryDirectory", "TemporaryFile", "mkdtemp", "mkstemp",
    "FileHandler", "extractall", "save",
}  # fmt: skip
_AMBIGUOUS = {"copy", "link", "save", "move", "truncate"}
"""Names of methods that other types have as well: they count as functions of these modules, and with a path."""


def writes(call: ast.Call) -> bool:
    """Return whether a call, by its name and mode, makes, changes or removes a file."""
    called = call.func
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    owner = ast.unparse(called.value) if isinstance(called, ast.Attribute) else ""
    if owner in ("writing", "cache"):  # the gate, and pytest's own cache
        return False
    if name == "open":
        words = [ast.unparse(each) for each in (*call.args, *(keyword.value for keyword in call.keywords))]
        mode = [word[1:-1] for word in words if word[:1] in "'\"" and set(word[1:-1]) <= set("rwxabt+")]
        return any(set(each) & set("wxa+") for each in mode) or any(
            flag in " ".join(words) for flag in ("O_WR", "O_RDWR", "O_CREAT")
        )
    if name in ("remove", "replace") and (owner == "os" or (name == "replace" and len(call.args) == 1 and owner)):
        return owner != "dataclasses"
    if name in _AMBIGUOUS:
        return owner in ("os", "shutil")
    return name in _METHODS


def test_only_these_modules_write_without_the_gate() -> None:
    root = Path(gate.__file__).parents[1]
    found = set()
    for path in root.rglob("*.py"):
        calls = (node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call))
        if path != Path(writing.__file__) and any(map(writes, calls)):
            found.add(path.relative_to(root).as_posix())
    assert found == {name for name in WRITES_BY_ITSELF if not is_missing(name)}


@pytest.mark.parametrize(
    ("code", "is_writing"),
    [("open(x, 'w')", True), ("path.open('ab')", True), ("open(x)", False), ("path.open('rb')", False),
     ("os.open(x, os.O_CREAT | os.O_RDWR)", True), ("os.open(x, os.O_RDONLY)", False), ("path.replace(other)", True),
     ("text.replace('a', 'b')", False), ("replace(doc, x=1)", False), ("os.remove(x)", True),
     ("found.remove(x)", False),
     ("shutil.copy(a, b)", True), ("settings.copy()", False), ("writing.remove(x)", False), ("x.unlink()", True)],
)  # fmt: skip
def test_calls_that_write_are_seen(code: str, is_writing: bool) -> None:
    [call] = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call))
    assert writes(call) == is_writing


# -- commands ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def repository(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A repository with a task, next to a folder of somebody else."""
    (project.root / "pytest.ini").unlink()
    project.root = project.root / "root"
    project.root.mkdir()
    monkeypatch.chdir(project.root)
    project.write("pytest.ini", "[pytest]\npromptfmt_profiles = plain\naddopts = -q\n")
    project.write("../outside/file", PRECIOUS)
    write_task(project.root, "t")
    project.write("rows.jsonl", '{"question": "x", "answer": "y"}\n')
    git(project.root, "init", "-q")
    git(project.root, "add", ".")
    git(project.root, "commit", "-qm", "one")
    return project


def outside(project: Project) -> dict[str, bytes | None]:
    """Return what is next to the repository: files with their content, links and folders."""
    own = (project.root, project.root.parent / ".cache")  # the home folder of a test is the one of the project
    found = (path for path in project.root.parent.rglob("*") if not any(map(path.is_relative_to, own)))
    return {str(path): path.read_bytes() if path.is_file() else None for path in found}


@pytest.mark.parametrize(
    ("name", "target"),
    [(".gitattributes", "../outside/file"), (".gitignore", "../outside/file"), ("promptfmt.yaml", "../outside/new"),
     (".github", "../outside"), (".gitattributes", "/dev/null"), (".gitignore", "nowhere")],
)  # fmt: skip
def test_init_writes_through_no_link(repository: Project, name: str, target: str) -> None:
    (repository.root / name).symlink_to(target)
    before = outside(repository)
    done = promptfmt(repository.root, "init", "--kind", "training", "--no-baseline")
    assert outside(repository) == before
    assert done.returncode == 2
    [line] = [line for line in done.stderr.splitlines() if "cannot be" in line]
    assert name in line
    assert (repository.root / name).is_symlink()


OUTPUTS = {
    "patch": "accept.patch", "write=markdown": "r.md", "json": "r.json", "html": "r.html",
    "write=pending": "p.jsonl", "write=sarif": "r.sarif",
}  # fmt: skip


def outputs(folder: str = "") -> list[str]:
    return [f"--promptfmt-{option}={folder}{name}" for option, name in OUTPUTS.items()]


def baseline(file: str) -> tuple[str, str]:
    return f"--promptfmt-baseline={file}", "--promptfmt-baseline-update=write"


def test_no_report_is_written_through_a_link(repository: Project) -> None:
    for name in (*OUTPUTS.values(), "b.jsonl"):
        (repository.root / name).symlink_to("../outside/file")
    (repository.root / "new.jsonl").symlink_to("../outside/new")
    (repository.root / "promptfmt").symlink_to("../outside")
    before = outside(repository)
    refused = [line for line in repository.run(*outputs()).outlines if "is a symbolic link" in line]
    assert {line.split()[0] for line in refused} == {*OUTPUTS.values()}
    assert (
        "new.jsonl cannot be written: the path is a symbolic link"
        in repository.run(*baseline("new.jsonl")).stdout.str()
    )
    assert "cannot be read: the path is outside the rootdir" in repository.run(*baseline("b.jsonl")).stderr.str()
    # The rootdir is that of an ini which the repository chooses.
    lines = repository.run(*outputs("promptfmt/"), *baseline("promptfmt/new"), "--rootdir", "tasks").outlines
    refused = [
        line for line in lines if "written: a folder of the path is a link to a place outside the repository" in line
    ]
    assert len(refused) == len(OUTPUTS) + 1
    done = promptfmt(repository.root, "diff", "HEAD", "--markdown", "r.md")
    assert "r.md cannot be written: the path is a symbolic link" in done.stderr
    assert done.returncode == 2
    assert outside(repository) == before


def test_reports_are_written_where_the_command_line_points(repository: Project, tmp_path: Path) -> None:
    for folder in ("", "new/", "../elsewhere/", f"{tmp_path}/x/"):
        lines = repository.run(*outputs(folder), *baseline(f"{folder}b.jsonl")).outlines
        assert [line for line in lines if "cannot be written" in line] == []
        for name in (*OUTPUTS.values(), "b.jsonl"):
            assert (repository.root / folder / name).stat().st_size > 2
    assert promptfmt(repository.root, "diff", "HEAD", "--markdown", "../elsewhere/c.md").returncode == 0
    assert promptfmt(repository.root, "diff", "HEAD", "--markdown", str(tmp_path / "c.md")).returncode == 0


@pytest.mark.slow
def test_workers_of_xdist_may_write_where_the_command_line_points(repository: Project, tmp_path: Path) -> None:
    lines = repository.run(*outputs(f"{tmp_path}/"), "-n", "1", "../root/tasks").outlines
    assert [line for line in lines if "cannot be written" in line] == []
    assert all((tmp_path / name).exists() for name in OUTPUTS.values())
    repository.run("-n", "1", "../root/tasks", "--snapshot-update")
    assert len(repository.snapshots()) == 1


@pytest.mark.parametrize(
    "options", ["--promptfmt-html=../outside/file", "--promptfmt-allow-path=.. --promptfmt-json=../outside/new"]
)
def test_an_ini_names_no_place_outside(repository: Project, options: str) -> None:
    repository.write("pytest.ini", f"[pytest]\naddopts = {options}\n")
    before = outside(repository)
    assert "outside the rootdir; such a path is allowed only on the command line" in repository.run().stdout.str()
    assert outside(repository) == before
    repository.write("pytest.ini", "[pytest]\npromptfmt_baseline = ../outside/new\n")
    said = repository.run("--promptfmt-baseline-update=write").stdout.str()
    assert "outside/new cannot be written: the path is outside the rootdir" in said
    assert outside(repository) == before


LINKED = (
    *OUTPUTS.values(), "b.jsonl", "out", "out/sub", "formats", "pytest.ini", "promptfmt.yaml", "promptfmt.lock",
    ".gitattributes", ".gitignore", ".github", ".github/workflows", "__prompts__", "tasks", "tasks/t.yaml",
    "tasks/t.docs.jsonl", "tasks/t.docs.origin.json", "tasks/__prompts__", "tasks/__prompts__/t",
    "tasks/__prompts__/t/t", "tasks/__prompts__/t/t/plain.txt",
)  # fmt: skip
TARGETS = ("file", "new", "folder", "folder/new", "copy", "copy/tasks", "copy/tasks/t.yaml", "copy/tasks/__prompts__")


def make_links(repository: Project, chance: random.Random) -> None:
    """Replace some files and folders of the repository by links to places outside, where a copy of all of it is."""
    place = repository.root.parent / "outside"
    shutil.copytree(repository.root, place / "copy", symlinks=True)
    (place / "folder").mkdir()
    for name in chance.sample(LINKED, 6):
        path, target = repository.root / name, place / chance.choice(TARGETS)
        if path.parent.resolve().is_relative_to(repository.root):
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
            path.symlink_to(target if chance.random() < 0.5 else os.path.relpath(target, path.parent))


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 14))])
def test_no_command_changes_anything_outside(repository: Project, seed: int) -> None:
    repository.accept()
    make_links(repository, random.Random(seed))
    before = outside(repository)
    root = repository.root
    repository.run(*outputs(), *baseline("b.jsonl"))
    for arguments in (
        ("review", "p.jsonl"), ("init", "--no-baseline"), ("fix", "--write", "tasks"),
        ("convert", "--write", "tasks/t.yaml"),
        ("freeze", "tasks/t.yaml", "--from", "rows.jsonl", "--force"),
        ("diff", "HEAD", "--markdown", "out/sub/c.md"), ("diff", "HEAD", "--markdown", "out/c.md"), ("accept",),
    ):  # fmt: skip
        promptfmt(root, *arguments, typed="a\n" * 9)
        assert outside(repository) == before, arguments
    for options in (("tasks",), (), ("--snapshot-update",), ("tasks", "--snapshot-update")):
        repository.run(*outputs("out/sub/"), *baseline("out/b.jsonl"), *options)
        assert outside(repository) == before, options


NAMES = st.sampled_from(["a", "b", "c", ".", "..", ".git"])
PATHS = st.lists(NAMES, min_size=1, max_size=5).map(lambda parts: Path(*parts))
WRITERS: Sequence[Callable[[Path], object]] = (
    lambda path: writing.write(path, "x"),
    lambda path: writing.append(path, b"x"),
    lambda path: writing.create(path).close(),
    lambda path: writing.remove(path, empty_folders=3),
    writing.remove_left_over,
)


@given(
    links=st.lists(st.tuples(PATHS, PATHS, st.booleans()), max_size=6),
    paths=st.lists(PATHS, min_size=1, max_size=4),
    is_limited=st.booleans(),
)
def test_whatever_is_a_link_nothing_outside_changes(
    tmp_path_factory: pytest.TempPathFactory, links: list[tuple[Path, Path, bool]], paths: list[Path], is_limited: bool
) -> None:
    """Paths in a tree of links that was written by somebody else: those that stay inside, as they are written."""
    top = tmp_path_factory.mktemp("tree")
    root = top / "root"
    (root / ".git").mkdir(parents=True)
    for folder in (top / "a/b", root / "a/b"):
        folder.mkdir(parents=True)
        for name in ("c", LEFT_OVER):
            (folder / name).write_text(PRECIOUS, "utf-8")
    for place, target, is_absolute in links:
        path = root / place
        if (
            Path(os.path.realpath(path.parent)).is_relative_to(root)
            and not os.path.lexists(path)
            and path.parent.is_dir()
        ):
            path.symlink_to(top / target if is_absolute else target)

    def others() -> dict[str, bytes]:
        files = (path for path in top.rglob("*") if path.is_file() and not path.is_symlink())
        return {str(path): path.read_bytes() for path in files if not path.is_relative_to(root) or ".git" in path.parts}

    before = others()
    here = Path.cwd()
    try:
        os.chdir(root)
        with gate.limited_to([root] if is_limited else None):
            for path in (path for path in paths if os.path.abspath(path).startswith(f"{root}{os.sep}")):
                for write in WRITERS:
                    try:
                        write(path)
                    except OSError:
                        continue
    finally:
        os.chdir(here)
    assert others() == before
