"""The templates that seed 001 names as future extensions: open questions, rankings, classifications."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pytest_promptfmt.core.errors import FormatError
from pytest_promptfmt.formats.jinja_text import literal, printed, sealed
from pytest_promptfmt.formats.labels import checked_labels
from pytest_promptfmt.formats.template_configs import LabelledChoices, TemplateConfig, check_text


@dataclass
class GenerationTemplateConfig(TemplateConfig):
    """An open question: prefix, question, answer cue; the model writes the answer."""

    template_type: ClassVar[str | None] = "generation"

    def format_prompt(self, question: str, choices: Sequence[str] | None = None, **kwargs: Any) -> str:
        """Return the prompt for one question; choices are not shown."""
        return self._with_rendered_texts(question, choices, kwargs)._joined(question.strip())

    def get_doc_to_text(self) -> str:
        """Return the Jinja template of the prompt."""
        return self._joined_template("{{question.strip()}}")

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

    def format_prompt(self, question: str, choices: Sequence[str] | None = None, **kwargs: Any) -> str:
        """Return the prompt for one question.

        Raises FormatError when there are more choices than labels.
        """
        texts = self._with_rendered_texts(question, choices, kwargs)
        return texts._joined(question.strip(), texts._choice_texts(choices or ()))

    def get_doc_to_text(self) -> str:
        """Return the Jinja template of the prompt; it needs as many choices as there are labels."""
        return self._joined_template("{{question.strip()}}", self._choices_template())

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
    """A text to be given one of a fixed set of labels, which are scored as they are."""

    suffix: str = "Label:"
    labels: Sequence[str] = ()
    show_labels: bool = True
    labels_prefix: str = "Labels: "
    choice_delimiter: str = ", "

    template_type: ClassVar[str | None] = "classification"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_text(self, "labels_prefix", is_template=False)
        if isinstance(self.labels, str) or not self.labels:
            raise FormatError(
                "a classification template needs its labels", hint="labels: [positive, negative]", key="labels"
            )
        self.labels = list(checked_labels(self.labels, key="labels") or ())

    def format_prompt(self, question: str, choices: Sequence[str] | None = None, **kwargs: Any) -> str:
        """Return the prompt for one text; `choices` are the template's own labels."""
        texts = self._with_rendered_texts(question, choices, kwargs)
        shown = self.labels_prefix + texts.choice_delimiter.join(self.labels) if self.show_labels else None
        return texts._joined(question.strip(), shown)

    def get_doc_to_text(self) -> str:
        """Return the Jinja template of the prompt."""
        shown = printed(self.labels_prefix) + sealed(self.choice_delimiter).join(map(printed, self.labels))
        return self._joined_template("{{question.strip()}}", shown if self.show_labels else None)

    def get_doc_to_choice(self) -> str | list[str] | None:
        """Return the labels."""
        return list(self.labels)

    def get_metric_list(self) -> list[dict[str, Any]] | None:
        """Return accuracy and F1."""
        return [
            {"metric": "acc", "aggregation": "mean", "higher_is_better": True},
            {"metric": "f1", "aggregation": "f1", "higher_is_better": True},
        ]
