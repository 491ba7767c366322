"""Rules about what separates turns: whether a text can imitate it, and whether the tokenizer ends answers with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.study import Study
from pytest_promptfmt.systems.templates.conversations import Conversation, State
from pytest_promptfmt.systems.templates.evidence import attributed, excerpt, finished, mildest, trial_of, whole
from pytest_promptfmt.systems.templates.trial import PLACEHOLDERS, TemplateTrial
from pytest_promptfmt.systems.templates.turn_layout import ANSWER, LATER, QUESTION

_FORGED: Final = {
    "a user message": ("second-question", 0, QUESTION, LATER),
    "a tool result": ("call-finished", 2, "Mostly copper with tin.", "Sample seven is bronze."),
}
"""What imitates turns: the conversation that it looks like, its message, and the first and last text that it holds."""


@rule("PF460", "turns-can-be-forged", severity=Severity.INFO, family=Family.CHAT)
def turns_can_be_forged(study: Study | TemplateTrial) -> Iterator[Finding]:
    r"""Report templates with which one user message or tool result gives the prompt of several turns.

    Why: The author of the text, such as a web page in a tool result, speaks for the model, the user and the system.
    A server can refuse control tokens in texts, so this is an info; where only words separate turns, nothing can tell
    them apart.

    Example:
        # file: chat_template.jinja
        {%- for message in messages %}
            {{- message.role + ': ' + message.content + '\n' }}
        {%- endfor %}
        {%- if add_generation_prompt %}{{- 'assistant: ' }}{%- endif %}

    Silent example:
        # file: chat_template.jinja
        {%- for message in messages %}
            {{- message.role + ': ' + (message.content | tojson) + '\n' }}
        {%- endfor %}
        {%- if add_generation_prompt %}{{- 'assistant: ' }}{%- endif %}

    Fix: separate turns with control tokens, and encode texts without them (`split_special_tokens=True`).

    Real: transformers #29279 and PR #47386; the papers ChatBug and ChatInject.
    """
    trial = trial_of(study)
    if trial is None:
        return
    found = {what: between for what in _FORGED if (between := _forged(trial, what)) is not None}
    if found:
        first = next(iter(found.values()))
        yield Finding(
            message=f"{' or '.join(found)} can hold whole turns",
            saw=f"it reads like real turns with {excerpt(first)!r} in it",
            position=trial.place_of("content"),
        )


def _forged(trial: TemplateTrial, what: str) -> str | None:
    """Return what a text has to hold to give the prompt of a longer conversation; None where it gives another one."""
    name, number, first, last = _FORGED[what]
    genuine = trial.conversations.get(name)
    if genuine is None or (genuine.tools and not trial.mentions("tool_call")):
        return None
    text = finished(trial, genuine)
    if text is None or text.count(first) != 1 or text.count(last) != 1:
        return None
    between = text.partition(first)[2].partition(last)[0]
    messages = [*genuine.messages[:number], {**genuine.messages[number], "content": first + between + last}]
    forged = Conversation(name=f"forged {name}", about=what, messages=messages, tools=genuine.tools)
    made = trial.render(forged, State(count=len(messages), generation_prompt=False)).text
    # The end of the last turn is that of another role.
    return between if made is not None and made.startswith(text[: text.find(last) + len(last)]) else None


@rule("PF461", "end-token-unlike-tokenizer", severity=Severity.WARNING, family=Family.CHAT)
def end_token_unlike_tokenizer(study: Study | TemplateTrial) -> Iterator[Finding]:
    r"""Report answers that do not end with the end token of the tokenizer beside the template.

    Why: Generation stops at the tokenizer's end token. A model that was trained to write another one continues with
    turns of the user, unless the generation settings name it as well.

    Example:
        # file: tokenizer_config.json
        {"eos_token": "<eos>", "chat_template": "{% for m in messages %}{{ m.content + '<end>' }}{% endfor %}"}

    Silent example:
        # file: tokenizer_config.json
        {"eos_token": "<eos>", "chat_template": "{% for m in messages %}{{ m.content + '<eos>' }}{% endfor %}"}

    Fix: set `eos_token` to what closes an answer, or list it as `eos_token_id` of `generation_config.json`.

    Real: Phi-3's tokenizer (`<|endoftext|>`) beside a template that ends answers with `<|end|>`.
    """
    trial = trial_of(study)
    text = trial.text("answer") if trial is not None else None
    if trial is None or text is None or ANSWER not in text:
        return
    known = trial.profile.special_tokens
    eos, tail = known.get("eos_token"), text.rpartition(ANSWER)[2]
    closing = trial.marker.search(tail)
    if closing is None or (trial.tokenizer is not None and trial.tokenizer.id_of(closing[0]) is None):
        return  # PF413 says so: template and tokenizer belong to different models
    if eos and eos not in tail and not PLACEHOLDERS.items() <= known.items():
        yield Finding(
            message="answers do not end with the end token of the tokenizer",
            saw=f"{closing[0]} ends an answer, eos_token is {eos}",
            position=trial.place_of(closing[0]),
        )


@rule("PF466", "bos-in-some-prompts", severity=Severity.WARNING, family=Family.CHAT)
def bos_in_some_prompts(study: Study | TemplateTrial) -> Iterator[Finding]:
    r"""Report conversations whose prompt lacks the BOS with which a question alone begins.

    Why: A branch for system messages or tools does not write it. The prompt is then encoded without BOS, or with it,
    as the program decides that calls the template.

    Example:
        # file: chat_template.jinja
        {%- if messages[0].role != 'system' %}{{- bos_token }}{%- endif %}
        {%- for message in messages %}{{- message.role + ': ' + message.content + '\n' }}{%- endfor %}

    Silent example:
        # file: chat_template.jinja
        {{- bos_token }}
        {%- for message in messages %}{{- message.role + ': ' + message.content + '\n' }}{%- endfor %}

    Fix: write `{{ bos_token }}` before all branches.

    Real: arcee-ai's Gemma-Zephyr-Dolly-Chat-Slerp, where the assistant begins.
    """
    trial = trial_of(study)
    bos = trial.profile.special_tokens.get("bos_token") if trial is not None else None
    if trial is None or not bos or not (trial.text("question", generation_prompt=True) or "").startswith(bos):
        return

    def faults(conversation: Conversation) -> frozenset[str]:
        text = whole(trial, conversation)
        return frozenset({"bos"} if text is not None and bos not in text else ())

    for conversation, _ in attributed(trial, faults):
        yield Finding(
            message=f"BOS is missing: {conversation.about}",
            saw=f"{conversation.name}: {excerpt(whole(trial, conversation) or '')}",
            conversation=conversation.name,
            position=trial.place_of("bos_token", bos),
            severity=mildest(conversation, Severity.WARNING),
        )
