"""What a message of a conversation holds: its texts, its calls, and the shapes that hosts differ in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

_SHORT_ID: Final = 9
"""The length of the ids of mistral-common."""


def has_calls(message: Mapping[str, Any]) -> bool:
    """Return whether the tool calls of a message, if there are any, can be read."""
    calls = message.get("tool_calls") or []
    named = isinstance(calls, list) and all(isinstance(call, dict) for call in calls)
    return named and all(isinstance(call.get("function") or {}, dict) for call in calls)


def texts_of(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the texts of a message, each with whose it is, as `Unit.kind`."""
    role = str(message.get("role"))
    reasoning = message.get("reasoning_content")
    if isinstance(reasoning, str):
        yield "reasoning", reasoning
    content = message.get("content")
    for text in [content] if isinstance(content, str) else _leaves(content):
        thought, closed, answer = text.partition("</think>")
        if role == "assistant" and closed:
            yield "reasoning", thought.replace("<think>", "")
            text = answer
        yield role, text
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        yield "call", str(function.get("name"))
        arguments = function.get("arguments")
        for text in _leaves(read_arguments(arguments) if isinstance(arguments, str) else arguments):
            yield "argument", text


def shapes_of(message: Mapping[str, Any], *, keeps_null: bool) -> Iterator[str]:
    """Yield the names of the shapes of `data/hosts.yaml` that a message has."""
    role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
    if role == "developer":
        yield "developer"
    if isinstance(content, list):
        types = {part.get("type") for part in content if isinstance(part, dict)}
        yield "result_parts" if role == "tool" else "parts"
        yield from ("image",) if "image" in types else ()
        yield from ("image_address",) if "image_url" in types else ()
    elif role == "tool" and not isinstance(content, str):
        yield "result_value"
    elif content is None:
        yield "null_content"
    elif isinstance(content, str) and "</think>" in content and "<think>" not in content:
        yield "lone_thought_end"
    if calls == []:
        yield "empty_calls"
    if keeps_null and "tool_calls" in message and calls is None:
        yield "null_calls"
    if keeps_null and message.get("reasoning_content", "") is None:
        yield "null_reasoning"
    for call in calls or ():
        yield from ("arguments_text",) if isinstance((call.get("function") or {}).get("arguments"), str) else ()
        yield from ("no_id",) if "id" not in call else ("long_id",) if len(str(call["id"])) > _SHORT_ID else ()
    if role == "tool" and "name" not in message:
        yield "no_result_name"


def read_arguments(written: str) -> Any:
    """Return the value of arguments in JSON, None if they are something else, or nested too deeply."""
    try:
        arguments = json.loads(written)
        list(_leaves(arguments))
    except (ValueError, RecursionError):
        return None
    return arguments


def _leaves(value: Any) -> Iterator[str]:
    """Yield the texts inside a value: of a list of parts, of arguments, of a result that is a mapping."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _leaves(each.get("text") if isinstance(each, dict) and each.get("type") == "text" else each)
    elif isinstance(value, dict) and not str(value.get("type", "")).startswith("image"):
        for each in value.values():
            yield from _leaves(each)
