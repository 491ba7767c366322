"""Results shared by tasks of one folder that differ only in their names, such as the subjects of a benchmark.

What follows from texts, synthetic docs and code is made for the first of them.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.task import FunctionRef, Task, with_leaves
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.tasks import has_docs_for_shots, plain_key

_NAMES: Final = frozenset({"task", "task_alias", "tag", "group", "dataset_name", "process_docs"})
"""Keys of a configuration on which no prompt depends, apart from the docs that they give."""

_LAID_OUT: Final = ("doc_to_text", "doc_to_target", "doc_to_choice", "output_type", "target_delimiter", "num_fewshot")
"""The fields of a task that a format or release may change."""

_MOST: Final = 16
"""The number of different tasks whose results are kept."""


class SharedResults:
    """The results of the last tasks, by their content."""

    def __init__(self) -> None:
        self._known: dict[Hashable, dict[Hashable, Any]] = {}

    def of(self, task: Task, docs: TaskDocs, shots: int, settings: Settings) -> dict[Hashable, Any]:
        """Return the results for a bound task with these docs; they are its own where no task was like it."""
        content = _content_of(task, docs)
        if content is None:
            return {}
        golds = [task.position(key) for key in ("doc_to_choice", "doc_to_target")]
        is_one_file = len({place.path for place in golds if place is not None}) == 1  # which knows their order
        where = task.path and task.path.parent, task.format, task.release.version, shots, id(settings)
        key = content, is_one_file, where
        found = self._known[key] = self._known.pop(key, {"settings": settings})  # kept, so that no other has its id
        if len(self._known) > _MOST:
            del self._known[next(iter(self._known))]
        return found


def _content_of(task: Task, docs: TaskDocs) -> Hashable | None:
    """Return what is equal for tasks that differ only in their names; None for a task with real docs.

    Raises DocsError for data files that cannot be read.
    """
    is_read = task.system == "lm-eval" and task.assembly.renders_fields and task.config
    if not is_read or docs.kind != "synthetic":
        return None
    written = with_leaves({key: value for key, value in task.config.items() if key not in _NAMES}, _plain)
    laid_out = [getattr(task, name) for name in _LAID_OUT if not callable(getattr(task, name))]
    content = plain_key(["process_docs" in task.config, written, laid_out, docs.evaluated, docs.fewshot, docs.columns])
    return None if content is None or has_docs_for_shots(task) else content


def _plain(leaf: Any, *_keys: str | int) -> Any:
    return [str(leaf.file), str(leaf)] if isinstance(leaf, FunctionRef) else leaf
