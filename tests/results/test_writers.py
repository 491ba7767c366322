"""Files that a run leaves: each is made by a writer of its result, also by one of another package."""

import json
import os

import pytest
from plugin_project import Project

from pytest_promptfmt.results.markdown import bounded

PACKAGE = """
def table(result):
    return "".join(f"{name} {count}\\n" for name, count in sorted(result.counts.items()))

def places(result):
    return "".join(f"{place.file}:{place.line} {group.code}\\n" for group in result.findings for place in group.places)

def broken(result):
    return result.no_such_thing
"""


@pytest.fixture
def package(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project beside which a package with writers is installed."""
    project.write("site/tables.py", PACKAGE)
    project.write("site/tables-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tables\nVersion: 1\n")
    entries = "[pytest_promptfmt.writers]\ntable = tables:table\nplaces = tables:places\nbroken = tables:broken\n"
    project.write("site/tables-1.dist-info/entry_points.txt", f"{entries}missing = tables:nothing\n")
    paths = [str(project.root / "site"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    project.task("tasks/arc.yaml", output_type="multiple_choice", doc_to_choice="c", doc_to_text="Q: {{question}}\nA: ")
    return project


@pytest.mark.parametrize("workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)])
def test_a_writer_of_another_package_is_given_the_result_of_the_run(package: Project, workers: tuple[str, ...]) -> None:
    options = ("--promptfmt-write=table=out/table.txt", "--promptfmt-write=places=out/places.txt")
    result = package.run("tasks", "-o", "promptfmt_lint=true", "--promptfmt-select=PF201", *options, *workers)
    result.stdout.fnmatch_lines(["out/table.txt written", "out/places.txt written"])
    assert (package.root / "out/table.txt").read_text() == "finding 1\nnew 2\n"
    assert (package.root / "out/places.txt").read_text() == f"{package.root / 'tasks/arc.yaml'}:5 PF201\n"


def test_a_writer_that_raises_is_one_line_and_the_other_files_are_written(package: Project) -> None:
    result = package.run("tasks", "--promptfmt-write=broken=out.txt", "--promptfmt-write=json=result.json")
    result.stdout.fnmatch_lines(
        ["out.txt cannot be written: writer 'broken' raised AttributeError: *", "result.json written"]
    )


def test_our_own_writers_go_by_the_names_of_their_options(project: Project) -> None:
    project.task("arc.yaml")
    project.run("--promptfmt-json=one.json", "--promptfmt-write=json=other.json", "--promptfmt-write=patch=a.patch")
    assert (project.root / "one.json").read_bytes() == (project.root / "other.json").read_bytes()
    assert (project.root / "a.patch").read_bytes().startswith(b"diff --git ")
    command = json.loads((project.root / "one.json").read_text("utf-8"))["command"]
    assert "--promptfmt-write" in command
    accept = next(line for line in project.run("--promptfmt-write=json=x.json").outlines if "accept all" in line)
    assert "--promptfmt-write" not in accept


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("jsn=x.json", "there is no output 'jsn'\n  hint: did you mean 'json'?"),
        (
            "teletype=x",
            "there is no output 'teletype'\n  hint: known: patch, pending, json, markdown, sarif, html, next-steps",
        ),
        ("json", "--promptfmt-write 'json' names no file\n  hint: write WRITER=FILE"),
        ("missing=x", "the writer 'missing' of tables:nothing cannot be imported"),
    ],
)
def test_a_writer_that_cannot_be_had_is_one_message(package: Project, given: str, told: str) -> None:
    result = package.run("--promptfmt-write", given)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert told in result.stderr.str()


def test_markdown_stays_within_its_limit_and_counts_what_was_left_out() -> None:
    text = bounded("## Prompts\n", [f"### block {number}\n{'x' * 500}\n" for number in range(9)], 2_000, "end\n")
    assert len(text.encode()) <= 2_000
    assert "6 more changes are left out: this report may have at most 2,000 bytes" in text
    assert text.endswith("end\n")
