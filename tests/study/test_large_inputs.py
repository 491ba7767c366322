"""Many docs, a large file of docs and many tasks: memory grows with what is shown, and with nothing else."""

from __future__ import annotations

import gc
import json
import tracemalloc
import weakref
from pathlib import Path

import pytest

from pytest_promptfmt.core.profile import PLAIN, builtin_profile
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.snapshots.content import snapshot_document
from pytest_promptfmt.snapshots.document import write_document
from pytest_promptfmt.study import Studies, Study, seen_by
from pytest_promptfmt.systems.task_files import load_tasks

pytestmark = pytest.mark.slow

TASK = """task: stones
output_type: multiple_choice
test_split: test
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_choice: [iron, slate, gold]
doc_to_target: answer
"""


def write_docs(folder: Path, count: int) -> Path:
    path = folder / "stones.docs.jsonl"
    lines = (json.dumps({"question": f"Which of {n} rusts?", "answer": n % 3}) for n in range(count))
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    (folder / "stones.yaml").write_text(TASK, "utf-8")
    return path


def test_a_file_of_docs_is_read_as_far_as_it_is_needed(tmp_path: Path) -> None:
    path = write_docs(tmp_path, 1000)
    with path.open("r+b") as file:
        file.truncate(2**40)  # a hole that takes no room on the disk, and more memory than there is
    (task,) = load_tasks(tmp_path / "stones.yaml")
    study = Study(task, Settings(rootdir=tmp_path, profiles=(PLAIN,), docs=500))
    assert [instance.index for instance in study.render()] == [*range(500)]
    assert study.material.docs.origin == "500 from stones.docs.jsonl"


def peak_of(folder: Path, count: int) -> int:
    """Return the most bytes that rendering and showing so many docs holds at once."""
    (task,) = load_tasks(folder / "stones.yaml")
    profile = builtin_profile("chat-chatml")
    study = Study(task, Settings(rootdir=folder, profiles=(profile,), docs=count))
    gc.collect()
    tracemalloc.start()
    text = write_document(snapshot_document(seen_by(study, profile)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert text.count("\ndoc ") == count
    return peak


def test_memory_grows_with_the_docs_that_are_shown_and_no_faster(tmp_path: Path) -> None:
    write_docs(tmp_path, 2000)
    peak_of(tmp_path, 10)  # what all share: the tokenizer, caches of templates
    small, large = peak_of(tmp_path, 500), peak_of(tmp_path, 2000)
    assert large < 4.5 * small
    assert large / 2000 < 30_000  # bytes for each doc


def test_the_parts_of_a_task_are_freed_when_the_next_one_is_tested(tmp_path: Path) -> None:
    write_docs(tmp_path, 10)
    settings = Settings(rootdir=tmp_path, profiles=(PLAIN,), docs=10)
    studies = Studies(lambda _task: settings)
    (first,), (second,) = load_tasks(tmp_path / "stones.yaml"), load_tasks(tmp_path / "stones.yaml")
    held = studies.of(first)
    instance = weakref.ref(held)
    held.render()
    del held
    studies.of(second).render()
    gc.collect()
    assert instance() is None
