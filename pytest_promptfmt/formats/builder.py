"""From a format and a task's field mappings to Jinja templates in the dialect of lm-eval 0.4.13.

Values of a doc are always printed as Jinja variables, never pasted into a template. `raise_exception` is the name that
chat templates use; where it is not defined (lm-eval itself), calling it is an error too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from string import Formatter

from jinja2 import meta

from pytest_promptfmt.core.errors import FormatError
from pytest_promptfmt.core.task import Spec, TextTemplate
from pytest_promptfmt.formats.fields import (
    Fields,
    FormatChoices,
    FormatField,
    grammar,
    literal,
    operand,
    printed,
    sealed,
)
from pytest_promptfmt.formats.format import ORDERS, TEXT_FIELDS, Format
from pytest_promptfmt.formats.labels import LABEL_SETS, NUMBERS, ChoiceLabels, first_labels, label_count

LABEL_VARIABLES = ("_num_choices", "_choice_labels", "_choice_list_and", "_choice_list_or")
"""The variables of lm-eval's prompt-formats proposal, where choices are labelled."""

PLACEHOLDERS = (
    "{% set _topic = '' %}{% set _num_choices = 1 %}{% set _choice_labels = ['A'] %}"
    "{% set _choice_list_and = 'A' %}{% set _choice_list_or = 'A' %}"
)
"""Jinja that defines every computed variable, to see which columns a text needs in addition."""

_LETTERS = literal("".join(LABEL_SETS["letters"]))


@dataclass(frozen=True, kw_only=True, slots=True)
class FormatTemplates:
    """The field mappings in a format: templates, or lists where the task fixes the choices.

    `choices` and `labels` print lists of what the prompt offers, in the order shown; `gold` prints the position of the
    answer in that order. They stay known where a generated answer is not chosen from a list.
    """

    doc_to_text: Spec
    doc_to_target: Spec
    doc_to_choice: Spec
    description: str | None
    gen_prefix: str | None
    choices: Spec
    labels: Spec
    gold: str | None


def build_templates(format_: Format, fields: Fields) -> FormatTemplates:
    """Return the templates that lay out these fields.

    Raises FormatError, whose key is a field of the format or task, when choices are missing, when there are more fixed
    choices than labels, and when a text uses a variable that this format does not have.
    """
    choices = fields.choices
    if format_.needs_choices and choices is None:
        message = f"format {format_.name!r} needs doc_to_choice, but the task does not set it"
        hint = "doc_to_choice: <the column with the list of choices>"
        raise FormatError(message, key="doc_to_choice", hint=hint)
    text = prompt_template(format_, fields)
    full_texts = None if choices is None else _full_texts(format_, choices, fields.answer)
    labels = None if choices is None or format_.choice_labels is None else _labels(format_, choices)
    return FormatTemplates(
        doc_to_text=TextTemplate(_with_variables(format_, fields, text, "doc_to_text")),
        doc_to_target=_doc_to_target(format_, fields),
        doc_to_choice=None
        if format_.output_type == "generate_until"
        else _scored_choices(format_, fields, labels or full_texts),
        description=_optional_text(format_, fields, "description"),
        gen_prefix=_optional_text(format_, fields, "gen_prefix"),
        choices=full_texts,
        labels=labels,
        gold=None if choices is None else f"{_gold_shown(format_, choices, fields.answer)}{{{{ _shown }}}}",
    )


def prompt_template(format_: Format, fields: Fields) -> str:
    """Return instruction, question, choices and answer prompt, with the section separator between the three.

    Raises FormatError for more `items` of choices than labels.
    """
    head = (format_.instruction, format_.question_prefix, fields.question.template)
    tail = (format_.answer_instruction, format_.answer_prompt)
    parts = [_sealed(head)]
    if format_.choice_labels is not None and fields.choices is not None:
        parts += [_sealed((format_.section_separator, format_.choices_prefix))]
        parts += [_choice_lines(format_, fields.choices, fields.answer)]
    if any(tail):
        parts += [_sealed((format_.section_separator, *tail))]
    return "".join(parts)


def _sealed(texts: Iterable[str | None]) -> str:
    return "".join(sealed(text) for text in texts if text)


def _choice_lines(format_: Format, choices: FormatChoices, answer: FormatField) -> str:
    delimiter = _sealed([format_.choice_delimiter])
    if choices.items is not None:
        labels = first_labels(format_.choice_labels, len(choices.items))
        return delimiter.join(
            _line(format_, printed(label), item) for label, item in zip(labels, choices.items, strict=True)
        )
    ordered, sequence = _in_order(format_, choices, answer)
    line = _line(format_, f"{{{{ {_label_at(format_, 'loop.index0')} }}}}", "{{ _choice }}")
    return (
        f"{label_guard(format_, choices)}{ordered}{{% for _choice in {sequence} %}}{line}"
        f"{{% if not loop.last %}}{delimiter}{{% endif %}}{{% endfor %}}"
    )


def _line(format_: Format, label: str, choice: str) -> str:
    """Return one choice with its label; both are templates that print them."""
    if format_.choice_format is None:
        return f"{_sealed([format_.label_prefix])}{label}{_sealed([format_.label_suffix])}{choice}"
    values = {"label": label, "choice": choice, None: ""}
    return "".join(printed(text) + values[name] for text, name, _, _ in Formatter().parse(format_.choice_format))


def _label_at(format_: Format, index: str) -> str:
    if format_.choice_labels == NUMBERS:
        return f"{index} + 1"
    return f"{_sequence(format_.choice_labels)}[{index}]"


def _sequence(labels: ChoiceLabels) -> str:
    """Return an expression of all labels, a string where each is one character; not for `numbers`, which never end."""
    known = LABEL_SETS[labels] if isinstance(labels, str) else labels or ()
    if all(len(label) == 1 for label in known):
        return literal("".join(known))
    return f"[{', '.join(map(literal, known))}]"


def label_guard(format_: Format, choices: FormatChoices) -> str:
    """Return what stops a doc with more choices than there are labels, where only docs know the choices."""
    limit = label_count(format_.choice_labels)
    if limit is None or choices.fixed is not None:
        return ""
    message = f"({choices.expression}|length) ~ {literal(f' choices, but only {limit} labels')}"
    return f"{{% if {choices.expression}|length > {limit} %}}{{{{ raise_exception({message}) }}}}{{% endif %}}"


def _label_list(format_: Format, choices: FormatChoices) -> tuple[str, str]:
    """Return what must be written before, and an expression of, the list of labels in use."""
    if format_.choice_labels == NUMBERS:  # not `range`, which a column of that name would hide
        numbers = f"{{% for _choice in {choices.expression} %}}{{{{ loop.index }}}} {{% endfor %}}"
        return f"{{% set _numbers %}}{numbers}{{% endset %}}", "_numbers.split()"
    sequence = _sequence(format_.choice_labels)
    return label_guard(format_, choices), f"{sequence}[:{choices.expression}|length]|list"


def _labels(format_: Format, choices: FormatChoices) -> Spec:
    if choices.fixed is not None:
        try:
            return list(first_labels(format_.choice_labels, len(choices.fixed)))
        except FormatError as error:
            message = f"format {format_.name!r}: {error.message}"
            raise FormatError(message, key="choice_labels", hint=error.hint) from None
    before, labels = _label_list(format_, choices)
    return f"{before}{{{{ {labels} }}}}"


def _scored_choices(format_: Format, fields: Fields, shown: Spec) -> Spec:
    """Return the choices that are scored: those shown, or the right one of them, and an abstention."""
    if fields.choices is None or (format_.scored == "all" and format_.abstention is None):
        return shown
    before, expression = "", f"[{', '.join(literal(str(one)) for one in shown)}]"
    if isinstance(shown, str):
        before, _, expression = shown.rpartition("{{")
        expression = expression.removesuffix("}}").strip()
    scored = f"({expression})"
    if format_.scored == "gold":
        before = f"{_gold_shown(format_, fields.choices, fields.answer)}{before}"
        scored = f"[{scored}[_shown]]"
    more = "" if format_.abstention is None else f" + [{literal(format_.abstention)}]"
    return f"{before}{{{{ {scored}{more} }}}}"


def _full_texts(format_: Format, choices: FormatChoices, answer: FormatField) -> Spec:
    if format_.choice_order != "as_is":
        ordered, sequence = _in_order(format_, choices, answer)
        return f"{ordered}{{{{ {sequence} }}}}"
    return list(choices.fixed) if choices.fixed is not None else f"{{{{ {choices.texts} }}}}"


def _in_order(format_: Format, choices: FormatChoices, answer: FormatField) -> tuple[str, str]:
    """Return what must be written before, and an expression of, the choices in the order shown."""
    if format_.choice_order == "as_is":
        return "", choices.expression
    before = _gold(choices, answer) if format_.choice_order.startswith("correct") else ""
    collect = f"_order.of + [[{ORDERS[format_.choice_order]}, loop.index0, _choice|string]]"
    descending = "reverse=true" if format_.choice_order.endswith("descending") else ""
    return (
        f"{before}{{% set _order = namespace(of=[]) %}}"
        f"{{% for _choice in {choices.expression} %}}{{% set _order.of = {collect} %}}{{% endfor %}}"
        f"{{% set _ordered = _order.of|sort({descending}) %}}",
        "_ordered|map(attribute=2)|list",
    )


def _gold(choices: FormatChoices, answer: FormatField) -> str:
    """Return what sets `_gold`, the position of the answer among the choices as written.

    A number is the position; a text is the choice of that text, else a position in digits (as lm-eval 0.4.13 reads
    the printed text), else a letter. The meaning of an answer thus never depends on the labels of the format.
    """
    before, value = f"{{% set _answer %}}{answer.template}{{% endset %}}", "_answer"
    if answer.expression is not None:
        before, value = "", operand(answer.expression)
    text = f"{value}|string"
    expression = (
        f"{value}|int if {value} is number and {value}|int == {value}"
        f" else _texts.index({text}) if ({text}) in _texts"
        f" else {value}|int if ({text}).isdecimal()"
        f" else {_LETTERS}.index({text}) if {text}|length == 1 and ({text}) in {_LETTERS} else -1"
    )
    message = f"{literal('the answer ')} ~ ({value}|tojson) ~ {literal(' is not one of the ')}"
    return (
        f"{before}{{% set _texts = {choices.texts} %}}{{% set _gold = {expression} %}}"
        f"{{% if not 0 <= _gold < _texts|length %}}"
        f"{{{{ raise_exception({message} ~ (_texts|length) ~ ' choices') }}}}{{% endif %}}"
    )


def _gold_shown(format_: Format, choices: FormatChoices, answer: FormatField) -> str:
    """Return what sets `_shown`, the position of the answer in the order shown."""
    if format_.choice_order == "as_is":
        return f"{_gold(choices, answer)}{{% set _shown = _gold %}}"
    ordered, _ = _in_order(format_, choices, answer)
    before = "" if format_.choice_order.startswith("correct") else _gold(choices, answer)
    return f"{before}{ordered}{{% set _shown = (_ordered|map(attribute=1)|list).index(_gold) %}}"


def _doc_to_target(format_: Format, fields: Fields) -> Spec:
    choices = fields.choices
    if choices is None:
        return TextTemplate(fields.answer.template)
    gold = _gold_shown(format_, choices, fields.answer)
    if format_.output_type == "multiple_choice":
        return "{{ 0 }}" if format_.scored == "gold" else f"{gold}{{{{ _shown }}}}"
    if format_.choice_labels is None or format_.answer_as == "text":
        return TextTemplate(f"{gold}{{{{ _texts[_gold] }}}}")
    return TextTemplate(f"{gold}{label_guard(format_, choices)}{{{{ {_label_at(format_, '_shown')} }}}}")


def _optional_text(format_: Format, fields: Fields, key: str) -> str | None:
    text = getattr(format_, key)
    return None if text is None else _with_variables(format_, fields, text, key)


def _with_variables(format_: Format, fields: Fields, text: str, key: str) -> str:
    """Return the text with the computed variables that it uses set before it."""
    if not any(name in text for name in ("_topic", *LABEL_VARIABLES)):
        return text
    used = meta.find_undeclared_variables(grammar().parse(text))
    before = ""
    if "_topic" in used:
        if fields.topic is None:
            message = f"format {format_.name!r}: {key} uses _topic, but the task sets no topic"
            where = _field_using("_topic", format_, key)
            raise FormatError(message, key=where, hint="add `topic:` with a column or a template")
        printed_topic = f"{{% set _topic %}}{fields.topic.template}{{% endset %}}"
        expression = fields.topic.expression
        before += printed_topic if expression is None else f"{{% set _topic = {expression} %}}"
    wanted = [name for name in LABEL_VARIABLES if name in used]
    if not wanted:
        return before + text
    if fields.choices is None or format_.choice_labels is None:
        message = f"format {format_.name!r} uses {wanted[0]}, but the choices have no labels"
        hint = "set choice_labels and doc_to_choice, or remove the variable from the text"
        raise FormatError(message, key=_field_using(wanted[0], format_, key), hint=hint)
    prepare, labels = _label_list(format_, fields.choices)
    if "_num_choices" in used:
        before += f"{{% set _num_choices = {fields.choices.expression}|length %}}"
    if used & {"_choice_labels", "_choice_list_and", "_choice_list_or"}:
        before += f"{prepare}{{% set _choice_labels = {labels} %}}"
    for name, word in (("_choice_list_and", " and "), ("_choice_list_or", " or ")):
        if name in used:
            joined = f"_choice_labels[:-1]|join(', ') ~ {literal(word)} ~ _choice_labels[-1]"
            one = "_choice_labels|join"
            before += f"{{% set {name} = {joined} if _choice_labels|length > 1 else {one} %}}"
    return before + text


def _field_using(variable: str, format_: Format, key: str) -> str:
    """Return the field of the format whose text uses the variable; `key` where none does."""
    return next((name for name in TEXT_FIELDS if variable in (getattr(format_, name) or "")), key)
