"""Rules about task classes: what hooks show, what they do to docs, and what eval-framework's metrics need."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import finding, question_message, shots_of
from pytest_promptfmt.study import Study
from pytest_promptfmt.systems.eval_framework import SYSTEM

if TYPE_CHECKING:
    from pytest_promptfmt.systems.eval_framework.hooks import TaskClass

_MASS: Final = ("ProbabilityMass", "ProbabilityMassNorm")
_ABSTAINING: Final = ("TernaryScore", "DistributionalCorrectnessScore")
_ABSTENTION: Final = re.compile(
    r"(?i)\b(?:know|tell|say|cannot|sure|wei(?:ß|ss)|abstain|unknown|unsure|none|idk|answer)|\?"
)
_QUOTES: Final = "\"'`‘’“”"

Check = Callable[["Study", "TaskClass"], Iterator[Finding]]


def class_rule(code: str, name: str, severity: Severity) -> Callable[[Check], Any]:
    """Register a rule for the tasks that are classes, which is also given the imported class."""

    def register(check: Check) -> Any:
        @wraps(check)
        def of_class(study: Study) -> Iterator[Finding]:
            if study.task.system == SYSTEM.name:
                from pytest_promptfmt.systems.eval_framework.tasks import class_of  # only where there is a class

                found = class_of(study.task)
                yield from check(study, found) if found is not None else ()

        return rule(code, name, severity=severity, family=Family.CLASSES)(of_class)

    return register


# -- hooks -------------------------------------------------------------------------------------------------------------


@class_rule("PF751", "shot-unlike-candidate", Severity.ERROR)
def shot_unlike_candidate(study: Study, found: TaskClass) -> Iterator[Finding]:
    """Report shots that show an answer without the space that the scored candidates begin with.

    Why: the shots show `Answer:B`, but `Answer: B` is scored. The shots teach the model to answer without the space.
    This makes every candidate less likely. If a chat template strips every turn, the difference is hidden.

    Fix: let `_get_fewshot_target_text` return exactly the candidate's text.

    Real: the guide of eval-framework, "Few-shot Examples" and "Science Quiz".
    """
    for instance in study.demonstrated[:1]:
        candidates = candidates_of(instance)
        spaced = {candidate[:1].isspace() for candidate in candidates if candidate}
        if len(spaced) != 1:
            return
        cue = _cue(instance)
        for shot in shots_of(instance):
            answer = (shot.answer or "").removeprefix(cue)
            if answer.strip() and answer[0].isspace() not in spaced:
                like = next((each for each in candidates if each.strip() == answer.strip()), candidates[0])
                yield finding(
                    "a shot shows its answer differently from the scored candidates",
                    f"the shot shows {answer!r}, but {like!r} is scored",
                    found.line_of("_get_fewshot_target_text"),
                    instance,
                )
                return


@class_rule("PF752", "shot-without-cue", Severity.WARNING)
def shot_without_cue(study: Study, found: TaskClass) -> Iterator[Finding]:
    r"""Report shots without the cue for the answer, and questions that already end with the cue.

    Why: eval-framework adds the cue to the evaluated question, but not to the shots. So the text of a shot's answer
    must begin with the cue. Otherwise shots end with `…\nB`, but the question ends with `…\nAnswer:`. If the question
    itself already ends with the cue, the prompt has the cue twice.

    Fix: let `_get_fewshot_target_text` return the cue (such as `Answer:`) and then the answer. If the question already
    ends with the cue, remove the cue from the question.

    Real: eval-framework's GSM8KBPB, which once printed `Answer:Answer:`.
    """
    for instance in study.demonstrated[:1]:
        cue = _cue(instance).strip()
        question = question_message(instance)
        if not cue or question is None:
            return
        if question.text.rstrip().endswith(cue):
            yield finding(
                "the question already ends with the cue",
                f"{question.text[-20:]}{cue}",
                found.line_of("_get_cue_text"),
                instance,
                do="remove the cue from _get_instruction_text, or from _get_cue_text",
            )
            return
        for shot in shots_of(instance):
            if shot.answer is not None and not shot.answer.lstrip().startswith(cue):
                yield finding(
                    "a shot has no cue before its answer, but the question has one",
                    f"in the shot, {shot.answer!r} follows {shot.question[-20:]!r} without {cue!r}",
                    found.line_of("_get_fewshot_target_text"),
                    instance,
                    do=f"let _get_fewshot_target_text return {cue!r} and then the answer",
                )
                return


@class_rule("PF756", "hook-changes-doc", Severity.WARNING)
def hook_changes_doc(study: Study, found: TaskClass) -> Iterator[Finding]:
    """Report a hook that modifies its doc.

    Why: eval-framework passes the same row to all hooks, and uses it again as a shot of other docs. If a hook modifies
    the row, these other prompts change, too. So a prompt depends on which docs came before it. This plugin itself
    passes copies to the hooks.

    Fix: copy the doc before you change it.

    Real: eval-framework, which uses the rows themselves as shots, not copies.
    """
    if found.kind != "hooks" or not study.real_docs:
        return
    try:
        instance = found.make(0)
        subjects = found.constants(instance).subjects
    except PromptfmtError:
        return
    from pytest_promptfmt.systems.eval_framework.class_docs import subject_of
    from pytest_promptfmt.systems.eval_framework.hooks import TEXT_HOOKS, spelled  # only where there is a class

    item = copy.deepcopy(dict(study.real_docs[0]))
    item["subject"] = subject_of(item, subjects)
    for hook in TEXT_HOOKS:
        if hook not in found.own:
            continue
        before = copy.deepcopy(item)
        try:
            found.call(getattr(instance, spelled(found.found, hook)), item, hook=hook, where=", doc 1")
        except PromptfmtError:
            return  # the snapshot reports it
        changed = [name for name, value in before.items() if name not in item or item[name] != value]
        if changed:
            yield finding(f"{hook} modifies the doc", ", ".join(changed), found.line_of(hook), 0, field=changed[0])


@class_rule("PF757", "no-revision-lock-file", Severity.WARNING)
def no_revision_lock_file(_study: Study, found: TaskClass) -> Iterator[Finding]:
    """Report a subclass of eval-framework's BaseTask without REVISION_LOCKFILE.

    Why: eval-framework 0.15.4 reads this attribute when it builds a task, and there is no default. Even the class in
    eval-framework's guide raises an AttributeError. When this plugin builds a class, it sets the attribute to None.

    Fix: set `REVISION_LOCKFILE = None`, or the path of a lock file.

    Real: every template of the guide of eval-framework.
    """
    from pytest_promptfmt.systems.eval_framework.hooks import misses_lock_file  # only where there is a class

    if misses_lock_file(found.found):
        yield finding(
            "eval-framework 0.15.4 cannot build this class, because it has no REVISION_LOCKFILE",
            found.name,
            found.position,
        )


# -- metrics -----------------------------------------------------------------------------------------------------------


@class_rule("PF753", "probability-mass-of-text", Severity.ERROR)
def probability_mass_of_text(study: Study, found: TaskClass) -> Iterator[Finding]:
    """Report a metric for probability mass, if the ground truth is a single text.

    Why: eval-framework's ProbabilityMass and ProbabilityMassNorm assert that the ground truth is a list. The run stops
    with an AssertionError after the model has answered.

    Fix: let `_get_ground_truth` return a list with the text, and define `_get_fewshot_target_text`.

    Real: the guide of eval-framework, which recommends such a metric with a text as ground truth.
    """
    used = [name for name in _metrics(found) if name in _MASS]
    for instance in study.instances if used else ():
        if isinstance(instance.target, str):
            yield finding(
                f"{used[0]} needs a list as ground truth",
                repr(instance.target),
                found.line_of("_get_ground_truth"),
                instance,
            )
            return


@class_rule("PF754", "no-abstention-candidate", Severity.WARNING)
def no_abstention_candidate(study: Study, found: TaskClass) -> Iterator[Finding]:
    """Report TernaryScore and DistributionalCorrectnessScore if the last candidate is an ordinary answer.

    Why: both metrics treat the last candidate as "I don't know", even if it is an answer. If the candidates have no
    abstention, a model loses nothing when it chooses the last option, even if that option is wrong.

    Fix: add a text such as " I don't know." as the last candidate in `_get_possible_completions`, or use another
    metric.

    Real: the formulas of both metrics in eval-framework 0.15.4.
    """
    used = [name for name in _metrics(found) if name in _ABSTAINING]
    for instance in study.instances if used else ():
        candidates = candidates_of(instance)
        golds = instance.target if isinstance(instance.target, list) else [instance.target]
        if candidates and (candidates[-1] in golds or not _ABSTENTION.search(candidates[-1])):
            yield finding(
                f"{used[0]} treats the last candidate as 'I do not know', but this candidate is an ordinary answer",
                repr(list(candidates)),
                found.line_of("_get_possible_completions"),
                instance,
            )
            return


@class_rule("PF755", "abstention-quoted-differently", Severity.WARNING)
def abstention_quoted_differently(study: Study, found: TaskClass) -> Iterator[Finding]:
    """Report an answer such as "I don't know", if the prompt quotes it differently from the scored candidate.

    Why: for example, the prompt allows the answer 'I don't know', but " I don't know." is scored. A model that follows
    the prompt gives little probability to the full stop.

    Fix: quote the candidate exactly in the prompt, or score the text that the prompt quotes.

    Real: pattern 4 of eval-framework's guide, and its tasks GPQA_IDK and ARC_IDK.
    """
    for instance in study.instances[:1]:
        candidates = candidates_of(instance)
        last = candidates[-1].strip() if candidates else ""
        core = last.strip(" .!()")
        if not core or len(core) < 2 or not _ABSTENTION.search(last) or not instance.prompts:
            return
        text = instance.prompts[0].text
        quoted = re.search(f"[{_QUOTES}]([^\\w\\n]?{re.escape(core)}[^\\w\\n]{{0,2}}?)[{_QUOTES}]", text)
        if quoted is not None and quoted[1] != last:
            yield finding(
                "the prompt quotes an answer differently from the scored candidate",
                f"{quoted[1]!r} is quoted, but {candidates[-1]!r} is scored",
                found.line_of("_get_initial_prompt_text"),
                instance,
            )


@class_rule("PF758", "unscored-metric", Severity.INFO)
def unscored_metric(_study: Study, found: TaskClass) -> Iterator[Finding]:
    """Report unknown metrics of a task class.

    Why: rules about scoring, and runs with a model, use only the metrics that this plugin knows by name.

    Fix: if the metric is your own, ignore this rule: this plugin cannot compute the metric.

    Real: metrics that run code or call a judge model.
    """
    from pytest_promptfmt.systems.eval_framework.metric_classes import COMPLETION_METRICS, LIKELIHOOD_METRICS

    for name in _metrics(found):
        if name not in LIKELIHOOD_METRICS and name not in COMPLETION_METRICS:
            yield finding(f"unknown metric {name}", name, found.position)


def _metrics(found: TaskClass) -> tuple[str, ...]:
    if found.kind == "benchmark":
        return ()
    try:
        return found.constants().metrics
    except PromptfmtError:
        return ()


def candidates_of(instance: Instance) -> tuple[str, ...]:
    """Return the texts that are scored for the first prompt of a doc."""
    return tuple(
        request.continuation
        for request in instance.requests
        if request.prompt == 0 and request.continuation is not None
    )


def _cue(instance: Instance) -> str:
    """Return the start of the answer to the evaluated doc, as the prompt gives it."""
    messages: Any = instance.prompts[0].messages if instance.prompts else ()
    last = messages[-1] if messages else None
    is_cue = last is not None and last.role == "assistant" and all(s.origin.shot is None for s in last.content)
    return last.text if is_cue and last is not None else ""
