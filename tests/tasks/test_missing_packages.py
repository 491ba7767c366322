"""A module whose package is not installed is imported without it, and only what uses the package fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_promptfmt.core.errors import FunctionError, MetricUnavailableError
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.systems.task_files import read_task_file
from pytest_promptfmt.tasks.functions import bind_functions, bind_scoring

TASK = """\
task: a
dataset_path: nowhere/docs
test_split: test
output_type: generate_until
doc_to_text: !function utils.text
doc_to_target: answer
process_results: !function utils.score
"""

SCORES = """
def text(doc):
    return f"Q: {doc['question']}"

def score(doc, results):
    return {"acc": verify(results)}
"""

GUARDED = """
from importlib.metadata import version
try:
    import a_package_of_nobody.parts
    from another_package_of_nobody import verify
    assert version("nobodys-runtime").startswith("4.11")
except (ModuleNotFoundError, AssertionError) as e:
    raise type(e)("please install the packages for mathematics") from e
"""


def task_with(folder: Path, utils: str) -> Task:
    """Return a task whose module is this."""
    (folder / "utils.py").write_text(utils, "utf-8")
    (folder / "a.yaml").write_text(TASK, "utf-8")
    file = read_task_file(folder / "a.yaml")
    assert file is not None
    return file.tasks[0]


def bound(task: Task) -> Task:
    return bind_functions(task, trusted=lambda _path: True)


@pytest.mark.parametrize("imports", [GUARDED, "from another_package_of_nobody import verify\n"])
def test_a_task_is_rendered_whose_scoring_needs_what_is_not_installed(tmp_path: Path, imports: str) -> None:
    task = bound(task_with(tmp_path, imports + SCORES))
    assert task.doc_to_text({"question": "Why?"}) == "Q: Why?"
    assert not any("of_nobody" in name for name in sys.modules)
    with pytest.raises(MetricUnavailableError, match="another_package_of_nobody"):
        bind_scoring(task, trusted=lambda _path: True)


def test_what_falls_back_without_a_package_falls_back(tmp_path: Path) -> None:
    guarded = "try:\n    import a_package_of_nobody as p\nexcept ImportError:\n    p = None\n"
    utils = f"{guarded}import another_package_of_nobody\ndef text(doc):\n    return str(p)\nscore = text\n"
    assert bound(task_with(tmp_path, utils)).doc_to_text({}) == "None"


@pytest.mark.parametrize(
    "imports",
    [
        "import nmupy\n",  # no package, but a slip
        "import json.nothing_of_that_name\n",  # the package is there
        "from a_package_of_nobody import Base\nclass Mine(Base):\n    pass\n",  # needed for the import itself
        "import beside\n",  # it is there, but not on the path
    ],
)
def test_what_the_import_needs_stays_an_error(tmp_path: Path, imports: str) -> None:
    (tmp_path / "beside.py").write_text("", "utf-8")
    with pytest.raises(FunctionError, match="no module named"):
        bound(task_with(tmp_path, imports + SCORES))


def test_a_prompt_that_needs_what_is_not_installed_says_so(tmp_path: Path) -> None:
    utils = "from a_package_of_nobody import title\ndef text(doc):\n    return title(doc)\nscore = text\n"
    with pytest.raises(FunctionError, match="No module named 'a_package_of_nobody'"):
        bound(task_with(tmp_path, utils))
