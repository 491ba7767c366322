"""Conversions of a task file: one `template:` into the other kind, a hand-written layout into either key.

The result is the keys to write and to remove. A hand-written layout is converted only when the prompts and requests
prove to be the same, byte for byte.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.errors import FormatError, PromptfmtError
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.formats.apply import apply_template, has_template, template_of
from pytest_promptfmt.formats.fields import has_markup, is_name, labels_in, listed_choices, only_expression, segments_of
from pytest_promptfmt.formats.format_registry import find_format
from pytest_promptfmt.formats.template import (
    DEFAULT_LABELS,
    ClozeTemplateConfig,
    MCQTemplateConfig,
    TemplateConfig,
    TemplateFactory,
    check_convertible,
)

if TYPE_CHECKING:
    from pytest_promptfmt.core.prompt import Instance


@dataclass(frozen=True, slots=True)
class Conversion:
    """The changes of a task file: keys to write, in this order, and keys to remove."""

    written: Mapping[str, Any]
    removed: tuple[str, ...] = ()


def convert_template_key(task: Task, target_type: str) -> Conversion:
    """Return the `template:` of the other kind; only the options that differ from its defaults are written.

    Raises FormatError when the task has no template, or one that cannot be converted.
    """
    if not has_template(task):
        message = f"task {task.name!r} has no template to convert"
        hint = "to convert a hand-written doc_to_text, use --format mcqa or --format cloze"
        raise task.error(FormatError, message, "task", hint=hint)
    return Conversion({"template": _shortest(TemplateFactory.convert_template(template_of(task), target_type))})


def convert_layout(task: Task, format_name: str, docs: TaskDocs) -> Conversion:
    """Return the keys that replace a hand-written `doc_to_text` by the fields and `formats:`.

    Raises FormatError when the layout cannot be read as question, choices and answer cue, or when a prompt or request
    of any doc would differ; the message then holds the first difference.
    """
    _refuse_formatted(task)
    question, choices, texts = _read_layout(task, format_name)
    base = find_format(format_name, task.path.parent if task.path is not None else None)
    delimiters = {key: getattr(task, key) for key in ("target_delimiter", "fewshot_delimiter")}
    overrides = {key: value for key, value in {**texts, **delimiters}.items() if value != getattr(base, key)}
    fields = {"doc_to_text": question, **({} if choices == task.doc_to_choice else {"doc_to_choice": choices})}
    written = {**fields, "formats": {"type": format_name, **overrides} if overrides else format_name}
    conversion = Conversion(written, tuple(key for key in ("output_type", *delimiters) if key in task.config))
    _prove_identical(task, _converted(task, conversion, **fields).with_format(format_name), docs)
    return conversion


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
        replaced = ("doc_to_text", *(("doc_to_choice",) if template.get_doc_to_choice() is not None else ()))
        conversion = Conversion({"template": _shortest(template)}, tuple(key for key in replaced if key in task.config))
        try:
            after = _converted(task, conversion, **dict.fromkeys(replaced))
            _prove_identical(task, apply_template(after), tried)
        except PromptfmtError as error:
            refusals.append(error)
            continue
        return conversion
    shown = next((error for error in refusals if isinstance(error, FormatError)), None)
    raise shown or _refusal(task, f"template {target_type}", refusals[0].message) from refusals[0]


def _refuse_formatted(task: Task) -> None:
    if has_template(task) or task.config.get("formats") is not None:
        raise task.error(FormatError, f"task {task.name!r} already has a format or template", "task")


def _candidate_templates(task: Task, target_type: str) -> Iterator[TemplateConfig]:
    """Yield the templates that may have this layout; the proof chooses."""
    if target_type == "cloze":
        yield ClozeTemplateConfig(choice_labels=labels_in(task.doc_to_choice) or DEFAULT_LABELS)
        yield TemplateFactory.create_pure_cloze()
        return
    _, _, texts = _read_layout(task, "mcq")
    if texts["choice_labels"] is None:
        raise _refusal(task, "mcq", "doc_to_choice lists no labels")
    separator = texts["section_separator"]
    before, after = (texts[key].replace("{", "{{").replace("}", "}}") for key in ("label_prefix", "label_suffix"))
    yield MCQTemplateConfig(
        prefix=(texts["question_prefix"] or "").removesuffix(separator),
        suffix=texts["answer_prompt"] or "",
        question_choice_delimiter=separator,
        choice_delimiter=texts["choice_delimiter"],
        choice_labels=labels_in(task.doc_to_choice) or (),
        choice_format=f"{before}{{label}}{after}{{choice}}",
    )


def _shortest(template: TemplateConfig) -> Any:
    """Return the value of `template:` that makes this template: its name, and the options unlike the defaults."""
    made = template.to_dict()
    default = TemplateFactory.from_dict({"template_type": made["template_type"]}).to_dict()
    options = {key: value for key, value in made.items() if value != default[key]}
    return {"template_type": made["template_type"], **options} if options else made["template_type"]


def _converted(task: Task, conversion: Conversion, **fields: Any) -> Task:
    kept = {key: value for key, value in task.config.items() if key not in conversion.removed}
    return dataclasses.replace(task, config=MappingProxyType({**kept, **conversion.written}), **fields)


def _read_layout(task: Task, format_name: str) -> tuple[str, Any, dict[str, Any]]:
    """Return the question and the choices of a layout, and the texts around them as fields of a format."""
    text = task.doc_to_text
    segments = segments_of(text) if isinstance(text, str) and has_markup(text) else None
    if not segments or not any(is_output for is_output, _ in segments):
        raise _refusal(task, format_name, "doc_to_text has more than text and {{ expressions }}")
    opening = "" if segments[0][0] else segments.pop(0)[1]
    choices, labels = task.doc_to_choice, labels_in(task.doc_to_choice)
    around: dict[str, Any] = {"choice_labels": None}
    if labels is None:
        closing = "" if segments[-1][0] else segments.pop()[1]
        separator = closing[: len(closing) - len(closing.lstrip())] if closing else "\n"
    else:
        listed = listed_choices(segments, labels)
        if listed is None:
            raise _refusal(task, format_name, f"doc_to_text has no list of choices with the labels {', '.join(labels)}")
        segments, closing, choices = segments[: listed.first], listed.after, _choices_of(listed.expressions)
        separator, label_prefix, label_suffix = listed.labels[0].groups()
        around = {
            "choice_labels": {"A": "letters", "1": "numbers"}.get(labels[0], list(labels)),
            "label_prefix": label_prefix,
            "label_suffix": label_suffix,
            "choice_delimiter": listed.labels[-1][1],
        }
    source = "".join(piece for _, piece in segments)
    name = only_expression(source)
    texts = {"question_prefix": opening or None, "answer_prompt": closing.removeprefix(separator) or None}
    question = name if name is not None and is_name(name) else source
    return question, choices, {**texts, "section_separator": separator, **around}


def _choices_of(expressions: tuple[str, ...]) -> str:
    """Return the column where the expressions are its first elements in order, else a list of them."""
    column = expressions[0].removesuffix("[0]")
    if is_name(column) and list(expressions) == [f"{column}[{index}]" for index in range(len(expressions))]:
        return column
    return f"{{{{ [{', '.join(expressions)}] }}}}"


def _refusal(task: Task, format_name: str, why: str) -> FormatError:
    message = f"doc_to_text of {task.name!r} cannot be written as format {format_name!r}: {why}"
    return task.error(FormatError, message, "doc_to_text")


def _prove_identical(before: Task, after: Task, docs: TaskDocs) -> None:
    """Raise FormatError at the first prompt or request that differs, without and with shots."""
    for shots in (0, 2) if len(docs.fewshot) > 2 else (0,):
        pairs = zip(before.render(docs, num_fewshot=shots), after.render(docs, num_fewshot=shots), strict=True)
        for first, second in pairs:
            written, converted = _lines_of(first), _lines_of(second)
            if written != converted:
                diff = "\n".join(difflib.unified_diff(written, converted, "as written", "converted", lineterm=""))
                raise FormatError(
                    f"the prompt of {before.name!r} would change, first in doc {first.index + 1}:\n{diff}",
                    position=before.position("doc_to_text"),
                    hint="nothing was converted",
                )


def _lines_of(instance: Instance) -> list[str]:
    """Return the lines of all prompts, then one for the arguments of each request."""
    prompts = [line for prompt in instance.prompts for line in prompt.text.split("\n")]
    return [*prompts, *(repr(request.arguments) for request in instance.requests)]
