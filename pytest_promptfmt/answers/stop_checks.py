"""Checks of stop sequences: none cuts an answer that is asked for or shown, and one ends what follows it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, Final

from pytest_promptfmt.answers.answers import answers_of
from pytest_promptfmt.answers.scorer_findings import ScorerFinding
from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.prompt import Instance, Span
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.systems.lm_eval.scoring.results import Question

_SHOWN: Final = 40


def stops_of(instance: Instance) -> list[Any]:
    """Return the stop sequences of a request as they are given, one text as a list of it."""
    until = (instance.requests[0].generation_kwargs or {}).get("until") or ()
    return [until] if isinstance(until, str) else list(until)


def check_stops(
    task: Task, instances: Sequence[Instance], questions: Sequence[Question], few_shot: Sequence[Instance]
) -> Iterator[ScorerFinding]:
    """Yield what is wrong with the stop sequences of a generation task."""
    stops = stops_of(instances[0])
    at = task.position("generation_kwargs", "until")
    for stop in stops:
        if not isinstance(stop, str):
            yield ScorerFinding(
                name="stop-is-no-text", message=f"the stop sequence {stop!r} is {type(stop).__name__}", position=at
            )
        elif re.search(r"\\[nrt]", stop):
            yield ScorerFinding(
                name="stop-never-fires",
                message=f"the stop sequence {stop!r} is a backslash and a letter, not a line break",
                hint='in YAML only double quotes read "\\n" as a line break',
                position=at,
            )
    texts = [stop for stop in stops if isinstance(stop, str) and stop]
    for stop in texts:
        yield from _cut_answers(task, stop, instances, questions, at)
    shown = few_shot or instances
    yield from _next_question(texts, shown[0], at, surely=shown is instances)


def _cut_answers(
    task: Task, stop: str, instances: Sequence[Instance], questions: Sequence[Question], at: Position | None
) -> Iterator[ScorerFinding]:
    for instance, question in zip(instances, questions, strict=True):
        answers = answers_of(question, instance.prompts[0].text)
        gold = str(answers.labels[answers.gold]).strip() if answers is not None else ""
        if gold and "«" not in gold and stop in gold:
            yield ScorerFinding(
                name="stop-in-gold",
                message=f"doc {instance.index + 1}: the stop sequence {stop!r} is part of the gold answer {gold!r}",
                position=at,
            )
        for shot in _shot_answers(instance):
            cut, _, left = shot.partition(stop)
            if left.strip() and "«" not in shot:
                yield ScorerFinding(
                    name="stop-in-demonstration",
                    message=f"the stop sequence {stop!r} cuts an answer that the prompt shows, to {_end_of(cut)!r}",
                    hint="a model that answers alike is cut there",
                    position=at,
                )
                break
    prompt = instances[0].prompts[0].text
    if task.gen_prefix and stop in prompt[-len(str(task.gen_prefix)) :]:
        yield ScorerFinding(
            name="stop-in-cue", message=f"the stop sequence {stop!r} is part of the end of the prompt", position=at
        )


def _next_question(
    stops: Sequence[str], instance: Instance, at: Position | None, *, surely: bool
) -> Iterator[ScorerFinding]:
    """Look whether anything stops a model that goes on with the next question, as the demonstrations do.

    Where it is not sure that there are demonstrations, only a stop sequence that nearly fits is told.
    """
    spans = instance.prompts[0].spans
    shots = sorted({span.origin.shot for span in spans if span.origin.shot is not None})
    if not shots or not stops:
        return
    after = [span for span in spans if span.origin.shot == shots[0] and span.origin.part == "fewshot delimiter"]
    second = shots[1] if len(shots) > 1 else None
    question = [
        span for span in spans if span.origin.shot == second and span.origin.part not in ("answer", "description")
    ]
    following = "".join(span.text for span in (*after, *question))
    if any(stop in following for stop in stops):
        return
    plain = unicodedata.normalize("NFKC", following)
    alike = [stop for stop in stops if unicodedata.normalize("NFKC", stop) in plain]
    if not alike and ("«" in following or not surely):
        return
    yield ScorerFinding(
        name="no-stop-before-next-question",
        message=f"none of the stop sequences {list(stops)!r} is in what follows an answer, "
        f"{_begin_of([*after, *question])!r}",
        hint=f"{alike[0]!r} differs from what the prompt has only by the width of a character" if alike else None,
        position=at,
    )


def _begin_of(spans: Sequence[Span]) -> str:
    """Return the beginning of a question that is the same in all tasks of a kind: what comes before the data."""
    own = "".join(span.text for span in takewhile(lambda span: span.origin.field is None, spans))[:_SHOWN]
    return own if own == "".join(span.text for span in spans) else f"{own}…"


def _shot_answers(instance: Instance) -> Iterator[str]:
    spans = instance.prompts[0].spans
    for shot in sorted({span.origin.shot for span in spans if span.origin.shot is not None}):
        yield "".join(span.text for span in spans if span.origin.shot == shot and span.origin.part == "answer")


def _end_of(text: str) -> str:
    return text if len(text) <= _SHOWN else f"…{text[1 - _SHOWN :]}"
