"""From turns to the prompt of a profile: with a chat template, with a formatter, or with delimiters as plain text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Final, Literal

from jinja2.exceptions import TemplateError

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.errors import (
    LimitExceededError,
    RenderError,
    SettingsError,
    UnavailableError,
    did_you_mean,
    shortened,
)
from pytest_promptfmt.core.profile import PLAIN, Profile
from pytest_promptfmt.core.prompt import Message, Origin, Prompt, Span, Spans, Turn, join, joined_spans
from pytest_promptfmt.core.release import Release
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.profiles.conversation import described, render_messages

IMAGE: Final = "<image>"
"""The placeholder in texts that lm-eval's models of images and text make a content part of."""

_Shape = Callable[[Sequence[Mapping[str, Any]]], list[dict[str, Any]]]
"""From messages of text to messages with content parts."""

_TEMPLATE_ORIGIN: Final = Origin("chat template")


def prompt_of(
    profile: Profile,
    system: tuple[Span, ...],
    turns: tuple[Turn, ...],
    *,
    where: str = "",
    has_images: bool = False,
    media: Sequence[str] = (),
) -> Prompt:
    """Return the prompt of some turns, which end with the question (and a gen prefix, as assistant message).

    Without a chat template it is their texts and delimiters in a row; with one, what `chat_prompt` renders. `where`
    names the doc in errors. Where a doc `has_images`, placeholders in texts become content parts for a chat template
    that takes such; so do the kinds of `media`, all before the question. Raises RenderError.
    """
    opening = Turn.of((Message("system", system),)) if system else None
    if profile.chat_template is not None:
        return chat_prompt(profile, opening, turns, where=where, has_images=has_images, media=media)
    every = turns if opening is None else (opening, *turns)
    if profile.formatter is not None:
        every_message = tuple(message for turn in every for message in turn.messages)
        return Prompt(format_messages(find_formatter(profile.formatter), every_message, where=where), every_message)

    def make() -> tuple[tuple[Span, ...], tuple[Message, ...]]:
        messages = tuple([message for turn in every for message in turn.messages])
        return tuple([span for each in messages for span in (*each.content, *each.delimiter)]), messages

    return Prompt.lazy("".join([turn.text for turn in every]), make)


def join_system(instruction: str | None, description: Spans, task: Task) -> Spans:
    """Return the system text: instruction and description, the few-shot delimiter between them unless one has space.

    Before lm-eval 0.4.10 it is there in any case. Without a chat template nothing separates it from the question.
    """
    if not instruction:
        return description
    first = (Span(instruction, Origin("system instruction")),)
    position = task.position("fewshot_delimiter")
    gap = (Span(task.fewshot_delimiter, Origin("fewshot delimiter", "fewshot_delimiter", position)),)
    if description and not task.release.makes_turns:
        return (*first, *gap, *description)
    return joined_spans(first, description, gap)


def chat_prompt(
    profile: Profile,
    system: Turn | None,
    turns: Sequence[Turn],
    *,
    where: str,
    has_images: bool = False,
    media: Sequence[str] = (),
) -> Prompt:
    """Return the prompt of a profile with a chat template.

    `turns` end with the question of the evaluated doc. The generation prompt is added unless a gen prefix follows
    the question, which is then continued. A template that refuses the system message gets a second try without it
    (lm-eval 0.4.13). Raises RenderError, from the original exception.
    """
    if profile.fewshot_as_turns:
        contents = [content for turn in turns for content in turn.contents]
    else:
        question, *gen_prefix = turns[-1].contents
        contents = [("user", "".join([turn.text for turn in turns[:-1]]) + question[1]), *gen_prefix]
    parts = has_images and takes_media(profile)
    shape: _Shape | None = with_parts if parts else None
    if any(takes_media(profile, kind) for kind in media):
        shape = partial(with_media, media=media)
    text, used_system = _rendered(profile, system, contents, contents[-1][0] == "assistant", where, shape)

    def make() -> tuple[tuple[Span, ...], tuple[Message, ...]]:
        opening = system.messages if system is not None else ()
        shaped = _messages(turns) if profile.fewshot_as_turns else _merged(turns)
        if parts:
            shaped = tuple(piece for message in shaped for piece in _pieces(message))
        return _locate(text, (*opening, *shaped) if used_system is not None else shaped), (*opening, *shaped)

    return Prompt.lazy(text, make)


def prompt_of_input(
    profile: Profile, system: Spans, shots: Sequence[Turn], question: Turn, release: Release, *, where: str
) -> Prompt:
    """Return the prompt of a choice that is an input, as lm-eval before 0.4.10 has it: after the rendered shots.

    Raises RenderError.
    """
    opening = Turn.of((Message("system", system),)) if system else None
    contents = [content for turn in shots for content in turn.contents]
    if shots and not profile.fewshot_as_turns:
        contents = [("user", "".join([turn.text for turn in shots]))]
    if release.is_older and opening is None and not contents:
        error = UnavailableError(f"lm-eval {release.version} has no chat templates, so there is no prompt {where}")
        raise error.because("releases before lm-eval 0.4.3 have no chat templates, so there are no chat prompts")
    text = ""
    if opening is not None or contents or not release.renders_inputs:
        text, opening = _rendered(profile, opening, contents, False, where)
    text += _rendered(profile, None, question.contents, False, where)[0] if release.renders_inputs else question.text
    messages = (*(opening.messages if opening is not None else ()), *_messages((*shots, question)))
    return Prompt.lazy(text, lambda: (_locate(text, messages), messages))


def prompt_of_messages(
    profile: Profile, messages: Sequence[tuple[Any, Sequence[Mapping[str, Any]]]], origin: Origin, *, where: str
) -> Prompt:
    """Return the prompt of messages that a task makes itself: roles, and content parts.

    A template that takes none of their images and sound gets texts. Raises RenderError.
    """
    texts = [(role, [part["text"] for part in parts if part["type"] == "text"]) for role, parts in messages]
    kinds = {part["type"] for _, parts in messages for part in parts}
    contents: Any = [(role, "".join(pieces)) for role, pieces in texts]
    if any(takes_media(profile, kind) for kind in kinds - {"text"}):
        contents = [(role, list(parts)) for role, parts in messages]
    text, _ = _rendered(profile, None, contents, messages[-1][0] == "assistant", where)
    return prompt_of_text(text, [(role, piece) for role, pieces in texts for piece in pieces], origin)


def prompt_of_text(text: str, messages: Sequence[tuple[Any, str]], origin: Origin) -> Prompt:
    """Return the prompt of a chat text and of the roles and contents that it was rendered from."""
    shown = tuple(Message(role, (Span(content, origin),)) for role, content in messages if content)
    return Prompt.lazy(text, lambda: (_locate(text, shown), shown))


def takes_media(profile: Profile, kind: str = "image") -> bool:
    """Return whether the chat template of a profile makes something of an image in a message, next to its text."""
    source = profile.chat_template
    return source is not None and kind in source and _renders(kind, source)


@cache
def _renders(kind: str, source: str) -> bool:
    text = {"type": "text", "text": "?"}
    try:
        alone, shown = (
            render_messages(replace(PLAIN, chat_template=source), [{"role": "user", "content": content}])
            for content in ([text], [{"type": kind}, text])
        )
    except Exception:  # it refuses lists, or everything without its arguments
        return False
    # A template that prints any content as it is would show the names of the keys.
    return alone != shown and "?" in shown and "'type'" not in shown and '"type"' not in shown


def with_parts(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with lists of content parts: an image in place of each placeholder, and the texts around them."""
    return [{**message, "content": _parts(message["content"])} for message in messages]


def with_media(messages: Sequence[Mapping[str, Any]], media: Sequence[str]) -> list[dict[str, Any]]:
    """Return messages in whose last question images, sound or videos come before the text, as lmms-eval sends them."""
    made = [dict(message) for message in messages]
    question = next(message for message in reversed(made) if message["role"] == "user")
    question["content"] = [*({"type": kind} for kind in media), {"type": "text", "text": question["content"]}]
    return made


def _parts(content: str) -> list[dict[str, str]]:
    made: list[dict[str, str]] = []
    for number, text in enumerate(content.split(IMAGE)):
        made += [{"type": "image"}] if number else []
        made += [{"type": "text", "text": text}] if text else []
    return made


def _pieces(message: Message) -> Iterator[Message]:
    """Yield the texts of a message that images are between, as messages."""
    at = 0
    for text in message.text.split(IMAGE):
        if text:
            yield replace(message, content=tuple(_cut(message.content, at, at + len(text))))
        at += len(text) + len(IMAGE)


def _rendered(
    profile: Profile,
    system: Turn | None,
    contents: Sequence[tuple[str, str]],
    continues: bool,
    where: str,
    shape: _Shape | None = None,
) -> tuple[str, Turn | None]:
    """Return the text of a conversation, and its system message if the template takes it."""
    opening = system.contents if system is not None else ()
    try:
        try:
            return _render(profile, (*opening, *contents), continues, shape), system
        except TemplateError:
            return _render(profile, contents, continues, shape), None
    except LimitExceededError:
        raise
    except Exception as error:
        refused = "the template raises an error for these messages, also without the system message"
        what = shortened(described(error))
        raise RenderError(
            f"the chat template of profile {profile.name!r} fails for {where.removeprefix('of ')}: {what}",
            hint=refused if isinstance(error, TemplateError) else None,
        ) from error


def _messages(turns: Sequence[Turn]) -> tuple[Message, ...]:
    return tuple([message for turn in turns for message in turn.messages])


def _merged(turns: Sequence[Turn]) -> tuple[Message, ...]:
    """Return one user message with all turns as text, and the gen prefix as assistant message."""
    question, *gen_prefix = turns[-1].messages
    before = [span for each in _messages(turns[:-1]) for span in (*each.content, *each.delimiter)]
    return (Message("user", (*before, *question.content)), *gen_prefix)


def _render(profile: Profile, contents: Sequence[tuple[str, str]], continues: bool, shape: _Shape | None) -> str:
    messages = [{"role": role, "content": content} for role, content in contents]
    return render_messages(
        profile,
        shape(messages) if shape is not None else messages,
        add_generation_prompt=not continues,
        continue_final_message=continues,
        tools=profile.template_args.get("tools"),
        documents=profile.template_args.get("documents"),
    )


def _locate(text: str, messages: Sequence[Message]) -> tuple[Span, ...]:
    """Return the spans of a chat text: contents where they are found, in order; the rest is template markup."""
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


# -- formatters: how eval-framework 0.15.4 (package `template_formatting`) joins messages into one text ---------------

Strips = Literal["everything", "boundaries", "nothing"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Formatter:
    r"""The texts around each message.

    `strips` is which contents lose their outer whitespace: all of them (`everything`); the final message, and
    earlier user messages where `after_user` marks their end (`boundaries`); or `nothing`. `default_system` replaces the
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
    strips: Strips = "boundaries"


@cache
def formatters() -> Mapping[str, Formatter]:
    """Return the formatters by name."""
    return {name: Formatter(name=name, **texts) for name, texts in data_table("formatters").items()}


def find_formatter(name: str) -> Formatter:
    """Return the formatter of that name; raises SettingsError with a did-you-mean for an unknown one."""
    known = formatters()
    if name not in known:
        message = f"unknown formatter {name!r}; expected one of {', '.join(known)}"
        raise SettingsError(message, hint=did_you_mean(name, known))
    return known[name]


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
            if formatter.strips == "everything" or (formatter.strips == "boundaries" and at_seam):
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
                f"the formatter {formatter.name}{where and f', {where}'}: message {number + offset + 1} is from the"
                f" {message.role}, but a message from the {expected} was expected",
                hint="after an optional system message, user and assistant must alternate, starting with the user",
            )
    if not messages:
        raise RenderError(f"the formatter {formatter.name}{where and f', {where}'}: no messages")


def _markup(text: str) -> Span:
    return Span(text, _TEMPLATE_ORIGIN)


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
