from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.core.errors import CodeNotAllowedError, FunctionError, Position
from pytest_promptfmt.core.task import FunctionRef, Task
from pytest_promptfmt.systems.task_files import read_task_file
from pytest_promptfmt.tasks.functions import bind_functions, functions_of


def everything(_path: Path) -> bool:
    return True


def read(folder: Path, text: str, **modules: str) -> Task:
    for name, source in modules.items():
        path = folder / f"{name}.py"
        path.write_text(source, encoding="utf-8")
    (folder / "t.yaml").write_text(text, encoding="utf-8")
    file = read_task_file(folder / "t.yaml")
    assert file is not None
    return file.tasks[0]


def refused(folder: Path, source: str, name: str = "f", seconds: float = 60.0) -> FunctionError:
    task = read(folder, f"task: a\ndoc_to_target: x\ndoc_to_text: !function utils.{name}\n", utils=source)
    with pytest.raises(FunctionError) as caught:
        bind_functions(task, trusted=everything, time_limit=seconds)
    assert caught.value.position == Position(folder / "t.yaml", 3, 1)
    assert (
        f"doc_to_text: {'' if 'has no' in caught.value.message or 'is of' in caught.value.message else '!function'}"
        in (caught.value.message)
    )
    return caught.value


def test_every_field_that_rendering_needs_is_bound(tmp_path: Path) -> None:
    text = (
        "task: a\nprocess_docs: !function utils.f\ndoc_to_text: !function utils.f\ndoc_to_target: !function utils.f\n"
        "doc_to_choice: !function utils.f\ncustom_dataset: !function utils.f\nfewshot_config:\n"
        "  samples: !function utils.f\n  sampler: !function utils.f\n  doc_to_text: !function utils.f\n"
        "  process_docs: !function utils.f\n"
    )
    bound = bind_functions(read(tmp_path, text, utils="def f(doc):\n    return 1\n"), trusted=everything)
    values: list[Any] = [bound.doc_to_text, bound.doc_to_target, bound.doc_to_choice]
    values += [bound.dataset.process_docs, bound.dataset.custom]
    values += [bound.fewshot.samples, bound.fewshot.sampler, bound.fewshot.doc_to_text, bound.fewshot.process_docs]
    assert [value({}) for value in values] == [1] * 9
    assert isinstance(bound.config["doc_to_text"], FunctionRef)


def test_functions_of_scoring_are_listed_but_neither_imported_nor_bound(tmp_path: Path) -> None:
    text = (
        "task: a\ndoc_to_text: !function utils.f\nprocess_results: !function broken.g\nmetric_list:\n"
        "  - metric: !function broken.h\n    aggregation: !function broken.i\nfilter_list:\n"
        "  - {name: x, filter: [{function: custom, filter_fn: !function broken.j}]}\n"
    )
    task = read(tmp_path, text, utils="f = str\n", broken="raise RuntimeError('must not run')\n")
    assert [str(ref) for ref in functions_of(task)] == [
        "utils.f",
        "broken.g",
        "broken.h",
        "broken.i",
        "broken.j",
    ]
    assert bind_functions(task, trusted=everything).process_results == task.process_results


def test_code_that_is_not_trusted_does_not_run(tmp_path: Path) -> None:
    task = read(tmp_path, "task: a\ndoc_to_text: !function utils.f\n", utils="raise SystemExit('must not run')\n")
    asked: list[Path] = []

    def refuse(path: Path) -> bool:
        asked.append(path)
        return False

    with pytest.raises(CodeNotAllowedError) as caught:
        bind_functions(task, trusted=refuse)
    assert asked == [tmp_path / "utils.py"]
    assert caught.value.position == Position(tmp_path / "t.yaml", 2, 1)


def test_a_task_without_functions_asks_nobody(tmp_path: Path) -> None:
    task = read(tmp_path, "task: a\ndoc_to_text: q\n")
    assert bind_functions(task, trusted=lambda path: False) == task


def test_the_file_beside_the_yaml_goes_before_an_installed_module(tmp_path: Path) -> None:
    task = read(tmp_path, "task: a\ndoc_to_text: !function json.dumps\n", json="def dumps(doc):\n    return 'mine'\n")
    assert bind_functions(task, trusted=everything).doc_to_text({}) == "mine"
    assert sys.modules["json"].__file__ != str(tmp_path / "json.py")


def test_a_dotted_module_is_a_file_in_a_folder_below_the_yaml(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "deep.py").write_text("def f(doc):\n    return 'deep'\n")
    task = read(tmp_path, "task: a\ndoc_to_text: !function sub.deep.f\n")
    assert bind_functions(task, trusted=everything).doc_to_text({}) == "deep"


def test_a_function_of_an_include_is_looked_up_beside_the_include(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "utils.py").write_text("def f(doc):\n    return 'included'\n")
    (tmp_path / "sub" / "base").write_text("doc_to_text: !function utils.f\n")
    task = read(tmp_path, "task: a\ninclude: sub/base\ndataset_path: x\n", utils="def f(doc):\n    return 'mine'\n")
    assert bind_functions(task, trusted=everything).doc_to_text({}) == "included"


def test_an_installed_module_is_found_by_import_and_must_be_trusted_too(tmp_path: Path) -> None:
    task = read(tmp_path, "task: a\ndoc_to_text: !function textwrap.dedent\n")
    assert bind_functions(task, trusted=everything).doc_to_text("  x") == "x"
    for module in ("textwrap.dedent", "os.system", "sys.exit", "concurrent.futures.wait"):
        hostile = read(tmp_path, f"task: a\ndoc_to_text: !function {module}\n")
        with pytest.raises(CodeNotAllowedError):
            bind_functions(hostile, trusted=lambda path: path.is_relative_to(tmp_path))


def test_a_package_on_the_way_to_a_module_is_not_run_before_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "promptfmt_hostile"
    (package / "bare" / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('must not run')\n")
    (package / "bare" / "inner" / "mod.py").write_text("def f(doc):\n    return 'x'\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    task = read(tmp_path, "task: a\ndoc_to_text: !function promptfmt_hostile.bare.inner.mod.f\n")
    with pytest.raises(CodeNotAllowedError):
        bind_functions(task, trusted=lambda path: path.name != "__init__.py")
    asked: list[Path] = []
    (package / "__init__.py").write_text("")

    def trust(path: Path) -> bool:
        asked.append(path)
        return True

    bound = bind_functions(task, trusted=trust)
    assert bound.doc_to_text({}) == "x"
    assert asked == [package / "__init__.py", package / "bare" / "inner" / "mod.py"]


def test_a_changed_module_is_loaded_again_and_an_unchanged_one_is_shared(tmp_path: Path) -> None:
    text = "task: a\ndoc_to_text: !function utils.f\n"
    task = read(tmp_path, text, utils="def f(doc):\n    return 1\n")
    first = bind_functions(task, trusted=everything).doc_to_text
    assert bind_functions(task, trusted=everything).doc_to_text is first
    module = tmp_path / "utils.py"
    module.write_text("def f(doc):\n    return 2222\n")
    os.utime(module, ns=(0, module.stat().st_mtime_ns + 1))
    assert bind_functions(task, trusted=everything).doc_to_text({}) == 2222
    assert str(module.with_suffix("")) in sys.modules


def test_the_folder_of_the_yaml_is_not_on_the_path_as_in_lm_eval(tmp_path: Path) -> None:
    (tmp_path / "sibling_of_utils.py").write_text("x = 1\n")
    error = refused(tmp_path, "import sibling_of_utils\nf = str\n")
    assert "utils.py:1" in error.message
    assert "sibling_of_utils.py next to the YAML cannot be imported" in (error.hint or "")


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    error = refused(tmp_path, "\nimport no_such_package_here.sub\n")
    assert "no module named 'no_such_package_here'" in error.message
    assert error.hint == "pip install no-such-package-here"


@pytest.mark.parametrize(
    ("source", "name", "said"),
    [
        ("def fonction(doc):\n    return 1\n", "function", "did you mean 'fonction'?"),
        ("f = 5\n", "f", "is of type int, not a function"),
        ("raise SystemExit(3)\n", "f", "importing the module ends the program (exit status 3)"),
        ("x = 1\n1 / 0\n", "f", "utils.py:2): ZeroDivisionError"),
        ("def f(:\n", "f", "utils.py:1): SyntaxError"),
        ("x = '\x00'\n", "f", "SyntaxError"),
        ("def f():\n    return f()\nf()\n", "f", "RecursionError"),
    ],
)
def test_a_module_that_does_not_give_the_function_is_explained(
    source: str, name: str, said: str, tmp_path: Path
) -> None:
    assert said in str(refused(tmp_path, source, name))


def test_an_endless_import_is_ended(tmp_path: Path) -> None:
    assert "did not finish within 0.2 s" in refused(tmp_path, "while True:\n    pass\n", seconds=0.2).message


def test_an_interrupt_by_the_user_is_passed_on(tmp_path: Path) -> None:
    task = read(tmp_path, "task: a\ndoc_to_text: !function utils.f\n", utils="raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        bind_functions(task, trusted=everything)


def test_a_module_that_is_nowhere_is_named_with_a_neighbour(tmp_path: Path) -> None:
    task = read(tmp_path, "task: a\ndoc_to_text: !function utlis.f\n", utils="f = str\n")
    with pytest.raises(FunctionError, match=r"no file .*utlis\.py, and no installed module 'utlis'") as caught:
        bind_functions(task, trusted=everything)
    assert caught.value.hint == "did you mean 'utils'?"


def test_a_failing_import_is_tried_once_until_the_file_changes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    module = tmp_path / "utils.py"
    module.write_text(f"open({str(log)!r}, 'a').write('x')\nraise ValueError('no')\n")
    for name in ("f", "g", "h"):
        task = read(tmp_path, f"task: a\ndoc_to_text: !function utils.{name}\n")
        with pytest.raises(FunctionError, match="ValueError: no"):
            bind_functions(task, trusted=everything)
    assert log.read_text() == "x"
    os.utime(module, ns=(0, module.stat().st_mtime_ns + 1))
    with pytest.raises(FunctionError, match="ValueError: no"):
        bind_functions(task, trusted=everything)
    assert log.read_text() == "xx"


def test_a_module_of_a_checkout_that_the_installed_package_lacks_is_imported_from_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = tmp_path / "fork/lmms_eval/tasks"
    for package in (tmp_path / "installed/lmms_eval", tasks.parent):
        (package / "tasks/own").mkdir(parents=True)
        for folder in (package, package / "tasks"):
            (folder / "__init__.py").write_text(f"PLACE = {package.parent.name!r}\n", "utf-8")
    (tasks / "own/helper.py").write_text("from lmms_eval.tasks import PLACE\n", "utf-8")
    source = "from lmms_eval.tasks.own.helper import PLACE\n\ndef f(doc):\n    return PLACE\n"
    text = "task: a\ndoc_to_target: x\ndoc_to_text: !function utils.f\n"
    (tasks / "far").mkdir()
    task = read(tasks / "far", text, utils=source)
    monkeypatch.syspath_prepend(tmp_path / "installed")
    try:
        assert bind_functions(task, trusted=everything).doc_to_text({}) == "installed"
        with pytest.raises(ImportError):
            importlib.import_module("lmms_eval.tasks.own.other")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "lmms_eval"]:
            del sys.modules[name]
