"""From one doc to the messages of its prompt: description, shots, question, gen prefix.

Profiles play no role here; what a chat template or a system instruction adds comes later.
"""

from __future__ import annotations

import copy
import dis
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, Literal

from pytest_promptfmt.core.docs import Doc, TaskDocs
from pytest_promptfmt.core.errors import PromptfmtError, RenderError, SyntheticDocsError
from pytest_promptfmt.core.prompt import (
    Message,
    Origin,
    Part,
    Place,
    Span,
    Spans,
    Turn,
    join,
    joined_spans,
    meet_without_space,
)
from pytest_promptfmt.core.task import Spec, Task, Unset
from pytest_promptfmt.tasks.rendering.field_mappings import (
    FieldMapping,
    Value,
    choice_field,
    target_field,
    text_field,
)
from pytest_promptfmt.tasks.rendering.sampling import Draw, draw_shots, early_sampler, make_sampler

_CACHED_TURNS: Final = 4096


@dataclass(slots=True)
class DocParts:
    """The parts of a doc that all profiles share.

    `questions` are the final turns, one for each prompt; `text` is doc_to_text's value (the gold index where the
    choices are inputs); `choices` is None for a task without choices. `joined_shots` are those of a chat with one user
    turn, where a release of lm-eval draws them separately.
    """

    doc: Doc
    description: Spans
    shots: tuple[Turn, ...]
    questions: tuple[Turn, ...]
    text: Any
    choices: Any
    target: Any
    joined_shots: tuple[Turn, ...] | None = None


class ContextBuilder:
    """Lays out the docs of one task, in order; the shots of a doc depend on the docs before it.

    Raises RenderError on construction for a task whose first doc lm-eval would refuse.
    """

    def __init__(self, task: Task, docs: TaskDocs, num_fewshot: int | None) -> None:
        self.task = task
        self.num_shots = task.shots(num_fewshot)
        self._fields = _Fields(task, docs.columns)
        self._is_synthetic = "synthetic" in (docs.kind, docs.fewshot_kind)
        self.is_repeatable = self._fields.are_repeatable(self.num_shots) and isinstance(task.fewshot.sampler, str)
        # Functions may change the docs they get, and lm-eval keeps the pool for the whole task.
        self._pool: Sequence[Doc] = docs.fewshot if self.is_repeatable else copy_docs(docs.fewshot)
        self._turns: dict[tuple[int, str | None], Turn] = {}
        self._draw = make_sampler(task, self._pool)
        self.has_several_inputs = self._check_first_doc(docs.evaluated)

    def layout(self, number: int, doc: Doc) -> DocParts:
        """Return the layout of the doc with that number; raises RenderError."""
        fields, place = self._fields, Place(self.task.id, number)
        if not self.is_repeatable:
            doc = copy_docs([doc])[0]
        prefix = text_or_none(fields.gen_prefix, doc, place)
        description = text_or_none(fields.description, doc, place)
        shots = tuple(self._shots(number, doc, self._draw)) if self.num_shots > 0 else ()
        text = fields.text(doc, place)
        choices = fields.choice(doc, place) if fields.choice is not None and self.task.doc_to_choice else None
        target = fields.target(doc, place)
        if self.has_several_inputs:
            questions = self._input_questions(choices, prefix, place)
        else:
            questions = (self._question(text, prefix, self.task.target_delimiter, place),)
        return DocParts(
            doc=doc,
            description=description.spans,
            shots=shots,
            questions=questions,
            text=text.value,
            choices=choices.value if choices is not None else None,
            target=target.value,
        )

    def choices_of(self, layout: DocParts, number: int) -> Any:
        """Return the choices for the requests: read again, since functions may return something else."""
        if self.is_repeatable and layout.choices is not None:
            return layout.choices
        if self._fields.choice is None:
            message = f"doc_to_choice of {self.task.id!r} is missing, but output_type multiple_choice needs it"
            error = RenderError(message, position=self.task.position("output_type"))
            raise error.naming(repr(self.task.id)) from TypeError(message)
        return self._fields.choice(layout.doc, Place(self.task.id, number)).value

    def target_of(self, layout: DocParts, number: int) -> Any:
        """Return the target for the requests."""
        if self.is_repeatable:
            return layout.target
        return self._fields.target(layout.doc, Place(self.task.id, number)).value

    def _check_first_doc(self, evaluated: Sequence[Doc]) -> bool:
        """Return whether the choices are inputs, judged as lm-eval does: by the first doc."""
        fields, place = self._fields, Place(self.task.id, 0)
        if not evaluated:
            message = f"the task {self.task.id!r} has no docs"
            raise self.task.error(RenderError, message).naming(repr(self.task.id)) from IndexError(message)
        doc = evaluated[0] if self.is_repeatable else copy_docs(evaluated[:1])[0]
        text = fields.text(doc, place).value
        target = fields.target(doc, place).value
        if self.task.doc_to_choice is None or fields.choice is None:
            return False
        choices = fields.choice(doc, place).value
        if isinstance(text, int) and not isinstance(choices, list):
            raise self._refusal("doc_to_choice", f"{place}: expected a list, got {choices!r}", UnboundLocalError())
        if isinstance(target, int):
            try:
                choices[target]
            except (LookupError, TypeError) as error:
                shown = f"the target is {target!r}, but there are only the choices {choices!r}"
                raise self._no_choice(f"{place}: {shown}", error) from error
        try:
            for choice in choices:
                choice[0].isspace()
        except (LookupError, TypeError, AttributeError) as error:
            shown = f"every choice must be text, and not empty; got {choices!r}"
            raise self._refusal("doc_to_choice", f"{place}: {shown}", error) from error
        return isinstance(text, int) and len(choices) > 0

    def _refusal(self, key: str, message: str, cause: BaseException, *makers: Spec) -> PromptfmtError:
        """Return the error for a value of a field; `makers` are the fields whose code may fail with synthetic docs."""
        position = self.task.position(key)
        error: PromptfmtError = RenderError(f"{key} {message}", position=position).naming(repr(self.task.id))
        if self._is_synthetic and any(map(callable, makers)):
            hint = "add docs that work with the code of the task, or save some with `promptfmt freeze`"
            error = SyntheticDocsError(error.message, position=position, hint=hint)
        error.__cause__ = cause
        return error

    def _no_choice(self, message: str, cause: BaseException) -> PromptfmtError:
        return self._refusal("doc_to_target", message, cause, self.task.doc_to_target, self.task.doc_to_choice)

    def _shots(self, number: int, doc: Doc, draw: Draw) -> Sequence[Turn]:
        drawn = draw_shots(self.task, draw, self.num_shots, doc, number, self._pool)
        given = self._prefix_of_shots(doc, Place(self.task.id, number))
        turns = []
        for shot, (index, shot_doc) in enumerate(drawn):
            key = (index, given and given.value) if self.is_repeatable and index is not None else None
            turn = self._turns.get(key) if key is not None else None
            if turn is None:
                place = Place(self.task.id, number, shot)
                turn = self._shot(shot_doc, place, given or text_or_none(self._fields.shot_gen_prefix, shot_doc, place))
                if key is not None:
                    if len(self._turns) >= _CACHED_TURNS:
                        self._turns.clear()
                    self._turns[key] = turn
            turns.append(Turn(turn.base, turn.contents, turn.text, shot))
        return turns

    def _prefix_of_shots(self, doc: Doc, place: Place) -> Value | None:
        """Return the gen prefix of every shot, None where it is rendered from the shot."""
        return None if self.task.release.prefix_of_shot else text_or_none(self._fields.shot_gen_prefix, doc, place)

    def _shot(self, doc: Doc, place: Place, prefix: Value) -> Turn:
        fields = self._fields
        text = fields.shot_text(doc, place)
        choice_field = fields.shot_choice
        choices = choice_field(doc, place).value if choice_field is not None else None
        target = fields.shot_target(doc, place)
        if self.has_several_inputs:
            text = self._chosen(choices, text.value, choice_field, place)
            choices = None
        question = self._question_spans(text, place)
        messages = [Message("user", question)]
        if target.value is not None and target.value != "":
            answer = self._answer(choices, target, place)
            if prefix.spans:
                gap = (Span(" ", fields.origin("gen prefix", "fewshot_config.gen_prefix", place.shot)),)
                answer = joined_spans(prefix.spans, answer, gap)
            messages.append(Message("assistant", answer, fields.delimiter("fewshot delimiter", place.shot)))
            delimited = not prefix.value or meet_without_space(question, prefix.spans)
        else:
            delimited = bool(prefix.value) and meet_without_space(question, prefix.spans)
            if prefix.value:
                messages.append(Message("assistant", prefix.spans))
        if delimited:
            messages[0] = Message("user", question, fields.delimiter("target delimiter", place.shot))
        return Turn.of(tuple(messages))

    def _answer(self, choices: Any, target: Value, place: Place) -> Spans:
        value = target.value
        answer = target
        if choices and isinstance(value, int):
            answer = self._chosen(choices, value, self._fields.shot_choice, place)
        elif isinstance(value, list):
            try:
                answer = self._fields.shot_target.with_span(value[0], place.shot)
            except IndexError as error:
                raise self._refusal("doc_to_target", f"{place} is an empty list", error) from error
        if not isinstance(answer.value, str):
            message = f"{place}: the answer of a few-shot example must be text, not {value!r}"
            raise self._refusal("doc_to_target", message, AssertionError(message))
        return answer.spans

    def _chosen(self, choices: Any, index: Any, choice_field: FieldMapping | None, place: Place) -> Value:
        try:
            chosen = choices[index]
        except Exception as error:
            raise self._no_choice(f"{place}: there is no choice {index!r} in {choices!r}", error) from error
        return choice_field.with_span(chosen, place.shot) if choice_field is not None else Value(chosen)

    def _question_spans(self, text: Value, place: Place) -> Spans:
        if not isinstance(text.value, str):
            message = f"{place}: expected text, got {text.value!r}"
            if not self.task.release.makes_turns:
                does = "leaves the question out" if place.shot is None else "puts it unchanged into chat turns"
                message += f"; lm-eval {self.task.release.version} {does}, without an error"
            is_other_doc = text.value is None and _may_return(self.task.doc_to_text)
            makers = [self.task.doc_to_text] if is_other_doc else []
            raise self._refusal("doc_to_text", message, AssertionError(message), *makers)
        return text.spans

    def _question(self, text: Value, prefix: Value, delimiter: str, place: Place) -> Turn:
        question = self._question_spans(text, place)
        if not prefix.value:
            return Turn.of((Message("user", question),))
        gap: Spans = ()
        if delimiter and meet_without_space(question, prefix.spans):
            gap = (Span(delimiter, self._fields.origin("target delimiter", "target_delimiter", None)),)
        return Turn.of((Message("user", question, gap), Message("assistant", prefix.spans)))

    def _input_questions(self, choices: Value | None, prefix: Value, place: Place) -> tuple[Turn, ...]:
        if choices is None or not isinstance(choices.value, list) or self._fields.choice is None:
            message = f"{place}: expected a list of choices, because doc_to_text gives a number"
            raise self._refusal("doc_to_choice", message, AssertionError(message))
        values = [self._fields.choice.with_span(choice, None) for choice in choices.value]
        return tuple(self._question(value, prefix, "", place) for value in values)


class EarlyContextBuilder(ContextBuilder):
    """Lays out the docs of one task as lm-eval 0.4.3 to 0.4.9 do, out of texts instead of messages.

    Shots that equal the evaluated doc are dropped without replacement. A chat with one user turn has the shots of a
    second draw. A shot without an answer is an empty turn of the assistant. The target delimiter always precedes a gen
    prefix, that of a shot ends with a space, and choices that are inputs have none. Raises as `ContextBuilder`.
    """

    def __init__(self, task: Task, docs: TaskDocs, num_fewshot: int | None) -> None:
        if not isinstance(task.fewshot.sampler, str):
            message = (
                f"the sampler of {task.name!r} writes the few-shot text itself, as in lm-eval {task.release.version}"
            )
            raise early_sampler(task, message)
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
            message = f"{place}: the answer of a few-shot example must be text, not {answer.value!r}"
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


class _Fields:
    """The field mappings of a task, for the evaluated doc and for shots."""

    def __init__(self, task: Task, names: Sequence[str]) -> None:
        self.task, shots, columns = task, task.fewshot, frozenset(names)
        self._origins: dict[tuple[str, int | None], Spans] = {}

        def inherited(key: str) -> tuple[Spec, str]:
            own, parent = getattr(shots, key), getattr(task, key)
            return (parent, key) if isinstance(own, Unset) or own is None else (own, f"fewshot_config.{key}")

        self.text = text_field(task, task.doc_to_text, "doc_to_text", columns)
        self.target = target_field(task, task.doc_to_target, "doc_to_target", columns)
        choice = task.doc_to_choice
        self.choice = None if choice is None else choice_field(task, choice, "doc_to_choice", columns)
        named = None if task.release.makes_turns else ()  # before, a description was always a template
        description, prefix = task.description, task.gen_prefix
        self.description = FieldMapping(task, description, "description", "description", named) if description else None
        self.gen_prefix = None if prefix is None else FieldMapping(task, prefix, "gen prefix", "gen_prefix", columns)

        self.shot_text = text_field(task, *inherited("doc_to_text"), columns)
        self.shot_target = target_field(task, *inherited("doc_to_target"), columns)
        written = choice if isinstance(shots.doc_to_choice, Unset) else shots.doc_to_choice
        self.shot_choice = choice_field(task, *inherited("doc_to_choice"), columns) if written else None
        is_own = not isinstance(shots.gen_prefix, Unset)
        spec = shots.gen_prefix if is_own else task.gen_prefix
        key = "fewshot_config.gen_prefix" if is_own else "gen_prefix"
        self.shot_gen_prefix = FieldMapping(task, spec, "gen prefix", key, None) if spec else None

    def are_repeatable(self, num_shots: int) -> bool:
        """Return whether no function runs and nothing is drawn at random while docs are laid out."""
        used = [self.text, self.target, self.choice, self.description, self.gen_prefix]
        if num_shots > 0:
            used += [self.shot_text, self.shot_target, self.shot_choice, self.shot_gen_prefix]
        return all(each is None or each.is_repeatable for each in used)

    def origin(self, part: Part, key: str, shot: int | None) -> Origin:
        """Return the origin of constant text between fields."""
        return Origin(part, key, self.task.position(*key.split(".")), shot)

    def delimiter(self, part: Literal["target delimiter", "fewshot delimiter"], shot: int | None) -> Spans:
        """Return the text between the question and the answer of a shot, or after it."""
        key = part.replace(" ", "_")
        spans = self._origins.get((key, shot))
        if spans is None:
            own = getattr(self.task.fewshot, key)
            text = getattr(self.task, key) if isinstance(own, Unset) else own
            key_path = key if isinstance(own, Unset) else f"fewshot_config.{key}"
            if not isinstance(text, str):
                message = f"{key_path} of {self.task.name!r} must be text, not {text!r}"
                error = RenderError(message, position=self.task.position(*key_path.split(".")))
                raise error.naming(repr(self.task.name)) from TypeError(message)
            spans = (Span(text, self.origin(part, key_path, shot)),) if text else ()
            self._origins[key, shot] = spans
        return spans


def _may_return(function: object) -> bool:
    """Return whether the code of a function has a `return` with a value; another kind of callable may have one."""
    code = getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
    steps = list(dis.get_instructions(code)) if code is not None else []
    loaded = (before for before, step in pairwise(steps) if step.opname == "RETURN_VALUE")
    given = [*loaded, *(step for step in steps if step.opname == "RETURN_CONST")]  # of Python 3.12 and 3.13
    return code is None or any(each.opname not in ("LOAD_CONST", "RETURN_CONST") or each.argval for each in given)


def copy_docs(docs: Sequence[Doc]) -> list[Doc]:
    """Return deep copies that a user's function may change."""
    return [copy.deepcopy(dict(doc)) for doc in docs]


def text_or_none(source: FieldMapping | None, doc: Doc, place: Place) -> Value:
    """Return the text that a field gives for a doc, None where there is no field; raises RenderError."""
    if source is None:
        return Value(None)
    value = source(doc, place)
    if not value.value or isinstance(value.value, str):
        return value
    message = f"{source.key} {place}: expected text, got {value.value!r}"
    raise RenderError(message, position=source.position).naming(str(place)) from TypeError(message)
