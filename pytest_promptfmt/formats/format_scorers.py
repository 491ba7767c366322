"""Scorer names of `formats:` (`first_token`, `regex`, `choice_match`) as filter and metric lists of lm-eval 0.4.13."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pytest_promptfmt.core.errors import FormatError, Position, did_you_mean
from pytest_promptfmt.formats.labels import LABEL_SETS, NUMBERS, ChoiceLabels

METRICS: tuple[Mapping[str, Any], ...] = (
    MappingProxyType(
        {
            "metric": "exact_match",
            "aggregation": "mean",
            "higher_is_better": True,
            "ignore_case": True,
            "ignore_punctuation": True,
        }
    ),
)
"""What all three upstream scorers measure (lm-eval branch next0.5)."""


@dataclass(frozen=True, slots=True)
class Scorer:
    """How a generated answer is read: pipelines of lm-eval filters, and in words what they extract."""

    name: str
    extracts: str
    filter_list: tuple[Mapping[str, Any], ...]
    metric_list: tuple[Mapping[str, Any], ...] = METRICS


def _pipeline(name: str, *filters: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"name": name, "filter": [dict(step) for step in (*filters, {"function": "take_first"})]}


_STRIP = {"function": "remove_whitespace"}
_NOTHING_FOUND = "[invalid]"
_NO_SENTENCE = r"(?! +(?!is\b|because\b)[a-z])"


def _first_token(labels: ChoiceLabels, _arguments: Mapping[str, Any]) -> Scorer:
    upstream = _pipeline("upstream_first_token", _STRIP)
    if labels is None:
        final = {
            "function": "regex",
            "regex_pattern": r"(?is)\A.*the final answer is:?\s*(\S(?:.*[^\s.])?)",  # linear in any text
            "fallback": _NOTHING_FOUND,
        }
        return Scorer(
            name="first_token",
            extracts="the whole response without outer whitespace (as upstream), and beside it what follows the last"
            " 'The final answer is'",
            filter_list=(upstream, _pipeline("final_answer", final)),
        )
    leading = {"function": "regex", "regex_pattern": _leading_label(labels), "fallback": _NOTHING_FOUND}
    return Scorer(
        name="first_token",
        extracts="the label that the response begins with ('C', '(C)', 'C. Paris'), and beside it what upstream reads:"
        " the whole response without outer whitespace",
        filter_list=(_pipeline("first_token", leading), upstream),
    )


def _leading_label(labels: ChoiceLabels) -> str:
    """Return a pattern whose one group is the label at the start; small letters count only when they are alone.

    A label that continues as a sentence (`I cannot say`, `C and D are wrong`) or as a list of the options is not one.
    """
    if labels == NUMBERS:
        return rf"^\W*(\d+)(?!\w){_NO_SENTENCE}(?![^\n]*\n\W*\d+[.):\]])"
    known = LABEL_SETS[labels] if isinstance(labels, str) else labels or ()
    longest_first = "|".join(re.escape(label) for label in sorted(known, key=len, reverse=True))
    opening = r"[\s(\[*\"']*"
    alone = rf"(?![\w'’]){_NO_SENTENCE}(?![^\n]*\n\W*(?:{longest_first})[.):\]])"
    return rf"^{opening}((?:{longest_first}){alone}|(?i:{longest_first})(?=\W*$))"


def _regex(_labels: ChoiceLabels, arguments: Mapping[str, Any]) -> Scorer:
    step = {"function": "regex", **arguments}
    pattern = arguments.get("regex_pattern")
    what = f"what {pattern!r} matches" if pattern else "what lm-eval's default pattern matches ('#### ' and a number)"
    return Scorer(name="regex", extracts=what, filter_list=(_pipeline("regex", step),))


def _choice_match(_labels: ChoiceLabels, _arguments: Mapping[str, Any]) -> Scorer:
    return Scorer(
        name="choice_match",
        extracts="nothing: the response as it is must equal the answer, without case and punctuation",
        filter_list=(_pipeline("choice_match"),),
    )


_Make = Callable[[ChoiceLabels, Mapping[str, Any]], Scorer]
_SCORERS: Mapping[str, tuple[_Make, tuple[str, ...]]] = {
    "first_token": (_first_token, ()),
    "regex": (_regex, ("regex_pattern", "group_select", "fallback")),
    "choice_match": (_choice_match, ()),
}
"""What makes each scorer, and the arguments that it takes."""

SCORER_NAMES: tuple[str, ...] = tuple(_SCORERS)
_ALIASES = {"regex_extraction": "regex"}


def checked_scorer(value: Any, position: Position | None = None) -> tuple[str, Mapping[str, Any]] | None:
    """Return the name and arguments that a `scorer` value means: a name, or `{type: name, …}`; None for none.

    Raises FormatError for an unknown name or argument and for a pattern that is not a regular expression.
    """
    if value is None:
        return None
    if isinstance(value, str):
        name, arguments = value, {}
    elif isinstance(value, Mapping) and isinstance(value.get("type"), str):
        name = value["type"]
        arguments = {key: item for key, item in value.items() if key not in ("type", "kwargs")}
        arguments |= value.get("kwargs") or {}
    else:
        raise FormatError(
            f"scorer {value!r} is neither a name nor a mapping with `type`",
            position=position,
            hint=f"scorer: {SCORER_NAMES[0]}",
        )
    name = _ALIASES.get(name, name)
    if name not in _SCORERS:
        raise FormatError(
            f"there is no scorer {name!r}; there are {', '.join(SCORER_NAMES)}",
            position=position,
            hint=did_you_mean(name, (*SCORER_NAMES, *_ALIASES)),
        )
    _, known = _SCORERS[name]
    for argument in arguments:
        if argument not in known:
            raise FormatError(
                f"scorer {name!r} has no argument {argument!r}",
                position=position,
                hint=did_you_mean(str(argument), known) or f"it takes {', '.join(known) or 'no arguments'}",
            )
    if "regex_pattern" in arguments:
        try:
            re.compile(arguments["regex_pattern"])
        except (re.error, TypeError) as error:
            raise FormatError(
                f"scorer {name!r}: {arguments['regex_pattern']!r} is not a regular expression: {error}",
                position=position,
            ) from error
    return name, arguments


def make_scorer(value: Any, labels: ChoiceLabels) -> Scorer | None:
    """Return the scorer that a format's `scorer` value means for answers with these labels; None for none."""
    checked = checked_scorer(value)
    if checked is None:
        return None
    name, arguments = checked
    make, _ = _SCORERS[name]
    return make(labels, arguments)
