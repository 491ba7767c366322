"""Rules about what made-up log-likelihoods of choices score: ties, very small values, spaces that count as length."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pytest_promptfmt.answers.trials import TINY, trials_of
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import finding
from pytest_promptfmt.rules.scores import scored_by
from pytest_promptfmt.study import Study


@rule("PF609", "tie-counts-as-right", severity=Severity.ERROR, family=Family.SCORING, scope="scoring")
def tie_counts_as_right(study: Study) -> Iterator[Finding]:
    """Report choices that are equally likely and count as right, though the gold choice is not the first.

    Why: a model that tells no choice from another gets full marks. Of equals lm-eval takes the first.

    Example:
        # file: example.yaml
        process_results: !function helper.scored
        # file: helper.py
        def scored(doc, results):
            scores = [score for score, _ in results]
            return {"acc": float(scores[doc["answer"]] == max(scores))}

    Silent with:
        # file: helper.py
        def scored(doc, results):
            scores = [score for score, _ in results]
            return {"acc": float(scores.index(max(scores)) == doc["answer"])}

    Fix: take the index of the first maximum and compare it with the gold index.

    Real: `scores[gold] == max(scores)` in scoring code of several tasks.
    """
    trials = trials_of(study)
    for trial in trials.choices:
        is_tie = trial.all_equal.get("acc") == 1 and trial.other_best.get("acc") == 0
        if is_tie and 0 not in trial.golds:  # of equals the first wins, which says nothing
            yield finding(
                "equally likely choices count as right, and the gold choice is not the first",
                "acc is 1",
                scored_by(trials),
                trial.instance,
                do="of equal scores take the first, as lm-eval does",
            )


@rule("PF610", "underflow", severity=Severity.ERROR, family=Family.SCORING, scope="scoring")
def underflow(study: Study) -> Iterator[Finding]:
    """Report a metric that is NaN for very small log-likelihoods.

    Why: long choices have log-likelihoods of hundreds. The exponential of each is 0, and so is their sum.

    Example:
        # file: example.yaml
        process_results: !function helper.mass
        # file: helper.py
        import math
        def mass(doc, results):
            chances = [math.exp(score) for score, _ in results]
            total = sum(chances)
            return {"mass": chances[doc["answer"]] / total if total else math.nan}

    Silent with:
        # file: helper.py
        import math
        def mass(doc, results):
            largest = max(score for score, _ in results)
            chances = [math.exp(score - largest) for score, _ in results]
            return {"mass": chances[doc["answer"]] / sum(chances)}

    Fix: subtract the largest log-likelihood before `exp()`.

    Real: the probability mass of eval-framework 0.15.4.
    """
    trials = trials_of(study)
    for trial in trials.choices:
        for name, value in trial.all_tiny.items():
            if value is not None and math.isnan(value):
                yield finding(
                    "a metric is NaN for very small log-likelihoods",
                    f"{name} is NaN around {TINY:g}",
                    scored_by(trials),
                    trial.instance,
                )


@rule("PF611", "space-counts-as-length", severity=Severity.ERROR, family=Family.SCORING, scope="scoring")
def space_counts_as_length(study: Study) -> Iterator[Finding]:
    r"""Report choices that all begin with a space, which `acc_norm` or `acc_bytes` counts as length.

    Why: the same log-likelihoods score differently with the space in the choices and with the space in the delimiter,
    though the requests are the same. Figures of the two are no longer comparable.

    Example:
        target_delimiter: ""
        metric_list: [{metric: acc_norm}]
        metadata:
          promptfmt:
            docs: [{question: Which metal rusts?, choices: [" iron", " tin", " platinum"], answer: 0}]

    Silent with:
        target_delimiter: " "
        metadata: {promptfmt: {docs: [{question: Which metal rusts?, choices: [iron, tin, platinum], answer: 0}]}}

    Fix: write the choices without it, and `target_delimiter` with it: the requests stay the same.

    Real: pattern 1 of the eval-framework guide; tasks that were ported from it.
    """
    for trial in trials_of(study).choices:
        for name, (with_space, without) in trial.spaced.items():
            score = "nothing" if without is None else f"{without:g}"
            yield finding(
                f"all choices begin with a space, which {name} counts as length",
                f"the same log-likelihoods score {with_space:g} with it and {score} without it",
                "doc_to_choice",
                trial.instance,
            )
