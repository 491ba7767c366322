"""The one way to git: what a repository configures does not run, and no answer is never an answer."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from promptfmt_command import IDENTITY, git, promptfmt, write_task
from slices import is_missing

import pytest_promptfmt
from pytest_promptfmt.core.git import GitError, git as safe_git, has_repository, work_tree
from pytest_promptfmt.revisions.git import Repository
from pytest_promptfmt.snapshots.paths import absent_files

PACKAGE = Path(pytest_promptfmt.__file__).parent

# -- that nothing else calls git ---------------------------------------------------------------------------------------

STARTS_PROCESSES = {
    "cli/check.py": "this command again, for --watch",
    "cli/init.py": "pytest, for the baseline",
    "core/git.py": "git",
    "engine/processes.py": "workers, and what ends them",
    "plugin/hash_seeds.py": "pytest, under another hash seed",
    "profiles/tokenizer_freezing.py": "this package, for the conversion of a tokenizer",
    "revisions/pytest_process.py": "pytest",
    "systems/templates/engines.py": "node, with the engine of Hugging Face, and that of llama.cpp",
    "systems/templates/llama_build.py": "pip and a C++ compiler, where the user runs this module",
}
"""The modules that start processes, and which."""

STARTING = {
    *("subprocess", "pty", "asyncio"),
    *(f"os.{name}" for name in dir(os) if name.startswith(("exec", "spawn", "posix_spawn", "popen", "system"))),
}
SUBCOMMANDS = {
    *("config", "for-each-ref", "log", "ls-files", "ls-tree", "merge-base", "rev-parse", "symbolic-ref"),
    *("status", "cat-file", "diff-files", "update-index", "checkout-index"),
}
"""The commands of git that are used; none takes part in a transfer, and none writes to the repository."""


def modules(mentioning: str) -> dict[str, ast.Module]:
    """Return the modules of the package whose text has this pattern, parsed: to parse all takes seconds."""
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}
    return {name: ast.parse(text) for name, text in texts.items() if re.search(mentioning, text)}


def names_in(tree: ast.AST) -> set[str]:
    """Return the modules that are imported, and the attributes of `os`, wherever they are."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module.partition(".")[0], *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Attribute):
            found.add(ast.unparse(node))
    return found


def test_only_these_modules_start_processes() -> None:
    mentioned = "|".join(rf"\b{re.escape(name.removeprefix('os.'))}\b" for name in STARTING)
    found = {name for name, tree in modules(mentioned).items() if STARTING & names_in(tree)}
    assert found == {name for name in STARTS_PROCESSES if not is_missing(name)}


def test_only_one_module_names_the_program_git() -> None:
    found = set()
    for name, tree in modules("git").items():
        words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        if name in STARTS_PROCESSES and words & {"git", "git.exe"}:
            found.add(name)
    assert found == {"core/git.py"}


def test_only_these_commands_of_git_are_used() -> None:
    used = set()
    for name, tree in modules(r"\bgit\(").items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "git":
                command = node.args[1]
                if isinstance(command, ast.Starred):
                    assert name == "results/html.py", "rev-parse, twice"
                    continue
                assert isinstance(command, ast.Constant), ast.unparse(node)
                used.add(command.value)
    assert used | {"config"} == SUBCOMMANDS


# -- repositories that configure programs ------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository of two commits."""
    root = tmp_path / "repository"
    write_task(root, "arc")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", ".")
    git(root, "commit", "-qm", "one")
    write_task(root, "arc", "Question: {{question}}\\nA:")
    git(root, "commit", "-qam", "two")
    return root


def program(folder: Path, ran: Path, name: str) -> str:
    """Write a program that leaves a file, and return its path."""
    file = folder / f"run-{name}"
    file.write_text(f"#!/bin/sh\n: > '{ran}/{name}'\ncat\n", "utf-8")
    file.chmod(0o755)
    return str(file)


def configure(root: Path, ran: Path, git_folder: Path) -> None:
    """Configure a program wherever git runs one, and attributes that need them."""
    tools = ran.parent / "tools"
    tools.mkdir(exist_ok=True)
    settings = {
        "core.fsmonitor": "fsmonitor",
        "core.pager": "pager",
        "core.sshCommand": "ssh",
        "core.askPass": "askpass",
        "diff.external": "external-diff",
        "diff.d.textconv": "textconv",
        "diff.d.command": "diff-driver",
        "filter.f.clean": "clean",
        "filter.f.smudge": "smudge",
        "filter.p.process": "process",
        "gpg.program": "gpg",
        "hook.h.command": "configured-hook",
        "credential.helper": "credentials",
    }
    for key, name in settings.items():
        git(root, "config", key, program(tools, ran, name))
    git(root, "config", "hook.h.event", "post-index-change")
    for key in ("filter.f.required", "filter.p.required", "log.showSignature"):
        git(root, "config", key, "true")
    git(root, "config", "remote.origin.url", f"ext::{program(tools, ran, 'remote')}")
    git(root, "config", "protocol.ext.allow", "always")
    hooks = git_folder / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-index-change", "post-checkout", "pre-commit", "reference-transaction", "fsmonitor-watchman"):
        Path(program(hooks, ran, name)).rename(hooks / name)
    (git_folder / "info").mkdir(exist_ok=True)
    (git_folder / "info/attributes").write_text("*.yaml filter=f diff=d\n*.txt filter=p\n", "utf-8")


def touch(root: Path) -> None:
    """Make git read the contents of all files again."""
    for path in root.rglob("*.yaml"):
        os.utime(path, (1, 1))


COMMANDS = (
    ("diff",),
    ("diff", "HEAD~1", "HEAD", "--html"),
    ("diff", "HEAD~1", "--no-code"),
    ("diff", "nothing-of-this-name"),
    ("check", "--base", "HEAD~1", "--no-code"),
    ("init",),
    ("outdated",),
)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_runs_nothing_that_the_repository_configures(
    repository: Path, ran: Path, command: tuple[str, ...]
) -> None:
    configure(repository, ran, repository / ".git")
    touch(repository)
    promptfmt(repository, *command)
    assert sorted(path.name for path in ran.iterdir()) == []


def test_a_comparison_runs_nothing_that_the_repository_configures(repository: Path, ran: Path, tmp_path: Path) -> None:
    configure(repository, ran, repository / ".git")
    touch(repository)
    (repository / "more.txt").write_text("x\n", "utf-8")
    found = Repository.around(repository)
    assert found.default_base()[0] == "HEAD"
    old, new = found.blobs(found.commit("HEAD~1")), found.blobs(None)
    assert {name for name in old | new if old.get(name) != new.get(name)} == {"tasks/arc.yaml", "more.txt"}
    found.lay_out("HEAD~1", tmp_path / "old", old)
    found.lay_out(None, tmp_path / "new", new)
    assert "Q: " in (tmp_path / "old/tasks/arc.yaml").read_text("utf-8")
    assert "Question: " in (tmp_path / "new/tasks/arc.yaml").read_text("utf-8")
    assert found.commits_between("HEAD~1", "HEAD", [repository / "tasks/arc.yaml"])[0].endswith(" two")
    assert absent_files(repository) == frozenset()
    assert sorted(path.name for path in ran.iterdir()) == []
    before = sorted(path.name for path in (repository / ".git").iterdir())
    assert not [name for name in before if name.startswith("sharedindex")]


def test_the_programs_of_these_tests_would_run(repository: Path, ran: Path) -> None:
    configure(repository, ran, repository / ".git")
    touch(repository)
    subprocess.run(["git", *IDENTITY, "status"], cwd=repository, capture_output=True)
    assert {"clean", "post-index-change"} <= {path.name for path in ran.iterdir()}


def test_a_filter_that_cannot_be_turned_off_is_an_error(repository: Path, ran: Path) -> None:
    git(repository, "config", "filter.a=b.clean", program(ran.parent, ran, "clean"))
    with pytest.raises(GitError, match=r"filter\.a=b\.clean, which cannot be turned off"):
        safe_git(repository, "status", "--porcelain")


def test_git_does_not_look_into_submodules(repository: Path, ran: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q", "-b", "main")
    (other / "x.yaml").write_text("x\n", "utf-8")
    git(other, "add", ".")
    git(other, "commit", "-qm", "one")
    git(repository, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "sub")
    git(repository, "commit", "-qm", "three")
    git(repository / "sub", "config", "core.fsmonitor", program(tmp_path, ran, "fsmonitor"))
    (repository / "sub/x.yaml").write_text("changed\n", "utf-8")
    found = Repository.around(repository)
    assert found.default_base()[0] != "HEAD"
    assert sorted(found.blobs(None)) == [".gitmodules", "tasks/arc.yaml"]
    assert not [*ran.iterdir()]


def test_a_partial_clone_fetches_nothing(repository: Path, ran: Path, tmp_path: Path) -> None:
    git(repository, "config", "uploadpack.allowFilter", "true")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--filter=blob:none", "--no-checkout", repository.as_uri(), str(clone))
    git(clone, "config", "remote.origin.url", f"ext::{program(tmp_path, ran, 'remote')}")
    git(clone, "config", "protocol.ext.allow", "always")
    with pytest.raises(GitError) as caught:
        Repository(clone).lay_out(Repository(clone).commit("HEAD"), tmp_path / "files", ["tasks/arc.yaml"])
    assert not [*ran.iterdir()], caught.value


# -- bare repositories -------------------------------------------------------------------------------------------------


def embed(folder: Path, ran: Path) -> None:
    """Make a folder a bare repository, as a clone gets it from ordinary files."""
    git(folder, "init", "-q", "--bare", ".")
    git(folder, "config", "core.fsmonitor", program(ran.parent, ran, "embedded"))
    git(folder, "config", "core.bare", "false")
    git(folder, "config", "core.worktree", str(folder))


def test_a_bare_repository_in_a_folder_is_not_used(repository: Path, ran: Path) -> None:
    inside = repository / "tasks/inside"
    inside.mkdir()
    embed(inside, ran)
    write_task(inside, "own")
    for folder in (inside, inside / "tasks"):
        for ask in (work_tree, Repository.around, lambda place: safe_git(place, "status")):
            with pytest.raises(GitError, match="is a bare repository; bare repositories are not supported"):
                ask(folder)
    done = promptfmt(inside, "diff", "HEAD")
    assert (done.returncode, "is a bare repository" in done.stderr) == (2, True)
    assert not [*ran.iterdir()]


def test_a_bare_repository_that_borrows_its_objects_is_not_used(repository: Path) -> None:
    inside = repository / "inside"
    inside.mkdir()
    (inside / "HEAD").symlink_to("refs/heads/none")
    (inside / "commondir").write_text("../.git\n", "utf-8")
    with pytest.raises(GitError, match="is a bare repository"):
        work_tree(inside)


def test_a_work_tree_elsewhere_is_not_used(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    git(repository, "config", "core.worktree", str(tmp_path / "elsewhere"))
    with pytest.raises(GitError, match="as the work tree of this repository"):
        Repository.around(repository)


# -- no answer ---------------------------------------------------------------------------------------------------------


def damage_index(root: Path) -> None:
    (root / ".git/index").write_bytes(b"damaged")


def damage_configuration(root: Path) -> None:
    (root / ".git/config").write_text("[core\n", "utf-8")


def disown(_root: Path) -> None:
    os.environ["GIT_TEST_ASSUME_DIFFERENT_OWNER"] = "1"


def hide_git(root: Path) -> None:
    os.environ["PATH"] = f"{root}{os.pathsep}relative{os.pathsep}"


@pytest.mark.parametrize("spoil", [damage_index, damage_configuration, disown, hide_git])
def test_no_answer_of_git_is_not_the_answer_no(
    repository: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], None]
) -> None:
    for name in ("GIT_TEST_ASSUME_DIFFERENT_OWNER", "PATH"):
        monkeypatch.setenv(name, os.environ.get(name, "0"))  # so that it is restored
    assert absent_files(repository) == frozenset()
    spoil(repository)
    with pytest.raises(GitError):
        absent_files(repository)
    with pytest.raises(GitError):
        Repository.around(repository).blobs(None)


def test_git_is_not_taken_from_the_working_directory(
    repository: Path, ran: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(program(repository, ran, "git")).rename(repository / "git")
    monkeypatch.chdir(repository)
    monkeypatch.setenv("PATH", f".{os.pathsep}{os.pathsep}{os.environ['PATH']}")
    safe_git(repository, "status")
    assert not [*ran.iterdir()]


def test_variables_that_name_another_repository_are_not_passed_on(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    names = {"GIT_DIR": other / ".git", "GIT_WORK_TREE": other, "GIT_INDEX_FILE": other / "x", "GIT_TRACE": other / "t"}
    for name, value in names.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", "'core.worktree'='/'")
    assert work_tree(repository) == repository
    assert [path.name for path in other.iterdir()] == [".git"]


def test_settings_of_the_user_apply(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(GitError, match="dubious ownership") as caught:
        safe_git(repository, "status")
    assert caught.value.hint == f"git config --global --add safe.directory {repository}"
    for name, value in (("COUNT", "1"), ("KEY_0", "safe.directory"), ("VALUE_0", str(repository))):
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    assert safe_git(repository, "status", "--porcelain") == b""


def test_time_and_output_are_bounded(repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(GitError, match="git log printed more than 10 bytes"):
        safe_git(repository, "log", limit=10)
    (tmp_path / "bin").mkdir()
    slow = tmp_path / "bin/git"
    slow.write_text("#!/bin/sh\nsleep 600 & wait\n", "utf-8")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(GitError, match=r"git config did not end within 0.2 s"):
        safe_git(repository, "log", seconds=0.2)


def test_a_folder_outside_of_repositories_has_none(tmp_path: Path) -> None:
    assert not has_repository(tmp_path)
    assert absent_files(tmp_path) == frozenset()
    with pytest.raises(GitError, match="not in a git repository"):
        work_tree(tmp_path)


def test_files_that_a_sparse_checkout_leaves_out_are_compared(repository: Path, tmp_path: Path) -> None:
    (repository / "other").mkdir()
    (repository / "other/x.yaml").write_text("x\n", "utf-8")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "three")
    git(repository, "sparse-checkout", "set", "tasks")
    assert not (repository / "other").exists()
    found = Repository.around(repository)
    names = found.blobs(None)
    assert names == found.blobs(found.commit("HEAD"))
    found.lay_out(None, tmp_path / "files", names)
    assert (tmp_path / "files/other/x.yaml").read_text("utf-8") == "x\n"
    shutil.rmtree(tmp_path / "files")
