"""Which tasks a run chooses by name and format, and what to say of a choice that finds none.

Choosing is deselection: what is left out is unknown to this run, never obsolete.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pytest_promptfmt.core.errors import did_you_mean
from pytest_promptfmt.formats import base_format
from pytest_promptfmt.settings import Settings

_WILDCARDS = re.compile(r"[*?]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Selectable:
    """What can be chosen by: `name`, and `id`, which is `name` or `name@format`."""

    name: str
    id: str
    format: str | None = None


def chooses(settings: Settings, task: Selectable) -> bool:
    """Return whether the task globs and formats of a run choose a task."""
    if settings.formats and base_format(task.format) not in settings.formats:
        return False
    return not settings.task_globs or any(_matches(task, pattern) for pattern in settings.task_globs)


def unmatched(settings: Settings, tasks: Iterable[Selectable]) -> Iterator[str]:
    """Yield a line for each task glob and format that none of the tasks matches, with the closest name there is."""
    known = list(tasks)
    names = list(dict.fromkeys(name for task in known for name in (task.name, task.id)))
    for pattern in settings.task_globs:
        if not any(_matches(task, pattern) for task in known):
            yield _nothing(
                f"--promptfmt-task {pattern!r}", len(known), did_you_mean(_WILDCARDS.sub("", pattern), names)
            )
    formats = [name for name in dict.fromkeys(base_format(task.format) for task in known) if name is not None]
    for chosen in settings.formats:
        if chosen not in formats:
            yield _nothing(f"--promptfmt-format {chosen!r}", len(known), did_you_mean(chosen, formats))


def _matches(task: Selectable, pattern: str) -> bool:
    return fnmatchcase(task.name, pattern) or fnmatchcase(task.id, pattern)


def _nothing(option: str, number: int, hint: str | None) -> str:
    there = f"{option} matches none of the {number:,} tasks" if number > 1 else f"{option} does not match the only task"
    if not number:
        there = f"{option} matches nothing: there are no tasks"
    return there + (f"; {hint}" if hint else "")
