"""Where the docs of a task come from, without a network: the nearest of several places, else synthetic ones.

In order: docs that come with the task itself, `metadata.promptfmt.docs`, sidecar files next to the task or in its
folder of docs, its local data files, and docs made from the templates (synthetic_docs.py). `custom_dataset` usually
downloads, so it is called only where the metadata request it. How a file is read is decided in data_files.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core.docs import Doc, DocsKind, TaskDocs
from pytest_promptfmt.core.errors import DocsError, Position, did_you_mean
from pytest_promptfmt.core.randomness import OwnRandomness
from pytest_promptfmt.core.task import FunctionRef, Spec, Task, Unset
from pytest_promptfmt.tasks.docs.data_files import MAX_DOCS, named_file, read_data_file
from pytest_promptfmt.tasks.docs.doc_functions import (
    Unprocessed,
    as_arrow,
    makes_names,
    not_allowed,
    processed,
    run_code,
    with_made_names,
)
from pytest_promptfmt.tasks.docs.local_data import LocalFiles, local_files
from pytest_promptfmt.tasks.synthetic.synthetic_docs import SHOT_SPLIT, synthetic_docs

DEFAULT_COUNT: Final = 3
DEFAULT_SYNTHETIC_COUNT: Final = 2
_FEWSHOT: Final = "fewshot"
_CUSTOM: Final = "custom_dataset"


def load_docs(task: Task, *, count: int | None = None, num_fewshot: int | None = None) -> TaskDocs:
    """Return the docs of a task: those to evaluate, and the pool of its shots.

    `count` is how many docs are evaluated, by default 3, of synthetic ones 2, or fewer if there are fewer.
    `num_fewshot` replaces the task's own number, unless that is 0. The pool follows lm-eval 0.4.13: the few-shot
    split, else training, validation or test split; at most 10,000 docs of it are read, none for 0 shots.

    Raises DocsError with file and line when docs cannot be found or read, SyntheticDocsError when none can be made,
    CodeNotAllowedError when `process_docs` would be needed but may not run, LimitExceededError when it does not end.
    """
    if count is not None and count < 1:
        raise DocsError(f"the number of docs is {count}", hint="use 1 or more")
    given = task.dataset.given(count, task.shots(num_fewshot)) if task.dataset.given is not None else None
    if given is not None:
        return given
    search = _Search(task)
    split = task.dataset.evaluation_split
    source = search.evaluated()
    if source is None:
        kind: DocsKind = "synthetic"
        evaluated = synthetic_docs(task, count=count or DEFAULT_SYNTHETIC_COUNT, split=split)
        origin = f"{len(evaluated)} synthetic"
    else:
        kind = "given"
        evaluated = search.read(
            source, task.dataset.process_docs, count or DEFAULT_COUNT, ("process_docs",), _run_order
        )
        origin = f"{len(evaluated)} from {source.label}"
        if not evaluated:
            raise source.error(f"no docs: {source.label} has none")
    pool, pool_origin, pool_kind = _pool(search, task.shots(num_fewshot))
    return TaskDocs(
        evaluated=evaluated,
        fewshot=pool,
        columns=tuple(dict.fromkeys(name for doc in evaluated for name in doc)),
        origin=origin,
        fewshot_origin=pool_origin,
        kind=kind,
        fewshot_kind=pool_kind,
        random_states=search.random.states if search.random is not None else None,
    )


def with_pool(task: Task, docs: TaskDocs, shots: int) -> TaskDocs:
    """Return the same docs with the pool that so many few-shot examples are drawn from; raises as `load_docs`."""
    found = task.dataset.given(len(docs.evaluated), shots) if task.dataset.given is not None else None
    if found is not None:
        return found
    pool, origin, kind = _pool(_Search(task), shots)
    return replace(docs, fewshot=pool, fewshot_origin=origin, fewshot_kind=kind)


def _pool(search: _Search, shots: int) -> tuple[tuple[Doc, ...], str, DocsKind]:
    """Return the docs that few-shot examples are drawn from, where they came from in a few words, and their kind."""
    task = search.task
    split, process_docs, key = _pool_rule(task)
    if shots <= 0:
        return (), "none needed", "given"
    if split is None and task.fewshot.samples is not None:
        return _written_samples(task)
    if split is None:
        split = _fallback_split(task)
    source = search.shots(split)
    # One more than the shots, because the evaluated doc may be drawn and dropped.
    needed = shots + 1
    if source is None:
        return synthetic_docs(task, count=needed, split=SHOT_SPLIT), f"{needed} synthetic", "synthetic"
    pool = search.read(source, process_docs, MAX_DOCS, key, _pool_order)
    origin = f"{len(pool)} from {source.label}"
    same = split == task.dataset.evaluation_split and not source.only_shots
    if not pool and not same:
        raise source.error(f"no docs: {source.label} has none")
    if same and len(pool) < needed:
        made = synthetic_docs(task, count=needed - len(pool), split=SHOT_SPLIT)
        return (*pool, *made), f"{origin}, {len(made)} synthetic", "mixed" if pool else "synthetic"
    return pool, origin, "given"


def _written_samples(task: Task) -> tuple[tuple[Doc, ...], str, DocsKind]:
    """Return the shots written into the task itself; lm-eval 0.4.13 does not process them."""
    samples, keys = task.fewshot.samples, ("fewshot_config", "samples")
    if isinstance(samples, FunctionRef):
        raise not_allowed(samples, task, keys)
    if callable(samples):
        samples = run_code(samples, task, keys)
    if not isinstance(samples, list | tuple):
        hint = "give a list of docs, or a function that returns one"
        raise task.error(DocsError, f"fewshot_config.samples is a {type(samples).__name__}", *keys, hint=hint)
    source = _Source(label="fewshot_config.samples", position=task.position(*keys), docs=lambda: samples)
    pool = tuple(source.checked())
    return pool, f"{len(pool)} from {source.label}", "given"


def _pool_rule(task: Task) -> tuple[str | None, Spec, tuple[str, ...]]:
    """Return the few-shot split if one is set, with the function that goes with it and that function's key."""
    split = task.fewshot.split if not isinstance(task.fewshot.split, Unset) else task.dataset.fewshot_split
    if split is not None and not isinstance(task.fewshot.process_docs, Unset):
        return split, task.fewshot.process_docs, ("fewshot_config", "process_docs")
    return split, task.dataset.process_docs, ("process_docs",)


def shot_split(task: Task) -> str | None:
    """Return the split that few-shot examples are drawn from; None where the task writes them, or has no split."""
    split, _, _ = _pool_rule(task)
    return _fallback_split(task) if split is None and task.fewshot.samples is None else split


def has_docs_for_shots(task: Task) -> bool:
    """Return whether few-shot examples are drawn from docs of the user; not those that the task itself writes."""
    split = shot_split(task)
    return split is not None and _Search(task).shots(split) is not None


def _fallback_split(task: Task) -> str | None:
    data = task.dataset
    return next((s for s in (data.training_split, data.validation_split, data.test_split) if s is not None), None)


# -- the search ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Source:
    """A place that holds docs: how to read them, and its label."""

    label: str
    position: Position | None
    docs: Callable[[], Iterable[Any]]
    only_shots: bool = False

    def checked(self) -> Iterator[Doc]:
        """Yield the docs, each a mapping of column names."""
        for index, doc in enumerate(self.docs()):
            what = f"doc {index + 1} of {self.label}"
            if not isinstance(doc, Mapping):
                raise self.error(f"{what} is a {type(doc).__name__}, not a mapping of columns")
            odd = next((name for name in doc if not isinstance(name, str)), None)
            if odd is not None:
                raise self.error(f"{what} has the column name {odd!r}, which is not text", "put quotes around the name")
            yield doc

    def error(self, message: str, hint: str | None = None) -> DocsError:
        """Return an error about these docs."""
        return DocsError(message, position=self.position, hint=hint)


class _Search:
    """Finds the docs of one task; every place is tried once."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.random: OwnRandomness | None = None
        """The generators after `process_docs` of the evaluated docs, where that draws."""

    def evaluated(self) -> _Source | None:
        """Return where the evaluated docs are, None when nothing is given for them."""
        split = self.task.dataset.evaluation_split
        return self._written(split, main=True) or self._sidecar(*_suffixes(split, main=True)) or self._data(split)

    def shots(self, split: str | None) -> _Source | None:
        """Return where the docs of the few-shot split are, None when nothing is given for them."""
        given = self._written(_FEWSHOT) or self._sidecar(f".docs.{_FEWSHOT}.jsonl")
        if given is not None:
            return replace(given, only_shots=True)
        if split == self.task.dataset.evaluation_split:
            return self.evaluated()
        return self._written(split) or self._sidecar(*_suffixes(split)) or self._data(split)

    # -- metadata.promptfmt.docs -------------------------------------------------------------------------------

    def _written(self, split: str | None, main: bool = False) -> _Source | None:
        given = self.task.own_metadata.get("docs")
        if given is None:
            return None
        keys: tuple[str, ...] = ("metadata", "promptfmt", "docs")
        if isinstance(given, Mapping):
            self._require_known_splits(given)
            if split is None or split not in given:
                return None
            given = given[split]
            keys = (*keys, split)
        elif not main and (given != _CUSTOM or split == _FEWSHOT):
            return None
        position = self.task.position(*keys)
        if given == _CUSTOM and callable(self.task.dataset.custom) and split is not None:
            return self._custom_source(split)
        if isinstance(given, str):
            folder = position.path.parent if position is not None else Path()
            return _Source(
                label=given,
                position=position,
                docs=lambda: read_data_file(named_file(folder, given, position), position=position),
            )
        if isinstance(given, list | tuple):
            return _Source(label=".".join(keys), position=position, docs=lambda: given)
        hint = "give a list of docs or a file, or map each split name to one of these"
        raise self.task.error(DocsError, f"{'.'.join(keys)} is {given!r:.60}", *keys, hint=hint)

    def _require_known_splits(self, given: Mapping[Any, Any]) -> None:
        data = self.task.dataset
        own = self.task.fewshot.split
        known = [data.training_split, data.validation_split, data.test_split, data.fewshot_split]
        names = [str(s) for s in (*known, own) if s is not None and not isinstance(s, Unset)]
        for split in given:
            if split not in names and split != _FEWSHOT:
                listed = ", ".join(dict.fromkeys([*names, _FEWSHOT]))
                message = f"the task has no split {split!r}; it has {listed}"
                hint = did_you_mean(str(split), [*names, _FEWSHOT])
                raise self.task.error(DocsError, message, "metadata", "promptfmt", "docs", split, hint=hint)

    # -- sidecars ----------------------------------------------------------------------------------------------

    def _sidecar(self, *suffixes: str) -> _Source | None:
        """Return the first file that has the name of the task or its file, with one of the suffixes.

        It is next to the task, else in its folder of docs. Anything with that name counts: a folder or a broken link is
        reported, not skipped.
        """
        task_path = self.task.path
        if task_path is None:
            return None
        stems = [stem for stem in dict.fromkeys([self.task.name, task_path.stem]) if _is_file_name(stem)]
        folders = [task_path.parent]
        if self.task.docs_folder is not None:
            with suppress(OSError), os.scandir(self.task.docs_folder):
                pass  # so that docs which are put there later count as a change
            folders.append(self.task.docs_folder)
        paths = [folder / f"{stem}{suffix}" for folder in folders for stem in stems for suffix in suffixes]
        path = next((path for path in paths if os.path.lexists(path)), None)
        if path is None:
            return None
        return _Source(label=path.name, position=Position(path), docs=partial(read_data_file, path))

    # -- the task's own data -----------------------------------------------------------------------------------

    @cached_property
    def _local(self) -> LocalFiles | None:
        task = with_made_names(self.task)
        try:
            return local_files(task)
        except DocsError:
            if task is self.task:
                raise
            return None  # names that a function makes for another machine

    def _data(self, split: str | None) -> _Source | None:
        found = self._local if split is not None else None
        if split is None or found is None or (split not in found.splits and makes_names(self.task)):
            return None
        position = self.task.position("dataset_kwargs", "data_files")
        if split not in found.splits:
            hint = f"write data_files as a mapping: {{{split}: …}}. A plain list of files is the split 'train'"
            message = f"the task uses the split {split!r}, but data_files has only {', '.join(found.splits)}"
            raise DocsError(message, position=position, hint=did_you_mean(split, found.splits) or hint)
        files = found.splits[split]

        def docs() -> Iterator[Doc]:
            for path in files:
                yield from read_data_file(path, kind=found.kind, options=found.options, position=position)

        return _Source(label=found.label(split), position=position, docs=docs)

    @cached_property
    def _custom(self) -> Any:
        data = self.task.dataset
        arguments = {**self.task.metadata, **(data.kwargs or {})}
        if self.task.path is not None:
            arguments.setdefault("config_source", str(self.task.path))
        return run_code(lambda: data.custom(**arguments), self.task, (_CUSTOM,))

    def _custom_source(self, split: str) -> _Source:
        known = list(self._custom) if isinstance(self._custom, Mapping) else []
        if split not in known:
            only = f", only {', '.join(map(str, known))}" if known else ""
            hint = did_you_mean(split, map(str, known)) or "return a mapping of split names to datasets"
            raise self.task.error(DocsError, f"custom_dataset returns no split {split!r}{only}", _CUSTOM, hint=hint)
        position = self.task.position(_CUSTOM)
        return _Source(label=_CUSTOM, position=position, docs=lambda: self._custom[split])

    # -- reading -----------------------------------------------------------------------------------------------

    def read(
        self, source: _Source, process_docs: Spec, count: int, keys: tuple[str, ...], order: _Order
    ) -> tuple[Doc, ...]:
        """Return the first `count` docs of a source after normalising and `process_docs`, if there is one."""
        if process_docs is None and self.task.own_metadata.get("normalize", "raw") == "raw":
            return tuple(islice(source.checked(), count))
        docs = self.whole(source)
        if isinstance(process_docs, FunctionRef):
            raise not_allowed(process_docs, self.task, keys)
        if process_docs is not None:
            asked = Unprocessed(docs, process_docs, keys)
            docs, random = processed(asked, self.task, lambda: order(self, asked))
            self.random = random if order is _run_order else self.random
        return tuple(docs[:count])

    def whole(self, source: _Source) -> list[Doc]:
        """Return all docs of a source, normalised: one float makes a column of integers floats."""
        task = self.task
        normalize = task.own_metadata.get("normalize", "raw")
        if normalize not in ("raw", "arrow"):
            message = f"unknown value {normalize!r} of metadata.promptfmt.normalize"
            hint = "write raw (values as in the file) or arrow (values as in Hugging Face datasets)"
            raise task.error(DocsError, message, "metadata", "promptfmt", "normalize", hint=hint)
        docs = list(islice(source.checked(), MAX_DOCS))
        return docs if normalize == "raw" else [*map(dict, as_arrow(docs, source.label, source.position))]


_Order = Callable[[_Search, Unprocessed], Sequence[Unprocessed | None]]
"""From the docs of a split to the calls of `process_docs` up to theirs, with None where the first doc is laid out."""


def _pool_order(search: _Search, pool: Unprocessed) -> Sequence[Unprocessed | None]:
    return [pool] * (1 + search.task.release.reads_pool_twice)


def _run_order(search: _Search, evaluated: Unprocessed) -> Sequence[Unprocessed | None]:
    """Return the calls of a run: lm-eval reads the few-shot docs even where there are no shots."""
    split, process_docs, keys = _pool_rule(search.task)
    before: Sequence[Unprocessed | None] = ()
    if callable(process_docs) and (split is not None or search.task.fewshot.samples is None):
        split = split or _fallback_split(search.task)
        source = search.shots(split)
        if source is not None:
            is_same = split == search.task.dataset.evaluation_split and not source.only_shots
            docs = evaluated.docs if is_same else search.whole(source)
            before = _pool_order(search, Unprocessed(docs, process_docs, keys))
    return *before, evaluated, None, evaluated


def _suffixes(split: str | None, main: bool = False) -> list[str]:
    named = [f".docs.{split}.jsonl"] if split and _is_file_name(split) else []
    return [".docs.jsonl", *named] if main else named


def _is_file_name(text: str) -> bool:
    return bool(text) and len(text) < 200 and not set(text) & set("/\\\0")
