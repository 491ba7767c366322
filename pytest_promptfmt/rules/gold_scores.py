"""Rules about what answers score: the gold answer wins, and nothing else does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.answers.metric_scores import NONSENSE
from pytest_promptfmt.answers.trials import trials_of
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.rule_views import finding
from pytest_promptfmt.rules.scores import scored_by
from pytest_promptfmt.rules.smoke import scoring_failure

_ACCURACIES: Final = ("acc", "acc_norm", "acc_bytes")
_SEEDS: Final = 2
_GUESSES: Final = 4
"""Per seed, at once: a filter may draw for each answer, or once for all."""


@rule("PF605", "gold-does-not-win", severity=Severity.ERROR, family=Family.SCORING, scope="scoring")
def gold_does_not_win(study: Study) -> Iterator[Finding]:
    """Report scoring in which another answer scores as much as the gold answer.

    Why: if target and metric do not fit, the score is the same for all answers.

    Fix: make the target equal to the text that the filters return.

    Real: lm-evaluation-harness #1216 (social_iqa: labels from 1), #2434 (pawsx: labels swapped).
    """
    trials = trials_of(study)
    if scoring_failure(study) is not None:
        return
    for choice in trials.choices:
        for name in _ACCURACIES:
            best, other = choice.gold_best.get(name), choice.other_best.get(name)
            if best is not None and other is not None and best < 1 and choice.question.choices[choice.golds[0]]:
                yield finding(
                    "the gold choice counts as wrong, although it is the most likely",
                    f"{name} is {best:g}",
                    scored_by(trials),
                    choice.instance,
                    do="score 1 if the most likely choice is the gold one",
                )


@rule("PF608", "random-fallback", severity=Severity.ERROR, family=Family.SCORING, scope="scoring")
def random_fallback(study: Study) -> Iterator[Finding]:
    """Report filters that guess an answer where they find nothing.

    Why: with four options, a guess is right every fourth time. It hides that the model gave no answer, and two runs
    give different scores.

    Fix: return a fixed text if no answer is found. A random one can count as right.

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
            for seed in range(_SEEDS):
                random.seed(seed)
                read = trials.chain.read_all(pipeline, [NONSENSE] * _GUESSES, [doc] * _GUESSES, ["nonsense"] * _GUESSES)
                found |= {repr(each.extracted) for each in read}
            if len(found) > 1:
                saw = f"{' or '.join(sorted(found))} by {pipeline.name!r}"
                yield finding("if the filters find no answer, they return a random one", saw, ("filter_list", number))
    finally:
        random.setstate(state)
