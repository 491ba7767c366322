"""The prompts of task classes: hooks called, messages assembled and shown as eval-framework 0.15.4 does it.

Hooks are given copies of the docs. Shots are those of a real run with the seed 42 over the same rows: the sample split
is shuffled, and every doc draws in turn, also those before it that are not shown.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, Final, Literal

from pytest_promptfmt.core.docs import Doc, TaskDocs
from pytest_promptfmt.core.errors import PromptfmtError, RenderError
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.prompt import Instance, Message, Origin, Part, Place, Prompt, Request, Span, Spans, Turn
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.profiles.chat_prompt import join_system, prompt_of
from pytest_promptfmt.systems.eval_framework.class_docs import (
    ClassDocs,
    SampleDoc,
    as_class_docs,
    is_of,
    part,
    subject_of,
)
from pytest_promptfmt.systems.eval_framework.hooks import SEED, Constants, TaskClass, in_words, spelled

Role = Literal["system", "user", "assistant"]

_PARTS: Final[Mapping[str, Part]] = {
    "_get_instruction_text": "question",
    "_get_fewshot_target_text": "answer",
    "_get_cue_text": "gen prefix",
    "_get_initial_prompt_text": "description",
    "_get_system_prompt_text": "system instruction",
}
MOST_SAMPLES: Final = 1000
"""The largest number of samples of one doc."""
_ROLES: Final = ("system", "user", "assistant")
DEFAULT_FORMATTER: Final = "concat"
"""How a profile without a chat template or formatter shows messages; eval-framework's for base models."""


@dataclass(frozen=True, slots=True)
class PromptSample:
    """One scored prompt of a doc: its system text, its other messages, the gold and the candidates.

    `given` is the object that the class made, None where hooks were called for each part.
    """

    system: Spans
    messages: tuple[Message, ...]
    truth: Any
    candidates: tuple[str, ...] | None
    given: Any = None


class EvalClassAssembler:
    """Makes the instances of a task class with hooks, or of an object that yields samples."""

    is_repeatable: Final = False

    def __init__(self, task: Task, found: TaskClass, docs: TaskDocs, shots: int) -> None:
        self._task = task
        self._docs = docs
        self._found = found
        self._shots = shots

    @cached_property
    def _run(self) -> _Run:
        return _Run(self._found, as_class_docs(self._docs), self._shots)

    def layout(self, number: int, doc: Doc) -> tuple[PromptSample, ...]:
        """Return the samples of a doc; raises RenderError where a hook fails."""
        if isinstance(doc, SampleDoc):
            return (given_sample(doc.sample, self._found, number),)
        return self._run.samples(number)

    def instance(self, layout: tuple[PromptSample, ...], number: int, doc: Doc, profile: Profile) -> Instance:
        """Return the doc for a profile: one prompt for each sample, and the requests to the model."""
        prompts = tuple(self._prompt(sample, number, profile) for sample in layout)
        requests: list[Request] = []
        for index, (sample, prompt) in enumerate(zip(layout, prompts, strict=True)):
            own = None if isinstance(doc, SampleDoc) else SampleDoc(doc, sample)
            requests += self._requests(sample, prompt, index, len(requests), number, own)
        truths = [sample.truth for sample in layout]
        target = truths[0] if len(truths) == 1 else truths
        return Instance(index=number, doc=doc, prompts=prompts, requests=tuple(requests), target=target)

    def _prompt(self, sample: PromptSample, number: int, profile: Profile) -> Prompt:
        if profile.chat_template is None and profile.formatter is None:
            profile = replace(profile, formatter=DEFAULT_FORMATTER)
        system = join_system(profile.system_instruction, sample.system, self._task)
        return prompt_of(profile, system, _turns(sample.messages), where=str(Place(self._task.id, number)))

    def _requests(
        self, sample: PromptSample, prompt: Prompt, index: int, first: int, number: int, doc: Doc | None
    ) -> Iterator[Request]:
        if self._task.generates:
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
                f"_get_possible_completions {Place(self._task.id, number)} returns no candidates to score",
                position=self._found.line_of("_get_possible_completions"),
                hint="return a list of texts: RESPONSE_TYPE loglikelihoods needs candidates",
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
        self._shots = found.shots(shots)
        self._instance = found.make(shots)
        self._constants: Constants = found.constants(self._instance)
        own_random = getattr(self._instance, "rnd", None)
        self._random = own_random if isinstance(own_random, random.Random) else random.Random(SEED)
        if docs.random_state is not None:
            self._random.setstate(docs.random_state)
        self._rows = [copy.deepcopy(dict(row)) for row in docs.rows]
        self._pool: list[dict[str, Any]] = []
        self._made: dict[int, tuple[PromptSample, ...] | PromptfmtError] = {}
        self._visits = self._visit()

    def samples(self, number: int) -> tuple[PromptSample, ...]:
        """Return the samples of the doc with that number; raises RenderError."""
        for _ in () if number in self._made else self._visits:
            if number in self._made:
                break
        made = self._made.get(number) or RenderError(
            f"{Place(self._found.name, number)} has a subject that is not in SUBJECTS", position=self._found.position
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
        """Let a row that is not shown draw its shots, so that the next one finds the same random state."""
        own = self._found.own
        if self._found.draws or own & {"_create_samples", "_get_messages", "_get_example_messages"}:
            self._samples_of(number)
        else:
            self._draw(_Hooks(self._found, self._instance, {}, number), self._rows[number])

    # -- one doc -------------------------------------------------------------------------------------------------------

    def _samples_of(self, number: int) -> tuple[PromptSample, ...]:
        row = self._rows[number]
        hooks = _Hooks(self._found, self._instance, copy.deepcopy(row), number)
        if "_create_samples" in self._found.own:
            made = hooks.call("_create_samples", hooks.item, number, str(row["subject"]), reads=_listed)
            if not isinstance(made, Sequence) or not made or isinstance(made, str):
                raise hooks.refusal("_create_samples", "must return a list of samples", made)
            return tuple(hooks.sample("_create_samples", each) for each in made)
        if "_get_messages" in self._found.own:
            system, messages = hooks.messages("_get_messages")
        else:
            messages = self._opened(hooks, [*self._examples(hooks, row), *hooks.instruction()])
            system = hooks.text("_get_system_prompt_text")
        return (PromptSample(system, messages, *hooks.truth_and_candidates()),)

    def _opened(self, hooks: _Hooks, messages: list[Message]) -> tuple[Message, ...]:
        """Return the messages with the cue at their end and the initial prompt at their beginning."""
        cue = hooks.text("_get_cue_text")
        if cue:
            messages.append(Message("assistant", cue))
        opening = hooks.text("_get_initial_prompt_text")
        if opening:
            first = messages[0]
            if first.role != "user":
                raise hooks.refusal("_get_initial_prompt_text", "needs a user message at the beginning", first.role)
            gap = Span("\n\n", opening[0].origin)
            messages[0] = Message(first.role, (*opening, gap, *first.content), first.delimiter)
        return tuple(messages)

    def _examples(self, hooks: _Hooks, row: dict[str, Any]) -> Iterator[Message]:
        if "_get_example_messages" in self._found.own:
            yield from hooks.messages("_get_example_messages", ends=False)[1]
            return
        for shot, example in enumerate(self._draw(hooks, row)):
            example["subject"] = row["subject"]
            shown = replace(hooks, item=copy.deepcopy(example), shot=shot)
            yield from shown.instruction()
            yield Message("assistant", shown.text("_get_fewshot_target_text"), _gap(shot))

    def _draw(self, hooks: _Hooks, row: dict[str, Any]) -> Sequence[dict[str, Any]]:
        if self._shots <= 0:
            return ()
        if "_sample_fewshot_examples" in self._found.own:
            drawn = hooks.call("_sample_fewshot_examples", row)
            if not isinstance(drawn, Sequence) or not all(isinstance(each, dict) for each in drawn):
                raise hooks.refusal("_sample_fewshot_examples", "must return a list of rows", drawn)
            return drawn
        count = self._shots + self._docs.shares_split
        if count > len(self._pool):
            more = " (and one more doc is needed, in case the doc itself is drawn)" if self._docs.shares_split else ""
            raise RenderError(
                f"{self._found.name!r}, doc {hooks.number + 1}: num_fewshot is {self._shots}{more}, but the subject"
                f" {str(row['subject'])!r} has only {len(self._pool)} docs ({self._docs.fewshot_origin})",
                position=self._found.position,
                hint=f"lower num_fewshot, or add docs to the split {self._constants.fewshot_split!r}",
            )
        drawn = self._random.sample(self._pool, count)
        return [each for each in drawn if each != row][: self._shots] if self._docs.shares_split else drawn


# -- hooks and their defaults ------------------------------------------------------------------------------------------

_STYLED: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "_get_instruction_text": ("get_instruction_text", ("_get_raw_question", "_get_choices")),
    "_get_fewshot_target_text": ("get_fewshot_target_text", ("_get_choices", "_get_correct_index")),
    "_get_ground_truth": ("get_ground_truth", ("_get_choices", "_get_correct_index")),
    "_get_cue_text": ("get_cue_text", ()),
    "_get_possible_completions": ("get_possible_completions", ("_get_choices", "_get_correct_index")),
}
"""The method of a task style that replaces a hook, and the hooks whose values it is given."""


@dataclass(frozen=True, slots=True)
class _Hooks:
    """The hooks of a class, called for one doc or one of its shots, with what they give checked.

    Raises RenderError, at the line of the hook, for one that fails or gives something else.
    """

    found: TaskClass
    instance: Any
    item: dict[str, Any]
    number: int
    shot: int | None = None

    def refusal(self, hook: str, what: str, value: Any) -> RenderError:
        place = Place(self.found.name, self.number, self.shot)
        return RenderError(f"{hook} {place} {what}, not {in_words(value)}", position=self.found.line_of(hook))

    def call(self, hook: str, *arguments: Any, reads: Callable[[Any], Any] = lambda made: made) -> Any:
        """Return what a hook gives for the doc, as `reads` makes it of that under the hook's own time limit."""
        function = getattr(self.instance, spelled(self.found.found, hook), None)
        if function is None:
            raise self.refusal(hook, "is missing, but the task style needs this hook", None)
        where = f", doc {self.number + 1}" + (f", shot {self.shot + 1}" if self.shot is not None else "")
        arguments = arguments or (self.item,)
        return self.found.call(lambda *given: reads(function(*given)), *arguments, hook=hook, where=where)

    def value(self, hook: str) -> Any:
        """Return what a hook gives, or the task style in its place, or its default."""
        if hook in self.found.own:
            return self.call(hook)
        styler = self.found.styler
        if styler is not None and hook in _STYLED:
            arguments = [self.call(name) for name in _STYLED[hook][1]]
            method = getattr(styler, _STYLED[hook][0])
            return self.found.call(method, *arguments, hook="TASK_STYLER", where=f", doc {self.number + 1}")
        if hook == "_get_fewshot_target_text":
            truth = self.value("_get_ground_truth")
            if not isinstance(truth, str):
                raise self.refusal(hook, "is missing, so _get_ground_truth must return one text", truth)
            return truth
        return None

    def text(self, hook: str) -> Spans:
        """Return the text that a hook gives as a span, nothing for an empty one."""
        value = self.value(hook)
        if value is None and hook in ("_get_system_prompt_text", "_get_initial_prompt_text", "_get_cue_text"):
            return ()
        if not isinstance(value, str):
            raise self.refusal(hook, "must return text", value)
        return _span(value, Origin(_PARTS[hook], hook, self.found.line_of(hook), self.shot))

    def instruction(self) -> tuple[Message, ...]:
        """Return the question of the doc."""
        if "_get_instruction_messages" in self.found.own:
            return self.messages("_get_instruction_messages")[1]
        return (Message("user", self.text("_get_instruction_text")),)

    def truth_and_candidates(self) -> tuple[Any, tuple[str, ...] | None]:
        """Return the ground truth, and the candidates; None for a class without."""
        truth = self._truth("_get_ground_truth", self.value("_get_ground_truth"))
        return truth, self._candidates("_get_possible_completions", self.value("_get_possible_completions"))

    def sample(self, hook: str, sample: Any) -> PromptSample:
        """Return a sample that a hook gave: an object or mapping with messages, ground truth and candidates."""
        system, messages = self._read_messages(hook, part(sample, "messages"), ends=True)
        truth = self._truth(hook, part(sample, "ground_truth"), "must have a ground_truth that is")
        completions = part(sample, "possible_completions")
        candidates = self._candidates(hook, completions, "must have possible_completions that are")
        return PromptSample(system, messages, truth, candidates, given=sample)

    def messages(self, hook: str, *, ends: bool = True) -> tuple[Spans, tuple[Message, ...]]:
        """Return the system text and the messages that a hook gives.

        With `ends` the last message of the user is the question; the pairs before it are shots.
        """
        return self._read_messages(hook, self.call(hook), ends=ends)

    def _truth(self, hook: str, given: Any, what: str = "must return") -> Any:
        if given is None or isinstance(given, str):
            return given
        return list(self._texts(hook, given, f"{what} text, a list of texts or None"))

    def _candidates(self, hook: str, given: Any, what: str = "must return") -> tuple[str, ...] | None:
        return None if given is None else tuple(self._texts(hook, given, f"{what} a list of texts or None"))

    def _texts(self, hook: str, given: Any, what: str) -> Sequence[str]:
        if isinstance(given, list | tuple) and all(isinstance(each, str) for each in given):
            return given
        raise self.refusal(hook, what, given)

    def _read_messages(self, hook: str, given: Any, *, ends: bool) -> tuple[Spans, tuple[Message, ...]]:
        if isinstance(given, str) or not isinstance(given, Sequence) or (ends and not given):
            raise self.refusal(hook, "must return a list of messages", given)
        read: list[tuple[Role, str]] = []
        for each in given:
            role, content = part(each, "role"), part(each, "content")
            name = getattr(role, "value", role)
            if name not in _ROLES or not isinstance(content, str):
                what = f"must return messages with a role ({', '.join(_ROLES)}) and text"
                raise self.refusal(hook, what, {"role": name, "content": content})
            read.append((name, content))
        position = self.found.line_of(hook)
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
            at = self.shot if is_own or self.shot is not None else max(pair, 0)
            part_of: Part = "question" if role == "user" else "gen prefix" if is_own else "answer"
            gap = _gap(at) if role == "assistant" and not is_own else ()
            messages.append(Message(role, _span(content, Origin(part_of, hook, position, at)), gap))
        return system, tuple(messages)


def given_sample(sample: Any, found: TaskClass, number: int) -> PromptSample:
    """Return what `iterate_samples` yielded as a sample; raises RenderError for anything that is not one."""
    return _Hooks(found, None, {}, number).sample("iterate_samples", sample)


def _listed(made: Any) -> Any:
    """Return what a generator gives as a list; anything else as it is."""
    return list(islice(made, MOST_SAMPLES)) if isinstance(made, Iterator) else made


def _span(text: str, origin: Origin) -> Spans:
    return (Span(text, origin),) if text else ()


def _gap(shot: int | None) -> Spans:
    return (Span("\n\n", Origin("fewshot delimiter", shot=shot)),)


def _turns(messages: Sequence[Message]) -> tuple[Turn, ...]:
    """Return the messages as turns, the last of them with the question and the beginning of its answer."""
    users = [index for index, message in enumerate(messages) if message.role == "user"]
    question = users[-1] if users else 0
    return (*(Turn.of((message,)) for message in messages[:question]), Turn.of(tuple(messages[question:])))
