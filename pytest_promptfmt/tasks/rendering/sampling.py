"""Shots: how many, which docs, in which order. All rules and seeds are those of the release of lm-eval followed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from pytest_promptfmt.core.docs import Doc, TaskDocs
from pytest_promptfmt.core.errors import RenderError, UnavailableError, did_you_mean
from pytest_promptfmt.core.prompt import Place
from pytest_promptfmt.core.release import Release
from pytest_promptfmt.core.task import FunctionRef, Task, Unset
from pytest_promptfmt.tasks.harness import harness_of
from pytest_promptfmt.tasks.rendering.field_mappings import call_function

FEWSHOT_SEED: Final = 1234
"""The fourth of lm-eval's default seeds; set once per rendered task."""

_SAMPLER: Final = ("fewshot_config", "sampler")

Shot = tuple[int | None, Doc]
"""A shot: its index in the pool (None where a user's sampler made it), and the doc."""

Draw = Callable[[int, Doc | None], Sequence[Shot]]
"""From how many, and the doc to leave out, to the shots."""


def leaves_evaluated_doc_out(task: Task) -> bool:
    """Return whether the evaluated doc is excluded from its shots.

    lm-eval 0.4.13 compares the names of the splits, so it does when both are missing, and does not when the pool
    is the test split only because nothing else is there.
    """
    own = task.fewshot.split
    split = task.dataset.fewshot_split if isinstance(own, Unset) else own
    return bool(split == task.dataset.test_split)


def make_sampler(task: Task, pool: Sequence[Doc]) -> Draw:
    """Return the task's sampler, freshly seeded: its draws depend on those before.

    Raises RenderError when the sampler is not known, UnavailableError when only the harness of its file has it.
    """
    sampler = task.fewshot.sampler
    if isinstance(sampler, str):
        if sampler not in _SAMPLERS:
            message = f"unknown sampler {sampler!r} of {task.name!r}; expected one of {', '.join(_SAMPLERS)}"
            harness = harness_of(task.path.parent.resolve()) if task.path is not None else None
            is_of_fork = harness is not None and harness.has_sampler(sampler)
            kind = UnavailableError if is_of_fork else RenderError
            error = task.error(kind, message, *_SAMPLER, hint=did_you_mean(sampler, _SAMPLERS))
            if isinstance(error, UnavailableError):
                error.because(
                    "the sampler is part of a fork of lm-eval: install the fork, and set `renderer: installed`"
                )
            raise error.naming(repr(task.name)) from KeyError(sampler)
        return _SAMPLERS[sampler](pool, task.release)
    if callable(sampler) or isinstance(sampler, FunctionRef):
        return _own_sampler(task, pool)
    message = f"the sampler of {task.name!r} must be a name or a sampler class, not {sampler!r}"
    error = task.error(RenderError, message, *_SAMPLER).naming(repr(task.name))
    raise error from TypeError(f"{type(sampler).__name__} is not a sampler")


def draw_shots(task: Task, draw: Draw, count: int, doc: Doc, number: int, pool: Sequence[Doc]) -> Sequence[Shot]:
    """Return the shots for one doc; raises RenderError when the pool has too few docs."""
    left_out = doc if leaves_evaluated_doc_out(task) else None
    try:
        if not task.release.makes_turns:  # one more is drawn, and those that equal the doc are dropped in any case
            return [shot for shot in draw(count + (left_out is not None), None) if shot[1] != doc][:count]
        return draw(count, left_out)
    except RenderError:
        raise
    except Exception as error:
        more = " (and one more, in case the doc itself is drawn)" if left_out else ""
        known = "is only 1 doc" if len(pool) == 1 else f"are only {len(pool)} docs"
        needed = f"{count} few-shot example{'s are' if count != 1 else ' is'} needed"
        message = f"{task.id!r}, doc {number + 1}: {needed}{more}, but there {known}"
        hint = "lower num_fewshot, or add docs to the few-shot split or to fewshot_config.samples"
        raise task.error(RenderError, message, "num_fewshot", hint=hint).naming(str(Place(task.id, number))) from error


def drawable(task: Task, docs: TaskDocs, count: int) -> int:
    """Return how many shots can be drawn, at most `count`: docs in files may be a few rows of a larger split.

    `count` for samples in the task itself and for a user's sampler, whose pool is complete.
    """
    is_few = docs.fewshot_kind == "given" and isinstance(task.fewshot.sampler, str)
    if count <= 0 or not is_few or task.fewshot.samples is not None or not task.assembly.renders_fields:
        return count
    if not leaves_evaluated_doc_out(task):
        return min(count, len(docs.fewshot))
    others = min((sum(doc != asked for doc in docs.fewshot) for asked in docs.evaluated), default=0)
    others = others if task.release.makes_turns else count
    return max(0, min(count, others, len(docs.fewshot) - 1))


def _random_sampler(pool: Sequence[Doc], release: Release) -> Draw:
    random = Random(FEWSHOT_SEED)
    indices = range(len(pool))

    def draw(count: int, left_out: Doc | None) -> Sequence[Shot]:
        if not pool:
            raise AssertionError("there are no docs for few-shot examples")
        if not left_out:
            return [(index, pool[index]) for index in random.sample(indices, count)]
        # One more is drawn, so that the random state advances equally whether or not the doc is among them.
        drawn = [index for index in random.sample(indices, count + 1) if pool[index] != left_out][:count]
        if len(drawn) < count:
            if not release.redraws:
                raise AssertionError("without the evaluated doc, too few docs are left for few-shot examples")
            drawn = random.sample([index for index in indices if pool[index] != left_out], count)
        return [(index, pool[index]) for index in drawn]

    return draw


def _first_sampler(pool: Sequence[Doc], release: Release) -> Draw:
    def draw(count: int, left_out: Doc | None) -> Sequence[Shot]:
        is_kept = left_out is None or not release.first_n_leaves_doc_out
        shots = [(index, doc) for index, doc in enumerate(pool) if is_kept or doc != left_out][:count]
        if len(shots) < count:
            raise AssertionError("there are too few docs for few-shot examples")
        return shots

    return draw


_SAMPLERS: Final = {"default": _random_sampler, "first_n": _first_sampler}


def early_sampler(task: Task, message: str) -> UnavailableError:
    """Return the error for a sampler class that writes the text of few-shot examples, as before lm-eval 0.4.12."""
    error = task.error(UnavailableError, message, *_SAMPLER)
    return error.because(
        "the sampler class is for an earlier lm-eval: install that lm-eval, and set `renderer: installed`"
    )


def _is_early(sampler: Any) -> bool:
    try:
        parameters = inspect.signature(sampler.sample).parameters.values()
    except (AttributeError, TypeError, ValueError):
        return False
    return not any(each.name == "eval_doc" or each.kind is each.VAR_KEYWORD for each in parameters)


def _own_sampler(task: Task, pool: Sequence[Doc]) -> Draw:
    position = task.position(*_SAMPLER)
    where = f"of {task.id!r}"

    def call(function: Any, *arguments: Any, **options: Any) -> Any:
        return call_function(
            function, *arguments, key="fewshot_config.sampler", where=where, position=position, **options
        )

    sampler = call(task.fewshot.sampler, list(pool), rnd=None)
    if _is_early(sampler) and task.path is not None:
        harness = harness_of(task.path.parent.resolve())
        if harness is None or harness.reads_early_yaml:
            raise early_sampler(task, f"the sampler of {task.id!r} has no argument `eval_doc`")
    call(call(getattr, sampler, "set_rnd"), FEWSHOT_SEED)

    def draw(count: int, left_out: Doc | None) -> Sequence[Shot]:
        return [(None, doc) for doc in call(call(getattr, sampler, "sample"), n=count, eval_doc=left_out)]

    return draw
