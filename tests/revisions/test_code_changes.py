"""Code behind functions of tasks: which definitions they use, how two sides differ, and what of it ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.task import FunctionRef
from pytest_promptfmt.revisions.code_changes import (
    Closure,
    class_refs,
    classes_of,
    closure_of,
    code_changes,
    file_of,
    not_reached,
)

UTILS = '''\
import os
from helpers import shout as loud, UNUSED

CUE = "Q: "
OTHER = "not used"


def text(doc):
    """Return the prompt."""
    return loud(CUE + doc["question"])


def unrelated(doc):
    return OTHER
'''
HELPERS = "UNUSED = 1\nMARK = '!'\n\n\ndef shout(text):\n    return text + MARK\n"


def written(folder: Path, **modules: str) -> Path:
    for name, text in modules.items():
        (folder / f"{name}.py").parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text(text, "utf-8")
    return folder


def closures_of(tmp_path: Path, old: str, new: str, name: str = "text") -> tuple[Closure, Closure]:
    """Return the closures of a function of two revisions of a module."""
    tops = [written(tmp_path / side, utils=text, helpers=HELPERS) for side, text in (("a", old), ("b", new))]
    before, after = (closure_of(top / "utils.py", name, top) for top in tops)
    return before, after


def test_a_closure_holds_what_a_function_uses_of_the_tree_and_nothing_else(tmp_path: Path) -> None:
    top = written(tmp_path, utils=UTILS, helpers=HELPERS)
    found = closure_of(top / "utils.py", "text", top)
    assert found.keys() == {"utils.py:text", "utils.py:loud", "utils.py:CUE", "helpers.py:shout", "helpers.py:MARK"} | {
        "helpers.py:UNUSED"
    }
    assert str(found["helpers.py:shout"]) == "helpers.py:5 shout"


@pytest.mark.parametrize("finder", ["globals()", "getattr(os, 'sep')", "eval('1')"])
def test_a_module_that_finds_code_by_its_name_counts_as_a_whole(tmp_path: Path, finder: str) -> None:
    top = written(tmp_path, utils=UTILS.replace("return OTHER", f"return {finder}"), helpers=HELPERS)
    assert {"utils.py:unrelated", "utils.py:OTHER"} <= closure_of(top / "utils.py", "text", top).keys()


def test_a_module_that_is_not_python_is_compared_as_text(tmp_path: Path) -> None:
    [change] = code_changes(*closures_of(tmp_path, "def text(:", "def text(::"))
    assert [[each.form for each in side] for side in change.changed_pieces()] == [["def text(:"], ["def text(::"]]


@pytest.mark.parametrize(
    ("old", "new", "differing"),
    [
        ('    """Return the prompt."""\n', "", []),
        ("def text(doc):", "def text(doc: dict) -> str:", []),
        ("OTHER = ", "ANOTHER = ", []),
        ('CUE = "Q: "', "CUE = 'Q: '  # as before", []),
        ('CUE = "Q: "', 'CUE = "Question: "', ["CUE"]),
        ('doc["question"]', 'doc["query"]', ["text"]),
        ("shout as loud", "UNUSED as loud", ["MARK", "shout"]),
    ],
)
def test_only_the_behaviour_of_used_code_counts(tmp_path: Path, old: str, new: str, differing: list[str]) -> None:
    assert old in UTILS
    changes = code_changes(*closures_of(tmp_path, UTILS, UTILS.replace(old, new)))
    assert [change.shown.name for change in changes] == differing


def test_a_branch_that_did_not_run_is_named_by_its_line(tmp_path: Path) -> None:
    code = "def text(doc):\n    if doc['kind'] == 'rare':\n        return 'A'\n    return 'B'\n"
    closures = closures_of(tmp_path, code, code.replace("'A'", "'C'"))
    [change] = code_changes(*closures)
    usual, rare = {"utils.py": {2, 4}}, {"utils.py": {2, 3}}
    assert not_reached(change, closures, (usual, usual)) == "utils.py:3 in text"
    assert not_reached(change, closures, (rare, rare)) == ""
    assert [*dict.fromkeys(change.constants())] == ["A", "C", "rare", "kind", "B"], "those that lead to the change last"


def test_a_constant_has_run_where_a_function_that_uses_it_has(tmp_path: Path) -> None:
    code = "CUE = 'A'\nBOTH = CUE + '!'\n\n\ndef text(doc):\n    if doc:\n        return BOTH\n    return ''\n"
    closures = closures_of(tmp_path, code, code.replace("'A'", "'B'"))
    [change] = code_changes(*closures)
    used, unused = {"utils.py": {6, 7}}, {"utils.py": {6, 8}}
    assert not_reached(change, closures, (used, used)) == ""
    assert not_reached(change, closures, (used, unused)) == "utils.py:1 CUE"


def test_an_attribute_of_a_class_has_run_where_it_is_read(tmp_path: Path) -> None:
    code = "class Own:\n    CUE = 'A'\n\n    def text(self):\n        return self.CUE\n"
    closures = closures_of(tmp_path, code, code.replace("'A'", "'B'"), "Own")
    [change] = code_changes(*closures)
    read: dict[str, set[int]] = {"utils.py": {5}}
    assert not_reached(change, closures, (read, read)) == ""
    assert not_reached(change, closures, (read, {})) == "utils.py:2 in Own"


def test_the_version_of_a_class_is_not_part_of_its_code(tmp_path: Path) -> None:
    code = "class Own:\n    VERSION = 1\n    CUE = 'A'\n"
    assert code_changes(*closures_of(tmp_path, code, code.replace("1", "2"), "Own")) == []


def test_a_packages_module_is_found_below_each_folder_up_to_the_top(tmp_path: Path) -> None:
    top = written(tmp_path, **{"tasks/deep/names": "class Own:\n    pass\n"})
    folder = top / "tasks/deep"
    position = Position(folder / "own.yaml")
    ref = FunctionRef("tasks.deep.names", "Own", folder, position)
    assert file_of(ref, top) == folder / "names.py"
    assert file_of(FunctionRef("nowhere", "Own", folder, position), top) == folder / "nowhere.py"
    named = [each.file for each in class_refs({"class": "tasks.deep.names:Own"}, folder / "own.yaml", top)]
    assert folder / "names.py" in named
    assert [(each.name, each.position.line) for each in classes_of(folder / "names.py")] == [("Own", 1)]
    assert [*classes_of(folder / "missing.py")] == []
