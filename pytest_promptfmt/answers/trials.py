"""How a task scores, tried without a model: gold answers, nothing and nonsense, and synthetic log-likelihoods.

How an answer is phrased is the battery's part.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from pytest_promptfmt.answers.completions import Chain
from pytest_promptfmt.answers.metric_scores import NONSENSE, SECONDS_FOR_CODE
from pytest_promptfmt.answers.phrasings import Answers, answers_of
from pytest_promptfmt.core.errors import LimitExceededError, PromptfmtError
from pytest_promptfmt.core.limits import time_limit
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.randomness import OwnRandomness
from pytest_promptfmt.study import Study
from pytest_promptfmt.study.scoring import Scoring
from pytest_promptfmt.tasks import (
    OUTSIDE,
    FilterPipeline,
    Question,
    ValueCache,
    gold_of,
    key_of_metrics,
    plain_key,
    score_doc,
)

_BEST, _WORST = (-0.01, True), (-9000.0, False)
"""Log-likelihoods: the worst is so low that no length makes up for it."""

_MOST_SCORED: Final = 4_000_000
"""Characters of choices whose scores a process keeps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoringTrial:
    """One doc's scoring; `error` is the exception that it ended with, in words: then there are no scores."""

    instance: Instance
    question: Question
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerTrial(ScoringTrial):
    """The scores of one doc's answers: better when higher, None where the score is not a number.

    `gold` is the right answer, `chain` what reads and judges completions.
    """

    chain: Chain
    answers: Answers
    gold: str
    best: float | None = None
    nonsense: float | None = None

    @property
    def beats_nonsense(self) -> bool:
        """Return whether the gold answer scores more than nonsense, where both have a score."""
        return self.best is not None and self.nonsense is not None and self.best > self.nonsense

    @property
    def label(self) -> str:
        """Return the right answer, of options its label."""
        return str(self.answers.labels[self.answers.gold])

    def reads_right(self, pipeline: FilterPipeline, text: str) -> bool:
        """Return whether a completion counts as right by a pipeline; not where code fails on it."""
        return self.chain.reads_right(pipeline, text, self.question, self.instance.doc)

    def counts(self, text: str) -> bool:
        """Return whether a completion counts as right by one of the pipelines."""
        return any(self.reads_right(one, text) for one in self.chain.pipelines)

    def counts_in_all(self, text: str) -> bool:
        """Return whether a completion counts as right by all pipelines."""
        return bool(self.chain.pipelines) and all(self.reads_right(one, text) for one in self.chain.pipelines)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChoiceTrial(ScoringTrial):
    """The scores of synthetic log-likelihoods of the choices of a doc, by metric; `golds` are the right indices."""

    golds: Sequence[int]
    gold_best: Mapping[str, float | None] = field(default_factory=dict)
    other_best: Mapping[str, float | None] = field(default_factory=dict)
    all_equal: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trials:
    """The trials of a task: by the output type answers or choices, and the filters and metrics of answers."""

    scoring: Scoring
    chain: Chain | None = None
    answers: Sequence[AnswerTrial] = ()
    choices: Sequence[ChoiceTrial] = ()


def trials_of(study: Study) -> Trials:
    """Return what a task scores, tried once; nothing for output types that are neither generated nor chosen.

    Raises the PromptfmtError that stops it: code not allowed, docs not found, a metric that cannot be had.
    """

    def make() -> Trials:
        scoring = study.scoring
        with OwnRandomness(scoring.task).used() if scoring.has_own_code else nullcontext():
            return _trials(scoring)

    return study.once("trials", make)


def _trials(scoring: Scoring) -> Trials:
    asked = list(zip(scoring.instances, scoring.questions, strict=True))
    if scoring.task.has_choices:
        known_by = None if scoring.has_own_code else key_of_metrics(scoring.metrics)
        choices = [_choice_trial(scoring, known_by, *pair) for pair in asked]
        return Trials(scoring=scoring, choices=[trial for trial in choices if trial is not None])
    if scoring.task.generates:
        chain = Chain(scoring.task, scoring.stops, is_synthetic=scoring.is_synthetic)
        return Trials(scoring=scoring, chain=chain, answers=list(_answer_trials(chain, asked)))
    return Trials(scoring=scoring)


# -- generated answers -----------------------------------------------------------------------------------------------


def _answer_trials(chain: Chain, asked: Sequence[tuple[Instance, Question]]) -> Iterator[AnswerTrial]:
    """Yield a trial of each doc whose answer can be tried; only of the first where a metric starts processes."""
    for pair in asked:
        if chain.scores_nothing or chain.processes:
            return
        trial = _answer_trial(chain, *pair)
        if trial is not None:
            yield trial


def _answer_trial(chain: Chain, instance: Instance, question: Question) -> AnswerTrial | None:
    answers = answers_of(question, instance.prompts[0].text)
    if answers is None:
        return None
    gold = str(answers.labels[answers.gold] if answers.kind == "text" else answers.targets[answers.gold])
    trial = AnswerTrial(instance=instance, question=question, chain=chain, answers=answers, gold=gold)
    if not gold.strip():
        return trial
    try:
        best, _, nonsense = (chain.score(question, instance.doc, text) for text in (gold, "", NONSENSE))
    except PromptfmtError:
        raise
    except Exception as error:
        return replace(trial, error=f"{type(error).__name__}: {error}")
    return replace(trial, best=best, nonsense=nonsense)


# -- choices ---------------------------------------------------------------------------------------------------------


def _choice_trial(
    scoring: Scoring, metrics: Hashable | None, instance: Instance, question: Question
) -> ChoiceTrial | None:
    golds = _gold_indices(question)
    if golds is None:
        return None
    trial = ChoiceTrial(instance=instance, question=question, golds=golds)
    asked = plain_key([question.target, question.choices, question.text if question.has_several_inputs else None])
    known_by = metrics, asked, question.has_several_targets, question.has_several_inputs, len(instance.requests)
    may_be_known = metrics is not None and asked is not None
    known = _scored_before.get(known_by) if may_be_known else None
    if known is not None:
        return replace(trial, **known)
    try:
        scores = _choice_scores(scoring, instance, question, golds)
    except LimitExceededError:
        raise
    except Exception as error:
        return replace(trial, error=f"{type(error).__name__}: {error}")
    if may_be_known:
        _scored_before.keep(known_by, scores, sum(map(len, question.choices)))
    return replace(trial, **scores)


_scored_before: Final[ValueCache[Mapping[str, Any]]] = ValueCache(_MOST_SCORED)


def _choice_scores(scoring: Scoring, instance: Instance, question: Question, golds: Sequence[int]) -> Mapping[str, Any]:
    """Return the fields of a trial of choices: read-only scores, shared by equal trials."""
    right, score = set(golds), partial(_score_of_likely, scoring, instance, question)
    return {
        "gold_best": score(right),
        "other_best": score({*range(len(question.choices))} - right),
        "all_equal": score(None),
    }


def scores_of_each(scoring: Scoring, trial: ChoiceTrial) -> Sequence[Mapping[str, float | None]]:
    """Return the scores of a doc with each of its choices as the most likely one."""
    instance, question = trial.instance, trial.question
    return [_score_of_likely(scoring, instance, question, {number}) for number in range(len(question.choices))]


def _score_of_likely(
    scoring: Scoring, instance: Instance, question: Question, likely: Collection[int] | None
) -> Mapping[str, float | None]:
    """Return the scores of a doc whose most likely choices are these; all are equally likely for None."""
    count, own = len(question.choices), range(len(instance.requests))
    results = [(-1.0, False) if likely is None else _BEST if one % count in likely else _WORST for one in own]
    at = scoring.task.position("process_results" if scoring.has_own_code else "metric_list")
    with time_limit(SECONDS_FOR_CODE if scoring.has_own_code else 0, "scoring one doc", at):
        doc = copy.deepcopy(instance.doc) if scoring.has_own_code else instance.doc
        values = score_doc(scoring.task, scoring.metrics, doc, question, results)
    return MappingProxyType({name: _number(value) for name, value in values.items()})


def _gold_indices(question: Question) -> Sequence[int] | None:
    """Return the indices of the right choices; None without one, which is a mistake of the docs."""
    choices = question.choices
    if not isinstance(choices, list | tuple) or not all(isinstance(choice, str) for choice in choices):
        return None
    try:
        gold = gold_of(question)
    except TypeError:  # lm-eval raises it for a list of texts
        return None
    golds = gold if isinstance(gold, list) else [gold]
    is_sound = golds and all(isinstance(index, int) and index != OUTSIDE and index >= 0 for index in golds)
    return golds if is_sound else None


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
