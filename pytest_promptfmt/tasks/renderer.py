"""From tasks and docs to prompts and requests, exactly as lm-eval and transformers 5.23 make them.

The release of lm-eval is that of the task.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from pytest_promptfmt.core.docs import Doc, TaskDocs
from pytest_promptfmt.core.errors import PromptfmtError, RenderError, kept
from pytest_promptfmt.core.profile import PLAIN, Profile
from pytest_promptfmt.core.prompt import Instance, Origin, Place, Prompt, Request, join
from pytest_promptfmt.core.randomness import OwnRandomness
from pytest_promptfmt.core.task import Assembler, OutputType, Task
from pytest_promptfmt.profiles.chat_prompt import join_system, prompt_of, prompt_of_input, prompt_of_messages
from pytest_promptfmt.tasks.harness import harness_of
from pytest_promptfmt.tasks.rendering.context import ContextBuilder, DocParts, EarlyContextBuilder
from pytest_promptfmt.tasks.rendering.media import leading_media, media_notes, own_messages
from pytest_promptfmt.tasks.rendering.sampling import drawable


def render_task(
    task: Task, docs: TaskDocs, profile: Profile = PLAIN, *, num_fewshot: int | None = None
) -> Iterator[Instance]:
    """Yield the rendered instance of every doc, in order, for one profile.

    `num_fewshot` wins over the task's own number, unless that is 0 (lm-eval 0.4.13). Raises RenderError,
    LimitExceededError or CodeNotAllowedError at the first doc that fails; what was yielded before is good.
    """
    return TaskRenderer(task, docs, num_fewshot=num_fewshot, keep=False).instances(profile)


class TaskRenderer:
    """Renders the docs of one task for any number of profiles; what profiles share is made once.

    The shots are drawn once, in the order of the docs, and are the same for every profile. Code of the task that draws
    at random runs again for each, as in a run of lm-eval for it. With `keep=False` nothing is cached, and only one
    profile can be rendered.
    """

    def __init__(self, task: Task, docs: TaskDocs, *, num_fewshot: int | None = None, keep: bool = True) -> None:
        self.task = task
        self._docs = docs
        self._num_fewshot = num_fewshot
        self._keep = keep
        self._start_over()

    def instances(self, profile: Profile = PLAIN) -> Iterator[Instance]:
        """Yield the instance of every doc, in order; raises as `render_task`."""
        if self._layouts and not self._assembler().is_repeatable and self._random.has_drawn:
            self._start_over()
        assembler = self._assembler()
        for number, doc in enumerate(self._docs.evaluated):
            layout = kept(self._layouts if self._keep else {}, number, partial(self._layout, assembler, number))
            with self._drawing(assembler):
                instance = assembler.instance(layout, number, doc, profile)
            yield instance

    def _drawing(self, assembler: Assembler) -> AbstractContextManager[None]:
        """Return the block in which code of the task draws at random what it draws in a run of lm-eval."""
        return nullcontext() if assembler.is_repeatable else self._random.used()

    def _start_over(self) -> None:
        self._layouts: dict[int, Any] = {}
        self._made: dict[str, Any] = {}
        self._random = OwnRandomness(self.task)

    def _assembler(self) -> Assembler:
        return kept(self._made, "assembler", self._new_assembler)

    def _new_assembler(self) -> Assembler:
        with self._random.used():
            made = self.task.assembly.assembler(self.task, self._docs, self._num_fewshot)
        if not made.is_repeatable:  # else nothing draws from now on
            if self.task.system == "lm-eval":
                self._random.skip(self.task.release.numbers_drawn)
            self._random = OwnRandomness(self.task, self._docs.random_states or self._random.states)
        return made

    def _layout(self, assembler: Assembler, number: int) -> Any:
        try:
            with self._drawing(assembler):
                return assembler.layout(number, self._docs.evaluated[number])
        except PromptfmtError:
            raise
        except BaseException:
            # Interrupted half-way: draws cannot be undone, so the next profile starts from the beginning.
            self._start_over()
            raise


def renderer_with_shots(task: Task, docs: TaskDocs, num_fewshot: int | None) -> tuple[TaskRenderer, int]:
    """Return a renderer and how many shots it draws: fewer than requested where files have too few docs.

    Raises as `TaskRenderer`.
    """
    asked = task.shots(num_fewshot)
    drawn = drawable(task, docs, asked)
    if drawn < asked:
        return TaskRenderer(replace(task, num_fewshot=drawn), docs, num_fewshot=drawn), drawn
    return TaskRenderer(task, docs, num_fewshot=num_fewshot), drawn


# -- lm-eval's way: prompts, and requests by output type ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Laid:
    """One doc, laid out and rendered for one profile."""

    layout: DocParts
    number: int
    prompts: Sequence[Prompt]
    is_chat: bool


class LmEvalAssembler:
    """Tasks as lm-eval puts them together: field mappings, few-shot delimiters, target delimiters.

    Raises RenderError on construction for a task that lm-eval refuses by its first doc or its arguments.
    """

    def __init__(self, task: Task, docs: TaskDocs, num_fewshot: int | None) -> None:
        _require_known_keys(task)
        self._task, self._docs = task, docs
        builder = ContextBuilder if task.release.makes_turns else EarlyContextBuilder
        self._context = builder(task, docs, num_fewshot)
        self.is_repeatable = self._context.is_repeatable
        self._generation_kwargs = generation_arguments(task)
        self._has_images = bool(task.config.get("doc_to_image"))

    def layout(self, number: int, doc: Doc) -> DocParts:
        """Return description, shots and question of a doc."""
        return self._context.layout(number, doc)

    def instance(self, layout: DocParts, number: int, doc: Doc, profile: Profile) -> Instance:
        """Return the doc for a profile: one prompt for each question of its layout, and its requests."""
        release = self._task.release
        system = join_system(profile.system_instruction, layout.description, self._task)
        is_chat = profile.joins_messages
        where = str(Place(self._task.id, number)) if is_chat else ""
        media = leading_media(self._task, self._docs, doc) if is_chat else ()
        makes_own = profile.chat_template is not None and self._task.generates
        messages = own_messages(self._task, self._docs, doc) if makes_own else ()
        shots = layout.shots
        if makes_own and release.chats_question:
            system, shots = (), ()
        elif layout.joined_shots is not None and is_chat and not profile.fewshot_as_turns:
            shots = layout.joined_shots
        if messages:  # of lmms-eval, in place of description, shots and question
            origin = Origin("question", "doc_to_messages", self._task.position("doc_to_messages"))
            made = [prompt_of_messages(profile, messages, origin, where=where)]
        elif self._context.has_several_inputs and profile.chat_template is not None and not release.makes_turns:
            made = [prompt_of_input(profile, system, shots, each, release, where=where) for each in layout.questions]
        else:
            made = [
                prompt_of(profile, system, (*shots, question), where=where, has_images=self._has_images, media=media)
                for question in layout.questions
            ]
        prompts = tuple(made)
        requests = _REQUESTS[self._task.output_type](self, _Laid(layout, number, prompts, is_chat))
        text = "".join([join(system), *(turn.text for turn in (*shots, layout.questions[0]))])
        notes = media_notes(self._task, self._docs, doc, text)
        return Instance(index=number, doc=doc, prompts=prompts, requests=requests, target=layout.target, notes=notes)

    def _likelihood(self, laid: _Laid) -> tuple[Request, ...]:
        target, context = self._context.target_of(laid.layout, laid.number), laid.prompts[0].text
        return (Request(kind="loglikelihood", index=0, context=context, continuation=target, prompt=0, gold=True),)

    def _rolling(self, laid: _Laid) -> tuple[Request, ...]:
        target = self._context.target_of(laid.layout, laid.number)
        return (Request(kind="loglikelihood_rolling", index=0, continuation=target),)

    def _generation(self, laid: _Laid) -> tuple[Request, ...]:
        arguments, context = copy.deepcopy(self._generation_kwargs), laid.prompts[0].text
        return (Request(kind="generate_until", index=0, context=context, generation_kwargs=arguments, prompt=0),)

    def _choices(self, laid: _Laid) -> tuple[Request, ...]:
        choices = self._context.choices_of(laid.layout, laid.number)
        delimiter = _chat_delimiter(self._task) if laid.is_chat else self._task.target_delimiter
        if self._context.has_several_inputs:
            continuation = f"{delimiter}{self._context.target_of(laid.layout, laid.number)}"
            asked = [(at, prompt.text, continuation, at == laid.layout.text) for at, prompt in enumerate(laid.prompts)]
        else:
            text, gold = laid.prompts[0].text, gold_indices(laid.layout.target, choices)
            try:
                asked = [(0, text, f"{delimiter}{choice}", at in gold) for at, choice in enumerate(choices)]
            except TypeError as error:
                message = f"doc_to_choice of {self._task.id!r}, doc {laid.number + 1}: expected a list, got {choices!r}"
                raise self._task.error(RenderError, message, "doc_to_choice") from error
        requests = [
            Request(kind="loglikelihood", index=at, context=context, continuation=text, prompt=prompt, gold=gold)
            for at, (prompt, context, text, gold) in enumerate(asked)
        ]
        metrics = (each.get("metric") if isinstance(each, Mapping) else each for each in self._task.metric_list or ())
        if "acc_mutual_info" in metrics:
            before = delimiter if self._task.release.delimits_unconditional else ""
            requests += [
                Request(kind="loglikelihood", index=at, context="", continuation=f"{before}{choice}")
                for at, choice in enumerate(choices, start=len(requests))
            ]
        return tuple(requests)


_REQUESTS: Final[Mapping[OutputType, Callable[[LmEvalAssembler, _Laid], tuple[Request, ...]]]] = {
    "loglikelihood": LmEvalAssembler._likelihood,
    "multiple_choice": LmEvalAssembler._choices,
    "loglikelihood_rolling": LmEvalAssembler._rolling,
    "generate_until": LmEvalAssembler._generation,
    "other": lambda _assembler, _laid: (),
    "none": lambda _assembler, _laid: (),
}


def _require_known_keys(task: Task) -> None:
    """Raise RenderError for a key that the followed release refuses; a fork of it may have the key."""
    unknown = task.release.unknown_keys.intersection(() if task.assembly.is_class else task.config)
    harness = harness_of(task.path.parent.resolve()) if unknown and task.path is not None else None
    if harness is not None and harness.followed_release == task.release.version:
        unknown -= harness.task_keys or unknown  # none are found in a fork whose `TaskConfig` is elsewhere
    for key in sorted(unknown):
        raise task.error(RenderError, f"lm-eval {task.release.version} does not know the key {key!r}", key)


def generation_arguments(task: Task) -> Mapping[str, Any]:
    """Return the generation arguments with lm-eval's defaults filled in; empty for other output types.

    Without `until` generation stops at the few-shot delimiter. Raises RenderError for a temperature that is no
    number.
    """
    if not task.generates:
        return {}
    if task.generation_kwargs is None:
        return {**dict(task.release.generation), "until": [task.fewshot_delimiter]}
    arguments = dict(task.generation_kwargs)
    if "temperature" in arguments:
        try:
            arguments["temperature"] = float(arguments["temperature"])
        except (TypeError, ValueError) as error:
            what = f"temperature must be a number, not {arguments['temperature']!r}"
            message = f"generation_kwargs of {task.name!r}: {what}"
            refusal = task.error(RenderError, message, "generation_kwargs", "temperature")
            raise refusal.naming(repr(task.name)) from error
    arguments.setdefault("until", [task.fewshot_delimiter])
    return arguments


def _chat_delimiter(task: Task) -> str:
    written, rule = task.gen_prefix, task.release.chat_delimiter
    # lm-eval checks the gen prefix as written, not as rendered.
    follows_prefix = isinstance(written, str) and written != "" and not written[-1].isspace()
    return task.target_delimiter if rule == "kept" or (rule == "with gen_prefix" and follows_prefix) else ""


def gold_indices(target: Any, choices: Any) -> tuple[int, ...]:
    """Return the indices of the right choices: the target itself, or the position of its text; none outside."""
    golds = target if isinstance(target, list) else [target]
    found = []
    for gold in golds:
        if isinstance(gold, str):
            try:
                gold = list(choices).index(gold)
            except (TypeError, ValueError):
                continue
        if isinstance(gold, int):
            found.append(int(gold))
    return tuple(found)
