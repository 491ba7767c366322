"""How a task scores fixed answers, without a model: so changed code of scoring runs on both sides of a comparison."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

from pytest_promptfmt.answers.completions import Chain
from pytest_promptfmt.answers.metric_scores import SECONDS_FOR_CODE
from pytest_promptfmt.answers.tried_answers import likelihoods_for, texts_for
from pytest_promptfmt.core.errors import ScoringError
from pytest_promptfmt.core.limits import must_propagate, time_limit
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.study import Study
from pytest_promptfmt.study.scoring import Scoring
from pytest_promptfmt.tasks import Question, score_doc, score_texts


def tried_scores(study: Study, words: Iterable[str]) -> dict[str, str]:
    """Return the scores of answers to each doc as texts, after a description; `words` are answers, too.

    A text that begins with `!` is an exception. Raises the PromptfmtError that stops all scoring.
    """
    scoring = study.scoring_of_prompts
    found: dict[str, str] = {}
    for number, (instance, question) in enumerate(zip(scoring.instances, scoring.questions, strict=True)):
        for label, results in _results(scoring, instance, question, words):
            found[f"{label}, doc {number}"] = _score(scoring, instance, question, results)
    return found


def _results(
    scoring: Scoring, instance: Instance, question: Question, words: Iterable[str]
) -> Iterator[tuple[str, list[Any]]]:
    """Yield results of a model for one doc: a description, and what process_results gets."""
    task = scoring.task
    if not task.generates:
        yield from likelihoods_for(task, len(instance.requests))
        return
    chain = Chain(task, scoring.stops, is_synthetic=scoring.is_synthetic)
    if chain.scores_nothing:
        raise ScoringError("its metric runs generated code")
    for text in texts_for(question, words):
        for pipeline in chain.pipelines:
            read = chain.read_uncounted(pipeline, text, instance.doc, "an answer")
            yield f"{text[:40]!r} by {pipeline.name!r}", [read.problem or read.extracted]


def _score(scoring: Scoring, instance: Instance, question: Question, results: list[Any]) -> str:
    try:
        with time_limit(SECONDS_FOR_CODE, "scoring one doc"):
            values = score_doc(scoring.task, scoring.metrics, copy.deepcopy(instance.doc), question, results)
    except BaseException as error:
        if must_propagate(error):
            raise
        return f"! {type(error).__name__}"
    return ", ".join(f"{name} {text}" for name, text in score_texts(values).items())
