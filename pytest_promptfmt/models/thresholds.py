"""What a model's answers must reach: built in, and per task under `metadata.promptfmt.model`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from pytest_promptfmt.core.errors import ModelError, did_you_mean
from pytest_promptfmt.core.task import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """Shares from 0 to 1; a value below one is a failure.

    `mass`: the probability that falls on the candidates of a doc, where each is a label of few tokens (mean over
    docs). `stops`: generations that end before their budget does. `extraction`: generations in which the filters find
    an answer. `score`: the mean of the first metric.
    """

    mass: float = 0.01
    stops: float = 0.5
    extraction: float = 0.5
    score: float = 0.0


def thresholds_of(task: Task) -> tuple[Thresholds, bool]:
    """Return the thresholds of a task, and whether its author wrote any; raises ModelError for what is none."""
    written: Any = task.own_metadata.get("model")
    if written is None:
        return Thresholds(), False
    position = task.position("metadata", "promptfmt", "model")
    names = [field.name for field in fields(Thresholds)]
    if not isinstance(written, Mapping):
        raise ModelError(
            f"metadata.promptfmt.model is {written!r}", position=position, hint=f"write shares of {', '.join(names)}"
        )
    for name, share in written.items():
        if name not in names:
            raise ModelError(
                f"metadata.promptfmt.model has no {name!r}; known are {', '.join(names)}",
                position=task.position("metadata", "promptfmt", "model", name),
                hint=did_you_mean(str(name), names),
            )
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise ModelError(
                f"the threshold {name!r} is {share!r}",
                position=task.position("metadata", "promptfmt", "model", name),
                hint="write a share from 0 to 1",
            )
    return replace(Thresholds(), **written), True
