"""What runs when a part is requested; what was not asked for is never obsolete."""

from pathlib import Path
from typing import Any

import pytest
from plugin_project import Project

CHOICES: dict[str, Any] = {
    "output_type": "multiple_choice",
    "doc_to_text": "question",
    "doc_to_choice": "choices",
    "formats": {"mcqa": None, "cloze": None},
}


@pytest.fixture
def suite(project: Project) -> Project:
    project.task("tasks/arc.yaml", **CHOICES)
    project.task("tasks/wic.yaml")
    project.task("tasks/zero.yaml", num_fewshot=0)
    project.write("tasks/old.yaml", "task: arc_old\nclass: !function old.Task\n")
    project.write("test_python.py", "def test_it(): pass\n")
    return project


def names(ids: list[str]) -> set[str]:
    return {"::".join(line.split("::")[1:]) for line in ids}


def test_globs_choose_names_and_formats_and_leave_the_rest_alone(suite: Project) -> None:
    suite.accept("--promptfmt-profile", "plain")
    before = suite.snapshots()
    assert len(before) == 4
    plain = ("--promptfmt", "--promptfmt-profile", "plain", "tasks")
    assert names(suite.collected(*plain, "--promptfmt-task", "arc")) == {
        "arc@mcqa::snapshot[plain]",
        "arc@cloze::snapshot[plain]",
    }
    result = suite.run(*plain[1:], "-v", "--snapshot-update", "--promptfmt-task", "*@cl*", "--promptfmt-task", "w[ij]c")
    result.assert_outcomes(passed=2, deselected=3)
    result.stdout.fnmatch_lines(["tasks/arc.yaml::arc@cloze::snapshot[[]plain[]] PASSED*", "*wic::snapshot* PASSED*"])
    result = suite.run(*plain[1:], "--snapshot-update", "--promptfmt-format", "mcqa", "--promptfmt-task", "arc*")
    assert result.parseoutcomes()["passed"] == 1
    assert result.ret == 0, "a format that does not fit a task which was not chosen is no failure"
    assert suite.snapshots() == before


@pytest.mark.parametrize("workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)], ids=["serial", "parallel"])
def test_a_glob_that_matches_no_task_is_reported(suite: Project, workers: tuple[str, ...]) -> None:
    result = suite.run("tasks", "-q", *workers, "--promptfmt-task", "arcs*", "--promptfmt-task", "wic", "-k", "nothing")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    lines = [line for line in result.outlines if line.startswith("--promptfmt-task")]
    assert lines == ["--promptfmt-task 'arcs*' matches none of the 5 tasks; did you mean 'arc'?"]
    assert "prompt formats" in result.stdout.str()


def test_a_format_that_no_task_has_is_reported_with_those_that_tasks_have(suite: Project) -> None:
    shown = suite.run("tasks/arc.yaml", "-q", "--promptfmt-format", "zzz").stdout.str()
    assert "--promptfmt-format 'zzz' matches none of the 2 tasks; formats of the tasks: mcqa, cloze\n" in shown


def test_pytests_own_selection_works(suite: Project) -> None:
    plain = ("--promptfmt", "--promptfmt-profile", "plain", ".")
    arc = {"arc@mcqa::snapshot[plain]", "arc@cloze::snapshot[plain]"}
    assert names(suite.collected(*plain, "-k", "arc and mcqa")) == {"arc@mcqa::snapshot[plain]"}
    assert names(suite.collected(*plain, "-m", "promptfmt_snapshot and not nothing")) == {
        *arc,
        "arc_old",
        "wic::snapshot[plain]",
        "zero::snapshot[plain]",
    }
    by_id = ("--promptfmt", "tasks/arc.yaml::arc@cloze", "tasks/wic.yaml::wic::snapshot[plain]", "tasks/zero.yaml")
    assert names(suite.collected(*by_id)) == {
        "arc@cloze::snapshot[plain]",
        "arc@cloze::snapshot[chat-chatml]",
        "wic::snapshot[plain]",
        "zero::snapshot[plain]",
        "zero::snapshot[chat-chatml]",
    }


def test_profiles_are_chosen_by_name_and_chat_means_all_of_them(suite: Project) -> None:
    ids = names(suite.collected("--promptfmt", "tasks/wic.yaml", "--promptfmt-profile", "chat"))
    assert {"wic::snapshot[chat-chatml]", "wic::snapshot[chat-gemma]", "wic::snapshot[chat-llama3]"} <= ids
    assert "wic::snapshot[plain]" not in ids
    result = suite.run("tasks", "--promptfmt-profile", "chat-lama3")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    message = result.stderr.str()
    assert "unknown profile 'chat-lama3'" in message
    assert "did you mean 'chat-llama3'?" in message


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("--promptfmt-selct", "did you mean '--promptfmt-select'?"),
        ("--promptfmt-profil=plain", "did you mean '--promptfmt-profile'?"),
        ("--promptfmt-zzz", "`pytest --help` lists the options"),
    ],
)
def test_a_misspelt_option_is_named_with_the_closest_one(suite: Project, given: str, hint: str) -> None:
    result = suite.run("tasks", given)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    message = f"ERROR: promptfmt: unknown option {given.partition('=')[0]}\n  hint: {hint}\n"
    assert result.stderr.str().strip() == message.strip()


def test_a_number_that_is_none_ends_the_run_with_one_sentence(suite: Project) -> None:
    result = suite.run("tasks", "--promptfmt-docs", "0")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--promptfmt-docs is '0'" in result.stderr.str()
    assert "a whole number, 1 or more" in result.stderr.str()


def test_shots_from_the_command_line_have_snapshots_of_their_own(suite: Project) -> None:
    plain = ("--promptfmt-profile", "plain", "tasks/wic.yaml", "tasks/zero.yaml")
    suite.accept(*plain)
    before = suite.snapshots()
    suite.accept(*plain, "--promptfmt-num-fewshot", "2")
    after = suite.snapshots()
    folder = "tasks/__prompts__"
    new = {f"{folder}/wic/wic/plain-2shot.txt", f"{folder}/zero/zero/plain-2shot.txt"}
    assert set(after) - set(before) == new
    assert {name: after[name] for name in before} == before
    assert b"shots: 2" in after[f"{folder}/wic/wic/plain-2shot.txt"]
    assert b"shots: 2" not in after[f"{folder}/zero/zero/plain-2shot.txt"], "lm-eval leaves a configured 0 alone"
    suite.edit("tasks/wic.yaml", "A:", "Answer:")
    result = suite.run(*plain, "--promptfmt-num-fewshot", "2")
    accept = "accept: pytest --promptfmt --promptfmt-profile plain --promptfmt-num-fewshot 2 "
    assert f"{accept}'tasks/wic.yaml::wic::snapshot[plain-2shot]' --snapshot-update" in result.outlines


def test_a_number_of_docs_shows_and_compares_only_these(suite: Project) -> None:
    docs = '{{"question": "Q{0}?", "answer": "{0}"}}\n'
    suite.write("tasks/wic.docs.jsonl", "".join(docs.format(number) for number in range(5)))
    plain = ("--promptfmt-profile", "plain", "tasks/wic.yaml")
    file = suite.root / "tasks/__prompts__/wic/wic/plain.txt"
    suite.accept(*plain)
    assert "end: 3 docs" in file.read_text("utf-8")
    suite.run(*plain, "--promptfmt-docs", "1").assert_outcomes(passed=1)
    suite.accept(*plain, "--promptfmt-docs", "5")
    assert "end: 5 docs" in file.read_text("utf-8")


def test_last_failed_stop_and_maxfail_see_our_items_as_any_others(suite: Project) -> None:
    suite.accept("--promptfmt-profile", "plain", ".")
    for file in Path(suite.root / "tasks").glob("*.yaml"):
        if "old" not in file.name:
            file.write_text(file.read_text("utf-8").replace("question", "quest"), "utf-8")
    arguments = ("--promptfmt-profile", "plain", ".")
    stopped = suite.run(*arguments, "-x")
    assert stopped.ret == pytest.ExitCode.TESTS_FAILED
    assert "stopping after 1 failures" in stopped.stdout.str()
    assert "stopping after 3 failures" in suite.run(*arguments, "--maxfail", "3").stdout.str()
    everything = suite.run(*arguments)
    assert "test_python.py ." in everything.stdout.str()
    assert everything.ret == pytest.ExitCode.TESTS_FAILED
    again = suite.run(*arguments, "--lf", "--collect-only", "-q")
    assert len([line for line in again.outlines if "::" in line]) == 4
