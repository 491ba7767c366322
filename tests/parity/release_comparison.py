# ruff: noqa: E402
"""Compares our prompts and requests with those of the lm-eval on the search path, on tasks of its tree.

Run in a process whose search path begins with the files of a release: `python release_comparison.py 0.4.9 400 1`, with
the number of tasks and a seed. Prints JSON.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

SPEC = find_spec("lm_eval")
assert SPEC is not None
assert SPEC.submodule_search_locations
TREE = Path(SPEC.submodule_search_locations[0])
sys.modules["lm_eval"] = package = ModuleType("lm_eval")  # its `__init__` imports torch
package.__path__ = [str(TREE)]

from test_rendering_parity import EVALUATED, PROFILES, UGLY, first_difference, uglified

from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.release import release_of
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.tasks import bind_functions, read_task_yaml, render_task, synthetic_docs
from pytest_promptfmt.tasks.harness_renderer import HarnessTask


def tasks_below(folder: Path, count: int, seed: int) -> Iterator[Task]:
    """Yield tasks of a tree in a random order, at most three of each folder."""
    files = sorted(folder.rglob("*.yaml"))
    random.Random(seed).shuffle(files)
    seen: Counter[Path] = Counter()
    for path in files:
        if seen[path.parent] == 3:
            continue
        try:
            file = read_task_yaml(path)
        except PromptfmtError:
            continue
        tasks = file.tasks if file is not None else ()
        if len(tasks) == 1 and tasks[0].assembly.renders_fields and not tasks[0].config.get("doc_to_image"):
            seen[path.parent] += 1
            yield tasks[0]
            count -= 1
            if not count:
                return


def docs_of(task: Task, shots: int) -> TaskDocs:
    """Return docs full of awkward text, one of them also among the few-shot docs."""
    size = EVALUATED + 4 + shots
    rows = [uglified(dict(doc), UGLY, {}) for doc in synthetic_docs(task, count=size)]
    pool: list[Any] = list(rows)
    if task.fewshot.samples is not None and not callable(task.fewshot.samples):
        pool = list(task.fewshot.samples)
    return TaskDocs(
        evaluated=tuple(rows[:EVALUATED]), fewshot=tuple(pool), columns=tuple(rows[0]), origin="", fewshot_origin=""
    )


def ours(task: Task, docs: TaskDocs, profile: Profile, shots: int) -> list[Any] | None:
    try:
        return [
            [each.arguments for each in one.requests] for one in render_task(task, docs, profile, num_fewshot=shots)
        ]
    except PromptfmtError as error:
        print(task.name, "OURS", error.message[:200], file=sys.stderr)
        return None


def theirs(made: HarnessTask, profile: Profile) -> list[Any] | None:
    try:
        return made.requests(profile)
    except PromptfmtError as error:
        print("THEIRS", error.message[:200], file=sys.stderr)
        return None


def main(version: str, count: int, seed: int) -> None:
    totals: Counter[str] = Counter()
    wrong: list[str] = []
    for found in tasks_below(TREE / "tasks", count, seed):
        totals["tasks"] += 1
        try:
            task = bind_functions(found, trusted=lambda _: True).following(release_of(version))
            docs = docs_of(task, task.num_fewshot or 2)
        except PromptfmtError:
            totals["without docs or functions"] += 1
            continue
        own = task.num_fewshot
        for shots in (0,) if own == 0 else (0, own or 2):
            asked = task if shots or not own else found_with(task, 0)
            try:
                made = HarnessTask(asked, docs, shots)
            except PromptfmtError as error:
                print("BUILD", error.message[:200], file=sys.stderr)
                made = None
            for profile in PROFILES:
                mine = ours(asked, docs, profile, shots)
                other = theirs(made, profile) if made is not None else None
                totals["compared"] += 1
                totals["equal failures"] += mine is None and other is None
                totals["texts"] += sum(map(len, other or ()))
                if mine != other:
                    shown = first_difference(mine, other) if mine and other else f"{mine is None} {other is None}"
                    wrong.append(f"{task.name}, {shots} shots, {profile.name}: {shown}")
    totals["tasks that differ"] = len({each.partition(",")[0] for each in wrong})
    print(json.dumps({"version": version, **totals, "wrong": wrong[:200]}))


def found_with(task: Task, shots: int) -> Task:
    return replace(task, num_fewshot=shots)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
