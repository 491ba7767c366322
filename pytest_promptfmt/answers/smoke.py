"""Scoring tried once: the gold answer of each doc through every filter and metric, for what raises an exception.

Cheap enough for every task of a run: nothing is loaded from a hub, no library is imported for a corpus metric, and on
made-up docs only what does not depend on them is tried.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pytest_promptfmt.core.errors import FunctionError, LimitExceededError, Position, PromptfmtError, did_you_mean
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.task import Doc, Task
from pytest_promptfmt.systems.lm_eval.scoring.aggregations import OF_NUMBERS
from pytest_promptfmt.systems.lm_eval.scoring.filters import FilterPipeline, pipelines_of
from pytest_promptfmt.systems.lm_eval.scoring.metrics import METRICS, TaskMetric, metrics_of, takes_arguments
from pytest_promptfmt.systems.lm_eval.scoring.results import Question, questions_of, score_doc

_SHORT: Final = 4
"""Names of metrics up to this length are alike by chance (`wer` and `ter`)."""

_LIKELY: Final = (-0.5, True)
_UNLIKELY: Final = (-9.0, False)
_MOST_REPEATS: Final = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why a task cannot be scored: what was done when it failed, the exception in words, and the key path it is about.

    `lacks_package` says that the module of a function needs something which is not here: a package, data, a network.
    """

    what: str
    error: str
    keys: tuple[str | int, ...]
    doc: int | None = None
    hint: str | None = None
    position: Position | None = None
    lacks_package: bool = False

    @classmethod
    def of_setting_up(cls, error: PromptfmtError) -> Failure:
        """Return the failure of a task whose functions, filters or metrics cannot be had."""
        return cls(
            what="its scoring is set up",
            error=error.message,
            keys=(),
            hint=error.hint,
            position=error.position,
            lacks_package=isinstance(error, FunctionError) and error.lacks_resource,
        )


def scoring_failure(task: Task, instances: Sequence[Instance], *, is_synthetic: bool) -> Failure | None:
    """Return what fails first when the gold answer of each doc is filtered and scored, None when nothing does.

    All functions must be bound. Raises LimitExceededError where a time limit around it ends user code.
    """
    unknown = _unknown_metric(task)
    if unknown is not None:
        return unknown
    try:
        pipelines = pipelines_of(task)
        metrics = metrics_of(task) if _has_own_metrics(task) else ()
    except LimitExceededError:
        raise
    except PromptfmtError as error:
        return Failure.of_setting_up(error)
    failures = _unbuildable(task, pipelines, metrics)
    first = next(failures, None)
    if first is not None or is_synthetic or not metrics:
        return first
    try:
        questions = questions_of(task, [instance.doc for instance in instances])
    except LimitExceededError:
        raise
    except PromptfmtError:
        return None  # rendering tells why
    for instance, question in zip(instances, questions, strict=True):
        failure = _of_doc(task, pipelines, metrics, instance, question)
        if failure is not None:
            return failure
    return None


def _has_own_metrics(task: Task) -> bool:
    """Return whether every metric is at hand without Hugging Face evaluate."""
    return task.process_results is not None or all(
        callable(entry["metric"]) or (entry["metric"] in METRICS and entry.get("hf_evaluate") is not True)
        for entry in task.metric_list or ()
    )


def _unknown_metric(task: Task) -> Failure | None:
    for index, entry in enumerate(task.metric_list or ()):
        name = entry.get("metric")
        if task.process_results is not None or not isinstance(name, str) or name in METRICS or "hf_evaluate" in entry:
            continue
        hint = did_you_mean(name, METRICS) if len(name) > _SHORT else None
        if hint is not None:
            error = f"lm-eval has no metric {name!r}, and takes it for one of Hugging Face evaluate"
            return Failure(what="the metrics are looked up", error=error, keys=("metric_list", index), hint=hint)
    return None


def _unbuildable(task: Task, pipelines: Sequence[FilterPipeline], metrics: Sequence[TaskMetric]) -> Iterator[Failure]:
    for index, pipeline in enumerate(pipelines):
        for number, step in enumerate(pipeline.steps):
            try:
                step()
            except LimitExceededError:
                raise
            except Exception as error:
                keys = ("filter_list", index, "filter", number)
                yield Failure(what="a filter is built", error=_told(error), keys=keys)
    for metric in metrics:
        # lm-eval 0.4.13 gives a metric the arguments that its entry has, and only generation calls it.
        if task.output_type == "generate_until" and task.process_results is None and not takes_arguments(metric):
            told = f"TypeError: {metric.name} does not take {', '.join(map(str, metric.arguments))}"
            yield Failure(what="the metric is called", error=told, keys=("metric_list",))
        if metric.aggregation is None:
            told = f"the aggregation that is written for {metric.name} does not exist"
            yield Failure(what="the metric is averaged", error=told, keys=("metric_list",))


def _of_doc(
    task: Task,
    pipelines: Sequence[FilterPipeline],
    metrics: Sequence[TaskMetric],
    instance: Instance,
    question: Question,
) -> Failure | None:
    doc = copy.deepcopy(dict(instance.doc))
    if task.output_type != "generate_until":
        return _scored(task, metrics, instance, doc, question, _likelihoods(task, instance))
    answer = _gold_text(question)
    if answer is None:
        return None
    repeats = min(task.repeats, _MOST_REPEATS) if isinstance(task.repeats, int) and task.repeats > 0 else 1
    for index, pipeline in enumerate(pipelines):
        try:
            extracted = pipeline.extract(answer, doc, repeats)
        except LimitExceededError:
            raise
        except Exception as error:
            return Failure(
                what="the gold answer is filtered",
                error=f"{_told(error)} for {answer!r} in the filters {pipeline.name!r}",
                keys=("filter_list", index),
                doc=instance.index,
            )
        failure = _scored(task, metrics, instance, doc, question, [extracted])
        if failure is not None:
            return failure
    return None


def _scored(
    task: Task,
    metrics: Sequence[TaskMetric],
    instance: Instance,
    doc: Doc,
    question: Question,
    results: Sequence[Any],
) -> Failure | None:
    key = "process_results" if task.process_results is not None else "metric_list"
    what = "the gold answer is scored"
    try:
        values = score_doc(task, metrics, doc, question, results)
        what = "the score is averaged"
        for metric in metrics:
            if metric.name in values and metric.aggregation in OF_NUMBERS:
                key = "metric_list"
                metric.aggregation([values[metric.name]])
    except LimitExceededError:
        raise
    except Exception as error:
        message = error.message if isinstance(error, PromptfmtError) else _told(error)
        lacks = isinstance(error, ImportError | OSError) or type(error) is LookupError  # a package, data, a network
        return Failure(what=what, error=message, keys=(key,), doc=instance.index, lacks_package=lacks)
    return None


def _likelihoods(task: Task, instance: Instance) -> Sequence[Any]:
    if task.output_type == "loglikelihood_rolling":
        return [_UNLIKELY[0] for _ in instance.requests]
    return [_LIKELY if request.gold else _UNLIKELY for request in instance.requests]


def _gold_text(question: Question) -> str | None:
    gold = question.target
    if question.choices is not None and isinstance(gold, int) and 0 <= gold < len(question.choices):
        gold = question.choices[gold]
    if isinstance(gold, list | tuple):
        gold = gold[0] if gold else None
    return str(gold) if isinstance(gold, str | int | float) else None


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
