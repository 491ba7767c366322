"""Rules about the layout of few-shot examples: their joins, their answers, and examples written into a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from jinja2 import TemplateSyntaxError

from pytest_promptfmt.answers.phrasings import answer_words
from pytest_promptfmt.core.errors import RenderError
from pytest_promptfmt.core.prompt import Instance, join
from pytest_promptfmt.core.text import shared_start
from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import (
    around,
    choices_of,
    finding,
    instruction_key,
    pattern,
    question_layout,
    question_message,
    questions,
    severity_of_shots,
    shots_of,
    words,
)
from pytest_promptfmt.study.layout import layout_of

_ANSWERS: Final = words("answer_labels") | {word.casefold() for word in answer_words().values()}
_FEW_WORDS: Final = 4
_LEAST_WRITTEN: Final = 2
"""Solved examples in a text that show a layout; a single one may be a part of the question."""

ANNOUNCED: Final = pattern("shot_layout", "announced")


@rule("PF808", "shots-fail", severity=Severity.ERROR, family=Family.FEWSHOT)
def shots_fail(study: Study) -> Iterator[Finding]:
    """Report few-shot examples that cannot be rendered, although the task shows none by itself.

    Why: with `--num_fewshot` the run ends with an exception. Without that option nothing renders the keys of
    `fewshot_config`, so that the mistake is not noticed.

    Fix: correct the keys of `fewshot_config`.

    Real: lm-evaluation-harness #2323 (agieval fails with any number of shots).
    """
    failure = study.shots_failure
    if not isinstance(failure, RenderError):
        return
    if not study.has_real_docs and not isinstance(failure.__cause__, TemplateSyntaxError):
        return  # synthetic docs need not be what code and templates expect, but nothing can be made of such a template
    yield Finding(
        message="few-shot examples cannot be rendered",
        saw=failure.message,
        do=failure.hint or ("" if "fewshot_config" in study.config else "correct the value that the message names"),
        keys=("fewshot_config",),
        position=failure.position,
        severity=None if "fewshot_config" in study.config else severity_of_shots(study),
    )


@also("PF808")
def fewer_docs_than_shots(study: Study) -> Iterator[Finding]:
    """Report fewer docs to draw few-shot examples from than the task shows."""
    if study.failure is None and study.shots < study.requested_shots:
        saw = f"{study.shots} of {study.requested_shots} can be drawn"
        yield finding("there are fewer docs than few-shot examples", saw, "num_fewshot")


@also("PF807")
def unlike_written_examples(study: Study) -> Iterator[Finding]:
    """Report a question without the label that the solved examples in the same text have."""
    if study.has_guessed_text or study.is_multimodal:
        return
    for instance in study.instances[:1]:
        written = _written_examples(study.instances)
        asked = question_message(instance)
        if written is None or asked is None or len(instance.prompts) != 1:
            return
        tail = instance.prompts[0].text[written.end :]
        labels = [label.name.casefold() for label in layout_of(tail).labels]
        if written.question.casefold() not in labels:
            missing, where = written.question, "before the question"
        elif written.answer.casefold() not in labels:
            missing, where = written.answer, "after the question"
        else:
            return
        saw = f"{missing}: in the examples, then {tail[-60:]}"
        yield finding(f"the solved examples have a label that is missing {where}", saw, "doc_to_text", instance)


@also("PF807")
def other_options(study: Study) -> Iterator[Finding]:
    """Report few-shot examples whose options have other labels than those of the question, such as 1 and A."""
    for instance in () if study.has_guessed_text else study.with_shots[:1]:
        own = [option.label for option in question_layout(instance).listed[:2]]
        for shot in shots_of(instance) if own else ():
            other = [option.label for option in layout_of(shot.question).listed[:2]]
            if min(len(other), len(own)) > 1 and other != own:  # one line may hold all options
                saw = f"{', '.join(other)} in a few-shot example, {', '.join(own)} in the question"
                message = "few-shot examples have other labels of options than the question"
                at = ("fewshot_config", "doc_to_text")
                yield finding(message, saw, at, instance, severity=severity_of_shots(study))
                return


@also("PF807")
def shot_answer_not_a_choice(study: Study) -> Iterator[Finding]:
    """Report few-shot examples whose answer is not one of the scored labels."""
    if not isinstance(study.written.doc_to_choice, list):
        return  # each doc may have its own choices
    for instance in study.demonstrated[:1]:
        choices = {choice.strip() for choice in choices_of(study, instance)}
        shots = [shot for shot in shots_of(instance) if shot.answer and shot.answer.strip()]
        if not choices or not shots or any("«" in (shot.answer or "") for shot in shots):
            return
        other = next((shot.answer for shot in shots if (shot.answer or "").strip() not in choices), None)
        if other is not None:
            yield finding(
                "a few-shot example has an answer that is not a choice",
                f"{other.strip()[:40]!r}, scored are {', '.join(sorted(map(repr, choices)))}",
                ("fewshot_config", "doc_to_target"),
                instance,
            )


@also("PF807", severity=Severity.ERROR)
def written_answers_not_scored(study: Study) -> Iterator[Finding]:
    """Report solved examples in a text whose answers are not among the fixed choices."""
    choices = study.written.doc_to_choice
    scored = {str(one).strip().casefold() for one in choices} if isinstance(choices, list) else set()
    for template in study.templates if scored and not study.has_guessed_text else ():
        for text in template.text.constants if template.keys[-1] in ("description", "doc_to_text") else ():
            answers = [one.value for one in layout_of(text).labels if one.name.casefold() in _ANSWERS and one.value]
            said = {answer.strip("().[]*\"' ").casefold() for answer in answers}
            are_short = all(len(answer.split()) < _FEW_WORDS for answer in answers)
            if len(answers) >= _LEAST_WRITTEN and are_short and len(said) > 1 and not said & _bare(scored):
                saw = f"{answers[0]!r}, {answers[1]!r}; scored are {', '.join(map(repr, choices or ()))}"
                yield finding("solved examples have answers that are not scored", saw, template.keys)
                return


def _bare(texts: set[str]) -> set[str]:
    return {text.strip("().[]*\"' ") for text in texts}


@also("PF807")
def uneven_labels(study: Study) -> Iterator[Finding]:
    """Report solved examples in a text with more answers than questions, or more questions than answers."""
    for template in study.templates:
        for text in template.text.constants:
            counted = Counter(label.name for label in layout_of(text).labels)
            for question, answer in (("Q", "A"), ("Question", "Answer"), ("Input", "Output"), ("问题", "答案")):
                questions, answers = counted[question], counted[answer]
                if not questions or not answers or counted["B"]:  # `A:` and `B:` are options
                    continue
                if max(questions, answers) > _LEAST_WRITTEN and abs(questions - answers) > 1:
                    saw = f"{questions} times {question}:, {answers} times {answer}:"
                    yield finding("solved examples have unequal numbers of questions and answers", saw, template.keys)


@rule("PF812", "announced-and-missing", severity=Severity.WARNING, family=Family.FEWSHOT)
def announced_examples(study: Study) -> Iterator[Finding]:
    """Report a prompt that announces something that is not there, such as examples.

    Why: "Here are some examples" before a lone question belongs to a few-shot prompt. Either the examples were lost or
    the sentence is left over.

    Fix: remove the sentence, or set `num_fewshot`.

    Real: the few-shot prompts of GPQA's own code, which lost their examples (idavidrein/gpqa #22).
    """
    if study.task.num_fewshot != 0 and study.shots == 0:
        return  # a number of examples may be given on the command line
    for instance in study.instances[:1]:
        text = join(span for prompt in instance.prompts[:1] for span in prompt.spans if span.origin.field is None)
        found = ANNOUNCED.search(text)
        if found is None or shots_of(instance) or study.has_guessed_text:
            return
        labels = Counter(label.name.casefold() for label in layout_of(text).labels)
        shown = sum(labels[word] for word in _ANSWERS) + labels["example"] + labels["examples"]
        if shown < _LEAST_WRITTEN and len(text) - found.end() < _MUCH:
            saw = around(text, found, 10, 30)
            yield finding("the prompt announces examples but has none", saw, instruction_key(study), instance)


@also("PF812")
def announced_passage(study: Study) -> Iterator[Finding]:
    """Report a prompt that speaks of a passage and prints only a question."""
    for instance, message in questions(study.instances[:1]) if not study.has_guessed_text else ():
        found = _SPEAKS_OF.search(study.own_text)
        printed = {span.origin.field for span in message.content if span.origin.field is not None}
        shown = max((len(span.text) for span in message.content if span.origin.field is not None), default=0)
        others = [name for name in printed if not _QUESTION.fullmatch(name) and not _OPTIONS.fullmatch(name)]
        if found is not None and printed and not others and shown < _MUCH:
            saw = f"{found[0]}; the prompt ends with {message.text[-40:]!r}"
            yield finding("the prompt speaks of a passage that it does not print", saw, "doc_to_text", instance)


@also("PF812")
def empty_field(study: Study) -> Iterator[Finding]:
    """Report a label with nothing after it, directly before the next one."""
    for template in study.templates:
        found = next(filter(None, map(_EMPTY_FIELD.search, template.text.constants)), None)
        if found is not None and template.keys[-1] == "doc_to_text":
            yield finding("a label has nothing after it", found[0], template.keys)


_SPEAKS_OF: Final = pattern("shot_layout", "speaks_of")
_QUESTION: Final = pattern("shot_layout", "question")
_OPTIONS: Final = pattern("shot_layout", "options")
_EMPTY_FIELD: Final = pattern("shot_layout", "empty_field")
_MUCH: Final = 300
"""Characters of constant text that may hold the examples in another form."""


@dataclass(frozen=True, slots=True)
class _Written:
    """The layout of solved examples in a text: their labels, and where the last of them ends."""

    question: str
    answer: str
    end: int


def _written_examples(instances: Sequence[Instance]) -> _Written | None:
    """Return the layout of the solved examples that constant text before the question holds, None without them.

    Text that an expression prints together with a column is constant as well: what all docs begin with.
    """
    prompts = [instance.prompts[0] for instance in instances if instance.prompts]
    if not prompts or any(span.origin.shot is not None for span in prompts[0].spans):
        return None
    of_template = join(takewhile(lambda span: span.origin.field is None, prompts[0].spans))
    texts = [prompt.text for prompt in prompts]
    shared = min(texts)[: shared_start(min(texts), max(texts))] if len(texts) > 1 else ""
    constant = max(of_template, shared, key=len)
    found = layout_of(constant).labels
    labels = [each.name for each in found]
    answers = [label for label in dict.fromkeys(labels) if label.casefold() in _ANSWERS]
    for answer in answers:
        places = [number for number, label in enumerate(labels) if label == answer]
        asked = _asked_before(labels, places)
        if len(places) >= _LEAST_WRITTEN and asked is not None and "B" not in labels:
            after = found[places[-1]].end
            end = max(constant.find("\n\n", after), constant.find("\n", after) if "\n\n" not in constant else -1)
            return _Written(asked, answer, end) if end >= 0 else None
    return None


def _asked_before(labels: Sequence[str], places: Sequence[int]) -> str | None:
    """Return the label that comes before every one of the answers, None where they differ."""
    before = {labels[place - 1] for place in places if place}
    return before.pop() if len(before) == 1 and all(places) else None
