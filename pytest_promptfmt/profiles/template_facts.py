"""The facts about a chat template that rules use, for any conversation: values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Fate = Literal["kept", "stripped", "changed", "dropped", "refused"]
"""The fate of a message: `changed` is anything but its own text without outer whitespace."""

System = Literal["kept", "merged", "dropped", "refused"]
"""The fate of a system message: `merged` means that it becomes part of the user's turn."""

Fit = Literal["fits", "gap", "differs", "refused"]
"""How an answer follows the generation prompt: directly, after more text (`gap`), or not at all."""

Shown = Literal["shown", "escaped", "encoded twice", "as Python", "missing", "refused"]
"""How something other than plain text is printed."""


@dataclass(frozen=True, slots=True)
class UndefinedName:
    """A name that a template prints or iterates over though it has no value; `line` is the template's, from 1."""

    name: str
    line: int | None


@dataclass(frozen=True, kw_only=True)
class TemplateFacts:
    """A chat template's behaviour with its profile's arguments; texts are as rendered.

    `failure` is why nothing is known: not even one user message renders. Where a probe of one fact is refused, `errors`
    has the template's message under the fact's name.
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
    """The text before the first user message when no system message is given."""
    default_system: str = ""
    """The words of `opening` that are not markers: what the template adds on its own."""
    bos: str = ""
    """The BOS token that the text begins with, if any."""
    dates: tuple[str, ...] = ()
    """The dates in the text, whether today's or fixed ones."""
    follows_clock: bool = False
    generation_prompt: str | None = ""
    """The text added where an answer begins: empty when nothing is added, None when the text before it changes too."""
    answer: Fit = "fits"
    answer_gap: str = ""
    """The text between the generation prompt and a finished answer."""
    answer_end: str = ""
    """The text after a finished answer."""
    closes_answer: bool = True
    """Whether a marker or special token follows a finished answer."""
    keeps_prefix: bool = True
    """Whether a longer conversation begins with the text of its first messages."""
    prefill: Fit = "fits"
    prefill_gap: str = ""
    prefill_lost: str = ""
    """Whitespace at the end of a prefilled answer that is missing from the text."""
    keeps_think: bool = True
    """Whether `<think>…</think>` in an earlier answer stays."""
    keeps_reasoning: bool = True
    """Whether `reasoning_content` of an earlier answer is printed."""
    escapes_html: tuple[str, ...] = ()
    """Where `<`, `&` and quotes are printed as HTML entities: content, tools, tool arguments."""
    tools: Shown = "shown"
    tool_arguments: Shown = "shown"
    tool_arguments_text: Shown = "shown"
    """How the arguments of a tool call are printed when they already are JSON text."""
    parts: Shown = "shown"
    none: Shown = "shown"
    undefined: tuple[UndefinedName, ...] = ()
    indentation: str = ""
    """A line that begins with four or more spaces that are in no message."""
    has_carriage_return: bool = False
    markers: tuple[str, ...] = ()
    """The texts that look like control tokens and that the template writes."""
