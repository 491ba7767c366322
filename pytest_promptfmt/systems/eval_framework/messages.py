"""The prompts of Python task classes: hooks called, messages assembled and shown as eval-framework 0.15.4 does it.

Hooks are given copies of the docs. Demonstrations are those of a real run with the seed 42 over the same rows: the
sample split is shuffled, and every doc draws in turn, also those before it that are not shown.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal

from pytest_promptfmt.chat.chat_prompt import chat_prompt, join_system
from pytest_promptfmt.chat.formatters import find_formatter, format_messages
from pytest_promptfmt.core.errors import PromptfmtError, RenderError
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.prompt import Instance, Message, Origin, Part, Place, Prompt, Request, Span, Turn
from pytest_promptfmt.core.task import Doc, Task, TaskDocs
from pytest_promptfmt.systems.eval_framework.hooks import SEED, Constants, TaskClass, in_words, spelled
from pytest_promptfmt.systems.eval_framework.rows import (
    ClassDocs,
    SampleDoc,
    SampleDocs,
    as_class_docs,
    is_of,
    part,
    subject_of,
)

Spans = tuple[Span, ...]
Role = Literal["system", "user", "assistant"]

_PARTS: Final[Mapping[str, Part]] = {
    "_get_instruction_text": "question",
    "_get_fewshot_target_text": "answer",
    "_get_cue_text": "gen prefix",
    "_get_initial_prompt_text": "description",
    "_get_system_prompt_text": "system instruction",
}
MOST_SAMPLES: Final = 1000
"""Samples of one doc that are looked at."""
_ROLES: Final = ("system", "user", "assistant")
_DEFAULT_FORMATTER: Final = "concat"
"""How a profile without a chat template or formatter of its own shows messages; eval-framework's for base models."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One scored prompt of a doc: its messages without the system's, the system text, the gold and the candidates.

    `given` is the object that the class made it of, None where it was put together from hooks.
    """

    system: Spans
    messages: tuple[Message, ...]
    truth: Any
    candidates: tuple[str, ...] | None
    given: Any = None


class ClassAssembler:
    """Makes the instances of a task class with hooks, or of an object that yields samples."""

    is_repeatable: Final = False

    def __init__(self, task: Task, found: TaskClass, docs: TaskDocs, shots: int) -> None:
        self._task = task
        self._docs = docs
        self._found = found
        self._run = None if isinstance(docs, SampleDocs) else _Run(found, as_class_docs(docs), shots)

    def layout(self, number: int, _doc: Doc) -> tuple[Sample, ...]:
        """Return the samples of a doc; raises RenderError where a hook fails."""
        if isinstance(self._docs, SampleDocs):
            return (given_sample(self._docs.samples[number], self._found, number),)
        assert self._run is not None
        return self._run.samples(number)

    def instance(self, layout: tuple[Sample, ...], number: int, doc: Doc, profile: Profile) -> Instance:
        """Return the doc for a profile: one prompt for each sample, and what is asked of the model."""
        prompts = tuple(self._prompt(sample, number, profile) for sample in layout)
        requests: list[Request] = []
        for index, (sample, prompt) in enumerate(zip(layout, prompts, strict=True)):
            own = None if isinstance(doc, SampleDoc) else SampleDoc(doc, sample)
            requests += self._requests(sample, prompt, index, len(requests), number, own)
        truths = [sample.truth for sample in layout]
        target = truths[0] if len(truths) == 1 else truths
        return Instance(index=number, doc=doc, prompts=prompts, requests=tuple(requests), target=target)

    def _prompt(self, sample: Sample, number: int, profile: Profile) -> Prompt:
        where = str(Place(self._task.id, number))
        system = join_system(profile.system_instruction, sample.system, self._task)
        opening = (Message("system", system),) if system else ()
        if profile.chat_template is not None:
            turns = _turns(sample.messages)
            return chat_prompt(profile, Turn.of(opening) if opening else None, turns, where=where)
        messages = (*opening, *sample.messages)
        formatter = find_formatter(profile.formatter or _DEFAULT_FORMATTER)
        return Prompt(format_messages(formatter, messages, where=where), messages)

    def _requests(
        self, sample: Sample, prompt: Prompt, index: int, first: int, number: int, doc: Doc | None
    ) -> Iterator[Request]:
        if self._task.output_type == "generate_until":
            yield Request(
                kind="generate_until",
                index=first,
                context=prompt.text,
                generation_kwargs=dict(self._task.generation_kwargs or {}),
                prompt=index,
                doc=doc,
            )
            return
        if not sample.candidates:
            raise RenderError(
                f"_get_possible_completions {Place(self._task.id, number)} gives no candidates to score",
                position=self._found.line_of("_get_possible_completions"),
                hint="a task of RESPONSE_TYPE loglikelihoods needs a list of texts",
            )
        golds = sample.truth if isinstance(sample.truth, list) else [sample.truth]
        for offset, candidate in enumerate(sample.candidates):
            yield Request(
                kind="loglikelihood",
                index=first + offset,
                context=prompt.text,
                continuation=candidate,
                prompt=index,
                gold=candidate in golds,
                doc=doc,
            )


class _Run:
    """One object of the class on its way through the rows, in eval-framework's order."""

    def __init__(self, found: TaskClass, docs: ClassDocs, shots: int) -> None:
        self._found = found
        self._docs = docs
        self._shots = shots
        self._instance = found.make(shots)
        self._constants: Constants = found.constants(self._instance)
        own_random = getattr(self._instance, "rnd", None)
        self._random = own_random if isinstance(own_random, random.Random) else random.Random(SEED)
        self._rows = [copy.deepcopy(dict(row)) for row in docs.rows]
        self._pool: list[dict[str, Any]] = []
        self._made: dict[int, tuple[Sample, ...] | PromptfmtError] = {}
        self._visits = self._visit()

    def samples(self, number: int) -> tuple[Sample, ...]:
        """Return the samples of the doc with that number; raises RenderError."""
        for _ in () if number in self._made else self._visits:
            if number in self._made:
                break
        made = self._made.get(number) or RenderError(
            f"{Place(self._found.name, number)} belongs to none of SUBJECTS", position=self._found.position
        )
        if isinstance(made, PromptfmtError):
            raise made
        return made

    def _visit(self) -> Iterator[None]:
        """Go through the rows in order, keeping the samples of those that are shown."""
        shown = len(self._docs.evaluated)
        for subject in self._constants.subjects:
            order = [n for n, row in enumerate(self._docs.rows) if subject_of(row, self._constants.subjects) == subject]
            if not order:
                continue
            if not self._docs.is_loaded:
                self._random.shuffle(order)
            self._put_dataset([self._rows[number] for number in order], subject)
            for number in order:
                self._rows[number]["subject"] = subject
                try:
                    if number < shown:
                        self._made[number] = self._samples_of(number)
                    elif self._shots > 0 or self._found.draws:
                        self._pass_by(number)
                except PromptfmtError as error:
                    if number < shown:
                        self._made[number] = error
                yield

    def _put_dataset(self, rows: list[dict[str, Any]], subject: Any) -> None:
        constants = self._constants
        if self._docs.shares_split:
            self._pool = rows
        else:
            mine = (row for row in self._docs.fewshot if is_of(row, subject, constants.subjects))
            self._pool = [copy.deepcopy(dict(row)) for row in mine]
        try:
            self._instance.dataset = {constants.fewshot_split: self._pool, constants.sample_split: rows}
        except AttributeError:
            return  # an object with slots, whose hooks cannot look at the data set

    def _pass_by(self, number: int) -> None:
        """Let a row that is not shown draw what it draws, so that the next one finds the same random state."""
        own = self._found.own
        if self._found.draws or own & {"_create_samples", "_get_messages", "_get_example_messages"}:
            self._samples_of(number)
        else:
            self._draw(self._rows[number], number)

    # -- one doc ---------------------------------------------------------------------------------------------------

    def _samples_of(self, number: int) -> tuple[Sample, ...]:
        row = self._rows[number]
        item = copy.deepcopy(row)
        if "_create_samples" in self._found.own:
            made = self._call("_create_samples", number, None, item, number, str(row["subject"]), reads=_listed)
            if not isinstance(made, Sequence) or not made or isinstance(made, str):
                raise self._refusal("_create_samples", number, "must give a list of samples", made)
            return tuple(given_sample(each, self._found, number) for each in made)
        system, messages = self._messages(item, row, number)
        truth = self._truth(item, number, None)
        return (Sample(system, messages, truth, self._candidates(item, number)),)

    def _messages(self, item: dict[str, Any], row: dict[str, Any], number: int) -> tuple[Spans, tuple[Message, ...]]:
        if "_get_messages" in self._found.own:
            made = self._call("_get_messages", number, None, item)
            return _given_messages(made, self._found, "_get_messages", number)
        messages = [*self._examples(item, row, number), *self._instruction(item, number, None)]
        cue = self._text("_get_cue_text", item, number, None)
        if cue:
            messages.append(Message("assistant", cue))
        opening = self._text("_get_initial_prompt_text", item, number, None)
        if opening:
            first = messages[0]
            if first.role != "user":
                raise self._refusal("_get_initial_prompt_text", number, "needs a first message of the user", first.role)
            gap = Span("\n\n", opening[0].origin)
            messages[0] = Message(first.role, (*opening, gap, *first.content), first.delimiter)
        return self._text("_get_system_prompt_text", item, number, None), tuple(messages)

    def _examples(self, item: dict[str, Any], row: dict[str, Any], number: int) -> Iterator[Message]:
        if "_get_example_messages" in self._found.own:
            made = self._call("_get_example_messages", number, None, item)
            yield from _given_messages(made, self._found, "_get_example_messages", number, ends=False)[1]
            return
        for shot, example in enumerate(self._draw(row, number)):
            example["subject"] = row["subject"]
            shown = copy.deepcopy(example)
            yield from self._instruction(shown, number, shot)
            answer = self._text("_get_fewshot_target_text", shown, number, shot)
            gap = Span("\n\n", Origin("fewshot delimiter", shot=shot))
            yield Message("assistant", answer, (gap,))

    def _draw(self, row: dict[str, Any], number: int) -> Sequence[dict[str, Any]]:
        if self._shots <= 0:
            return ()
        if "_sample_fewshot_examples" in self._found.own:
            drawn = self._call("_sample_fewshot_examples", number, None, row)
            if not isinstance(drawn, Sequence) or not all(isinstance(each, dict) for each in drawn):
                raise self._refusal("_sample_fewshot_examples", number, "must give a list of rows", drawn)
            return drawn
        count = self._shots + self._docs.shares_split
        if count > len(self._pool):
            more = ", and one more to leave the doc itself out" if self._docs.shares_split else ""
            raise RenderError(
                f"{self._shots} demonstrations are asked for{more}; there are {len(self._pool)} of the subject"
                f" {str(row['subject'])!r} to draw from ({self._docs.fewshot_origin}),"
                f" {Place(self._found.name, number)}",
                position=self._found.position,
                hint=f"lower num_fewshot or give more docs of {self._constants.fewshot_split!r}",
            )
        drawn = self._random.sample(self._pool, count)
        return [each for each in drawn if each != row][: self._shots] if self._docs.shares_split else drawn

    def _instruction(self, item: dict[str, Any], number: int, shot: int | None) -> tuple[Message, ...]:
        if "_get_instruction_messages" in self._found.own:
            made = self._call("_get_instruction_messages", number, shot, item)
            return _given_messages(made, self._found, "_get_instruction_messages", number, shot=shot)[1]
        return (Message("user", self._text("_get_instruction_text", item, number, shot)),)

    # -- hooks and their defaults ----------------------------------------------------------------------------------

    def _text(self, hook: str, item: dict[str, Any], number: int, shot: int | None) -> Spans:
        """Return the text that a hook gives as a span, nothing for an empty one."""
        value = self._value(hook, item, number, shot)
        if value is None and hook in ("_get_system_prompt_text", "_get_initial_prompt_text", "_get_cue_text"):
            return ()
        if not isinstance(value, str):
            raise self._refusal(hook, number, "must give a text", value, shot)
        origin = Origin(_PARTS[hook], hook, self._found.line_of(hook), shot)
        return (Span(value, origin),) if value else ()

    def _value(self, hook: str, item: dict[str, Any], number: int, shot: int | None) -> Any:
        if hook in self._found.own:
            return self._call(hook, number, shot, item)
        styler = self._found.styler
        if styler is not None and hook in _STYLED:
            arguments = [self._call(name, number, shot, item) for name in _STYLED[hook][1]]
            method = getattr(styler, _STYLED[hook][0])
            return self._found.call(method, *arguments, hook="TASK_STYLER", where=f", doc {number + 1}")
        if hook == "_get_fewshot_target_text":
            truth = self._value("_get_ground_truth", item, number, shot)
            if not isinstance(truth, str):
                raise self._refusal(hook, number, "is not written, and the ground truth is no single text", truth, shot)
            return truth
        return None

    def _truth(self, item: dict[str, Any], number: int, shot: int | None) -> Any:
        truth = self._value("_get_ground_truth", item, number, shot)
        return _checked_truth(truth, lambda what: self._refusal("_get_ground_truth", number, what, truth))

    def _candidates(self, item: dict[str, Any], number: int) -> tuple[str, ...] | None:
        given = self._value("_get_possible_completions", item, number, None)
        return _checked_candidates(given, lambda what: self._refusal("_get_possible_completions", number, what, given))

    def _call(
        self,
        hook: str,
        number: int,
        shot: int | None,
        *arguments: Any,
        reads: Callable[[Any], Any] = lambda made: made,
    ) -> Any:
        """Return what a hook gives, as `reads` makes it of that under the hook's own time limit."""
        function = getattr(self._instance, spelled(self._found.found, hook), None)
        if function is None:
            raise self._refusal(hook, number, "is missing, and the task style needs it", None)
        where = f", doc {number + 1}" + (f", shot {shot + 1}" if shot is not None else "")
        return self._found.call(lambda *given: reads(function(*given)), *arguments, hook=hook, where=where)

    def _refusal(self, hook: str, number: int, what: str, value: Any, shot: int | None = None) -> RenderError:
        place = Place(self._found.name, number, shot)
        return RenderError(f"{hook} {place} {what}, not {in_words(value)}", position=self._found.line_of(hook))


def _listed(made: Any) -> Any:
    """Return what a generator gives as a list; anything else as it is."""
    return list(islice(made, MOST_SAMPLES)) if isinstance(made, Iterator) else made


_STYLED: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "_get_instruction_text": ("get_instruction_text", ("_get_raw_question", "_get_choices")),
    "_get_fewshot_target_text": ("get_fewshot_target_text", ("_get_choices", "_get_correct_index")),
    "_get_ground_truth": ("get_ground_truth", ("_get_choices", "_get_correct_index")),
    "_get_cue_text": ("get_cue_text", ()),
    "_get_possible_completions": ("get_possible_completions", ("_get_choices", "_get_correct_index")),
}
"""What a task style gives in place of a hook, and the hooks whose values it is given."""


# -- what classes give as objects ------------------------------------------------------------------------------------


def given_sample(sample: Any, found: TaskClass, number: int) -> Sample:
    """Return a sample that the class made itself: an object or mapping with messages, ground truth and candidates.

    Raises RenderError where it is no such thing.
    """
    hook = "_create_samples" if "_create_samples" in found.own else "iterate_samples"

    def refusal(what: str) -> RenderError:
        return RenderError(f"{hook} {Place(found.name, number)}: {what}", position=found.line_of(hook))

    system, messages = _given_messages(part(sample, "messages"), found, hook, number)
    truth = part(sample, "ground_truth")
    candidates = part(sample, "possible_completions")
    return Sample(
        system,
        messages,
        _checked_truth(truth, lambda what: refusal(f"ground_truth {what}, not {in_words(truth)}")),
        _checked_candidates(
            candidates, lambda what: refusal(f"possible_completions {what}, not {in_words(candidates)}")
        ),
        given=sample,
    )


def _given_messages(
    given: Any, found: TaskClass, hook: str, number: int, *, shot: int | None = None, ends: bool = True
) -> tuple[Spans, tuple[Message, ...]]:
    """Return the system text and the messages of a list of objects with role and content.

    With `ends` the last message of the user is the question; the pairs before it are demonstrations.
    """
    position = found.line_of(hook)

    def refusal(what: str) -> RenderError:
        return RenderError(f"{hook} {Place(found.name, number, shot)} {what}", position=position)

    if isinstance(given, str) or not isinstance(given, Sequence) or (ends and not given):
        raise refusal(f"must give a list of messages, not {in_words(given)}")
    read: list[tuple[Role, str]] = []
    for each in given:
        role, content = part(each, "role"), part(each, "content")
        name = getattr(role, "value", role)
        if name not in _ROLES or not isinstance(content, str):
            raise refusal(f"has a message that is none: role {in_words(name)}, content {in_words(content)}")
        read.append((name, content))
    system: Spans = ()
    if read and read[0][0] == "system":
        system = _span(read.pop(0)[1], Origin("system instruction", hook, position))
    users = [index for index, (role, _) in enumerate(read) if role == "user"]
    question = users[-1] if users and ends else len(read)
    messages = []
    pair = -1
    for index, (role, content) in enumerate(read):
        is_own = index >= question
        pair += role == "user" and not is_own
        at = shot if is_own or shot is not None else max(pair, 0)
        part_of: Part = "question" if role == "user" else "gen prefix" if is_own else "answer"
        spans = _span(content, Origin(part_of, hook, position, at))
        gap = (Span("\n\n", Origin("fewshot delimiter", shot=at)),) if role == "assistant" and not is_own else ()
        messages.append(Message(role, spans, gap))
    return system, tuple(messages)


def _span(text: str, origin: Origin) -> Spans:
    return (Span(text, origin),) if text else ()


def _checked_truth(truth: Any, refusal: Any) -> Any:
    if truth is None or isinstance(truth, str):
        return truth
    if isinstance(truth, list | tuple) and all(isinstance(each, str) for each in truth):
        return list(truth)
    raise refusal("must give a text, a list of texts or None")


def _checked_candidates(given: Any, refusal: Any) -> tuple[str, ...] | None:
    if given is None:
        return None
    if isinstance(given, list | tuple) and all(isinstance(each, str) for each in given):
        return tuple(given)
    raise refusal("must give a list of texts or None")


def _turns(messages: Sequence[Message]) -> tuple[Turn, ...]:
    """Return the messages as turns, the last of them with the question and what the answer begins with."""
    users = [index for index, message in enumerate(messages) if message.role == "user"]
    question = users[-1] if users else 0
    return (*(Turn.of((message,)) for message in messages[:question]), Turn.of(tuple(messages[question:])))
