"""What a chat template does to any conversation, in sentences: `promptfmt profiles --facts`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.profile import Profile

if TYPE_CHECKING:
    from pytest_promptfmt.chat.template_facts import TemplateFacts


def facts_of(profile: Profile) -> TemplateFacts | None:
    """Return the facts of a profile's chat template, its tokenizer loaded; None for a profile without one.

    A template that cannot be had is one whose facts say so.
    """
    from pytest_promptfmt.chat.profile_loading import load_profile
    from pytest_promptfmt.chat.template_facts import TemplateFacts
    from pytest_promptfmt.chat.template_probes import template_facts

    if not profile.is_chat:
        return None
    try:
        return template_facts(load_profile(profile).profile)
    except PromptfmtError as error:
        return TemplateFacts(failure=error.message)


def facts_as_data(facts: TemplateFacts) -> dict[str, Any]:
    """Return the facts as JSON's types, under their own names."""
    data: dict[str, Any] = asdict(replace(facts, errors={}))  # which copies no read-only mapping
    return {**data, "errors": dict(facts.errors)}


def fact_lines(facts: TemplateFacts) -> Iterator[str]:
    """Yield the facts as short sentences; texts are quoted as in JSON."""
    if facts.failure:
        yield f"renders nothing: {facts.failure}"
        return
    yield f"user {facts.user}, assistant {facts.assistant}, system {facts.system}, developer {facts.developer}"
    taken = {"two user messages in a row": facts.takes_two_users, "an answer first": facts.takes_assistant_first}
    refused = [what for what, is_taken in taken.items() if not is_taken]
    if refused:
        yield f"refuses {' and '.join(refused)}"
    if facts.opening:
        yield f"begins with {_quoted(facts.opening)}"
    if facts.default_system:
        yield "writes a system text of its own where none is given"
    if facts.follows_clock or facts.dates:
        dates = ", ".join(facts.dates) or "the date"
        yield f"writes {dates}, {'which follows the clock' if facts.follows_clock else 'whatever the clock says'}"
    yield from _about_answers(facts)
    think = "stays in" if facts.keeps_think else "is cut out of"
    reasoning = "printed" if facts.keeps_reasoning else "left out"
    yield f"<think>…</think> {think} earlier answers, their reasoning_content is {reasoning}"
    yield f"tools {facts.tools}, arguments of calls {facts.tool_arguments}, as JSON text {facts.tool_arguments_text}"
    yield f"contents in parts {facts.parts}, contents without value {facts.none}"


def _about_answers(facts: TemplateFacts) -> Iterator[str]:
    if facts.generation_prompt is None:
        yield "changes what stands before where an answer is to begin"
    elif facts.generation_prompt:
        yield f"asks for an answer with {_quoted(facts.generation_prompt)}"
    else:
        yield "asks for an answer without words"
    if facts.answer == "gap":
        yield f"has {_quoted(facts.answer_gap)} before a finished answer"
    elif facts.answer == "differs":
        yield "begins finished answers otherwise than it asks for one"
    if facts.answer_end:
        yield f"ends an answer with {_quoted(facts.answer_end)}"
    if not facts.keeps_prefix:
        yield "rewrites earlier turns when the conversation goes on"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
