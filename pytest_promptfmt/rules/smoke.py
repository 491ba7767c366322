"""A trial of scoring: the gold answer of each doc goes once through every filter and metric, to find exceptions.

It is cheap enough for every task of a run: nothing is loaded from a hub, no library is imported for a corpus metric,
and with synthetic docs only what does not depend on them is tried.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from pytest_promptfmt.answers.metric_scores import gold_text
from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.errors import (
    FunctionError,
    LimitExceededError,
    PromptfmtError,
    UnavailableError,
    UnavailableScoringError,
    did_you_mean,
    is_misspelt,
)
from pytest_promptfmt.core.limits import time_limit
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.fixes import Fix, respelt
from pytest_promptfmt.rules.rule_views import finding, info
from pytest_promptfmt.rules.task_code import missing_function
from pytest_promptfmt.study.scoring import Scoring
from pytest_promptfmt.tasks import FILTERS, METRICS, OF_NUMBERS, Question, score_doc, takes_arguments

_SHORT: Final = 4
"""Names of metrics up to this length are similar by chance (`wer` and `ter`)."""

_LIKELY: Final = (-0.5, True)
_UNLIKELY: Final = (-9.0, False)
_MOST_REPEATS: Final = 64
_TOO_SLOW: Final = "scoring was tested only in part, because it takes too long"
_LACKING: Final = "install the package or data that is missing, and check again"


def _known_names(study: Study, finding: Finding) -> Fix | None:
    """Return the fix of the first filter or metric whose name is misspelt."""
    config = study.config
    for index, pipeline in enumerate(config.get("filter_list") or ()):
        for number, step in enumerate(pipeline.get("filter") or ()):
            if isinstance(step.get("function"), str) and step["function"] not in FILTERS:
                keys = ("filter_list", index, "filter", number, "function")
                return respelt(study, replace(finding, keys=keys), FILTERS, action="value")
    for index, entry in enumerate(config.get("metric_list") or ()):
        name = entry.get("metric")
        if isinstance(name, str) and name not in METRICS and len(name) > _SHORT and "hf_evaluate" not in entry:
            return respelt(study, replace(finding, keys=("metric_list", index, "metric")), METRICS, action="value")
    return None


@rule("PF109", "scoring-fails", severity=Severity.ERROR, family=Family.SCORING, scores=True, fix=_known_names)
def scoring_fails(study: Study) -> Iterator[Finding]:
    """Report a task whose filters or metrics raise an exception for a gold answer.

    Why: filters, metrics and `process_results` run at the end of an evaluation, often hours after its start. If they
    raise an exception, all results are lost. Therefore this rule filters and scores each gold answer once. If the docs
    are synthetic, it skips all parts that depend on their texts. It does not load metrics of the Hugging Face library
    `evaluate`.

    Fix: correct the argument, pattern, function or metric that raises the error.

    Real: lm-evaluation-harness #3353 (aime: process_results), and metrics with an argument that their function does not
    take.
    """
    failure = scoring_failure(study)
    if failure is not None and not any(missing_function(study)):  # PF104 reports a function that is not there
        yield failure


def scoring_failure(study: Study) -> Finding | None:
    """Return the first failure of scoring the gold answers; None without one, or if it was not tried."""
    return study.once("scoring failure", lambda: _failure(study))


def _failure(study: Study) -> Finding | None:
    if study.failure is not None or not study.renders_fields:
        return None  # not renderable, or scored by another system
    try:
        scoring = study.scoring_of_prompts
    except UnavailableError:
        return None
    except PromptfmtError as error:
        return _setting_up(error)
    task = scoring.task
    try:
        with time_limit(study.settings.time_limit, f"scoring {task.id}", task.position("metric_list")):
            return next(_failures(scoring), None)
    except LimitExceededError as error:
        return info(_TOO_SLOW, error.message, ("metric_list",), do="raise the time limit")


def _finding(
    what: str, error: str, keys: tuple[str | int, ...], *, doc: int | None = None, lacks_resource: bool = False
) -> Finding:
    message = f"scoring fails when {what}"
    message = "scoring was not tested: a Python module of the task cannot be imported" if lacks_resource else message
    return finding(message, error, keys, doc, severity=Severity.INFO if lacks_resource else None)


def _setting_up(error: PromptfmtError) -> Finding:
    lacks = isinstance(error.__cause__, ImportError) or (isinstance(error, FunctionError) and error.lacks_resource)
    found = _finding("the filters and metrics are built", error.message, (), lacks_resource=lacks)
    return replace(found, do=error.hint or (_LACKING if lacks else found.do), position=error.position)


def _failures(scoring: Scoring) -> Iterator[Finding]:
    task = scoring.task
    yield from _unknown_metrics(task)
    has_metrics = _has_own_metrics(task)
    try:
        scoring.pipelines, has_metrics and scoring.metrics  # noqa: B018  # what cannot be set up raises
    except LimitExceededError:
        raise
    except UnavailableScoringError:  # the items that score are skipped with that reason
        return
    except PromptfmtError as error:
        yield _setting_up(error)
        return
    yield from _unfit_metrics(scoring, has_metrics)
    if scoring.is_synthetic or not has_metrics or not scoring.metrics:
        return
    try:
        questions = scoring.questions
    except LimitExceededError:
        raise
    except PromptfmtError:
        return  # reported by rendering
    for instance, question in zip(scoring.instances, questions, strict=True):
        yield from _of_doc(scoring, instance, question)


def _has_own_metrics(task: Task) -> bool:
    """Return whether every metric is available without Hugging Face evaluate."""
    return task.process_results is not None or all(
        callable(named := entry["metric"])
        or not isinstance(named, str)  # which is refused when it is set up
        or (named in METRICS and entry.get("hf_evaluate") is not True)
        for entry in task.metric_list or ()
    )


def _unknown_metrics(task: Task) -> Iterator[Finding]:
    for index, entry in enumerate(task.metric_list or ()):
        name = entry.get("metric")
        if task.process_results is not None or not isinstance(name, str) or name in METRICS or "hf_evaluate" in entry:
            continue
        hint = did_you_mean(name, METRICS) if len(name) > _SHORT or is_misspelt(name, METRICS) else None
        if hint is not None:
            error = f"lm-eval has no metric {name!r}, so it searches the Hugging Face library evaluate"
            yield replace(_finding("the metrics are looked up", error, ("metric_list", index)), do=hint)


def _unfit_metrics(scoring: Scoring, has_metrics: bool) -> Iterator[Finding]:
    task = scoring.task
    for metric in scoring.metrics if has_metrics else ():
        # lm-eval 0.4.13 gives a metric the arguments that its entry has, and only generation calls it.
        if task.generates and task.process_results is None and not takes_arguments(metric):
            raised = f"TypeError: {metric.name} does not take {', '.join(map(str, metric.arguments))}"
            yield _finding("the metric is called", raised, ("metric_list",))
        if metric.aggregation is None:
            yield _finding("the metric is averaged", f"unknown aggregation of {metric.name}", ("metric_list",))


def _of_doc(scoring: Scoring, instance: Instance, question: Question) -> Iterator[Finding]:
    task, doc = scoring.task, copy.deepcopy(dict(instance.doc))
    gold, is_plain = question.target, task.process_results is None and task.has_choices
    if is_plain and isinstance(gold, list) and any(isinstance(one, str) for one in gold):
        found = _finding("the gold answer is scored", f"the list of gold answers has texts: {gold}", ("doc_to_target",))
        yield replace(found, do="give the indexes of the right choices (from 0), not the texts", doc=instance.index)
        return
    if not task.generates:
        yield from _scored(scoring, instance, doc, question, _likelihoods(task, instance))
        return
    answer = gold_text(question)
    if answer is None:
        return
    repeats = min(task.repeats, _MOST_REPEATS) if isinstance(task.repeats, int) and task.repeats > 0 else 1
    for index, pipeline in enumerate(scoring.pipelines):
        try:
            extracted = pipeline.extract(answer, doc, repeats)
        except LimitExceededError:
            raise
        except Exception as error:
            saw = f"{_in_words(error)} for {answer!r} in the filters {pipeline.name!r}"
            yield _finding("the gold answer is filtered", saw, ("filter_list", index), doc=instance.index)
            return
        yield from _scored(scoring, instance, doc, question, [extracted])


def _scored(
    scoring: Scoring, instance: Instance, doc: Doc, question: Question, results: Sequence[Any]
) -> Iterator[Finding]:
    task = scoring.task
    key = "process_results" if task.process_results is not None else "metric_list"
    what = "the gold answer is scored"
    try:
        values = score_doc(task, scoring.metrics, doc, question, results)
        what = "the score is averaged"
        for metric in scoring.metrics:
            if metric.name in values and metric.aggregation in OF_NUMBERS:
                key = "metric_list"
                metric.aggregation([values[metric.name]])
    except LimitExceededError:
        raise
    except Exception as error:
        message = error.message if isinstance(error, PromptfmtError) else _in_words(error)
        lacks = isinstance(error, ImportError | OSError | UnavailableError) or type(error) is LookupError
        found = _finding(what, message, (key,), doc=instance.index, lacks_resource=lacks)
        yield replace(found, do=scoring_fix(scoring, question) or (_LACKING if lacks else found.do))


def scoring_fix(scoring: Scoring, question: Question) -> str | None:
    """Return the fix for an exception of scoring, if it is known."""
    takes_one = any(metric.name == "acc_mutual_info" for metric in scoring.metrics) and question.has_several_targets
    return "use one gold answer: acc_mutual_info does not support several" if takes_one else None


def _likelihoods(task: Task, instance: Instance) -> Sequence[Any]:
    if not task.has_question:
        return [_UNLIKELY[0] for _ in instance.requests]
    return [_LIKELY if request.gold else _UNLIKELY for request in instance.requests]


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
