"""`promptfmt review` writes exactly what was accepted, and nothing that is no snapshot."""

import json
from pathlib import Path

import pytest
from promptfmt_command import git, promptfmt, write_task

pytestmark = pytest.mark.slow


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Three tasks without snapshots, in a repository."""
    for name in ("arc", "boolq", "cola"):
        write_task(tmp_path, name)
    (tmp_path / "pytest.ini").write_text("[pytest]\npromptfmt_profiles = plain chat-chatml\n", "utf-8")
    git(tmp_path, "init", "-q")
    return tmp_path


def snapshots(project: Path) -> list[str]:
    return sorted(path.relative_to(project / "tasks/__prompts__").as_posix() for path in project.rglob("*.txt"))


def test_each_answer_does_what_it_says(project: Path) -> None:
    assert promptfmt(project, "review", typed="a\ns\nr\nx\na\nq\n").returncode == 1
    assert snapshots(project) == ["arc/arc/plain.txt", "boolq/boolq/chat-chatml.txt"]
    done = promptfmt(project, "review", "--list")
    assert len(done.stdout.splitlines()) == 4
    assert promptfmt(project, "review", typed="a\na\na\na\n").returncode == 0
    for name in ("arc", "boolq"):
        write_task(project, name, "Q: {{question}}\\nAnswer:")
    write_task(project, "cola", "What? {{question}}")
    done = promptfmt(project, "review", typed="A\ns\n")
    assert "+| Answer:⟨end⟩" in done.stdout
    assert "do the same for 3 more snapshots with this change" in done.stdout
    left = json.loads(promptfmt(project, "review", "--json").stdout)
    assert {entry["task"] for entry in left} == {"cola"}
    (project / "tasks/arc.yaml").unlink()
    done = promptfmt(project, "review", "--accept", "cola", "--accept", "tasks/__prompts__/arc/*")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "4 of 4 snapshots accepted\n"
    assert not (project / "tasks/__prompts__/arc").exists()
    assert promptfmt(project, "review").returncode == 0


def test_what_is_rejected_stays_as_it_is_and_is_named_with_its_cause(project: Path) -> None:
    promptfmt(project, "review", "--accept", "*")
    before = {name: (project / "tasks/__prompts__" / name).read_bytes() for name in snapshots(project)}
    for name in ("arc", "boolq"):
        write_task(project, name, "Q: {{question}}\\nAnswer:")
    done = promptfmt(project, "review", typed="a\nR\n")
    assert done.returncode == 1
    cause, *told = done.stderr.splitlines()
    assert cause.startswith("rejected; fix this: | A:")
    assert cause.endswith(" (from tasks/arc.yaml:4:1 doc_to_text)")
    assert told == [
        "    arc [chat-chatml], boolq [plain], boolq [chat-chatml]",
        "1 of 4 snapshots accepted, 3 rejected",
    ]
    after = {name: (project / "tasks/__prompts__" / name).read_bytes() for name in snapshots(project)}
    assert [name for name in before if before[name] != after[name]] == ["arc/arc/plain.txt"]


def test_where_nobody_answers_all_is_left_and_other_ways_are_named(project: Path) -> None:
    done = promptfmt(project, "review", typed="")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "this is not a terminal, so no questions can be asked: use --list or --accept GLOB",
        "0 of 6 snapshots accepted, 6 left",
    ]
    assert snapshots(project) == []


def pending(project: Path, **changes: str | None) -> Path:
    entry = {"path": "tasks/__prompts__/arc/arc/plain.txt", "category": "new", "task": "arc", "profile": "plain"}
    entry |= {"key": "", "title": "", "old": None, "new": "text\n", **changes}  # type: ignore[dict-item]
    file = project / "pending.jsonl"
    file.write_text(json.dumps(entry) + "\n", "utf-8")
    return file


def test_what_is_settled_leaves_the_list_of_pending_snapshots(project: Path) -> None:
    file = pending(project)
    assert promptfmt(project, "review", "pending.jsonl", typed="s\n").returncode == 1
    assert file.read_text("utf-8")
    entry = file.read_text("utf-8")
    assert promptfmt(project, "review", "pending.jsonl", typed="r\n").returncode == 1
    assert file.read_text("utf-8") == ""
    assert snapshots(project) == []
    file.write_text(entry, "utf-8")
    assert promptfmt(project, "review", "pending.jsonl", typed="a\n").returncode == 0
    assert file.read_text("utf-8") == ""
    assert (project / "tasks/__prompts__/arc/arc/plain.txt").read_text("utf-8") == "text\n"


@pytest.mark.parametrize(
    "path",
    ["tasks/arc.yaml", "../__prompts__/a/b/c.txt", "/etc/__prompts__/a/b/c.txt", "out/__prompts__/a/b/c.txt"],
)
def test_a_list_of_somebody_else_cannot_touch_other_files(
    project: Path, path: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (project / "out").symlink_to(tmp_path_factory.mktemp("elsewhere"))
    pending(project, path=path)
    done = promptfmt(project, "review", "pending.jsonl", "--accept", "*")
    assert done.returncode == 1
    assert "not a snapshot of this project" in done.stderr
    assert snapshots(project) == []


def test_a_file_that_has_changed_since_is_not_overwritten(project: Path) -> None:
    pending(project, old="as it was\n")
    done = promptfmt(project, "review", "pending.jsonl", "--accept", "arc")
    assert (done.returncode, "has changed since" in done.stderr) == (1, True)
    assert snapshots(project) == []


def test_a_glob_that_chooses_nothing_is_told(project: Path) -> None:
    pending(project)
    done = promptfmt(project, "review", "pending.jsonl", "--accept", "ark")
    assert done.returncode == 2
    assert done.stderr == "--accept 'ark' matches none of 1 snapshot\n  hint: did you mean 'arc'?\n"
