"""From tasks and docs to prompts and requests, exactly as lm-eval 0.4.13 and transformers 5.23 make them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.profile import PLAIN, Profile
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.randomness import OwnRandomness
from pytest_promptfmt.core.task import Assembler, Task
from pytest_promptfmt.tasks.rendering.sampling import drawable

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

    The shots are drawn once, in the order of the docs, and are the same for every profile. With
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
        assembler = self._assembler()
        for number in range(len(self._docs.evaluated)):
            yield self._instance(assembler, number, profile)

    def _instance(self, assembler: Assembler, number: int, profile: Profile) -> Instance:
        layout = self._layout(assembler, number)
        doc = self._docs.evaluated[number]
        if assembler.is_repeatable:
            return assembler.instance(layout, number, doc, profile)
        with self._random.used():
            return assembler.instance(layout, number, doc, profile)

    def _start_over(self) -> None:
        self._layouts: list[Any] = []  # what the assembler makes, or the PromptfmtError that it raised
        self._made: Assembler | PromptfmtError | None = None
        self._random = OwnRandomness()

    def _assembler(self) -> Assembler:
        if self._made is None:
            try:
                with self._random.used():
                    self._made = self.task.assembly.assembler(self.task, self._docs, self._num_fewshot)
            except PromptfmtError as error:
                self._made = error
        if isinstance(self._made, PromptfmtError):
            raise self._made
        return self._made

    def _layout(self, assembler: Assembler, number: int) -> Any:
        if number < len(self._layouts):
            known = self._layouts[number]
            if isinstance(known, PromptfmtError):
                raise known
            return known
        try:
            if assembler.is_repeatable:
                layout = assembler.layout(number, self._docs.evaluated[number])
            else:
                with self._random.used():
                    layout = assembler.layout(number, self._docs.evaluated[number])
        except PromptfmtError as error:
            self._layouts.append(error)
            raise
        except BaseException:
            # Interrupted half-way: draws cannot be undone, so the next profile starts from the beginning.
            self._start_over()
            raise
        if self._keep:
            self._layouts.append(layout)
        return layout


def renderer_with_shots(task: Task, docs: TaskDocs, num_fewshot: int | None) -> tuple[TaskRenderer, int]:
    """Return a renderer and how many shots it draws: fewer than asked for where docs in files are too few for that.

    Raises as `TaskRenderer`.
    """
    asked = task.shots(num_fewshot)
    drawn = drawable(task, docs, asked)
    if drawn < asked:
        return TaskRenderer(replace(task, num_fewshot=drawn), docs, num_fewshot=drawn), drawn
    return TaskRenderer(task, docs, num_fewshot=num_fewshot), drawn
