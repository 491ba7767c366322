"""Rules about tasks that are put to a model whose answers begin with reasoning."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from pytest_promptfmt.answers.completions import THINK_END, is_nothing
from pytest_promptfmt.answers.phrasings import Answers, contract_sentences
from pytest_promptfmt.answers.subject import Subject
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.profiles.template_facts import ThinkingMarks
from pytest_promptfmt.rules import Family, Finding, ProfileView, Severity, rule
from pytest_promptfmt.rules.completion_reader import limited_answers
from pytest_promptfmt.rules.rule_views import finding
from pytest_promptfmt.study.scoring import BUDGETS

_OPENED: Final = re.compile(r"(?:<(?:\w+:)?(?:think|thinking|reasoning|thought)>|\[THINK\])\s*\Z", re.I)
_BREAKS: Final = re.compile(r"\s+|[.,:;]\s*")
"""Stops that every reasoning holds."""

_LEAST_BUDGET: Final = 1024
_SHOWN: Final = 40
_SENTENCES: Final[Sequence[str]] = data_table("rules")["after_reasoning"]
_NUMBERS: Final = ("42", "17")


@rule("PF462", "task-ends-reasoning", severity=Severity.ERROR, family=Family.CHAT, scope="profile")
def task_ends_reasoning(view: ProfileView) -> Iterator[Finding]:
    """Report a task that stops, cuts or skips the reasoning with which a model begins, as its chat template shows.

    Why: the generation prompt ends with `<think>`, so all that the model writes first is reasoning. A stop at a line
    break ends it, a small budget is used up by it, likelihoods of choices are those of reasoning, and a `gen_prefix`
    makes the model answer without any. The last three are warnings.

    Fix: turn reasoning off in `template_args` (`enable_thinking: false`), or give the task other stops and a budget of
    thousands of tokens.

    Real: lm-evaluation-harness PR #3700 (17 tasks that stop at a blank line), PR #3675, #3403; lighteval #869.
    """
    facts, study = view.facts, view.study
    if facts is None or not _OPENED.search(facts.generation_prompt or ""):
        return
    is_open = any(_OPENED.search(prompt.text) for _, prompt in view.prompts[:1])
    if not is_open and view.prompts and study.task.gen_prefix:
        yield finding(
            "the gen_prefix takes the place of the reasoning that the chat template opens",
            repr(view.prompts[0][1].text[-_SHOWN:]),
            "gen_prefix",
            severity=Severity.WARNING,
        )
    if not study.generates:
        if is_open:
            yield finding(
                "choices are scored inside the reasoning that the chat template opens",
                (facts.generation_prompt or "").strip(),
                "output_type",
                severity=Severity.WARNING,
            )
        return
    if not is_open:
        return
    by_default = study.stops is None
    stops = [study.task.fewshot_delimiter] if by_default else study.stop_texts
    for number, stop in enumerate(stops):
        if stop and _BREAKS.fullmatch(stop):
            yield finding(
                "a stop sequence ends the reasoning that the chat template opens",
                repr(stop),
                ("generation_kwargs",) if by_default else ("generation_kwargs", "until", number),
            )
            break
    kwargs = study.task.generation_kwargs or {}
    budget = next((kwargs[key] for key in BUDGETS if key in kwargs), 256)
    if isinstance(budget, int) and not isinstance(budget, bool) and 0 < budget < _LEAST_BUDGET:
        yield finding(
            "the budget of tokens is too small for the reasoning that the chat template opens",
            f"{budget} tokens",
            "generation_kwargs",
            severity=Severity.WARNING,
        )


@rule("PF464", "reasoning-read-as-answer", severity=Severity.WARNING, family=Family.CHAT, scope="profile")
def reasoning_read_as_answer(view: ProfileView) -> Iterator[Finding]:
    """Report filters that read an answer out of the reasoning, between the marks of the profile's own chat template.

    Why: lm-eval cuts reasoning off at `</think>` unless another mark is configured. With a model that closes its
    reasoning differently, a filter sees all of it, and reads the first answer that the model considered.

    Fix: give the mark to lm-eval (`--model_args think_end_token=…`) and to `metadata.promptfmt.think_end_token`.

    Real: Ministral 3 Reasoning (`[/THINK]`), Gemma 4 (`<channel|>`), Seed-OSS (`</seed:think>`).
    """
    facts = view.facts if view.study.generates and view.failure is None else None
    marks = facts.thinking_marks if facts is not None else None
    if marks is None or marks.close == THINK_END:
        return  # the phrasing battery tries that one for every task
    try:
        misread = _misread(Subject(view.study.scoring), marks)
    except PromptfmtError:
        return  # reported by the item `scoring`
    if misread is not None:
        do = f"give lm-eval think_end_token={marks.close}, and write it as metadata.promptfmt.think_end_token"
        yield finding(
            "a filter reads the reasoning of the profile's model as the answer", misread, "filter_list", do=do
        )


def _misread(subject: Subject, marks: ThinkingMarks) -> str | None:
    """Return what is read from a completion with reasoning, where the bare answer is read rightly; else None."""
    answers = limited_answers(subject)
    if answers is None:
        return None
    doc = subject.instances[0].doc
    for pipeline in subject.chain.pipelines:
        for right, wrong in _sentences(subject, answers):
            alone = subject.chain.read(pipeline, right, doc, "an answer").extracted
            if is_nothing(alone):
                continue
            thought = f"{marks.open}\n{wrong} No, that is wrong.\n{marks.close}\n{right}"
            read = subject.chain.read(pipeline, thought, doc, "reasoning").extracted
            if read != alone:
                return f"{str(read)!r} from {thought!r}"
            break
    return None


def _sentences(subject: Subject, answers: Answers) -> Iterator[tuple[str, str]]:
    """Yield sentences that give the right answer, each with the same that gives a wrong one."""
    if answers.kind == "number":
        yield from ((form.format(_NUMBERS[0]), form.format(_NUMBERS[1])) for form in _SENTENCES)
        return
    golds = [replace(answers, gold=number) for number in ((answers.gold + 1) % len(answers.labels), answers.gold)]
    wrong, right = (contract_sentences(subject.prompt, each, subject.prefix) for each in golds)
    yield from zip(right, wrong, strict=False)
    labels = [each.labels[each.gold] for each in golds]
    yield from ((form.format(labels[1]), form.format(labels[0])) for form in _SENTENCES)
