"""Code of the user that makes docs: `process_docs`, functions in `dataset_kwargs`, and Hugging Face datasets."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core.docs import Doc, TaskDocs
from pytest_promptfmt.core.errors import (
    CodeNotAllowedError,
    DocsError,
    MissingResourceError,
    Position,
    PromptfmtError,
    described,
)
from pytest_promptfmt.core.limits import time_limit
from pytest_promptfmt.core.randomness import OwnRandomness
from pytest_promptfmt.core.task import FunctionRef, Task, leaves, with_leaves
from pytest_promptfmt.tasks.docs.data_files import needs_datasets
from pytest_promptfmt.tasks.import_failures import lacking

FUNCTION_SECONDS: Final = 60.0


def makes_names(task: Task) -> bool:
    """Return whether functions in the `dataset_kwargs` of a task name its data files."""
    names = (task.dataset.kwargs or {}).get("data_files")
    return any(callable(value) or isinstance(value, FunctionRef) for value in leaves(names))


def with_made_names(task: Task) -> Task:
    """Return the task with its `data_files` made by the functions in its `dataset_kwargs`, if there are any.

    Without names where one fails: it may look for files of another machine. Raises CodeNotAllowedError,
    LimitExceededError.
    """
    if not makes_names(task):
        return task

    def made(value: Any, *keys: str) -> Any:
        if isinstance(value, FunctionRef):
            raise not_allowed(value, task, keys)
        return run_code(value, task, keys) if callable(value) else value

    given = dict(task.dataset.kwargs or {})
    try:
        files = with_leaves(given["data_files"], made, "dataset_kwargs", "data_files")
        kwargs: Any = {**given, "data_files": files}
    except (DocsError, MissingResourceError):
        kwargs = None
    return replace(task, dataset=replace(task.dataset, kwargs=kwargs))


@dataclass(frozen=True, eq=False)
class Unprocessed:
    """The docs of a split, the `process_docs` for them, and the path of its key."""

    docs: Sequence[Doc]
    process_docs: Callable[..., Any]
    keys: tuple[str, ...]

    def processed(self, task: Task, datasets: Any, given: Any, random: OwnRandomness) -> list[Doc]:
        """Return what the function makes of `given`, the docs as a `datasets.Dataset`, as in lm-eval 0.4.13."""
        function, keys = self.process_docs, self.keys
        with _quiet(datasets):
            made = run_code(lambda: list(function(given)), task, keys, random)
        for index, doc in enumerate(made):
            if not isinstance(doc, Mapping):
                message = (
                    f"doc {index + 1} from {'.'.join(keys)} must be a mapping of columns, not {type(doc).__name__}"
                )
                raise task.error(DocsError, message, *keys)
        if not made:
            raise task.error(DocsError, f"no docs: {'.'.join(keys)} removed all {len(self.docs)} rows", *keys)
        return [dict(doc) for doc in made]

    def as_dataset(self, datasets: Any) -> Any:
        """Return the docs as the function is given them."""
        names = dict.fromkeys(name for doc in self.docs for name in doc)
        # Without this, from_list would drop the columns that the first doc does not have.
        return datasets.Dataset.from_list([{name: doc.get(name) for name in names} for doc in self.docs])


def processed(
    asked: Unprocessed, task: Task, order: Callable[[], Sequence[Unprocessed | None]]
) -> tuple[list[Doc], OwnRandomness | None]:
    """Return the docs after their `process_docs`, and the state of generators then if it draws at random.

    Then the docs are those of the last call in `order`, in which lm-eval calls the functions of a task: draws go on.
    None among them is the place where it lays out the first doc.
    """
    datasets = _datasets(f"{'.'.join(asked.keys)} of {task.name}", task.position(*asked.keys))
    random = OwnRandomness(task)
    made = asked.processed(task, datasets, asked.as_dataset(datasets), random)
    if not random.has_drawn:
        return made, None
    random = OwnRandomness(task)
    # What `Dataset.map` and its kin made of a dataset on a disk is not made again; of one in memory it is.
    with tempfile.TemporaryDirectory() as folder, _quiet(datasets):
        stored: dict[int, Any] = {}  # by the docs, which the pool may share
        for step in order():
            if step is None:
                with suppress(PromptfmtError), random.used():
                    task.assembly.assembler(task, TaskDocs.in_memory(made), 0)
                random.skip(task.release.numbers_drawn)
                continue
            place = id(step.docs)
            if place not in stored:
                step.as_dataset(datasets).save_to_disk(f"{folder}/{place}")
                stored[place] = datasets.load_from_disk(f"{folder}/{place}")
            made = step.processed(task, datasets, stored[place], random)
    return made, random


def not_allowed(function: FunctionRef, task: Task, keys: tuple[str, ...]) -> CodeNotAllowedError:
    """Return the error for a function of a task whose code may not run."""
    message = f"{'.'.join(keys)}: the Python function {function} is not allowed to run"
    return CodeNotAllowedError.of(message, task.position(*keys))


def run_code(
    function: Callable[[], Any], task: Task, keys: tuple[str, ...], random: OwnRandomness | None = None
) -> Any:
    """Return what the user's function gives, within its time limit; raises DocsError for any exception of it.

    What it draws at random is what it draws for the first task of a run of lm-eval, which sets the seeds itself.
    """
    position, own = task.position(*keys), random or OwnRandomness(task)
    try:
        with own.used(), time_limit(FUNCTION_SECONDS, f"{'.'.join(keys)} of {task.name}", position):
            return function()
    except PromptfmtError:
        raise
    except (Exception, SystemExit) as error:
        message = f"{'.'.join(keys)} raised {described(error)}"
        if (missing := lacking(error, message, position)) is not None:
            raise missing from error
        raise DocsError(
            message,
            position=position,
            hint="change the docs so that the function works, or add other docs in metadata.promptfmt.docs",
        ) from error


def as_arrow(docs: list[Doc], label: str, position: Position | None) -> Iterable[Doc]:
    """Return the docs with the values that Hugging Face datasets gives them when it reads them as JSON lines."""
    datasets = _datasets("`normalize: arrow` under metadata.promptfmt", position)
    try:
        lines = [json.dumps(dict(doc), ensure_ascii=False) for doc in docs]
    except (TypeError, ValueError):
        lines = []  # dates and the like, which come from a typed source already
    try:
        with _quiet(datasets), tempfile.TemporaryDirectory() as folder:
            if not lines:
                return list(datasets.Dataset.from_list([dict(doc) for doc in docs]))
            path = Path(folder) / "docs.jsonl"
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
            return list(datasets.Dataset.from_json(str(path), cache_dir=folder, keep_in_memory=True))
    except Exception as error:
        raise DocsError(f"Hugging Face datasets cannot read {label}: {error}", position=position) from error


def _datasets(what: str, position: Position | None) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise needs_datasets(what, position).naming(what) from error
    return datasets


@contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Disable progress bars inside the block, and restore the user's setting after it."""
    were_disabled = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not were_disabled:
            datasets.enable_progress_bars()
