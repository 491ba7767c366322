"""Code of the user that makes docs: `process_docs`, functions in `dataset_kwargs`, and Hugging Face datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.errors import (
    CodeNotAllowedError,
    DocsError,
    MissingResourceError,
    Position,
    PromptfmtError,
    described,
)
from pytest_promptfmt.core.limits import OwnRandomness, time_limit
from pytest_promptfmt.core.task import FunctionRef, Task, leaves
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
        if isinstance(value, Mapping):
            return {key: made(item, *keys, key) for key, item in value.items()}
        if isinstance(value, FunctionRef):
            raise not_allowed(value, task, keys)
        return run_code(value, task, keys) if callable(value) else value

    given = dict(task.dataset.kwargs or {})
    try:
        kwargs: Any = {**given, "data_files": made(given["data_files"], "dataset_kwargs", "data_files")}
    except (DocsError, MissingResourceError):
        kwargs = None
    return replace(task, dataset=replace(task.dataset, kwargs=kwargs))


def processed(process_docs: Callable[..., Any], docs: list[Doc], task: Task, keys: tuple[str, ...]) -> Iterable[Doc]:
    """Return what `process_docs` makes of the docs; it is given a `datasets.Dataset`, as in lm-eval 0.4.13."""
    datasets = _datasets(f"{'.'.join(keys)} of {task.name}", task.position(*keys))
    names = dict.fromkeys(name for doc in docs for name in doc)
    # Without this, from_list would drop the columns that the first doc does not have.
    even = [{name: doc.get(name) for name in names} for doc in docs]
    with _quiet(datasets):
        made = run_code(lambda: list(process_docs(datasets.Dataset.from_list(even))), task, keys)
    for index, doc in enumerate(made):
        if not isinstance(doc, Mapping):
            raise DocsError(
                f"{'.'.join(keys)} returned a {type(doc).__name__} as doc {index + 1}, not a mapping of columns",
                position=task.position(*keys),
            )
    if not made:
        raise DocsError(f"no docs: {'.'.join(keys)} kept none of {len(docs)}", position=task.position(*keys))
    return list(made)


def not_allowed(function: FunctionRef, task: Task, keys: tuple[str, ...]) -> CodeNotAllowedError:
    """Return the error for a function of a task whose code may not run."""
    return CodeNotAllowedError(
        f"{'.'.join(keys)} is the Python function {function}, which is not allowed to run",
        position=task.position(*keys),
        hint="allow the task's code if you trust it",
    )


def run_code(function: Callable[[], Any], task: Task, keys: tuple[str, ...]) -> Any:
    """Return what the user's function gives, within its time limit; raises DocsError for any exception of it.

    What it draws at random is what it draws for the first task of a run of lm-eval, which sets the seeds itself.
    """
    position = task.position(*keys)
    try:
        with OwnRandomness().used(), time_limit(FUNCTION_SECONDS, f"{'.'.join(keys)} of {task.name}", position):
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
            hint="write docs it can read, or give docs in metadata.promptfmt.docs",
        ) from error


def as_arrow(docs: list[Doc], label: str, position: Position | None) -> Iterable[Doc]:
    """Return the docs with the values that Hugging Face datasets gives them when it reads them as JSON lines."""
    import json
    import tempfile

    datasets = _datasets("metadata.promptfmt.normalize: arrow", position)
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
