"""The files that libraries may read: those near the code, and those that its texts name."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_promptfmt.inputs.code_inputs import reached_from
from pytest_promptfmt.inputs.native_files import NativeFiles
from pytest_promptfmt.inputs.places import Places


def _found(root: Path, code: str, folder: str = "a/b") -> set[str]:
    """Return the files that count for the code of a new module, below the root, without folders."""
    file = root / folder / f"utils{len([*root.rglob('*.py')])}.py"  # each module is read once
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"import numpy\n\n{code}\n", "utf-8")
    places = Places(root)
    reached = reached_from([str(file)], [str(root)], places.is_library)
    assert reached.uses_libraries
    found = NativeFiles(places).of(reached, [str(file.parent)])
    return {Path(path).relative_to(root).as_posix() for path in found if not path.endswith("/")}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("a/b/data/x.bin", "a/b/y.json", "a/shared/z.bin", "other/w.bin", "a/b/.hidden/v.bin", "a/b/t.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("", "utf-8")
    return tmp_path


def test_data_next_to_the_code_counts(root: Path) -> None:
    assert _found(root, "") == {"a/b/data/x.bin", "a/b/y.json"}


@pytest.mark.parametrize(
    ("text", "name"), [("z.bin", "a/shared/z.bin"), ("../shared/z.bin", "a/shared/z.bin"), ("w.bin", "other/w.bin")]
)
def test_a_file_that_a_text_names_counts(root: Path, text: str, name: str) -> None:
    assert name in _found(root, f"NAME = {text!r}")


def test_of_many_files_only_those_that_a_text_names_count(root: Path) -> None:
    for number in range(300):
        (root / f"a/b/many{number}.bin").write_text("", "utf-8")
    assert _found(root, "") == set()
    assert _found(root, "NAME = 'many7.bin'") == {"a/b/many7.bin"}
    assert len(_found(root, "def f(n):\n    return f'many{n}.bin'")) >= 300


def test_code_in_the_rootdir_has_no_data_next_to_it(root: Path) -> None:
    assert _found(root, "", "") == set()
    assert _found(root, "NAME = 'other/w.bin'", "") == {"other/w.bin"}
