"""How answers are read and scored, as one snapshot of each task shows it: what fails, what is soft, and where it is."""

import re
from pathlib import Path
from typing import Any

import pytest
from plugin_project import Project

PLAIN = "__prompts__/sums/sums/plain.txt"
CHAT = "__prompts__/sums/sums/chat-chatml.txt"
FILTERS = [
    {
        "name": "strict",
        "filter": [{"function": "regex", "regex_pattern": "#### (-?[0-9.,]+)"}, {"function": "take_first"}],
    }
]
METRICS = [{"metric": "exact_match", "ignore_case": True}]


@pytest.fixture
def project(pytester: pytest.Pytester) -> Project:
    project = Project(pytester)
    project.write("pytest.ini", "[pytest]\npromptfmt_profiles = plain chat-chatml\npromptfmt_lint = false\n")
    project.task("sums.yaml", filter_list=FILTERS, metric_list=METRICS)
    return project


def without_section(file: Path, *titles: str) -> bytes:
    """Return a snapshot as it was written before there was a section, or any: the digest is that of what is left."""
    from pytest_promptfmt.snapshots.document import Document, read_document, write_document

    document = read_document(file.read_text("utf-8"), file)
    kept = [section for section in document.task if titles and section.title not in titles]
    return write_document(Document(document.header, document.docs, tuple(kept))).encode()


def test_a_changed_pattern_fails_one_snapshot_with_one_changed_line(project: Project) -> None:
    project.accept("-m", "promptfmt_snapshot")
    written = (project.root / PLAIN).read_text("utf-8")
    assert (
        "\ntask\n  columns\n    doc_to_text: question\n    doc_to_target: answer\n  scoring\n"
        '    filter strict: regex(regex_pattern="#### (-?[0-9.,]+)") → take_first()\n'
        '    metric exact_match: aggregation="mean", higher_is_better=true, ignore_case=true\n'
        "    repeats: 1\n\ndoc 1\n" in written
    )
    assert "scoring" not in (project.root / CHAT).read_text("utf-8"), "one snapshot of each task shows it"
    project.edit("sums.yaml", "0-9.,]+", "0-9]+")
    (failure,) = project.failures("-m", "promptfmt_snapshot")
    assert "how answers are read and scored changed" in failure
    assert "@@ task, scoring, line 1 @@" in failure
    changed = [line for line in failure.splitlines() if re.match(r"[-+]  ", line)]
    assert changed == [
        '-  filter strict: regex(regex_pattern="#### (-?[0-9.,]+)") → take_first()',
        '+  filter strict: regex(regex_pattern="#### (-?[0-9]+)") → take_first()',
    ]
    assert re.search(r"cause: sums.yaml:\d+:\d+ filter_list", failure)


def test_a_snapshot_without_the_section_passes_everywhere_and_the_next_update_writes_it(project: Project) -> None:
    project.accept("-m", "promptfmt_snapshot")
    file = project.root / PLAIN
    file.write_bytes(old := without_section(file))
    result = project.run("-m", "promptfmt_snapshot", "--promptfmt-json", "result.json")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["2 snapshots passed.*"])
    result.stdout.no_fnmatch_line("*out of date*")
    assert project.run("-m", "promptfmt_snapshot", "--snapshot-update-new-only").ret == 0
    assert file.read_bytes() == old
    result = project.run("-m", "promptfmt_snapshot", "--snapshot-update")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*1 snapshot passed. 1 snapshot updated.*"])
    assert "\ntask\n  columns\n" in file.read_text("utf-8")


def test_a_misspelt_column_fails_though_synthetic_docs_have_it_and_a_section_may_be_missing(project: Project) -> None:
    choices: dict[str, Any] = {"output_type": "multiple_choice", "doc_to_choice": ["one", "two"]}
    project.task("sums.yaml", **choices, doc_to_target="label")
    project.accept("-m", "promptfmt_snapshot")
    file = project.root / PLAIN
    assert "\ntask\n  columns\n    doc_to_text: question\n    doc_to_target: label\n" in file.read_text("utf-8")
    project.edit("sums.yaml", '"label"', '"labell"')
    (failure,) = project.failures("-m", "promptfmt_snapshot")
    assert "sums [plain]: the columns that the task reads changed" in failure
    changed = [line for line in failure.splitlines() if re.match(r"[-+]  ", line)]
    assert changed == ["-  doc_to_target: label", "+  doc_to_target: labell"]
    assert re.search(r"cause: sums.yaml:\d+:\d+ doc_to_target", failure)
    file.write_bytes(without_section(file, "columns"))
    assert project.run("-m", "promptfmt_snapshot").ret == 0, "as before there was this section"
    project.accept("-m", "promptfmt_snapshot")
    assert "    doc_to_target: labell\n" in file.read_text("utf-8")


def test_a_diff_of_prompts_does_not_show_the_section_that_was_never_written(project: Project) -> None:
    project.accept("-m", "promptfmt_snapshot")
    file = project.root / PLAIN
    file.write_bytes(without_section(file))
    project.edit("sums.yaml", "Q: {{", "Question: {{")
    failures = project.failures("-m", "promptfmt_snapshot")
    assert failures
    assert not any("scoring" in failure for failure in failures)


def test_a_run_with_other_profiles_or_fewer_docs_keeps_the_section(project: Project) -> None:
    project.write("promptfmt.yaml", "profiles:\n  first: {extends: chat-chatml}\n  second: {extends: chat-llama2}\n")
    project.write("pytest.ini", "[pytest]\npromptfmt_lint = false\n")
    folder = project.root / "__prompts__/sums/sums"
    shown = ["-m", "promptfmt_snapshot"]
    project.accept(*shown, "--promptfmt-profile", "first")
    assert "scoring" not in (folder / "first.txt").read_text("utf-8"), "a choice on the command line decides nothing"
    project.accept(*shown)
    kept = project.snapshots()
    assert [Path(name).name for name, text in kept.items() if b"  scoring\n" in text] == ["plain.txt"]
    project.accept(*shown, "--promptfmt-docs", "1")
    assert project.snapshots() == kept
