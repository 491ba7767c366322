"""Our loader against lm-eval 0.4.13's own, on the task files it ships.

CI reads every tenth file; PROMPTFMT_PARITY=all reads all of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.core.errors import SourceError
from pytest_promptfmt.core.task import FunctionRef
from pytest_promptfmt.systems.task_files import read_task_file
from pytest_promptfmt.tasks.recognition import kind_of
from pytest_promptfmt.tasks.task_index import TaskIndex, yaml_files
from pytest_promptfmt.tasks.yaml_file import read_yaml

lm_eval = pytest.importorskip("lm_eval")
pytestmark = pytest.mark.parity

ROOT = Path(lm_eval.__file__).parent / "tasks"
EVERY = 1 if os.environ.get("PROMPTFMT_PARITY") == "all" else 10


def as_lm_eval_writes_it(value: Any) -> Any:
    """Return a value with every function reference as the text that lm-eval's index makes of it."""
    if isinstance(value, FunctionRef):
        return str(value.directory / f"{value.module}.{value.name}")
    if isinstance(value, Mapping):
        return {key: as_lm_eval_writes_it(part) for key, part in value.items()}
    if isinstance(value, list):
        return [as_lm_eval_writes_it(part) for part in value]
    return value


def kind_in_lm_eval(config: dict[str, Any]) -> str | None:
    from lm_eval.tasks._index import Kind, TaskIndex

    names = {Kind.PY_TASK: "class", Kind.GROUP: "group", Kind.TASK: "task"}
    try:
        return names[TaskIndex._kind_of(config)]
    except ValueError:
        return None


def test_every_shipped_file_gives_the_same_mapping_in_the_same_order() -> None:
    from lm_eval.tasks._yaml_loader import load_yaml

    files = sorted(ROOT.glob("**/*.yaml"), key=lambda path: path.as_posix())
    assert list(yaml_files(ROOT)) == files
    different = []
    for path in files[::EVERY]:
        theirs = load_yaml(path, resolve_func=False)
        ours = read_yaml(path).config
        # repr shows nested key order and types as well: 1, 1.0 and True differ
        if repr(as_lm_eval_writes_it(ours)) != repr(theirs) or kind_of(ours) != kind_in_lm_eval(theirs):
            different.append(path)
    assert different == []


def test_every_shipped_key_has_a_position_where_the_key_is_written() -> None:
    lines: dict[Path, list[str]] = {}
    for path in list(yaml_files(ROOT))[:: 5 * EVERY]:
        file = read_yaml(path)
        for key in file.config:
            position = file.locate((key,))
            assert position is not None
            assert position.line is not None
            assert position.column is not None
            text = lines.setdefault(position.path, position.path.read_text("utf-8").splitlines())
            assert text[position.line - 1][position.column - 1 :].lstrip("'\"").startswith(key)


def test_every_shipped_task_file_is_accepted_and_named_as_in_the_file() -> None:
    refused = []
    for path in list(yaml_files(ROOT))[::EVERY]:
        if kind_of(read_yaml(path).config) != "task":
            continue
        try:
            file = read_task_file(path)
        except SourceError as error:
            refused.append(str(error))
            continue
        assert file is not None
        assert file.names == (read_yaml(path).config["task"],)
    assert refused == []


@pytest.mark.skipif(EVERY > 1, reason="lm-eval needs 5 s to index its tasks; PROMPTFMT_PARITY=all compares")
def test_the_index_has_the_names_kinds_and_tags_of_lm_evals_index() -> None:
    from lm_eval.tasks._index import Kind, TaskIndex as TheirIndex

    theirs = TheirIndex.build([ROOT])
    kinds = {Kind.PY_TASK: "class", Kind.GROUP: "group", Kind.TASK: "task", Kind.TAG: "tag"}
    expected = {
        name: (kinds[entry.kind], entry.yaml_path, tuple(sorted(entry.tags)) if entry.kind is Kind.TAG else ())
        for name, entry in theirs.items()
    }
    index = TaskIndex([ROOT])
    ours = {
        name: (entry.kind, entry.file.path if entry.file else None, entry.tagged) for name, entry in index.names.items()
    }
    assert ours == expected
    assert index.errors == {}


YAML_CORNERS = {
    "yes and no": "task: a\na: yes\nb: no\nc: on\nd: off\ne: ~\nf:\n",
    "numbers": "task: a\na: 012\nb: 1_000\nc: 0x1f\nd: 1e3\ne: 1.5e+3\nf: 1:30\ng: .inf\n",
    "dates": "task: a\na: 2024-01-31\nb: 2024-01-31 10:00:00\n",
    "merge keys": "x: &x {a: 1, b: 2}\ny:\n  <<: *x\n  b: 3\n<<: {task: t}\n",
    "repeated keys": "task: a\na: 1\ntask: b\n",
    "block scalars": "task: a\na: |\n  x\n   y\n\nb: >-\n  x\n  y\n\n  z\n",
    "quotes": 'task: a\na: \'x\\n\'\nb: "x\\n"\nc: "\\u00e9\\x41"\n',
    "keys that are no text": "1: a\ntrue: b\n2024-01-01: c\nnull: d\n1.5: e\n",
    "sets and pairs": "a: !!set {x, y}\nb: !!omap [x: 1, y: 2]\nc: !!binary aGVsbG8=\n",
    "byte order mark": "\ufefftask: a\nb: ü\n",
    "carriage returns": "task: a\r\nb: |\r\n  x\r\n  y\r\n",
    "functions": "a: !function utils.f\nb: [!function pkg.sub.g, {c: !function 'x.y'}]\n",
    "flow style": "{task: a, 'b': [1, 2], \"c\": {d: e}}",
}


@pytest.mark.parametrize("text", YAML_CORNERS.values(), ids=YAML_CORNERS)
def test_corners_of_yaml_are_read_alike(text: str, tmp_path: Path) -> None:
    from lm_eval.tasks._yaml_loader import load_yaml

    path = tmp_path / "corner.yaml"
    path.write_bytes(text.encode())
    assert repr(as_lm_eval_writes_it(read_yaml(path).config)) == repr(load_yaml(path, resolve_func=False))


def test_utf_16_is_read_alike(tmp_path: Path) -> None:
    from lm_eval.tasks._yaml_loader import load_yaml

    path = tmp_path / "wide.yaml"
    path.write_bytes("task: ä\n".encode("utf-16"))
    assert dict(read_yaml(path).config) == load_yaml(path) == {"task": "ä"}


INCLUDES = {
    "one file": {"t.yaml": "include: base\ntask: a\n", "base": "task_list: [x]\nq: 1\ntask: b\n"},
    "later wins": {"t.yaml": "a: 1\ninclude: [x, y]\nb: 1\n", "x": "c: 1\nb: 2\n", "y": "b: 3\nc: 4\na: 5\n"},
    "deep": {"t.yaml": "include: d/x\nz: 1\n", "d/x": "include: ../y\nx: !function u.f\n", "y": "y: !function u.f\n"},
    "task_list in the file itself": {"t.yaml": "include: x\ntask_list: [a]\n", "x": "task_list: [b]\nc: 1\n"},
    "empty list": {"t.yaml": "include: []\ntask: a\n"},
    "diamond": {"t.yaml": "include: [x, y]\n", "x": "include: z\n", "y": "include: z\n", "z": "a: 1\n"},
    "circle": {"t.yaml": "include: x\n", "x": "include: t.yaml\n"},
    "null": {"t.yaml": "include:\ntask: a\n"},
    "missing": {"t.yaml": "include: nowhere\ntask: a\n"},
    "home": {"t.yaml": "include: ~/nowhere\ntask: a\n"},
    "list on top": {"t.yaml": "- a\n"},
    "empty": {"t.yaml": ""},
    "two documents": {"t.yaml": "a: 1\n---\nb: 2\n"},
    "bad date": {"t.yaml": "a: 2024-13-45\n"},
    "unhashable": {"t.yaml": "a: {{question}}\n"},
}


@pytest.mark.parametrize("files", INCLUDES.values(), ids=INCLUDES)
def test_includes_are_merged_or_refused_alike(files: dict[str, str], tmp_path: Path) -> None:
    from lm_eval.tasks._yaml_loader import load_yaml

    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    try:
        theirs = repr(load_yaml(tmp_path / "t.yaml", resolve_func=False))
    except Exception:
        with pytest.raises(SourceError):
            read_yaml(tmp_path / "t.yaml")
    else:
        assert repr(as_lm_eval_writes_it(read_yaml(tmp_path / "t.yaml").config)) == theirs
