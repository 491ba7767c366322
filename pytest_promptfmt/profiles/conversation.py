"""A conversation rendered by a chat template, as `apply_chat_template` of transformers 5.23 does with `tokenize=False`.

Also how the last message is continued. transformers is not imported.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from pytest_promptfmt.core.errors import LimitExceededError
from pytest_promptfmt.core.limits import time_limit
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.profiles.dialect import compiled_template, generation_marks

_MARKER: Final = "CONTINUE_FINAL_MESSAGE_TAG "
REASONING_KEYS: Final = ("reasoning_content", "thinking", "reasoning")
"""The names under which templates read the reasoning of an answer."""

_MASK, _PROMPT = ("\ufdd0", "\ufdd1"), "\ufdd2"  # noncharacters, which no text contains
_AT_MASK: Final = re.compile(f"([{''.join(_MASK)}])")
_TEMPLATE_SECONDS: Final = 10.0


class Renderer(Protocol):
    """A compiled template: Jinja's, or that of another engine."""

    def render(self, variables: Mapping[str, Any], /) -> str:
        """Return the text for these variables."""
        ...


def render_messages(
    profile: Profile,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool | str = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    keep_null: bool = False,
    is_plain: bool = False,
    renderer: Renderer | None = None,
) -> str:
    """Return the text of a conversation.

    `continue_final_message` may name the field of the last message that is continued (`"reasoning_content"`).
    transformers drops keys of a message that are null; with `keep_null` they reach the template, as in servers that
    render it themselves. Messages that `is_plain` are those of `plain_chat`, with tools and documents from JSON.
    `renderer` takes the place of the template as Jinja compiles it. Raises jinja2's exceptions unchanged, ValueError,
    TypeError and AttributeError where transformers does (with our wording), and LimitExceededError.
    """
    source = profile.chat_template
    if source is None:
        raise ValueError(f"the profile {profile.name!r} has no chat template")
    if len(messages) == 0:
        raise ValueError("the conversation is empty: a chat template needs a message")
    if continue_final_message and add_generation_prompt:
        raise ValueError("continue_final_message and add_generation_prompt cannot be used together")
    # Whatever the profile gives wins over the special tokens, as with keywords of apply_chat_template.
    given = {**profile.special_tokens, **profile.template_args}
    tools = given.pop("tools", None) if tools is None else tools
    documents = given.pop("documents", None) if documents is None else documents
    with time_limit(_TEMPLATE_SECONDS, f"the chat template of profile {profile.name!r}"):
        template = renderer or compiled_template(source)
        for tool in tools or ():
            if not isinstance(tool, dict):
                raise ValueError(f"a tool must be a mapping with its JSON schema, not {tool!r}")
        for document in documents or ():
            if not isinstance(document, dict):
                raise TypeError(f"a document must be a mapping with title and text, not {document!r}")
        variables = {
            "strftime_now": profile.clock.strftime,
            **{key: _plain(value) for key, value in given.items()},
            "messages": list(messages) if is_plain else plain_chat(messages, keep_null=keep_null),
            "tools": tools if is_plain else _plain(tools),
            "documents": documents if is_plain else _plain(documents),
            "add_generation_prompt": add_generation_prompt,
        }
        if not continue_final_message:
            return _rendered(template, variables, profile)
        field = continue_final_message if isinstance(continue_final_message, str) else "content"
        variables["messages"][-1] = _plain(variables["messages"][-1])
        final = _mark_final_message(variables["messages"], field, source)
        return _cut_at_marker(_rendered(template, variables, profile), final)


def plain_chat(messages: Iterable[Mapping[str, Any]], *, keep_null: bool = False) -> list[dict[str, Any]]:
    """Return messages as a template gets them, which cannot change them; keys that are null only with `keep_null`."""
    chat = ({key: value for key, value in message.items() if keep_null or value is not None} for message in messages)
    return [_with_reasoning(_plain(message)) for message in chat]


def render_masked(
    profile: Profile, messages: Sequence[Mapping[str, Any]], **options: Any
) -> tuple[str, tuple[tuple[int, int], ...], int | None]:
    """Return the text, the begin and end (characters) of each part inside `{% generation %}`, and of what it ends with.

    That is where a generation prompt begins; None if there is none, or if it is not known from the template's end.
    Options and errors are those of `render_messages`.
    """
    token = generation_marks.set((*_MASK, _PROMPT))
    try:
        before, mark, after = render_messages(profile, messages, **options).partition(_PROMPT)
    finally:
        generation_marks.reset(token)
    marked, prompt = before + after, len(before) - sum(map(before.count, _MASK)) if mark else None
    if _MASK[0] not in marked:
        return marked, (), prompt
    spans: list[tuple[int, int]] = []
    pieces: list[str] = []
    length, begun = 0, 0
    for piece in _AT_MASK.split(marked):
        if piece == _MASK[0]:
            begun = length
        elif piece == _MASK[1]:
            spans.append((begun, length))
        else:
            pieces.append(piece)
            length += len(piece)
    return "".join(pieces), tuple(spans), prompt


def described(error: Exception) -> str:
    """Return type and message of an exception, the same wherever in the interpreter a recursion ended."""
    if isinstance(error, RecursionError):
        return f"{type(error).__name__}: the template calls itself endlessly, also in transformers"
    return f"{type(error).__name__}: {error}"


def _rendered(template: Renderer, variables: Mapping[str, Any], profile: Profile) -> str:
    """Return the text; a limit of size that the template exceeds is reported with the profile."""
    try:
        return template.render(variables)
    except LimitExceededError as error:
        what = error.message.removeprefix("the template ")
        raise LimitExceededError(f"the chat template of profile {profile.name!r} {what}", hint=error.hint) from error


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with its reasoning under every name that templates read."""
    if len(message) == 2 and "content" in message:
        return message
    reasoning = next((message[key] for key in REASONING_KEYS if message.get(key) is not None), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _plain(value: Any) -> Any:
    """Return the value rebuilt from JSON types; anything else becomes `<TypeName>`."""
    kind = type(value)
    if value is None or kind in (str, int, float, bool):
        return value
    if kind is dict:
        return {
            key if type(key) is str else _plain(key): item if type(item) is str else _plain(item)
            for key, item in value.items()
        }
    if kind is list:
        return [_plain(item) for item in value]
    for base, convert in _BASES:
        if isinstance(value, base):
            return convert(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    if kind.__module__ == "numpy" and callable(getattr(value, "item", None)) and kind.__name__ != "ndarray":
        return _plain(value.item())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if callable(getattr(value, "model_dump", None)):
        return _plain(value.model_dump())
    return f"<{kind.__name__}>"


_BASES: Final[tuple[tuple[type, Callable[[Any], Any]], ...]] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
)


def _mark_final_message(chat: list[dict[str, Any]], field: str, source: str) -> str:
    """Append the marker to the last message and return its text without it."""
    content = chat[-1].get(field)
    if content is None:
        raise ValueError(f"the final message has no {field} to continue")
    copies = [field]
    if field in REASONING_KEYS:
        copies = [key for key in REASONING_KEYS if chat[-1].get(key) == content]
    if not any(key in source for key in copies):
        raise ValueError(f"the final message cannot be continued, because the chat template does not use {field}")
    if isinstance(content, (list, tuple)):
        for block in reversed(content):
            if "text" in block:
                text: str = block["text"]
                block["text"] = text + _MARKER
                return text
        raise ValueError("the final message has no text to continue")
    for key in copies:
        chat[-1][key] = chat[-1][key] + _MARKER
    return str(content)


def _cut_at_marker(text: str, final: str) -> str:
    marker = _MARKER.strip()
    if final.strip() not in text or marker not in text:
        raise ValueError(
            f"the final message cannot be continued, because its text is not in the rendered chat: {final.strip()!r}"
        )
    at = text.rindex(marker)
    # A template that strips contents has also stripped the space after the marker.
    return text[:at] if text.startswith(_MARKER, at) else text[:at].rstrip()
