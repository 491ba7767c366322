"""A rendered conversation in pieces: whose text each is, what the template writes, and what of it is learnt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

from pytest_promptfmt.core.prompt import Origin, Part, Span
from pytest_promptfmt.systems.templates.conversations import Conversation, State
from pytest_promptfmt.systems.templates.trial import Rendering

LEARNT: Final = "generation"
"""The key of the origin of what is inside `{% generation %}`."""

_TEMPLATE: Final[Part] = "chat template"
_PARTS: Final[Mapping[str, Part]] = {
    "system": "system message",
    "developer": "system message",
    "user": "user message",
    "assistant": "assistant message",
    "tool": "tool result",
    "reasoning": "reasoning",
    "call": "tool call",
    "argument": "tool call",
}


def role_spans(conversation: Conversation, state: State, rendering: Rendering) -> tuple[Span, ...]:
    """Return the text of a state in pieces; texts that the template does not write as they are belong to it."""
    text = rendering.text or ""
    parts = list(_found(conversation, state, text))
    edges = {0, len(text), *(place for first, last, _ in parts for place in (first, last))}
    edges |= {place for mask in rendering.mask for place in mask}
    spans = []
    for first, last in pairwise(sorted(edges)):
        part = next((part for begin, end, part in parts if begin <= first < end), _TEMPLATE)
        is_learnt = any(begin <= first < end for begin, end in rendering.mask)
        spans.append(Span(text[first:last], Origin(part, LEARNT if is_learnt else None)))
    return tuple(spans)


def _found(conversation: Conversation, state: State, text: str) -> Iterator[tuple[int, int, Part]]:
    """Yield where the texts of the messages are, each after the one before."""
    end = 0
    for unit in conversation.units:
        at = text.find(unit.text, end) if unit.message < state.count else -1
        if at >= 0:
            end = at + len(unit.text)
            yield at, end, _PARTS.get(unit.kind, _TEMPLATE)
