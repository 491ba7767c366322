"""Rules about what answers score, without a model: the gold answer wins, and nothing else does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pytest_promptfmt.answers.completions import Chain
from pytest_promptfmt.answers.metric_scores import normalised
from pytest_promptfmt.answers.trials import AnswerTrial, ScoringTrial, Trials, trials_of
from pytest_promptfmt.core.errors import LimitExceededError, PromptfmtError
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.extraction import scored_answers
from pytest_promptfmt.rules.page import error_query, query, task
from pytest_promptfmt.rules.rule_views import finding
from pytest_promptfmt.rules.smoke import scoring_failure, scoring_fix

_METRICS: Final = ("metric_list",)
_LACKS: Final = ("ImportError", "ModuleNotFoundError", "FileNotFoundError", "ConnectionError", "OSError", "LookupError")
"""Exceptions for a package, file or network that is missing here."""


@rule("PF601", "empty-gold", severity=Severity.ERROR, family=Family.SCORING, scope="scoring")
def empty_gold(study: Study) -> Iterator[Finding]:
    """Report a gold answer without any visible character.

    Why: an empty completion then counts as right. Splits without labels often have such gold answers.

    Fix: name the column with the answer, or use a split that has labels.

    Real: test splits without labels, such as those of GLUE.
    """
    is_judged_by_code = study.has_own_scorer and not str(study.written.doc_to_target).strip()
    for trial in trials_of(study).answers if not is_judged_by_code else ():
        if not trial.gold.strip():
            yield finding("the gold answer is empty", repr(trial.gold), "doc_to_target", trial.instance)


@error_query("PF601", "exact_match ignores all characters of an answer", task, scores=True)
def _normalises_to_nothing(study: Study) -> Iterator[Finding]:
    for trial, texts in _compared(study):
        for target, text in texts.items():
            if not text and (target == trial.gold or len(texts) > 1):
                yield finding("", repr(target), _METRICS, trial.instance)


@query("PF705", "exact_match ignores characters that change the value of a number", task, scores=True)
def _another_number(study: Study) -> Iterator[Finding]:
    for trial, texts in _compared(study) if study.has_real_docs else ():
        left = texts.get(trial.gold)
        number, other = _number_of(trial.gold), _number_of(left or "")
        if number is not None and other is not None and number != other:
            yield finding("", f"{trial.gold!r} is compared as {left!r}", _METRICS, trial.instance)


def _number_of(text: str) -> float | None:
    bare = re.sub(r",(?=\d{1,2}$)", ".", text.strip()).replace(",", "")  # which may be a decimal comma
    return float(bare) if re.fullmatch(r"[-+]?(?:\d+\.?\d*|\.\d+)", bare) else None


def _compared(study: Study) -> Iterator[tuple[AnswerTrial, Mapping[str, str]]]:
    """Return what exact_match compares of the answers to each doc; nothing where scoring fails, or filters fail."""
    return _normalised(trials_of(study)) if scored_answers(study) is not None else iter(())


@rule("PF604", "scorer-crashes", severity=Severity.ERROR, family=Family.SCORING, scores=True)
def scorer_crashes(study: Study) -> Iterator[Finding]:
    """Report scoring that raises an exception for an answer that a model may give.

    Why: such an exception ends the evaluation, hours after its start. PF109 tries the gold answers. This rule tries an
    empty completion, nonsense, and choices with several synthetic log-likelihoods. A function may need columns that
    synthetic docs lack, so its exceptions count only with docs of your own.

    Fix: handle any answer in the function.

    Real: lm-evaluation-harness #3353 (aime: process_results), #1499 (m_truthfulqa: mc2_targets).
    """
    if (trials := tried(study)) is None:
        return
    answers: tuple[ScoringTrial, ...] = (*trials.answers, *trials.choices)
    for trial in answers:
        scoring = trials.scoring
        reads_marks = scoring.is_synthetic and "«" in trial.error
        if trial.error and not reads_marks and not trial.error.startswith(_LACKS):
            do = scoring_fix(scoring, trial.question) or "make filters and metrics accept any answer"
            yield finding("scoring ends with an exception", trial.error, scored_by(trials), trial.instance, do=do)


def tried(study: Study) -> Trials | None:
    """Return what scoring gives; None where the task's scoring cannot be tried, which other rules report."""
    if study.failure is not None or not study.renders_fields or scoring_failure(study) is not None:
        return None
    if study.has_own_scorer and not study.has_real_docs:
        return None
    try:
        return trials_of(study)
    except LimitExceededError:
        raise
    except PromptfmtError:
        return None


def scored_by(trials: Trials) -> tuple[str]:
    """Return the key of what scores a task."""
    return ("process_results",) if trials.scoring.task.process_results is not None else _METRICS


def gold_forms(study: Study, trial: AnswerTrial, chain: Chain | None) -> tuple[Any, ...]:
    """Return the gold answer as it is, in the forms that the prompt requests, and what filters give to own code."""
    label = str(trial.answers.labels[trial.answers.gold])
    forms = (trial.gold, *(form.written(label) for form in study.contract.wrapped))
    pipelines = chain.pipelines if chain is not None and study.has_own_scorer else ()
    read = (chain.read(one, form, trial.instance.doc, "a gold answer") for one in pipelines for form in forms if chain)
    return (*forms, *(one.extracted for one in read if one.problem is None))


def _normalised(trials: Trials) -> Iterator[tuple[AnswerTrial, Mapping[str, str]]]:
    """Yield what exact_match compares of the possible answers to each doc; nothing where it does not judge."""
    metrics = trials.chain.metrics if trials.chain is not None else ()
    metric = next((metric for metric in metrics if metric.name == "exact_match"), None)
    if metric is None or trials.scoring.has_own_code:
        return
    for trial in trials.answers:
        if trial.gold.strip():
            targets = trial.answers.targets if trial.answers.kind == "choice" else (trial.gold,)
            yield trial, {str(target): normalised(str(target), metric.arguments) for target in targets}
