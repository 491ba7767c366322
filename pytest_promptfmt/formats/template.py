"""A task's `template:` key, applied when the task is loaded, and the factory that makes templates.

What the author wrote wins over the template. `TemplateFactory` is that of lm-eval's template proposal: by style, from
mappings, and from one kind to the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from pytest_promptfmt.core.errors import CodeNotAllowedError, FormatError, did_you_mean
from pytest_promptfmt.core.task import FunctionRef, Task
from pytest_promptfmt.formats.labels import first_labels
from pytest_promptfmt.formats.template_configs import (
    ClassificationTemplateConfig,
    ClozeTemplateConfig,
    GenerationTemplateConfig,
    MCQTemplateConfig,
    RankingTemplateConfig,
    TemplateConfig,
)

TEMPLATE_CLASSES: tuple[type[TemplateConfig], ...] = (
    MCQTemplateConfig,
    ClozeTemplateConfig,
    GenerationTemplateConfig,
    RankingTemplateConfig,
    ClassificationTemplateConfig,
)
ENTRY_POINT_GROUP = "pytest_promptfmt.templates"

Resolve = Callable[[FunctionRef], Any]
"""From a `!function` to the object it names, for code that the user allows to run."""


@dataclass(frozen=True, kw_only=True)
class TemplatedTask(Task):
    """A task with its `template:` applied. `notes` say what the template set that the author did not write."""

    template: TemplateConfig
    written: Task
    notes: tuple[str, ...] = ()

    @property
    def doc_source(self) -> Task:
        """Return the task without the test that stops docs with too many choices."""
        if self.written.config.get("doc_to_text") is not None:
            return self
        return dataclasses.replace(self, doc_to_text=self.template.get_doc_to_text())


def has_template(task: Task) -> bool:
    """Return whether the task has a `template:` that is not null."""
    return task.config.get("template") is not None


def template_type(task: Task) -> object:
    """Return what `template:` names, as it is written: a name, a reference to a class, None for nothing."""
    value = task.config.get("template")
    return value.get("template_type") if isinstance(value, Mapping) else value


def template_of(task: Task, resolve: Resolve | None = None) -> TemplateConfig:
    """Return the template that the task's `template:` describes: a name, or a mapping of options.

    Raises FormatError, with the position, when it describes none, and CodeNotAllowedError for a class of the user's
    without `resolve`.
    """
    value = task.config.get("template")
    position = task.position("template")
    if isinstance(value, (str, FunctionRef)):
        value = {"template_type": value}
    if not isinstance(value, Mapping):
        raise FormatError(
            f"template is {value!r}; it must be a name or a mapping", position=position, hint="template: mcq"
        )
    if not value:
        raise FormatError("template is an empty mapping", position=position, hint="template: mcq")
    kind = value.get("template_type")
    if isinstance(kind, FunctionRef):
        if resolve is None:
            raise CodeNotAllowedError(
                f"template is the Python class {kind}, which may not run here",
                position=kind.position,
                hint="allow the task's Python code if you trust it",
            )
        value = {**value, "template_type": resolve(kind)}
    try:
        return TemplateFactory.from_dict(value)
    except FormatError as error:
        at = task.position("template", error.key) if error.key is not None and error.key in value else position
        raise FormatError(error.message, position=at, hint=error.hint) from error


def apply_template(task: Task, resolve: Resolve | None = None) -> Task:
    """Return the task laid out by its `template:`, or the task itself when it has none.

    `doc_to_text` and `doc_to_choice` of the author win, each on its own. `output_type` becomes `multiple_choice` where
    the author set none and the template scores choices. Raises what `template_of` raises.
    """
    if not has_template(task):
        return task
    template = template_of(task, resolve)
    values: dict[str, Any] = {}
    if task.config.get("doc_to_text") is None:
        values["doc_to_text"] = template.guard() + template.get_doc_to_text()
    if task.config.get("doc_to_choice") is None:
        values["doc_to_choice"] = template.get_doc_to_choice()
    notes = []
    for key, made in (
        ("doc_to_target", template.get_doc_to_target()),
        ("output_type", template.get_output_type()),
        ("metric_list", template.get_metric_list()),
    ):
        if made is not None and task.config.get(key) is None:
            values[key] = made
            notes.append(f"{key} is not written; template {template.template_type!r} sets {made!r}")
    kept = {field.name: getattr(task, field.name) for field in dataclasses.fields(Task)}
    return TemplatedTask(**{**kept, **values}, template=template, written=task, notes=tuple(notes))


class TemplateFactory:
    """Makes templates; every method is static."""

    @staticmethod
    def from_dict(config: Mapping[str, Any]) -> TemplateConfig:
        """Return the template that a `template:` mapping describes; `template_type` is `mcq` when not given.

        `template_type` may be a class that extends `TemplateConfig`. Raises FormatError for an unknown type or
        option, with a did-you-mean.
        """
        options = dict(config)
        kind = options.pop("template_type", "mcq")
        made_of = kind if isinstance(kind, type) and issubclass(kind, TemplateConfig) else _class_named(kind)
        known = [entry.name for entry in dataclasses.fields(made_of) if entry.init]
        for option in options:
            if option not in known:
                raise FormatError(
                    f"template {kind!r} has no option {option!r}",
                    hint=did_you_mean(str(option), (*known, "template_type")) or f"the options are {', '.join(known)}",
                    key=str(option),
                )
        return made_of(**options)

    @staticmethod
    def create_mmlu_style() -> MCQTemplateConfig:
        """Return `A. choice` lines and `Answer:`."""
        return MCQTemplateConfig()

    @staticmethod
    def create_gpqa_style() -> MCQTemplateConfig:
        """Return `(A) choice` on one line and `Answer:`."""
        return MCQTemplateConfig(choice_format="({label}) {choice}", choice_delimiter=" ")

    @staticmethod
    def create_numbered_style(num_choices: int = 4) -> MCQTemplateConfig:
        """Return `1. choice` lines and `Answer:` for that many choices."""
        return MCQTemplateConfig(choice_labels=first_labels("numbers", num_choices))

    @staticmethod
    def create_cloze_with_options() -> ClozeTemplateConfig:
        """Return a blank after the question and the labelled options on the next line."""
        return ClozeTemplateConfig()

    @staticmethod
    def create_pure_cloze() -> ClozeTemplateConfig:
        """Return a blank after the question, without options."""
        return ClozeTemplateConfig(show_choices=False)

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
        raise FormatError(
            f"{type(template).__name__} cannot be converted to {target_type!r}", hint="only mcq and cloze"
        )


def check_convertible(target_type: str) -> None:
    """Raise FormatError for what no template can be converted to."""
    if target_type not in ("mcq", "cloze"):
        raise FormatError(
            f"a template cannot be converted to {target_type!r}", hint=did_you_mean(target_type, ("mcq", "cloze"))
        )


def mmlu_template() -> MCQTemplateConfig:
    """Return `TemplateFactory.create_mmlu_style()`."""
    return TemplateFactory.create_mmlu_style()


def gpqa_template() -> MCQTemplateConfig:
    """Return `TemplateFactory.create_gpqa_style()`."""
    return TemplateFactory.create_gpqa_style()


def numbered_template(n: int = 4) -> MCQTemplateConfig:
    """Return `TemplateFactory.create_numbered_style(n)`."""
    return TemplateFactory.create_numbered_style(n)


def cloze_template(show_choices: bool = True) -> ClozeTemplateConfig:
    """Return the cloze template, with or without its options shown."""
    return TemplateFactory.create_cloze_with_options() if show_choices else TemplateFactory.create_pure_cloze()


@cache
def known_templates() -> Mapping[str, type[TemplateConfig]]:
    """Return every template class by its name in YAML: built-ins, then the entry points."""
    known = {str(made_of.template_type): made_of for made_of in TEMPLATE_CLASSES}
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            made_of = entry_point.load()
        except Exception as error:
            raise FormatError(
                f"the entry point {entry_point.name!r} of {ENTRY_POINT_GROUP!r} does not load: {error}"
            ) from error
        if not (isinstance(made_of, type) and issubclass(made_of, TemplateConfig)):
            raise FormatError(
                f"the entry point {entry_point.name!r} of {ENTRY_POINT_GROUP!r} does not extend TemplateConfig"
            )
        known[entry_point.name] = made_of
    return MappingProxyType(known)


def _class_named(kind: Any) -> type[TemplateConfig]:
    known = known_templates()
    if not isinstance(kind, str) or kind not in known:
        raise FormatError(
            f"there is no template {kind!r}; there are {', '.join(known)}", hint=did_you_mean(str(kind), known)
        )
    return known[kind]
