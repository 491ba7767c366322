"""What a module loads from a hub while it is imported is loaded when it is used."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_promptfmt.core.errors import MissingResourceError
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.systems.task_files import read_task_file
from pytest_promptfmt.tasks.functions import bind_functions, bind_scoring

EVALUATE = """
loaded = []

class Metric:
    def compute(self, **given):
        return {"sum": sum(given["numbers"])}

def load(name):
    loaded.append(name)
    if name == "absent":
        raise ConnectionError("no network here")
    return Metric()
"""

TASK = """\
task: a
dataset_path: nowhere/docs
test_split: test
output_type: generate_until
doc_to_text: !function utils.text
doc_to_target: answer
process_results: !function utils.score
"""

UTILS = """
import evaluate

metric = evaluate.load("{name}")
tried = metric.compute(numbers=[1, 2])["sum"]

def text(doc):
    return f"Q: {{doc['question']}}"

def score(doc, results):
    return {{"acc": helper(results)}}

def helper(results):
    return metric.compute(numbers=[len(results), tried])["sum"]
"""


def task_that_loads(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> Task:
    """Return a task whose module loads a metric of this name from a package called evaluate."""
    (folder / "packages" / "evaluate").mkdir(parents=True)
    (folder / "packages" / "evaluate" / "__init__.py").write_text(EVALUATE, "utf-8")
    monkeypatch.syspath_prepend(str(folder / "packages"))
    for module in [each for each in sys.modules if each.partition(".")[0] == "evaluate"]:
        monkeypatch.delitem(sys.modules, module)
    (folder / "utils.py").write_text(UTILS.format(name=name), "utf-8")
    (folder / "a.yaml").write_text(TASK, "utf-8")
    file = read_task_file(folder / "a.yaml")
    assert file is not None
    return file.tasks[0]


def test_a_task_is_rendered_whose_module_loads_what_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = bind_functions(task_that_loads(tmp_path, monkeypatch, "absent"), trusted=lambda _path: True)
    assert callable(task.doc_to_text)
    assert sys.modules["evaluate"].loaded == []
    with pytest.raises(MissingResourceError, match=r"process_results: .*evaluate.load\('absent'\).*no network here"):
        bind_scoring(task, trusted=lambda _path: True)


def test_what_can_be_had_is_loaded_once_and_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_that_loads(tmp_path, monkeypatch, "present")
    score = bind_scoring(task, trusted=lambda _path: True).process_results
    assert callable(score)
    assert score({}, ["x"]) == {"acc": 4}
    assert score({}, ["x", "y"]) == {"acc": 5}
    assert sys.modules["evaluate"].loaded == ["present"]


def test_what_code_loads_only_when_it_runs_is_unavailable_for_the_first_task_as_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = 'from evaluate import load\nmetric = None\ndef text(doc):\n    return "Q:"\n\ndef score(doc, results):\n'
    late += '    global metric\n    if metric is None:\n        metric = load("absent")\n    return metric.compute()\n'
    task = task_that_loads(tmp_path, monkeypatch, "absent")
    (tmp_path / "utils.py").write_text(late, "utf-8")
    score = bind_scoring(task, trusted=lambda _path: True).process_results
    assert callable(score)
    with pytest.raises(MissingResourceError, match="no network here"):
        score({}, ["x"])
    with pytest.raises(MissingResourceError, match="no network here"):
        bind_scoring(task, trusted=lambda _path: True)
