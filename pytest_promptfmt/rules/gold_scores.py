"""Rules about what answers score: the gold answer wins, and nothing else does."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pytest_promptfmt.answers.metric_scores import NONSENSE
from pytest_promptfmt.answers.trials import AnswerTrial, Trials, scores_of_each, trials_of
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.gold_answers import marked_right
from pytest_promptfmt.rules.page import error_query, query
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import finding, question_layout
from pytest_promptfmt.rules.scores import LONG, gold_forms, is_rate, judged_by_code, scored_by, written_number
from pytest_promptfmt.rules.smoke import scoring_failure
from pytest_promptfmt.study.gold import gold_kind

_WORD: Final = re.compile(r"\w+")
_ACCURACIES: Final = ("acc", "acc_norm", "acc_bytes")
_SEEDS: Final = 2
_GUESSES: Final = 4
"""Per seed, at once: a filter may draw for each answer, or once for all."""
_FEWEST_FOR_BLEU: Final = 4
"""Words of a text that has the longest sequences of words that BLEU counts."""


@rule("PF605", "gold-does-not-win", severity=Severity.ERROR, family=Family.SCORING, scope="scoring")
def gold_does_not_win(study: Study) -> Iterator[Finding]:
    """Report scoring in which nonsense or a wrong answer gets the same score as the gold answer.

    Why: if the metric does not fit the target, all answers get the same score.

    Fix: correct the target, or change the filters so that they return the target.

    Real: lm-evaluation-harness #1216 (social_iqa: labels from 1), #2434 (pawsx: labels swapped).
    """
    trials = trials_of(study)
    if scoring_failure(study) is not None:
        return
    for trial in trials.answers if gold_kind(study) != "tests" else ():
        if "bleu" in study.metrics[:1] and len(trial.gold.split()) < _FEWEST_FOR_BLEU:
            continue  # alone it scores 0, among other docs it counts
        is_scored = None not in (trial.best, trial.nonsense) and not trials.scoring.has_own_code
        if is_scored and not trials.scoring.is_synthetic and not _wins(study, trial):
            yield finding(
                "the gold answer scores no better than nonsense",
                f"{trial.gold!r} scores {trial.best:g}",
                scored_by(trials),
                trial.instance,
                do="correct the target or the metric: all answers get the same score",
            )
    for choice in trials.choices:
        for name in _ACCURACIES:
            best, other = choice.gold_best.get(name), choice.other_best.get(name)
            if best is not None and other is not None and best < 1 and choice.question.choices[choice.golds[0]]:
                yield finding(
                    "the gold choice counts as wrong, although it is the most likely choice",
                    f"{name} is {best:g}",
                    scored_by(trials),
                    choice.instance,
                    do="return 1 if the most likely choice is the gold choice",
                )


@rule("PF608", "random-results", severity=Severity.ERROR, family=Family.SCORING, scope="scoring")
def random_fallback(study: Study) -> Iterator[Finding]:
    """Report filters that return a random answer if they find none.

    Why: with four options, every fourth random answer is right. So the score hides that the model gave no answer, and
    two runs give different scores.

    Fix: return a fixed text if no answer is found. A random answer can count as right.

    Real: MMLU-Pro's own code, which guesses if no pattern matches.
    """
    trials = trials_of(study)
    if trials.chain is None or scoring_failure(study) is not None:
        return
    doc = trials.scoring.instances[0].doc
    state = random.getstate()
    try:
        for number, pipeline in enumerate(trials.chain.pipelines):
            found = set()
            for seed in range(_SEEDS):
                random.seed(seed)
                read = trials.chain.read_all(pipeline, [NONSENSE] * _GUESSES, [doc] * _GUESSES, ["nonsense"] * _GUESSES)
                found |= {repr(each.extracted) for each in read}
            if len(found) > 1:
                saw = f"the filters {pipeline.name!r} return {' or '.join(sorted(found))}"
                yield finding(
                    "if the filters find no answer, they return a random answer", saw, ("filter_list", number)
                )
    finally:
        random.setstate(state)


def _wins(study: Study, trial: AnswerTrial) -> bool:
    """Return whether the gold answer scores more than nonsense, in one of its forms."""
    if trial.beats_nonsense or trial.nonsense is None:
        return True
    forms = gold_forms(study, trial)[1:]
    scores = (trial.chain.score(trial.question, trial.instance.doc, form) for form in forms)
    return any(score is not None and score > trial.nonsense for score in scores)


@also("PF605", scores=True)
def near_miss_scores(study: Study) -> Iterator[Finding]:
    """Report scoring code that accepts a wrong answer, such as a text that contains the gold answer."""
    trials = next(iter(judged_by_code(study)), None)
    if trials is None or is_rate(study, trials):
        return
    given = trials.answers if gold_kind(study) in ("text", "choice") else ()
    asked = [(trial, trial.label.strip()) for trial in given]
    golds = [gold for _, gold in asked] if len(trials.scoring.metrics) == 1 else []  # else another is stricter
    others = [[other for other in golds if other and other not in gold and gold not in other] for _, gold in asked]
    won = [trial.beats_nonsense and trial.counts_in_all(gold) for trial, gold in asked]
    pairs = [(trial, other) for (trial, _), each in zip(asked, others, strict=True) for other in each]
    if len(asked) > 1 and all(won) and all(others) and all(trial.counts_in_all(other) for trial, other in pairs):
        message = "the gold answer of another doc scores as high as the doc's own"
        saw = f"{others[0][0]!r} scores as high as the gold answer {asked[0][1]!r}"
        yield finding(message, saw, scored_by(trials), severity=Severity.ERROR)
        return
    copied = [_copied(trial, gold) for trial, gold in asked if len({gold for _, gold in asked}) > 1]
    for name in sorted(set.intersection(*map(set, copied))) if copied and all(won) else ():
        if all(trial.counts_in_all(texts[name]) for (trial, _), texts in zip(asked, copied, strict=True)):
            saw, at = f"{copied[0][name][:LONG]!r} counts as right, but gold is {asked[0][1]!r}", scored_by(trials)
            yield finding(
                "a text copied from the prompt counts as right in every doc", saw, at, asked[0][0].instance, field=name
            )
            return
    for (trial, gold), is_won, more in zip(asked, won, others, strict=True):
        kinds = {**_near_misses(gold), "is the gold answer of another doc": _unrelated(trial, gold, more)}
        options = trial.answers.targets if trial.answers.kind == "choice" else ()
        kinds["is another option"] = [str(one) for at, one in enumerate(options) if at != trial.answers.gold]
        for how, miss in [(how, miss) for how, misses in kinds.items() for miss in misses] if is_won else ():
            is_same = written_number(miss) == written_number(gold) is not None  # `00` is 0
            if not is_same and trial.counts_in_all(miss):
                saw = f"{miss!r} counts as right, but gold is {gold!r}"
                yield finding(f"a wrong answer that {how} counts as right", saw, scored_by(trials), trial.instance)
                return


def _copied(trial: AnswerTrial, gold: str) -> Mapping[str, str]:
    """Return texts of the doc that the prompt shows, with no word of the gold answer, or with all in another order."""
    words, shown = _WORD.findall(gold), trial.instance.prompts[0].text
    found = {}
    for name, text in trial.instance.doc.items():
        held = _WORD.findall(text) if isinstance(text, str) and text in shown else []
        is_reordered = held != words and sorted(held) == sorted(words)
        if words and len(held) > 1 and (is_reordered or {*words}.isdisjoint(held)):
            found[name] = text
    return found


def _unrelated(trial: AnswerTrial, gold: str, others: Sequence[str]) -> list[str]:
    """Return those of other gold answers in words that the doc does not have, for a gold answer in words."""
    held, is_number = str(trial.instance.doc.values()).casefold(), re.search(r"\d", gold)
    unknown = [other for other in others if other.casefold() not in held and not re.search(r"\d", other)]
    return unknown if len(gold.split()) > 1 and not is_number else []


@error_query(
    "PF605",
    "an empty completion counts as right",
    lambda study: judged_by_code(study) if gold_kind(study) == "text" else (),
    scores=True,
)
def _empty_counts_as_right(trials: Trials) -> Iterator[Finding]:
    asked = [trial for trial in trials.answers if trial.gold.strip()]
    right = [trial for trial in asked if trial.beats_nonsense and trial.counts_in_all("")]
    # where one doc has nothing to find, saying nothing is right, but not for the label of an option
    labels = [trial for trial in right if trial.gold in question_layout(trial.instance).listed_labels]
    if labels or 0 < len(right) == len(asked):
        trial = [*labels, *right][0]
        yield finding("", f"the gold answer is {trial.gold[:LONG]!r}", scored_by(trials), trial.instance)


@query("PF605", "if all choices are equally likely, the model's answer counts as right", judged_by_code, scores=True)
def _tie_counts_as_right(trials: Trials) -> Iterator[Finding]:
    choices = trials.choices
    is_won = all(one.all_equal.get("acc") == 1 and one.other_best.get("acc") == 0 for one in choices)
    if choices and is_won and not set.intersection(*(set(one.golds) for one in choices)):
        saw = f"acc is 1 for all {len(choices)} docs"
        yield finding("", saw, scored_by(trials), choices[0].instance)


@query("PF605", "a choice that the doc marks as right scores no better than a wrong one", judged_by_code, scores=True)
def _marked_choice_loses(trials: Trials) -> Iterator[Finding]:
    for trial in trials.choices:
        marks = marked_right(trial.instance.doc, [one.strip() for one in trial.question.choices]) or ()
        scores = scores_of_each(trials.scoring, trial) if 1 < sum(marks) < len(marks) and not trial.error else ()
        for name in scores[0] if scores else ():
            pairs = [(one.get(name) or 0, mark) for one, mark in zip(scores, marks, strict=True)]
            right, wrong = ([value for value, mark in pairs if mark == each] for each in (1, 0))
            if min(right) <= max(wrong) < max(right):
                lost = trial.question.choices[pairs.index((min(right), 1))]
                yield finding("", f"{name} is {min(right):g} for {lost[:LONG]!r}", scored_by(trials), trial.instance)


def _near_misses(gold: str) -> dict[str, Sequence[str]]:
    """Return wrong answers that contain a number or a word, are the beginning of one, or begin with a letter."""
    contains, digits = "contains the gold answer", "has only the digits of the gold answer"
    if re.fullmatch(r"\d{1,6}", gold):
        return {contains: (f"{gold}0", f"1{gold}"), "is a part of the gold answer": (gold[:-1],) if gold[1:] else ()}
    if re.fullmatch(r"-\d{1,6}|-?\d{1,3}\.\d{1,3}", gold):
        return {digits: (gold.replace(".", "").removeprefix("-"),)}
    if gold.casefold() in ("true", "correct", "valid", "likely"):
        return {contains: (f"not {gold}",)}
    if gold.casefold() == "no":
        return {contains: ("I do not know",)}
    texts = {"A": "Apparently none", "B": "Both are wrong", "C": "Certainly none", "D": "Doubtful", "E": "Either one"}
    return {contains: (texts[gold],)} if gold in texts else {}
