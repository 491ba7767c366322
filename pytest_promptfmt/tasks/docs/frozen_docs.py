"""Real docs of a dataset, chosen by row number and kept next to the task: tests need neither network nor dataset.

Only `promptfmt freeze` uses this module. Only for a dataset of the hub does it use the network, through Hugging Face
datasets.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, Final

from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.errors import DocsError, PromptfmtError, SettingsError, did_you_mean
from pytest_promptfmt.core.task import Task, with_leaves
from pytest_promptfmt.tasks.docs.data_files import MAX_DOCS, read_data_file
from pytest_promptfmt.tasks.docs.doc_sources import load_docs
from pytest_promptfmt.tasks.docs.local_data import local_files
from pytest_promptfmt.tasks.functions import bind_functions, functions_of
from pytest_promptfmt.tasks.renderer import TaskRenderer


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Which rows: the numbers given (from 0), else `count` of them, drawn by `seed`, the first ones without a seed.

    `choose` gives the numbers where the rows themselves decide.
    """

    numbers: tuple[int, ...] = ()
    count: int = 3
    seed: int | None = None
    choose: Callable[[Sequence[Doc]], Sequence[int]] | None = None

    def among(self, docs: Sequence[Doc]) -> list[int]:
        """Return the row numbers, ascending. Raises as `of`, and what `choose` raises."""
        return self.of(len(docs)) if self.choose is None else sorted(self.choose(docs))

    def of(self, total: int) -> list[int]:
        """Return the row numbers, ascending. Raises SettingsError for one out of range."""
        for number in self.numbers:
            if not 0 <= number < total:
                raise SettingsError(f"no row {number}: the split has {total:,} rows", hint="rows are counted from 0")
        if self.numbers:
            return sorted(set(self.numbers))
        if self.seed is None:
            return list(range(min(self.count, total)))
        return sorted(random.Random(self.seed).sample(range(total), min(self.count, total)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Frozen:
    """The docs as in the split, before process_docs, and what is known about their source."""

    docs: tuple[Doc, ...]
    origin: Mapping[str, Any]


def freeze(
    task: Task, *, split: str | None, rows: Rows, file: Path | None = None, revision: str | None = None
) -> Frozen:
    """Return docs of a split: of a local file, of the task's own local files, else of its dataset on the hub.

    Without `split` it is the one that is evaluated. Raises DocsError for unavailable data, SettingsError for rows out
    of range.
    """
    split = split or task.dataset.evaluation_split
    if file is not None:
        return _from_docs(read_data_file(file), rows, {"file": file.name, "split": split})
    found = local_files(task)
    if found is not None:
        if split is None or split not in found.splits:
            known = ", ".join(found.splits)
            raise SettingsError(f"unknown split {split!r}; known: {known}", hint=did_you_mean(str(split), found.splits))
        docs = (
            doc for part in found.splits[split] for doc in read_data_file(part, kind=found.kind, options=found.options)
        )
        return _from_docs(docs, rows, {"files": [part.name for part in found.splits[split]], "split": split})
    return _from_hub(task, split, rows, revision)


def _from_docs(docs: Iterable[Doc], rows: Rows, origin: Mapping[str, Any]) -> Frozen:
    read = list(islice(docs, MAX_DOCS))
    numbers = rows.among(read)
    return Frozen(docs=tuple(read[number] for number in numbers), origin={**origin, "rows": numbers})


def _from_hub(task: Task, split: str | None, rows: Rows, revision: str | None) -> Frozen:
    data = task.dataset
    if data.path is None:
        raise task.error(DocsError, "the task has no dataset_path", "dataset_path", hint="give --from FILE")
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        os.environ.pop(name, None)  # freezing is a request to use the network
    try:
        import datasets
    except ImportError:
        raise DocsError(
            "promptfmt freeze needs the package datasets", hint="pip install 'pytest-promptfmt[datasets]'"
        ) from None
    about = _about(data.path, revision)
    try:
        options = dict(data.kwargs or {})
        commit = about.sha if about is not None else None
        if commit or revision:
            options["revision"] = commit or revision
        loaded = datasets.load_dataset(data.path, data.name, split=split, **options)
    except Exception as error:
        raise _refusal(task, error) from error
    numbers = rows.among(loaded)
    stated = getattr(getattr(about, "card_data", None), "license", None)
    origin = {
        "dataset": data.path,
        "name": data.name,
        "split": split,
        "revision": commit or revision or _loaded_commit(loaded.info.download_checksums),
        "license": loaded.info.license or (", ".join(map(str, stated)) if isinstance(stated, list) else stated or None),
        "datasets": datasets.__version__,
        "rows": numbers,
    }
    return Frozen(docs=tuple(dict(loaded[number]) for number in numbers), origin=origin)


def _about(path: str, revision: str | None) -> Any:
    """Return the hub's information about a dataset at a revision, None if it has no such dataset."""
    from huggingface_hub import HfApi

    try:
        return HfApi().dataset_info(path, revision=revision)
    except Exception:
        return None  # loading the dataset reports the error


def _loaded_commit(files: Iterable[str] | None) -> str | None:
    """Return the commit in the names of the loaded files: without the hub, the only source for the local cache."""
    commits = {match[1] for name in files or () if (match := re.search(r"@([0-9a-f]{40})/", name))}
    return commits.pop() if len(commits) == 1 else None


def _refusal(task: Task, error: Exception) -> DocsError:
    reason = str(error).partition("\n")[0][:300]
    path = task.dataset.path or ""
    wrong = "dataset_path"
    quoted = re.findall(r"['\"]([^'\"]+)['\"]", reason)
    hint: str | None = None
    if "Unknown split" in reason and quoted:
        hint = did_you_mean(quoted[0], quoted[1:])
        named = [key for key in ("test_split", "validation_split") if getattr(task.dataset, key) == quoted[0]]
        wrong = next(iter(named), wrong)
    elif "BuilderConfig" in reason and "not found" in reason and quoted:
        hint = did_you_mean(quoted[0], quoted[1:])
        wrong = "dataset_name"
    elif "gated" in reason:
        hint = "accept the terms on the dataset's page, and log in with `hf auth login` or HF_TOKEN"
    elif "Revision" in reason:
        hint = "--revision takes a branch, a tag or a commit"
    elif "doesn't exist" in reason:
        hint = did_you_mean(path, _neighbours(path))
    message = f"the dataset {path!r} cannot be loaded: {reason or type(error).__name__}"
    return task.error(DocsError, message, wrong, hint=hint or "to use a local file instead, add --from FILE")


def _neighbours(path: str) -> list[str]:
    """Return the datasets of the same owner, none where the hub cannot be reached."""
    from huggingface_hub import HfApi

    owner, slash, _ = path.partition("/")
    try:
        return [found.id for found in HfApi().list_datasets(author=owner, limit=1000)] if slash else []
    except Exception:
        return []


@dataclass(frozen=True, slots=True)
class Redaction:
    """A rule `column=replacement`, or `column~pattern=replacement` for what a regular expression finds."""

    column: str
    pattern: re.Pattern[str] | None
    replacement: str

    @classmethod
    def parse(cls, rule: str) -> Redaction:
        """Return the parsed rule; raises SettingsError for an invalid one."""
        match = re.fullmatch(r"([^=~]+)(?:~(.+?))?=(.*)", rule, re.DOTALL)
        if match is None:
            raise SettingsError(f"invalid --redact {rule!r}", hint="use column=TEXT, or column~PATTERN=TEXT")
        try:
            pattern = None if match[2] is None else re.compile(match[2])
        except re.error as error:
            raise SettingsError(f"--redact {rule!r}: {error}") from error
        return cls(match[1], pattern, match[3])

    def apply(self, value: Any, *_keys: str | int) -> Any:
        """Return a text redacted, any other value as it is."""
        if not isinstance(value, str):
            return value
        return self.replacement if self.pattern is None else self.pattern.sub(self.replacement, value)


def redacted(docs: Sequence[Doc], rules: Sequence[Redaction]) -> Iterator[dict[str, Any]]:
    """Yield the docs with all rules applied; raises SettingsError for a column that no doc has."""
    for rule in rules:
        columns = {column for doc in docs for column in doc}
        if rule.column not in columns:
            raise SettingsError(f"no doc has the column {rule.column!r}", hint=did_you_mean(rule.column, columns))
    for doc in docs:
        changed = dict(doc)
        for rule in rules:
            if rule.column in changed:
                changed[rule.column] = with_leaves(changed[rule.column], rule.apply)
        yield changed


def as_lines(docs: Iterable[Mapping[str, Any]]) -> str:
    """Return docs as JSON lines; raises DocsError for values that JSON does not know, such as images."""
    try:
        return "".join(json.dumps(doc, ensure_ascii=False) + "\n" for doc in docs)
    except TypeError as error:
        raise DocsError(f"a doc cannot be written as JSON: {error}") from error


LOOKED_AT: Final = 500
"""Rows from the start of a split that are tried."""

_TEMPLATE: Final = "<template>"
"""The file name that Jinja gives the code of a template."""

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
            return False  # runs once, not for each row
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
