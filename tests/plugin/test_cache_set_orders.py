"""Prompts that depend on the order of a set are found before they are cached, and reported once in each run."""

from __future__ import annotations

import pytest
from plugin_project import Project

from pytest_promptfmt.engine.processes import CAN_FORK

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CAN_FORK, reason="only outcomes of workers are cached")]

WARNING = "the prompts of this file and 1 more depend on the order of a set; sort the set"


def _with_code(project: Project, name: str, expression: str) -> None:
    project.write(f"t/{name}/utils.py", f"def text(doc):\n    return doc['question'] + {expression}\n")
    task = project.task(f"t/{name}/{name}.yaml", doc_to_text=None)
    task.write_text(task.read_text("utf-8") + "doc_to_text: !function utils.text\n", "utf-8")


def test_a_prompt_that_depends_on_the_order_of_a_set_is_run_each_time(cached_project: Project) -> None:
    project = cached_project
    project.write("pytest.ini", "[pytest]\npromptfmt_profiles = plain\npromptfmt_lint = false\n")
    _with_code(project, "joined", "' '.join(set('one two three four five six'.split()))")
    _with_code(project, "hashed", "str(hash('one'))")
    _with_code(project, "single", "' '.join({'one'})")
    _with_code(project, "sorted", "' '.join(sorted({'one', 'two', 'three'}))")
    project.settle()
    project.accept("t")
    for _ in range(2):
        result = project.run("t")
        assert result.parseoutcomes() == {"passed": 2, "unchanged": 2, "warnings": 1}
        assert result.stdout.str().count(WARNING) == 1
    project.write("t/joined/utils.py", "def text(doc):\n    return ' '.join(sorted({'one', 'two'}))\n")
    project.write("t/hashed/utils.py", "def text(doc):\n    return 'one'\n")
    project.settle()
    project.accept("t")
    assert project.run("t").parseoutcomes() == {"unchanged": 4}


def test_a_run_without_code_starts_no_run_that_has_code(cached_project: Project) -> None:
    project = cached_project
    project.write("pytest.ini", "[pytest]\npromptfmt_profiles = plain\npromptfmt_lint = false\n")
    _with_code(project, "joined", "' '.join(set('one two three four five six'.split()))")
    project.write("conftest.py", "import pathlib\npathlib.Path(__file__).with_name('ran').write_text('')\n")
    project.settle()
    project.run("t", "--promptfmt-no-code", "--noconftest")
    assert not (project.root / "ran").exists()
