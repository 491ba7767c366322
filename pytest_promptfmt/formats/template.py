"""A task's `template:` key, applied when the task is loaded; what the author wrote wins over the template."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_promptfmt.core.errors import CodeNotAllowedError, FormatError
from pytest_promptfmt.core.task import FunctionRef, Task
from pytest_promptfmt.formats.template_configs import TemplateConfig
from pytest_promptfmt.formats.template_factory import TemplateFactory

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
