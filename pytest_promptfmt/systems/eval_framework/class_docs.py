"""The docs of a task class: rows given next to it, those it loads itself, or the samples that it yields.

Rows are never fetched from a hub. Which of them shots are drawn from, and which subject a row belongs to, is as in
eval-framework 0.15.4; `messages.py` draws them.
"""

from __future__ import annotations

import copy
import os
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core.docs import Doc, TaskDocs
from pytest_promptfmt.core.errors import DocsError, RenderError, SyntheticDocsError
from pytest_promptfmt.core.task import FIELDS, Task
from pytest_promptfmt.systems.eval_framework.hooks import Constants, TaskClass
from pytest_promptfmt.tasks import DEFAULT_COUNT, MAX_DOCS, load_docs

OWN_DOCS: Final = "PROMPTFMT_DOCS"
"""The class attribute that may hold docs: a list, a file next to the class, or a mapping of splits to these."""


class NoClassDocsError(SyntheticDocsError):
    """A task class without docs: its hooks are code, from which no synthetic docs can be made."""

    reason = "there are no docs for the task class"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassDocs(TaskDocs):
    """The docs of a class with hooks.

    `rows` is the whole sample split in the order of its file, of which `evaluated` is the beginning: eval-framework
    shuffles and draws over all of it. `shares_split`: shots are drawn from the same rows, `is_loaded` that the
    class's own loader has put them in order, `given` the splits that this loader read where there are any, and
    `random_state` what it left of `self.rnd`, from which shots are drawn.
    """

    rows: tuple[Doc, ...]
    shares_split: bool
    is_loaded: bool = False
    given: Mapping[str, Sequence[Doc]] = field(default_factory=dict)
    random_state: Any = None


class SampleDoc(dict[str, Any]):
    """The doc of one sample: its columns are the id and subject of the sample, or those of its row.

    `sample` is what the class made: messages, ground truth and candidates, by attribute or key.
    """

    def __init__(self, columns: Mapping[str, Any], sample: Any) -> None:
        """Take the columns, and the sample itself."""
        super().__init__(columns)
        self.sample = sample

    def __deepcopy__(self, memo: dict[int, Any]) -> SampleDoc:
        """Return a doc with copied columns; the sample belongs to the class and is never copied."""
        return SampleDoc({name: copy.deepcopy(value, memo) for name, value in self.items()}, self.sample)


def class_docs(task: Task, found: TaskClass, count: int | None, shots: int) -> TaskDocs:
    """Return the docs of a bound class task. Raises DocsError, RenderError (from its hooks), SyntheticDocsError."""
    wanted = count or DEFAULT_COUNT
    shots = found.shots(shots)
    if found.kind != "hooks":
        return _samples(task, found, wanted, shots)
    constants = found.constants()
    drawn: Any = None
    given: Mapping[str, Sequence[Doc]] = {}
    if "_load_dataset" in found.own:
        rows, pool, origin, pool_origin, drawn, given = _loaded(task, found, constants, shots)
        shares = constants.sample_split == constants.fewshot_split
    else:
        rows, origin = _rows(task)
        pool, pool_origin, shares = _pool(task, constants, rows, origin, shots)
    if not rows:
        raise DocsError(f"no docs: {origin} has none", position=found.position)
    evaluated = rows[:wanted]
    return ClassDocs(
        evaluated=evaluated,
        fewshot=pool,
        columns=tuple(dict.fromkeys(name for doc in evaluated for name in doc)),
        origin=origin if len(rows) == len(evaluated) else f"{len(evaluated)} of {origin}",
        fewshot_origin=pool_origin,
        rows=rows,
        shares_split=shares,
        is_loaded="_load_dataset" in found.own,
        given=given,
        random_state=drawn,
    )


def as_class_docs(docs: TaskDocs) -> ClassDocs:
    """Return docs given in memory as those of a class."""
    if isinstance(docs, ClassDocs):
        return docs
    given = {each.name: getattr(docs, each.name) for each in fields(docs)}
    return ClassDocs(**given, rows=docs.evaluated, shares_split=docs.fewshot == docs.evaluated)


def subject_of(doc: Doc, subjects: Sequence[Any]) -> Any:
    """Return the subject of a row: the one that its column `subject` names, else the first."""
    return next((one for one in subjects if "subject" in doc and _names(doc["subject"], one)), subjects[0])


def is_of(doc: Doc, subject: Any, subjects: Sequence[Any]) -> bool:
    """Return whether a row may be a shot for a subject: it names that subject, or none of the subjects."""
    named = [one for one in subjects if "subject" in doc and _names(doc["subject"], one)]
    return not named or subject in named


def _names(value: Any, subject: Any) -> bool:
    also = (subject.value, subject.name) if isinstance(subject, Enum) else ()
    return bool(value == subject or value in also or str(value) == str(subject))


# -- rows ------------------------------------------------------------------------------------------------------------


def _without_given(task: Task) -> Task:
    """Return the task with the places where docs are, and nothing that synthetic docs could be made from."""
    return replace(task, dataset=replace(task.dataset, given=None), assembly=FIELDS)


def _rows(task: Task) -> tuple[tuple[Doc, ...], str]:
    try:
        found = load_docs(_without_given(task), count=MAX_DOCS, num_fewshot=0)
    except SyntheticDocsError as error:
        raise _no_docs(task) from error
    if found.kind == "synthetic":
        raise _no_docs(task)
    return found.evaluated, _shown(found.origin, task)


def _shown(origin: str, task: Task) -> str:
    """Return an origin with the key that the author wrote: `docs` at the top of the YAML, or the class attribute."""
    written = task.config.get("metadata")
    in_metadata = isinstance(written, Mapping) and "docs" in (written.get("promptfmt") or {})
    name = "docs" if "docs" in task.config else OWN_DOCS
    return origin if in_metadata else origin.replace("metadata.promptfmt.docs", name)


def _no_docs(task: Task) -> NoClassDocsError:
    return NoClassDocsError(
        f"the task class {task.name!r} has no docs, and there are no synthetic docs for classes",
        position=task.position("class"),
        hint=(
            f"add rows: with `docs:` in the YAML, in {task.name}.docs.jsonl next "
            f"to the file, or as {OWN_DOCS} in the class"
        ),
    ).naming(repr(task.name))


def _pool(
    task: Task, constants: Constants, rows: tuple[Doc, ...], origin: str, shots: int
) -> tuple[tuple[Doc, ...], str, bool]:
    if shots <= 0:
        return (), "none needed", False
    if constants.sample_split == constants.fewshot_split:
        return rows, origin, True
    try:
        found = load_docs(replace(_without_given(task), num_fewshot=shots), count=1)
    except SyntheticDocsError:
        found = None
    if found is None or found.fewshot_kind != "given":
        return rows, f"{origin}, because there are no docs of {constants.fewshot_split!r}", True
    return found.fewshot, _shown(found.fewshot_origin, task), False


def _loaded(
    task: Task, found: TaskClass, constants: Constants, shots: int
) -> tuple[tuple[Doc, ...], tuple[Doc, ...], str, str, Any, dict[str, Sequence[Doc]]]:
    """Return the docs and pool that the class's own `_load_dataset` makes, from given rows where there are any.

    The last are the state that it leaves `self.rnd` in, as a loader that shuffles draws before the shots do, and the
    given rows by split.
    """
    try:
        given, origin = _rows(task)
        pool, pool_origin, _ = _pool(task, constants, given, origin, shots)
    except SyntheticDocsError:
        given, origin, pool, pool_origin = (), "", (), ""
    instance = found.make(shots)
    splits: dict[str, Sequence[Doc]] = {}
    if given:
        splits = {constants.sample_split: given, constants.fewshot_split: pool or given}
        replace_loader(instance, splits)
    subject = subject_of(given[0], constants.subjects) if given else constants.subjects[0]
    found.call(instance._load_dataset, subject, hook="_load_dataset")
    dataset = getattr(instance, "dataset", None)
    if not isinstance(dataset, Mapping) or constants.sample_split not in dataset:
        raise RenderError(
            f"_load_dataset of {found.name!r} sets no docs for the split {constants.sample_split!r}",
            position=found.line_of("_load_dataset"),
            hint="set self.dataset to a mapping of splits to lists of rows",
        )
    rows = tuple(_checked(dataset[constants.sample_split], found))
    made = f"{len(rows)} from _load_dataset" + (f", of {origin}" if origin else "")
    own_random = getattr(instance, "rnd", None)
    state = own_random.getstate() if isinstance(own_random, random.Random) else None
    if shots <= 0:
        return rows, (), made, "none needed", state, splits
    drawn = tuple(_checked(dataset.get(constants.fewshot_split, ()), found))
    drawn_from = f"{len(drawn)} from _load_dataset" + (f", of {pool_origin}" if pool_origin else "")
    return rows, drawn, made, drawn_from, state, splits


def _checked(rows: Iterable[Any], found: TaskClass) -> Iterator[Doc]:
    for number, row in enumerate(islice(rows, MAX_DOCS), start=1):
        if not isinstance(row, Mapping):
            raise RenderError(
                f"_load_dataset of {found.name!r}: doc {number} must be a mapping, not {type(row).__name__}",
                position=found.line_of("_load_dataset"),
            )
        yield dict(row)


# -- loaders of the user's objects -----------------------------------------------------------------------------------


class _Splits(dict[str, list[dict[str, Any]]]):
    """Splits by name; an unknown name gives the rows of the first, and is noted in `missing`."""

    missing: set[str]

    def __missing__(self, name: str) -> list[dict[str, Any]]:
        self.missing.add(name)
        return copy.deepcopy(next(iter(self.values())))


@dataclass(slots=True)
class _Loader:
    splits: Mapping[str, Sequence[Doc]]
    missing: set[str] = field(default_factory=set)

    def load(self, subject: str | None) -> _Splits:
        """Return the rows of a subject: those that name it where some do, else all."""
        loaded = _Splits()
        for name, rows in self.splits.items():
            mine = [row for row in rows if subject is not None and _names(row.get("subject"), subject)]
            loaded[name] = [copy.deepcopy(dict(row)) for row in mine or rows]
        loaded.missing = self.missing
        return loaded

    def metadata(self) -> dict[str, str]:
        return {}


def replace_loader(instance: Any, splits: Mapping[str, Sequence[Doc]]) -> set[str]:
    """Make an object of the user's load these rows (a copy each time) instead of a data set from a hub.

    Return the names of splits without rows that it loads: empty now, filled as it loads them.
    """
    loader = _Loader(splits)
    if hasattr(getattr(instance, "loader", None), "load"):
        instance.loader = loader
    elif hasattr(instance, "_load_hf_dataset"):
        instance._load_hf_dataset = lambda *_args, **options: loader.load(options.get("name"))
    elif hasattr(instance, "_load_dataset"):

        def load(*_args: Any, **_options: Any) -> None:
            instance.dataset = loader.load(None)

        instance._load_dataset = load
    return loader.missing


# -- samples ---------------------------------------------------------------------------------------------------------


def _samples(task: Task, found: TaskClass, wanted: int, shots: int) -> TaskDocs:
    """Return what an object with `iterate_samples` yields, in order; each doc names its sample and subject."""
    instance = found.make(shots)
    origin, missing = "iterate_samples", set[str]()
    try:
        splits, row_origin = _all_splits(task, found.constants(instance).sample_split)
    except SyntheticDocsError:
        pass  # its samples may need none; otherwise iterate_samples fails with a reason
    else:
        named = _named_subjects(found, next(iter(splits.values())))
        if named:
            instance = found.make(shots, named)
        missing = replace_loader(instance, splits)
        origin = f"iterate_samples over {row_origin}"
    samples = found.call(lambda: tuple(islice(instance.iterate_samples(wanted), wanted)), hook="iterate_samples")
    if missing:
        origin += f", because there are no docs of {', '.join(map(repr, sorted(missing)))}"
    if not samples:
        raise DocsError(
            "there are no docs, because iterate_samples yields no samples", position=found.line_of("iterate_samples")
        )
    docs = tuple(SampleDoc({"id": part(each, "id"), "subject": str(part(each, "subject"))}, each) for each in samples)
    return TaskDocs(
        evaluated=docs,
        fewshot=(),
        columns=("id", "subject"),
        origin=f"{len(docs)} from {origin}",
        fewshot_origin="iterate_samples" if shots else "none needed",
    )


def _named_subjects(found: TaskClass, rows: Sequence[Doc]) -> list[str]:
    """Return the subjects of a benchmark that rows name, in the benchmark's order; none for other objects."""
    if found.kind != "benchmark":
        return []
    known = found.call(found.found.subjects, hook="subjects")
    return [str(one) for one in known if any(_names(row.get("subject"), one) for row in rows)]


def _all_splits(task: Task, sample_split: str) -> tuple[dict[str, tuple[Doc, ...]], str]:
    """Return the rows of every given split, the sample split first: only the object knows which of them it loads."""
    written = task.own_metadata.get("docs")
    given = {**_sidecars(task), **(written if isinstance(written, Mapping) else {})}
    others = [name for name in given if name != sample_split]
    known = replace(task, dataset=replace(task.dataset, test_split=sample_split, fewshot_split=None))
    splits: dict[str, tuple[Doc, ...]] = {}
    origin = ""
    for name in (sample_split, *others):
        dataset = replace(known.dataset, test_split=name, training_split=sample_split)
        is_named = name in given and (name != sample_split or isinstance(written, Mapping))
        docs = {"docs": {name: given[name]}} if is_named else {}
        one = replace(known, dataset=dataset, metadata={**task.metadata, "promptfmt": {**task.own_metadata, **docs}})
        splits[name], label = _rows(one)
        origin = origin or label
    return splits, origin


def _sidecars(task: Task) -> dict[str, str]:
    """Return the files `NAME.docs.SPLIT.jsonl` next to a task or in its folder of docs, by their splits."""
    if task.path is None:
        return {}
    stems, folders = (task.path.stem, task.name), filter(None, (task.docs_folder, task.path.parent))
    found = {split: file for folder in folders for stem in stems for split, file in docs_files(folder, stem)}
    return {split: file for split, file in found.items() if split}


def docs_files(folder: Path, stem: str) -> list[tuple[str, str]]:
    """Return the splits and paths of the files `STEM.docs.jsonl` ("") and `STEM.docs.SPLIT.jsonl` in a folder."""
    with suppress(OSError), os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries)
        named = (re.fullmatch(re.escape(stem) + r"\.docs(?:\.([^.]+))?\.jsonl", name) for name in names)
        return [(each[1] or "", str(folder / each[0])) for each in named if each]
    return []


def part(value: Any, name: str) -> Any:
    """Return a part of a sample or message, whether it is an object or a mapping; None where it is missing."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
