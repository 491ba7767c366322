"""What a run leaves behind: a patch that git applies, JSON, Markdown and the summary of a CI job."""

import itertools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from plugin_project import Project

pytestmark = pytest.mark.slow

IDENTITY = ["-c", "user.name=A", "-c", "user.email=a@example.org"]


def git(folder: Path, *args: str) -> str:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(
        ["git", *IDENTITY, *args], cwd=folder, capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout


@pytest.fixture
def changed(project: Project, kept: Path) -> Project:
    """A git repository whose tasks are ahead of their snapshots in every way: the snapshots of main are committed."""
    project.make_once(kept / "changed", lambda: write_changes(project))
    return project


def write_changes(project: Project) -> None:
    project.task("tasks/arc.yaml")
    project.task("tasks/boolq.yaml")
    project.task("tasks/cola.yaml")
    project.task("tasks/gone.yaml", doc_to_text="Gone: {{question}}")
    project.task("tasks/with blank/späße.yaml")
    project.accept()
    git(project.root, "init", "-q")
    git(project.root, "add", ".")
    git(project.root, "commit", "-qm", "before")
    for name in ("arc", "boolq", "with blank/späße"):
        project.edit(f"tasks/{name}.yaml", "A:", "Answer:")
    project.edit("tasks/cola.yaml", "cola", "cola_2")
    (project.root / "tasks/gone.yaml").unlink()
    project.task("tasks/new.yaml", doc_to_text="New: {{question}}")
    git(project.root, "add", "*.yaml")
    git(project.root, "commit", "-qm", "after")


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_the_patch_makes_a_second_clone_green(changed: Project, tmp_path: Path, workers: tuple[str, ...]) -> None:
    before = changed.snapshots()
    result = changed.run("--promptfmt-patch", str(tmp_path / "accept.patch"), *workers)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert changed.snapshots() == before, "a patch writes no snapshot"
    result.stdout.fnmatch_lines(["*accept.patch: a patch of 14 files"])
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(changed.root), str(clone))
    git(clone, "apply", str(tmp_path / "accept.patch"))
    green = changed.start("--promptfmt", "--rootdir", str(clone), str(clone))
    assert green.ret == pytest.ExitCode.OK
    assert "unused" not in green.stdout.str()
    changed.accept()
    theirs = {path.relative_to(clone).as_posix(): path.read_bytes() for path in clone.rglob("__prompts__/*/*/*.txt")}
    assert theirs == changed.snapshots()
    assert not Path(clone / "tasks/__prompts__/gone").exists()


def test_json_and_markdown_tell_the_same_categories(changed: Project) -> None:
    changed.run("--promptfmt-json", "out/result.json", "--promptfmt-write", "markdown=out/result.md", "-n", "2")
    result: dict[str, Any] = json.loads((changed.root / "out/result.json").read_text("utf-8"))
    assert result["exit"] == pytest.ExitCode.TESTS_FAILED
    assert result["counts"] == {"changed": 6, "new": 2, "obsolete": 2, "renamed": 2}
    clusters = {cluster["category"]: cluster for cluster in result["clusters"]}
    assert sorted(clusters) == ["changed", "new", "obsolete", "renamed"]
    assert {member["file"] for member in clusters["changed"]["members"]} == {
        "tasks/arc.yaml",
        "tasks/boolq.yaml",
        "tasks/with blank/späße.yaml",
    }
    assert "+| Answer:⟨end⟩" in clusters["changed"]["detail"]
    page = (changed.root / "out/result.md").read_text("utf-8")
    for line in ("### changed: 6 tests of 3 tasks", "+| Answer:⟨end⟩", "| changed | 6 |", "| renamed | 2 |"):
        assert line in page


def test_the_step_summary_is_appended_where_github_asks_for_one(
    changed: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = changed.write("summary.md", "said before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    changed.run()
    assert summary.read_text("utf-8") == "said before\n", "nothing is written that was not asked for"
    changed.run("--promptfmt-step-summary")
    assert summary.read_text("utf-8").startswith("said before\n## Prompt formats\n")


def test_a_file_that_cannot_be_written_is_one_line_and_not_a_crash(project: Project) -> None:
    project.task("tasks/arc.yaml")
    project.write("taken", "")
    result = project.run("--promptfmt-patch", "taken/accept.patch", "--promptfmt-json", "taken/x.json")
    result.stdout.fnmatch_lines(["taken/accept.patch cannot be written: *", "taken/x.json cannot be written: *"])


def test_a_version_is_in_the_header_and_a_snapshot_without_one_stays_as_it_is(project: Project) -> None:
    project.task("tasks/arc.yaml")
    project.accept()
    before = project.snapshots()
    project.task("tasks/arc.yaml", metadata={"version": 1.0})
    project.accept()
    assert project.snapshots() == before, "a new key of the header rewrites no snapshot of an earlier release"
    project.task("tasks/arc.yaml", doc_to_text="Question: {{question}}\nA:", metadata={"version": 2.0})
    project.accept()
    assert all(b"\nversion: 2.0\n" in content for content in project.snapshots().values())
    project.task("tasks/arc.yaml", doc_to_text="Question: {{question}}\nA:", metadata={"version": 3.0})
    result = project.run("--promptfmt-json", "result.json")
    assert (result.ret, json.loads((project.root / "result.json").read_text())["counts"]) == (0, {"header-only": 2})


def test_a_stale_header_passes_and_is_in_the_patch(project: Project) -> None:
    project.task("tasks/arc.yaml")
    project.accept()
    for name in project.snapshots():
        project.edit(name, "output: generate_until", "output: something_else")
    result = project.run("--promptfmt-patch", "accept.patch", "--promptfmt-json", "result.json")
    assert result.ret == pytest.ExitCode.OK
    assert json.loads((project.root / "result.json").read_text())["counts"] == {"header-only": 2}
    git(project.root, "init", "-q")
    git(project.root, "apply", "accept.patch")
    assert "header" not in project.run("-q").stdout.str()


def test_the_lock_of_the_tokenizers_is_in_the_patch(project: Project) -> None:
    project.write("promptfmt.yaml", "profiles: {gpt2: {tokenizer: 'archetype:bytelevel-gpt2'}}\n")
    project.task("tasks/arc.yaml")
    project.run("--promptfmt-patch=accept.patch", "--promptfmt-profile", "gpt2")
    git(project.root, "init", "-q")
    git(project.root, "apply", "accept.patch")
    ours = (project.root / "promptfmt.lock").read_bytes()
    (project.root / "promptfmt.lock").unlink()
    project.accept("--promptfmt-profile", "gpt2")
    assert (project.root / "promptfmt.lock").read_bytes() == ours


def test_shards_share_the_files_among_them_and_lose_no_snapshot(project: Project) -> None:
    for number in range(12):
        project.task(f"tasks/t{number}.yaml")
    project.task("tasks/left_behind.yaml")
    project.accept()
    (project.root / "tasks/left_behind.yaml").unlink()
    collected = [project.collected("--promptfmt", "--promptfmt-shard", f"{number}/3") for number in (1, 2, 3)]
    assert sorted(itertools.chain(*collected)) == sorted(project.collected("--promptfmt"))
    assert all(collected)
    unused = [project.run("--promptfmt-shard", f"{number}/3").ret != pytest.ExitCode.OK for number in (1, 2, 3)]
    assert sum(unused) == 1, "one shard tells of the snapshots whose file is gone"
    project.accept("--promptfmt-shard", "1/3")
    project.accept("--promptfmt-shard", "2/3")
    project.accept("--promptfmt-shard", "3/3")
    assert len(project.snapshots()) == 24
    assert project.run().ret == pytest.ExitCode.OK


def test_a_shard_without_files_is_no_failure_and_a_wrong_one_is_told(project: Project) -> None:
    project.task("tasks/arc.yaml")
    project.accept()
    codes = {project.run("--promptfmt-shard", f"{number}/2", "-q").ret for number in (1, 2)}
    assert codes == {pytest.ExitCode.OK}
    for wrong in ("3/2", "0/2", "half"):
        result = project.run("--promptfmt-shard", wrong)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert f"invalid --promptfmt-shard '{wrong}'" in result.stderr.str()


def test_every_report_says_which_profiles_are_archetypes(project: Project, tmp_path: Path) -> None:
    project.task("arc.yaml")
    files = {name: tmp_path / f"result.{name}" for name in ("json", "markdown", "html")}
    # With an equals sign, or pytest takes a file that is there for a path to collect.
    wanted = [f"--promptfmt-write={name}={file}" for name, file in files.items()]
    result = project.run("--snapshot-update", *wanted)
    told = "chat-chatml: built-in approximations"
    result.stdout.fnmatch_lines([f"promptfmt: {told}*"])
    texts = {name: file.read_text("utf-8") for name, file in files.items()}
    assert json.loads(texts["json"])["archetypes"] == ["chat-chatml"]
    assert "`chat-chatml`: built-in approximations" in texts["markdown"]
    assert told in texts["html"]
    project.run("--promptfmt-profile", "plain", *wanted)
    assert not [name for name, file in files.items() if told in file.read_text("utf-8")]
