"""Rules about answers: invalid gold answers, and choices that are empty or equal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import choices_of, finding, question_message
from pytest_promptfmt.study import Study
from pytest_promptfmt.systems import replaced_rules

_LETTERED: Final = re.compile(r"^\(?([A-Z])[.):]\s+(.+)$", re.M)
_PAST: Final = frozenset({("Z", "["), ("z", "{"), ("9", ":")})
_PAST_LINES: Final = re.compile(
    r"^[ \t]*(\(?)(?:Z([.):])[^\n]*\n[ \t]*\1\[\2|z([.):])[^\n]*\n[ \t]*\1\{\3|9([.)])[^\n]*\n[ \t]*\1:\4)\s[^\n]*",
    re.MULTILINE,
)
"""Two lines of options: the last letter or digit, and the character after it."""


@rule("PF701", "gold-not-a-choice", severity=Severity.ERROR, family=Family.ANSWERS, scores=True)
def gold_not_a_choice(study: Study) -> Iterator[Finding]:
    """Report a doc without a correct choice: the gold index is out of range, or the gold text is not among the choices.

    Why: lm-eval compares the target with the choices byte for byte and counts a doc without a match as wrong. Labels
    that count from 1, used as indices, make the last one fail and shift all others by one.

    Example:
        doc_to_target: "{{answer + 1}}"

    Silent example:
        doc_to_target: "{{answer}}"

    Fix: use the index from 0, or the exact text of a choice.

    Real: lm-evaluation-harness #1216 (social_iqa), #2434 (catcola); pattern 1 of the eval-framework guide.
    """
    if not study.has_choices:
        return
    for instance in study.real_instances:
        if len(instance.prompts) != 1:
            continue
        choices = choices_of(study, instance)
        target = instance.target
        lost = isinstance(target, list) and any(isinstance(one, int) and one >= len(choices) for one in target)
        if not choices or (any(request.gold for request in instance.requests) and not lost):
            continue
        if lost:
            message = "one of the gold indices is out of range"
        elif isinstance(target, int):
            what = "negative, as in a split without labels" if target < 0 else "out of range"
            message = f"the gold index is {what}"
        elif isinstance(target, list) and not target:
            message = "the list of gold answers is empty"
        else:
            message = "the gold answer is not among the choices"
        yield finding(
            message, f"{target!r} for {choices!r}", "doc_to_target", instance, do=_closest(target, choices) or ""
        )


def _closest(target: Any, choices: Sequence[str]) -> str | None:
    """Return the fix for a target that is almost a choice."""
    if not isinstance(target, str):
        return None
    nearly = next((choice for choice in choices if choice.strip().casefold() == target.strip().casefold()), None)
    if nearly is not None:
        differ = "spaces" if nearly.strip() == target.strip() else "letter case"
        return f"make target and choice equal: {nearly!r} differs only in {differ}"
    if target.strip().isdigit():
        return f"for a position, use {target.strip()}|int: text is matched against the choices"
    return None


@rule("PF702", "padded-target", severity=Severity.ERROR, family=Family.ANSWERS)
def padded_target(study: Study) -> Iterator[Finding]:
    r"""Report a gold answer that begins or ends with whitespace.

    Why: an extracted `7` never equals ` 7`. If the target delimiter is a space, few-shot examples have two.

    Example:
        output_type: generate_until
        doc_to_target: " {{choices[answer]}}"

    Silent with:
        doc_to_target: "{{choices[answer]}}"

    Fix: strip the target: `{{answer.strip()}}`.

    Real: lm-evaluation-harness #1275 (gsm8k_cot), #3795 (fda).
    """
    if not study.generates or study.has_own_scorer:
        return
    is_exact = "exact_match" in (study.metrics or ("exact_match",))
    is_doubled = study.task.target_delimiter[:1].isspace()
    if not is_doubled and not study.task.filter_list:
        return  # the space is the delimiter, and completions keep theirs
    for instance in study.instances:
        target = instance.target
        if not isinstance(target, str) or "\n" in target.strip() or not target.strip():
            continue
        if target[0].isspace() or (study.has_real_docs and target[-1].isspace()):
            yield finding(
                "the gold answer begins or ends with whitespace",
                target,
                "doc_to_target",
                instance,
                severity=None if target[0].isspace() and is_exact else Severity.WARNING,
            )
            return


@rule("PF703", "padded-choice", severity=Severity.WARNING, family=Family.ANSWERS)
def padded_choice(study: Study) -> Iterator[Finding]:
    r"""Report choices of which only some begin or end with whitespace.

    Why: `A.  Adverse possession` next to `B. Implied` shows which option was edited by hand. In some datasets it is the
    correct one.

    Example:
        metadata: {promptfmt: {docs: [{question: Which rusts?, choices: [" iron", gold], answer: 0}]}}

    Silent example:
        metadata: {promptfmt: {docs: [{question: Which rusts?, choices: [iron, gold], answer: 0}]}}

    Fix: strip the choices in the template.

    Real: lm-evaluation-harness #3500 (mmlu_pro).
    """
    for instance in study.real_instances:
        choices = choices_of(study, instance)
        padded = [choice for choice in choices if choice != choice.strip() and choice.strip()]
        if padded and len(padded) < len(choices):
            yield _padded(padded[0], instance.index, ("doc_to_choice",))
            return
        text = instance.prompts[0].text if instance.prompts else ""
        options = [
            each
            for value in instance.doc.values()
            if isinstance(value, list | tuple) and 2 <= len(value) <= 30 and all(isinstance(one, str) for one in value)
            for each in (value if 0 < sum(one != one.strip() for one in value) < len(value) else ())
        ]
        for option in options:
            if option[:1] == " " and option.strip() and f" {option}" in text:
                yield _padded(option, instance.index, ("doc_to_text",))
                return


def _padded(choice: str, doc: int, keys: tuple[str, ...]) -> Finding:
    return finding("only some choices begin or end with whitespace", choice, keys, doc)


@rule("PF704", "empty-choice", severity=Severity.ERROR, family=Family.ANSWERS, scores=True)
def empty_choice(study: Study) -> Iterator[Finding]:
    r"""Report a choice without a visible character.

    Why: an empty continuation has the highest possible likelihood, so it wins, and every doc with it is wrong.

    Example:
        metadata: {promptfmt: {docs: [{question: Which rusts?, choices: [iron, " "], answer: 0}]}}

    Silent example:
        metadata: {promptfmt: {docs: [{question: Which rusts?, choices: [iron, gold], answer: 0}]}}

    Fix: drop missing choices in `doc_to_choice` or `process_docs`.

    Real: lm-evaluation-harness #1760 (m_arc with four options).
    """
    for instance in study.instances:
        choices = choices_of(study, instance)
        if any(not choice.strip() for choice in choices):
            yield finding("a choice has no visible character", str(choices), "doc_to_choice", instance)


@rule("PF722", "single-choice", severity=Severity.ERROR, family=Family.ANSWERS, scores=True)
def single_choice(study: Study) -> Iterator[Finding]:
    """Report a multiple-choice doc with one choice: it is always right.

    Why: the only candidate wins whatever the model says, and raises the score. The list of choices was cut, or holds
    the gold answer alone.

    Example:
        metadata: {promptfmt: {docs: [{question: Which metal rusts?, choices: [iron], answer: 0}]}}

    Silent example:
        metadata: {promptfmt: {docs: [{question: Which metal rusts?, choices: [iron, gold], answer: 0}]}}

    Fix: give every doc at least two choices.

    Real: google/BIG-bench #869 (arithmetic: entries with one target).
    """
    for instance in study.real_instances:
        choices = choices_of(study, instance)
        if len(choices) == 1:
            yield finding("a doc has one choice, which is always right", choices[0][:60], "doc_to_choice", instance)
            return


@rule("PF705", "same-choices", severity=Severity.ERROR, family=Family.ANSWERS, scores=True)
def same_choices(study: Study) -> Iterator[Finding]:
    r"""Report two choices that are equal, or differ only in case or whitespace.

    Why: two equal candidates have equal scores. If one of them is the gold, the first one wins whatever the model
    knows.

    Example:
        metadata: {promptfmt: {docs: [{question: Which rusts?, choices: [iron, iron, gold], answer: 0}]}}

    Silent example:
        metadata: {promptfmt: {docs: [{question: Which rusts?, choices: [iron, zinc, gold], answer: 0}]}}

    Fix: correct the data, or drop such docs in `process_docs`.

    Real: lm-evaluation-harness #3735 (gpqa: options became equal when brackets were removed).
    """
    for instance in study.instances if isinstance(study.written.doc_to_choice, list) else study.real_instances:
        choices = choices_of(study, instance)
        bare = [" ".join(choice.casefold().split()) for choice in choices]
        if len(set(bare)) < len(bare):
            same = len(set(choices)) < len(choices)
            if not same and study.has_own_scorer:
                return  # it may add the scores of `yes` and `Yes`
            yield finding(
                "two choices are equal" if same else "two choices differ only in case or whitespace",
                str(choices),
                "doc_to_choice",
                instance,
                severity=None if same else Severity.WARNING,
            )


@rule("PF707", "letters-shown-texts-scored", severity=Severity.WARNING, family=Family.ANSWERS)
def letters_shown(study: Study) -> Iterator[Finding]:
    r"""Report options that are listed with letters although their texts are scored.

    Why: after `A. Femur` … `Answer:` a model answers with a letter. Scoring the texts compares unlikely
    continuations.

    Example:
        doc_to_text: "{{question}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\nAnswer:"

    Silent with:
        doc_to_choice: ["A", "B", "C"]

    Fix: score the letters, or remove them from the prompt.

    Real: lm-evaluation-harness before 0.4.0 (mmlu_original).
    """
    if not study.has_choices:
        return
    for instance in study.instances[:1]:
        message = question_message(instance)
        choices = [choice.strip() for choice in choices_of(study, instance)]
        if message is None or len(choices) < 2:
            return
        listed = {letter: text.strip() for letter, text in _LETTERED.findall(message.text)}
        if len(listed) >= len(choices) and list(listed.values())[-len(choices) :] == choices:
            if any(len(choice) == 1 for choice in choices):
                return
            yield finding(
                "the options are listed with letters, but their texts are scored",
                f"{next(iter(listed))}. {choices[0]}, scored {choices[0]!r}",
                "doc_to_choice",
                instance,
            )


@rule("PF708", "labels-past-z", severity=Severity.ERROR, family=Family.ANSWERS)
def labels_past_z(study: Study) -> Iterator[Finding]:
    r"""Report labels that run past Z or 9 into punctuation: `[`, `\`, `{`, `:`.

    Why: the characters after Z and 9 in Unicode are not letters or digits. Options from the 27th, or the 10th, get
    labels that no model and no filter expects.

    Example:
        doc_to_choice: ["Y", "Z", "["]
        doc_to_target: "{{answer}}"

    Silent with:
        doc_to_choice: ["X", "Y", "Z"]

    Fix: use numbers of several digits, or labels of two letters.

    Real: formats that label by `chr(65 + i)`. PF156 reports the same in HELM.
    """
    if "PF708" in replaced_rules(study.task):
        return
    for instance in study.instances:
        choices = [choice.strip() for choice in choices_of(study, instance)]
        if any(pair in _PAST for pair in pairwise(choices)):
            yield _past(" ".join(choices[-6:]), ("doc_to_choice",), instance.index)
            return
        message = question_message(instance)
        found = _PAST_LINES.search(message.text) if message is not None else None
        if found is not None:
            yield _past(found[0].strip(), ("doc_to_text",), instance.index)
            return


def _past(saw: str, keys: tuple[str, ...], doc: int) -> Finding:
    return finding("labels run past Z or 9 into punctuation", saw, keys, doc)


@rule("PF710", "several-correct-answers", severity=Severity.WARNING, family=Family.ANSWERS)
def several_correct_answers(study: Study) -> Iterator[Finding]:
    r"""Report one gold answer although the doc marks several of the choices as correct.

    Why: a model that prefers the second correct answer is scored as wrong. Datasets with several correct answers have a
    list of zeros and ones beside the list of choices, and a target of 0 uses only the first of them. Tasks with their
    own scoring code are not reported, because it may read the list.

    Example:
        doc_to_target: 0
        metadata: {promptfmt: {docs: [{question: Which rusts?, choices: [iron, gold, steel], labels: [1, 0, 1]}]}}

    Silent with:
        doc_to_target: "{{[0, 2]}}"

    Fix: use the indices of all correct choices as target, or score with `process_results`.

    Real: eval-framework #81 (truthfulqa with several correct answers).
    """
    if study.has_own_scorer:
        return
    for instance in study.real_instances:
        choices = [choice.strip() for choice in choices_of(study, instance)]
        golds = [request for request in instance.requests if request.prompt is not None and request.gold]
        if len(choices) < 2 or len(golds) != 1:
            continue
        marked = _marked_right(instance.doc, choices)
        if marked is not None and sum(marked) > 1:
            yield finding(
                "one choice counts as correct, but the doc marks several",
                f"{marked} for {choices!r}",
                "doc_to_target",
                instance,
            )
            return


def _marked_right(doc: Mapping[str, Any], choices: Sequence[str]) -> Sequence[int] | None:
    """Return the list of zeros and ones beside the choices in a doc, or in one of its mappings."""
    for fields in (doc, *(value for value in doc.values() if isinstance(value, Mapping))):
        lists = [value for value in fields.values() if isinstance(value, list) and len(value) == len(choices)]
        if not any([str(each).strip() for each in value] == list(choices) for value in lists):
            continue
        for value in lists:
            if all(isinstance(each, int) and each in (0, 1) for each in value):
                return [int(each) for each in value]
    return None
