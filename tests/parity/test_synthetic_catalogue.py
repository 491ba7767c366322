"""Synthetic docs for the tasks that lm-eval ships: how many get docs, and whether their prompts render."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.task import FunctionRef, Task
from pytest_promptfmt.systems.task_files import load_tasks
from pytest_promptfmt.tasks.docs.doc_sources import load_docs

lm_eval = pytest.importorskip("lm_eval")
pytestmark = pytest.mark.parity

EVERY = 1 if os.environ.get("PROMPTFMT_PARITY") == "all" else 20
FIELDS = (
    "process_docs",
    "doc_to_text",
    "doc_to_target",
    "doc_to_choice",
    "custom_dataset",
    "fewshot_config",
    "description",
    "gen_prefix",
    "doc_to_image",
    "doc_to_audio",
)


def needs_code(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(needs_code, value.values()))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return any(map(needs_code, value))
    return isinstance(value, FunctionRef)


@cache
def catalogue() -> list[Task]:
    """Return the tasks that need no code to render, or every twentieth of their files."""
    root = Path(lm_eval.__file__).parent / "tasks"
    return list(_jinja_only(sorted(root.rglob("*.yaml"))[::EVERY]))


def _jinja_only(paths: Sequence[Path]) -> Iterator[Task]:
    for path in paths:
        try:
            tasks = load_tasks(path)
        except PromptfmtError:
            continue  # groups that lm-eval cannot build either; the parity of loading is tested elsewhere
        for task in tasks:
            if task.path == path and not any(needs_code(task.config.get(key)) for key in FIELDS):
                yield task


def test_nearly_all_tasks_without_functions_get_docs_that_render() -> None:
    failures: Counter[str] = Counter()
    tasks = catalogue()
    for task in tasks:
        try:
            list(task.render(load_docs(task, num_fewshot=2), num_fewshot=2))
        except PromptfmtError as error:
            failures[f"{task.doc_to_text!r:.80}: {error.message:.200}"] += 1
    assert len(tasks) > 5000 // EVERY * 0.7
    assert failures.total() <= 0.01 * len(tasks), failures.most_common(10)


def test_gold_answers_are_choices_and_move() -> None:
    wrong: Counter[str] = Counter()
    still: Counter[str] = Counter()
    tasks = [task for task in catalogue() if task.output_type == "multiple_choice"]
    for task in tasks:
        try:
            instances = list(task.render(load_docs(task, count=3, num_fewshot=0), num_fewshot=0))
        except PromptfmtError:
            continue  # counted above
        golds = [tuple(request.gold for request in instance.requests) for instance in instances]
        what = f"{task.doc_to_target!r:.60} of {task.doc_to_choice!r:.60}"
        if not all(map(any, golds)):
            wrong[what] += 1
        elif len(set(golds)) == 1 and not isinstance(task.doc_to_target, int):
            still[what] += 1
    assert wrong.total() <= 0.01 * len(tasks), wrong.most_common(10)
    assert still.total() <= 0.02 * len(tasks), still.most_common(10)


def test_docs_of_one_task_differ() -> None:
    same = [
        task.name
        for task in catalogue()
        if (docs := load_docs(task)).origin.endswith("synthetic")
        and docs.columns
        and docs.evaluated[0] == docs.evaluated[1]
    ]
    assert same == []
