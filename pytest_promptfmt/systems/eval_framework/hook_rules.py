"""Rules about the hooks of Python task classes: what they show, and what they do to docs."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from pytest_promptfmt.checks.registry import check
from pytest_promptfmt.checks.views import TaskView, question_message, shots_of
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.systems.eval_framework.hooks import TEXT_HOOKS, misses_lock_file, spelled
from pytest_promptfmt.systems.eval_framework.rows import subject_of
from pytest_promptfmt.systems.eval_framework.tasks import class_of


@check("PF751", "demonstration-unlike-candidate", severity=Severity.ERROR, family=Family.CLASSES)
def demonstration_unlike_candidate(view: TaskView) -> Iterator[Finding]:
    r"""Report demonstrations that show an answer without the blank that the scored candidates begin with.

    Why: `Answer:B` is shown, and `Answer: B` is scored. The model learns from the demonstrations to go on without the
    blank, and the candidates are punished for it; a template that strips every turn hides the difference again.

    Example:
        # file: quiz.yaml
        class: !function quiz.Quiz
        num_fewshot: 1
        docs: [{question: Which falls?, key: A}, {question: Which rises?, key: B}]
        # file: quiz.py
        class Quiz:
            RESPONSE_TYPE = "loglikelihoods"
            def _get_instruction_text(self, item): return f"{item['question']}\nA. stone\nB. smoke\nAnswer:"
            def _get_possible_completions(self, item): return [" A", " B"]
            def _get_ground_truth(self, item): return f" {item['key']}"
            def _get_fewshot_target_text(self, item): return item["key"]

    Silent example:
        # file: quiz.yaml
        class: !function quiz.Quiz
        num_fewshot: 1
        docs: [{question: Which falls?, key: A}, {question: Which rises?, key: B}]
        # file: quiz.py
        class Quiz:
            RESPONSE_TYPE = "loglikelihoods"
            def _get_instruction_text(self, item): return f"{item['question']}\nA. stone\nB. smoke\nAnswer:"
            def _get_possible_completions(self, item): return [" A", " B"]
            def _get_ground_truth(self, item): return f" {item['key']}"
            def _get_fewshot_target_text(self, item): return f" {item['key']}"

    Fix: return the same text as the candidate, blank included, or leave the hook out: the default is the ground truth.

    Real: the guide of eval-framework, "Few-shot Examples" and "Science Quiz".

    """
    found = class_of(view.task)
    if found is None:
        return
    for instance in view.demonstrated[:1]:
        candidates = candidates_of(instance)
        blanks = {candidate[:1].isspace() for candidate in candidates if candidate}
        if len(blanks) != 1:
            return
        cue = _cue(instance)
        for shot in shots_of(instance):
            answer = (shot.answer or "").removeprefix(cue)
            if answer.strip() and answer[0].isspace() not in blanks:
                like = next((each for each in candidates if each.strip() == answer.strip()), candidates[0])
                yield Finding(
                    message="a demonstration shows its answer otherwise than the candidates are scored",
                    saw=f"{answer!r} is shown, {like!r} is scored",
                    do="return the candidate's text byte for byte from _get_fewshot_target_text",
                    position=found.line_of("_get_fewshot_target_text"),
                    doc=instance.index,
                )
                return


@check("PF752", "demonstration-without-cue", severity=Severity.WARNING, family=Family.CLASSES)
def demonstration_without_cue(view: TaskView) -> Iterator[Finding]:
    r"""Report demonstrations that lack the cue, or have it twice.

    Why: the cue stands before the answer that is asked for, not before those that are shown: the few-shot target has to
    bring it along. Without it demonstrations read `…\nB`, the question `…\nAnswer:`. A question that already ends with
    the cue has it twice.

    Example:
        # file: quiz.yaml
        class: !function quiz.Quiz
        num_fewshot: 1
        docs: [{question: Which falls?, key: A}, {question: Which rises?, key: B}]
        # file: quiz.py
        class Quiz:
            RESPONSE_TYPE = "loglikelihoods"
            def _get_instruction_text(self, item): return f"{item['question']}\nA. stone\nB. smoke\n"
            def _get_cue_text(self, item): return "Answer:"
            def _get_possible_completions(self, item): return [" A", " B"]
            def _get_ground_truth(self, item): return f" {item['key']}"

    Silent example:
        # file: quiz.yaml
        class: !function quiz.Quiz
        num_fewshot: 1
        docs: [{question: Which falls?, key: A}, {question: Which rises?, key: B}]
        # file: quiz.py
        class Quiz:
            RESPONSE_TYPE = "loglikelihoods"
            def _get_instruction_text(self, item): return f"{item['question']}\nA. stone\nB. smoke\n"
            def _get_cue_text(self, item): return "Answer:"
            def _get_possible_completions(self, item): return [" A", " B"]
            def _get_ground_truth(self, item): return f" {item['key']}"
            def _get_fewshot_target_text(self, item): return f"Answer: {item['key']}"

    Fix: return cue and answer from `_get_fewshot_target_text`; keep the cue out of the question.

    Real: GSM8KBPB in eval-framework, where `Answer:Answer:` was found and mended.

    """
    found = class_of(view.task)
    if found is None:
        return
    for instance in view.demonstrated[:1]:
        cue = _cue(instance).strip()
        question = question_message(instance)
        if not cue or question is None:
            return
        if question.text.rstrip().endswith(cue):
            yield Finding(
                message="the cue stands twice: the question ends with it already",
                saw=f"{question.text[-20:]}{cue}",
                do="keep the cue out of _get_instruction_text, or out of _get_cue_text",
                position=found.line_of("_get_cue_text"),
                doc=instance.index,
            )
            return
        for shot in shots_of(instance):
            if shot.answer is not None and not shot.answer.lstrip().startswith(cue):
                yield Finding(
                    message="a demonstration lacks the cue that the question has",
                    saw=f"{shot.answer!r} after {shot.question[-20:]!r}, cue {cue!r}",
                    do="return cue and answer from _get_fewshot_target_text",
                    position=found.line_of("_get_fewshot_target_text"),
                    doc=instance.index,
                )
                return


@check("PF756", "hook-changes-doc", severity=Severity.WARNING, family=Family.CLASSES)
def hook_changes_doc(view: TaskView) -> Iterator[Finding]:
    r"""Report a hook that changes the doc it is given.

    Why: eval-framework hands all hooks the same row, and shows it again as a demonstration of other docs. What a hook
    changes is changed for them too, so that a prompt depends on which docs came before it. Here hooks get copies.

    Example:
        # file: quiz.yaml
        class: !function quiz.Quiz
        docs: [{question: Which falls?, options: [stone, smoke]}]
        # file: quiz.py
        class Quiz:
            RESPONSE_TYPE = "loglikelihoods"
            def _get_instruction_text(self, item): return f"{item['question']}\nAnswer:"
            def _get_ground_truth(self, item): return " stone"
            def _get_possible_completions(self, item):
                item["options"].append("neither")
                return [f" {option}" for option in item["options"]]

    Silent example:
        # file: quiz.yaml
        class: !function quiz.Quiz
        docs: [{question: Which falls?, options: [stone, smoke]}]
        # file: quiz.py
        class Quiz:
            RESPONSE_TYPE = "loglikelihoods"
            def _get_instruction_text(self, item): return f"{item['question']}\nAnswer:"
            def _get_ground_truth(self, item): return " stone"
            def _get_possible_completions(self, item):
                return [f" {option}" for option in [*item["options"], "neither"]]

    Fix: make a copy before changing it.

    Real: demonstrations in eval-framework are the rows themselves, not copies.

    """
    found = class_of(view.task)
    if found is None or found.kind != "hooks" or not view.real_docs:
        return
    try:
        instance = found.make(0)
        subjects = found.constants(instance).subjects
    except PromptfmtError:
        return
    item = copy.deepcopy(dict(view.real_docs[0]))
    item["subject"] = subject_of(item, subjects)
    for hook in TEXT_HOOKS:
        if hook not in found.own:
            continue
        before = copy.deepcopy(item)
        try:
            found.call(getattr(instance, spelled(found.found, hook)), item, hook=hook, where=", doc 1")
        except PromptfmtError:
            return  # the snapshot says it
        changed = [name for name, value in before.items() if name not in item or item[name] != value]
        if changed:
            yield Finding(
                message=f"{hook} changes the doc it is given",
                saw=", ".join(changed),
                do="make a copy before changing it",
                position=found.line_of(hook),
                field=changed[0],
                doc=0,
            )


@check("PF757", "no-revision-lock-file", severity=Severity.WARNING, family=Family.CLASSES)
def no_revision_lock_file(view: TaskView) -> Iterator[Finding]:
    r"""Report a subclass of eval-framework's BaseTask without REVISION_LOCKFILE.

    Why: eval-framework 0.15.4 reads the attribute when it builds a task, and gives it no default: the class as the
    guide shows it ends with an AttributeError. This plugin sets it to None.

    Example:
        # file: quiz.yaml
        class: !function quiz.Quiz
        docs: [{question: Which falls?, key: A}]
        # file: quiz.py
        BaseTask = type("BaseTask", (), {"__module__": "eval_framework.tasks.base"})
        class Quiz(BaseTask):
            RESPONSE_TYPE = "loglikelihoods"
            def _get_instruction_text(self, item): return f"{item['question']}\nA. stone\nB. smoke\nAnswer:"
            def _get_possible_completions(self, item): return [" A", " B"]
            def _get_ground_truth(self, item): return f" {item['key']}"

    Silent example:
        # file: quiz.yaml
        class: !function quiz.Quiz
        docs: [{question: Which falls?, key: A}]
        # file: quiz.py
        BaseTask = type("BaseTask", (), {"__module__": "eval_framework.tasks.base"})
        class Quiz(BaseTask):
            REVISION_LOCKFILE = None
            RESPONSE_TYPE = "loglikelihoods"
            def _get_instruction_text(self, item): return f"{item['question']}\nA. stone\nB. smoke\nAnswer:"
            def _get_possible_completions(self, item): return [" A", " B"]
            def _get_ground_truth(self, item): return f" {item['key']}"

    Fix: `REVISION_LOCKFILE = None`, or the path of a lock file that pins the data set.

    Real: every template of the guide of eval-framework.

    """
    found = class_of(view.task)
    if found is not None and misses_lock_file(found.found):
        yield Finding(
            message="eval-framework 0.15.4 does not build a class without REVISION_LOCKFILE",
            saw=found.name,
            do="set REVISION_LOCKFILE = None, or the path of a lock file",
            position=found.position,
        )


def candidates_of(instance: Instance) -> tuple[str, ...]:
    """Return the texts that are scored for the first prompt of a doc."""
    return tuple(
        request.continuation
        for request in instance.requests
        if request.prompt == 0 and request.continuation is not None
    )


def _cue(instance: Instance) -> str:
    """Return what the answer of the evaluated doc begins with."""
    messages: Any = instance.prompts[0].messages if instance.prompts else ()
    last = messages[-1] if messages else None
    is_cue = last is not None and last.role == "assistant" and all(s.origin.shot is None for s in last.content)
    return last.text if is_cue and last is not None else ""
