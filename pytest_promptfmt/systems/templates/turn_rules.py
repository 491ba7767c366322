"""Rules about turns: how they open and close, what stays of them later, and whether a text can imitate them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.core.finding import Finding, Severity
from pytest_promptfmt.profiles.probe_conversations import Conversation, State
from pytest_promptfmt.profiles.template_trial import PLACEHOLDERS, TemplateTrial
from pytest_promptfmt.profiles.trial_evidence import excerpt, first_difference, last_answer
from pytest_promptfmt.profiles.turn_layout import (
    ANSWER,
    LATER,
    QUESTION,
    alternates,
    layout_of,
    marker_pairs,
    turns_of,
)
from pytest_promptfmt.rules.rule_views import finding
from pytest_promptfmt.systems.templates.template_subjects import template_rule

_CONTROL_TOKENS: Final = "control-tokens"


@template_rule("PF440", "turn-not-closed", severity=Severity.ERROR)
def turn_not_closed(trial: TemplateTrial) -> Iterator[Finding]:
    r"""Report turns that are not closed before the next one begins.

    Why: The model's own turn seems to go on through tool results and user messages; it no longer stops where it should.

    Example:
        # file: chat_template.jinja
        {%- for message in messages %}
            {{- '<|begin|>' + message.role + '\n' + message.content }}
            {{- '' if loop.index0 and messages[loop.index0 - 1].role == 'tool' else '<|end|>\n' }}
            {%- for call in message.tool_calls or [] %}{{- call.function | tojson }}{% endfor %}
        {%- endfor %}

    Silent example:
        # include: sound_template.txt

    Fix: write the marker that closes a turn in every branch.

    Real: Gemma 4, which did not close the turn after a tool result; axolotl's Mistral v7;
    Falcon-H1R, which looks for the neighbours of a tool result in the wrong list after a system message.
    """
    layout, pairs = layout_of(trial), marker_pairs(trial)
    closing, plain = layout.closing, set(trial.markers(trial.text("turns") or ""))
    first = layout.first_marker
    if first and layout.gap is not None and first not in layout.gap:
        yield finding(
            "an answer is closed at the end, and not before the next turn",
            f"{layout.tail!r} at the end, {layout.gap!r} before a user message",
            trial.place_of(first, "eos_token"),
            severity=Severity.WARNING,
        )
    closings = dict(_closings(trial))
    if len(closings) > 1:
        (usual, _), (other, where) = list(closings.items())[:2]
        yield finding(
            "a user message is closed in some turns only",
            f"{usual!r} and {other!r}: {where}",
            trial.place_of(usual),
            severity=Severity.WARNING,
        )

    def faults(conversation: Conversation) -> frozenset[str]:
        state = conversation.states[-1]
        text = trial.without_generation_prompt(conversation, state)
        if text is None or conversation.name.startswith(_CONTROL_TOKENS) or conversation.continue_final_message:
            return frozenset()
        found = {"answer"} if closing and any(_unclosed(text, conversation, closing)) else set()
        sequence = trial.markers(text)
        ends = last_answer(conversation) is not None
        for one, other in pairs:
            only = turns_of(sequence, one, other, plain)
            open_end = only if ends or not only or only[-1] == other else only[:-1]
            if not alternates(open_end, one, other):
                found.add("pair")
        return frozenset({"pair"} if "pair" in found else found)

    for conversation, kind in trial.attributed(faults):
        text = trial.without_generation_prompt(conversation, conversation.states[-1]) or ""
        if kind == "answer":
            at = next(_unclosed(text, conversation, closing))
            saw = f"no {closing} here: {excerpt(text, at)}"
        else:
            saw = f"{' and '.join(pairs[0])} do not take turns: {excerpt(text, *_open_turn(text, pairs))}"
        yield conversation.finding(
            f"a turn is not closed: {conversation.about}",
            saw,
            trial.place_of(closing or pairs[0][1]),
            conversation.mildest(),
        )


def _closings(trial: TemplateTrial) -> Iterator[tuple[str, str]]:
    """Yield the marker that follows a user message of plain turns, and the place."""
    for name in ("turns", "second-question", "question"):
        text = trial.text(name, generation_prompt=True)
        for unit in trial.conversations[name].units if text else ():
            if text and unit.kind == "user" and text.count(unit.text) == 1:
                end = text.find(unit.text) + len(unit.text)
                yield from ((marker, excerpt(text, end)) for marker in trial.markers(text[end:])[:1])


def _unclosed(text: str, conversation: Conversation, closing: str) -> Iterator[int]:
    """Yield the ends of answers that the closing does not follow."""
    for number, message in enumerate(conversation.messages):
        if message.get("role") != "assistant" or message.get("tool_calls"):
            continue
        said = [unit.text for unit in conversation.units if unit.message == number and unit.kind == "assistant"]
        if said and text.count(said[-1]) == 1:
            at = text.find(said[-1]) + len(said[-1])
            if not text[at:].lstrip().startswith(closing):
                yield at


def _open_turn(text: str, pairs: tuple[tuple[str, str], ...]) -> tuple[int, int]:
    """Return the place of a marker that opens a turn before the last one is closed."""
    for one, other in pairs:
        last = other
        for found in re.finditer(f"{re.escape(one)}|{re.escape(other)}", text):
            if found[0] == last:
                return found.start(), found.end()
            last = found[0]
    return len(text), len(text)


@template_rule("PF441", "history-changes", severity=Severity.WARNING)
def history_changes(trial: TemplateTrial) -> Iterator[Finding]:
    r"""Report earlier turns that are written differently when the conversation continues.

    Why: Caches of prefixes are lost, and multi-turn training does not match what the model saw when it answered. It is
    an info where reasoning is dropped.

    Example:
        # file: chat_template.jinja
        {%- for message in messages %}
            {{- '<|begin|>' + message.role + '\n' + message.content }}
            {{- '<|end|><|done|>' if loop.last else '<|end|>\n' }}
        {%- endfor %}

    Silent example:
        # include: sound_template.txt

    Fix: write a turn without looking at what follows it.

    Real: Phi-3.5 (an end token after the last turn of any role), Qwen3 (reasoning of earlier turns).
    """
    for conversation, kind in trial.attributed(lambda each: _changed_history(trial, each)):
        before, after = _first_change(trial, conversation) or ("", "")
        at = first_difference(before, after)
        yield conversation.finding(
            f"{kind} changes what was sent before: {conversation.about}",
            f"{excerpt(before, at)!r} becomes {excerpt(after, at)!r}",
            trial.place(),
            Severity.INFO if conversation.has_reasoning and kind == "a user message" else None,
        )


def _first_change(trial: TemplateTrial, conversation: Conversation) -> tuple[str, str] | None:
    for state, later in zip(conversation.states, conversation.states[1:], strict=False):
        before, after = trial.without_generation_prompt(conversation, state), trial.render(conversation, later).text
        if before is not None and after is not None and not after.startswith(before):
            return before, after
    return None


def _changed_history(trial: TemplateTrial, conversation: Conversation) -> frozenset[str]:
    if conversation.continue_final_message or conversation.name == "system-later":
        return frozenset()
    for state, later in zip(conversation.states, conversation.states[1:], strict=False):
        before, after = trial.without_generation_prompt(conversation, state), trial.render(conversation, later).text
        if before is not None and after is not None and not after.startswith(before):
            roles = [message["role"] for message in conversation.messages[state.count : later.count]]
            if "user" in roles:
                return frozenset({"a user message"})
            return frozenset({"the next step of a tool loop" if "tool" in roles else "an answer"})
    return frozenset()


@template_rule("PF444", "bos-repeated", severity=Severity.WARNING)
def bos_repeated(trial: TemplateTrial) -> Iterator[Finding]:
    r"""Report BOS in the middle of a prompt.

    Why: Models see BOS once in training. After an end token it may be the format of an older model.

    Example:
        # file: chat_template.jinja
        {%- for message in messages %}
            {{- bos_token + message.role + ': ' + message.content + '\n' }}
        {%- endfor %}

    Silent example:
        # include: sound_template.txt

    Fix: write BOS once, before the first message.

    Real: chat_templates' Mistral, which wrote BOS before every user message.
    """
    bos = trial.profile.special_tokens.get("bos_token")
    text = trial.text("turns")
    if not bos or text is None:
        return
    if text.count(bos) < 2:
        yield from _doubled_bos(trial, bos)
        return
    eos = trial.profile.special_tokens.get("eos_token") or bos
    follows = all(text[: found.start()].rstrip().endswith(eos) for found in list(re.finditer(re.escape(bos), text))[1:])
    yield finding(
        "BOS is written again after an end token" if follows else "BOS is written in the middle of the prompt",
        excerpt(text, text.rfind(bos)),
        trial.place_of("bos_token", bos),
        severity=Severity.INFO if follows else None,
    )


def _doubled_bos(trial: TemplateTrial, bos: str) -> Iterator[Finding]:
    """Yield the first conversation that begins with two BOS, where plain turns do not."""
    for conversation in trial.applicable():
        if (trial.render(conversation, conversation.states[-1]).text or "").startswith(bos * 2):
            yield conversation.finding(
                f"BOS is written twice at the beginning: {conversation.about}",
                bos * 2,
                trial.place_of("bos_token", bos),
            )
            return


@template_rule("PF448", "whitespace-by-turn", severity=Severity.WARNING)
def whitespace_by_turn(trial: TemplateTrial) -> Iterator[Finding]:
    r"""Report whitespace around contents that is kept in some turns and removed in others.

    Why: The same question is another token sequence when it is asked first. Whitespace that is kept only in the last
    turn changes when the conversation continues.

    Example:
        # file: chat_template.jinja
        {%- for message in messages %}
            {{- message.role + ': ' + (message.content if loop.first else message.content | trim) + '\n' }}
        {%- endfor %}

    Silent example:
        # include: sound_template.txt

    Fix: strip contents everywhere or nowhere.

    Real: Granite Guardian 3.0, which strips all user texts but one.
    """
    text = trial.text("whitespace")
    if text is None:
        return
    for role in ("user", "assistant"):
        said = [str(each["content"]) for each in trial.conversations["whitespace"].messages if each["role"] == role]
        kept = [content in text for content in said]
        if len(set(kept)) > 1:
            yield finding(
                f"whitespace around {role} texts is kept in some turns only",
                f"kept in {sum(kept)} of {len(kept)}: {excerpt(text, text.find(said[kept.index(False)].strip()))}",
                trial.place_of("trim", "strip"),
            )
            continue
        conversation, count = trial.conversations["whitespace"], 1 if role == "user" else 2
        last = trial.render(conversation, State(count=count, generation_prompt=False)).text
        if last is not None and said[0].strip() in last and (said[0] in last) != kept[0]:
            yield finding(
                f"whitespace around {role} texts is {'removed' if kept[0] else 'kept'} in the last turn only",
                excerpt(last, last.find(said[0].strip())),
                trial.place_of("loop.last", "trim", "strip"),
            )


# -- imitated turns, end tokens ----------------------------------------------------------------------------------------

_FORGED: Final = {
    "a user message": ("second-question", 0, QUESTION, LATER),
    "a tool result": ("call-finished", 2, "Mostly copper with tin.", "Sample seven is bronze."),
}
"""Texts that imitate turns: the imitated conversation, the message, and the first and last text that it holds."""


@template_rule("PF460", "turns-can-be-forged", severity=Severity.INFO)
def turns_can_be_forged(trial: TemplateTrial) -> Iterator[Finding]:
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
    found = {what: between for what in _FORGED if (between := _forged(trial, what)) is not None}
    if found:
        first = next(iter(found.values()))
        yield finding(
            f"{' or '.join(found)} can hold whole turns",
            f"it reads like real turns with {excerpt(first)!r} in it",
            trial.place_of("content"),
        )


def _forged(trial: TemplateTrial, what: str) -> str | None:
    """Return what a text has to hold to give the prompt of a longer conversation; None where it gives another one."""
    name, number, first, last = _FORGED[what]
    genuine = trial.conversations.get(name)
    if genuine is None or (genuine.tools and not trial.mentions("tool_call")):
        return None
    text = trial.finished(genuine)
    if text is None or text.count(first) != 1 or text.count(last) != 1:
        return None
    between = text.partition(first)[2].partition(last)[0]
    messages = [*genuine.messages[:number], {**genuine.messages[number], "content": first + between + last}]
    forged = Conversation(name=f"forged {name}", about=what, messages=messages, tools=genuine.tools)
    made = trial.render(forged, State(count=len(messages), generation_prompt=False)).text
    # The end of the last turn is that of another role.
    return between if made is not None and made.startswith(text[: text.find(last) + len(last)]) else None


@template_rule("PF461", "end-token-unlike-tokenizer", severity=Severity.WARNING)
def end_token_unlike_tokenizer(trial: TemplateTrial) -> Iterator[Finding]:
    r"""Report answers that do not end with the end token of the tokenizer next to the template.

    Why: Generation stops at the tokenizer's end token. A model that was trained to write another one continues with
    turns of the user, unless the generation settings name it as well.

    Example:
        # file: tokenizer_config.json
        {"eos_token": "<eos>", "chat_template": "{% for m in messages %}{{ m.content + '<end>' }}{% endfor %}"}

    Silent example:
        # file: tokenizer_config.json
        {"eos_token": "<eos>", "chat_template": "{% for m in messages %}{{ m.content + '<eos>' }}{% endfor %}"}

    Fix: set `eos_token` to what closes an answer, or list it as `eos_token_id` of `generation_config.json`.

    Real: Phi-3's tokenizer (`<|endoftext|>`) with a template that ends answers with `<|end|>`.
    """
    text = trial.text("answer")
    if text is None or ANSWER not in text:
        return
    known = trial.profile.special_tokens
    eos, tail = known.get("eos_token"), text.rpartition(ANSWER)[2]
    closing = trial.marker.search(tail)
    if closing is None or (trial.tokenizer is not None and trial.tokenizer.id_of(closing[0]) is None):
        return  # PF413 reports that template and tokenizer belong to different models
    if eos and eos not in tail and not PLACEHOLDERS.items() <= known.items():
        yield finding(
            "answers do not end with the end token of the tokenizer",
            f"{closing[0]} ends an answer, eos_token is {eos}",
            trial.place_of(closing[0]),
        )


@template_rule("PF466", "bos-in-some-prompts", severity=Severity.WARNING)
def bos_in_some_prompts(trial: TemplateTrial) -> Iterator[Finding]:
    r"""Report conversations whose prompt lacks the BOS with which a single question begins.

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
    bos = trial.profile.special_tokens.get("bos_token")
    if not bos or not (trial.text("question", generation_prompt=True) or "").startswith(bos):
        return

    for conversation in trial.simplest(lambda each: (text := trial.whole(each)) is not None and bos not in text):
        yield conversation.finding(
            f"BOS is missing: {conversation.about}",
            excerpt(trial.whole(conversation) or ""),
            trial.place_of("bos_token", bos),
            conversation.mildest(Severity.WARNING),
        )
