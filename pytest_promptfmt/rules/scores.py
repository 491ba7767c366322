"""Rules about what answers score, without a model: the gold answer wins, and nothing else does."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pytest_promptfmt.answers.completions import Chain
from pytest_promptfmt.answers.metric_scores import NONSENSE, normalised
from pytest_promptfmt.answers.trials import AnswerTrial, ScoringTrial, Trials, trials_of
from pytest_promptfmt.core.errors import LimitExceededError, PromptfmtError
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.extraction import scored_answers
from pytest_promptfmt.rules.page import error_query, query, task
from pytest_promptfmt.rules.rule_views import finding
from pytest_promptfmt.rules.smoke import scoring_failure, scoring_fix
from pytest_promptfmt.study.gold import gold_kind

_METRICS: Final = ("metric_list",)
_ACCURACIES: Final = ("acc", "acc_norm", "acc_bytes")
_FEWEST_FOR_BLEU: Final = 4
"""Words of a text that has the longest sequences of words that BLEU counts."""

_GUESSES: Final = 8
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


@error_query("PF705", "some options differ only in characters that exact_match ignores", task, scores=True)
def _normalise_alike(study: Study) -> Iterator[Finding]:
    for trial, texts in _compared(study):
        if _is_ambiguous(texts):
            yield finding("", repr(sorted(texts)), _METRICS, trial.instance)


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


@rule("PF605", "gold-does-not-win", severity=Severity.ERROR, family=Family.SCORING, scope="scoring")
def gold_does_not_win(study: Study) -> Iterator[Finding]:
    """Report scoring in which nonsense or another answer scores as much as the gold answer.

    Why: if target and metric do not fit, the score is the same for all answers.

    Fix: compare what the filters give with the target as it is written.

    Real: lm-evaluation-harness #1216 (social_iqa: labels from 1), #2434 (pawsx: labels swapped).
    """
    trials = trials_of(study)
    if scoring_failure(study) is not None:
        return
    for trial in trials.answers if gold_kind(study) != "tests" else ():
        if "bleu" in study.metrics[:1] and len(trial.gold.split()) < _FEWEST_FOR_BLEU:
            continue  # alone it scores 0, among other docs it counts
        if _is_scored(trial, trials) and not trials.scoring.is_synthetic and not _wins(study, trial, trials):
            yield finding(
                "the gold answer scores no better than nonsense",
                f"{trial.gold!r} scores {trial.best:g}",
                scored_by(trials),
                trial.instance,
                do="the score is the same for all answers: correct the target or the metric",
            )
    for choice in trials.choices:
        for name in _ACCURACIES:
            best, other = choice.gold_best.get(name), choice.other_best.get(name)
            if best is not None and other is not None and best < 1 and choice.question.choices[choice.golds[0]]:
                yield finding(
                    "the gold choice does not win, even if it is by far the most likely",
                    f"{name} is {best:g}",
                    scored_by(trials),
                    choice.instance,
                    do="compare the most likely choice with the index or text of the target",
                )


def _scored(study: Study) -> Sequence[Trials]:
    """Return what answers score, if scoring does not fail, which other rules report."""
    return (trials_of(study),) if scoring_failure(study) is None else ()


@error_query("PF605", "an empty completion scores the same as the gold answer", _scored, scope="scoring")
def _empty_wins(trials: Trials) -> Iterator[Finding]:
    for trial in trials.answers:
        is_won = trial.empty is not None and trial.best is not None and trial.empty >= trial.best
        is_known = trial.instance.index in _explained(trials)
        if is_won and _is_scored(trial, trials) and _beats_nonsense(trial) and not is_known:
            saw = f"{trial.empty:g} for '', {trial.best:g} for {trial.gold!r}"
            yield finding("", saw, scored_by(trials), trial.instance)


@error_query("PF605", "a wrong option counts as right", _scored, scope="scoring", every=True)
def _another_choice_wins(trials: Trials) -> Iterator[Finding]:
    explained, at = _explained(trials), scored_by(trials)
    for trial in trials.answers:
        for other in trial.others if _beats_nonsense(trial) and trial.instance.index not in explained else ():
            saw, do = f"{other!r}, gold is {trial.gold!r}", "compare whole answers, not parts of them"
            yield finding("", saw, at, trial.instance, do=do)
    for choice in trials.choices:
        choices, right = choice.question.choices, set(choice.golds)
        if len(right) == len(choices) or choices.count(choices[choice.golds[0]]) > 1:
            continue
        for name in _ACCURACIES:
            score = choice.other_best.get(name)
            if score is not None and score > 0 and choice.gold_best.get(name) is not None:
                message = "a wrong choice counts as right when it is by far the most likely"
                do = "compare the most likely choice with the gold one"
                yield finding(message, f"{name} is {score:g}", at, choice.instance, do=do)


@rule("PF608", "random-fallback", severity=Severity.ERROR, family=Family.SCORING, scope="scoring")
def random_fallback(study: Study) -> Iterator[Finding]:
    """Report filters that guess an answer where they find nothing.

    Why: with four options, a guess is right every fourth time. It hides that the model gave no answer, and two runs
    give different scores.

    Fix: give a fixed fallback: a guess hides that nothing was found.

    Real: the extraction of MMLU-Pro's own code, which guesses where no pattern matches.
    """
    trials = trials_of(study)
    if trials.chain is None or scoring_failure(study) is not None:
        return
    doc = trials.scoring.instances[0].doc
    state = random.getstate()
    try:
        for number, pipeline in enumerate(trials.chain.pipelines):
            found = set()
            for seed in range(_GUESSES):
                random.seed(seed)
                found.add(repr(trials.chain.read(pipeline, NONSENSE, doc, "nonsense").extracted))
            if len(found) > 1:
                saw = f"{' or '.join(sorted(found))} by {pipeline.name!r}"
                yield finding("if the filters find no answer, they return a random one", saw, ("filter_list", number))
    finally:
        random.setstate(state)


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


def _is_scored(trial: AnswerTrial, trials: Trials) -> bool:
    """Return whether there are scores to compare; those of a task's own function may be on any scale."""
    scores = (trial.best, trial.empty, trial.nonsense)
    return None not in scores and not trials.scoring.has_own_code


def gold_forms(study: Study, trial: AnswerTrial, chain: Chain | None) -> tuple[Any, ...]:
    """Return the gold answer as it is, in the forms that the prompt requests, and what filters give to own code."""
    label = str(trial.answers.labels[trial.answers.gold])
    forms = (trial.gold, *(form.written(label) for form in study.contract.wrapped))
    pipelines = chain.pipelines if chain is not None and study.has_own_scorer else ()
    read = (chain.read(one, form, trial.instance.doc, "a gold answer") for one in pipelines for form in forms if chain)
    return (*forms, *(one.extracted for one in read if one.problem is None))


def _wins(study: Study, trial: AnswerTrial, trials: Trials) -> bool:
    """Return whether the gold answer scores more than nonsense, in one of its forms."""
    if _beats_nonsense(trial) or trials.chain is None or trial.nonsense is None:
        return True
    scores = (
        trials.chain.score(trial.question, trial.instance.doc, form)
        for form in gold_forms(study, trial, trials.chain)[1:]
    )
    return any(score is not None and score > trial.nonsense for score in scores)


def _beats_nonsense(trial: AnswerTrial) -> bool:
    return trial.best is not None and trial.nonsense is not None and trial.best > trial.nonsense


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


def _explained(trials: Trials) -> set[int]:
    """Return the docs whose answers lose too much to what exact_match ignores, from which the rest follows."""
    found = _normalised(trials)
    return {trial.instance.index for trial, texts in found if _is_ambiguous(texts) or not all(texts.values())}


def _is_ambiguous(texts: Mapping[str, str]) -> bool:
    left = [text for text in texts.values() if text]
    return len(set(left)) < len(left)
