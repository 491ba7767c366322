"""The release of lm-eval that a run follows: where it is set, what is said about it, what it changes."""

from __future__ import annotations

import pytest
from plugin_project import Project

OLD = ("--promptfmt-lm-eval", "0.4.9")


@pytest.fixture
def project(pytester: pytest.Pytester) -> Project:
    project = Project(pytester)
    project.task("t.yaml")
    return project


def test_the_release_of_the_command_line_changes_requests_and_is_locked(project: Project) -> None:
    project.run("--snapshot-update", *OLD)
    snapshot = (project.root / "__prompts__/t/t/plain.txt").read_text("utf-8")
    assert "max_gen_toks" not in snapshot
    assert "0.4.9" not in snapshot
    assert 'lm_eval: "0.4.9"\n' in (project.root / "promptfmt.lock").read_text("utf-8")
    result = project.run(*OLD)
    assert result.ret == 0
    assert any(line.startswith("promptfmt: prompts are made as in lm-eval 0.4.9") for line in result.outlines)
    assert not any("were made with" in line for line in result.outlines)


def test_a_run_that_follows_another_release_fails_and_says_which_made_the_snapshots(project: Project) -> None:
    project.run("--snapshot-update", *OLD)
    project.write("promptfmt.yaml", 'lm_eval: "0.4.13"\n')
    result = project.run()
    assert result.ret == 1
    assert any(
        "the snapshots were made as in lm-eval 0.4.9, but this run renders as lm-eval 0.4.13" in line
        for line in result.outlines
    )
    project.run("--snapshot-update")
    assert "lm_eval" not in (project.root / "promptfmt.lock").read_text("utf-8")
    assert project.run().ret == 0


def test_a_folder_has_its_own_release(project: Project) -> None:
    project.task("old/o.yaml")
    project.write("old/promptfmt.yaml", 'lm_eval: "0.4.8"\n')
    project.run("--snapshot-update")
    assert "max_gen_toks" in (project.root / "__prompts__/t/t/plain.txt").read_text("utf-8")
    assert "temperature" not in (project.root / "old/__prompts__/o/o/plain.txt").read_text("utf-8")


@pytest.mark.parametrize("written", ["0.4", "latest", "'0.4.x'"])
def test_a_value_that_is_not_a_release_is_refused(project: Project, written: str) -> None:
    project.write("promptfmt.yaml", f"lm_eval: {written}\n")
    result = project.run()
    assert result.ret != 0
    assert any("a release in quotes, such as '0.4.9'" in line for line in (*result.outlines, *result.errlines))
