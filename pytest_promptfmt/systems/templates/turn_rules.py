"""Rules about turns: how they are opened and closed, and what stays of them when the conversation continues."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.study import Study
from pytest_promptfmt.systems.templates.conversations import Conversation, State
from pytest_promptfmt.systems.templates.evidence import (
    applicable,
    attributed,
    excerpt,
    first_difference,
    last_answer,
    markers,
    mildest,
    trial_of,
    without_generation_prompt,
)
from pytest_promptfmt.systems.templates.trial import TemplateTrial
from pytest_promptfmt.systems.templates.turn_layout import alternates, layout_of, marker_pairs, turns_of

_FORGED: Final = "control-tokens"


@rule("PF440", "turn-not-closed", severity=Severity.ERROR, family=Family.CHAT)
def turn_not_closed(study: Study | TemplateTrial) -> Iterator[Finding]:
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
    trial = trial_of(study)
    if trial is None:
        return
    layout, pairs = layout_of(trial), marker_pairs(trial)
    closing, plain = layout.closing, set(markers(trial.text("turns") or "", trial))
    first = layout.first_marker
    if first and layout.gap is not None and first not in layout.gap:
        yield Finding(
            message="an answer is closed at the end, and not before the next turn",
            saw=f"{layout.tail!r} at the end, {layout.gap!r} before a user message",
            position=trial.place_of(first, "eos_token"),
            severity=Severity.WARNING,
        )
    closings = dict(_closings(trial))
    if len(closings) > 1:
        (usual, _), (other, where) = list(closings.items())[:2]
        yield Finding(
            message="a user message is closed in some turns only",
            saw=f"{usual!r} and {other!r}: {where}",
            position=trial.place_of(usual),
            severity=Severity.WARNING,
        )

    def faults(conversation: Conversation) -> frozenset[str]:
        state = conversation.states[-1]
        text = without_generation_prompt(trial, conversation, state)
        if text is None or conversation.name.startswith(_FORGED) or conversation.continue_final_message:
            return frozenset()
        found = {"answer"} if closing and any(_unclosed(text, conversation, closing)) else set()
        sequence = markers(text, trial)
        ends = last_answer(conversation) is not None
        for one, other in pairs:
            only = turns_of(sequence, one, other, plain)
            open_end = only if ends or not only or only[-1] == other else only[:-1]
            if not alternates(open_end, one, other):
                found.add("pair")
        return frozenset({"pair"} if "pair" in found else found)

    for conversation, kind in attributed(trial, faults):
        text = without_generation_prompt(trial, conversation, conversation.states[-1]) or ""
        if kind == "answer":
            at = next(_unclosed(text, conversation, closing))
            saw = f"no {closing} here: {excerpt(text, at)}"
        else:
            saw = f"{' and '.join(pairs[0])} do not take turns: {excerpt(text, *_open_turn(text, pairs))}"
        yield Finding(
            message=f"a turn is not closed: {conversation.about}",
            saw=f"{conversation.name}: {saw}",
            conversation=conversation.name,
            position=trial.place_of(closing or pairs[0][1]),
            severity=mildest(conversation),
        )


def _closings(trial: TemplateTrial) -> Iterator[tuple[str, str]]:
    """Yield the marker that follows a user message of plain turns, and the place."""
    for name in ("turns", "second-question", "question"):
        text = trial.text(name, generation_prompt=True)
        for unit in trial.conversations[name].units if text else ():
            if text and unit.kind == "user" and text.count(unit.text) == 1:
                end = text.find(unit.text) + len(unit.text)
                yield from ((marker, excerpt(text, end)) for marker in markers(text[end:], trial)[:1])


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


@rule("PF441", "history-changes", severity=Severity.WARNING, family=Family.CHAT)
def history_changes(study: Study | TemplateTrial) -> Iterator[Finding]:
    r"""Report earlier turns that are written differently when the conversation goes on.

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

    Real: Phi-3.5 (an end token after whatever is last), Qwen3 (reasoning of earlier turns).
    """
    trial = trial_of(study)
    if trial is None:
        return
    for conversation, kind in attributed(trial, lambda each: _changed_history(trial, each)):
        before, after = _first_change(trial, conversation) or ("", "")
        at = first_difference(before, after)
        yield Finding(
            message=f"{kind} changes what was sent before: {conversation.about}",
            saw=f"{conversation.name}: {excerpt(before, at)!r} becomes {excerpt(after, at)!r}",
            conversation=conversation.name,
            position=trial.place(),
            severity=Severity.INFO if conversation.has_reasoning and kind == "a user message" else None,
        )


def _first_change(trial: TemplateTrial, conversation: Conversation) -> tuple[str, str] | None:
    for state, later in zip(conversation.states, conversation.states[1:], strict=False):
        before, after = without_generation_prompt(trial, conversation, state), trial.render(conversation, later).text
        if before is not None and after is not None and not after.startswith(before):
            return before, after
    return None


def _changed_history(trial: TemplateTrial, conversation: Conversation) -> frozenset[str]:
    if conversation.continue_final_message or conversation.name == "system-later":
        return frozenset()
    for state, later in zip(conversation.states, conversation.states[1:], strict=False):
        before, after = without_generation_prompt(trial, conversation, state), trial.render(conversation, later).text
        if before is not None and after is not None and not after.startswith(before):
            roles = [message["role"] for message in conversation.messages[state.count : later.count]]
            if "user" in roles:
                return frozenset({"a user message"})
            return frozenset({"the next step of a tool loop" if "tool" in roles else "an answer"})
    return frozenset()


@rule("PF444", "bos-repeated", severity=Severity.WARNING, family=Family.CHAT)
def bos_repeated(study: Study | TemplateTrial) -> Iterator[Finding]:
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
    trial = trial_of(study)
    bos = trial.profile.special_tokens.get("bos_token") if trial is not None else None
    text = trial.text("turns") if trial is not None else None
    if trial is None or not bos or text is None:
        return
    if text.count(bos) < 2:
        yield from _doubled_bos(trial, bos)
        return
    eos = trial.profile.special_tokens.get("eos_token") or bos
    follows = all(text[: found.start()].rstrip().endswith(eos) for found in list(re.finditer(re.escape(bos), text))[1:])
    yield Finding(
        message="BOS is written again after an end token" if follows else "BOS is written in the middle of the prompt",
        saw=excerpt(text, text.rfind(bos)),
        position=trial.place_of("bos_token", bos),
        severity=Severity.INFO if follows else None,
    )


def _doubled_bos(trial: TemplateTrial, bos: str) -> Iterator[Finding]:
    """Yield the first conversation that begins with two BOS, where plain turns do not."""
    for conversation in applicable(trial):
        if (trial.render(conversation, conversation.states[-1]).text or "").startswith(bos * 2):
            yield Finding(
                message=f"BOS is written twice at the beginning: {conversation.about}",
                saw=f"{conversation.name}: {bos * 2}",
                conversation=conversation.name,
                position=trial.place_of("bos_token", bos),
            )
            return


@rule("PF448", "whitespace-by-turn", severity=Severity.WARNING, family=Family.CHAT)
def whitespace_by_turn(study: Study | TemplateTrial) -> Iterator[Finding]:
    r"""Report whitespace around contents that is kept in some turns and removed in others.

    Why: The same question is another token sequence when it is asked first. What is kept in the last turn alone changes
    when the conversation goes on.

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
    trial = trial_of(study)
    text = trial.text("whitespace") if trial is not None else None
    if trial is None or text is None:
        return
    for role in ("user", "assistant"):
        said = [str(each["content"]) for each in trial.conversations["whitespace"].messages if each["role"] == role]
        kept = [content in text for content in said]
        if len(set(kept)) > 1:
            yield Finding(
                message=f"whitespace around {role} texts is kept in some turns only",
                saw=f"kept in {sum(kept)} of {len(kept)}: {excerpt(text, text.find(said[kept.index(False)].strip()))}",
                position=trial.place_of("trim", "strip"),
            )
            continue
        conversation, count = trial.conversations["whitespace"], 1 if role == "user" else 2
        last = trial.render(conversation, State(count=count, generation_prompt=False)).text
        if last is not None and said[0].strip() in last and (said[0] in last) != kept[0]:
            yield Finding(
                message=f"whitespace around {role} texts is {'removed' if kept[0] else 'kept'} in the last turn only",
                saw=excerpt(last, last.find(said[0].strip())),
                position=trial.place_of("loop.last", "trim", "strip"),
            )
