"""The first days in an old repository: nothing that was there before fails, and what is new does."""

import json
from typing import Any

import pytest
from plugin_project import Project

pytestmark = pytest.mark.slow

MISREAD: dict[str, Any] = {
    "doc_to_text": "Q: {{question}}\nThink, then end with 'The answer is X.'\nA:",
    "doc_to_target": "7",
    "filter_list": [
        {
            "name": "number",
            "filter": [{"function": "regex", "regex_pattern": r"#### (\d+)"}, {"function": "take_first"}],
        }
    ],
    "metric_list": [{"metric": "exact_match"}],
}
BASELINE = ("--promptfmt-baseline", "baseline.jsonl")


def codes(project: Project) -> list[str]:
    lines = (project.root / "baseline.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line)["code"] for line in lines[1:]]


def test_files_without_snapshots_wait_to_be_adopted_where_the_settings_say_so(project: Project) -> None:
    project.task("tasks/old.yaml")
    project.task("tasks/new.yaml")
    project.write("promptfmt.yaml", "snapshots: adopted\n")
    result = project.run()
    assert result.ret == pytest.ExitCode.OK
    assert result.parseoutcomes()["skipped"] == 4
    result.stdout.fnmatch_lines(["skipped, 4 tests: the file has no snapshots yet. *"])
    assert project.run("--promptfmt-snapshots", "all").ret == pytest.ExitCode.TESTS_FAILED

    project.accept("tasks/old.yaml", "--promptfmt-profile", "plain")
    assert (project.root / "tasks/__prompts__/old").is_dir()
    assert not (project.root / "tasks/__prompts__/new").exists()
    # One snapshot of a file is enough: what else it defines has to be looked at from now on.
    outcomes = project.run().parseoutcomes()
    assert (outcomes["failed"], outcomes["skipped"], outcomes["passed"]) == (1, 2, 1)
    project.accept("tasks/old.yaml")
    project.edit("tasks/old.yaml", "A:", "A: ")
    assert project.run().ret == pytest.ExitCode.TESTS_FAILED


def test_a_patch_holds_nothing_of_what_is_not_adopted(project: Project) -> None:
    project.task("tasks/old.yaml")
    project.write("promptfmt.yaml", "snapshots: adopted\n")
    assert project.run("--promptfmt-patch", "accept.patch", "--promptfmt-no-cache").ret == pytest.ExitCode.OK
    assert not (project.root / "accept.patch").exists()


def test_a_baseline_accepts_misread_answers_until_others_are_misread(project: Project) -> None:
    project.task("tasks/sums.yaml", **MISREAD)
    project.accept()
    failed = project.run()
    assert failed.ret == pytest.ExitCode.TESTS_FAILED
    assert project.run(*BASELINE, "--promptfmt-baseline-update", "write").ret == pytest.ExitCode.OK
    assert "misread" in codes(project)
    for options in ((), ("-n", "2"), ("--promptfmt-no-cache",)):
        result = project.run(*BASELINE, *options)
        assert result.ret == pytest.ExitCode.OK, result.stdout.str()
    assert "no longer occur" not in result.stdout.str()

    project.edit("tasks/sums.yaml", r"#### (\\d+)", r"answer is (\\d+)")
    project.run(*BASELINE, "-m", "promptfmt_extraction", "--snapshot-update")
    result = project.run(*BASELINE, "-m", "promptfmt_extraction")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        ["*no longer occur; --promptfmt-baseline-update prune removes *:*", "*tasks/sums.yaml: misread *"]
    )
    project.run(*BASELINE, "-m", "promptfmt_extraction", "--promptfmt-baseline-update", "prune")
    assert "misread" not in codes(project)


def test_a_run_that_forgot_the_option_says_how_prompts_are_tested(project: Project) -> None:
    project.task("tasks/arc.yaml")
    result = project.start("tasks")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["promptfmt: to test prompts, run pytest --promptfmt * (or set promptfmt = true *"])
    result = project.start("tasks/arc.yaml::arc::snapshot[plain]")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "run pytest --promptfmt 'tasks/arc.yaml::arc::snapshot[plain]'" in result.stdout.str()
    unknown = project.run("tasks/arc.yaml::acr")
    assert unknown.ret == pytest.ExitCode.USAGE_ERROR
    assert (
        "promptfmt: pytest --promptfmt --collect-only -q tasks/arc.yaml lists the ids of tests" in unknown.stdout.str()
    )
    project.write("other/data.yaml", "a: 1\n")
    assert "promptfmt: pytest" not in project.start("other").stdout.str()
