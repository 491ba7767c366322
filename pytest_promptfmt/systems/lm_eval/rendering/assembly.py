"""The seam between tasks and prompts: how the docs of a task become instances, whatever system the task comes from.

`TaskRenderer` knows this protocol and nothing of lm-eval, HELM or task classes. A source that makes prompts in a way
of its own puts an `Assembly` (tasks.py) on its tasks; all others are put together by `LmEvalAssembler`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from pytest_promptfmt.chat.chat_prompt import chat_prompt
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.prompt import Instance, Message, Prompt, Span
from pytest_promptfmt.core.task import Doc, Task, TaskDocs
from pytest_promptfmt.systems.eval_framework.formatters import find_formatter, format_messages
from pytest_promptfmt.systems.lm_eval.rendering.context import ContextBuilder, Layout, Turn, join_system
from pytest_promptfmt.systems.lm_eval.rendering.fields import Place
from pytest_promptfmt.systems.lm_eval.rendering.requests import RequestBuilder


class Assembler(Protocol):
    """Puts the prompts and requests of one task's docs together.

    Made once for a task and its docs. `layout` is called once for each doc, in their order, and what it returns is
    kept and handed back to `instance` for every profile; so whatever draws demonstrations, calls the user's functions
    or costs time belongs into `layout`, and only what a profile changes into `instance`. `is_repeatable` says that
    neither draws from Python's or numpy's global random state nor calls code that might: otherwise both run with a
    state of the task's own.
    """

    @property
    def is_repeatable(self) -> bool:
        """Return whether nothing is drawn from global random state and no code of the user runs."""
        ...

    def layout(self, number: int, doc: Doc) -> Any:
        """Return what all profiles share of the doc with that number (from 0); raises RenderError."""
        ...

    def instance(self, layout: Any, number: int, doc: Doc, profile: Profile) -> Instance:
        """Return the prompts, requests and target of a doc as a profile shows them; raises RenderError.

        `prompt_of` makes a prompt of messages as lm-eval does, with and without chat template.
        """
        ...


class LmEvalAssembler:
    """Tasks as lm-eval 0.4.13 puts them together: field mappings, few-shot delimiters, target delimiters."""

    def __init__(
        self,
        task: Task,
        docs: TaskDocs,
        num_fewshot: int | None,
        own_randomness: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._task = task
        self._context = ContextBuilder(task, docs, num_fewshot, own_randomness)
        self._requests = RequestBuilder.for_task(self._context)

    @property
    def is_repeatable(self) -> bool:
        """Return whether no function runs and nothing is drawn at random while docs are laid out."""
        return self._context.is_repeatable

    def layout(self, number: int, doc: Doc) -> Layout:
        """Return description, demonstrations and question of a doc."""
        return self._context.layout(number, doc)

    def instance(self, layout: Layout, number: int, doc: Doc, profile: Profile) -> Instance:
        """Return the doc for a profile: one prompt for each question of its layout, and its requests."""
        system = join_system(profile.system_instruction, layout.description, self._task)
        is_chat = profile.joins_messages
        where = str(Place(self._task.id, number)) if is_chat else ""
        prompts = tuple(
            [prompt_of(profile, system, (*layout.shots, question), where=where) for question in layout.questions]
        )
        requests = self._requests.requests(layout, number, prompts, chat=is_chat)
        return Instance(index=number, doc=doc, prompts=prompts, requests=requests, target=layout.target)


def prompt_of(profile: Profile, system: tuple[Span, ...], turns: tuple[Turn, ...], *, where: str = "") -> Prompt:
    """Return the prompt of some turns, which end with the question (and a gen prefix, as assistant message).

    Without chat template their texts and delimiters in a row; with one, as `chat_prompt` renders them. `where` names
    the doc in errors. Raises RenderError.
    """
    opening = Turn.of((Message("system", system),)) if system else None
    if profile.chat_template is not None:
        return chat_prompt(profile, opening, turns, where=where)
    every = turns if opening is None else (opening, *turns)
    if profile.formatter is not None:
        every_message = tuple(message for turn in every for message in turn.messages)
        return Prompt(format_messages(find_formatter(profile.formatter), every_message, where=where), every_message)

    def make() -> tuple[tuple[Span, ...], tuple[Message, ...]]:
        messages = tuple([message for turn in every for message in turn.messages])
        return tuple([span for each in messages for span in (*each.content, *each.delimiter)]), messages

    return Prompt.lazy("".join([turn.text for turn in every]), make)
