"""From tasks and docs to prompts and requests, exactly as lm-eval 0.4.13 and transformers 5.23 make them."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from pytest_promptfmt.errors import PromptfmtError
from pytest_promptfmt.profiles import PLAIN, Profile
from pytest_promptfmt.rendering.chat import chat_prompt
from pytest_promptfmt.rendering.context import ContextBuilder, Layout, Turn, join_system
from pytest_promptfmt.rendering.fields import Place
from pytest_promptfmt.rendering.prompt import Instance, Message, Prompt, Span
from pytest_promptfmt.rendering.requests import RequestBuilder
from pytest_promptfmt.tasks import Task, TaskDocs

__all__ = ["TaskRenderer", "render_task"]


def render_task(
    task: Task, docs: TaskDocs, profile: Profile = PLAIN, *, num_fewshot: int | None = None
) -> Iterator[Instance]:
    """Yield the rendered instance of every doc, in order, for one profile.

    `num_fewshot` wins over the task's own number, unless the task says 0 (lm-eval 0.4.13). Raises RenderError,
    LimitExceededError or CodeNotAllowedError at the first doc that fails; what was yielded before is good.
    """
    return TaskRenderer(task, docs, num_fewshot=num_fewshot, keep=False).instances(profile)


class TaskRenderer:
    """Renders the docs of one task for any number of profiles; what profiles share is made once.

    The demonstrations are drawn once, in the order of the docs, and are the same for every profile. With
    `keep=False` nothing is remembered, and only one profile can be rendered.
    """

    def __init__(self, task: Task, docs: TaskDocs, *, num_fewshot: int | None = None, keep: bool = True) -> None:
        self.task = task
        self._docs = docs
        self._num_fewshot = num_fewshot
        self._keep = keep
        self._start_over()

    def instances(self, profile: Profile = PLAIN) -> Iterator[Instance]:
        """Yield the instance of every doc, in order; raises as `render_task`."""
        requests = self._request_builder()
        for number in range(len(self._docs.evaluated)):
            yield self._instance(requests, number, profile)

    def _instance(self, requests: RequestBuilder, number: int, profile: Profile) -> Instance:
        layout = self._layout(requests.context, number)
        system = join_system(profile.system_instruction, layout.description, self.task)
        opening = Turn.of((Message("system", system),)) if system else None
        is_chat = profile.chat_template is not None
        where = str(Place(self.task.id, number)) if is_chat else ""
        prompts = tuple(
            [
                chat_prompt(profile, opening, (*layout.shots, question), where=where)
                if is_chat
                else _plain_prompt((*((opening,) if opening is not None else ()), *layout.shots, question))
                for question in layout.questions
            ]
        )
        if requests.context.is_repeatable:
            made = requests.requests(layout, number, prompts, chat=is_chat)
        else:
            with self._random.used():
                made = requests.requests(layout, number, prompts, chat=is_chat)
        return Instance(
            index=number, doc=self._docs.evaluated[number], prompts=prompts, requests=made, target=layout.target
        )

    def _start_over(self) -> None:
        self._layouts: list[Layout | PromptfmtError] = []
        self._requests: RequestBuilder | PromptfmtError | None = None
        self._random = _OwnRandomness()

    def _request_builder(self) -> RequestBuilder:
        if self._requests is None:
            try:
                context = ContextBuilder(self.task, self._docs, self._num_fewshot, self._random.used)
                self._requests = RequestBuilder.for_task(context)
            except PromptfmtError as error:
                self._requests = error
        if isinstance(self._requests, PromptfmtError):
            raise self._requests
        return self._requests

    def _layout(self, context: ContextBuilder, number: int) -> Layout:
        if number < len(self._layouts):
            known = self._layouts[number]
            if isinstance(known, PromptfmtError):
                raise known
            return known
        try:
            if context.is_repeatable:
                layout = context.layout(number, self._docs.evaluated[number])
            else:
                with self._random.used():
                    layout = context.layout(number, self._docs.evaluated[number])
        except PromptfmtError as error:
            self._layouts.append(error)
            raise
        except BaseException:
            # Interrupted half-way: what was drawn cannot be undrawn, so the next profile starts from the beginning.
            self._start_over()
            raise
        if self._keep:
            self._layouts.append(layout)
        return layout


class _OwnRandomness:
    """Python's and numpy's global random state, as a task's functions see it: seeded, and nobody else's."""

    _PYTHON_SEED: Final = 0
    _NUMPY_SEED: Final = 1234

    def __init__(self) -> None:
        self._python: Any = None
        self._numpy: Any = None

    @contextmanager
    def used(self) -> Iterator[None]:
        """Put the task's own state in place for the block, and the earlier one back after it."""
        numpy = sys.modules.get("numpy.random")
        earlier = random.getstate()
        earlier_numpy = numpy.get_state() if numpy is not None else None
        if self._python is None:
            random.seed(self._PYTHON_SEED)
        else:
            random.setstate(self._python)
        if numpy is not None:
            if self._numpy is None:
                numpy.seed(self._NUMPY_SEED)
            else:
                numpy.set_state(self._numpy)
        try:
            yield
        finally:
            self._python = random.getstate()
            random.setstate(earlier)
            if numpy is not None:
                self._numpy = numpy.get_state()
                numpy.set_state(earlier_numpy)


def _plain_prompt(turns: Sequence[Turn]) -> Prompt:
    def make() -> tuple[tuple[Span, ...], tuple[Message, ...]]:
        messages = tuple([message for turn in turns for message in turn.messages])
        return tuple([span for each in messages for span in (*each.content, *each.delimiter)]), messages

    return Prompt.lazy("".join([turn.text for turn in turns]), make)
