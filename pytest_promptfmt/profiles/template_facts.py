"""The facts about a chat template that rules use, for any conversation: values only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
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

    def lines(self) -> Iterator[str]:
        """Yield the facts as short sentences; texts are quoted as in JSON."""
        if self.failure:
            yield f"renders nothing: {self.failure}"
            return
        yield f"user {self.user}, assistant {self.assistant}, system {self.system}, developer {self.developer}"
        taken = {"two user messages in a row": self.takes_two_users, "an answer first": self.takes_assistant_first}
        refused = [name for name, is_taken in taken.items() if not is_taken]
        if refused:
            yield f"refuses {' and '.join(refused)}"
        if self.opening:
            yield f"begins with {_quoted(self.opening)}"
        if self.default_system:
            yield "adds a system text where none is given"
        if self.follows_clock or self.dates:
            dates = ", ".join(self.dates) or "the date"
            yield f"writes {dates}, {'which follows the clock' if self.follows_clock else 'hard-coded'}"
        if self.generation_prompt is None:
            yield "changes the text before an answer when it adds the generation prompt"
        elif self.generation_prompt:
            yield f"adds the generation prompt {_quoted(self.generation_prompt)}"
        else:
            yield "adds no generation prompt"
        if self.answer == "gap":
            yield f"has {_quoted(self.answer_gap)} before a finished answer"
        elif self.answer == "differs":
            yield "begins finished answers with other text than the generation prompt"
        if self.answer_end:
            yield f"ends an answer with {_quoted(self.answer_end)}"
        if not self.keeps_prefix:
            yield "rewrites earlier turns when the conversation continues"
        think = "stays in" if self.keeps_think else "is cut out of"
        reasoning = "printed" if self.keeps_reasoning else "left out"
        yield f"<think>…</think> {think} earlier answers, their reasoning_content is {reasoning}"
        yield f"tools {self.tools}, arguments of calls {self.tool_arguments}, as JSON text {self.tool_arguments_text}"
        yield f"contents in parts {self.parts}, contents without value {self.none}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
