"""`promptfmt why` and `cache`: the reasons for which outcomes hold or not, without a test that runs."""

from __future__ import annotations

import pytest
from plugin_project import Project
from promptfmt_command import promptfmt

from pytest_promptfmt.engine.processes import CAN_FORK

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CAN_FORK, reason="only outcomes of workers are cached")]

CLOCK = "import time\n\n\ndef text(doc):\n    return doc['question'] + str(time.time() > 0)\n"


@pytest.fixture
def tree(cached_project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    project = cached_project
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")  # a plugin in the rootdir would be an input
    project.write("pytest.ini", "[pytest]\npromptfmt_profiles = plain\npromptfmt_lint = false\n")
    project.write("t/_base.yaml", "target_delimiter: ' '\n")
    project.task("t/arc.yaml")
    project.task("t/boolq.yaml", include="_base.yaml")
    project.write("t/code/utils.py", CLOCK)
    file = project.task("t/code/cola.yaml", doc_to_text=None)
    file.write_text(file.read_text("utf-8") + "doc_to_text: !function utils.text\n", "utf-8")
    project.settle()
    project.accept("t")
    return project


def test_each_file_has_its_reason(tree: Project) -> None:
    same = [
        "t/code/cola.yaml: will be tested: its results are never cached, because of time",
        "t/arc.yaml: cached: nothing that the file uses has changed",
        "t/boolq.yaml: cached: nothing that the file uses has changed",
    ]
    assert sorted(promptfmt(tree.root, "why", "t").stdout.splitlines()) == sorted(same)
    tree.edit("t/_base.yaml", "' '", "'  '")
    for _ in range(2):  # nothing is written
        assert (
            promptfmt(tree.root, "why", "t/boolq.yaml").stdout == "t/boolq.yaml: will be tested: t/_base.yaml changed\n"
        )


def test_a_new_file_is_named_by_its_folder(tree: Project) -> None:
    tree.write("t/notes.txt", "")
    assert "t/boolq.yaml: will be tested: the list of files in t changed\n" in promptfmt(tree.root, "why", "t").stdout


def test_the_cache_is_counted_and_cleared(tree: Project) -> None:
    tree.edit("t/_base.yaml", "' '", "'  '")
    where, shown, *misses = promptfmt(tree.root, "cache", "t").stdout.splitlines()
    assert where.startswith(f"{tree.store}: ")
    assert shown == "1 of 3 files are unchanged: the next run uses their cached results"
    assert {*misses} == {
        "1 file will be tested: its results are never cached, because of time",
        "1 file will be tested: t/_base.yaml changed",
    }
    promptfmt(tree.root, "cache", "--clear")
    assert not tree.store.exists()
    assert "3 files will be tested: no results are cached" in promptfmt(tree.root, "cache", "t").stdout


def test_runs_of_other_paths_share_outcomes(tree: Project) -> None:
    assert tree.run("t").parseoutcomes() == {"passed": 1, "unchanged": 2}
    assert tree.run().parseoutcomes() == {"passed": 1, "unchanged": 2}
    if pytest.version_tuple >= (9,):  # of a folder and one below it, pytest 8 collects only one
        assert tree.run("t/code", "t").parseoutcomes() == {"passed": 1, "unchanged": 2}
