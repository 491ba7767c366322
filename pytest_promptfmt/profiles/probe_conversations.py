"""Conversations as data: what clients send to a chat template, state after state."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date, datetime
from functools import cache, cached_property
from hashlib import sha256
from itertools import combinations, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Required, TypedDict

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import Position, SourceError, did_you_mean, raising
from pytest_promptfmt.core.finding import Finding, Severity
from pytest_promptfmt.core.yaml_parser import parse_file
from pytest_promptfmt.profiles.conversation import plain_chat
from pytest_promptfmt.profiles.messages import has_calls, read_arguments, shapes_of, texts_of

MARKER: Final = re.compile(
    r"<[|\uff5c][^|\uff5c<>\n]{1,60}[|\uff5c]>|</?[a-zA-Z_]{1,30}(?:\|)?>|<\|[a-z_]{1,30}>|<[a-z_]{1,30}\|>"
    r"|\[\|?/?[A-Za-z][A-Za-z_]{1,30}\|\]|\[/?[A-Z][A-Z_]{1,30}\]|<</?SYS>>"
    r"|\]~!?b[\[\]]|\[e~\["
)
"""Texts that look like the marker of a turn, role or tool call."""

SUFFIXES: Final = (".conversations.yaml", ".conversations.yml")
"""The endings of files of conversations, which are read with the templates of their folder."""

_ASKED_FOR: Final = (("user", "assistant"), ("tool", "assistant"))
_FILES: Final = ("plain", "tools", "reasoning", "shapes")


class State(NamedTuple):
    """One request of a client: the first `count` messages, and what is to follow them."""

    count: int  # type: ignore[assignment]  # in place of the method of tuples
    generation_prompt: bool = True
    continues: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """One text that a conversation holds: whose it is, and in which message (from 0).

    `kind` is the role of the message, or "reasoning", "call" for the name of a called tool, "argument".
    """

    kind: str
    text: str
    message: int


class ConversationSpec(TypedDict, total=False):
    """A conversation as a file of conversations holds it; only `messages` are required.

    Messages are those of OpenAI's API. `tools` are a list of tools, or the name of a built-in one.
    """

    about: str
    messages: Required[Sequence[Mapping[str, Any]]]
    base: str | None
    also: str | None
    same_as: str | None
    tools: Sequence[Mapping[str, Any]] | str | None
    documents: Sequence[Mapping[str, Any]] | None
    template_args: Mapping[str, Any]
    clock: datetime | None
    generation_prompt: bool | None
    continue_final_message: bool
    keep_null: bool
    severity: str


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """A conversation as YAML gives it.

    `about` completes "the template fails on …". `base` and `also` name simpler conversations: mistakes that these show
    as well are not reported again. `same_as` names one with the same content in another shape, which must render alike.
    With `keep_null` the keys that are null reach the template; transformers drops them. `severity` is the worst that a
    finding about this conversation can be.
    """

    name: str
    about: str
    messages: Sequence[Mapping[str, Any]]
    base: str | None = None
    also: str | None = None
    same_as: str | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    template_args: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    clock: datetime | None = None
    generation_prompt: bool | None = None
    continue_final_message: bool = False
    keep_null: bool = False
    severity: Severity = Severity.ERROR

    @cached_property
    def chat(self) -> tuple[dict[str, Any], ...]:
        """Return the messages as a template gets them."""
        return tuple(plain_chat(self.messages, keep_null=self.keep_null))

    @cached_property
    def answers(self) -> tuple[int, ...]:
        """Return which messages (from 0) a model is asked for: answers to a user message or tool result."""
        roles = [message.get("role") for message in self.messages]
        return tuple(at for at, pair in enumerate(pairwise(roles), start=1) if pair in _ASKED_FOR)

    @cached_property
    def states(self) -> tuple[State, ...]:
        """Return what the client sends, in order: each time it is the model's turn, and the whole conversation."""
        turns, count = [State(count=count) for count in self.answers], len(self.messages)
        asks = (
            self.messages[-1].get("role") != "assistant" if self.generation_prompt is None else self.generation_prompt
        )
        return (*turns, State(count=count, generation_prompt=asks, continues=self.continue_final_message))

    @cached_property
    def finished(self) -> State:
        """Return the whole conversation without what opens another answer."""
        return State(count=len(self.messages), generation_prompt=False)

    @cached_property
    def digests(self) -> tuple[bytes, ...]:
        """Return a digest of the first messages as a template gets them, for each number of messages (from 0)."""
        states = [sha256()]
        for message in self.chat:
            states.append(states[-1].copy())
            states[-1].update(repr(message).encode("utf-8", "surrogatepass"))
        return tuple(state.digest() for state in states)

    @cached_property
    def named(self) -> Mapping[str, str]:
        """Return what a template is given besides messages, by the name that it must write to read it."""
        tools, documents = repr(self.tools), repr(self.documents)
        arguments = {name: repr(value) for name, value in self.template_args.items()}
        clock = {} if self.clock is None else {"strftime_now": repr(self.clock)}
        return {"tools": tools, "functions": tools, "documents": documents, **clock, **arguments}

    @cached_property
    def _as_severe(self) -> dict[Severity, Conversation]:
        return {self.severity: self}

    def as_severe(self, severity: Severity) -> Conversation:
        """Return the conversation with another severity, the same one each time."""
        if severity not in self._as_severe:
            self._as_severe[severity] = replace(self, severity=severity)
        return self._as_severe[severity]

    @cached_property
    def has_parts(self) -> bool:
        """Return whether a content is a list of parts."""
        return any(isinstance(message.get("content"), list) for message in self.messages)

    @cached_property
    def has_tools(self) -> bool:
        """Return whether a message is a tool call or result."""
        return any(unit.kind in ("call", "tool") for unit in self.units)

    @cached_property
    def has_reasoning(self) -> bool:
        """Return whether a message holds reasoning."""
        return any(unit.kind == "reasoning" for unit in self.units)

    @cached_property
    def shapes(self) -> frozenset[str]:
        """Return the names of the shapes of `data/hosts.yaml` that the conversation has."""
        return frozenset(_shapes(self))

    @cached_property
    def relaxations(self) -> Sequence[tuple[frozenset[str], Conversation]]:
        """Return the conversation without one thing that a template may fail on, then without two.

        The names of what is missing are the keys of `_RELAXED`; each conversation says so in `about`.
        """
        return tuple(_relaxations(self))

    def mildest(self, severity: Severity = Severity.ERROR) -> Severity:
        """Return a severity, no worse than a finding about the conversation can be."""
        return max(severity, self.severity, key=list(Severity).index)

    def finding(
        self, message: str, saw: str, position: Position | None = None, severity: Severity | None = None
    ) -> Finding:
        """Return a finding that this conversation shows, no worse than it can be; its name begins what was seen."""
        saw, severity = f"conversation {self.name!r}: {saw}", self.mildest(severity or Severity.ERROR)
        return Finding(message=message, saw=saw, conversation=self.name, position=position, severity=severity)

    @cached_property
    def is_regular(self) -> bool:
        """Return whether all contents are text that is not empty, has no whitespace around it, and holds no markers."""
        contents = [each.get("content") for each in self.messages if not each.get("tool_calls")]
        texts = [*(unit.text for unit in self.units), *(each for each in contents if isinstance(each, str))]
        return (
            not self.continue_final_message
            and all(isinstance(each, str) and each == each.strip() != "" for each in contents)
            and not any(MARKER.search(text) or "\\" in text for text in texts)
        )

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """Return the texts of the messages without the whitespace around them, in order."""
        return tuple(
            Unit(kind=kind, text=text.strip(), message=number)
            for number, message in enumerate(self.messages)
            for kind, text in texts_of(message)
            if text.strip()
        )


_KEYS: Final = tuple(each.name for each in fields(Conversation) if each.name != "name")


def read_conversations(path: Path) -> dict[str, Conversation]:
    """Return the conversations of a file by name; raises SourceError, naming file and conversation."""
    with raising(SourceError, "the conversations cannot be read", Position(path)):
        values = parse_file(path, gate.status_of(path)).values
    return conversations_of(values, path, builtin_tools())


@cache
def builtin_conversations() -> Mapping[str, Conversation]:
    """Return the built-in conversations by name, simpler ones first."""
    found: dict[str, Conversation] = {}
    for name in _FILES:
        found |= conversations_of(data_table(f"conversations/{name}"), Path(f"{name}.yaml"), builtin_tools())
    return MappingProxyType(found)


@cache
def builtin_tools() -> Mapping[str, Any]:
    """Return the lists of tools that conversations name."""
    tools: Mapping[str, Any] = data_table("conversations/tools")["tools"]
    return tools


def conversation_files(folder: Path) -> list[Path]:
    """Return the files of a folder that hold conversations, sorted."""
    return sorted(folder / name for name in os.listdir(folder) if name.endswith(SUFFIXES))


def conversations_beside(folder: Path) -> Mapping[str, Conversation]:
    """Return the built-in conversations with those of the files of a folder, which win.

    Raises SourceError for a file that cannot be read, and for a `base` or `same_as` that does not exist.
    """
    found = dict(builtin_conversations())
    for path in conversation_files(folder):
        own = read_conversations(path)
        found |= own
        for each in own.values():
            for name in (each.base, each.also, each.same_as):
                if name is not None and name not in found:
                    raise SourceError(
                        f"conversation {each.name!r} refers to the unknown conversation {name!r}",
                        position=Position(path),
                        hint=did_you_mean(name, found),
                    )
    return found


def conversations_of(values: Mapping[Any, Any], path: Path, known_tools: Mapping[str, Any]) -> dict[str, Conversation]:
    """Return the conversations of a file's content; raises SourceError as `read_conversations`."""
    written, own_tools = values.get("conversations"), values.get("tools") or {}
    if not isinstance(written, dict):
        raise SourceError("a file of conversations must have the key `conversations`", position=Position(path))
    if not isinstance(own_tools, dict):
        raise SourceError("`tools` must be a mapping of names to lists of tools", position=Position(path))
    tools = {**known_tools, **own_tools}
    return {str(name): _conversation(str(name), value, tools, path) for name, value in written.items()}


def _conversation(name: str, value: Any, tools: Mapping[str, Any], path: Path) -> Conversation:
    def refused(what: str, hint: str | None = None) -> SourceError:
        return SourceError(f"conversation {name!r}: {what}", position=Position(path), hint=hint)

    if not isinstance(value, dict):
        raise refused("not a mapping")
    unknown = next((key for key in value if key not in _KEYS), None)
    if unknown is not None:
        raise refused(f"unknown key {unknown!r}", did_you_mean(str(unknown), _KEYS))
    messages = value.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise refused("`messages` must be a list of mappings with role and content")
    if not all(has_calls(each) for each in messages):
        raise refused("`tool_calls` must be a list of mappings with `function`")
    given = value.get("tools")
    if isinstance(given, str):
        if given not in tools:
            raise refused(f"`tools` has no list named {given!r}", did_you_mean(given, tools))
        given = tools[given]
    clock = value.get("clock")
    if isinstance(clock, date) and not isinstance(clock, datetime):
        clock = datetime(clock.year, clock.month, clock.day, 12)
    try:
        severity = Severity(value.get("severity", "error"))
    except ValueError:
        raise refused(f"severity {value['severity']!r}", "write error, warning or info") from None
    own = {**value, "about": value.get("about") or name, "tools": given, "clock": clock, "severity": severity}
    for key, (fits, expected) in _EXPECTED.items():
        if key in own and not (fits(own[key]) or (own[key] is None and key in _MAY_BE_NULL)):
            raise refused(f"`{key}` must be {expected}")
    return Conversation(name=name, **own)


def _are_mappings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def _is_a(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


_EXPECTED: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    **dict.fromkeys(("about", "base", "also", "same_as"), (_is_a(str), "text")),
    **dict.fromkeys(("tools", "documents"), (_are_mappings, "a list of mappings")),
    **dict.fromkeys(("generation_prompt", "continue_final_message", "keep_null"), (_is_a(bool), "true or false")),
    "template_args": (_is_a(dict), "a mapping"),
    "clock": (_is_a(datetime), "a date or time"),
}
_MAY_BE_NULL: Final = ("base", "also", "same_as", "tools", "documents", "generation_prompt", "clock")


def _shapes(conversation: Conversation) -> Iterator[str]:
    if conversation.has_tools or conversation.tools:
        yield "tools"
    if [each.get("role") for each in conversation.messages].count("system") > 1:
        yield "two_systems"
    if conversation.documents:
        yield "documents"
    if conversation.tools == []:
        yield "empty_tools"
    for tool in conversation.tools or ():
        function = tool.get("function") or {}
        yield from ("null_description",) if function.get("description", "") is None else ()
        yield from ("no_parameters",) if "parameters" not in function else ()
        yield from ("null_parameters",) if function.get("parameters", "") is None else ()
    for message in conversation.messages:
        yield from shapes_of(message, keeps_null=conversation.keep_null)


# -- without what a template fails on ----------------------------------------------------------------------------------


def _relaxations(conversation: Conversation) -> Iterator[tuple[frozenset[str], Conversation]]:
    for names in [*combinations(_RELAXED, 1), *combinations(_RELAXED, 2)]:
        changed, conditions = conversation, []
        for name in names:
            condition, relax = _RELAXED[name]
            simpler = relax(changed)
            if simpler != changed:
                conditions.append(condition)
            changed = simpler
        if len(conditions) == len(names):
            yield frozenset(names), replace(changed, about=f"{conversation.about}, {' and '.join(conditions)}")


def _without_tools(conversation: Conversation) -> Conversation:
    return replace(conversation, tools=None) if conversation.tools else conversation


def _with_text(conversation: Conversation) -> Conversation:
    def written(message: Mapping[str, Any]) -> Mapping[str, Any]:
        content = message.get("content")
        if isinstance(content, str):
            return message
        texts = [part.get("text", "") for part in content or () if isinstance(part, dict)]
        return {**message, "content": "".join(texts)}

    return replace(conversation, messages=[written(each) for each in conversation.messages])


def _with_arguments(kind: type, change: Callable[[Any], Any]) -> Callable[[Conversation], Conversation]:
    """Return what changes the arguments of calls that are of a type."""

    def changed(call: Mapping[str, Any]) -> Mapping[str, Any]:
        arguments = (call.get("function") or {}).get("arguments")
        if not isinstance(arguments, kind):
            return call
        return {**call, "function": {**call["function"], "arguments": change(arguments)}}

    return lambda conversation: _with_calls(conversation, lambda calls: [changed(call) for call in calls])


def _with_one_call(conversation: Conversation) -> Conversation:
    dropped = [call.get("id") for message in conversation.messages for call in (message.get("tool_calls") or ())[1:]]
    kept = [
        each
        for each in conversation.messages
        if each.get("tool_call_id") not in dropped or each.get("tool_call_id") is None
    ]
    return _with_calls(replace(conversation, messages=kept), lambda calls: calls[:1])


def _with_calls(
    conversation: Conversation, changed: Callable[[Sequence[Mapping[str, Any]]], Sequence[Mapping[str, Any]]]
) -> Conversation:
    messages = [
        {**message, "tool_calls": changed(message["tool_calls"])} if message.get("tool_calls") else message
        for message in conversation.messages
    ]
    return replace(conversation, messages=messages)


_RELAXED: Final[Mapping[str, tuple[str, Callable[[Conversation], Conversation]]]] = {
    "tools": ("without tools", _without_tools),
    "content": ("with text as content", _with_text),
    "arguments": ("with arguments as JSON text", _with_arguments(dict, json.dumps)),
    "arguments text": ("with arguments as mappings", _with_arguments(str, read_arguments)),
    "calls": ("with one call", _with_one_call),
}
"""What a conversation is tried without, after a failure: the condition, and the conversation without it."""
