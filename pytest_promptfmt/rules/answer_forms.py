"""Rules about the form of answers: what the prompt asks for, what it lists, and what is scored."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.core.prompt import Instance, join
from pytest_promptfmt.core.task import FunctionRef
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import choices_of, finding, question_message
from pytest_promptfmt.study import Study
from pytest_promptfmt.study.study import constant_spans
from pytest_promptfmt.tasks import load_function, row_facts, template_shapes

_ASK: Final = r"\b(?:answer|respond|reply|output|choose|select|pick|return|write|give|say)\b[^.?!\n]{0,50}?"
_YES_NO: Final = re.compile(
    rf"{_ASK}[\s(\"'“‘`*](yes|true|correct|y)\b[\"'”’`*]*(?:,| or|/| und)+ ?[\"'“‘`*]*(no|false|incorrect|wrong|n)\b",
    re.IGNORECASE,
)
_LETTER: Final = re.compile(
    rf"{_ASK}\b(?:only|single|just)?\s?(?:the|a|one|by)?\s?(?:single |capital |correct )*letter\b", re.IGNORECASE
)
_ALONE: Final = re.compile(
    r"\b(?:only|just|nothing but|nothing else|solely|directly)\b|\b(?:single|one) (?:letter|character|word|token)\b"
    r"|(?:option|choice)(?:'s)? (?:letter|label|number|index)\b|[\"'(]A[\"')]?(?:, |/| or )",
    re.IGNORECASE,
)
_RANGE: Final = re.compile(
    r"(?:option|letter|choice|answer|one)s?\b[^.\n]{0,30}? ?[\"'“(\[]?\bA[\"'”)\]]?"
    r"(?: ?(?:to|through|–|-) ?|(?:, ?[\"'“(\[]?[B-Z][\"'”)\]]?)+,? (?:or|and) )[\"'“(\[]?([B-Z])\b"
)
_TOGETHER: Final = re.compile(
    r"(?:\b(?:letter|option|choice|answer)s?|\bone) (?:is |are |one )*(?:of|from) \(?(A[B-Z]{1,9})\b", re.IGNORECASE
)
_OPTION_LINE: Final = re.compile(r"^[ \t]*[(\[]?([A-Za-z]|\d)[)\].:][ \t]+\S", re.MULTILINE)
_OPTION_TEXT: Final = re.compile(r"^[ \t]*[(\[]?([A-Z])[)\].:][ \t]+(\S.*?)[ \t]*$", re.MULTILINE)
_SYNTHETIC: Final = "«"
_INDEX: Final = re.compile(r"\[ *\d+ *\]|\| *first\b")
_CHOICE_COLUMNS: Final = ("choices", "options", "endings", "candidates", "alternatives")
_GOLD_COLUMN: Final = re.compile(
    r"(?:correct|gold|right|true)?_?(?:answer|label|target|solution|choice|option|gold|correct)_?(?:text|str|name|value)?",
    re.IGNORECASE,
)


@rule("PF711", "names-instead-of-values", severity=Severity.ERROR, family=Family.ANSWERS)
def names_instead_of_values(study: Study) -> Iterator[Finding]:
    """Report an answer made of the keys of a mapping instead of its values.

    Why: joining or looping over a mapping gives its keys. The answer is `number,date,spans` for every doc, in
    few-shot examples and as gold. Without rows, code of `process_docs` that looks keys up in the column says so.

    Example:
        output_type: generate_until
        doc_to_target: "{{answer | join(',')}}"
        metadata: {promptfmt: {docs: [{question: Which metal rusts?, answer: {number: 1, unit: kg, spans: [iron]}}]}}

    Silent with:
        doc_to_target: "{{answer.spans | join(',')}}"

    Fix: use the values, or one of the keys: `answer.spans`.

    Real: lm-evaluation-harness #2137 (drop).
    """
    for instance in study.instances:
        target = instance.target
        if not isinstance(target, str) or len(target) > 500:
            continue
        words = re.findall(r"\w+", target)
        for name, value in instance.doc.items():
            inside = [value, *(value[:3] if isinstance(value, list) else ())]
            for mapping in (one for one in inside if isinstance(one, Mapping) and len(one) > 1):
                if words == [word for key in mapping for word in re.findall(r"\w+", str(key))]:
                    yield finding(
                        "the answer is made of the keys of a mapping", target, "doc_to_target", instance, field=name
                    )
                    return
    yield from _joined_in_template(study)


def _joined_in_template(study: Study) -> Iterator[Finding]:
    """Report a column that the target joins or loops over, while code of `process_docs` looks keys up in it."""
    written, code = study.written.doc_to_target, study.given.dataset.process_docs
    if study.has_real_docs or not isinstance(written, str) or not isinstance(code, FunctionRef):
        return
    listed = {fact.path for fact in template_shapes(written).facts if fact.kind == "list" and len(fact.path) == 1}
    if not listed:
        return
    try:
        function = load_function(code, trusted=study.settings.trusts, time_limit=study.settings.import_limit)
    except PromptfmtError:
        return  # what needs the function says why
    mappings = {fact.path for fact in row_facts(function) if fact.kind == "mapping"}
    for path in sorted(listed & mappings, key=str):
        yield finding(
            "the answer is made of the keys of a mapping",
            f"{code} looks keys up in {path[0]!r}, which {written} joins",
            "doc_to_target",
            field=path[0],
        )


@rule("PF712", "first-character-as-answer", severity=Severity.WARNING, family=Family.ANSWERS)
def first_character(study: Study) -> Iterator[Finding]:
    """Report an answer of one character that is the beginning of a longer text.

    Why: `{{answers[0]}}` is the first of a list of answers, but of a text it is the first character. The data may hold
    a text where the template expects a list.

    Example:
        output_type: generate_until
        doc_to_target: "{{answers[0]}}"
        metadata: {promptfmt: {docs: [{question: Which metal rusts?, answers: iron}]}}

    Silent with:
        metadata: {promptfmt: {docs: [{question: Which metal rusts?, answers: [iron, steel]}]}}

    Fix: use the whole text, or make the column a list.

    Real: mgsm_zh of lm-evaluation-harness cut the beginning of its answers by number (#1440).
    """
    written = study.written.doc_to_target
    if not isinstance(written, str) or not _INDEX.search(written):
        return
    for instance in study.real_instances:
        target = instance.target
        if not isinstance(target, str) or len(target.strip()) != 1:
            continue
        for name, value in instance.doc.items():
            if not isinstance(value, str) or name not in written or not re.match(rf"{re.escape(target)}\w", value):
                continue
            if target in listed_labels(instance) or _names(instance, target):
                continue
            yield finding(
                "the answer is one character of a longer text",
                f"{target!r} of {value[:40]!r}",
                "doc_to_target",
                instance,
                field=name,
            )
            return


def _names(instance: Instance, letter: str) -> bool:
    """Return whether the prompt itself names this letter, as in `Answer Y or N`."""
    text = join(constant_spans(instance))
    return re.search(rf"(?<![\w']){re.escape(letter)}(?!\w)", text) is not None


@rule("PF713", "gold-unlike-column", severity=Severity.WARNING, family=Family.ANSWERS)
def gold_unlike_column(study: Study) -> Iterator[Finding]:
    """Report a gold choice although the column with the answer holds the text of another choice.

    Why: the template looks the answer up in another order than the choices have. Every right answer is then counted as
    wrong.

    Example:
        doc_to_choice: ["Yes", "No"]
        doc_to_target: "{{['No', 'Yes'].index(label)}}"
        metadata: {promptfmt: {docs: [{question: Does iron rust?, label: "Yes"}, {question: Is tin red?, label: "No"}]}}

    Silent with:
        doc_to_target: "{{['Yes', 'No'].index(label)}}"

    Fix: use the order of `doc_to_choice`.

    Real: huggingface/lighteval #1277 (boolq:contrastset).
    """
    contradicted: list[tuple[Instance, str, str, str]] = []
    for instance in study.real_instances:
        choices = [choice.strip().casefold() for choice in choices_of(study, instance)]
        golds = [request for request in instance.requests if request.gold and request.prompt is not None]
        if len(golds) != 1 or len(set(choices)) < len(choices) or len(choices) < 2:
            return
        gold = choices[instance.requests.index(golds[0])] if golds[0] in instance.requests[: len(choices)] else ""
        for name, value in instance.doc.items():
            said = str(value).strip().casefold() if isinstance(value, str | bool) else ""
            if _GOLD_COLUMN.fullmatch(name) and said in choices and gold and said != gold:
                contradicted.append((instance, name, str(value), gold))
                break
        else:
            return  # a column that agrees, or none that says it: not all docs contradict
    for instance, name, value, gold in contradicted[:1]:
        yield finding(
            "the gold choice is not the one that the answer column names",
            f"{value!r} in the column, {gold!r} is gold",
            "doc_to_target",
            instance,
            field=name,
        )


@rule("PF714", "asked-form-not-scored", severity=Severity.WARNING, family=Family.ANSWERS)
def asked_form(study: Study) -> Iterator[Finding]:
    r"""Report a prompt that asks for yes or no, or for a letter, where something else is scored.

    Why: a model that follows the prompt is never right. Whoever rewrites the prompt often forgets the choices, and the
    other way round.

    Example:
        doc_to_text: "{{question}} Is it mercury? Answer yes or no.\nAnswer:"
        doc_to_choice: ["correct", "wrong"]
        doc_to_target: "{{answer % 2}}"

    Silent with:
        doc_to_choice: ["yes", "no"]

    Fix: ask for the answers that are scored.

    Real: vbdi/Ego3D-Bench #3 (yes and no against A and B), UKGovernmentBEIS/inspect_ai #310 (letter against text).
    """
    if study.has_own_scorer or study.has_guessed_text or _may_translate(study):
        return
    for instance in study.instances[:1]:
        text = join(constant_spans(instance))
        scored = _scored(study)
        if not scored or any(_SYNTHETIC in one for one in scored):
            scored = []
        asked = _YES_NO.search(text)
        if asked is not None and scored:
            words = {asked[1].casefold(), asked[2].casefold()}
            bare = {one.strip(" .,!()[]\"'").casefold() for one in scored}
            if len(bare) > 1 and not words & bare:
                yield finding(
                    "the prompt asks for other answers than are scored",
                    f"asks for {asked[1]} or {asked[2]}, scored are {', '.join(map(repr, scored[:4]))}",
                    "doc_to_text",
                    instance,
                )
                return
        if study.generates and _LETTER.search(text):
            options = dict(_OPTION_TEXT.findall(instance.prompts[0].text if instance.prompts else ""))
            target = instance.target
            if isinstance(target, str) and len(options) > 1 and len(target.strip()) > 1:
                letter = next((letter for letter, option in options.items() if option == target.strip()), None)
                if letter is not None:
                    yield finding(
                        "the prompt asks for a letter, but the text of an option is the answer",
                        f"{target.strip()!r} is option {letter}",
                        "doc_to_target",
                        instance,
                    )


def _may_translate(study: Study) -> bool:
    """Return whether a filter may turn one form of an answer into another."""
    pipelines = study.task.filter_list or ()
    steps = [step for one in pipelines if isinstance(one, Mapping) for step in one.get("filter") or ()]
    return any(not isinstance(step, Mapping) or step.get("function") not in _TAKE for step in steps)


_TAKE: Final = ("remove_whitespace", "take_first", "take_first_k")
"""Filters that leave the words of a completion as they are."""


def _scored(study: Study) -> list[str]:
    """Return the answers that are scored: the fixed choices, or the gold answers of several docs."""
    choices = study.written.doc_to_choice
    if isinstance(choices, list):
        return [one.strip() for one in choices if isinstance(one, str)]
    if choices is not None and not study.generates:
        return [one.strip() for instance in study.real_instances[:1] for one in choices_of(study, instance)]
    targets = [instance.target for instance in study.instances]
    return [one.strip() for one in dict.fromkeys(targets) if isinstance(one, str)] if _is_text(targets) else []


def _is_text(targets: Sequence[Any]) -> bool:
    return all(isinstance(target, str) for target in targets)


@rule("PF715", "labels-unlike-listed", severity=Severity.ERROR, family=Family.ANSWERS)
def labels_unlikelisted_labels(study: Study) -> Iterator[Finding]:
    r"""Report scored labels of another kind than the labels in the prompt.

    Why: options listed with A, B and C, and `a`, `b`, `c` or `1`, `2`, `3` scored: the model's likely answers are none
    of the candidates. With five options listed and four labels scored, the fifth answer is never right.

    Example:
        doc_to_text: "{{question}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\nAnswer:"
        doc_to_choice: ["1", "2", "3"]
        doc_to_target: "{{answer}}"

    Silent with:
        doc_to_text: "{{question}}\n1. {{choices[0]}}\n2. {{choices[1]}}\n3. {{choices[2]}}\nAnswer:"

    Fix: score the labels that are listed.

    Real: choices copied from a task whose options have other labels.
    """
    for instance in study.instances[:1]:
        labels = [choice.strip().strip("().") for choice in choices_of(study, instance)]
        if len(labels) < 2 or not _follow(labels):
            return
        listed = listed_labels(instance)
        if _is_written_out(study) and len(listed) > len(labels) and listed[: len(labels)] == labels:
            yield finding(
                "more options are listed than labels are scored",
                f"{', '.join(listed)} are listed, {', '.join(labels)} are scored",
                "doc_to_choice",
                instance,
                do="score a label for each option",
            )
        if len(listed) == len(labels) and listed != labels:
            yield finding(
                "the scored labels are not those of the listed options",
                f"{', '.join(listed)} are listed, {', '.join(labels)} are scored",
                "doc_to_choice",
                instance,
            )


def _is_written_out(study: Study) -> bool:
    """Return whether the template lists its options one by one, the same for each doc."""
    text, choices = study.written.doc_to_text, study.written.doc_to_choice
    return isinstance(text, str) and isinstance(choices, list) and "{%" not in text and len(choices) > 1


@rule("PF716", "index-as-answer", severity=Severity.ERROR, family=Family.ANSWERS)
def index_as_answer(study: Study) -> Iterator[Finding]:
    r"""Report the index of a choice as the answer that a model has to write, where no prompt shows the numbers.

    Why: `doc_to_target: answer` is right for multiple choice, where it is an index. A model that writes the answer
    itself says `iron`, not `0`.

    Example:
        output_type: generate_until
        doc_to_text: "{{question}} It is one of {{choices | join(', ')}}.\nAnswer:"
        doc_to_target: answer

    Silent with:
        doc_to_target: "{{choices[answer]}}"

    Fix: use the text of the choice, or its letter as the prompt lists it.

    Real: multiple-choice tasks turned into generation tasks by their `output_type` alone.
    """
    if not study.generates or study.has_own_scorer or study.task.doc_to_choice is not None or study.has_guessed_text:
        return
    for instance in study.real_instances:
        target = instance.target
        if isinstance(target, bool) or not str(target).strip().isdigit() or not isinstance(target, int | str):
            return
        index = int(str(target).strip())
        lists = [
            (name, value)
            for name, value in instance.doc.items()
            if isinstance(value, list) and 1 < len(value) <= 10 and all(isinstance(one, str) for one in value)
        ]
        shown = instance.prompts[0].text if instance.prompts else ""
        held = [
            (name, value)
            for name, value in lists
            if index < len(value) and (value[index].strip() in shown or name in _CHOICE_COLUMNS)
        ]
        if not held or re.search(rf"(?<!\d){index}[.):]", shown) or any(str(index) in value for _, value in held):
            return
    for instance in study.real_instances[:1]:
        yield finding(
            "the answer to write is the index of a choice",
            f"{instance.target!r} is asked for",
            "doc_to_target",
            instance,
        )


@rule("PF717", "range-unlike-options", severity=Severity.WARNING, family=Family.ANSWERS)
def range_unlike_options(study: Study) -> Iterator[Finding]:
    r"""Report a prompt that names another last option than it lists.

    Why: "one option from A to E" after four options: a model may answer `E`, which is never right. With more options
    than named, it never chooses the last.

    Example:
        doc_to_text: "{{question}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\nOne letter from A to D:"
        doc_to_choice: ["A", "B", "C"]

    Silent with:
        doc_to_text: "{{question}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\nOne letter from A to C:"

    Fix: name the last option that is listed.

    Real: EmbodiedCity/UrbanVideo-Bench.code #1.
    """
    for instance in study.instances[:1]:
        text = join(constant_spans(instance))
        asked = _RANGE.search(text) or _TOGETHER.search(text)
        listed = listed_labels(instance)
        if asked is None or len(listed) < 2 or listed[0] != "A" or study.has_guessed_text:
            return
        last = asked[1][-1]
        if not study.has_real_docs and any(last in _OPTION_LABEL.findall(text) for text in _constants(study)):
            return  # a branch lists it, which the synthetic docs do not take
        if last != listed[-1]:
            yield finding(
                "the prompt names another last option than it lists",
                f"{asked[0][-30:]}, and {listed[-1]} is the last one",
                "doc_to_text",
                instance,
            )


_OPTION_LABEL: Final = re.compile(r"^[ \t]*[(\[]?([A-Z])[)\].:][ \t]*$", re.MULTILINE)


def _constants(study: Study) -> list[str]:
    return [text for template in study.templates for text in template.text.constants]


def listed_labels(instance: Instance) -> list[str]:
    """Return the labels of the options that the question lists, in order; none if they do not follow each other."""
    message = question_message(instance)
    labels = _OPTION_LINE.findall(message.text) if message is not None else []
    starts = [number for number, label in enumerate(labels) if label in "Aa1"]
    labels = labels[starts[-1] :] if starts else []
    return labels if _follow(labels) else []


def asks_for_label_alone(instance: Instance) -> bool:
    """Return whether the prompt asks for the letter of an option, or for nothing but the answer."""
    text = join(constant_spans(instance))
    return _LETTER.search(text) is not None or _ALONE.search(text) is not None


def _follow(labels: Sequence[str]) -> bool:
    """Return whether labels of one character follow each other from the first of their kind."""
    if not labels or any(len(label) != 1 for label in labels) or labels[0] not in "Aa10":
        return False
    return all(ord(after) == ord(before) + 1 for before, after in pairwise(labels))
