"""A task as scoring needs it: functions bound, docs rendered without a chat template, filters and metrics built.

Expected completions are those that users write down with what should be read from them: in the YAML's metadata or a
sidecar.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.errors import Position, ScoringError, did_you_mean
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.task import UNSET, Task
from pytest_promptfmt.tasks import (
    FilterPipeline,
    Question,
    TaskMetric,
    buildable_pipelines_of,
    metrics_of,
    questions_of,
)


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """A task whose functions are bound, with its docs; of a doc that asks several questions the first is scored."""

    task: Task
    docs: TaskDocs
    instances: Sequence[Instance]

    @property
    def is_synthetic(self) -> bool:
        """Return whether the docs were made from the templates."""
        return self.docs.kind == "synthetic"

    @property
    def has_own_code(self) -> bool:
        """Return whether a function of the task judges the answers."""
        return callable(self.task.process_results)

    @cached_property
    def questions(self) -> Sequence[Question]:
        """Return what scoring needs of each doc; raises RenderError where a field mapping fails."""
        return questions_of(self.task, [instance.doc for instance in self.instances])

    @cached_property
    def pipelines(self) -> tuple[FilterPipeline, ...]:
        """Return the filter pipelines; raises ScoringError for a filter that does not exist or cannot be built."""
        return buildable_pipelines_of(self.task)

    @cached_property
    def metrics(self) -> tuple[TaskMetric, ...]:
        """Return the metrics; raises ScoringError for an entry that lm-eval refuses."""
        return metrics_of(self.task)

    @property
    def stops(self) -> tuple[Any, ...]:
        """Return the stop sequences as they are given."""
        return stops_of(self.instances)


BUDGETS: Final = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names of the argument of generation that limits the tokens of a completion."""


def token_budget(task: Task) -> int | None:
    """Return the number of tokens that a completion may have, None where the task sets none."""
    kwargs: Any = task.generation_kwargs
    values = [kwargs.get(key) for key in BUDGETS] if isinstance(kwargs, Mapping) else []
    limits = [value for value in values if isinstance(value, int) and not isinstance(value, bool) and value > 0]
    return max(limits, default=None)


def stops_of(instances: Sequence[Instance]) -> tuple[Any, ...]:
    """Return the stop sequences of the first request as they are given, anything but a list as a tuple of it."""
    requests = instances[0].requests if instances else ()
    until = (requests[0].generation_kwargs or {}).get("until") or () if requests else ()
    return tuple(until) if isinstance(until, list | tuple) else (until,)


_KEYS: Final = ("id", "completion", "expected", "correct", "doc", "pipeline", "task")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedCompletion:
    """One completion. `expected` is the extraction (UNSET: not given, None: nothing), `correct` whether it scores.

    `doc` is the number of the doc it answers, from 0; `pipeline` the one it is for, None for all.
    """

    id: str
    completion: str
    expected: Any = UNSET
    correct: bool | None = None
    doc: int = 0
    pipeline: str | None = None

    def expects(self, extracted: Any) -> bool:
        """Return whether this is the expected extraction."""
        if self.expected is None:
            return extracted is None or str(extracted).strip() in ("", "[invalid]", "[]")
        return bool(extracted == self.expected) or str(extracted).strip() == str(self.expected).strip()


def expected_completions(task: Task) -> tuple[ExpectedCompletion, ...]:
    """Return the completions of `metadata.promptfmt.completions`, then of `<stem>.completions.jsonl`.

    Lines of the sidecar with a `task` only count for that task (or task@format). Raises ScoringError with the line of
    an entry that cannot be used.
    """
    entries = task.own_metadata.get("completions") or ()
    position = task.position("metadata", "promptfmt", "completions")
    if not isinstance(entries, list | tuple):
        raise ScoringError(
            "`completions` must be a list of mappings, each with the key `completion`", position=position
        )
    found = [_expected(entry, f"told-{number}", position) for number, entry in enumerate(entries, start=1)]
    found += _of_sidecar(task)
    twice = next((name for name, count in Counter(one.id for one in found).items() if count > 1), None)
    if twice is not None:
        raise ScoringError(f"two completions have the id {twice!r}", position=position)
    return tuple(found)


def has_expectations(task: Task) -> bool:
    """Return whether a task's author writes down completions or expected failures, so that its scoring is tried."""
    sidecar = sidecar_of(task)
    written = {"completions", "expected_failures"} & set(task.own_metadata)
    return bool(written) or (sidecar is not None and gate.is_there(sidecar))


def sidecar_of(task: Task) -> Path | None:
    """Return where the sidecar of a task's file would lie."""
    return task.path.with_name(f"{task.path.stem}.completions.jsonl") if task.path is not None else None


def _of_sidecar(task: Task) -> Iterator[ExpectedCompletion]:
    path = sidecar_of(task)
    if path is None or not gate.is_there(path):
        return
    try:
        lines = gate.read_text(path, "utf-8-sig").split("\n")  # Windows begins text files with a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise ScoringError(f"the completions cannot be read: {error}", position=Position(path)) from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        position = Position(path, number)
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ScoringError(f"invalid JSON: {error}", position=position) from error
        if isinstance(entry, Mapping) and entry.get("task") not in (None, task.name, task.id):
            continue
        yield _expected(entry, f"line-{number}", position)


def _expected(entry: Any, name: str, position: Position | None) -> ExpectedCompletion:
    def refused(message: str, hint: str | None = None) -> ScoringError:
        return ScoringError(message, position=position, hint=hint)

    if not isinstance(entry, Mapping) or not isinstance(entry.get("completion"), str):
        example = '{completion: "The answer is (C).", expected: "C"}'
        raise refused(f"a completion must be a mapping with the key `completion`, not {entry!r}", example)
    for key in entry:
        if key not in _KEYS:
            message = f"unknown key {key!r} of a completion; known: {', '.join(_KEYS)}"
            raise refused(message, did_you_mean(str(key), _KEYS))
    pipeline, doc = entry.get("pipeline"), entry.get("doc", 0)
    if pipeline is not None and not isinstance(pipeline, str):
        raise refused(f"pipeline is {pipeline!r}; it must be the name of a filter pipeline")
    if isinstance(doc, bool) or not isinstance(doc, int) or doc < 0:
        raise refused(f"doc is {doc!r}; it must be the index of a doc, from 0")
    if "expected" not in entry and "correct" not in entry:
        raise refused(
            "a completion needs the key `expected` (the extracted answer; null for none) or `correct` (true or false)"
        )
    return ExpectedCompletion(
        id=str(entry.get("id", name)),
        completion=entry["completion"],
        expected=entry.get("expected", UNSET),
        correct=None if entry.get("correct") is None else bool(entry["correct"]),
        doc=doc,
        pipeline=pipeline,
    )


def expected_failures(task: Task) -> Mapping[str, str]:
    """Return `metadata.promptfmt.expected_failures`: phrasing to the reason why its failure is accepted.

    Those below a key such as `@cot` only count for the task in that format. Raises ScoringError for another shape or
    a reason that is missing.
    """
    position = partial(task.position, "metadata", "promptfmt", "expected_failures")

    def read(given: Any) -> Mapping[Any, Any]:
        if not isinstance(given, Mapping):
            raise ScoringError("expected_failures must be a mapping from phrasing to reason", position=position())
        return given

    expected: dict[str, str] = {}
    for key, value in read(task.own_metadata.get("expected_failures") or {}).items():
        is_format = str(key).startswith("@")
        inner = read(value or {}) if is_format else {key: value}
        for name, reason in inner.items() if not is_format or str(key)[1:] == task.format else ():
            if not isinstance(reason, str) or not reason.strip():
                raise ScoringError(f"the expected failure {name!r} needs a reason", position=position(name))
            expected[str(name)] = reason
    return expected


def unmet_expectations(expected: Mapping[str, str], failing: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return what is wrong with the expected failures: those that do not fail, and names of no phrasing."""
    problems = []
    for name, reason in expected.items():
        if name not in known:
            close = did_you_mean(name, known)
            problems.append(
                f"expected_failures: {name!r} is not a phrasing of this task" + (f"; {close}" if close else "")
            )
        elif name not in failing:
            problems.append(f"the expected failure {name!r} no longer fails ({reason}): remove the entry")
    return problems
