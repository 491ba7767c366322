"""The table of commands in docs/security.md, held to the commands: what each writes, and when git and code run."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import forked_runs
import pytest
from loopback_hub import LoopbackHub
from promptfmt_command import git, promptfmt, write_task

from pytest_promptfmt.cli import COMMANDS, command

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SNAPSHOTS = "__prompts__"
HUB = ("models/own", "--origin", "people/own")

EXAMPLES: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "check": (("--fix",), {"tasks/arc.yaml"}),
    "show": (("arc",), set()),
    "diff": (("HEAD", "--markdown", "comment.md"), {"comment.md"}),
    "fix": (("--write",), {"tasks/arc.yaml"}),
    "review": (("--accept", "*"), {SNAPSHOTS}),
    "accept": ((), {SNAPSHOTS}),
    "explain": (("PF201",), set()),
    "init": (
        ("--baseline", "--kind", "benchmarks"),
        {".gitattributes", ".gitignore", ".github/workflows/prompts.yaml", "promptfmt-baseline.jsonl"},
    ),
    "reject": ((), set()),
    "verify": (("tasks",), set()),
    "why": (("tasks/arc.yaml",), set()),
    "cache": (("--clear",), set()),
    "compare": (("models/own", "models/other"), set()),
    "convert": (("tasks/letters.yaml", "--to", "mcq", "--write"), {"tasks/letters.yaml"}),
    "freeze": (("tasks/arc.yaml", "--from", "rows.jsonl"), {"tasks/arc.docs.jsonl", "tasks/arc.docs.origin.json"}),
    "outdated": (HUB, {"promptfmt.lock"}),
    "record": (("--engine", "llama.cpp:http://127.0.0.1:9", "--to", "recorded.prompts.jsonl"), set()),
    "formats": ((), set()),
    "profiles": ((), set()),
    "schema": ((), set()),
}
"""An example of each command, and the files that it writes into the repository."""

NOT_WRITTEN_HERE = {"record": "tests/system_templates/test_server_engines.py, which has a server"}
YES, NO = "yes", "no"


def rows() -> dict[str, list[str]]:
    """Return the cells of the table, by command."""
    text = (ROOT / "docs/security.md").read_text("utf-8").partition("\n## Commands\n")[2].partition("\n## ")[0]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:3] == "| `"]
    return {name.removeprefix("promptfmt "): cells for names, *cells in found for name in re.findall("`(.*?)`", names)}


def has_option(name: str) -> bool:
    return any("--no-code" in parameter.opts for parameter in command(name).params)


def test_the_table_has_a_row_for_each_command() -> None:
    assert {*rows()} - {"pytest --promptfmt"} == EXAMPLES.keys() == {*COMMANDS}


def test_a_command_has_no_code_exactly_where_it_runs_code() -> None:
    assert {name for name, (_, _, runs_code) in rows().items() if name in COMMANDS and runs_code == YES} == {
        name for name in COMMANDS if has_option(name)
    }


def test_the_commands_that_write_are_those_of_the_table() -> None:
    writing = {name for name, (_, written) in EXAMPLES.items() if written} | NOT_WRITTEN_HERE.keys()
    assert {
        name for name, (writes, _, _) in rows().items() if name in COMMANDS and writes.partition(";")[0] != "nothing"
    } == writing


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file with the calls of git, from here on."""
    log, real = tmp_path / "calls", shutil.which("git")
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "git").write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {real} "$@"\n', "utf-8")
    (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return log


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the repository, its cache and what code leaves: outcomes are those of one place."""
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def pristine(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of that folder as each test begins with it, made once."""
    copy = tmp_path_factory.mktemp("pristine") / "copy"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PROMPTFMT_CACHE_DIR", str(place / "cache"))
        make_repository(place / "repository", place / "ran")
    shutil.copytree(place, copy, symlinks=True)
    return copy


@pytest.fixture
def ran(place: Path) -> Path:
    """Return the folder in which each program and module that should not run leaves a file."""
    return place / "ran"


@pytest.fixture
def repository(place: Path, pristine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository with a changed task, a snapshot that no task defines, and Python code in each place."""
    monkeypatch.setenv("PROMPTFMT_CACHE_DIR", str(place / "cache"))
    shutil.rmtree(place)
    shutil.copytree(pristine, place, symlinks=True)
    return place / "repository"


def make_repository(root: Path, ran: Path) -> None:
    ran.mkdir()
    write_task(root, "arc")
    choices = {"doc_to_choice": '["A", "B"]', "doc_to_target": "answer"}
    write_task(root, "letters", "{{question.strip()}}\\nA. {{choices[0]}}\\nB. {{choices[1]}}\\nAnswer:")
    letters = root / "tasks/letters.yaml"
    text = letters.read_text("utf-8").replace("generate_until", "multiple_choice")
    letters.write_text(f"{text}doc_to_choice: {choices['doc_to_choice']}\n", "utf-8")
    docs = [{"question": "Which?", "choices": ["this", "that"], "answer": 0}] * 2
    letters.with_suffix(".docs.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs), "utf-8")
    write_task(root, "coded")
    coded = root / "tasks/coded.yaml"
    coded.write_text(f"{coded.read_text('utf-8')}process_docs: !function functions.kept\n", "utf-8")
    for name, more in (("conftest", ""), ("named_plugin", ""), ("tasks/functions", "def kept(docs): return docs\n")):
        left = ran / name.replace("/", "-")
        (root / f"{name}.py").write_text(f"open({str(left)!r}, 'w').close()\n{more}", "utf-8")
    (root / "pytest.ini").write_text("[pytest]\npythonpath = .\naddopts = -p named_plugin\n", "utf-8")
    (root / "promptfmt.yaml").write_text("default_profiles: [plain]\n", "utf-8")
    for name, source in (("own", "{{ messages[0].content }}"), ("other", "{{ messages[0].content }} ")):
        (root / "models" / name).mkdir(parents=True)
        (root / "models" / name / "chat_template.jinja").write_text(source, "utf-8")
    (root / "rows.jsonl").write_text(json.dumps(docs[0]) + "\n", "utf-8")
    run_tests(root, "--snapshot-update")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", ".")
    git(root, "commit", "-qm", "one")
    shutil.copytree(root / "tasks" / SNAPSHOTS / "arc/arc", root / "tasks" / SNAPSHOTS / "gone/gone")
    write_task(root, "arc", "Question: {{question}}\\nA: ")
    run_tests(root)
    for file in ran.iterdir():
        file.unlink()


def run_tests(root: Path, *options: str) -> None:
    environment = {**os.environ, "PYTEST_ADDOPTS": ""}
    done = forked_runs.run("pytest", "-q", "--promptfmt", *options, folder=root, environment=environment)
    assert done.returncode in (0, 1), done.stdout + done.stderr


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hub with a newer template."""
    folder = tmp_path / "hub/people/own"
    folder.mkdir(parents=True)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}!", "utf-8")
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    with LoopbackHub(tmp_path / "hub") as server:
        for name, value in {"ENDPOINT": server.url, "HOME": str(tmp_path / "home")}.items():
            monkeypatch.setenv(f"HF_{name}", value)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


def files(root: Path) -> dict[str, bytes]:
    """Return the files of a repository with their contents, without caches."""
    left_out = {".git", ".pytest_cache", "__pycache__"}
    found = {path.relative_to(root): path for path in root.rglob("*") if path.is_file()}
    return {name.as_posix(): path.read_bytes() for name, path in found.items() if left_out.isdisjoint(name.parts)}


def place_of(name: str) -> str:
    return SNAPSHOTS if SNAPSHOTS in name else "pages" if name.startswith("pages/") else name


def skip_without_packages(name: str) -> None:
    if name == "outdated":
        pytest.importorskip("huggingface_hub")
    if name == "verify":
        pytest.importorskip("lm_eval")


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_command_writes_and_calls_what_its_row_says_and_no_code_with_no_code(
    repository: Path, ran: Path, calls: Path, name: str
) -> None:
    skip_without_packages(name)
    arguments, written = EXAMPLES[name]
    before = files(repository)
    done = promptfmt(repository, name, *arguments, *(["--no-code"] if has_option(name) else []))
    after = files(repository)
    said = done.stdout + done.stderr
    changed = {place_of(each) for each in before.keys() | after.keys() if before.get(each) != after.get(each)}
    assert changed == written, said
    assert sorted(path.name for path in ran.iterdir()) == [], said
    called = calls.read_text("utf-8").splitlines() if calls.exists() else []
    assert bool(called) == (rows()[name][1] == YES), said
    assert all("-c core.fsmonitor=false -c core.hooksPath=/dev/null" in call for call in called)


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_command_runs_code_where_its_row_says_so(repository: Path, ran: Path, name: str) -> None:
    skip_without_packages(name)
    promptfmt(repository, name, *EXAMPLES[name][0])
    assert bool([*ran.iterdir()]) == (rows()[name][2] == YES)


def test_a_process_that_a_command_starts_imports_no_module_of_the_working_directory(
    repository: Path, ran: Path
) -> None:
    (repository / "pytest.py").write_text((repository / "conftest.py").read_text("utf-8"), "utf-8")
    done = promptfmt(repository, "review", "--list", "--no-code")
    assert "changed  tasks/" in done.stdout
    assert not [*ran.iterdir()]
