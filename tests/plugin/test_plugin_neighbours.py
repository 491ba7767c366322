"""Beside ordinary tests, ordinary snapshots, strict warnings and other plugins."""

import pytest
from plugin_project import Project

AMBER = "def test_amber(snapshot):\n    assert snapshot == {'a': 1}\n"
REMARKABLE = (
    "group: suite\ntask:\n  - task: inline\n    include: base_yaml\n    dataset_path: nowhere/x\n"
    '    doc_to_text: "{{q}}"\n    doc_to_target: a\n'
)


def test_ordinary_tests_and_snapshots_live_in_the_same_folder(project: Project) -> None:
    project.task("tasks/arc.yaml")
    project.write("tasks/test_arc.py", AMBER)
    project.accept("tasks")
    amber = project.root / "tasks/__snapshots__/test_arc.ambr"
    assert amber.exists()
    ours = project.snapshots()
    assert len(ours) == 2
    result = project.run("tasks")
    result.assert_outcomes(passed=3)
    assert "3 snapshots passed." in result.stdout.str()
    assert "unused" not in result.stdout.str()
    project.start("tasks").assert_outcomes(passed=1)
    project.edit("tasks/test_arc.py", "1", "2")
    project.edit("tasks/arc.yaml", "A:", "B:")
    both = project.run("tasks", "-n", "2")
    assert both.ret == pytest.ExitCode.TESTS_FAILED
    assert "2 failed, 1 failed alike" in both.stdout.str()
    project.start("tasks", "--snapshot-update").assert_outcomes(passed=1)
    assert project.snapshots() == ours


def test_remarks_are_warnings_and_strict_warnings_make_them_failures_of_their_own(project: Project) -> None:
    project.write("tasks/base_yaml", "output_type: generate_until\ntest_split: test\n")
    project.write("tasks/suite.yaml", REMARKABLE)
    project.accept("tasks")
    result = project.run("tasks")
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines(["*tasks/suite.yaml:1*", "*PromptfmtWarning: lm-eval 0.4.13 refuses the member*"])
    assert result.stdout.str().count("refuses the member") == 1
    strict = project.run("tasks", "-W", "error")
    strict.assert_outcomes(passed=2, failed=1)
    strict.stdout.fnmatch_lines(["lm-eval 0.4.13 refuses the member 'inline'*"])


def test_without_syrupy_one_sentence_says_so(project: Project) -> None:
    project.task("tasks/arc.yaml")
    result = project.run("tasks", "-p", "no:syrupy")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    told = [line for line in result.errlines if line]
    assert told == [
        "ERROR: promptfmt: prompts are compared through syrupy, which is switched off",
        "  hint: drop -p no:syrupy",
    ]


def test_exit_codes_are_pytests_own(project: Project) -> None:
    project.write("tasks/notes.yaml", "a: 1\n")
    assert project.run("tasks").ret == pytest.ExitCode.NO_TESTS_COLLECTED
    project.task("tasks/arc.yaml")
    assert project.run("tasks", "--strict-markers", "--strict-config").ret == pytest.ExitCode.TESTS_FAILED
    assert project.run("tasks", "--snapshot-update").ret == pytest.ExitCode.OK
