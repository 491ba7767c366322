r"""Formatters: how eval-framework 0.15.4 (package `template_formatting`) joins messages into one text.

A formatter is a handful of texts around each message and a rule for outer whitespace. Every user message also writes
the header of the assistant who answers it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from pytest_promptfmt.core.errors import RenderError, SettingsError, did_you_mean
from pytest_promptfmt.core.prompt import Message, Origin, Span, join

Strips = Literal["everything", "seams", "nothing"]
_MARKUP: Final = Origin("chat template")


@dataclass(frozen=True, kw_only=True, slots=True)
class Formatter:
    r"""The texts around each message.

    `strips` says which contents lose their outer whitespace: all of them (`everything`); the final message, and
    earlier user messages where `after_user` marks their end (`seams`); or `nothing`. `default_system` replaces the
    content of an empty system message.
    """

    name: str
    begin: str = ""
    before_system: str = ""
    default_system: str = ""
    after_system: str = ""
    before_user: str = ""
    after_user: str = ""
    before_assistant: str = ""
    after_assistant: str = ""
    strips: Strips = "seams"


_LLAMA3: Final = "<|start_header_id|>{}<|end_header_id|>\n\n"

FORMATTERS: Final[Mapping[str, Formatter]] = MappingProxyType(
    {
        each.name: each
        for each in (
            Formatter(name="concat", after_system="\n\n", after_assistant="\n\n"),
            Formatter(name="no-strip-concat", after_system="\n\n", after_assistant="\n\n", strips="nothing"),
            Formatter(
                name="llama3",
                begin="<|begin_of_text|>",
                before_system=_LLAMA3.format("system"),
                default_system="You are a helpful AI assistant",
                after_system="<|eot_id|>",
                before_user=_LLAMA3.format("user"),
                after_user="<|eot_id|>",
                before_assistant=_LLAMA3.format("assistant"),
                after_assistant="<|eot_id|>",
                strips="everything",
            ),
            Formatter(name="identity"),
        )
    }
)
"""The formatters by name: ConcatFormatter, NoStripConcatFormatter, Llama3Formatter, IdentityFormatter."""


def find_formatter(name: str) -> Formatter:
    """Return the formatter of that name; raises SettingsError with a did-you-mean for an unknown one."""
    if name not in FORMATTERS:
        raise SettingsError(
            f"unknown formatter {name!r}; expected one of {', '.join(FORMATTERS)}",
            hint=did_you_mean(name, FORMATTERS),
        )
    return FORMATTERS[name]


def format_messages(formatter: Formatter, messages: Sequence[Message], *, where: str = "") -> tuple[Span, ...]:
    """Return the spans of the whole text, markup and delimiters among them.

    The order of roles is an optional system message, then user and assistant by turns; raises RenderError for any
    other, as eval-framework's assertion does. `where` names the doc.
    """
    _refuse_wrong_order(messages, formatter, where)
    spans: list[Span] = [_markup(formatter.begin)]
    last = len(messages) - 1
    for number, message in enumerate(messages):
        content = message.content
        if message.role == "system":
            content = content if join(content) else (_markup(formatter.default_system),)
            content = _stripped(content) if formatter.strips == "everything" else content
            spans += [_markup(formatter.before_system), *content, _markup(formatter.after_system)]
        elif message.role == "user":
            at_seam = number == last or formatter.after_user != ""
            if formatter.strips == "everything" or (formatter.strips == "seams" and at_seam):
                content = _stripped(content)
            after = _markup(formatter.after_user + formatter.before_assistant)
            spans += [_markup(formatter.before_user), *content, after]
        elif number < last:
            content = _stripped(content) if formatter.strips == "everything" else content
            spans += [*content, _markup(formatter.after_assistant)]
        else:
            spans += content if formatter.strips == "nothing" else _stripped(content)
    return tuple(span for span in spans if span.text)


def _refuse_wrong_order(messages: Sequence[Message], formatter: Formatter, where: str) -> None:
    offset = 1 if messages and messages[0].role == "system" else 0
    for number, message in enumerate(messages[offset:]):
        expected = "assistant" if number % 2 else "user"
        if message.role != expected:
            raise RenderError(
                f"the formatter {formatter.name}, {where}: message {number + offset + 1} is from the {message.role},"
                f" expected the {expected}",
                hint="after an optional system message, user and assistant must alternate, starting with the user",
            )
    if not messages:
        raise RenderError(f"the formatter {formatter.name}, {where}: no messages")


def _markup(text: str) -> Span:
    return Span(text, _MARKUP)


def _stripped(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Return the spans without whitespace at the two outer ends."""
    kept = list(spans)
    while kept and not kept[0].text.strip():
        kept.pop(0)
    while kept and not kept[-1].text.strip():
        kept.pop()
    if kept:
        kept[0] = Span(kept[0].text.lstrip(), kept[0].origin)
        kept[-1] = Span(kept[-1].text.rstrip(), kept[-1].origin)
    return tuple(kept)
