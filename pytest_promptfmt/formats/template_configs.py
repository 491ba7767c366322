"""`template:` (seed 001): classes that lay out the columns `question` and `choices`, and convert into each other.

Prompts are those printed in seed 001. Prefix, suffix and delimiters may hold Jinja; labels and `choice_format` are
text.
"""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from string import Formatter
from typing import Any, ClassVar, Literal, Self

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pytest_promptfmt.core.errors import FormatError, did_you_mean
from pytest_promptfmt.formats.jinja_text import has_markup, literal, printed, sealed
from pytest_promptfmt.formats.labels import checked_labels

DEFAULT_LABELS = ("A", "B", "C", "D")
BlankPosition = Literal["end", "inline"]


@dataclass
class TemplateConfig(ABC):
    """What every template has. A template of your own is a dataclass that extends this one.

    `output_type` is what a task gets that does not say (None: left as it is); `get_metric_list` likewise.
    """

    prefix: str = ""
    suffix: str = "Answer:"
    question_choice_delimiter: str = "\n"
    choice_delimiter: str = "\n"

    template_type: ClassVar[str | None] = None

    @abstractmethod
    def format_prompt(self, question: str, choices: Sequence[str] | None = None, **kwargs: Any) -> str:
        """Return the prompt for one question; `kwargs` are further columns of the doc."""

    @abstractmethod
    def get_doc_to_text(self) -> str:
        """Return the Jinja template of the prompt."""

    @abstractmethod
    def get_doc_to_choice(self) -> str | list[str] | None:
        """Return the choices that are scored: a list, a column, or None."""

    def get_doc_to_target(self) -> str | None:
        """Return the template of the answer where this template makes one; None leaves it to the task."""
        return None

    def get_output_type(self) -> str | None:
        """Return the output type for tasks that do not set one: `multiple_choice` where there are choices."""
        return "multiple_choice" if self.get_doc_to_choice() is not None else None

    def get_metric_list(self) -> list[dict[str, Any]] | None:
        """Return the metrics for tasks that set none; None leaves lm-eval's own defaults."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the `template:` mapping that makes this template again."""
        values = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self) if entry.init}
        return {"template_type": self.template_type or type(self).__name__, **values}

    def __post_init__(self) -> None:
        for name in ("prefix", "suffix", "question_choice_delimiter", "choice_delimiter"):
            check_text(self, name)

    def _joined(self, *parts: str | None) -> str:
        """Return prefix, parts and suffix joined by the delimiter between question and choices.

        An empty prefix or suffix is left out, and so is a part that is None.
        """
        return self.question_choice_delimiter.join(
            part for part in (self.prefix or None, *parts, self.suffix or None) if part is not None
        )

    def _joined_template(self, *parts: str | None) -> str:
        pieces = (sealed(self.prefix) or None, *parts, sealed(self.suffix) or None)
        return sealed(self.question_choice_delimiter).join(piece for piece in pieces if piece is not None)

    def _rendered(self, text: str, question: str, choices: Sequence[str] | None, columns: Mapping[str, Any]) -> str:
        if not has_markup(text):
            return text
        values = {**columns, "question": question}
        if choices is not None:
            values["choices"] = choices
        return _sandbox().from_string(text).render(values)

    def _with_rendered_texts(
        self: Self, question: str, choices: Sequence[str] | None, columns: Mapping[str, Any]
    ) -> Self:
        """Return this template with the Jinja in its texts printed for one doc; printed text is not read again."""
        printed_copy = copy.copy(self)
        for name in ("prefix", "suffix", "question_choice_delimiter", "choice_delimiter", "choices_prefix"):
            if hasattr(self, name):
                setattr(printed_copy, name, self._rendered(getattr(self, name), question, choices, columns))
        return printed_copy


@cache
def _sandbox() -> jinja2.Environment:
    return ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)


@dataclass
class LabelledChoices(TemplateConfig):
    """What templates share that show labelled choices."""

    choice_labels: Sequence[str] = DEFAULT_LABELS
    choice_format: str = "{label}. {choice}"

    @property
    def shows_choices(self) -> bool:
        """Return whether the prompt shows the choices."""
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        labels = self.choice_labels if self.choice_labels is not None else DEFAULT_LABELS
        if isinstance(labels, str):
            raise FormatError(
                f"choice_labels is the text {labels!r}; a template needs a list",
                hint='choice_labels: ["A", "B"]',
                key="choice_labels",
            )
        self.choice_labels = list(checked_labels(labels) or DEFAULT_LABELS)
        _check_choice_format(self.choice_format)

    def _choice_texts(self, choices: Sequence[str]) -> str:
        if len(choices) > len(self.choice_labels):
            raise FormatError(f"{len(choices)} choices, but only {len(self.choice_labels)} labels")
        lines = [
            self.choice_format.format(label=label, choice=choice)
            for label, choice in zip(self.choice_labels, choices, strict=False)
        ]
        return self.choice_delimiter.join(lines)

    def _choices_template(self) -> str:
        lines = []
        for index, label in enumerate(self.choice_labels):
            line = ""
            for text, name, _, _ in Formatter().parse(self.choice_format):
                line += printed(text)
                line += {"label": printed(label), "choice": f"{{{{choices[{index}]}}}}", None: ""}[name]
            lines.append(line)
        return sealed(self.choice_delimiter).join(lines)


@dataclass
class MCQTemplateConfig(LabelledChoices):
    """Question, labelled choices, answer cue; the labels are scored.

    Prefix, question, choices and suffix stand on lines of their own (`question_choice_delimiter`). `use_choice_labels`
    False scores the texts of the choices, `show_choices_in_prompt` False leaves them out of the prompt.
    """

    use_choice_labels: bool = True
    show_choices_in_prompt: bool = True

    template_type: ClassVar[str | None] = "mcq"
    _cloze: ClozeTemplateConfig | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def shows_choices(self) -> bool:
        """Return `show_choices_in_prompt`."""
        return self.show_choices_in_prompt

    def format_prompt(self, question: str, choices: Sequence[str] | None = None, **kwargs: Any) -> str:
        """Return the prompt for one question.

        Raises FormatError when there are more choices than labels.
        """
        texts = self._with_rendered_texts(question, choices, kwargs)
        shown = texts._choice_texts(choices) if choices is not None and self.show_choices_in_prompt else None
        return texts._joined(question.strip(), shown)

    def get_doc_to_text(self) -> str:
        """Return the Jinja template of the prompt; it needs as many choices as there are labels."""
        shown = self._choices_template() if self.show_choices_in_prompt else None
        return self._joined_template("{{question.strip()}}", shown)

    def get_doc_to_choice(self) -> str | list[str] | None:
        """Return the labels, or the column `choices` where texts are scored."""
        return list(self.choice_labels) if self.use_choice_labels else "choices"

    def to_cloze(self, blank_marker: str | None = None) -> ClozeTemplateConfig:
        """Return the cloze form: same prefix, labels, choice format and delimiters; `to_mcq()` gives this back."""
        before = self._cloze
        cloze = ClozeTemplateConfig(
            prefix=self.prefix,
            suffix=before.suffix if before is not None else "",
            question_choice_delimiter=self.question_choice_delimiter,
            choice_delimiter=self.choice_delimiter,
            choice_labels=list(self.choice_labels),
            choice_format=self.choice_format,
            blank_marker=blank_marker or (before.blank_marker if before is not None else DEFAULT_BLANK),
            show_choices=before.show_choices if before is not None else True,
            blank_position=before.blank_position if before is not None else "end",
            choices_prefix=before.choices_prefix if before is not None else DEFAULT_CHOICES_PREFIX,
        )
        cloze._mcq = self
        return cloze


DEFAULT_BLANK = "______"
DEFAULT_CHOICES_PREFIX = "\nOptions: "


@dataclass
class ClozeTemplateConfig(LabelledChoices):
    """Question with a blank, and optionally the labelled choices on the next line; the labels are scored if shown.

    `blank_position` `end` appends the blank unless the question has one, `inline` leaves the question as it is. The
    choices follow `choices_prefix` directly. Defaults are those that make the printed outputs of seed 001 true.
    """

    suffix: str = ""
    choice_delimiter: str = " "
    blank_marker: str = DEFAULT_BLANK
    show_choices: bool = True
    blank_position: BlankPosition = "end"
    choices_prefix: str = DEFAULT_CHOICES_PREFIX

    template_type: ClassVar[str | None] = "cloze"
    _mcq: MCQTemplateConfig | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def shows_choices(self) -> bool:
        """Return `show_choices`."""
        return self.show_choices

    def __post_init__(self) -> None:
        super().__post_init__()
        check_text(self, "blank_marker", is_template=False)
        check_text(self, "choices_prefix")
        if self.blank_position not in ("end", "inline"):
            raise FormatError(
                f"blank_position {self.blank_position!r} is neither 'end' nor 'inline'",
                hint=did_you_mean(str(self.blank_position), ("end", "inline")),
                key="blank_position",
            )

    def format_prompt(self, question: str, choices: Sequence[str] | None = None, **kwargs: Any) -> str:
        """Return the prompt for one question.

        Raises FormatError when there are more choices than labels.
        """
        texts = self._with_rendered_texts(question, choices, kwargs)
        line = question.strip()
        if self.blank_position == "end" and self.blank_marker not in line:
            line = f"{line} {self.blank_marker}"
        if self.show_choices and choices is not None:
            line += texts.choices_prefix + texts._choice_texts(choices)
        return texts._joined(line)

    def get_doc_to_text(self) -> str:
        """Return the Jinja template of the prompt; it needs as many choices as there are labels, if they are shown."""
        line = "{{question.strip()}}"
        if self.blank_position == "end":
            blank = printed(f" {self.blank_marker}")
            line += f"{{% if {literal(self.blank_marker)} not in question.strip() %}}{blank}{{% endif %}}"
        if self.show_choices:
            line += sealed(self.choices_prefix) + self._choices_template()
        return self._joined_template(line)

    def get_doc_to_choice(self) -> str | list[str] | None:
        """Return the labels where they are shown, else None."""
        return list(self.choice_labels) if self.show_choices else None

    def to_mcq(self, suffix: str | None = None) -> MCQTemplateConfig:
        """Return the multiple-choice form: same prefix, labels, choice format and delimiters; `to_cloze()` reverts it.

        A template that came from `to_cloze()` gets its own suffix back, any other one `Answer:`.
        """
        before = self._mcq
        if suffix is None:
            suffix = before.suffix if before is not None else "Answer:"
        mcq = MCQTemplateConfig(
            prefix=self.prefix,
            suffix=suffix,
            question_choice_delimiter=self.question_choice_delimiter,
            choice_delimiter=self.choice_delimiter,
            choice_labels=list(self.choice_labels),
            choice_format=self.choice_format,
            use_choice_labels=before.use_choice_labels if before is not None else True,
            show_choices_in_prompt=before.show_choices_in_prompt if before is not None else True,
        )
        mcq._cloze = self
        return mcq


def check_text(template: TemplateConfig, name: str, *, is_template: bool = True) -> None:
    """Raise FormatError when the option is no text, or one that should be a Jinja template and is none."""
    value = getattr(template, name)
    if not isinstance(value, str):
        raise FormatError(f"template: {name} is {value!r}; it must be text", hint='write "" for none', key=name)
    if not is_template:
        return
    try:
        _sandbox().parse(value)
    except jinja2.TemplateSyntaxError as error:
        raise FormatError(f"template: {name} is no Jinja template: {error.message}", key=name) from error


def _check_choice_format(choice_format: Any) -> None:
    refusal = partial(FormatError, key="choice_format")
    hint = 'choice_format: "{label}. {choice}"'
    if not isinstance(choice_format, str):
        raise refusal(f"choice_format is {choice_format!r}; it must be text", hint=hint)
    try:
        fields = [entry for entry in Formatter().parse(choice_format) if entry[1] is not None]
    except ValueError as error:
        raise refusal(f"choice_format {choice_format!r} cannot be read: {error}", hint=hint) from error
    for _, name, width, conversion in fields:
        if name not in ("label", "choice"):
            raise refusal(
                f"choice_format {choice_format!r} has {{{name}}}; it knows {{label}} and {{choice}}",
                hint=did_you_mean(str(name), ("label", "choice")) or hint,
            )
        if width or conversion:
            raise refusal(f"choice_format {choice_format!r}: {{{name}}} takes no width or conversion", hint=hint)
    if "choice" not in [name for _, name, _, _ in fields]:
        raise refusal(f"choice_format {choice_format!r} leaves out {{choice}}", hint=hint)
