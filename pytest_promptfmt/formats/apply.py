"""Laying out a task by a format or by its `template:`: what a name means there, and what the task becomes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_promptfmt.core.errors import CodeNotAllowedError, FormatError, Position, did_you_mean
from pytest_promptfmt.core.task import FIELDS, UNSET, FewShot, FunctionRef, Spec, Task
from pytest_promptfmt.formats.builder import PLACEHOLDERS, FormatTemplates, build_templates, label_guard
from pytest_promptfmt.formats.fields import (
    MAPPING_KEYS,
    Fields,
    Mappings,
    choices_field,
    declared_mappings,
    has_markup,
    read_mappings,
    text_field,
)
from pytest_promptfmt.formats.format import PROMPT_FIELDS, TEXT_FIELDS, Format, Scorer, make_scorer, placed
from pytest_promptfmt.formats.format_registry import find_format, known_formats
from pytest_promptfmt.formats.template import TemplateConfig, TemplateFactory
from pytest_promptfmt.formats.variants import split_variants, vary

Resolve = Callable[[FunctionRef], Any]
"""From a `!function` to the object it names, for code that the user allows to run."""


@dataclass(frozen=True, slots=True)
class Overwritten:
    """A value that the author wrote and the format replaced by another one."""

    key: str
    written: Any
    becomes: Any
    position: Position | None


@dataclass(frozen=True, kw_only=True)
class LaidOutTask(Task):
    """A task laid out by a format: a `Task` that still knows how it was made.

    `written` is the task as its author wrote it. `choices`, `labels` and `gold` are templates (or lists) of what the
    prompt offers and which of it is right, also where the answer is generated.
    """

    layout: Format
    written: Task
    choices: Spec = None
    labels: Spec = None
    gold: str | None = None
    scorer: Scorer | None = None
    overwritten: tuple[Overwritten, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def doc_source(self) -> Task:
        """Return the task with the mappings that its format consumed: docs are the same for every format.

        Columns that only the format's own texts use are in its description.
        """
        own = _fields_of(self)
        own |= {key: getattr(self.written, key) for key in ("output_type", "gen_prefix")}
        own |= _specs(self.written, declared_mappings(self.written) or self.written)
        shots = {key: getattr(self.written.fewshot, key) for key in MAPPING_KEYS}
        own["fewshot"] = dataclasses.replace(self.fewshot, **shots)
        texts = [text for name in TEXT_FIELDS if name != "topic" and (text := getattr(self.layout, name)) is not None]
        if self.layout.topic is not None:
            texts.append(text_field("topic", self.layout.topic).template)
        own["description"] = self.written.description
        if any(map(has_markup, texts)):
            own["description"] = PLACEHOLDERS + "\n".join((str(self.written.description or ""), *texts))
        return Task(**own)


def declared_formats(task: Task) -> tuple[str, ...]:
    """Return the names of the formats that the task's `formats:` declares, the default first; empty when none.

    Raises FormatError when `formats:` has no shape that means something.
    """
    return tuple(_declared(task))


def format_of(task: Task, name: str) -> Format:
    """Return what `task@name` means: the declared format with the task's overrides, else the known one.

    A suffix always wins over the one format that a task names; of several declared formats only those can be
    chosen. Raises FormatError, with a position and a did-you-mean, for a name that means nothing.
    """
    base_name, variants = split_variants(name)
    if variants:
        return vary(format_of(task, base_name), variants)
    directory = task.path.parent if task.path is not None else None
    entries = _declared(task)
    if name in entries:
        entry = entries[name]
        base = find_format(entry.base, directory, task.position(*entry.keys))
        with placed(lambda field: task.position(*entry.keys, field)):
            return dataclasses.replace(base.changed(entry.overrides), name=name)
    is_single = [entry.keys for entry in entries.values()] == [("formats",)]  # then a suffix may name any other
    if entries and not is_single:
        known = name in known_formats(directory)
        message = f"task {task.name!r} has no format {name!r}; its formats are {', '.join(entries)}"
        hint = f"add `{name}: null` under formats" if known else did_you_mean(name, entries)
        raise task.error(FormatError, message, "formats", hint=hint)
    return find_format(name, directory, task.position("formats") if entries else task.position("task"))


def apply_format(task: Task, name: str) -> LaidOutTask:
    """Return the task laid out by the format that `name` means for it; a task already laid out is laid out again.

    Raises FormatError when the format is unknown or does not fit the task.
    """
    written = as_written(task)
    return lay_out(written, format_of(written, name))


def lay_out(task: Task, format_: Format) -> LaidOutTask:
    """Return the task laid out by this format, even where the task declares another one.

    Order as in lm-eval's branch next0.5: the format first, then generation defaults, then few-shot inheritance.
    Raises FormatError when the format does not fit the task.
    """
    task = as_written(task)
    for key, what, hint in _obstacles(task):
        raise task.error(FormatError, f"format {format_.name!r} cannot be used for {what}", key, hint=hint)
    mappings = _mappings(task, format_)
    templates = _templates(task, format_, mappings)
    scorer = make_scorer(format_.scorer, format_.choice_labels)
    becomes: dict[str, Any] = {
        "output_type": format_.output_type,
        "target_delimiter": format_.target_delimiter,
        "fewshot_delimiter": format_.fewshot_delimiter,
        **{key: value for key in ("gen_prefix", "description") if (value := getattr(templates, key)) is not None},
        **_scoring(task, format_, scorer),
    }
    values = {
        **_fields_of(task),
        # What reads and scores the answers may be made for the task's own prompts.
        **({} if task.assembly.renders_fields else dict.fromkeys(("filter_list", "metric_list", "process_results"))),
        **{key: getattr(templates, key) for key in (*MAPPING_KEYS, "choices", "labels", "gold")},
        **becomes,
        "format": format_.name,
        "fewshot": _laid_out_fewshot(task, format_, mappings),
        "assembly": FIELDS,
    }
    replaced = tuple(_overwritten(task, becomes))
    return LaidOutTask(
        **values, layout=format_, written=task, scorer=scorer, overwritten=replaced, notes=mappings.notes
    )


def _fields_of(task: Task) -> dict[str, Any]:
    """Return the values that a task has as every `Task` has them."""
    return {field.name: getattr(task, field.name) for field in dataclasses.fields(Task)}


def _obstacles(task: Task) -> Iterator[tuple[str, str, str]]:
    """Yield the keys of a task that no format can lay out, each with what it makes of the task and what to do."""
    if task.assembly.is_class:
        hint = "give the class a TASK_STYLER, or write the task in YAML"
        yield "class", "a Python task class, because its code makes the prompts", hint
    if task.output_type in ("loglikelihood", "loglikelihood_rolling") and "output_type" in task.config:
        hint = "remove the format: tasks with this output type have no question, only plain text"
        yield "output_type", f"a task with output_type {task.output_type}", hint
    if task.config.get("use_prompt") is not None:
        hint = "replace use_prompt with doc_to_text, doc_to_target and doc_to_choice, and set each to a column"
        yield "use_prompt", "a task with use_prompt, which already defines the prompt", hint


def as_written(task: Task) -> Task:
    """Return the task as its author wrote it, without a format or template applied."""
    return task.written if isinstance(task, (LaidOutTask, TemplatedTask)) else task


def _specs(task: Task, mappings: Mappings | Task) -> dict[str, Spec]:
    """Return the field mappings by key, with default columns where the author wrote none."""
    columns = {"doc_to_text": "question", "doc_to_target": "answer"}
    if has_template(task):
        columns["doc_to_choice"] = "choices"
    specs = {key: getattr(mappings, key) for key in MAPPING_KEYS}
    return {key: columns.get(key) if spec is None else spec for key, spec in specs.items()}


def _mappings(task: Task, format_: Format) -> Mappings:
    """Return the fields to lay out: those in metadata, those of a task written for formats, else as read."""
    fields = declared_mappings(task)
    if fields is not None:
        return fields
    if format_.name.partition("+")[0] in _declared(task) or has_template(task):
        return Mappings(**{key: getattr(task, key) for key in MAPPING_KEYS})
    return read_mappings(task, format_.name)


def _templates(task: Task, format_: Format, mappings: Mappings, *, section: tuple[str, ...] = ()) -> FormatTemplates:
    """Return the templates for these fields; `section` is the key that holds them, for positions."""
    specs = _specs(task, mappings)
    declared = _declared(task).get(format_.name.partition("+")[0])
    keys = declared.keys if declared is not None else ()
    with placed(lambda key: task.position(*(section if key in specs else keys if key in PROMPT_FIELDS else ()), key)):
        fields = Fields(
            question=text_field("doc_to_text", specs["doc_to_text"]),
            choices=choices_field(specs["doc_to_choice"]),
            answer=text_field("doc_to_target", specs["doc_to_target"]),
            topic=None if format_.topic is None else text_field("topic", format_.topic),
        )
        return build_templates(format_, fields)


def _laid_out_fewshot(task: Task, format_: Format, mappings: Mappings) -> FewShot:
    """Return the few-shot settings, with their field mappings laid out like the task's."""
    own = {key: value for key in MAPPING_KEYS if (value := getattr(task.fewshot, key)) is not UNSET}
    if not own:
        return task.fewshot
    templates = _templates(task, format_, dataclasses.replace(mappings, **own), section=("fewshot_config",))
    return dataclasses.replace(task.fewshot, **{key: getattr(templates, key) for key in MAPPING_KEYS})


def _scoring(task: Task, format_: Format, scorer: Scorer | None) -> dict[str, Any]:
    """Return the filters and metrics that a scorer sets.

    Lists of the author win (branch next0.5), unless they were written for another output type: accuracy over choices
    does not measure generated text.
    """
    written_for = task.output_type if _is_written(task, "output_type") else format_.output_type
    replaces = written_for != format_.output_type or not task.assembly.renders_fields
    free = [key for key in ("filter_list", "metric_list") if replaces or getattr(task, key) is None]
    return {key: getattr(scorer, key, None) for key in free if scorer is not None or replaces}


def _is_written(task: Task, key: str) -> bool:
    if task.config:
        return key in task.config
    return bool(getattr(task, key) != Task.__dataclass_fields__[key].default)


def _overwritten(task: Task, becomes: Mapping[str, Any]) -> list[Overwritten]:
    return [
        Overwritten(key, getattr(task, key), value, task.position(key))
        for key, value in becomes.items()
        if _is_written(task, key) and getattr(task, key) != value and getattr(task, key) is not None
    ]


@dataclass(frozen=True, slots=True)
class _Declared:
    """One declared format: the known format it starts from, and what the task changes in it.

    `keys` leads to the overrides in the task's configuration.
    """

    base: str
    overrides: Mapping[str, Any]
    keys: tuple[str, ...]


def _declared(task: Task) -> dict[str, _Declared]:
    """Return the formats that the task declares by the names tests see, the default first; empty when it has none.

    `formats:` is a name, `{type: name, …}` or `{name: overrides, …}`. Raises FormatError, with the position, for a
    value of another shape.
    """
    value = task.config.get("formats")
    if value is None:
        return {}
    if isinstance(value, str):
        return {value: _Declared(value, {}, ("formats",))}
    if not isinstance(value, Mapping):
        message = f"formats is a {type(value).__name__}; it must be a name or a mapping"
        hint = "formats: mcqa" if not isinstance(value, list) else "write several formats as a mapping: {mcqa: null, …}"
        raise task.error(FormatError, message, "formats", hint=hint)
    if not value:
        message = "formats is an empty mapping"
        raise task.error(FormatError, message, "formats", hint="write `formats: mcqa`, or remove the key")
    if "type" in value:
        base = _checked_name(value["type"], task, ("formats", "type"))
        return {base: _Declared(base, _without_type(value), ("formats",))}
    names = {key: _checked_name(key, task, ("formats", str(key))) for key in value}
    return {name: _declared_entry(task, name, value[key]) for key, name in names.items()}


def _declared_entry(task: Task, name: str, entry: Any) -> _Declared:
    keys = ("formats", name)
    if isinstance(entry, Mapping):
        return _Declared(_checked_name(entry.get("type", name), task, (*keys, "type")), _without_type(entry), keys)
    if entry is None or isinstance(entry, str):
        return _Declared(name if entry is None else entry, {}, keys)
    message = f"formats: {name} must be null, the name of a format, or a mapping of fields, not {entry!r}"
    hint = f"to override fields of one format, write `formats: {{type: mcqa, {name}: …}}`"
    raise task.error(FormatError, message, *keys, hint=hint)


def _without_type(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: item for key, item in value.items() if key != "type"}


def _checked_name(value: Any, task: Task, keys: tuple[str, ...]) -> str:
    if isinstance(value, str) and value and not set(value) & set("@/+"):
        return value
    raise task.error(FormatError, f"{value!r} is not the name of a format", *keys, hint="formats: mcqa")


@dataclass(frozen=True, kw_only=True)
class TemplatedTask(Task):
    """A task with its `template:` applied. `notes` list what the template set that the author did not write."""

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
    """Return the type that `template:` names, as it is written: a name, a reference to a class, None for nothing."""
    value = task.config.get("template")
    return value.get("template_type") if isinstance(value, Mapping) else value


def template_of(task: Task, resolve: Resolve | None = None) -> TemplateConfig:
    """Return the template that the task's `template:` describes: a name, or a mapping of options.

    Raises FormatError, with the position, when it describes none, and CodeNotAllowedError for a class of the user's
    without `resolve`.
    """
    value = task.config.get("template")
    position = task.position("template")
    options = {"template_type": value} if isinstance(value, (str, FunctionRef)) else value
    if not isinstance(options, Mapping) or not options:
        what = "an empty mapping" if options == {} else f"{value!r}; it must be a name or a mapping"
        raise FormatError(f"template is {what}", position=position, hint="write template: mcq")
    kind = options.get("template_type")
    if isinstance(kind, FunctionRef):
        if resolve is None:
            message = f"template: the Python class {kind} is not allowed to run"
            raise CodeNotAllowedError.of(message, kind.position)
        options = {**options, "template_type": resolve(kind)}
    with placed(lambda key: task.position("template", key)):
        return TemplateFactory.from_dict(options)


def apply_template(task: Task, resolve: Resolve | None = None) -> Task:
    """Return the task laid out by its `template:`, or the task itself when it has none.

    `doc_to_text` and `doc_to_choice` of the author win, each on its own. `output_type` becomes `multiple_choice` where
    the author set none and the template scores choices. Raises what `template_of` raises.
    """
    if not has_template(task):
        return task
    template = template_of(task, resolve)
    made: dict[str, Any] = {}
    if task.config.get("doc_to_text") is None:
        shown = template.shown_choices()
        guard = "" if shown is None else label_guard(template.to_format(), shown)
        made["doc_to_text"] = guard + template.get_doc_to_text()
    if task.config.get("doc_to_choice") is None:
        made["doc_to_choice"] = template.get_doc_to_choice()
    more = {key: value for key, value in template.task_keys().items() if task.config.get(key) is None}
    notes = (
        f"the task does not set {key}, so template {template.template_type!r} sets it to {more[key]!r}" for key in more
    )
    return TemplatedTask(**{**_fields_of(task), **made, **more}, template=template, written=task, notes=tuple(notes))
