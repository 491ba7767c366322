"""Converting what a task file says: one `template:` into the other kind, a hand-written layout into `formats:`.

The result is the keys to write and to remove, for whoever edits the file. A hand-written layout is converted only when
the prompts and requests prove to be the same, byte for byte.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.errors import FormatError, PromptfmtError
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.formats.fields import labels_in, listed_choices, segments_of
from pytest_promptfmt.formats.format_registry import find_format
from pytest_promptfmt.formats.jinja_text import has_markup, is_name, only_expression
from pytest_promptfmt.formats.template import (
    TemplateFactory,
    apply_template,
    check_convertible,
    has_template,
    template_of,
)
from pytest_promptfmt.formats.template_configs import (
    DEFAULT_LABELS,
    ClozeTemplateConfig,
    MCQTemplateConfig,
    TemplateConfig,
)

if TYPE_CHECKING:
    from pytest_promptfmt.core.prompt import Instance


@dataclass(frozen=True, slots=True)
class Conversion:
    """What to change in a task file: keys to write, in this order, and keys to remove."""

    written: Mapping[str, Any]
    removed: tuple[str, ...] = ()


def convert_template_key(task: Task, target_type: str) -> Conversion:
    """Return the `template:` of the other kind; only the options that differ from its defaults are written.

    Raises FormatError when the task has no template, or one that cannot be converted.
    """
    if not has_template(task):
        raise FormatError(
            f"task {task.name!r} has no template to convert",
            position=task.position("task"),
            hint="a hand-written doc_to_text is converted to a format: mcqa or cloze",
        )
    made = TemplateFactory.convert_template(template_of(task), target_type)
    return Conversion(MappingProxyType({"template": _shortest(made)}))


def convert_layout(task: Task, format_name: str, docs: TaskDocs) -> Conversion:
    """Return the keys that replace a hand-written `doc_to_text` by the fields and `formats:`.

    Raises FormatError when the layout cannot be read as question, choices and answer cue, or when a prompt or request
    of any doc would differ; the message then holds the first difference.
    """
    _refuse_formatted(task)
    found = _read_layout(task, format_name)
    base = find_format(format_name, task.path.parent if task.path is not None else None)
    fields = {**found.overrides, "target_delimiter": task.target_delimiter, "fewshot_delimiter": task.fewshot_delimiter}
    overrides = {key: value for key, value in fields.items() if value != getattr(base, key)}
    written: dict[str, Any] = {"doc_to_text": found.question}
    if found.choices != task.doc_to_choice:
        written["doc_to_choice"] = found.choices
    written["formats"] = {"type": format_name, **overrides} if overrides else format_name
    removed = tuple(key for key in ("output_type", "target_delimiter", "fewshot_delimiter") if key in task.config)
    _prove_identical(task, _converted(task, written, removed).with_format(format_name), docs)
    return Conversion(MappingProxyType(written), removed)


def convert_layout_to_template(task: Task, target_type: str, docs: TaskDocs) -> Conversion:
    """Return the `template:` (`mcq` or `cloze`) that replaces a hand-written `doc_to_text` and `doc_to_choice`.

    A template strips the question, so the proof is made on questions with whitespace around them too. Raises
    FormatError as `convert_layout` does.
    """
    _refuse_formatted(task)
    check_convertible(target_type)
    padded = tuple({**doc, "question": f" {doc['question']}\n"} for doc in docs.evaluated if "question" in doc)
    tried = dataclasses.replace(docs, evaluated=(*docs.evaluated, *padded))
    refusals: list[PromptfmtError] = []
    for template in _candidate_templates(task, target_type):
        replaced = ("doc_to_text", "doc_to_choice") if template.get_doc_to_choice() is not None else ("doc_to_text",)
        written = {"template": _shortest(template)}
        config = {key: value for key, value in task.config.items() if key not in replaced} | written
        choices = None if "doc_to_choice" in replaced else task.doc_to_choice
        after = dataclasses.replace(task, config=MappingProxyType(config), doc_to_text=None, doc_to_choice=choices)
        try:
            _prove_identical(task, apply_template(after), tried)
        except PromptfmtError as error:
            refusals.append(error)
            continue
        return Conversion(MappingProxyType(written), tuple(key for key in replaced if key in task.config))
    shown = next((error for error in refusals if isinstance(error, FormatError)), None)
    raise shown or _refusal(task, f"template {target_type}", refusals[0].message) from refusals[0]


def _refuse_formatted(task: Task) -> None:
    if has_template(task) or task.config.get("formats") is not None:
        raise FormatError(f"task {task.name!r} has a format or template already", position=task.position("task"))


def _candidate_templates(task: Task, target_type: str) -> Sequence[TemplateConfig]:
    """Return the templates that may have this layout; the proof chooses."""
    if target_type == "cloze":
        shown = ClozeTemplateConfig(choice_labels=labels_in(task.doc_to_choice) or DEFAULT_LABELS)
        return shown, TemplateFactory.create_pure_cloze()
    found = _read_layout(task, "mcq").overrides
    if found["choice_labels"] is None:
        raise _refusal(task, "mcq", "doc_to_choice lists no labels")
    separator = found["section_separator"]
    label_prefix, label_suffix = (
        found[key].replace("{", "{{").replace("}", "}}") for key in ("label_prefix", "label_suffix")
    )
    template = MCQTemplateConfig(
        prefix=(found["question_prefix"] or "").removesuffix(separator),
        suffix=found["answer_prompt"] or "",
        question_choice_delimiter=separator,
        choice_delimiter=found["choice_delimiter"],
        choice_labels=labels_in(task.doc_to_choice) or (),
        choice_format=f"{label_prefix}{{label}}{label_suffix}{{choice}}",
    )
    return (template,)


def _shortest(template: TemplateConfig) -> Any:
    """Return the value of `template:` that makes this template: its name, and the options unlike the defaults."""
    made = template.to_dict()
    default = TemplateFactory.from_dict({"template_type": made["template_type"]}).to_dict()
    options = {key: value for key, value in made.items() if value != default[key]}
    return {"template_type": made["template_type"], **options} if options else made["template_type"]


@dataclass(frozen=True, slots=True)
class _Layout:
    question: str
    choices: Any
    overrides: Mapping[str, Any]


def _converted(task: Task, written: Mapping[str, Any], removed: Sequence[str]) -> Task:
    config = {key: value for key, value in task.config.items() if key not in removed}
    values = {key: value for key, value in written.items() if key != "formats"}
    return dataclasses.replace(task, config=MappingProxyType({**config, **written}), **values)


def _read_layout(task: Task, format_name: str) -> _Layout:
    """Return the fields of a layout and the texts around them."""
    text = task.doc_to_text
    segments = segments_of(text) if isinstance(text, str) and has_markup(text) else None
    if not segments or not any(is_output for is_output, _ in segments):
        raise _refusal(task, format_name, "it is not a layout of expressions and text")
    opening = "" if segments[0][0] else segments.pop(0)[1]
    labels = labels_in(task.doc_to_choice)
    if labels is None:
        closing = "" if segments[-1][0] else segments.pop()[1]
        separator = closing[: len(closing) - len(closing.lstrip())] if closing else "\n"
        choices = task.doc_to_choice
        around: dict[str, Any] = {"choice_labels": None}
    else:
        listed = listed_choices(segments, labels)
        if listed is None:
            raise _refusal(task, format_name, f"the choices {', '.join(labels)} are not listed in it one by one")
        segments, closing = segments[: listed.first], listed.after
        choices = _choices_of(listed.expressions)
        separator, label_prefix, label_suffix = listed.labels[0].groups()
        around = {
            "choice_labels": _label_set(labels),
            "label_prefix": label_prefix,
            "label_suffix": label_suffix,
            "choice_delimiter": listed.labels[-1][1] if len(labels) > 1 else "\n",
        }
    question = _bare("".join(piece for _, piece in segments))
    texts = {"question_prefix": opening or None, "answer_prompt": closing.removeprefix(separator) or None}
    return _Layout(question, choices, {**texts, "section_separator": separator, **around})


def _label_set(labels: Sequence[str]) -> Any:
    if labels[0] == "A":
        return "letters"
    return "numbers" if labels[0] == "1" else list(labels)


def _choices_of(expressions: Sequence[str]) -> str:
    """Return the column where the expressions are its first elements in order, else a list of them."""
    column = expressions[0].removesuffix("[0]")
    if is_name(column) and list(expressions) == [f"{column}[{index}]" for index in range(len(expressions))]:
        return column
    return f"{{{{ [{', '.join(expressions)}] }}}}"


def _bare(source: str) -> str:
    inner = only_expression(source)
    return inner if inner is not None and is_name(inner) else source


def _refusal(task: Task, format_name: str, why: str) -> FormatError:
    return FormatError(
        f"doc_to_text of {task.name!r} cannot be written as format {format_name!r}: {why}",
        position=task.position("doc_to_text"),
    )


def _prove_identical(before: Task, after: Task, docs: TaskDocs) -> None:
    """Raise FormatError at the first prompt or request that differs, without and with shots."""
    for shots in (0, 2) if len(docs.fewshot) > 2 else (0,):
        pairs = zip(before.render(docs, num_fewshot=shots), after.render(docs, num_fewshot=shots), strict=True)
        for first, second in pairs:
            written, converted = _lines_of(first), _lines_of(second)
            if written != converted:
                diff = "\n".join(difflib.unified_diff(written, converted, "as written", "converted", lineterm=""))
                raise FormatError(
                    f"{before.name!r} would be asked differently, first for doc {first.index + 1}:\n{diff}",
                    position=before.position("doc_to_text"),
                    hint="nothing was changed",
                )


def _lines_of(instance: Instance) -> list[str]:
    """Return the lines of all prompts, then one for what each request sends."""
    prompts = [line for prompt in instance.prompts for line in prompt.text.split("\n")]
    return [*prompts, *(repr(request.arguments) for request in instance.requests)]
