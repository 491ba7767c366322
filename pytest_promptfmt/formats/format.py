"""`Format`: how a question is asked and its answer read, as data. `builder` turns the fields into Jinja."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from string import Formatter
from typing import Any

import jinja2

from pytest_promptfmt.core.errors import FormatError, Position, did_you_mean
from pytest_promptfmt.formats.fields import grammar
from pytest_promptfmt.formats.labels import LABEL_SETS, NUMBERS, ChoiceLabels, checked_labels

ORDERS: Mapping[str, str] = {
    "as_is": "",
    "reversed": "-loop.index0",
    "alphabetical": "_choice|string|lower",
    "alphabetical_descending": "_choice|string|lower",
    "shortest_first": "_choice|string|length",
    "longest_first": "-(_choice|string|length)",
    "correct_first": "loop.index0 != _gold",
    "correct_last": "loop.index0 == _gold",
}
"""The orders of choices, each with the Jinja expression by which they are sorted."""
OUTPUT_TYPES = ("multiple_choice", "generate_until")


@contextmanager
def placed(where: Callable[[str], Position | None]) -> Iterator[None]:
    """Give a FormatError about a key the position where that is written; `""` is for none."""
    try:
        yield
    except FormatError as error:
        error.position = error.position or where(error.key or "")
        raise


@dataclass(frozen=True, kw_only=True)
class Format:
    """One way to ask: the fields of `formats:` in lm-eval's prompt-formats proposal, and a few of our own.

    Every text field may hold Jinja, with the doc's columns and, where choices are labelled, `_num_choices`,
    `_choice_labels`, `_choice_list_and` and `_choice_list_or`. Ours: `description` is written once before all shots,
    `instruction` in each; `topic` is a column or template that texts use as `_topic`; the texts `choices_prefix`,
    `label_prefix` and `label_suffix` are before all choices and around each label, `choice_format` replaces the latter
    by a line of text with `{label}` and `{choice}`, as in `template:`; `choice_order` moves the choices and the gold
    answer with them. `answer_as` is whether a generated answer is the label or the text of a labelled choice,
    `scored` whether all choices are scored or only the right one, `abstention` is one more choice that is scored.
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

    def changed(self, overrides: Mapping[str, Any]) -> Format:
        """Return this format with other values of some fields.

        Raises FormatError for an unknown field or a value that does not fit; its key is the field.
        """
        check_fields(self.name, overrides)
        needs_choices = self.needs_choices if {"choice_labels", "output_type"}.isdisjoint(overrides) else None
        return dataclasses.replace(self, needs_choices=needs_choices, **overrides)


DOCUMENTATION_FIELDS = ("summary", "citation", "notes")
PROMPT_FIELDS: tuple[str, ...] = tuple(
    field.name
    for field in dataclasses.fields(Format)
    if field.name not in ("name", "needs_choices", *DOCUMENTATION_FIELDS)
)
"""The fields a `formats:` entry may set."""

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

_PLAIN_TEXTS = ("target_delimiter", "fewshot_delimiter", "abstention")
_MAY_BE_NULL = {field.name for field in dataclasses.fields(Format) if str(field.type).endswith("| None")}
_CHOSEN: Mapping[str, tuple[str, ...]] = {
    "output_type": OUTPUT_TYPES,
    "choice_order": tuple(ORDERS),
    "answer_as": ("label", "text"),
    "scored": ("all", "gold"),
}
"""The fields that take one of a few words, the default first."""


def check_fields(name: str, values: Mapping[Any, Any]) -> None:
    """Raise FormatError for the first field that no format has or whose value does not fit."""
    for field, value in values.items():
        if field not in PROMPT_FIELDS:
            hint = did_you_mean(str(field), PROMPT_FIELDS) or f"the fields are {', '.join(PROMPT_FIELDS)}"
            raise FormatError(f"format {name!r} has no field {field!r}", key=str(field), hint=hint)
        if field in (*TEXT_FIELDS, *_PLAIN_TEXTS) and not (value is None and field in _MAY_BE_NULL):
            check_text(f"format {name!r}", field, value, is_template=field in TEXT_FIELDS)
    for field, words in _CHOSEN.items():
        if values.get(field, words[0]) not in words:
            message = f"format {name!r}: unknown {field} {values[field]!r}; expected one of {', '.join(words)}"
            raise FormatError(message, key=field, hint=did_you_mean(str(values[field]), words))
    if "choice_labels" in values:
        checked_labels(values["choice_labels"])
    if values.get("choice_format") is not None:
        check_choice_format(values["choice_format"])
    if "scorer" in values:
        checked_scorer(values["scorer"])


def check_text(owner: str, field: str, value: Any, *, is_template: bool = True) -> None:
    """Raise FormatError for a value that is not text, or, where it `is_template`, not a Jinja template."""
    if not isinstance(value, str):
        hint = f'write "" for no {field}' if value is None else "put the value in quotes"
        what = "null" if value is None else f"{type(value).__name__} {value!r}"
        raise FormatError(f"{owner}: {field} must be text, not {what}", key=field, hint=hint)
    if not is_template:
        return
    problem = _syntax_error(value)
    if problem is not None:
        hint = "if the text is not meant as Jinja, write it as {{ '…' }}"
        raise FormatError(f"{owner}: {field} is not a valid Jinja template: {problem}", key=field, hint=hint)


@lru_cache(maxsize=1024)
def _syntax_error(source: str) -> str | None:
    try:
        grammar().parse(source)
    except jinja2.TemplateSyntaxError as error:
        return str(error.message)
    return None


def check_choice_format(value: Any) -> None:
    """Raise FormatError for what is not a line with `{choice}`, and with `{label}` where choices are labelled."""
    refusal = partial(FormatError, key="choice_format")
    hint = 'choice_format: "{label}. {choice}"'
    if not isinstance(value, str):
        raise refusal(f"choice_format is {value!r}; it must be text", hint=hint)
    try:
        fields = [entry for entry in Formatter().parse(value) if entry[1] is not None]
    except ValueError as error:
        raise refusal(f"choice_format {value!r} cannot be read: {error}", hint=hint) from error
    for _, name, width, conversion in fields:
        if name not in ("label", "choice"):
            meant = did_you_mean(str(name), ("label", "choice")) or hint
            raise refusal(
                f"choice_format {value!r} has the unknown field {{{name}}}; expected {{label}} or {{choice}}",
                hint=meant,
            )
        if width or conversion:
            raise refusal(f"choice_format {value!r}: {{{name}}} cannot have a width or conversion", hint=hint)
    if "choice" not in [name for _, name, _, _ in fields]:
        raise refusal(f"choice_format {value!r} must contain {{choice}}", hint=hint)


# -- scorers, by name, as filters and metrics of lm-eval 0.4.13 -----------------------------------------------------


def metric_entry(metric: str, aggregation: str = "mean", **arguments: Any) -> dict[str, Any]:
    """Return an entry of `metric_list` for a metric whose values are better when higher."""
    return {"metric": metric, "aggregation": aggregation, "higher_is_better": True, **arguments}


@dataclass(frozen=True, slots=True)
class Scorer:
    """How a generated answer is read: pipelines of lm-eval filters, and in words the text that they extract.

    All three upstream scorers measure the same (lm-eval branch next0.5).
    """

    name: str
    extracts: str
    filter_list: tuple[Mapping[str, Any], ...]
    metric_list: tuple[Mapping[str, Any], ...] = (
        metric_entry("exact_match", ignore_case=True, ignore_punctuation=True),
    )


def _pipeline(name: str, *filters: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"name": name, "filter": [*map(dict, filters), {"function": "take_first"}]}


def _first_token(labels: ChoiceLabels) -> Scorer:
    upstream = _pipeline("upstream_first_token", {"function": "remove_whitespace"})
    regex = {"function": "regex", "regex_pattern": _leading_label(labels), "fallback": "[invalid]"}
    if labels is None:
        extracts = "the text after the last 'The final answer is', because the choices have no labels. A second score"
        extracts += " compares the whole response"
        return Scorer("first_token", extracts, (upstream, _pipeline("final_answer", regex)))
    extracts = "the label at the start of the response, as in 'C. Paris'. A second score compares the whole response"
    return Scorer("first_token", extracts, (_pipeline("first_token", regex), upstream))


_NO_SENTENCE = r"(?! +(?!is\b|because\b)[a-z])"


def _leading_label(labels: ChoiceLabels) -> str:
    """Return a pattern whose one group is the label at the start; small letters count only where nothing follows.

    A label that continues as a sentence (`I cannot say`, `C and D are wrong`) or as a list of the options is not one.
    Without labels, the group is the text after the last "The final answer is".
    """
    if labels is None:
        return r"(?is)\A.*the final answer is:?\s*(\S(?:.*[^\s.])?)"  # linear in any text
    if labels == NUMBERS:
        return rf"^\W*(\d+)(?!\w){_NO_SENTENCE}(?![^\n]*\n\W*\d+[.):\]])"
    known = LABEL_SETS[labels] if isinstance(labels, str) else labels
    longest_first = "|".join(re.escape(label) for label in sorted(known, key=len, reverse=True))
    alone = rf"(?![\w'’]){_NO_SENTENCE}(?![^\n]*\n\W*(?:{longest_first})[.):\]])"
    return rf"^[\s(\[*\"']*((?:{longest_first}){alone}|(?i:{longest_first})(?=\W*$))"


def _regex(_labels: ChoiceLabels, **arguments: Any) -> Scorer:
    pattern = arguments.get("regex_pattern")
    what = f"the match of {pattern!r}" if pattern else "the match of lm-eval's default pattern ('#### ' and a number)"
    return Scorer("regex", what, (_pipeline("regex", {"function": "regex", **arguments}),))


def _choice_match(_labels: ChoiceLabels) -> Scorer:
    extracts = "the whole response. Case and punctuation do not matter"
    return Scorer("choice_match", extracts, (_pipeline("choice_match"),))


_SCORERS: Mapping[str, tuple[Callable[..., Scorer], tuple[str, ...]]] = {
    "first_token": (_first_token, ()),
    "regex": (_regex, ("regex_pattern", "group_select", "fallback")),
    "choice_match": (_choice_match, ()),
}
"""The maker of each scorer, and the arguments that it takes."""

SCORER_NAMES: tuple[str, ...] = tuple(_SCORERS)
_ALIASES = {"regex_extraction": "regex"}


def checked_scorer(value: Any) -> tuple[str, Mapping[str, Any]] | None:
    """Return the name and arguments that a `scorer` value means: a name, or `{type: name, …}`; None for none.

    Raises FormatError for an unknown name or argument and for a pattern that is not a regular expression.
    """
    if value is None:
        return None
    refusal = partial(FormatError, key="scorer")
    given: Any = {"type": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping) or not isinstance(given.get("type"), str):
        message = f"scorer {value!r} is neither a name nor a mapping with `type`"
        raise refusal(message, hint=f"scorer: {SCORER_NAMES[0]}")
    name: str = given["type"]
    name = _ALIASES.get(name, name)
    if name not in _SCORERS:
        message = f"unknown scorer {name!r}; known: {', '.join(SCORER_NAMES)}"
        raise refusal(message, hint=did_you_mean(name, (*SCORER_NAMES, *_ALIASES)))
    arguments = {key: item for key, item in given.items() if key not in ("type", "kwargs")}
    arguments |= given.get("kwargs") or {}
    _, known = _SCORERS[name]
    for argument in arguments:
        if argument not in known:
            hint = did_you_mean(str(argument), known) or f"it takes {', '.join(known) or 'no arguments'}"
            raise refusal(f"scorer {name!r} has no argument {argument!r}", hint=hint)
    pattern = arguments.get("regex_pattern", "")
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise refusal(f"scorer {name!r}: {pattern!r} is not a regular expression: {error}") from error
    return name, arguments


def make_scorer(value: Any, labels: ChoiceLabels) -> Scorer | None:
    """Return the scorer that a format's `scorer` value means for answers with these labels; None for none."""
    checked = checked_scorer(value)
    if checked is None:
        return None
    name, arguments = checked
    return _SCORERS[name][0](labels, **arguments)
