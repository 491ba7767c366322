"""Which key of which file made a change: what came or went is compared with where the text of the prompts comes from.

A snapshot keeps text and no origins, so that one that is gone is only known by its neighbours. One change may have
been made by several keys, a line break between two shots by the question or by the delimiter; all the changes of a
task together rarely can.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Final

from pytest_promptfmt.core.prompt import Instance, Origin, Part, Prompt, Span
from pytest_promptfmt.core.task import Locate
from pytest_promptfmt.snapshots.changes import Change, ChangePlace
from pytest_promptfmt.snapshots.content import COLUMNS, SCORING

LOOKED_AT: Final = 40
"""Changes of one item that are searched for a key in common."""

_SCORING_KEYS: Final = {"filter": "filter_list", "metric": "metric_list"}
"""Keys by the first word of the lines about how answers are read and scored; other lines begin with their key."""

_DELIMITERS: Final[tuple[Part, ...]] = ("fewshot delimiter", "target delimiter")


@dataclass(frozen=True, slots=True)
class ChangeCause:
    """Where the text at the first change comes from; `is_before` where it is gone and was before that text."""

    origin: Origin
    is_before: bool = False

    @property
    def key(self) -> str:
        """Return the configuration key, or the part of the prompt where there is none."""
        return self.origin.key or self.origin.part

    @property
    def preposition(self) -> str:
        """Return the word between a change and its origin."""
        return "before" if self.is_before else "from"

    @property
    def place(self) -> str:
        """Return the words between a change and its origin."""
        return "before text from" if self.is_before else "in text from"


def cause_of(changed: Sequence[Change], instances: Sequence[Instance], locate: Locate) -> ChangeCause | None:
    """Return where the first change with a known origin comes from; of several keys, one that made the others too."""
    by_number = {instance.index + 1: instance for instance in instances}
    found = (_candidates(change, by_number.get(change.doc), locate) for change in changed)
    known = islice((candidates for candidates in found if candidates), LOOKED_AT)
    first = next(known, None)
    if first is None:
        return None
    common = {cause.key for cause in first}
    for candidates in known:
        if len(common) == 1:
            break
        common = common & {cause.key for cause in candidates} or common
    return next(cause for cause in first if cause.key in common)


def _candidates(change: Change, instance: Instance | None, locate: Locate) -> list[ChangeCause]:
    """Return what may have made a change, the likeliest first."""
    if change.place is None:
        return [ChangeCause(origin) for origin in _origins_of_requests(change, locate)]
    if instance is None or change.place.prompt >= len(instance.prompts):
        return []
    prompt = instance.prompts[change.place.prompt]
    if change.place.length:
        origins = _origins_of_new(change.place, prompt, locate)
        if len(change.removed) > len(change.added) > 0:  # lines were joined
            first = change.place.first
            around = [span for span, _ in _spans(prompt, max(0, first - 1), first + 1)]
            origins = [*_delimiters_between(around, locate), *origins]
    else:
        origins = _origins_of_gone(change.place, prompt, locate)
    is_before = change.place.length == 0 and change.place.last == 0
    return [ChangeCause(_for_all_shots(origin), is_before) for origin in origins]


def _origins_of_new(place: ChangePlace, prompt: Prompt, locate: Locate) -> list[Origin]:
    """Return the origins of the text that may be new: first pieces that are new as a whole, the chat template last."""
    new = list(_spans(prompt, place.first, place.last + place.length))
    origins = [
        span.origin
        for span, shared in sorted(new, key=lambda entry: _rank(entry[0], is_whole=entry[1] == len(entry[0].text)))
        if shared or len(new) == 1
    ]
    return [each for origin in origins for each in (origin, *_right_answer(origin, locate))]


def _origins_of_gone(place: ChangePlace, prompt: Prompt, locate: Locate) -> list[Origin]:
    """Return the origins round the place, and those of a delimiter that may have been all that stood there."""
    around = list(_spans(prompt, max(0, place.first - 1), place.last + 1))
    inside = [span.origin for span, length in around if length > 1 and not _is_of_template(span.origin)]
    origins = [span.origin for span, _ in around]
    delimiters = [origin for origin in origins if origin.part in _DELIMITERS]
    if not delimiters and not inside:
        delimiters = list(_delimiters_between([span for span, _ in around], locate))
    rest = sorted(origins, key=lambda origin: (_is_of_template(origin), origin.field is not None))
    return [*delimiters, *inside, *rest]


def _delimiters_between(spans: Sequence[Span], locate: Locate) -> Iterator[Origin]:
    for before, behind in pairwise(spans):
        parts = before.origin.part, behind.origin.part
        if parts == ("question", "answer"):
            yield from _origin_of_key("target delimiter", "target_delimiter", locate)
        elif parts == ("answer", "question"):
            yield from _origin_of_key("fewshot delimiter", "fewshot_delimiter", locate)


def _origins_of_requests(change: Change, locate: Locate) -> Iterator[Origin]:
    """Yield what makes the section of requests that changed."""
    section = change.section.partition(" ")[0]
    if section == "generate":
        yield from _origin_of_key("answer", "generation_kwargs", locate)
    elif section in (SCORING, COLUMNS):
        lines = change.removed or change.added
        word = lines[0].split()[0].removesuffix(":") if lines else ""
        yield from _origin_of_key("answer", _SCORING_KEYS.get(word, word), locate)
    elif section == "target":
        yield from _origin_of_key("answer", "doc_to_target", locate)
    elif section == "continuations":
        old, new = (_continuation(lines) for lines in (change.removed, change.added))
        if old == new:  # another one is right
            yield from _origin_of_key("answer", "doc_to_target", locate)
            return
        if old is not None and new is not None and old.lstrip() == new.lstrip():
            yield from _origin_of_key("target delimiter", "target_delimiter", locate)
        yield from _origin_of_key("answer", "doc_to_choice", locate)
        yield from _origin_of_key("target delimiter", "target_delimiter", locate)


def _right_answer(origin: Origin, locate: Locate) -> Iterator[Origin]:
    """Yield the key that says which choice is shown, for a choice."""
    if origin.part == "answer" and origin.key == "doc_to_choice":
        yield from _origin_of_key("answer", "doc_to_target", locate)


def _rank(span: Span, *, is_whole: bool) -> int:
    """Return how unlikely a piece is the one that is new: one that is new as a whole brings its delimiter along."""
    if _is_of_template(span.origin):
        return 4
    if span.origin.part in _DELIMITERS:
        return 1 if is_whole else 2
    return 0 if is_whole else 3


def _is_of_template(origin: Origin) -> bool:
    return origin.part == "chat template"


def _continuation(lines: Sequence[str]) -> str | None:
    try:
        return str(json.loads(lines[0][2:])) if lines else None
    except ValueError:
        return None


def _origin_of_key(part: Part, key: str, locate: Locate) -> Iterator[Origin]:
    position = locate(tuple(key.split(".")))
    if position is not None:
        yield Origin(part, key, position)


def _spans(prompt: Prompt, start: int, end: int) -> Iterator[tuple[Span, int]]:
    """Yield the spans that have characters from `start` to `end`, with how many; the last one for the end."""
    at = 0
    last = None
    for span in prompt.spans:
        shared = min(end, at + len(span.text)) - max(start, at)
        at += len(span.text)
        last = span if span.text else last
        if shared > 0:
            yield span, shared
        if at >= end:
            return
    if last is not None and start >= at:
        yield last, 0


def _for_all_shots(origin: Origin) -> Origin:
    """Return the origin without the shot: what is written once is in all of them."""
    return replace(origin, shot=None) if origin.field is None else origin
