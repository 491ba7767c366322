"""Rules about values of another kind than is meant: quoted booleans, names of columns, numbers for words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.core.prompt import join
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import continuations, finding
from pytest_promptfmt.study import Study
from pytest_promptfmt.study.study import constant_spans

_BOOLEANS: Final = ("do_sample", "higher_is_better", "ignore_case", "ignore_punctuation", "ignore_numbers")
_NUMBERS: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_gen_toks",
    "max_new_tokens",
    "max_tokens",
    "num_beams",
)
_NAMES_LABELS: Final = re.compile(
    r"\b(?:classif\w+|label\w*|categori\w+|one of|either|(?:answer|respond|reply) with)\b[^.?!\n]{0,60}?"
    r"\b([a-z_]{4,})(?:, ([a-z_]{4,}))*,? or ([a-z_]{4,})\b",
    re.IGNORECASE,
)


@rule("PF115", "quoted-value", severity=Severity.WARNING, family=Family.CONFIG)
def quoted_value(study: Study) -> Iterator[Finding]:
    r"""Report a boolean or number that is in quotes, so that it is text.

    Why: the text `"false"` is true to Python, so that `do_sample: "false"` samples and `ignore_case: "false"` ignores
    the case. `temperature: "0.0"` is not equal to 0. The text false is an error.

    Example:
        output_type: generate_until
        generation_kwargs: {until: ["\n"], do_sample: "false"}

    Silent with:
        generation_kwargs: {until: ["\n"], do_sample: false}

    Fix: remove the quotes.

    Real: google/BIG-bench #374 (`append_choices_to_input: "false"`).
    """
    entries: list[tuple[tuple[str | int, ...], Any]] = [(("generation_kwargs",), study.written.generation_kwargs)]
    entries += [(("metric_list", number), entry) for number, entry in enumerate(study.written.metric_list or ())]
    for keys, values in entries:
        for key, value in values.items() if isinstance(values, Mapping) else ():
            if _is_quoted(key, value):
                yield finding(
                    "a boolean or number is text",
                    f'{key}: "{value}"',
                    (*keys, key),
                    severity=Severity.ERROR if value.strip().casefold() == "false" else None,
                )


def _is_quoted(key: Any, value: Any) -> bool:
    if not isinstance(value, str):
        return False
    is_boolean = key in _BOOLEANS and value.strip().casefold() in ("true", "false")
    return is_boolean or (key in _NUMBERS and re.fullmatch(r"-?\d+(?:\.\d+)?", value.strip()) is not None)


@rule("PF745", "column-names-as-choices", severity=Severity.ERROR, family=Family.ANSWERS, scores=True)
def column_names_as_choices(study: Study) -> Iterator[Finding]:
    """Report a list of choices that are the names of columns, not what is in them.

    Why: `[ending0, ending1]` scores these words for every doc. lm-eval renders no element of such a list.

    Example:
        doc_to_choice: ["ending0", "ending1"]
        metadata: {promptfmt: {docs: [{question: She opens the door and, ending0: goes in, ending1: sings, answer: 0}]}}

    Silent with:
        doc_to_choice: "{{[ending0, ending1]}}"

    Fix: write the list as a template.

    Real: bigscience-workshop/promptsource #415 (swag).
    """
    choices = study.written.doc_to_choice
    if not isinstance(choices, list) or len(choices) < 2 or study.failure is not None:
        return
    for doc in study.real_docs[:1]:
        if all(isinstance(choice, str) and choice in doc for choice in choices):
            yield finding("the choices are names of columns", ", ".join(choices), "doc_to_choice", 0)


@rule("PF744", "labels-named-numbers-scored", severity=Severity.WARNING, family=Family.ANSWERS)
def labels_named_numbers_scored(study: Study) -> Iterator[Finding]:
    r"""Report an instruction that names labels in words, where the answers are numbers that it does not explain.

    Why: the data have 0, 1 and 2 for entailment, neutral and contradiction. A model that answers with a word, as
    asked, is always wrong.

    Example:
        output_type: generate_until
        description: "Classify the pair of sentences as entailment, neutral or contradiction.\n\n"
        doc_to_target: "{{label}}"
        metadata: {promptfmt: {docs: [{question: Tin melts. It can melt., label: 0}, {question: Dry. Wet., label: 2}]}}

    Silent with:
        doc_to_target: "{{['entailment', 'neutral', 'contradiction'][label]}}"

    Fix: make words of the numbers in `doc_to_target`, or say in the prompt which number is which label.

    Real: allenai/natural-instructions #759 (sick).
    """
    if study.has_guessed_text or study.is_multimodal or (study.generates and study.has_own_scorer):
        return
    for instance in study.real_instances[:1]:
        golds = {str(one.target).strip() for one in study.real_instances}
        scored = golds if study.generates else {text.strip() for text in continuations(instance)}
        text = join(constant_spans(instance))
        found = _NAMES_LABELS.search(text)
        are_numbers = bool(scored) and all(len(one) == 1 and one.isdigit() for one in scored)
        if found is not None and are_numbers and not any(re.search(rf"(?<!\w){one}(?![\w:])", text) for one in scored):
            yield finding(
                "the instruction names labels in words, but numbers are scored",
                f"{found[0][-60:]}; scored is {', '.join(sorted(scored))}",
                "description" if study.task.description else "doc_to_text",
                instance,
            )
