"""Rows of a split that take a task through as many branches as possible: of its templates and of its Python functions.

Each row is rendered by itself, and the steps of the bytecode that follow each other in the task's own code are noted:
a condition seen true and seen false are two pairs, also within one line. Rows are then chosen greedily.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.tasks.docs.doc_sources import load_docs
from pytest_promptfmt.tasks.functions import bind_functions, functions_of
from pytest_promptfmt.tasks.renderer import TaskRenderer

LOOKED_AT: Final = 500
"""Rows from the start of a split that are tried."""

_TEMPLATE: Final = "<template>"
"""What Jinja calls the file of the code that it makes of a template."""

Step = tuple[int, int, int]
"""A code object by its identity, and two positions in its bytecode that ran one after the other; -1 is the start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cover:
    """Which rows were chosen, how many of the `steps` that any of the rows takes they take, and which rows fail."""

    rows: Sequence[int]
    taken: int
    steps: int
    failed: Sequence[int]


def covering_rows(task: Task, rows: Sequence[Doc], count: int, *, trusted: Callable[[Path], bool]) -> Cover:
    """Return at most `count` rows, ascending: of those that add most steps the first one, then the first ones left.

    Rows that cannot be rendered are not chosen. `trusted` decides about the Python files that would run. Raises
    CodeNotAllowedError, FunctionError, and where no row can be rendered what stops the first one.
    """
    bound = bind_functions(task, trusted=trusted)
    folders = tuple(f"{ref.file.parent}{os.sep}" for ref in functions_of(task))
    seen: dict[int, Set[Step]] = {}
    errors: dict[int, PromptfmtError] = {}
    known: set[int] = set()
    for number, row in enumerate(rows[:LOOKED_AT]):
        steps: set[Step] = set()
        try:
            met = len(known)
            with _noted(folders, steps, known):
                _render(bound, row)
            if len(known) > met:  # Python 3.12 and later note the steps of code only after its first call
                with _noted(folders, steps, known):
                    _render(bound, row)
            seen[number] = steps
        except PromptfmtError as error:
            errors[number] = error
    if not seen and errors:
        raise next(iter(errors.values()))
    chosen, taken = _greedy(seen, count)
    return Cover(rows=chosen, taken=len(taken), steps=len(set().union(*seen.values())), failed=[*errors])


def _greedy(seen: Mapping[int, Set[Step]], count: int) -> tuple[list[int], Set[Step]]:
    taken: set[Step] = set()
    chosen: list[int] = []
    while len(chosen) < min(count, len(seen)):
        # Of equals max takes the first, so what adds nothing any more comes in the order of the split.
        best = max((number for number in seen if number not in chosen), key=lambda number: len(seen[number] - taken))
        chosen.append(best)
        taken |= seen[best]
    return sorted(chosen), taken


def _render(task: Task, row: Doc) -> None:
    own = {**task.own_metadata, "docs": [row]}
    alone = replace(task, metadata={**task.metadata, "promptfmt": own})
    docs = load_docs(alone, count=1, num_fewshot=0)
    list(TaskRenderer(alone, docs, num_fewshot=0).instances())


@contextmanager
def _noted(folders: Sequence[str], steps: set[Step], known: set[int]) -> Iterator[None]:
    """Note the steps of templates and of functions in files below these folders that run in the block.

    `known` are the identities of the code objects that were called.
    """

    def is_of_task(frame: FrameType) -> bool:
        name = frame.f_code.co_filename
        if frame.f_code.co_name == "<module>":
            return False  # runs once, whatever the row
        return name == _TEMPLATE or (name.startswith(tuple(folders)) and "site-packages" not in name)

    def each_call(frame: FrameType, _event: str, _argument: object) -> Any:
        if not is_of_task(frame):
            return None
        code, last = id(frame.f_code), -1
        known.add(code)

        def each_step(frame: FrameType, event: str, _argument: object) -> Any:
            nonlocal last
            if event == "opcode":
                steps.add((code, last, frame.f_lasti))
                last = frame.f_lasti
            return each_step

        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return each_step

    before = sys.gettrace()
    sys.settrace(each_call)
    try:
        yield
    finally:
        sys.settrace(before)
