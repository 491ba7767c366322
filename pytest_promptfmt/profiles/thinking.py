"""The marks between which a chat template puts the reasoning of an answer."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.profiles.conversation import render_messages

_KEYS: Final = ("reasoning_content", "thinking", "reasoning")
_QUESTION, _THOUGHT, _ANSWER = "Which metal rusts?", "Gold never does so.", "Iron is the one."
_MARK: Final = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")


class ThinkingMarks(NamedTuple):
    """What opens and what closes the reasoning: `<think>` and `</think>`."""

    open: str
    close: str


def thinking_marks(profile: Profile) -> ThinkingMarks | None:
    """Return the marks around the reasoning of a last answer; None for a template that writes none, or no marks."""
    source = profile.chat_template or ""
    if not any(key in source for key in _KEYS):
        return None
    messages = [
        {"role": "user", "content": _QUESTION},
        {"role": "assistant", "content": _ANSWER, "reasoning_content": _THOUGHT},
    ]
    try:
        text = render_messages(profile, messages, add_generation_prompt=False)
    except Exception:
        return None  # other rules say what a template refuses
    before, thought, rest = text.partition(_THOUGHT)
    between, answer, _ = rest.partition(_ANSWER)
    opened, closed = _MARK.findall(before), _MARK.findall(between)
    return ThinkingMarks(opened[-1], closed[0]) if thought and answer and opened and len(closed) == 1 else None
