"""What scoring needs of a task: functions bound, docs rendered without a chat template, filters and metrics built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.task import Task
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


def stops_of(instances: Sequence[Instance]) -> tuple[Any, ...]:
    """Return the stop sequences of the first request as they are given, one text as a tuple of it."""
    requests = instances[0].requests if instances else ()
    until = (requests[0].generation_kwargs or {}).get("until") or () if requests else ()
    return (until,) if isinstance(until, str) else tuple(until)
