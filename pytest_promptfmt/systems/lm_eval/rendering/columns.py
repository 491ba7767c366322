"""Names that were meant as columns and are none: lm-eval takes them for text, and says nothing."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, Final

from pytest_promptfmt.core.errors import RenderError
from pytest_promptfmt.core.task import Task, TaskDocs, TextTemplate, Unset

_ALIKE: Final = 0.75
"""How alike (difflib) a text and a column name must be: `qestion` is, a constant such as `True or False?` is not."""


def refuse_mistyped_columns(task: Task, docs: TaskDocs) -> None:
    """Raise RenderError for a field that is no column, no template, and nearly the name of a column.

    lm-eval 0.4.13 renders any string that is not exactly a column as a template, so that `qestion` becomes the prompt
    of every doc. Rendering imitates that; a test must not pass it.
    """
    for keys, spec in _fields(task):
        if not isinstance(spec, str) or isinstance(spec, TextTemplate) or "{" in spec or spec in docs.columns:
            continue
        close = difflib.get_close_matches(spec.casefold(), [name.casefold() for name in docs.columns], 1, _ALIKE)
        if close:
            column = next(name for name in docs.columns if name.casefold() == close[0])
            raise RenderError(
                f"{'.'.join(keys)} of {task.name!r} is {spec!r}, which no doc has as a column: "
                "lm-eval would take it for text, the same for every doc",
                position=task.position(*keys),
                hint=f"did you mean {column!r}?",
            )


def _fields(task: Task) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name in ("doc_to_text", "doc_to_choice", "doc_to_target"):
        yield (name,), getattr(task, name)
        shots = getattr(task.fewshot, name)
        if not isinstance(shots, Unset):
            yield ("fewshot_config", name), shots
