"""Which settings hold for which tasks of a run."""

from __future__ import annotations

from plugin_project import Project


def nodes(project: Project, *args: str) -> list[str]:
    collected = project.collected("--promptfmt", *args)
    return [node.removeprefix("tasks/") for node in collected if "::lint" not in node]


def test_nearest_file_wins_over_those_above_and_files_over_the_ini(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\npromptfmt_profiles = chat\npromptfmt_lint = false\npromptfmt_docs = 9\n")
    project.write("promptfmt.yaml", "profiles:\n  mine: {extends: chat-gemma}\ndocs: 1\npaths: [tasks]\n")
    project.write("tasks/deep/promptfmt.yaml", "profiles:\n  deep: {extends: mine}\ndefault_profiles: [deep]\n")
    project.task("tasks/a.yaml")
    project.task("tasks/deep/deeper/b.yaml")
    project.task("tasks/deep/deeper/c.yaml", metadata={"promptfmt": {"profiles": {"only": "no*", "add": ["mine"]}}})
    project.write("tasks/broken/promptfmt.yaml", "docs: none\n")
    project.task("tasks/broken/d.yaml")
    expected = [
        "a.yaml::a::snapshot[plain]",
        "a.yaml::a::snapshot[mine]",
        "broken/d.yaml::load",
        "deep/deeper/b.yaml::b::snapshot[deep]",
        "deep/deeper/c.yaml::c::load",
    ]
    assert nodes(project) == expected
    result = project.run("-q")
    result.stdout.fnmatch_lines(["*broken/promptfmt.yaml:1:1: docs is 'none', expected a whole number, 1 or more*"])
    result.stdout.fnmatch_lines(["*c.yaml:*only: no profile is called 'no*'"])
    project.edit("tasks/deep/deeper/c.yaml", '"no*"', '"de*"')
    assert nodes(project, "tasks/deep/deeper/c.yaml") == [
        "deep/deeper/c.yaml::c::snapshot[deep]",
        "deep/deeper/c.yaml::c::snapshot[mine]",
    ]
    chosen = nodes(project, "tasks/deep/deeper", "--promptfmt-profile", "mine:depth=2,brief=true")
    assert chosen == [f"deep/deeper/{name}.yaml::{name}::snapshot[mine,brief=true,depth=2]" for name in "bc"]


def test_snapshots_of_profiles_that_a_file_or_the_command_line_made_are_not_obsolete(project: Project) -> None:
    project.write("tasks/promptfmt.yaml", "profiles:\n  mine: {extends: chat-gemma}\ndefault_profiles: [plain]\n")
    project.task("tasks/a.yaml")
    project.accept("tasks")
    project.accept("tasks", "--promptfmt-profile", "mine:x=1")
    project.accept("tasks", "--promptfmt-chat-template", "llama3")
    before = project.snapshots()
    assert [name.rpartition("/")[2] for name in sorted(before)] == ["mine,x=1.txt", "plain.txt", "template=llama3.txt"]
    project.accept("tasks")
    assert project.snapshots() == before
    project.write("tasks/promptfmt.yaml", "default_profiles: [plain]\n")
    project.accept("tasks")
    assert set(before) - set(project.snapshots()) == {"tasks/__prompts__/a/a/mine,x=1.txt"}


def test_file_in_the_rootdir_that_makes_no_sense_stops_the_run_with_its_line(project: Project) -> None:
    project.task("a.yaml")
    for text, says in (
        ("default_profiles: [plian]\n", "promptfmt.yaml:1:1: unknown profile 'plian'"),
        ("lint: true\nselect: [XX1]\n", "promptfmt.yaml:2:1: *unknown rule code or prefix 'XX1'"),
    ):
        project.write("promptfmt.yaml", text)
        result = project.run()
        assert result.ret == 4
        result.stderr.fnmatch_lines([f"*ERROR: promptfmt: *{says}*"])
