"""Rules about instructions that contradict the task: other labels, another number of options, reasoning, the answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.core.prompt import join
from pytest_promptfmt.rules.answer_forms import listed_labels
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import finding, question_message
from pytest_promptfmt.study import Study
from pytest_promptfmt.study.study import constant_spans
from pytest_promptfmt.tasks import looks_for_answers

_WORD: Final = r"[\"'“‘`*]*([^\W\d_][\w-]+)[\"'”’`*]*"
_NAMED: Final = re.compile(
    r"\b(classif\w+|label\w*|categori\w+|determine|decide|identify|answer|respond|reply|choose|output|say|one of"
    rf"|either)\b[^.?!\n]{{0,80}}?(?:\b(?:as|into|with|either|among|between|from|of|is|are)\b|:)[ :]*{_WORD}"
    rf"((?:, *{_WORD})*),? (?:or|and) {_WORD}(?=[\s.,;:)]|$)",
    re.IGNORECASE,
)
_NUMBERS: Final = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "ten": 10}
_COUNT: Final = re.compile(
    rf"(?<!first )(?<!last )(?<!other )\b({'|'.join(_NUMBERS)}|[2-9])"
    r" (?:(?:possible|answer|different|given|following) )*(options|choices|alternatives|labels|categories|classes)\b",
    re.IGNORECASE,
)
_STEPS: Final = re.compile(r"step[- ]by[- ]step|show your (?:work|reasoning)|explain your (?:reasoning|answer)", re.I)
_PRINTED: Final = re.compile(r"\{\{-?\s*(.+?)\s*-?\}\}", re.DOTALL)
_OPTION: Final = re.compile(r"[(\[]?[A-Z\d][)\].][ \t]*$")


@rule("PF718", "gold-in-question", severity=Severity.ERROR, family=Family.ANSWERS)
def gold_in_question(study: Study) -> Iterator[Finding]:
    r"""Report a question that prints the answer: the same expression as `doc_to_target`, or the choice it points at.

    Why: a template for few-shot examples or training ends with the answer. With it as `doc_to_text`, the model reads
    the answer before it gives it.

    Example:
        doc_to_text: "Question: {{question}}\nAnswer: {{choices[answer]}}"
        doc_to_target: "{{answer}}"

    Silent with:
        doc_to_text: "Question: {{question}}\nAnswer:"

    Fix: remove the answer from `doc_to_text`.

    Real: eval-framework #81 (sciq: the passage with the answer); templates made for training.
    """
    text, target = study.written.doc_to_text, study.written.doc_to_target
    if not isinstance(text, str) or not isinstance(target, str) or "{%" in text:
        return
    if not (study.generates or study.has_choices):
        return
    whole = _PRINTED.fullmatch(target.strip())
    gold = _bare(whole[1] if whole is not None else target if target.isidentifier() else "")
    if not gold or "question" in gold or gold.isdigit() or (study.generates and study.has_own_scorer):
        return  # a function may run the target, tests that the question shows, on what is generated
    for found in _PRINTED.finditer(text):
        shown = _bare(found[1])
        if (shown == gold or shown.endswith(f"[{gold}]")) and not _OPTION.search(text[: found.start()]):
            yield finding(
                "the question prints the answer", text[max(0, found.start() - 20) : found.end()], "doc_to_text"
            )
            return


def _bare(expression: str) -> str:
    return re.sub(r"\s|\|(?:trim|string|int|lower|upper)\b|^\(|\)$", "", expression)


@rule("PF719", "named-labels-unlike-scored", severity=Severity.WARNING, family=Family.ANSWERS)
def named_labels(study: Study) -> Iterator[Finding]:
    r"""Report an instruction that names other labels than are scored: one more, one less, or those of another task.

    Why: "Classify the text as positive or negative." hides the third label from the model, and a copied instruction
    names those of another dataset.

    Example:
        description: "Classify the text as positive or negative.\n\n"
        doc_to_choice: ["positive", "negative", "neutral"]

    Silent with:
        description: "Classify the text as positive, negative or neutral.\n\n"

    Fix: name the labels that are scored.

    Real: instructions copied between tasks of natural language inference and sentiment.
    """
    choices = study.written.doc_to_choice
    if not isinstance(choices, list) or study.generates or study.has_guessed_text:
        return
    scored = {str(choice).strip().strip("\"'.").casefold() for choice in choices}
    if len(scored) < _LEAST or not all(re.fullmatch(r"[^\W\d_][\w-]+", one) for one in scored):
        return
    for instance in study.instances[:1]:
        text = join(constant_spans(instance))
        for found in _NAMED.finditer(text):
            named = [found[2], *re.findall(_WORD, found[3] or ""), found[5]]
            named_set = {one.casefold() for one in named}
            hidden = [one for one in scored if one not in named_set and not _has_word(text, one)]
            strange = [one for one in named if one.casefold() not in scored]
            is_other = not named_set & scored and re.match(r"classif|label|categori", found[1], re.IGNORECASE)
            if len(named_set) < _LEAST or (not named_set & scored and not is_other):
                continue
            if hidden:
                yield finding(
                    "the instruction names other labels than are scored",
                    f"{', '.join(named)}; scored are {', '.join(map(str, choices))}",
                    "description" if study.task.description else "doc_to_text",
                    instance,
                )
                return
            if len(strange) == 1 and len(named_set) > len(scored):
                yield finding(
                    "the instruction names a label that is not scored",
                    f"{strange[0]}; scored are {', '.join(map(str, choices))}",
                    "description" if study.task.description else "doc_to_text",
                    instance,
                )
                return


_LEAST: Final = 2


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) is not None


@rule("PF725", "number-of-options", severity=Severity.WARNING, family=Family.ANSWERS)
def number_of_options(study: Study) -> Iterator[Finding]:
    r"""Report a prompt that names another number of options than it lists or scores.

    Why: "one of the four options" above three of them: the instruction was written for another dataset, or an option is
    missing.

    Example:
        doc_to_text: "Choose one of the four options.\n{{question}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nAnswer:"
        doc_to_choice: ["A", "B"]

    Silent with:
        doc_to_text: "Choose one of the two options.\n{{question}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nAnswer:"

    Fix: name the number that is listed, or leave it out.

    Real: instructions shared by datasets with three, four and five options.
    """
    for instance in study.instances[:1]:
        found = _COUNT.search(join(constant_spans(instance)))
        choices = study.written.doc_to_choice
        count = len(choices) if isinstance(choices, list) else len(listed_labels(instance))
        if found is None or count < _LEAST or study.has_guessed_text:
            return
        said = _NUMBERS.get(found[1].casefold()) or int(found[1])
        if said != count:
            yield finding(
                "the prompt names another number of options than there are",
                f"{found[0]}; there are {count}",
                "description" if study.task.description else "doc_to_text",
                instance,
            )


@rule("PF914", "reasoning-without-generation", severity=Severity.WARNING, family=Family.GENERATION)
def reasoning_without_generation(study: Study) -> Iterator[Finding]:
    r"""Report a prompt that asks for reasoning where choices are scored by their likelihood, so that none is written.

    Why: right after "Let's think step by step." comes `A` or `B` as the continuation. Nothing is thought, and the
    labels are unlikely there.

    Example:
        doc_to_text: "{{question}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nLet's think step by step.\nAnswer:"
        doc_to_choice: ["A", "B"]

    Silent with:
        doc_to_text: "{{question}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nAnswer:"

    Fix: remove the sentence, or generate the answer and filter it.

    Real: instructions of chain-of-thought variants left in the multiple-choice variant.
    """
    if not study.has_choices or study.has_guessed_text:
        return
    for instance in study.instances[:1]:
        message = question_message(instance)
        if message is None:
            return
        found = _STEPS.search(join(constant_spans(instance)))
        if found is not None:
            yield finding(
                "the prompt asks for reasoning, but the choices are scored right after it",
                found[0],
                "doc_to_text",
                instance,
            )


@rule("PF112", "filters-without-generation", severity=Severity.ERROR, family=Family.CONFIG)
def filters_without_generation(study: Study) -> Iterator[Finding]:
    r"""Report filters that look for an answer in a task that generates nothing.

    Why: filters of lm-eval are applied to whatever the model returns. For log-likelihoods a regex finds nothing, gives
    its fallback for every choice, and scoring fails at the end of the run.

    Example:
        filter_list: [{name: x, filter: [{function: regex, regex_pattern: "(A|B)"}, {function: take_first}]}]

    Silent with:
        output_type: generate_until

    Fix: remove `filter_list`, or set `output_type: generate_until`.

    Real: generation tasks turned into multiple choice by their `output_type` alone.
    """
    written: Any = study.task.filter_list
    if written and not study.generates and study.renders_fields and looks_for_answers(study.task):
        yield finding(
            "a filter looks for an answer, but nothing is generated",
            f"output_type: {study.task.output_type}",
            "filter_list",
        )
