"""Laying out a task by a format: which format a name means there, and what the task becomes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_promptfmt.core.errors import FormatError, Position, did_you_mean
from pytest_promptfmt.core.task import UNSET, CodeAssembly, FewShot, Spec, Task
from pytest_promptfmt.formats.builder import PLACEHOLDERS, FormatTemplates, build_templates
from pytest_promptfmt.formats.fields import (
    Fields,
    Mappings,
    choices_field,
    declared_mappings,
    read_mappings,
    text_field,
)
from pytest_promptfmt.formats.format import PROMPT_FIELDS, TEXT_FIELDS, Format
from pytest_promptfmt.formats.format_registry import find_format, known_formats
from pytest_promptfmt.formats.format_scorers import Scorer, make_scorer
from pytest_promptfmt.formats.jinja_text import has_markup
from pytest_promptfmt.formats.template import TemplatedTask, has_template
from pytest_promptfmt.formats.variants import split_variants, vary


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
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(Task)}
        for key in ("doc_to_text", "doc_to_target", "doc_to_choice", "output_type", "gen_prefix"):
            own[key] = getattr(self.written, key)
        fields = declared_mappings(self.written)
        if fields is not None:
            own |= {"doc_to_text": fields.question, "doc_to_choice": fields.choices, "doc_to_target": fields.answer}
        for key, column in _default_columns(self.written).items():
            own[key] = column if own[key] is None else own[key]
        mappings = {
            key: getattr(self.written.fewshot, key) for key in ("doc_to_text", "doc_to_target", "doc_to_choice")
        }
        own["fewshot"] = dataclasses.replace(self.fewshot, **mappings)
        texts = [text for name in TEXT_FIELDS if name != "topic" and (text := getattr(self.layout, name)) is not None]
        if self.layout.topic is not None:
            texts.append(text_field("topic", self.layout.topic).template)
        if any(has_markup(text) for text in texts):
            own["description"] = PLACEHOLDERS + "\n".join((str(self.written.description or ""), *texts))
        else:
            own["description"] = self.written.description
        return Task(**own)


def declared_formats(task: Task) -> tuple[str, ...]:
    """Return the names of the formats that the task's `formats:` declares, the default first; empty when none.

    Raises FormatError when `formats:` has no shape that means something.
    """
    return tuple(entry.name for entry in _declared(task))


def format_of(task: Task, name: str) -> Format:
    """Return what `task@name` means: the declared format with the task's overrides, else the known one.

    A suffix always wins over the one format that a task names; of several declared formats only those can be
    chosen. Raises FormatError, with a position and a did-you-mean, for a name that means nothing.
    """
    base_name, variants = split_variants(name)
    if variants:
        return vary(format_of(task, base_name), variants)
    directory = task.path.parent if task.path is not None else None
    entries = {entry.name: entry for entry in _declared(task)}
    if name in entries:
        entry = entries[name]
        base = find_format(entry.base, directory, task.position(*entry.keys))
        format_ = base.changed(entry.overrides, lambda field: task.position(*entry.keys, field))
        return dataclasses.replace(format_, name=name)
    if entries and not _is_single(task):
        known = name in known_formats(directory)
        raise FormatError(
            f"task {task.name!r} has no format {name!r}; it declares {', '.join(entries)}",
            position=task.position("formats"),
            hint=f"add `{name}: null` under formats" if known else did_you_mean(name, entries),
        )
    return find_format(name, directory, task.position("formats") if entries else task.position("task"))


def apply_format(task: Task, name: str) -> LaidOutTask:
    """Return the task laid out by the format that `name` means for it; a task already laid out is laid out again.

    Raises FormatError when the format is unknown or does not fit the task.
    """
    written = as_written(task)
    return lay_out(written, format_of(written, name))


def lay_out(task: Task, format_: Format) -> LaidOutTask:
    """Return the task laid out by this format, whatever the task declares.

    Order as in lm-eval's branch next0.5: the format first, then generation defaults, then few-shot inheritance.
    Raises FormatError when the format does not fit the task.
    """
    task = as_written(task)
    if isinstance(task.assembly, CodeAssembly):
        raise FormatError(
            f"format {format_.name!r} cannot lay out a Python task class, which makes its prompts by itself",
            position=task.position("class"),
            hint="give the class a task style, or write the task in YAML",
        )
    if task.output_type in ("loglikelihood", "loglikelihood_rolling") and "output_type" in task.config:
        raise FormatError(
            f"format {format_.name!r} cannot lay out a task of output_type {task.output_type}",
            position=task.position("output_type"),
            hint="formats ask questions; the text of this task is scored as it is",
        )
    if task.config.get("use_prompt") is not None:
        raise FormatError(
            f"format {format_.name!r} cannot lay out a task with use_prompt, which is a layout itself",
            position=task.position("use_prompt"),
            hint="write doc_to_text, doc_to_target and doc_to_choice as columns instead",
        )
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
        "doc_to_text": templates.doc_to_text,
        "doc_to_target": templates.doc_to_target,
        "doc_to_choice": templates.doc_to_choice,
        **becomes,
        "fewshot": _laid_out_fewshot(task, format_, mappings),
        "assembly": None,
    }
    if task.assembly is not None:
        # What reads and scores the answers was made for the task's own prompts.
        values = {"filter_list": None, "metric_list": None, "process_results": None, **values}
    kept = {field.name: getattr(task, field.name) for field in dataclasses.fields(Task) if field.name not in values}
    kept["format"] = format_.name
    return LaidOutTask(
        **kept,
        **values,
        layout=format_,
        written=task,
        choices=templates.choices,
        labels=templates.labels,
        gold=templates.gold,
        scorer=scorer,
        overwritten=tuple(_overwritten(task, becomes)),
        notes=mappings.notes,
    )


def as_written(task: Task) -> Task:
    """Return the task as its author wrote it, without a format or template applied."""
    return task.written if isinstance(task, (LaidOutTask, TemplatedTask)) else task


def overwritten(task: Task, name: str) -> tuple[Overwritten, ...]:
    """Return what the author wrote and the named format replaces by something different (delimiters, output type …).

    The field mappings are not among them: a format consumes them.
    """
    return apply_format(task, name).overwritten


def _default_columns(task: Task) -> dict[str, str]:
    """Return the columns that are used for mappings the author did not write."""
    columns = {"doc_to_text": "question", "doc_to_target": "answer"}
    return {**columns, "doc_to_choice": "choices"} if has_template(task) else columns


def _mappings(task: Task, format_: Format) -> Mappings:
    """Return the fields to lay out: those in metadata, those of a task written for formats, else as read."""
    fields = declared_mappings(task)
    if fields is not None:
        return fields
    names = [entry.name for entry in _declared(task)]
    if format_.name.partition("+")[0] in names or has_template(task):
        return Mappings(task.doc_to_text, task.doc_to_choice, task.doc_to_target)
    return read_mappings(task, format_.name)


def _templates(task: Task, format_: Format, mappings: Mappings, *, section: tuple[str, ...] = ()) -> FormatTemplates:
    """Return the templates for these fields; `section` is the key that holds them, for positions."""
    defaults = _default_columns(task)

    def spec(key: str, value: Spec) -> Spec:
        return defaults.get(key) if value is None else value

    def at(key: str) -> Position | None:
        return task.position(*section, key)

    topic_at = _where(task, format_, "topic")
    fields = Fields(
        question=text_field("doc_to_text", spec("doc_to_text", mappings.question), at("doc_to_text")),
        choices=choices_field(spec("doc_to_choice", mappings.choices), at("doc_to_choice")),
        answer=text_field("doc_to_target", spec("doc_to_target", mappings.answer), at("doc_to_target")),
        topic=None if format_.topic is None else text_field("topic", format_.topic, topic_at),
    )
    return build_templates(format_, fields, lambda field: _where(task, format_, field))


def _where(task: Task, format_: Format, field: str) -> Position | None:
    entry = next((entry for entry in _declared(task) if entry.name == format_.name.partition("+")[0]), None)
    if field in PROMPT_FIELDS and entry is not None:
        return task.position(*entry.keys, field)
    return task.position(field)


def _laid_out_fewshot(task: Task, format_: Format, mappings: Mappings) -> FewShot:
    """Return the few-shot settings, with field mappings of their own laid out like the task's."""
    own = {key: getattr(task.fewshot, key) for key in ("doc_to_text", "doc_to_target", "doc_to_choice")}
    if all(value is UNSET for value in own.values()):
        return task.fewshot
    theirs = Mappings(
        mappings.question if own["doc_to_text"] is UNSET else own["doc_to_text"],
        mappings.choices if own["doc_to_choice"] is UNSET else own["doc_to_choice"],
        mappings.answer if own["doc_to_target"] is UNSET else own["doc_to_target"],
    )
    templates = _templates(task, format_, theirs, section=("fewshot_config",))
    return dataclasses.replace(
        task.fewshot,
        doc_to_text=templates.doc_to_text,
        doc_to_target=templates.doc_to_target,
        doc_to_choice=templates.doc_to_choice,
    )


def _scoring(task: Task, format_: Format, scorer: Scorer | None) -> dict[str, Any]:
    """Return the filters and metrics that a scorer sets.

    Lists of the author win (branch next0.5), unless they were written for another output type: accuracy over choices
    says nothing about generated text.
    """
    written_for = task.output_type if _is_written(task, "output_type") else format_.output_type
    replaces = written_for != format_.output_type or task.assembly is not None
    values: dict[str, Any] = {}
    for key in ("filter_list", "metric_list"):
        if not replaces and getattr(task, key) is not None:
            continue
        made: Sequence[Mapping[str, Any]] | None = getattr(scorer, key) if scorer is not None else None
        if made is not None or replaces:
            values[key] = made
    return values


def _is_written(task: Task, key: str) -> bool:
    if task.config:
        return key in task.config
    default = next(field for field in dataclasses.fields(Task) if field.name == key).default
    return bool(getattr(task, key) != default)


def _overwritten(task: Task, becomes: Mapping[str, Any]) -> list[Overwritten]:
    return [
        Overwritten(key, getattr(task, key), value, task.position(key))
        for key, value in becomes.items()
        if _is_written(task, key) and getattr(task, key) != value and getattr(task, key) is not None
    ]


@dataclass(frozen=True, slots=True)
class _Declared:
    """One declared format: the name tests see, the known format it starts from, and what the task changes in it.

    `keys` leads to the overrides in the task's configuration.
    """

    name: str
    base: str
    overrides: Mapping[str, Any]
    keys: tuple[str, ...]


def _declared(task: Task) -> tuple[_Declared, ...]:
    """Return the formats that the task declares, the default first; empty when it declares none.

    `formats:` is a name, `{type: name, …}` or `{name: overrides, …}`. Raises FormatError, with the position, for a
    value of another shape.
    """
    value = task.config.get("formats")
    if value is None:
        return ()
    if isinstance(value, str):
        return (_Declared(value, value, {}, ("formats",)),)
    if not isinstance(value, Mapping):
        raise FormatError(
            f"formats is a {type(value).__name__}; it must be a name or a mapping",
            position=task.position("formats"),
            hint="formats: mcqa" if not isinstance(value, list) else "several formats are a mapping: {mcqa: null, …}",
        )
    if not value:
        raise FormatError(
            "formats is an empty mapping", position=task.position("formats"), hint="formats: mcqa, or leave the key out"
        )
    if "type" in value:
        base = _checked_name(value["type"], task, ("formats", "type"))
        return (_Declared(base, base, _without_type(value), ("formats",)),)
    return tuple(_declared_entry(task, key, entry) for key, entry in value.items())


def _is_single(task: Task) -> bool:
    """Return whether `formats:` names one format, so that a suffix may name any other."""
    value = task.config.get("formats")
    return isinstance(value, str) or (isinstance(value, Mapping) and "type" in value)


def _declared_entry(task: Task, key: Any, entry: Any) -> _Declared:
    name = _checked_name(key, task, ("formats", str(key)))
    keys = ("formats", name)
    if entry is None:
        return _Declared(name, name, {}, keys)
    if isinstance(entry, str):
        return _Declared(name, entry, {}, keys)
    if isinstance(entry, Mapping):
        base = _checked_name(entry.get("type", name), task, (*keys, "type"))
        return _Declared(name, base, _without_type(entry), keys)
    raise FormatError(
        f"formats: {name} is {entry!r}; it must be null, the name of a format, or a mapping of fields",
        position=task.position(*keys),
        hint=f"for one format with overrides write formats: {{type: mcqa, {name}: …}}",
    )


def _without_type(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: item for key, item in value.items() if key != "type"}


def _checked_name(value: Any, task: Task, keys: tuple[str, ...]) -> str:
    if isinstance(value, str) and value and not set(value) & set("@/+"):
        return value
    raise FormatError(f"{value!r} is not the name of a format", position=task.position(*keys), hint="formats: mcqa")
