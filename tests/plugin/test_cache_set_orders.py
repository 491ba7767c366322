"""Outcomes of code that may show the order of a set are not cached: each process has another order."""

from __future__ import annotations

import pytest
from plugin_project import Project

from pytest_promptfmt.engine.processes import CAN_FORK

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CAN_FORK, reason="only outcomes of workers are cached")]


def _with_code(project: Project, name: str, expression: str) -> None:
    project.write(f"t/{name}/utils.py", f"def text(doc):\n    return doc['question'] + {expression}\n")
    task = project.task(f"t/{name}/{name}.yaml", doc_to_text=None)
    task.write_text(task.read_text("utf-8") + "doc_to_text: !function utils.text\n", "utf-8")


def test_code_that_may_show_the_order_of_a_set_is_run_each_time(cached_project: Project) -> None:
    project = cached_project
    project.write("pytest.ini", "[pytest]\npromptfmt_profiles = plain\npromptfmt_lint = false\n")
    _with_code(project, "joined", "' '.join({'one'})")
    _with_code(project, "hashed", "str(hash(1))")
    _with_code(project, "sorted", "' '.join(sorted({'one', 'two', 'three'}))")
    project.settle()
    project.accept("t")
    for _ in range(2):
        assert project.run("t").parseoutcomes() == {"passed": 2, "unchanged": 1}
    reason = "it runs each time because of code that may show the order of a set, which is another one in each process"
    project.run("t", "-vv").stdout.fnmatch_lines([f"t/joined/joined.yaml: runs: {reason}"])
