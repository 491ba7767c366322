"""Whitespace between neighbours in a prompt: markers, the texts of a conversation, and words of the template."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from pytest_promptfmt.profiles.template_probes import MARKER
from pytest_promptfmt.systems.templates.conversations import Conversation
from pytest_promptfmt.systems.templates.trial import TemplateTrial

_KINDS: Final = ("user", "assistant", "system")
_MOST_WORDS: Final = 3
"""Words between two markers that may be a header; more of them are prose."""


def spaces_between(
    text: str, conversation: Conversation, trial: TemplateTrial
) -> Iterator[tuple[tuple[str, str], str, int]]:
    """Yield each two neighbours, the whitespace between them, and where it begins.

    A text of the conversation is named by its kind, such as `user text`.
    """
    pieces = list(_pieces(text, conversation, trial))
    for (one, _, end), (other, start, _) in pairwise(pieces):
        if not text[end:start].strip() and one and other and (_is_marker(one) or _is_marker(other)):
            yield (one, other), text[end:start], end


def _is_marker(name: str) -> bool:
    return MARKER.fullmatch(name) is not None


def _pieces(text: str, conversation: Conversation, trial: TemplateTrial) -> Iterator[tuple[str, int, int]]:
    """Yield name, begin and end of what the prompt consists of; an empty name stands for prose."""
    units = {unit.text: f"{unit.kind} text" for unit in conversation.units if unit.kind in _KINDS}
    places = [(each[0], each.start(), each.end()) for each in trial.marker.finditer(text)]
    for said in units:
        at = text.find(said)
        while at >= 0:
            places.append((said, at, at + len(said)))
            at = text.find(said, at + len(said))
    end = 0
    for name, start, stop in sorted(places, key=lambda each: each[1]):
        yield from _words(text, end, start)
        yield units.get(name, name), start, stop
        end = stop
    yield from _words(text, end, len(text))


def _words(text: str, start: int, end: int) -> Iterator[tuple[str, int, int]]:
    words = list(re.finditer(r"\S+", text[start:end]))
    if len(words) > _MOST_WORDS:
        yield "", start + words[0].start(), start + words[-1].end()
    else:
        yield from ((each[0], start + each.start(), start + each.end()) for each in words)
