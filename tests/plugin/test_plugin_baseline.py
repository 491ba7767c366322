"""A baseline accepts what was there before: only new findings fail, and fixed ones are told."""

import json
from pathlib import Path

import pytest
from plugin_project import Project

pytestmark = pytest.mark.slow

FRIENDLY = """\
{% if messages[0].role != 'system' %}<|im_start|>system
You are a patient and friendly helper.<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}"""
OPTIONS = ("--promptfmt-baseline", "baseline.jsonl", "-o", "promptfmt_lint=true")


@pytest.fixture
def old(project: Project, kept: Path) -> Project:
    """A project with mistakes of many years: two tasks with a double blank, one that cannot be read."""
    project.make_once(kept / "old", lambda: write_mistakes(project))
    return project


def write_mistakes(project: Project) -> None:
    project.task("tasks/arc.yaml", doc_to_text="Q: {{question}}\nA: ", output_type="multiple_choice", doc_to_choice="c")
    project.task("tasks/wic.yaml", doc_to_text="Q: {{question}}\nA: ", output_type="multiple_choice", doc_to_choice="c")
    project.task("tasks/bad.yaml", doc_to_txt="x")
    project.accept()


def entries(project: Project) -> list[dict[str, str]]:
    lines = (project.root / "baseline.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines[1:]]


def write(project: Project) -> None:
    assert project.run(*OPTIONS, "--promptfmt-baseline-update", "write").ret == pytest.ExitCode.OK


def test_what_was_there_before_passes_and_what_is_new_fails(old: Project) -> None:
    assert old.run(*OPTIONS[2:]).ret == pytest.ExitCode.TESTS_FAILED
    write(old)
    assert {(entry["file"], entry["code"]) for entry in entries(old)} >= {
        ("tasks/arc.yaml", "PF201"),
        ("tasks/wic.yaml", "PF201"),
        ("tasks/bad.yaml", "error"),
    }
    result = old.run(*OPTIONS, "-rx", "--xfail-tb")
    assert result.ret == pytest.ExitCode.OK
    outcomes = result.parseoutcomes()
    assert (outcomes["xfailed"], "failed" in outcomes) == (1, False)
    assert "base.py" not in result.stdout.str(), "what is accepted is told by its message"
    assert "accepted by baseline.jsonl" in result.stdout.str()
    old.task("tasks/new.yaml", doc_to_text="Q: {{question}}\nA: ", output_type="multiple_choice", doc_to_choice="c")
    old.accept()
    result = old.run(*OPTIONS, "-n", "2")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert (result.parseoutcomes()["xfailed"], result.parseoutcomes()["failed"]) == (1, 1)
    assert "tasks/new.yaml:" in result.stdout.str()


def test_a_moved_file_takes_its_entries_along(old: Project) -> None:
    write(old)
    before = entries(old)
    (old.root / "tasks/deep").mkdir()
    (old.root / "tasks/arc.yaml").rename(old.root / "tasks/deep/questions.yaml")
    (old.root / "tasks/bad.yaml").rename(old.root / "tasks/deep/bad.yaml")
    result = old.run(*OPTIONS, "-m", "promptfmt_lint or not promptfmt_lint", "-k", "lint or load", "tasks")
    assert (result.parseoutcomes().get("failed"), result.parseoutcomes()["xfailed"]) == (None, 1)
    assert "no longer occur" not in result.stdout.str()
    old.run(*OPTIONS, "--promptfmt-baseline-update", "prune", "tasks")
    assert {entry["file"] for entry in entries(old)} == {
        entry["file"].replace("tasks/arc", "tasks/deep/questions").replace("tasks/bad", "tasks/deep/bad")
        for entry in before
    }


def test_unrelated_edits_do_not_bring_findings_back(old: Project) -> None:
    write(old)
    text = (old.root / "tasks/arc.yaml").read_text("utf-8")
    old.write("tasks/arc.yaml", "# moved down\n\n" + text.replace("Q: ", "Please tell: "))
    old.write("tasks/bad.yaml", "# moved down\n" + (old.root / "tasks/bad.yaml").read_text("utf-8"))
    result = old.run(
        *OPTIONS, "-m", "promptfmt_lint or not promptfmt_lint", "tasks/arc.yaml::arc::lint", "tasks/bad.yaml"
    )
    result.assert_outcomes(passed=1, xfailed=1)


HOUSE = """
from pytest_promptfmt.rules import Family, Finding, Severity, rule

@rule("HOUSE001", "asks", severity=Severity.ERROR, family=Family.PROMPT)
def asks(study):
    for saw in ("Q:", "A:"):
        yield Finding(message="the prompt WORD", saw=saw, keys=("doc_to_text",))
"""


def test_another_wording_of_a_rule_brings_no_findings_back(old: Project) -> None:
    own = (*OPTIONS, "-o", "promptfmt_rules=house.py")
    update = (*own, "--promptfmt-baseline-update")
    old.write("house.py", HOUSE.replace("WORD", "asks"))
    assert old.run(*update, "write").ret == pytest.ExitCode.OK
    written = entries(old)
    old.write("house.py", HOUSE.replace("WORD", "shows a question"))
    result = old.run(*own)
    assert result.ret == pytest.ExitCode.OK
    assert "no longer occur" not in result.stdout.str()
    old.run(*update, "prune")
    assert entries(old) == [
        entry | {"message": entry["message"].replace("prompt asks", "prompt shows a question")} for entry in written
    ]
    old.write("house.py", HOUSE.replace("WORD", "asks").replace('"Q:", ', '"Q:", "why", '))
    assert old.run(*own).parseoutcomes()["failed"] == 2, "what is new fails"


def test_keys_of_an_earlier_release_are_known_by_the_message_and_replaced(old: Project) -> None:
    write(old)
    now = entries(old)
    file = old.root / "baseline.jsonl"
    rows = [entry | ({"key": f"{number:016}"} if entry["code"] != "error" else {}) for number, entry in enumerate(now)]
    file.write_text("\n".join([file.read_text("utf-8").splitlines()[0], *map(json.dumps, rows)]) + "\n", "utf-8")
    result = old.run(*OPTIONS)
    assert result.ret == pytest.ExitCode.OK
    assert "no longer occur" not in result.stdout.str()
    old.run(*OPTIONS, "--promptfmt-baseline-update", "prune")
    assert entries(old) == now


def test_fixed_findings_are_told_and_prune_takes_out_only_those(old: Project) -> None:
    write(old)
    before = entries(old)
    fixed = [("tasks/bad.yaml", "error"), ("tasks/arc.yaml", "PF201")]  # what matters most comes first
    old.edit("tasks/arc.yaml", 'A: "', 'A:"')
    (old.root / "tasks/bad.yaml").unlink()
    old.accept()
    partial = old.run(*OPTIONS, "tasks/wic.yaml")
    assert "tasks/arc.yaml: PF201" not in partial.stdout.str(), "what was not looked at is not called fixed"
    result = old.run(*OPTIONS, "-n", "2")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*no longer occur*", "*tasks/bad.yaml: error *", "*tasks/arc.yaml: PF201 *"])
    assert entries(old) == before
    old.run(*OPTIONS, "--promptfmt-baseline-update", "prune")
    taken_out = [entry for entry in before if entry not in entries(old)]
    assert [(entry["file"], entry["code"]) for entry in taken_out] == fixed
    assert "no longer occur" not in old.run(*OPTIONS).stdout.str()


def test_a_rule_or_profile_that_was_not_chosen_is_not_called_fixed(old: Project) -> None:
    old.write("mine.txt", FRIENDLY)
    old.write("promptfmt.yaml", "profiles: {mine: {chat_template: mine.txt}}\n")
    mine = (*OPTIONS, "--promptfmt-profile=mine")
    old.run(*mine, "--promptfmt-baseline-update", "write")
    assert {"PF201", "PF401"} <= {entry["code"] for entry in entries(old)}
    for other in ((*mine, "--promptfmt-select", "PF1"), (*OPTIONS, "--promptfmt-profile=plain")):
        said = old.run(*other).stdout.str()
        assert "PF401" not in said
        assert "no longer occur" not in said


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "no such baseline"),
        ("[]\n", "baseline.jsonl:1: a baseline begins with the line"),
        ('{"pytest-promptfmt baseline": 1}\n{"file": 1}\n', "baseline.jsonl:2: an entry must have the keys"),
        ('{"pytest-promptfmt baseline": 1}\nx\n', "baseline.jsonl:2: this line is not JSON"),
    ],
)
def test_a_baseline_that_cannot_be_read_is_one_message(project: Project, content: str | None, told: str) -> None:
    project.task("tasks/arc.yaml")
    if content is not None:
        project.write("baseline.jsonl", content)
    result = project.run(*OPTIONS)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert told in result.stderr.str()


def test_an_update_without_a_baseline_is_refused(project: Project) -> None:
    result = project.run("--promptfmt-baseline-update", "prune")
    assert "needs a baseline file" in result.stderr.str()
    assert not Path(project.root / "baseline.jsonl").exists()
