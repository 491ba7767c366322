"""Why a dataset cannot be frozen, and what to do: the words of the hub's library, and the place that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.task import Dataset, Task
from pytest_promptfmt.tasks.docs.frozen_docs import _loaded_commit, _refusal

KEYS = ("dataset_path", "dataset_name", "test_split", "validation_split")
TASK = Task(
    name="arc",
    path=Path("arc.yaml"),
    doc_to_text="",
    doc_to_target="",
    dataset=Dataset(path="ai2/arc", name="Chalenge", test_split="tset", validation_split="valid"),
    locate=lambda keys: Position(Path("arc.yaml"), 1 + KEYS.index(keys[0])) if keys[0] in KEYS else None,
)


@pytest.mark.parametrize(
    ("reason", "line", "hint"),
    [
        ("Unknown split \"tset\". Should be one of ['train', 'test'].", 3, "did you mean 'test'?"),
        ("Unknown split \"valid\". Should be one of ['validation'].", 4, "did you mean 'validation'?"),
        ("Unknown split.", 1, "to use a local file instead, add --from FILE"),
        ("BuilderConfig 'Chalenge' not found. Available: ['Easy', 'Challenge']", 2, "did you mean 'Challenge'?"),
        ("BuilderConfig 'Chalenge' is broken", 1, "to use a local file instead, add --from FILE"),
        ("'Chalenge' not found", 1, "to use a local file instead, add --from FILE"),
        ("Dataset 'ai2/arc' is a gated dataset", 1, "accept the terms on the dataset's page, and log in with"),
        ("Revision 'v9' doesn't exist", 1, "--revision takes a branch, a tag or a commit"),
        ("no network\nTraceback", 1, "to use a local file instead, add --from FILE"),
    ],
)
def test_a_refusal_has_the_hint_for_its_reason(reason: str, line: int, hint: str) -> None:
    error = _refusal(TASK, OSError(reason))
    assert (error.hint or "").startswith(hint)
    assert error.position is not None
    assert error.position.line == line
    assert error.message == f"the dataset 'ai2/arc' cannot be loaded: {reason.partition(chr(10))[0]}"


def test_a_refusal_without_words_has_the_name_of_the_error() -> None:
    assert _refusal(TASK, OSError()).message.endswith("cannot be loaded: OSError")


@pytest.mark.parametrize(
    ("names", "commit"),
    [
        (None, None),
        ([], None),
        ([f"hf://datasets/a/b@{'a' * 40}/x.parquet", f"hf://datasets/a/b@{'a' * 40}/y.parquet"], "a" * 40),
        ([f"hf://datasets/a/b@{'a' * 40}/x.parquet", f"hf://datasets/a/b@{'b' * 40}/y.parquet"], None),
        ([f"hf://datasets/a/b@{'a' * 39}/x.parquet", "/home/x.parquet"], None),
    ],
)
def test_the_commit_is_that_in_the_names_of_all_loaded_files(names: list[str] | None, commit: str | None) -> None:
    assert _loaded_commit(names) == commit
