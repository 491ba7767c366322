"""Rules about choices: empty, equal, padded, mislabelled ones."""

from __future__ import annotations

from collections.abc import Iterator
from string import ascii_uppercase
from typing import Final

from pytest_promptfmt.rules import Family, Finding, Severity, Study, rule
from pytest_promptfmt.rules.rule_registry import also
from pytest_promptfmt.rules.rule_views import choices_of, finding, first_text, question_layout
from pytest_promptfmt.study.gold import compares_likelihoods

_FEW_MARKS: Final = 2
"""Full stops of a text that is not an abbreviation, such as `U.S.`"""

_FEW_WORDS: Final = 4


@rule("PF703", "padded-choice", severity=Severity.WARNING, family=Family.ANSWERS)
def padded_choice(study: Study) -> Iterator[Finding]:
    """Report choices of which only some begin or end with whitespace.

    Why: `A. Adverse possession` next to `B. Implied` shows which option was edited by hand, in some datasets the right
    one.

    Fix: strip the choices in the template.

    Real: lm-evaluation-harness #3500 (mmlu_pro).
    """
    is_fixed = isinstance(study.written.doc_to_choice, list)
    for instance in study.instances if is_fixed else study.real_instances:
        choices = choices_of(study, instance)
        padded = [choice for choice in choices if choice != choice.strip() and choice.strip()]
        if padded and len(padded) < len(choices):
            yield _padded(padded[0], instance.index, ("doc_to_choice",))
            return
        text = first_text(instance)
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
    """Report a choice without a visible character.

    Why: an empty continuation has the highest possible likelihood, so it wins, and every doc with it is wrong.

    Fix: drop missing choices in `doc_to_choice` or `process_docs`.

    Real: lm-evaluation-harness #1760 (m_arc with four options).
    """
    for instance in study.instances:
        choices = choices_of(study, instance)
        if any(not choice.strip() for choice in choices):
            yield finding("a choice has no visible character", str(choices), "doc_to_choice", instance)


@rule("PF705", "same-choices", severity=Severity.ERROR, family=Family.ANSWERS, scores=True)
def same_choices(study: Study) -> Iterator[Finding]:
    """Report two choices that are equal, or differ only in case or whitespace.

    Why: two equal candidates have equal scores. If one of them is the gold, the first one always wins.

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
            message = "two choices are equal" if same else "two choices differ only in case or whitespace"
            yield finding(message, str(choices), "doc_to_choice", instance, severity=None if same else Severity.WARNING)


@also("PF714")
def letters_shown(study: Study) -> Iterator[Finding]:
    """Report options that are listed with letters although their texts are scored.

    Fix: score the letters, or remove them from the prompt.
    """
    if not study.has_choices:
        return
    for instance in study.instances[:1]:
        choices = [choice.strip() for choice in choices_of(study, instance)]
        if len(choices) < 2:
            return
        options = question_layout(instance).options
        listed = {one.label: one.text.strip() for one in options if one.label in ascii_uppercase and one.space}
        if len(listed) >= len(choices) and list(listed.values())[-len(choices) :] == choices:
            if any(len(choice) == 1 for choice in choices):
                return
            saw = f"{next(iter(listed))}. {choices[0]}, scored {choices[0]!r}"
            yield finding(
                "the options are listed with letters, but their texts are scored", saw, "doc_to_choice", instance
            )


@also("PF704", severity=Severity.ERROR, scores=True)
def single_choice(study: Study) -> Iterator[Finding]:
    """Report a multiple-choice doc with one choice: it is always right.

    Fix: give every doc at least two choices.
    """
    for instance in study.real_instances if compares_likelihoods(study) else ():
        choices = choices_of(study, instance)
        if len(choices) == 1:
            yield finding("a doc has one choice, which is always right", choices[0][:60], "doc_to_choice", instance)
            return


@also("PF703")
def one_choice_unlike(study: Study) -> Iterator[Finding]:
    """Report a list of short choices of which a single one ends with a mark, or begins with another letter case.

    Fix: write all choices alike.
    """
    choices = study.written.doc_to_choice
    if not isinstance(choices, list) or not all(isinstance(each, str) and each.strip() for each in choices):
        return
    texts = [each.strip() for each in choices]
    marked = [each for each in texts if each[-1] in ".,;:!?)" and each.count(".") < _FEW_MARKS]
    if len(marked) == 1 < len(texts) and max(len(each.split()) for each in texts) < _FEW_WORDS:
        saw = ", ".join(texts)
        yield finding("one of the choices ends with a mark", saw, ("doc_to_choice", texts.index(marked[0])))
    if not all(each.isalpha() for each in texts):
        return
    capitals = [each for each in texts if each.istitle()]
    small = [each for each in texts if each.islower()]
    odd = capitals if len(capitals) == 1 else small
    if len(capitals) + len(small) == len(texts) > 1 == len(odd) and min(map(len, texts)) > 1:
        saw = ", ".join(texts)
        yield finding("one of the choices begins with another letter case", saw, ("doc_to_choice", texts.index(odd[0])))
