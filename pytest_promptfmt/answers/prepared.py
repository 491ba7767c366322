"""A task made ready for scoring: functions bound, docs found, prompts rendered without a chat template."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_promptfmt.answers.told import Told, told_completions
from pytest_promptfmt.core.errors import ScoringError
from pytest_promptfmt.core.limits import RENDERING_MEMORY, time_limit
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.task import Doc, DocsKind, Task
from pytest_promptfmt.systems.lm_eval.docs.loading import load_docs
from pytest_promptfmt.systems.lm_eval.functions import bind_functions, bind_scoring
from pytest_promptfmt.systems.renderer import TaskRenderer

_SECONDS = 10.0
_AT_ONCE = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """What the battery and the scorer checks share; `docs` says where the docs came from, `kind` what they are."""

    task: Task
    instances: Sequence[Instance]
    docs: str
    kind: DocsKind
    told: Sequence[Told]

    @property
    def is_synthetic(self) -> bool:
        """Return whether the docs were made from the templates."""
        return self.kind == "synthetic"


def prepare(
    task: Task, *, trusted: Callable[[Path], bool], num_fewshot: int | None = None, seconds: float = _SECONDS
) -> Prepared:
    """Return the task with everything scoring needs; as many docs as usual, more where told completions name them.

    Raises the PromptfmtError that stops it: code not allowed, docs not found, a template or completion that fails.
    """
    told = told_completions(task)
    with time_limit(seconds, f"rendering {task.id}", task.position("doc_to_text"), memory=RENDERING_MEMORY):
        bound = bind_scoring(bind_functions(task, trusted=trusted), trusted=trusted)
        docs = load_docs(bound, count=_count(told), num_fewshot=num_fewshot)
        instances = tuple(map(_of_first_question, TaskRenderer(bound, docs, num_fewshot=num_fewshot).instances()))
    for one in told:
        if one.doc >= len(instances):
            raise ScoringError(
                f"the completion {one.id!r} answers doc {one.doc}, and the last one is {len(instances) - 1}",
                position=task.position("metadata", "promptfmt", "completions"),
            )
    return Prepared(task=bound, instances=instances, docs=docs.origin, kind=docs.kind, told=told)


def _of_first_question(instance: Instance) -> Instance:
    """Return the instance with its first question alone, and what that is scored by, where its doc asks several."""
    own = instance.requests[0].doc if instance.requests else None
    if own is None:
        return instance
    return replace(instance, doc=own, requests=tuple(one for one in instance.requests if one.doc is own))


class DocsByNumber:
    """The docs of a task by their number, from 0; more are read when one of them is asked for."""

    def __init__(self, ready: Prepared, seconds: float = _SECONDS) -> None:
        self._task = ready.task
        self._docs: Sequence[Doc] = [instance.doc for instance in ready.instances]
        self._is_all = ready.is_synthetic
        self._seconds = seconds

    def __call__(self, number: int) -> Doc | None:
        """Return a doc, None where there is none; made-up docs are only those that were made."""
        while number >= len(self._docs) and not self._is_all:
            count = max(number + 1, 4 * len(self._docs), _AT_ONCE)
            with time_limit(self._seconds, f"reading the docs of {self._task.id}"):
                self._docs = load_docs(self._task, count=count, num_fewshot=0).evaluated
            self._is_all = len(self._docs) < count
        return self._docs[number] if 0 <= number < len(self._docs) else None


def _count(told: Sequence[Told]) -> int | None:
    wanted = max((one.doc + 1 for one in told), default=0)
    return wanted if wanted > 2 else None
