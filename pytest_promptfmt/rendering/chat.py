"""Chat templates: the dialect of transformers 5.23, rendered without importing transformers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from jinja2 import Template as JinjaTemplate
from jinja2 import nodes, pass_eval_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.utils import Namespace

from pytest_promptfmt.errors import LimitExceededError, RenderError
from pytest_promptfmt.limits import time_limit
from pytest_promptfmt.profiles import Profile
from pytest_promptfmt.rendering.context import Turn
from pytest_promptfmt.rendering.prompt import Message, Origin, Prompt, Span
from pytest_promptfmt.rendering.sandbox import LimitedSandbox

_MARKER: Final = "CONTINUE_FINAL_MESSAGE_TAG "
_REASONING_KEYS: Final = ("reasoning_content", "thinking", "reasoning")
_TEMPLATE_SECONDS: Final = 10.0
_CACHED_TEMPLATES: Final = 512
_TEMPLATE_ORIGIN: Final = Origin("chat template")


def render_messages(
    profile: Profile,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
) -> str:
    """Return the text of a conversation, as transformers 5.23 renders it with `tokenize=False`.

    Raises jinja2's exceptions as they are, ValueError and TypeError where transformers does, and
    LimitExceededError.
    """
    source = profile.chat_template
    if source is None:
        raise ValueError(f"the profile {profile.name!r} has no chat template")
    template = _compile(source)
    chat = [_with_reasoning(_plain(message)) for message in messages]
    final: str | None = None
    if continue_final_message:
        final = _mark_final_message(chat, source)
    # Whatever the profile gives wins over the special tokens, as with keywords of apply_chat_template.
    variables = {
        "strftime_now": profile.clock.strftime,
        **profile.special_tokens,
        **{key: _plain(value) for key, value in profile.template_args.items()},
        "messages": chat,
        "tools": _plain(tools),
        "documents": _plain(documents),
        "add_generation_prompt": add_generation_prompt,
    }
    with time_limit(_TEMPLATE_SECONDS, f"the chat template of profile {profile.name!r}"):
        text = template.render(variables)
    return text if final is None else _cut_at_marker(text, final)


def chat_prompt(profile: Profile, system: Turn | None, turns: Sequence[Turn], *, where: str) -> Prompt:
    """Return the prompt of a profile with a chat template.

    `turns` end with the question of the evaluated doc. The generation prompt is added unless a gen prefix follows
    the question, which is then continued. A template that refuses the system message gets a second try without it
    (lm-eval 0.4.13). Raises RenderError, from the original exception.
    """
    opening = list(system.contents) if system is not None else []
    if profile.fewshot_as_turns:
        contents = [content for turn in turns for content in turn.contents]
    else:
        question, *gen_prefix = turns[-1].contents
        contents = [("user", "".join([turn.text for turn in turns[:-1]]) + question[1]), *gen_prefix]
    used_system = system
    try:
        try:
            text = _render(profile, opening + contents)
        except TemplateError:
            used_system = None
            text = _render(profile, contents)
    except LimitExceededError:
        raise
    except Exception as error:
        refused = "the template refuses these messages with and without the system message"
        raise RenderError(
            f"the chat template of profile {profile.name!r} fails {where}: {type(error).__name__}: {error}",
            hint=refused if isinstance(error, TemplateError) else None,
        ) from error

    def make() -> tuple[tuple[Span, ...], tuple[Message, ...]]:
        opening = system.messages if system is not None else ()
        shaped = _messages(turns) if profile.fewshot_as_turns else _merged(turns)
        return _locate(text, (*opening, *shaped) if used_system is not None else shaped), (*opening, *shaped)

    return Prompt.lazy(text, make)


def _messages(turns: Sequence[Turn]) -> tuple[Message, ...]:
    return tuple([message for turn in turns for message in turn.messages])


def _merged(turns: Sequence[Turn]) -> tuple[Message, ...]:
    """Return one user message with all turns as text, and the gen prefix as assistant message."""
    question, *gen_prefix = turns[-1].messages
    before = [span for each in _messages(turns[:-1]) for span in (*each.content, *each.delimiter)]
    return (Message("user", (*before, *question.content)), *gen_prefix)


def _render(profile: Profile, contents: Sequence[tuple[str, str]]) -> str:
    continues = contents[-1][0] == "assistant"
    return render_messages(
        profile,
        [{"role": role, "content": content} for role, content in contents],
        add_generation_prompt=not continues,
        continue_final_message=continues,
    )


def _locate(text: str, messages: Sequence[Message]) -> tuple[Span, ...]:
    """Return the spans of a chat text: contents where they are found, in order; all else is template markup."""
    spans: list[Span] = []
    done = 0
    for message in messages:
        content = message.text
        start, skipped = text.find(content, done), 0
        if start < 0:
            # Templates often strip contents.
            skipped = len(content) - len(content.lstrip())
            content = content.strip()
            start = text.find(content, done)
        if start < 0 or not content:
            continue
        if start > done:
            spans.append(Span(text[done:start], _TEMPLATE_ORIGIN))
        done = start + len(content)
        spans.extend(_cut(message.content, skipped, skipped + len(content)))
    if done < len(text):
        spans.append(Span(text[done:], _TEMPLATE_ORIGIN))
    return tuple(spans)


def _cut(spans: tuple[Span, ...], start: int, end: int) -> Sequence[Span]:
    cut: list[Span] = []
    at = 0
    for span in spans:
        after = at + len(span.text)
        if start <= at and after <= end:
            cut.append(span)
        elif at < end and after > start:
            cut.append(Span(span.text[max(start - at, 0) : end - at], span.origin))
        at = after
    return cut


def _with_reasoning(message: Any) -> Any:
    """Return a message without None values, its reasoning under every name that templates read."""
    if not isinstance(message, dict):
        raise TypeError(f"a chat message must be a mapping, not {message!r}")
    if len(message) == 2:
        return message
    reasoning = next((message[key] for key in _REASONING_KEYS if message.get(key) is not None), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _plain(value: Any) -> Any:
    """Return the value rebuilt from JSON types; anything else becomes `<TypeName>`."""
    kind = type(value)
    if value is None or kind in (str, int, float, bool):
        return value
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


def _mark_final_message(chat: list[dict[str, Any]], source: str) -> str:
    """Append the marker to the last message and return its text without it."""
    if not chat:
        raise ValueError("there is no final message to continue: the conversation is empty")
    content = chat[-1].get("content")
    if content is None:
        raise ValueError("the final message has no content to continue")
    if "content" not in source:
        raise ValueError("the chat template never reads the content of a message, so none can be continued")
    if isinstance(content, (list, tuple)):
        for block in reversed(content):
            if "text" in block:
                text: str = block["text"]
                block["text"] = text + _MARKER
                return text
        raise ValueError("the final message has no text to continue")
    chat[-1]["content"] = content + _MARKER
    return str(content)


def _cut_at_marker(text: str, final: str) -> str:
    marker = _MARKER.strip()
    if final.strip() not in text or marker not in text:
        raise ValueError(
            f"the final message {final.strip()!r} does not appear in the rendered chat, so it cannot be continued"
        )
    at = text.rindex(marker)
    # A template that strips contents has also stripped the space after the marker.
    return text[:at] if text.startswith(_MARKER, at) else text[:at].rstrip()


@lru_cache(maxsize=_CACHED_TEMPLATES)
def _compile(source: str) -> JinjaTemplate:
    return _ENVIRONMENT.from_string(source)


class _Generation(Extension):
    """`{% generation %}`: marks what the assistant says; it prints its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    @pass_eval_context
    def _body(self, _: nodes.EvalContext, caller: Macro) -> str:
        return caller()


class _TemplateDict:
    """`dict` as templates may use it."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class _TemplateNamespace(Namespace):
    """`namespace` without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *values = args
        attributes = dict(*values, **kwargs)
        for name in attributes:
            _refuse_underscore(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


def _refuse_underscore(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace of a chat template may not hold {name!r}: names must not begin with '_'")


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> LimitedSandbox:
    environment = LimitedSandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = environment.limited_filter("tojson", _tojson)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["dict"] = _TemplateDict()
    environment.globals["namespace"] = _TemplateNamespace
    return environment


_ENVIRONMENT: Final = _environment()
