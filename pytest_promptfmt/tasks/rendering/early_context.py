"""From one doc to the parts of its prompt as lm-eval made them before 0.4.10, out of texts instead of messages.

Shots that equal the evaluated doc are dropped without replacement. A chat with one user turn has the shots of a second
draw. A shot without an answer is an empty turn of the assistant. The target delimiter always precedes a gen prefix,
that of a shot ends with a space, and choices that are inputs have none.
"""

from __future__ import annotations

from dataclasses import replace

from pytest_promptfmt.core.docs import Doc, TaskDocs
from pytest_promptfmt.core.prompt import Message, Place, Span, Turn, join
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.tasks.rendering.context import ContextBuilder, DocParts, text_or_none
from pytest_promptfmt.tasks.rendering.field_mappings import Value
from pytest_promptfmt.tasks.rendering.sampling import EarlySamplerError, draw_shots, make_sampler


class EarlyContextBuilder(ContextBuilder):
    """Lays out the docs of one task as lm-eval 0.4.3 to 0.4.9 do; raises as `ContextBuilder`."""

    def __init__(self, task: Task, docs: TaskDocs, num_fewshot: int | None) -> None:
        if not isinstance(task.fewshot.sampler, str):
            message = f"in lm-eval {task.release.version}, the sampler of {task.name!r} writes few-shot examples itself"
            raise task.error(EarlySamplerError, message, "fewshot_config", "sampler")
        super().__init__(task, docs, num_fewshot)
        self._draw_joined = make_sampler(task, self._pool)

    def layout(self, number: int, doc: Doc) -> DocParts:
        """Return the layout of the doc with that number; raises RenderError."""
        parts = super().layout(number, doc)
        if self.num_shots == 0:
            return parts
        draw_shots(self.task, self._draw_joined, self.num_shots, parts.doc, number, self._pool)
        return replace(parts, joined_shots=tuple(self._shots(number, parts.doc, self._draw_joined)))

    def _prefix_of_shots(self, doc: Doc, place: Place) -> Value:
        return text_or_none(self._fields.gen_prefix, doc, place)

    def _shot(self, doc: Doc, place: Place, prefix: Value) -> Turn:
        fields, has_choices = self._fields, self.task.doc_to_choice is not None
        text, target = fields.shot_text(doc, place), fields.shot_target(doc, place)
        choices = fields.shot_choice(doc, place).value if has_choices and fields.shot_choice is not None else None
        if has_choices and not isinstance(text.value, str):
            text = self._chosen(choices, text.value, fields.shot_choice, place)
        question = self._question_spans(text, place)
        gap = Span(" ", fields.origin("gen prefix", "gen_prefix", place.shot))
        before = (*prefix.spans, gap) if prefix.value else prefix.spans
        if target.value == "" and not self.task.release.delimits_empty:
            contents = (("user", join(question)), ("assistant", join(before)))
            return Turn((Message("user", question),), contents, join(question))
        if isinstance(target.value, list):
            answer = fields.shot_target.with_span(str(target.value[0]), place.shot)
        elif has_choices and not isinstance(target.value, str):
            answer = self._chosen(choices, target.value, fields.shot_choice, place)
            answer = fields.shot_target.with_span(str(answer.value), place.shot)
        else:
            answer = target
        if not isinstance(answer.value, str):
            message = f"{place}: the answer of a shot must be a text, not {answer.value!r}"
            raise self._refusal("doc_to_target", message, TypeError(message))
        return Turn.of(
            (
                Message("user", question, fields.delimiter("target delimiter", place.shot)),
                Message("assistant", (*before, *answer.spans), fields.delimiter("fewshot delimiter", place.shot)),
            )
        )

    def _question(self, text: Value, prefix: Value, delimiter: str, place: Place) -> Turn:
        if isinstance(text.value, int) and self.task.doc_to_choice is None:
            text = self._fields.text.with_span(str(text.value), None)
        question = self._question_spans(text, place)
        if prefix.value is None:
            return Turn.of((Message("user", question),))
        gap = (Span(delimiter, self._fields.origin("target delimiter", "target_delimiter", None)),) if delimiter else ()
        answer = (Message("assistant", prefix.spans),) if prefix.value else ()
        return Turn.of((Message("user", question, gap), *answer))

    def _input_questions(self, choices: Value | None, prefix: Value, place: Place) -> tuple[Turn, ...]:  # noqa: ARG002
        return super()._input_questions(choices, Value(None), place)
