"""A module whose package is not installed is imported without it, and only what uses the package fails."""

from __future__ import annotations

import json
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from plugin_project import Project

from pytest_promptfmt.core.errors import FunctionError, MissingResourceError, Position
from pytest_promptfmt.core.task import FunctionRef, Task
from pytest_promptfmt.systems.task_files import read_task_file
from pytest_promptfmt.tasks.functions import CodeImporter, bind_functions, bind_scoring
from pytest_promptfmt.tasks.import_failures import missing_package, missing_resource
from pytest_promptfmt.tasks.rendering.field_mappings import call_function

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


NAMED = GUARDED.replace(
    'type(e)("please install the packages for mathematics") from e',
    'Exception("needs a_package_of_nobody, another_package_of_nobody and nobodys-runtime")',
)


@pytest.mark.parametrize("imports", [GUARDED, NAMED, "from another_package_of_nobody import verify\n"])
def test_a_task_is_rendered_whose_scoring_needs_what_is_not_installed(tmp_path: Path, imports: str) -> None:
    task = bound(task_with(tmp_path, imports + SCORES))
    assert task.doc_to_text({"question": "Why?"}) == "Q: Why?"
    assert not any("of_nobody" in name for name in sys.modules)
    with pytest.raises(MissingResourceError, match="another_package_of_nobody") as caught:
        bind_scoring(task, trusted=lambda _path: True)
    assert caught.value.reason == "the package 'another_package_of_nobody' is not installed"


@pytest.mark.parametrize(
    ("message", "missing"),
    [("the shape of the table is wrong", ""), ("run.sh is wrong", ""), ("install sh: pip install sh", "sh")],
)
def test_an_error_names_a_package_only_as_a_word(message: str, missing: str) -> None:
    error = ValueError(message)
    error.__cause__ = ModuleNotFoundError("No module named 'sh'", name="sh")
    assert missing_package(error) == missing


@pytest.mark.parametrize(
    "imports",
    ["import importlib.util as u", "from importlib import util as u", "import importlib.util\nu = importlib.util"],
)
def test_a_file_that_code_loads_by_its_path_is_loaded_without_what_is_missing(tmp_path: Path, imports: str) -> None:
    (tmp_path / "judge.py").write_text("import a_package_of_nobody\ndef verify(results):\n    return 1\n", "utf-8")
    loads = f"spec = u.spec_from_file_location('judge', {str(tmp_path / 'judge.py')!r})\n"
    loads += "judge = u.module_from_spec(spec)\nspec.loader.exec_module(judge)\nverify = judge.verify\n"
    task = bound(task_with(tmp_path, f"{imports}\n{loads}{SCORES}"))
    assert task.doc_to_text({"question": "Why?"}) == "Q: Why?"


@pytest.mark.parametrize("name", ["Mine", "Registered"])
def test_a_class_that_needs_what_is_not_installed_names_the_package(tmp_path: Path, name: str) -> None:
    utils = "from a_package_of_nobody import Base, register\nclass Mine(Base):\n    pass\n"
    (tmp_path / "utils.py").write_text(f"{utils}@register('mine')\nclass Registered(Mine):\n    pass\n", "utf-8")
    ref = FunctionRef("utils", name, tmp_path, Position(tmp_path / "a.yaml"))
    with pytest.raises(MissingResourceError, match="a_package_of_nobody"):
        CodeImporter(lambda _path: True).find(ref, "class", None)


@pytest.mark.parametrize(
    "guarded",
    [
        "try:\n    import a_package_of_nobody as p\nexcept ImportError:\n    p = None\n",
        "from importlib import metadata\ntry:\n    p = metadata.version('of-nobody')\n"
        "except metadata.PackageNotFoundError:\n    p = None\n",
        "from contextlib import suppress\np = None\nwith suppress(Exception):\n    import a_package_of_nobody as p\n",
        "try:\n    import a_package_of_nobody as p\nexcept ImportError:\n    try:\n        import also_of_nobody as p\n"
        "    except ImportError:\n        p = None\n",
    ],
)
def test_what_falls_back_without_a_package_falls_back(tmp_path: Path, guarded: str) -> None:
    utils = f"{guarded}import another_package_of_nobody\ndef text(doc):\n    return str(p)\nscore = text\n"
    assert bound(task_with(tmp_path, utils)).doc_to_text({}) == "None"


@pytest.mark.parametrize(
    "imports",
    [
        "import nmupy\n",  # no package, but a slip
        "import json.nothing_of_that_name\n",  # the package is there
        "import beside\n",  # it is there, but not on the path
        "from json import nothing_of_that_name\n",
        "from datasets import load_datset\n",
        "import urlib\n",  # no package, but a slip
        "from tasks.helpers import verify\n",  # of the repository, and not on the path
    ],
)
def test_a_mistaken_import_stays_an_error(tmp_path: Path, imports: str) -> None:
    folder = tmp_path / "tasks/sums"
    folder.mkdir(parents=True)
    (folder / "beside.py").write_text("", "utf-8")
    with pytest.raises(FunctionError, match="the module cannot be imported") as caught:
        bound(task_with(folder, imports + SCORES))
    assert not isinstance(caught.value, MissingResourceError)


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("from datasets import load_metric", "pip install 'datasets<3'"),
        ("import transformers.data.metrics.squad_metrics", "pip install 'transformers<5'"),
        ("from transformers.data.metrics import squad_metrics", "pip install 'transformers<5'"),
        ("from jinja2 import a_filter_of_long_ago", ""),
    ],
)
def test_a_part_that_the_installed_release_lacks_is_missing(tmp_path: Path, line: str, remedy: str) -> None:
    if "transformers" in line:
        pytest.importorskip("transformers", "5")
    with pytest.raises(MissingResourceError) as raised:
        bound(task_with(tmp_path, f"{line}\n{SCORES}"))
    assert "the installed release of" in raised.value.reason
    assert raised.value.remedy == remedy


@pytest.mark.parametrize(
    "imports",
    [
        "from a_package_of_nobody import Base, Other\nclass Mine(Base):\n    pass\n",
        "from a_package_of_nobody import A, B\ndef annotated(x: A | B | None, *, y: None | A):\n    pass\n",
        "from a_package_of_nobody import retry\n@retry(times=3)\ndef ask():\n    pass\n",
        "from a_package_of_nobody import __version__\nfrom a_package_of_nobody.parts import _hidden\n",
        "import a_package_of_nobody.parts as p\nMODEL = p.Model(p.SIZE[3])\n",
    ],
)
def test_a_module_is_imported_that_makes_something_of_what_is_not_installed(tmp_path: Path, imports: str) -> None:
    assert bound(task_with(tmp_path, imports + SCORES)).doc_to_text({"question": "Why?"}) == "Q: Why?"


@pytest.mark.parametrize(
    ("imports", "title"),
    [
        ("from a_package_of_nobody import title\n", "return title(doc)"),
        ("", "import a_package_of_nobody; return 1"),
        ("from a_package_of_nobody import Base\nclass Title(Base):\n    pass\n", "return str(Title(doc))"),
        ("import a_package_of_nobody\nLIMIT = 10 * a_package_of_nobody.FACTOR\n", "return 1"),
    ],
)
def test_a_prompt_that_needs_what_is_not_installed_names_the_package(tmp_path: Path, imports: str, title: str) -> None:
    task = task_with(tmp_path, f"{imports}def text(doc):\n    {title}\nscore = text\n")
    with pytest.raises(MissingResourceError) as caught:
        call_function(bound(task).doc_to_text, {}, key="doc_to_text", where="doc 1", position=None)
    assert caught.value.reason == "the package 'a_package_of_nobody' is not installed"
    assert caught.value.remedy == "pip install a-package-of-nobody"


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        ("import os\nHOME = os.environ['NO_SUCH_HOME']\n", "the environment variable NO_SUCH_HOME is not set"),
        ("import os\nHOME = os.environ['no_such_home']\n", "the environment variable no_such_home is not set"),
        (
            "import os\ndef asked(name):\n    if os.environ.get(name) is None:\n        raise OSError(f'no {name}')\n"
            "asked('NO_SUCH_HOME')\n",
            "the environment variable NO_SUCH_HOME is not set",
        ),
        ("raise ConnectionError('no network')\n", "Python code of the task needs a download"),
        (
            "import time\nfor i in range(20):\n    try:\n        raise OSError('no server')\n    except Exception:\n"
            "        time.sleep(2**i)\n",
            "importing Python code of the task waits for something",
        ),
    ],
)
def test_a_variable_and_a_download_are_named_that_an_import_needs(tmp_path: Path, raised: str, reason: str) -> None:
    with pytest.raises(MissingResourceError) as caught:
        bound(task_with(tmp_path, raised + SCORES))
    assert caught.value.reason.startswith(reason)


def test_a_short_sleep_of_an_import_takes_no_time_and_a_later_one_does(tmp_path: Path) -> None:
    utils = (
        "import time\nfrom time import sleep\nsleep(9)\ndef text(doc):\n    before = time.monotonic()\n"
        "    sleep(0.02)\n    return str(time.monotonic() - before >= 0.02)\nscore = text\n"
    )
    before = time.monotonic()
    assert bound(task_with(tmp_path, utils)).doc_to_text({}) == "True"
    assert time.monotonic() - before < 9


def test_another_thread_sleeps_as_ever_during_an_import(tmp_path: Path) -> None:
    ends = threading.Event()
    slept: list[float] = []

    def sleep_on() -> None:
        while not ends.is_set():
            before = time.monotonic()
            time.sleep(0.01)
            slept.append(time.monotonic() - before)

    thread = threading.Thread(target=sleep_on)
    thread.start()
    try:
        takes_a_while = "import time\nend = time.monotonic() + 0.1\nwhile time.monotonic() < end:\n    pass\n"
        bound(task_with(tmp_path, takes_a_while + SCORES))
    finally:
        ends.set()
        thread.join()
    assert min(slept) >= 0.01


def test_a_circular_import_of_an_installed_package_is_not_another_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "a_circular_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from a_circular_package.first import one\n", "utf-8")
    (package / "first.py").write_text("from a_circular_package.second import two\none = 1\n", "utf-8")
    (package / "second.py").write_text("from a_circular_package.first import one\ntwo = 2\n", "utf-8")
    monkeypatch.syspath_prepend(str(package.parent))
    with pytest.raises(FunctionError, match="circular import") as raised:
        bound(task_with(tmp_path, f"import a_circular_package\n{SCORES}"))
    assert not isinstance(raised.value, MissingResourceError)


def test_tasks_are_skipped_with_one_reason_for_each_package(project: Project) -> None:
    utils = "from a_package_of_nobody import title\ndef text(doc):\n    return title(doc)\nscore = text\n"
    for name in ("a", "b"):
        project.write(f"tasks/{name}.yaml", TASK.replace("task: a", f"task: {name}"))
    project.write("tasks/utils.py", utils)
    done = project.run("tasks", "--promptfmt-json=run.json", "--promptfmt-profile=plain", "-m", "promptfmt_snapshot")
    line = "skipped, 2 tests: the package 'a_package_of_nobody' is not installed; pip install a-package-of-nobody"
    done.stdout.fnmatch_lines([line])
    shown = json.loads((project.root / "run.json").read_text("utf-8"))
    (skipped,) = shown["skipped"]
    assert list(skipped.pop("causes").values()) == [["a", "b"]]
    assert skipped == {
        "reason": "the package 'a_package_of_nobody' is not installed",
        "remedy": "pip install a-package-of-nobody",
        "tasks": ["a", "b"],
    }
    assert [step for step in shown["next_steps"] if "pip install a-package-of-nobody" in step]
    strict = project.run("tasks", "--promptfmt-strict", "--promptfmt-profile=plain", "-m", "promptfmt_snapshot")
    assert strict.parseoutcomes()["failed"] == 2


def test_a_folder_of_tasks_with_the_name_of_a_package_does_not_hide_that_it_is_missing(tmp_path: Path) -> None:
    (tmp_path / "a_package_of_nobody").mkdir()
    utils = "import a_package_of_nobody\nLIMIT = 2 * a_package_of_nobody.LIMIT\n"
    with pytest.raises(MissingResourceError):
        bound(task_with(tmp_path / "a_package_of_nobody", utils + SCORES))


def test_errors_that_are_each_others_context_have_an_end() -> None:
    first, second = ValueError("one"), KeyError("two")
    first.__context__, second.__context__ = second, first
    assert missing_resource(first, None) is None


@pytest.mark.skipif(find_spec("lm_eval") is not None, reason="of lm-eval where it is not installed")
def test_a_missing_module_of_the_harness_is_named_by_its_package(tmp_path: Path) -> None:
    own = "from lm_eval.filters.extraction import RegexFilter\n" + SCORES.replace("verify", "RegexFilter")
    with pytest.raises(MissingResourceError) as caught:
        bind_scoring(bound(task_with(tmp_path, own)), trusted=lambda _path: True)
    assert caught.value.reason == "the package 'lm_eval' is not installed"
