"""`promptfmt accept` and `reject` settle what the last run found, and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import forked_runs
import pytest
from promptfmt_command import promptfmt, write_task

from pytest_promptfmt.results.pending import last_run_around

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def accepted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("accepted")
    for name in ("arc", "boolq", "cola"):
        write_task(folder, name)
    (folder / "pytest.ini").write_text("[pytest]\n", "utf-8")
    assert run_of(folder, "--snapshot-update") == 0
    return folder


@pytest.fixture
def project(tmp_path: Path, accepted: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three tasks with snapshots."""
    monkeypatch.setenv("PROMPTFMT_CACHE_DIR", str(tmp_path / "cache"))
    return shutil.copytree(accepted, tmp_path / "project")


def run_of(folder: Path, *options: str) -> int:
    chosen = ("--promptfmt", "-q", "--promptfmt-profile=plain", *options)
    return forked_runs.run("pytest", *chosen, folder=folder).returncode


def snapshots(folder: Path) -> dict[str, str]:
    found = sorted((folder / "tasks/__prompts__").rglob("*.txt"))
    return {path.relative_to(folder / "tasks/__prompts__").as_posix(): path.read_text("utf-8") for path in found}


def test_accept_writes_what_the_last_run_found_and_only_that(project: Path) -> None:
    before = snapshots(project)
    write_task(project, "arc", "Question: {{question}}\\nA:")
    write_task(project, "boolq", "Is it? {{question}}\\nA:")
    (project / "tasks/cola.yaml").unlink()
    write_task(project, "dream", "New: {{question}}")
    assert run_of(project) == 1
    one = promptfmt(project / "tasks", "accept", "arc")
    assert (one.returncode, one.stderr) == (0, "1 of 1 snapshot accepted\n")
    after = snapshots(project)
    assert "| Question: " in after["arc/arc/plain.txt"]
    assert {name for name in after if after[name] != before[name]} == {"arc/arc/plain.txt"}
    write_task(project, "boolq", "Was it? {{question}}\\nA:")  # no run has shown this
    rest = promptfmt(project, "accept")
    assert rest.returncode == 1
    assert rest.stderr.splitlines() == [
        "boolq [plain] changed after the last run. Run the tests again",
        "2 of 3 snapshots accepted",
    ]
    assert snapshots(project).keys() == {"arc/arc/plain.txt", "boolq/boolq/plain.txt", "dream/dream/plain.txt"}
    assert snapshots(project)["boolq/boolq/plain.txt"] == before["boolq/boolq/plain.txt"]
    assert run_of(project) == 1
    assert promptfmt(project, "accept").returncode == 0
    assert run_of(project) == 0
    assert promptfmt(project, "accept").stderr == (
        "nothing to accept or reject: in the last run, no snapshots were new or "
        "changed. After a change, run the tests again\n"
    )


def test_a_renamed_task_is_accepted_with_its_old_snapshot(project: Path) -> None:
    text = (project / "tasks/arc.yaml").read_text("utf-8")
    (project / "tasks/arc.yaml").write_text(text.replace("task: arc", "task: arc_easy"), "utf-8")
    assert run_of(project) == 1
    done = promptfmt(project, "accept", "arc_easy")
    assert (done.returncode, done.stderr) == (0, "1 of 1 snapshot accepted\n")
    assert snapshots(project).keys() == {"arc/arc_easy/plain.txt", "boolq/boolq/plain.txt", "cola/cola/plain.txt"}
    assert run_of(project) == 0


@pytest.mark.parametrize("command", [("accept",), ("review", "--accept", "arc")])
def test_snapshots_of_a_run_below_the_rootdir_are_written_where_they_belong(
    project: Path, command: tuple[str, ...]
) -> None:
    before = snapshots(project)
    (project / "pytest.ini").write_text("[pytest]\npromptfmt_profiles = plain\n", "utf-8")
    write_task(project, "arc", "Question: {{question}}\\nA:")
    assert run_of(project / "tasks") == 1
    done = promptfmt(project / "tasks", *command)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "1 of 1 snapshot accepted"), done.stderr
    assert {name for name, text in snapshots(project).items() if text != before[name]} == {"arc/arc/plain.txt"}
    assert not (project / "tasks/tasks").exists()


@pytest.mark.parametrize("command", [("accept",), ("review", "--accept", "arc")])
def test_what_is_accepted_renews_the_lock_as_an_update_does(project: Path, command: tuple[str, ...]) -> None:
    lock = project / "promptfmt.lock"
    (project / "pytest.ini").write_text("[pytest]\npromptfmt_profiles = plain chat-llama2\n", "utf-8")
    assert forked_runs.run("pytest", "--promptfmt", "--snapshot-update", folder=project).returncode == 0
    now = lock.read_text("utf-8")
    lock.write_text(now.replace('loader: "tokenizers ', 'loader: "tokenizers 0.1.'), "utf-8")
    write_task(project, "arc", "Question: {{question}}\\nA:")
    assert forked_runs.run("pytest", "--promptfmt", folder=project).returncode == 1
    assert promptfmt(project, "review", typed="r\nr\n").returncode == 1
    assert lock.read_text("utf-8") != now
    assert forked_runs.run("pytest", "--promptfmt", folder=project).returncode == 1
    done = promptfmt(project, *command)
    assert (done.returncode, done.stderr) == (0, "promptfmt.lock was updated\n2 of 2 snapshots accepted\n")
    assert lock.read_text("utf-8") == now
    lock.unlink()
    write_task(project, "arc", "Q: {{question}}\\nA:")
    assert forked_runs.run("pytest", "--promptfmt", folder=project).returncode == 1
    assert promptfmt(project, *command).stderr == "2 of 2 snapshots accepted\n"
    assert 'loader: "tokenizers ' in lock.read_text("utf-8")


def test_reject_lists_what_is_to_be_fixed_and_writes_nothing(project: Path) -> None:
    before = snapshots(project)
    for name in ("arc", "boolq"):
        write_task(project, name, "Question: {{question}}\\nA:")
    write_task(project, "cola", "{{question}}\\nA:")
    assert run_of(project) == 1
    done = promptfmt(project, "reject", "arc", "tasks/boolq.yaml")
    assert done.returncode == 0
    assert done.stderr.splitlines()[1:] == ["    arc [plain], boolq [plain]", "2 snapshots rejected"]
    assert promptfmt(project, "accept").stderr == "1 of 1 snapshot accepted\n"
    assert {name for name, text in snapshots(project).items() if text != before[name]} == {"cola/cola/plain.txt"}


def test_the_run_of_a_review_is_the_last_run_without_what_the_review_settled(project: Path) -> None:
    assert run_of(project) == 0
    for name in ("arc", "boolq", "cola"):
        write_task(project, name, f"{name}: {{{{question}}}}\\nA:")
    assert len(promptfmt(project, "review", "--list").stdout.splitlines()) == 9
    done = promptfmt(project, "review", typed="a\nr\nq\n")
    assert done.stderr.splitlines()[-1] == "1 of 9 snapshots accepted, 1 rejected, 7 left"
    assert promptfmt(project, "accept").stderr == "7 of 7 snapshots accepted\n"
    assert promptfmt(project, "accept").stderr == (
        "nothing to accept or reject: in the last run, no snapshots were new or "
        "changed. After a change, run the tests again\n"
    )


def test_a_wrong_name_and_an_unknown_run_are_one_message(project: Path, tmp_path: Path) -> None:
    write_task(project, "arc", "Question: {{question}}\\nA:")
    assert run_of(project) == 1
    done = promptfmt(project, "accept", "ark")
    assert (done.returncode, done.stderr) == (
        2,
        "'ark' matches none of 1 snapshot of the last run\n  hint: did you mean 'arc'?\n",
    )
    assert promptfmt(project, "accept").returncode == 0
    for command in ("accept", "reject"):
        done = promptfmt(project / "tasks", command, "ark")
        assert (done.returncode, done.stderr) == (2, "no task matches 'ark'\n  hint: did you mean 'arc'?\n")
        assert promptfmt(project, command, "arc", "tasks/cola.yaml", "b*").returncode == 0
        unknown = promptfmt(tmp_path, command)
        assert (unknown.returncode, unknown.stderr.splitlines()[0]) == (
            2,
            "no earlier run was found in this folder or its parents",
        )


@pytest.mark.parametrize("content", ["{", "[]", '{"problems": [{}]}', '{"problems": 1, "options": []}', "\xff"])
def test_a_damaged_record_is_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    monkeypatch.setenv("PROMPTFMT_CACHE_DIR", str(tmp_path / "damaged"))
    assert run_of(tmp_path) == 5
    write_task(tmp_path, "arc")
    assert run_of(tmp_path) == 1
    (file,) = (tmp_path / "damaged/last-runs").iterdir()
    assert json.loads(file.read_text("utf-8"))["problems"]
    file.write_bytes(content.encode("latin-1"))
    assert last_run_around(tmp_path) is None
