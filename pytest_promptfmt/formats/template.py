"""Templates of lm-eval's template proposal: options that become a `Format` for the columns `question` and `choices`.

A template gives the format of its prompt, the text that it adds to the question, and the choices that are scored; the
builder makes the prompt, which is the one that the proposal prints. Prefix, suffix and delimiters may hold Jinja;
labels and `choice_format` are text. In addition to the proposal's own kinds, `mcq` and `cloze`, there are the
extensions that it names: open questions, rankings, classifications.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeVar

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pytest_promptfmt.core.errors import FormatError, did_you_mean, load_entry
from pytest_promptfmt.formats.builder import prompt_template
from pytest_promptfmt.formats.fields import Fields, FormatChoices, FormatField, literal, printed, sealed
from pytest_promptfmt.formats.format import Format, check_choice_format, check_text, metric_entry
from pytest_promptfmt.formats.labels import checked_labels, first_labels

ENTRY_POINT_GROUP = "pytest_promptfmt.templates"
DEFAULT_LABELS = ("A", "B", "C", "D")


@dataclass
class TemplateConfig(ABC):
    """The options of every template: question and choices between prefix and suffix.

    A template of your own is a dataclass that extends this one. It defines what is scored (`get_doc_to_choice`), and
    may return another format, or write its prompts itself by `format_prompt` and `get_doc_to_text`.
    """

    prefix: str = ""
    suffix: str = "Answer:"
    question_choice_delimiter: str = "\n"
    choice_delimiter: str = "\n"

    template_type: ClassVar[str | None] = None
    _jinja: ClassVar[tuple[str, ...]] = ("prefix", "suffix", "question_choice_delimiter", "choice_delimiter")

    def __post_init__(self) -> None:
        for name in self._jinja:
            check_text("template", name, getattr(self, name))

    def to_format(self) -> Format:
        """Return the format that lays out the prompt, without the text that a template adds to the question."""
        fields = {
            "name": self.template_type or type(self).__name__,
            "output_type": self.task_keys().get("output_type", "multiple_choice"),
            "question_prefix": sealed(self.prefix) + self.question_choice_delimiter if self.prefix else None,
            "choice_labels": None,
            "choice_delimiter": self.choice_delimiter,
            "section_separator": self.question_choice_delimiter,
            "answer_prompt": self.suffix or None,
        }
        return Format(**{**fields, **self._layout()})

    def format_prompt(self, question: str, choices: Sequence[str] | None = None, **kwargs: Any) -> str:
        """Return the prompt for one question; `kwargs` are further columns of the doc.

        Raises FormatError when there are more choices than labels.
        """
        doc = {**kwargs, "question": question, **({} if choices is None else {"choices": choices})}
        return _compiled(self._prompt(len(choices or ()))).render(doc)

    def get_doc_to_text(self) -> str:
        """Return the Jinja template of the prompt; where choices are shown it needs as many as there are labels."""
        return self._prompt()

    @abstractmethod
    def get_doc_to_choice(self) -> str | list[str] | None:
        """Return the choices that are scored: a list, a column, or None."""

    def task_keys(self) -> dict[str, Any]:
        """Return further keys for tasks that do not set them: `doc_to_target`, `output_type`, `metric_list`."""
        return {} if self.get_doc_to_choice() is None else {"output_type": "multiple_choice"}

    def to_dict(self) -> dict[str, Any]:
        """Return the `template:` mapping that makes this template again."""
        options = {name: getattr(self, name) for name in _options_of(type(self))}
        return {"template_type": self.template_type or type(self).__name__, **options}

    def shown_choices(self, _count: int | None = None, /) -> FormatChoices | None:
        """Return the choices that the prompt shows: of a doc with so many, else as many as there are labels."""
        return None

    def _layout(self) -> dict[str, Any]:
        """Return the fields of the format that this kind of template adds."""
        return {}

    def _question(self) -> str:
        return "{{question.strip()}}"

    def _prompt(self, count: int | None = None) -> str:
        question, answer = FormatField(self._question(), None), FormatField("", None)
        fields = Fields(question=question, choices=self.shown_choices(count), answer=answer)
        return prompt_template(self.to_format(), fields)


def _options_of(kind: type[TemplateConfig]) -> list[str]:
    return [entry.name for entry in dataclasses.fields(kind) if entry.init]


@lru_cache(maxsize=64)
def _compiled(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    return environment.from_string(source)


@dataclass
class LabelledChoices(TemplateConfig):
    """The options of templates that show labelled choices."""

    choice_labels: Sequence[str] = DEFAULT_LABELS
    choice_format: str = "{label}. {choice}"

    _shown_by: ClassVar[str | None] = None
    """The option that decides whether the prompt shows the choices; None where it always does."""
    _twin: Any = field(default=None, init=False, repr=False, compare=False)
    """The template that this one was converted from."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.choice_labels, str):
            message = f"choice_labels is the text {self.choice_labels!r}; a template needs a list"
            raise FormatError(message, key="choice_labels", hint='write choice_labels: ["A", "B"]')
        self.choice_labels = list(checked_labels(self.choice_labels) or DEFAULT_LABELS)
        check_choice_format(self.choice_format)

    def shown_choices(self, count: int | None = None, /) -> FormatChoices | None:
        """Return the columns of the choices, one by one; None where the prompt leaves them out."""
        count = len(self.choice_labels) if count is None else count
        items = tuple(f"{{{{choices[{index}]}}}}" for index in range(count)) if self._shows_choices() else ()
        return FormatChoices("choices", items=items) if items else None

    def _shows_choices(self) -> bool:
        return self._shown_by is None or getattr(self, self._shown_by)

    def _layout(self) -> dict[str, Any]:
        labels = tuple(self.choice_labels) if self._shows_choices() else None
        return {"choice_labels": labels, "choice_format": self.choice_format}

    def _converted(self, kind: type[_Labelled], **changes: Any) -> _Labelled:
        """Return a template of another kind with the same labels, delimiters and prefix; converting it reverts this."""
        shared = ("prefix", "question_choice_delimiter", "choice_delimiter", "choice_labels", "choice_format")
        changes = {key: value for key, value in changes.items() if value is not None}
        made = dataclasses.replace(self._twin or kind(), **{name: getattr(self, name) for name in shared}, **changes)
        made._twin = self
        return made


_Labelled = TypeVar("_Labelled", bound=LabelledChoices)


@dataclass
class MCQTemplateConfig(LabelledChoices):
    """Question, labelled choices, answer cue; the labels are scored.

    Prefix, question, choices and suffix are joined by `question_choice_delimiter`. `use_choice_labels` False scores the
    texts of the choices, `show_choices_in_prompt` False leaves them out of the prompt.
    """

    use_choice_labels: bool = True
    show_choices_in_prompt: bool = True

    template_type: ClassVar[str | None] = "mcq"
    _shown_by: ClassVar[str | None] = "show_choices_in_prompt"

    def get_doc_to_choice(self) -> str | list[str] | None:
        """Return the labels, or the column `choices` where texts are scored."""
        return list(self.choice_labels) if self.use_choice_labels else "choices"

    def to_cloze(self, blank_marker: str | None = None) -> ClozeTemplateConfig:
        """Return the cloze form: same prefix, labels, choice format and delimiters; its `to_mcq()` equals this."""
        return self._converted(ClozeTemplateConfig, blank_marker=blank_marker or None)


@dataclass
class ClozeTemplateConfig(LabelledChoices):
    """Question with a blank to fill in, then the labelled choices, which are scored if they are shown.

    `blank_position` `end` appends the blank unless the question has one, `inline` leaves the question as it is. The
    choices follow `choices_prefix` directly. Defaults are those that make the outputs printed in the proposal true.
    """

    suffix: str = ""
    choice_delimiter: str = " "
    blank_marker: str = "______"
    show_choices: bool = True
    blank_position: Literal["end", "inline"] = "end"
    choices_prefix: str = "\nOptions: "

    template_type: ClassVar[str | None] = "cloze"
    _jinja: ClassVar[tuple[str, ...]] = (*TemplateConfig._jinja, "choices_prefix")
    _shown_by: ClassVar[str | None] = "show_choices"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_text("template", "blank_marker", self.blank_marker, is_template=False)
        if self.blank_position not in ("end", "inline"):
            hint = did_you_mean(str(self.blank_position), ("end", "inline"))
            message = f"blank_position {self.blank_position!r} is neither 'end' nor 'inline'"
            raise FormatError(message, key="blank_position", hint=hint)

    def _layout(self) -> dict[str, Any]:
        suffix = sealed(self.question_choice_delimiter) + self.suffix if self.suffix else None
        changes = {"section_separator": "", "choices_prefix": self.choices_prefix, "answer_prompt": suffix}
        return {**super()._layout(), **changes}

    def get_doc_to_choice(self) -> str | list[str] | None:
        """Return the labels where they are shown, else None."""
        return list(self.choice_labels) if self.show_choices else None

    def to_mcq(self, suffix: str | None = None) -> MCQTemplateConfig:
        """Return the multiple-choice form: same prefix, labels, choice format and delimiters; `to_cloze()` reverts it.

        A template that came from `to_cloze()` gets its own suffix back, any other one `Answer:`.
        """
        return self._converted(MCQTemplateConfig, suffix=suffix)

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

    def get_doc_to_choice(self) -> None:
        """Return None: there is nothing to choose from."""

    def task_keys(self) -> dict[str, Any]:
        """Return output type and metric of generated text."""
        return {"output_type": "generate_until", "metric_list": [metric_entry("exact_match")]}


@dataclass
class RankingTemplateConfig(LabelledChoices):
    """Labelled options to be put in order; the model writes the labels, best first, with `rank_separator` between.

    The column named by `ranking` holds the positions of the options in the right order.
    """

    suffix: str = "Ranking:"
    ranking: str = "ranking"
    rank_separator: str = " > "

    template_type: ClassVar[str | None] = "ranking"

    def get_doc_to_choice(self) -> None:
        """Return None: the answer is an order, not one of the choices."""

    def task_keys(self) -> dict[str, Any]:
        """Return the labels in the right order as target, output type, and exact match of the whole order."""
        labels = f"[{', '.join(map(literal, self.choice_labels))}]"
        separator = f"{{% if not loop.last %}}{printed(self.rank_separator)}{{% endif %}}"
        target = f"{{% for _rank in {self.ranking} %}}{{{{ {labels}[_rank] }}}}{separator}{{% endfor %}}"
        metrics = [metric_entry("exact_match", ignore_case=True)]
        return {"doc_to_target": target, "output_type": "generate_until", "metric_list": metrics}


@dataclass
class ClassificationTemplateConfig(TemplateConfig):
    """A text to be given one of a fixed set of labels, which are scored as they are; choices of a doc are not used."""

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
            message = "a classification template needs its labels"
            raise FormatError(message, key="labels", hint="write labels: [positive, negative]")
        self.labels = list(checked_labels(self.labels, key="labels") or ())

    def get_doc_to_choice(self) -> str | list[str] | None:
        """Return the labels."""
        return list(self.labels)

    def task_keys(self) -> dict[str, Any]:
        """Return the output type, accuracy and F1."""
        return {**super().task_keys(), "metric_list": [metric_entry("acc"), metric_entry("f1", "f1")]}

    def shown_choices(self, _count: int | None = None, /) -> FormatChoices | None:
        """Return the labels: they are the choices, without labels before them."""
        labels = tuple(self.labels)
        return FormatChoices("choices", labels, tuple(map(printed, labels))) if self.show_labels else None

    def _layout(self) -> dict[str, Any]:
        prefix = printed(self.labels_prefix)
        return {"choice_labels": tuple(self.labels), "choice_format": "{choice}", "choices_prefix": prefix}


@cache
def known_templates() -> Mapping[str, type[TemplateConfig]]:
    """Return every template class by its name in YAML: built-ins, then the entry points."""
    built_in: tuple[type[TemplateConfig], ...] = (MCQTemplateConfig, ClozeTemplateConfig, GenerationTemplateConfig)
    built_in += (RankingTemplateConfig, ClassificationTemplateConfig)
    known = {str(kind.template_type): kind for kind in built_in}
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        kind = load_entry(entry_point, f"the template {entry_point.name!r} of", FormatError)
        if not (isinstance(kind, type) and issubclass(kind, TemplateConfig)):
            point = f"the entry point {entry_point.name!r} of {ENTRY_POINT_GROUP!r}"
            raise FormatError(f"{point} does not extend TemplateConfig")
        known[entry_point.name] = kind
    return MappingProxyType(known)


def mmlu_template() -> MCQTemplateConfig:
    """Return `A. choice` lines and `Answer:`."""
    return MCQTemplateConfig()


def cloze_template(show_choices: bool = True) -> ClozeTemplateConfig:
    """Return a blank after the question, with or without the labelled options on the next line."""
    return ClozeTemplateConfig(show_choices=show_choices)


class TemplateFactory:
    """The proposal's maker of templates: by style, from mappings, and from one kind to the other."""

    create_mmlu_style = staticmethod(mmlu_template)
    create_gpqa_style = staticmethod(
        partial(MCQTemplateConfig, choice_format="({label}) {choice}", choice_delimiter=" ")
    )
    create_cloze_with_options = staticmethod(cloze_template)
    create_pure_cloze = staticmethod(partial(cloze_template, show_choices=False))

    @staticmethod
    def create_numbered_style(num_choices: int = 4) -> MCQTemplateConfig:
        """Return `1. choice` lines and `Answer:` for so many choices."""
        return MCQTemplateConfig(choice_labels=first_labels("numbers", num_choices))

    @staticmethod
    def from_dict(config: Mapping[str, Any]) -> TemplateConfig:
        """Return the template that a `template:` mapping describes; `template_type` is `mcq` when not given.

        `template_type` may be a class that extends `TemplateConfig`. Raises FormatError for an unknown type or
        option, with a did-you-mean.
        """
        options = dict(config)
        named = options.pop("template_type", "mcq")
        kind = named if isinstance(named, type) and issubclass(named, TemplateConfig) else None
        if kind is None:
            kinds = known_templates()
            if not isinstance(named, str) or named not in kinds:
                message = f"unknown template {named!r}; known: {', '.join(kinds)}"
                raise FormatError(message, hint=did_you_mean(str(named), kinds))
            kind = kinds[named]
        known = _options_of(kind)
        for option in options:
            if option not in known:
                hint = did_you_mean(str(option), (*known, "template_type")) or f"the options are {', '.join(known)}"
                raise FormatError(f"template {named!r} has no option {option!r}", key=str(option), hint=hint)
        return kind(**options)

    @staticmethod
    def convert_template(template: TemplateConfig, target_type: str, **options: Any) -> TemplateConfig:
        """Return the template as `mcq` or `cloze`; the same object when it is that already.

        Raises FormatError for another target, or a template that is neither.
        """
        check_convertible(target_type)
        if template.template_type == target_type:
            return template
        if isinstance(template, MCQTemplateConfig):
            return template.to_cloze(**options)
        if isinstance(template, ClozeTemplateConfig):
            return template.to_mcq(**options)
        message = f"{type(template).__name__} cannot be converted to {target_type!r}"
        raise FormatError(message, hint="write mcq or cloze")


def check_convertible(target_type: str) -> None:
    """Raise FormatError for a type that no template can be converted to."""
    if target_type not in ("mcq", "cloze"):
        hint = did_you_mean(target_type, ("mcq", "cloze"))
        raise FormatError(f"a template cannot be converted to {target_type!r}", hint=hint)
