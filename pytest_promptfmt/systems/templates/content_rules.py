"""Rules about the texts of a conversation: each must be in the prompt once, in order, and as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.study import Study
from pytest_promptfmt.systems.templates.conversations import Conversation
from pytest_promptfmt.systems.templates.evidence import (
    PYTHON,
    applicable,
    attributed,
    disordered,
    doubled,
    excerpt,
    mildest,
    missing,
    python_in,
    trial_of,
    whole,
)
from pytest_promptfmt.systems.templates.trial import TemplateTrial
from pytest_promptfmt.systems.templates.turn_layout import is_for_chat

_IMAGES: Final = {"image": "second-question", "image-url": "question"}
"""Conversations with an image, and those that say the same without it."""

_NAMES: Final = {
    "call": "the name of a tool call",
    "argument": "an argument of a tool call",
    "tool": "a tool result",
    "reasoning": "reasoning",
    "assistant": "an assistant text",
    "user": "a user text",
    "system": "the system text",
    "developer": "the developer text",
}


@rule("PF433", "text-lost", severity=Severity.ERROR, family=Family.CHAT)
def text_lost(study: Study | TemplateTrial) -> Iterator[Finding]:
    r"""Report texts of a conversation that are not in the prompt.

    Why: The model cannot follow a system text, answer a question or use a tool result that it never sees, and no
    error says so. An image that leaves no trace is an info, for a template that knows images a warning.

    Example:
        # file: chat_template.jinja
        {%- for message in messages if message.role != 'system' %}
            {{- message.role + ': ' + message.content + '\n' }}
        {%- endfor %}

    Silent example:
        # include: sound_template.txt

    Fix: write the text, or refuse the conversation with `raise_exception`.

    Real: unsloth's Phi-3, open-instruct's Tulu, vLLM's Florence-2 (system text); DeepSeek-V2.5 (calls beside an empty
    content).
    """
    trial = trial_of(study)
    if trial is None:
        return
    for conversation, kind in attributed(trial, lambda each: missing(trial, each) - {"reasoning"}):
        text = whole(trial, conversation) or ""
        texts = [unit.text for unit in conversation.units if unit.kind == kind]
        lost = next((each for each in texts if each not in text), texts[0])
        yield Finding(
            message=f"{_NAMES.get(kind, f'the {kind} text')} is lost: {conversation.about}",
            saw=f"{conversation.name}: {lost!r} is not written",
            conversation=conversation.name,
            position=trial.place_of(f"'{kind}'", f'"{kind}"', "tool_calls"),
            severity=mildest(conversation, _severity_of_loss(trial, conversation, kind, lost)),
        )

    for name, without in _IMAGES.items():
        seen, unseen = trial.text(name), trial.text(without)
        if seen and unseen and seen.split() == unseen.split() and trial.conversations[name] in applicable(trial):
            yield Finding(
                message=f"an image leaves no trace in the prompt: {trial.conversations[name].about}",
                saw=f"{name}: {excerpt(seen)}",
                conversation=name,
                position=trial.place_of("'image'", '"image"', "'text'", '"text"'),
                severity=Severity.WARNING if name == "image" and trial.mentions("image") else Severity.INFO,
            )
            return  # servers make an image of an address before the template sees it


def _severity_of_loss(trial: TemplateTrial, conversation: Conversation, kind: str, text: str) -> Severity:
    """Return a warning for earlier turns, and where plain turns are not written either: it is not for chats."""
    where = next(unit.message for unit in conversation.units if unit.kind == kind and unit.text == text)
    is_earlier = kind in ("user", "assistant") and where < len(conversation.messages) - 1
    return Severity.WARNING if is_earlier or not is_for_chat(trial) else Severity.ERROR


@rule("PF434", "text-doubled", severity=Severity.ERROR, family=Family.CHAT)
def text_doubled(study: Study | TemplateTrial) -> Iterator[Finding]:
    r"""Report texts of a conversation that are in the prompt more often than they were sent.

    Why: The model sees the same answer or question twice and learns or copies the pattern.

    Example:
        # file: chat_template.jinja
        {%- for message in messages %}
            {{- message.role + ': ' + message.content + ' ' + message.content + '\n' }}
        {%- endfor %}

    Silent example:
        # include: sound_template.txt

    Fix: look for a branch that writes the content and does not end.

    Real: axolotl's Qwen3.5, which cut reasoning from a content already cut; step3 (system text).
    """
    trial = trial_of(study)
    if trial is None:
        return
    for conversation, kind in attributed(trial, lambda each: doubled(trial, each)):
        text = whole(trial, conversation) or ""
        unit = next(unit for unit in conversation.units if unit.kind == kind and text.count(unit.text) > 1)
        yield Finding(
            message=f"{_NAMES.get(kind, f'the {kind} text')} is written twice: {conversation.about}",
            saw=f"{conversation.name}: {excerpt(text, text.rfind(unit.text), text.rfind(unit.text) + len(unit.text))}",
            conversation=conversation.name,
            position=trial.place_of(f"'{kind}'", f'"{kind}"'),
            severity=mildest(conversation, Severity.WARNING if kind == "system" else Severity.ERROR),
        )


@rule("PF435", "text-out-of-order", severity=Severity.WARNING, family=Family.CHAT)
def text_out_of_order(study: Study | TemplateTrial) -> Iterator[Finding]:
    r"""Report texts that come before the text of an earlier message.

    Why: The order of turns and results is what the conversation means.

    Example:
        # file: chat_template.jinja
        {%- for message in messages | reverse %}
            {{- message.role + ': ' + message.content + '\n' }}
        {%- endfor %}

    Silent example:
        # include: sound_template.txt

    Fix: write messages in the order in which they come.

    Real: Gemma 4, which writes the text beside a tool call after the result.
    """
    trial = trial_of(study)
    if trial is None:
        return

    def faults(conversation: Conversation) -> frozenset[str]:
        if conversation.name == "parallel-reversed":
            return frozenset()
        return disordered(trial, conversation)

    for conversation, kind in attributed(trial, faults):
        yield Finding(
            message=f"{_NAMES.get(kind, f'the {kind} text')} comes before an earlier message: {conversation.about}",
            saw=f"{conversation.name}: {excerpt(whole(trial, conversation) or '')}",
            conversation=conversation.name,
            position=trial.place_of(f"'{kind}'", f'"{kind}"'),
        )


@rule("PF437", "python-in-prompt", severity=Severity.ERROR, family=Family.CHAT)
def python_in_prompt(study: Study | TemplateTrial) -> Iterator[Finding]:
    r"""Report Python's notation in a prompt: None, True, False, a printed mapping or list.

    Why: Models are trained on JSON. `{{ value }}` prints what Python would.

    Example:
        # file: chat_template.jinja
        {%- for message in messages %}
            {{- '<|begin|>' + message.role + '\n' }}{{ message.content }}{{ '<|end|>\n' }}
            {%- for call in message.tool_calls or [] %}
                {{- call.function.name }} {{ call.function.arguments }}
            {%- endfor %}
        {%- endfor %}

    Silent example:
        # include: sound_template.txt

    Fix: write mappings, lists, booleans and null with `tojson`, and leave out a content that is null.

    Real: Apriel 1.5 (arguments), mistral-common's v15 (tool results), Qwen3-Coder (types of a schema).
    """
    trial = trial_of(study)
    if trial is None:
        return
    for conversation, name in attributed(trial, lambda each: python_in(trial, each)):
        text = whole(trial, conversation) or ""
        found = list(PYTHON[name].finditer(text))[-1]
        yield Finding(
            message=f"{name} is in the prompt: {conversation.about}",
            saw=f"{conversation.name}: {excerpt(text, found.start(), found.end())}",
            conversation=conversation.name,
            position=trial.place_of("arguments", "content"),
            severity=mildest(conversation, Severity.ERROR if conversation.has_tools else Severity.WARNING),
        )
