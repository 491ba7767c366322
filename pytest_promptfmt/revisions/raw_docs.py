"""Rows as `process_docs` gets them, made for a task whose data is not available: so its code runs on both sides."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, Final

from jinja2 import UndefinedError

from pytest_promptfmt.core.docs import Doc, TaskDocs
from pytest_promptfmt.core.errors import DocsError, PromptfmtError
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.tasks import load_docs, renderer_with_shots, synthetic_docs

Lines = dict[str, set[int]]
"""Lines of code, from 1, by the path of their file."""

_MOST_CALLS: Final = 120
_EMPTY: Final[Doc] = {"_": ""}
"""A row before its columns are known: a data set has no rows without columns."""

_UNDEFINED: Final = re.compile(r"^'(?:dict object' has no attribute ')?(\w+)'(?: is undefined)?$")


def raw_docs(task: Task, count: int) -> tuple[Doc, ...]:
    """Return rows that the task's `process_docs` accepts and whose docs render; raises SyntheticDocsError without any.

    Columns are found as those of functions are: by what is missing.
    """
    if task.dataset.process_docs is None:
        return synthetic_docs(task, count=count)
    calls = itertools.count()

    def text(row: Doc) -> str:
        if next(calls) > _MOST_CALLS:
            raise DocsError("process_docs accepts none of the rows that were tried")
        try:
            docs = TaskDocs.in_memory(processed(task, [dict(row) or _EMPTY]))
            renderer, _ = renderer_with_shots(task, docs, 0)
            return "".join(prompt.text for instance in renderer.instances() for prompt in instance.prompts)
        except PromptfmtError as error:
            cause = error.__cause__ or error
            undefined = _UNDEFINED.match(str(cause)) if isinstance(cause, UndefinedError) else None
            raise KeyError(undefined[1]) if undefined else cause  # noqa: B904  # the trial reads the cause itself

    return synthetic_docs(Task(name=task.name, doc_to_text=text, doc_to_target="0"), count=count)


def processed(task: Task, rows: Sequence[Doc], unsure: Lines | None = None) -> tuple[Doc, ...]:
    """Return the docs that the task makes of rows; raises as `load_docs`.

    A filter that would keep none of these rows, which are not real ones, keeps them all: the lines of the filter are
    added to `unsure`.
    """
    own = {name: value for name, value in task.own_metadata.items() if name != "normalize"}
    metadata = {**task.metadata, "promptfmt": {**own, "docs": list(rows)}}
    with _keeping_rows({} if unsure is None else unsure):
        return load_docs(replace(task, metadata=metadata), count=max(len(rows), 1), num_fewshot=0).evaluated


@contextmanager
def _keeping_rows(unsure: Lines) -> Iterator[None]:
    try:
        kind: Any = import_module("datasets").Dataset
    except ImportError:
        yield
        return
    own = kind.filter

    def filter_rows(rows: Any, function: Any = None, *args: Any, **given: Any) -> Any:
        kept = own(rows, function, *args, **given)
        if len(kept) or not len(rows):
            return kept
        caller = sys._getframe(1)
        unsure.setdefault(caller.f_code.co_filename, set()).add(caller.f_lineno)
        code = getattr(function.func if isinstance(function, partial) else function, "__code__", None)
        if code is not None:
            lines = {line for *_, line in code.co_lines() if line is not None}
            unsure.setdefault(code.co_filename, set()).update(lines)
        return rows

    kind.filter = filter_rows
    try:
        yield
    finally:
        kind.filter = own
