"""What lm-eval's template proposal names as future extensions: open questions, rankings, classifications."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pytest_promptfmt.core.errors import FormatError
from pytest_promptfmt.formats.fields import Choices
from pytest_promptfmt.formats.format import Format, check_text
from pytest_promptfmt.formats.jinja_text import literal, printed
from pytest_promptfmt.formats.labels import checked_labels
from pytest_promptfmt.formats.template_configs import LabelledChoices, TemplateConfig


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

    def _choices(self, _count: int | None = None, /) -> Choices | None:
        labels = tuple(self.labels)
        return Choices("choices", labels, tuple(map(printed, labels))) if self.show_labels else None
