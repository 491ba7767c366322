"""The fix of a finding as its rule describes it: one edit of the YAML, and what it may change in a prompt.

A rule declares its fix with `@rule(…, fix=function)`. The function is given what the rule was given and the finding,
and returns a `Fix`, or None for a finding that has no mechanical one. Whether the fix is right is proved by
rendering (`rules/fixing.py`), so a function need not foresee everything.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from jinja2 import Environment, TemplateError

from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.finding import Finding
from pytest_promptfmt.study import Study

_CERTAIN: Final = 0.8
"""How alike a misspelt name and the one that is meant are at least."""

_MARGIN: Final = 0.05
"""How much less alike every other name is."""

Action = Literal["value", "key", "quotes", "earlier"]
"""A text gets another value, a key another name, a value quotes; earlier entries of a repeated key are removed."""


def nothing(text: str) -> str:
    """Return the text: no prompt may change."""
    return text


def whitespace(text: str) -> str:
    """Return a text without whitespace: only whitespace may change."""
    return "".join(text.split())


def escapes(text: str) -> str:
    r"""Return a text without whitespace and without `\n` in two characters: only these may change."""
    return whitespace(text.replace("\\n", " "))


def anything(_text: str) -> str:
    """Return the same for all texts: the output of the key may change."""
    return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fix:
    """One edit of a YAML file.

    `position` is where the key, or the element of a list, is written; `text` is its new value or name. `keeps` maps
    what the key prints to what must be the same before and after; what other keys print must stay the same anyway.
    """

    position: Position
    text: str = ""
    action: Action = "value"
    keeps: Callable[[str], str] = nothing


FixRule = Callable[[Any, Finding], Fix | None]


def rewritten(
    study: Study, finding: Finding, change: Callable[[str], str | None], *, keeps: Callable[[str], str]
) -> Fix | None:
    """Return the fix that gives the text at the finding's keys another value; None where that is not a text."""
    value = value_at(study.config, finding.keys)
    position = study.task.position(*finding.keys)
    text = change(value) if isinstance(value, str) else None
    if position is None or text is None or text == value:
        return None
    return Fix(position=position, text=text, keeps=keeps)


def respelt(study: Study, finding: Finding, known: Collection[str], *, action: Action) -> Fix | None:
    """Return the fix of a misspelt key, or of a misspelt name at the finding's keys, if one known name is certain."""
    name = finding.keys[-1] if action == "key" else value_at(study.config, finding.keys)
    position = study.task.position(*finding.keys)
    meant = certain_name(name, known) if isinstance(name, str) else None
    if position is None or meant is None:
        return None
    return Fix(position=position, text=meant, action=action)


def certain_name(name: str, known: Collection[str]) -> str | None:
    """Return the known name that a misspelt one is sure to mean; None where it is unlike all, or like several."""
    likeness = sorted(((difflib.SequenceMatcher(None, name, each).ratio(), each) for each in known), reverse=True)
    if not likeness or likeness[0][0] < _CERTAIN or name in known:
        return None
    return likeness[0][1] if len(likeness) == 1 or likeness[0][0] - likeness[1][0] >= _MARGIN else None


def value_at(config: Mapping[str, Any], keys: Collection[str | int]) -> Any:
    """Return what is written at a key path of a configuration, None where nothing is."""
    value: Any = config
    for key in keys:
        if isinstance(value, Mapping):
            value = value.get(key)
        elif isinstance(value, list) and isinstance(key, int) and key < len(value):
            value = value[key]
        else:
            return None
    return value


def without_trailing_space(study: Study, finding: Finding) -> Fix | None:
    """Return the fix that removes spaces at the end of the text at the finding's keys."""
    return rewritten(study, finding, lambda text: text.rstrip(" \t\u00a0"), keeps=whitespace)


def outside_markup(source: str, change: Callable[[str], str]) -> str | None:
    """Return a template whose constant text is changed and whose markup stays; None for one that does not parse."""
    try:
        pieces = [(kind, text) for _, kind, text in _ENVIRONMENT.lex(source)]
    except (TemplateError, RecursionError):
        return None
    if "".join(text for _, text in pieces) != source:
        return None
    return "".join(change(text) if kind == "data" else text for kind, text in pieces)


_ENVIRONMENT: Final = Environment(keep_trailing_newline=True)
