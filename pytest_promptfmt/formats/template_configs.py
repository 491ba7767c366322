"""`template:` of lm-eval's template proposal: options for laying out the columns `question` and `choices`.

A template says which `Format` lays out its prompt, what it adds to the question and what is scored; the builder makes
the prompt. Prompts are those that the proposal prints. Prefix, suffix and delimiters may hold Jinja; labels and
`choice_format` are text. Besides the proposal's own kinds, `mcq` and `cloze`, there are those that it names as future
extensions: open questions, rankings, classifications.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Literal

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pytest_promptfmt.core.errors import FormatError, did_you_mean
from pytest_promptfmt.formats.builder import label_guard, prompt_template
from pytest_promptfmt.formats.fields import Fields, FormatChoices, FormatField
from pytest_promptfmt.formats.format import Format, check_choice_format, check_text
from pytest_promptfmt.formats.jinja_text import literal, printed, sealed
from pytest_promptfmt.formats.labels import checked_labels

DEFAULT_LABELS = ("A", "B", "C", "D")
BlankPosition = Literal["end", "inline"]


@dataclass
class TemplateConfig(ABC):
    """What every template has: question and choices between prefix and suffix.

    A template of your own is a dataclass that extends this one. It says what is scored (`get_doc_to_choice`), and may
    give another format, or write its prompts itself by `format_prompt` and `get_doc_to_text`.
    """

    prefix: str = ""
    suffix: str = "Answer:"
    question_choice_delimiter: str = "\n"
    choice_delimiter: str = "\n"

    template_type: ClassVar[str | None] = None
    _texts: ClassVar[tuple[str, ...]] = ("prefix", "suffix", "question_choice_delimiter", "choice_delimiter")
    """The options that are text with Jinja."""

    def __post_init__(self) -> None:
        for name in self._texts:
            check_text("template", name, getattr(self, name))

    def to_format(self) -> Format:
        """Return the format that lays out the prompt; what a template adds to the question is not part of it."""
        return Format(
            name=self.template_type or type(self).__name__,
            output_type=self.get_output_type() or "multiple_choice",
            question_prefix=sealed(self.prefix) + self.question_choice_delimiter if self.prefix else None,
            choice_labels=None,
            choice_delimiter=self.choice_delimiter,
            section_separator=self.question_choice_delimiter,
            answer_prompt=self.suffix or None,
        )

    def format_prompt(self, question: str, choices: Sequence[str] | None = None, **kwargs: Any) -> str:
        """Return the prompt for one question; `kwargs` are further columns of the doc.

        Raises FormatError when there are more choices than labels.
        """
        doc = {**kwargs, "question": question, **({} if choices is None else {"choices": choices})}
        shown = self._choices(len(choices or ()))
        return _compiled(self._prompt(shown)).render(doc)

    def get_doc_to_text(self) -> str:
        """Return the Jinja template of the prompt; where choices are shown it needs as many as there are labels."""
        return self._prompt(self._choices())

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

    def guard(self) -> str:
        """Return Jinja that stops a doc with more choices than the prompt would show."""
        shown = self._choices()
        return "" if shown is None else label_guard(self.to_format(), shown)

    def to_dict(self) -> dict[str, Any]:
        """Return the `template:` mapping that makes this template again."""
        values = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self) if entry.init}
        return {"template_type": self.template_type or type(self).__name__, **values}

    def _question(self) -> str:
        """Return the template of the question."""
        return "{{question.strip()}}"

    def _choices(self, _count: int | None = None, /) -> FormatChoices | None:
        """Return the choices that the prompt shows: of a doc with so many, else as many as there are labels."""
        return None

    def _prompt(self, shown: FormatChoices | None) -> str:
        question = FormatField(self._question(), None)
        return prompt_template(self.to_format(), Fields(question=question, choices=shown, answer=FormatField("", None)))


@lru_cache(maxsize=64)
def _compiled(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    return environment.from_string(source)


@dataclass
class LabelledChoices(TemplateConfig):
    """What templates share that show labelled choices."""

    choice_labels: Sequence[str] = DEFAULT_LABELS
    choice_format: str = "{label}. {choice}"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.choice_labels, str):
            raise FormatError(
                f"choice_labels is the text {self.choice_labels!r}; a template needs a list",
                hint='choice_labels: ["A", "B"]',
                key="choice_labels",
            )
        self.choice_labels = list(checked_labels(self.choice_labels) or DEFAULT_LABELS)
        check_choice_format(self.choice_format)

    @property
    def shows_choices(self) -> bool:
        """Return whether the prompt shows the choices."""
        return True

    def to_format(self) -> Format:
        """Return the format that lays out the prompt; what a template adds to the question is not part of it."""
        labels = tuple(self.choice_labels) if self.shows_choices else None
        return super().to_format().changed({"choice_labels": labels, "choice_format": self.choice_format})

    def _choices(self, count: int | None = None, /) -> FormatChoices | None:
        shown = range(len(self.choice_labels) if count is None else count)
        items = tuple(f"{{{{choices[{index}]}}}}" for index in shown)
        return FormatChoices("choices", items=items) if items and self.shows_choices else None

    def _shared(self) -> dict[str, Any]:
        """Return the options that mean the same in every template with labelled choices."""
        names = ("prefix", "question_choice_delimiter", "choice_delimiter", "choice_labels", "choice_format")
        return {name: getattr(self, name) for name in names}


@dataclass
class MCQTemplateConfig(LabelledChoices):
    """Question, labelled choices, answer cue; the labels are scored.

    Prefix, question, choices and suffix are joined by `question_choice_delimiter`. `use_choice_labels` False scores the
    texts of the choices, `show_choices_in_prompt` False leaves them out of the prompt.
    """

    use_choice_labels: bool = True
    show_choices_in_prompt: bool = True

    template_type: ClassVar[str | None] = "mcq"
    _cloze: ClozeTemplateConfig | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def shows_choices(self) -> bool:
        """Return `show_choices_in_prompt`."""
        return self.show_choices_in_prompt

    def get_doc_to_choice(self) -> str | list[str] | None:
        """Return the labels, or the column `choices` where texts are scored."""
        return list(self.choice_labels) if self.use_choice_labels else "choices"

    def to_cloze(self, blank_marker: str | None = None) -> ClozeTemplateConfig:
        """Return the cloze form: same prefix, labels, choice format and delimiters; `to_mcq()` gives this back."""
        before = self._cloze or ClozeTemplateConfig()
        cloze = dataclasses.replace(before, **self._shared(), blank_marker=blank_marker or before.blank_marker)
        cloze._mcq = self
        return cloze


@dataclass
class ClozeTemplateConfig(LabelledChoices):
    """Question with a blank, and optionally the labelled choices on the next line; the labels are scored if shown.

    `blank_position` `end` appends the blank unless the question has one, `inline` leaves the question as it is. The
    choices follow `choices_prefix` directly. Defaults are those that make the outputs printed in the proposal true.
    """

    suffix: str = ""
    choice_delimiter: str = " "
    blank_marker: str = "______"
    show_choices: bool = True
    blank_position: BlankPosition = "end"
    choices_prefix: str = "\nOptions: "

    template_type: ClassVar[str | None] = "cloze"
    _texts: ClassVar[tuple[str, ...]] = (*TemplateConfig._texts, "choices_prefix")
    _mcq: MCQTemplateConfig | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_text("template", "blank_marker", self.blank_marker, is_template=False)
        if self.blank_position not in ("end", "inline"):
            raise FormatError(
                f"blank_position {self.blank_position!r} is neither 'end' nor 'inline'",
                hint=did_you_mean(str(self.blank_position), ("end", "inline")),
                key="blank_position",
            )

    @property
    def shows_choices(self) -> bool:
        """Return `show_choices`."""
        return self.show_choices

    def to_format(self) -> Format:
        """Return the format that lays out the prompt; the blank is part of the question and not of the format."""
        suffix = sealed(self.question_choice_delimiter) + self.suffix if self.suffix else None
        changes = {"section_separator": "", "choices_prefix": self.choices_prefix, "answer_prompt": suffix}
        return super().to_format().changed(changes)

    def get_doc_to_choice(self) -> str | list[str] | None:
        """Return the labels where they are shown, else None."""
        return list(self.choice_labels) if self.show_choices else None

    def to_mcq(self, suffix: str | None = None) -> MCQTemplateConfig:
        """Return the multiple-choice form: same prefix, labels, choice format and delimiters; `to_cloze()` reverts it.

        A template that came from `to_cloze()` gets its own suffix back, any other one `Answer:`.
        """
        before = self._mcq or MCQTemplateConfig()
        mcq = dataclasses.replace(before, **self._shared(), suffix=before.suffix if suffix is None else suffix)
        mcq._cloze = self
        return mcq

    def _question(self) -> str:
        question = super()._question()
        if self.blank_position == "inline":
            return question
        blank = printed(f" {self.blank_marker}")
        return f"{question}{{% if {literal(self.blank_marker)} not in question.strip() %}}{blank}{{% endif %}}"


@dataclass
class GenerationTemplateConfig(TemplateConfig):
    """An open question: prefix, question, answer cue; the model writes the answer. Choices are not shown."""

    template_type: ClassVar[str | None] = "generation"

    def get_doc_to_choice(self) -> str | list[str] | None:
        """Return None: there is nothing to choose from."""
        return None

    def get_output_type(self) -> str | None:
        """Return `generate_until`."""
        return "generate_until"

    def get_metric_list(self) -> list[dict[str, Any]] | None:
        """Return exact match, lm-eval's own default for generated text, written out."""
        return [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]


@dataclass
class RankingTemplateConfig(LabelledChoices):
    """Labelled options to be put in order; the model writes the labels, best first, with `rank_separator` between.

    The column named by `ranking` holds the positions of the options in the right order.
    """

    suffix: str = "Ranking:"
    ranking: str = "ranking"
    rank_separator: str = " > "

    template_type: ClassVar[str | None] = "ranking"

    def get_doc_to_choice(self) -> str | list[str] | None:
        """Return None: the answer is an order, not one of the choices."""
        return None

    def get_doc_to_target(self) -> str | None:
        """Return the labels in the right order."""
        labels = f"[{', '.join(literal(label) for label in self.choice_labels)}]"
        separator = f"{{% if not loop.last %}}{printed(self.rank_separator)}{{% endif %}}"
        return f"{{% for _rank in {self.ranking} %}}{{{{ {labels}[_rank] }}}}{separator}{{% endfor %}}"

    def get_output_type(self) -> str | None:
        """Return `generate_until`."""
        return "generate_until"

    def get_metric_list(self) -> list[dict[str, Any]] | None:
        """Return exact match of the whole order."""
        return [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True, "ignore_case": True}]


@dataclass
class ClassificationTemplateConfig(TemplateConfig):
    """A text to be given one of a fixed set of labels, which are scored as they are; choices of a doc do not count."""

    suffix: str = "Label:"
    labels: Sequence[str] = ()
    show_labels: bool = True
    labels_prefix: str = "Labels: "
    choice_delimiter: str = ", "

    template_type: ClassVar[str | None] = "classification"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_text("template", "labels_prefix", self.labels_prefix, is_template=False)
        if isinstance(self.labels, str) or not self.labels:
            raise FormatError(
                "a classification template needs its labels", hint="labels: [positive, negative]", key="labels"
            )
        self.labels = list(checked_labels(self.labels, key="labels") or ())

    def to_format(self) -> Format:
        """Return the format that lays out the prompt: the labels are the choices, without labels of their own."""
        changes = {"choice_labels": tuple(self.labels), "choice_format": "{choice}"}
        return super().to_format().changed({**changes, "choices_prefix": printed(self.labels_prefix)})

    def get_doc_to_choice(self) -> str | list[str] | None:
        """Return the labels."""
        return list(self.labels)

    def get_metric_list(self) -> list[dict[str, Any]] | None:
        """Return accuracy and F1."""
        return [
            {"metric": "acc", "aggregation": "mean", "higher_is_better": True},
            {"metric": "f1", "aggregation": "f1", "higher_is_better": True},
        ]

    def _choices(self, _count: int | None = None, /) -> FormatChoices | None:
        labels = tuple(self.labels)
        return FormatChoices("choices", labels, tuple(map(printed, labels))) if self.show_labels else None
