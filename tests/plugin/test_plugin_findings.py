"""What a run says of its findings: one entry for a cause, and every place of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from plugin_project import Project

LINT = ("-q", "-o", "promptfmt_lint=true", "-m", "promptfmt_lint", "--promptfmt-profile=plain")


def glued(project: Project, path: str) -> None:
    """Write a task whose description runs into the question."""
    docs = [{"question": "Which metal rusts?", "answer": "iron"}]
    project.task(path, description="Name a metal.", metadata={"promptfmt": {"docs": docs}})


def written(project: Project, name: str = "result.json") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((project.root / name).read_text("utf-8"))
    return found


def test_the_same_mistake_in_several_folders_is_one_entry_that_names_every_place(project: Project) -> None:
    files = [f"{folder}/t{number}.yaml" for folder in ("ape", "bee", "cat") for number in (1, 2)]
    for number, file in enumerate(files):
        glued(project, file)
        project.edit(file, f'task: "{Path(file).stem}"', f"task: glued_{number}")
    result = project.run(*LINT, "--promptfmt-select=PF203", "--promptfmt-json=result.json")
    result.stdout.fnmatch_lines(["ape/t1.yaml:7:1: error: PF203 *", "  in 6 tasks; also at ape/t2.yaml:7:1, *"])
    shown = result.stdout.str().partition("prompt findings")[2].partition("short test summary")[0]
    assert all(f"{file}:7:1" in shown for file in files[:5])
    assert shown.count("no space or newline") == 1
    [group] = written(project)["findings"]
    assert {place["file"]: (place["line"], place["keys"], place["tasks"]) for place in group["places"]} == {
        file: (7, "description", [f"glued_{number}"]) for number, file in enumerate(files)
    }
    assert (group["count"], len(group["tasks"])) == (6, 6)


def test_many_files_are_counted_and_all_of_them_are_named_when_asked(project: Project) -> None:
    files = [f"{folder}/{folder}{number}.yaml" for folder in ("ape", "bee", "cat") for number in range(1, 5)]
    for file in files:
        glued(project, file)
    short = project.run(*LINT, "--promptfmt-select=PF203").stdout.str()
    assert "and 7 more\n" in short.partition("in 12 tasks; also at ")[2]
    long = project.run("-v", *LINT[1:], "--promptfmt-select=PF203").stdout.str()
    assert all(f"{file}:7:1" in long.partition("prompt findings")[2] for file in files)


@pytest.mark.parametrize(
    ("options", "is_above"), [((), True), (("-n2",), True), (("--tb=no",), False), (("--no-summary",), False)]
)
def test_the_excerpt_and_the_fix_of_an_error_are_printed_once(
    project: Project, options: tuple[str, ...], is_above: bool
) -> None:
    for name in ("ape", "bee"):
        glued(project, f"{name}.yaml")
    shown = project.run(*LINT, "--promptfmt-select=PF203", *options).stdout.str()
    failures, found, findings = shown.partition("prompt findings")
    if not found:
        assert pytest.version_tuple < (9,), "pytest 8 prints neither with --no-summary"
        assert options == ("--no-summary",)
        return
    for line in ("  saw: Name a metal.", "  do: end the description with"):
        assert (failures.count(line), findings.count(line)) == ((1, 0) if is_above else (0, 1))
    assert "ape.yaml:7:1: error: PF203 " in findings
    assert "  in 2 tasks; also at bee.yaml:7:1" in findings


def test_one_shared_file_is_one_place_with_all_its_tasks(project: Project) -> None:
    shared = {"description": "Name a metal.", "doc_to_text": "Q: {{question}}\nA:", "doc_to_target": "answer"}
    project.write("tasks/_shared_yaml", "\n".join(f"{key}: {json.dumps(value)}" for key, value in shared.items()))
    for name in ("iron", "gold"):
        docs = json.dumps({"promptfmt": {"docs": [{"question": "Which metal?", "answer": name}]}})
        project.write(
            f"tasks/{name}.yaml", f"include: _shared_yaml\ntask: {name}\ntest_split: test\nmetadata: {docs}\n"
        )
    project.run(*LINT, "tasks", "--promptfmt-select=PF203", "--promptfmt-json=result.json")
    [group] = written(project)["findings"]
    assert [(place["file"], place["count"], place["tasks"]) for place in group["places"]] == [
        ("tasks/_shared_yaml", 2, ["gold", "iron"])
    ]


def test_findings_about_a_profile_can_be_accepted_and_are_called_fixed(project: Project) -> None:
    project.write(
        "promptfmt.yaml", "profiles: {mixed: {tokenizer: 'archetype:bytelevel-gpt2', chat_template: chatml}}\n"
    )
    project.task("arc.yaml")
    options = (*LINT[:-1], "--promptfmt-profile=mixed", "--promptfmt-select=PF413", "--promptfmt-baseline=b.jsonl")
    assert project.run(*options, "--promptfmt-baseline-update=write").ret == pytest.ExitCode.OK
    assert project.run(*options).ret == pytest.ExitCode.OK
    project.write("promptfmt.yaml", "profiles: {mixed: {tokenizer: 'archetype:bytelevel-gpt2'}}\n")
    project.run(*options).stdout.fnmatch_lines(
        ["b.jsonl: 1 entry no longer occurs; --promptfmt-baseline-update prune removes *"]
    )
