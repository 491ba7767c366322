"""Rules about what eval-framework's metrics ask of the ground truth and the candidates of a task class."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.checks.registry import check
from pytest_promptfmt.checks.views import TaskView
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.systems.eval_framework.hook_rules import candidates_of
from pytest_promptfmt.systems.eval_framework.hooks import TaskClass
from pytest_promptfmt.systems.eval_framework.metric_classes import COMPLETION_METRICS, LIKELIHOOD_METRICS
from pytest_promptfmt.systems.eval_framework.tasks import class_of

_MASS: Final = ("ProbabilityMass", "ProbabilityMassNorm")
_ABSTAINING: Final = ("TernaryScore", "DistributionalCorrectnessScore")
_ABSTENTION: Final = re.compile(
    r"(?i)\b(?:know|tell|say|cannot|sure|wei(?:ß|ss)|abstain|unknown|unsure|none|idk|answer)|\?"
)
_QUOTES: Final = "\"'`‘’“”"


@check("PF753", "probability-mass-of-text", severity=Severity.ERROR, family=Family.CLASSES)
def probability_mass_of_text(view: TaskView) -> Iterator[Finding]:
    r"""Report a probability-mass metric together with a ground truth that is one text.

    Why: eval-framework's ProbabilityMass and ProbabilityMassNorm assert that the ground truth is a list. The run ends
    with an AssertionError, after the model has been asked.

    Example:
        # file: quiz.yaml
        class: !function quiz.Quiz
        docs: [{question: Which falls?, key: A}]
        # file: quiz.py
        class Quiz:
            RESPONSE_TYPE = "loglikelihoods"
            METRICS = ["AccuracyLoglikelihood", "ProbabilityMass"]
            def _get_instruction_text(self, item): return f"{item['question']}\nA. stone\nB. smoke\nAnswer:"
            def _get_possible_completions(self, item): return [" A", " B"]
            def _get_ground_truth(self, item): return f" {item['key']}"

    Silent example:
        # file: quiz.yaml
        class: !function quiz.Quiz
        docs: [{question: Which falls?, key: A}]
        # file: quiz.py
        class Quiz:
            RESPONSE_TYPE = "loglikelihoods"
            METRICS = ["AccuracyLoglikelihood", "ProbabilityMass"]
            def _get_instruction_text(self, item): return f"{item['question']}\nA. stone\nB. smoke\nAnswer:"
            def _get_possible_completions(self, item): return [" A", " B"]
            def _get_ground_truth(self, item): return [f" {item['key']}"]

    Fix: return a list with the text in it; give `_get_fewshot_target_text`, which is one text.

    Real: the guide of eval-framework recommends the two together.

    """
    found = class_of(view.task)
    used = [name for name in _metrics(found) if name in _MASS]
    if found is None or not used:
        return
    for instance in view.instances:
        if isinstance(instance.target, str):
            yield Finding(
                message=f"{used[0]} refuses a ground truth that is one text",
                saw=repr(instance.target),
                do="return a list with the text in it from _get_ground_truth, and write _get_fewshot_target_text",
                position=found.line_of("_get_ground_truth"),
                doc=instance.index,
            )
            return


@check("PF754", "no-abstention-candidate", severity=Severity.WARNING, family=Family.CLASSES)
def no_abstention_candidate(view: TaskView) -> Iterator[Finding]:
    r"""Report TernaryScore or DistributionalCorrectnessScore where the last candidate is an ordinary answer.

    Why: both take the last candidate for "I don't know", whatever it says. Without one, choosing the last option costs
    nothing, also where it is wrong.

    Example:
        # file: quiz.yaml
        class: !function quiz.Quiz
        docs: [{question: Which falls?, key: A}]
        # file: quiz.py
        class Quiz:
            RESPONSE_TYPE = "loglikelihoods"
            METRICS = ["TernaryScore"]
            def _get_instruction_text(self, item): return f"{item['question']}\nA. stone\nB. smoke\nAnswer:"
            def _get_possible_completions(self, item): return [" A", " B"]
            def _get_ground_truth(self, item): return f" {item['key']}"

    Silent example:
        # file: quiz.yaml
        class: !function quiz.Quiz
        docs: [{question: Which falls?, key: A}]
        # file: quiz.py
        class Quiz:
            RESPONSE_TYPE = "loglikelihoods"
            METRICS = ["TernaryScore"]
            def _get_instruction_text(self, item): return f"{item['question']}\nA. stone\nB. smoke\nAnswer:"
            def _get_possible_completions(self, item): return [" A", " B", " I don't know."]
            def _get_ground_truth(self, item): return f" {item['key']}"

    Fix: add the abstention as last candidate, or use another metric.

    Real: rows 1 and 2 of the metrics' own arithmetic in eval-framework 0.15.4.

    """
    found = class_of(view.task)
    used = [name for name in _metrics(found) if name in _ABSTAINING]
    if found is None or not used:
        return
    for instance in view.instances:
        candidates = candidates_of(instance)
        golds = instance.target if isinstance(instance.target, list) else [instance.target]
        if candidates and (candidates[-1] in golds or not _ABSTENTION.search(candidates[-1])):
            yield Finding(
                message=f"{used[0]} takes the last candidate for an abstention, and it is an ordinary answer",
                saw=repr(list(candidates)),
                do='add " I don\'t know." as the last of _get_possible_completions, or use another metric',
                position=found.line_of("_get_possible_completions"),
                doc=instance.index,
            )
            return


@check("PF755", "abstention-quoted-otherwise", severity=Severity.WARNING, family=Family.CLASSES)
def abstention_quoted_otherwise(view: TaskView) -> Iterator[Finding]:
    r"""Report an abstention that the prompt quotes otherwise than it is scored.

    Why: the prompt allows the answer 'I don't know', and " I don't know." is scored: the full stop is probability that
    a model which obeys does not give.

    Example:
        # file: quiz.yaml
        class: !function quiz.Quiz
        docs: [{question: Which falls?, key: A}]
        # file: quiz.py
        class Quiz:
            RESPONSE_TYPE = "loglikelihoods"
            METRICS = ["TernaryScore"]
            def _get_initial_prompt_text(self, item): return "You may answer with 'I don't know'."
            def _get_instruction_text(self, item): return f"{item['question']}\nA. stone\nB. smoke\nAnswer:"
            def _get_possible_completions(self, item): return [" A", " B", " I don't know."]
            def _get_ground_truth(self, item): return f" {item['key']}"

    Silent example:
        # file: quiz.yaml
        class: !function quiz.Quiz
        docs: [{question: Which falls?, key: A}]
        # file: quiz.py
        class Quiz:
            RESPONSE_TYPE = "loglikelihoods"
            METRICS = ["TernaryScore"]
            def _get_initial_prompt_text(self, item): return "You may answer with 'I don't know'."
            def _get_instruction_text(self, item): return f"{item['question']}\nA. stone\nB. smoke\nAnswer:"
            def _get_possible_completions(self, item): return [" A", " B", " I don't know"]
            def _get_ground_truth(self, item): return f" {item['key']}"

    Fix: quote the candidate byte for byte.

    Real: pattern 4 of the guide of eval-framework, and its tasks GPQA_IDK and ARC_IDK.

    """
    found = class_of(view.task)
    if found is None:
        return
    for instance in view.instances[:1]:
        candidates = candidates_of(instance)
        last = candidates[-1].strip() if candidates else ""
        core = last.strip(" .!()")
        if not core or len(core) < 2 or not _ABSTENTION.search(last) or not instance.prompts:
            return
        text = instance.prompts[0].text
        quoted = re.search(f"[{_QUOTES}]([^\\w\\n]?{re.escape(core)}[^\\w\\n]{{0,2}}?)[{_QUOTES}]", text)
        if quoted is not None and quoted[1] != last:
            yield Finding(
                message="the prompt quotes the abstention otherwise than it is scored",
                saw=f"{quoted[1]!r} is quoted, {candidates[-1]!r} is scored",
                do="quote the candidate byte for byte, or score what is quoted",
                position=found.line_of("_get_initial_prompt_text"),
                doc=instance.index,
            )


@check("PF758", "unscored-metric", severity=Severity.INFO, family=Family.CLASSES)
def unscored_metric(view: TaskView) -> Iterator[Finding]:
    r"""Report metrics of a task class that this plugin does not know.

    Why: scores in the checks of scoring and in runs with a model come from the metrics that are known here by name.

    Example:
        # file: quiz.yaml
        class: !function quiz.Quiz
        docs: [{question: Which falls?, key: A}]
        # file: quiz.py
        class Quiz:
            RESPONSE_TYPE = "loglikelihoods"
            METRICS = ["MyOwnAccuracy"]
            def _get_instruction_text(self, item): return f"{item['question']}\nA. stone\nB. smoke\nAnswer:"
            def _get_possible_completions(self, item): return [" A", " B"]
            def _get_ground_truth(self, item): return f" {item['key']}"

    Silent example:
        # file: quiz.yaml
        class: !function quiz.Quiz
        docs: [{question: Which falls?, key: A}]
        # file: quiz.py
        class Quiz:
            RESPONSE_TYPE = "loglikelihoods"
            METRICS = ["AccuracyLoglikelihood"]
            def _get_instruction_text(self, item): return f"{item['question']}\nA. stone\nB. smoke\nAnswer:"
            def _get_possible_completions(self, item): return [" A", " B"]
            def _get_ground_truth(self, item): return f" {item['key']}"

    Fix: nothing, where the metric is your own.

    Real: metrics that run code or ask a judge.

    """
    found = class_of(view.task)
    for name in _metrics(found):
        if found is not None and name not in LIKELIHOOD_METRICS and name not in COMPLETION_METRICS:
            yield Finding(
                message=f"the metric {name} is not known here",
                saw=name,
                do="nothing, where it is your own: its scores are left out",
                position=found.position,
            )


def _metrics(found: TaskClass | None) -> tuple[str, ...]:
    if found is None or found.kind == "benchmark":
        return ()
    try:
        return found.constants().metrics
    except PromptfmtError:
        return ()
