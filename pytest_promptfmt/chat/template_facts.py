"""What a chat template does to any conversation, in the words that rules about templates use: values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Fate = Literal["kept", "stripped", "changed", "dropped", "refused"]
"""What becomes of a message: `changed` is anything else than its own text without outer white space."""

System = Literal["kept", "merged", "dropped", "refused"]
"""What becomes of a system message: `merged` stands inside the user's turn."""

Fit = Literal["fits", "gap", "differs", "refused"]
"""How an answer follows the generation prompt: at once, after more text (`gap`), or not at all."""

Shown = Literal["shown", "escaped", "encoded twice", "as Python", "missing", "refused"]
"""How something that is no plain text is printed."""


@dataclass(frozen=True, slots=True)
class UndefinedName:
    """A name that a template prints or walks though it has no value; `line` is the template's, from 1."""

    name: str
    line: int | None


@dataclass(frozen=True, kw_only=True)
class TemplateFacts:
    """What a chat template does with its profile's arguments; texts are as rendered.

    `failure` is why nothing could be found out: not even one user message renders. Where a probe of one fact is
    refused, `errors` has the template's message under the fact's name.
    """

    failure: str = ""
    errors: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    user: Fate = "kept"
    assistant: Fate = "kept"
    system: System = "kept"
    developer: System = "kept"
    takes_two_users: bool = True
    takes_assistant_first: bool = True
    opening: str = ""
    """What stands before the first user message when no system message is given."""
    default_system: str = ""
    """The words of `opening` that are no markers: what the template says in the user's name."""
    bos: str = ""
    """The BOS token that the text begins with, empty where it does not."""
    dates: tuple[str, ...] = ()
    """The dates in the text, whether today's or fixed ones."""
    follows_clock: bool = False
    generation_prompt: str | None = ""
    """What is added where an answer is to begin: empty when nothing is, None when the text before it changes too."""
    answer: Fit = "fits"
    answer_gap: str = ""
    """What a finished answer has between the generation prompt and its own text."""
    answer_end: str = ""
    """What follows a finished answer."""
    closes_answer: bool = True
    """Whether a marker or special token follows a finished answer."""
    keeps_prefix: bool = True
    """Whether a conversation begins with the text of its own beginning."""
    prefill: Fit = "fits"
    prefill_gap: str = ""
    prefill_lost: str = ""
    """White space at the end of a begun answer that is not in the text."""
    keeps_think: bool = True
    """Whether `<think>…</think>` in an earlier answer stays."""
    keeps_reasoning: bool = True
    """Whether `reasoning_content` of an earlier answer is printed."""
    escapes_html: tuple[str, ...] = ()
    """Where `<`, `&` and quotes are printed as HTML entities: content, tools, tool arguments."""
    tools: Shown = "shown"
    tool_arguments: Shown = "shown"
    tool_arguments_text: Shown = "shown"
    """How the arguments of a tool call are printed that are a JSON text already."""
    parts: Shown = "shown"
    none: Shown = "shown"
    undefined: tuple[UndefinedName, ...] = ()
    indentation: str = ""
    """A line that begins with four blanks or more that no message has."""
    has_carriage_return: bool = False
    markers: tuple[str, ...] = ()
    """The texts with the look of control tokens that the template writes."""
