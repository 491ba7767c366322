"""`Format`: how a question is asked, as data. What the fields mean is said here; `builder` turns them into Jinja."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from string import Formatter
from typing import Any

import jinja2

from pytest_promptfmt.core.errors import FormatError, Position, did_you_mean
from pytest_promptfmt.formats.format_scorers import checked_scorer
from pytest_promptfmt.formats.jinja_text import grammar
from pytest_promptfmt.formats.labels import ChoiceLabels, checked_labels

ORDERS: tuple[str, ...] = (
    "as_is",
    "reversed",
    "alphabetical",
    "alphabetical_descending",
    "shortest_first",
    "longest_first",
    "correct_first",
    "correct_last",
)
OUTPUT_TYPES = ("multiple_choice", "generate_until")

Where = Callable[[str], Position | None]
"""From a field's name to where it was written."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """One way to ask: the fields of `formats:` in lm-eval's prompt-formats proposal, and a few of our own.

    Every text field may hold Jinja, with the doc's columns and, where choices are labelled, `_num_choices`,
    `_choice_labels`, `_choice_list_and` and `_choice_list_or`. Ours: `description` is written once before all shots,
    `instruction` in each; `topic` is a column or template that texts use as `_topic`; the texts `choices_prefix`,
    `label_prefix` and `label_suffix` are before all choices and around each label, `choice_format` replaces the latter
    by a line of text with `{label}` and `{choice}`, as in `template:`; `choice_order` moves the choices and the gold
    answer with them. `answer_as` says whether a generated answer is the label or the text of a labelled choice,
    `scored` whether all choices are scored or the right one alone, `abstention` is one more choice that is scored.
    """

    name: str
    output_type: str = "multiple_choice"
    instruction: str | None = None
    question_prefix: str | None = "Question: "
    choice_labels: ChoiceLabels = "letters"
    choice_delimiter: str = "\n"
    section_separator: str = "\n"
    answer_instruction: str | None = None
    answer_prompt: str | None = "Answer:"
    gen_prefix: str | None = None
    target_delimiter: str = " "
    fewshot_delimiter: str = "\n\n"
    scorer: str | Mapping[str, Any] | None = None
    description: str | None = None
    topic: str | None = None
    choices_prefix: str = ""
    label_prefix: str = ""
    label_suffix: str = ". "
    choice_format: str | None = None
    choice_order: str = "as_is"
    answer_as: str = "label"
    scored: str = "all"
    abstention: str | None = None
    needs_choices: bool | None = None
    summary: str = ""
    citation: str = ""
    notes: str = ""

    def __post_init__(self) -> None:
        check_fields(self.name, {field: getattr(self, field) for field in PROMPT_FIELDS})
        object.__setattr__(self, "choice_labels", checked_labels(self.choice_labels))
        if self.needs_choices is None:
            wants = self.output_type == "multiple_choice" or self.choice_labels is not None
            object.__setattr__(self, "needs_choices", wants)

    def changed(self, overrides: Mapping[str, Any], where: Where = lambda _field: None) -> Format:
        """Return this format with other values of some fields.

        Raises FormatError at an unknown field or a value that does not fit; `where` gives its position.
        """
        check_fields(self.name, overrides, where)
        values = dict(overrides)
        if "choice_labels" in values:
            values["choice_labels"] = checked_labels(values["choice_labels"], where("choice_labels"))
        if {"choice_labels", "output_type"} & values.keys():
            values.setdefault("needs_choices", None)
        return dataclasses.replace(self, **values)


DOCUMENTATION_FIELDS = ("summary", "citation", "notes")
PROMPT_FIELDS: tuple[str, ...] = tuple(
    field.name
    for field in dataclasses.fields(Format)
    if field.name not in ("name", "needs_choices", *DOCUMENTATION_FIELDS)
)
"""The fields a `formats:` entry may set."""

_REQUIRED_TEXTS = (
    "choice_delimiter",
    "section_separator",
    "target_delimiter",
    "fewshot_delimiter",
    "choices_prefix",
    "label_prefix",
    "label_suffix",
)
_OPTIONAL_TEXTS = (
    "instruction",
    "question_prefix",
    "answer_instruction",
    "answer_prompt",
    "gen_prefix",
    "description",
    "topic",
    "abstention",
)
TEXT_FIELDS: tuple[str, ...] = (
    "topic",
    "description",
    "instruction",
    "question_prefix",
    "section_separator",
    "choices_prefix",
    "label_prefix",
    "label_suffix",
    "choice_delimiter",
    "answer_instruction",
    "answer_prompt",
    "gen_prefix",
)
"""The fields whose text may hold Jinja."""

_NO_JINJA = ("target_delimiter", "fewshot_delimiter", "abstention")
_CHOSEN: Mapping[str, tuple[str, ...]] = {
    "choice_order": ORDERS,
    "answer_as": ("label", "text"),
    "scored": ("all", "gold"),
}
"""The fields that take one of a few words, the default first."""


def check_fields(name: str, values: Mapping[Any, Any], where: Where = lambda _field: None) -> None:
    """Raise FormatError for the first field that no format has or whose value does not fit."""
    for field, value in values.items():
        if field not in PROMPT_FIELDS:
            raise FormatError(
                f"format {name!r} has no field {field!r}",
                position=where(str(field)),
                hint=did_you_mean(str(field), PROMPT_FIELDS) or f"the fields are {', '.join(PROMPT_FIELDS)}",
            )
        if field in _REQUIRED_TEXTS or (field in _OPTIONAL_TEXTS and value is not None):
            check_text(f"format {name!r}", field, value, where(field), is_template=field not in _NO_JINJA)
    if values.get("output_type", OUTPUT_TYPES[0]) not in OUTPUT_TYPES:
        raise FormatError(
            f"format {name!r} cannot have output_type {values['output_type']!r}; a format is one of"
            f" {' and '.join(OUTPUT_TYPES)}",
            position=where("output_type"),
            hint=did_you_mean(str(values["output_type"]), OUTPUT_TYPES),
        )
    for field, words in _CHOSEN.items():
        if values.get(field, words[0]) not in words:
            raise FormatError(
                f"format {name!r} has {field} {values[field]!r}; there are {', '.join(words)}",
                position=where(field),
                hint=did_you_mean(str(values[field]), words),
            )
    if "choice_labels" in values:
        checked_labels(values["choice_labels"], where("choice_labels"))
    if values.get("choice_format") is not None:
        check_choice_format(values["choice_format"], where("choice_format"))
    if "scorer" in values:
        checked_scorer(values["scorer"], where("scorer"))


def check_text(
    owner: str, field: str, value: Any, position: Position | None = None, *, is_template: bool = True
) -> None:
    """Raise FormatError for a value that is not text, or, where it `is_template`, not a Jinja template."""
    if not isinstance(value, str):
        raise FormatError(
            f"{owner}: {field} is {value!r}, which YAML reads as {type(value).__name__}; it must be text",
            position=position,
            hint=f'write "" for no {field}' if value is None else "put it in quotes",
            key=field,
        )
    if not is_template:
        return
    problem = _syntax_error(value)
    if problem is not None:
        raise FormatError(
            f"{owner}: {field} is no Jinja template: {problem}",
            position=position,
            hint="text that looks like Jinja is written {{ '…' }}",
            key=field,
        )


@lru_cache(maxsize=1024)
def _syntax_error(source: str) -> str | None:
    try:
        grammar().parse(source)
    except jinja2.TemplateSyntaxError as error:
        return str(error.message)
    return None


def check_choice_format(value: Any, position: Position | None = None) -> None:
    """Raise FormatError for what is not a line with `{choice}`, and with `{label}` where choices are labelled."""
    refusal = partial(FormatError, position=position, key="choice_format")
    hint = 'choice_format: "{label}. {choice}"'
    if not isinstance(value, str):
        raise refusal(f"choice_format is {value!r}; it must be text", hint=hint)
    try:
        fields = [entry for entry in Formatter().parse(value) if entry[1] is not None]
    except ValueError as error:
        raise refusal(f"choice_format {value!r} cannot be read: {error}", hint=hint) from error
    for _, name, width, conversion in fields:
        if name not in ("label", "choice"):
            raise refusal(
                f"choice_format {value!r} has {{{name}}}; it knows {{label}} and {{choice}}",
                hint=did_you_mean(str(name), ("label", "choice")) or hint,
            )
        if width or conversion:
            raise refusal(f"choice_format {value!r}: {{{name}}} takes no width or conversion", hint=hint)
    if "choice" not in [name for _, name, _, _ in fields]:
        raise refusal(f"choice_format {value!r} leaves out {{choice}}", hint=hint)
