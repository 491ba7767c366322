"""From turns to the prompt of a profile: with a chat template, with a formatter, or with delimiters as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jinja2.exceptions import TemplateError

from pytest_promptfmt.core.errors import LimitExceededError, RenderError, shortened
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.prompt import Message, Origin, Prompt, Span, Spans, Turn, joined_spans
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.profiles.conversation import render_messages
from pytest_promptfmt.profiles.formatters import find_formatter, format_messages

_TEMPLATE_ORIGIN: Final = Origin("chat template")


def prompt_of(profile: Profile, system: tuple[Span, ...], turns: tuple[Turn, ...], *, where: str = "") -> Prompt:
    """Return the prompt of some turns, which end with the question (and a gen prefix, as assistant message).

    Without a chat template it is their texts and delimiters in a row; with one, what `chat_prompt` renders. `where`
    names the doc in errors. Raises RenderError.
    """
    opening = Turn.of((Message("system", system),)) if system else None
    if profile.chat_template is not None:
        return chat_prompt(profile, opening, turns, where=where)
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

    Without a chat template nothing separates it from the question (lm-eval 0.4.13).
    """
    if not instruction:
        return description
    first = (Span(instruction, Origin("system instruction")),)
    position = task.position("fewshot_delimiter")
    gap = (Span(task.fewshot_delimiter, Origin("fewshot delimiter", "fewshot_delimiter", position)),)
    return joined_spans(first, description, gap)


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
        what = shortened(f"{type(error).__name__}: {error}")
        raise RenderError(
            f"the chat template of profile {profile.name!r} fails {where}: {what}",
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
