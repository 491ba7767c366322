"""Rules about turns: how they are opened and closed, and what stays of them when the conversation goes on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.chat.template_probes import MARKER
from pytest_promptfmt.checks.registry import check
from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.study import Study
from pytest_promptfmt.systems.templates.conversations import Conversation
from pytest_promptfmt.systems.templates.evidence import (
    attributed,
    excerpt,
    finished,
    first_difference,
    last_answer,
    markers,
    mildest,
    missing,
    think_balance,
    trial_of,
    whole,
    without_generation_prompt,
)
from pytest_promptfmt.systems.templates.layout import ANSWER, alternates, layout_of, marker_pairs
from pytest_promptfmt.systems.templates.loop_scope import lost_assignments
from pytest_promptfmt.systems.templates.trial import Trial

_FORGED: Final = "control-tokens"
_THOUGHT: Final = re.compile(
    r"<((?:[a-z_]+:)?think[a-z_]*)>.*?(?:</\1>|$)|<[^<>\s]*(?:think|reason)[^<>\s]*>", re.S | re.I
)
_MOST_WORDS: Final = 12
"""The longest generation prompt that is the header of an answer."""
_PROSE: Final = re.compile(r"\btools?\b|\bfunction calls?\b", re.I)


@check("PF440", "turn-not-closed", severity=Severity.ERROR, family=Family.CHAT)
def turn_not_closed(study: Study | Trial) -> Iterator[Finding]:
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

    Real: Gemma 4, which did not close the turn after a tool result; Mistral v7.
    """
    trial = trial_of(study)
    if trial is None:
        return
    layout, pairs = layout_of(trial), marker_pairs(trial)
    closing = layout.closing
    first = layout.first_marker
    if first and layout.gap is not None and first not in layout.gap:
        yield Finding(
            message="an answer is closed at the end, and not before the next turn",
            saw=f"{layout.tail!r} at the end, {layout.gap!r} before a user message",
            position=trial.place_of(first, "eos_token"),
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
            only = [marker for marker in sequence if marker in (one, other)]
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
            position=trial.place_of(closing or pairs[0][1]),
            severity=mildest(conversation),
        )


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


@check("PF441", "history-changes", severity=Severity.WARNING, family=Family.CHAT)
def history_changes(study: Study | Trial) -> Iterator[Finding]:
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
            position=trial.place(),
            severity=Severity.INFO if conversation.has_reasoning and kind == "a user message" else None,
        )


def _first_change(trial: Trial, conversation: Conversation) -> tuple[str, str] | None:
    for state, later in zip(conversation.states, conversation.states[1:], strict=False):
        before, after = without_generation_prompt(trial, conversation, state), trial.render(conversation, later).text
        if before is not None and after is not None and not after.startswith(before):
            return before, after
    return None


def _changed_history(trial: Trial, conversation: Conversation) -> frozenset[str]:
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


@check("PF442", "generation-prompt", severity=Severity.ERROR, family=Family.CHAT)
def generation_prompt(study: Study | Trial) -> Iterator[Finding]:
    r"""Report a generation prompt that is missing, not asked for, or unlike the beginning of finished answers.

    Why: The model is asked to continue a text that it never saw in training.

    Example:
        # file: chat_template.jinja
        {%- for message in messages %}
            {{- '<|begin|>' + message.role + '\n' + message.content + '<|end|>\n' }}
        {%- endfor %}

    Silent example:
        # include: sound_template.txt

    Fix: end the template with `{% if add_generation_prompt %}` and the header of an answer.

    Real: Alpaca (missing, or a user's header), Phi-3 and Apriel 1.6 (always written).
    """
    trial = trial_of(study)
    if trial is None:
        return
    layout = layout_of(trial)
    asked, opened, closed, header = layout.asked, layout.opened, layout.closed, layout.header
    if asked is None or opened is None:
        return
    place = trial.place_of("add_generation_prompt")
    tail, label = (layout.tail or "").rstrip(), (header or "").strip()
    if len(label) > 2 and tail.endswith(label):
        yield Finding(
            message="a generation prompt is written where none is asked for",
            saw=f"after the last answer: {layout.tail!r}",
            position=place,
        )
    elif opened == asked and label and label not in asked and closed is not None and closed.startswith(asked):
        yield Finding(
            message="the generation prompt is missing",
            saw=f"answers begin with {header!r}, and add_generation_prompt adds nothing",
            position=place,
        )
    elif closed is not None and ANSWER in closed and opened != asked:
        added = layout.generation_prompt
        is_header = added is not None and len(added.split()) <= _MOST_WORDS  # a longer one is a task of its own
        is_added = is_header and closed.startswith(asked)
        yield from _compared(trial, opened, closed.rpartition(ANSWER)[0], is_added=is_added)
    if opened != opened.rstrip(" \t"):
        yield Finding(
            message="the generation prompt ends with a space",
            saw=excerpt(opened, len(opened)),
            position=place,
            severity=Severity.WARNING,
        )


def _compared(trial: Trial, opened: str, begun: str, *, is_added: bool) -> Iterator[Finding]:
    """Yield how finished answers begin in another way than the generation prompt ends."""
    if begun == opened:
        return
    place = trial.place_of("add_generation_prompt")
    at = first_difference(opened, begun)
    saw = f"generation prompt {excerpt(opened, at)!r}, finished answer {excerpt(begun, at)!r}"
    plain, finished = (re.sub(r"\s+", "", _THOUGHT.sub("", text)) for text in (opened, begun))
    if plain != finished:
        yield Finding(
            message="finished answers begin in another way than the generation prompt",
            saw=saw,
            position=place,
            severity=None if is_added and not _begins(plain, finished) else Severity.WARNING,
        )
    elif re.sub(r"\s+", "", opened) != re.sub(r"\s+", "", begun):
        yield Finding(
            message="the generation prompt holds other reasoning tags than finished answers",
            saw=saw,
            position=place,
            severity=Severity.INFO,
        )
    else:
        yield Finding(
            message="finished answers begin with other whitespace than the generation prompt",
            saw=saw,
            position=place,
            severity=Severity.INFO,
        )


def _begins(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


@check("PF443", "default-beside-system", severity=Severity.INFO, family=Family.CHAT)
def default_beside_system(study: Study | Trial) -> Iterator[Finding]:
    r"""Report a text of the template that stays in the prompt beside a given system text.

    Why: It may be meant as a preamble. Where it is a default, the model gets two system texts.

    Example:
        # file: chat_template.jinja
        You are a helpful assistant of our company.
        {%- for message in messages %}
            {{- '<|begin|>' + message.role + '\n' + message.content + '<|end|>\n' }}
        {%- endfor %}
        {%- if add_generation_prompt %}{{- '<|begin|>assistant\n' }}{%- endif %}

    Silent example:
        # include: sound_template.txt

    Fix: write the default only where no system message is given.

    Real: Alpaca and Vicuna templates of text-generation-webui.
    """
    trial = trial_of(study)
    if trial is None:
        return
    asked, given = trial.text("question"), trial.text("system-alone-with-question")
    if asked is None or given is None or "Speak as a smith" not in given:
        return
    opening = asked.partition("Which metal rusts?")[0]
    pieces = re.split(rf"\n|{MARKER.pattern}", opening)
    kept = [piece.strip() for piece in pieces if len(piece.split()) > 4 and piece.strip() in given]
    if kept:
        yield Finding(
            message="a text of the template stays beside the given system text",
            saw=excerpt(kept[0]),
            position=trial.place_of(kept[0][:30]),
        )


@check("PF444", "bos-repeated", severity=Severity.WARNING, family=Family.CHAT)
def bos_repeated(study: Study | Trial) -> Iterator[Finding]:
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

    Real: Mistral templates that write BOS before every user message.
    """
    trial = trial_of(study)
    bos = trial.profile.special_tokens.get("bos_token") if trial is not None else None
    text = trial.text("turns") if trial is not None else None
    if trial is None or not bos or text is None or text.count(bos) < 2:
        return
    eos = trial.profile.special_tokens.get("eos_token") or bos
    follows = all(text[: found.start()].rstrip().endswith(eos) for found in list(re.finditer(re.escape(bos), text))[1:])
    yield Finding(
        message="BOS is written again after an end token" if follows else "BOS is written in the middle of the prompt",
        saw=excerpt(text, text.rfind(bos)),
        position=trial.place_of("bos_token", bos),
        severity=Severity.INFO if follows else None,
    )


@check("PF445", "set-inside-loop", severity=Severity.WARNING, family=Family.CHAT)
def set_inside_loop(study: Study | Trial) -> Iterator[Finding]:
    r"""Report a variable that is set inside a loop and read after it, if that changes a prompt.

    Why: Jinja gives a variable back its old value after a loop, so that a flag or text collected there is lost.

    Example:
        # file: chat_template.jinja
        {%- set found = false %}
        {%- for message in messages %}{% if message.role == 'system' %}{% set found = true %}{% endif %}{% endfor %}
        {%- if not found %}{{- 'You are a helpful assistant of our company.\n' }}{%- endif %}
        {%- for message in messages %}
            {{- '<|begin|>' + message.role + '\n' + message.content + '<|end|>\n' }}
        {%- endfor %}
        {%- if add_generation_prompt %}{{- '<|begin|>assistant\n' }}{%- endif %}

    Silent example:
        # include: sound_template.txt

    Fix: keep it in a `namespace`, or use a filter such as `selectattr`.

    Real: Alpaca and Vicuna (a default beside the system text), Qwen3.5 (text parts lost).
    """
    trial = trial_of(study)
    if trial is None or trial.syntax_error is not None:
        return
    for name, line in lost_assignments(trial):
        yield Finding(
            message="a variable set inside a loop is read after it, where it has its old value",
            saw=f"{name}: {trial.source.splitlines()[line - 1].strip()}",
            position=trial.place(line),
        )


@check("PF446", "reasoning-tags", severity=Severity.WARNING, family=Family.CHAT)
def reasoning_tags(study: Study | Trial) -> Iterator[Finding]:
    r"""Report tags of reasoning that are not balanced, and reasoning of the last answer that is lost.

    Why: A second or unclosed block of reasoning is a prompt that the model never saw. Reasoning that is left out of the
    last answer cannot be trained on (an info).

    Example:
        # file: chat_template.jinja
        {%- for message in messages %}
            {{- '<|begin|>' + message.role + '\n' }}
            {%- if message.role == 'assistant' %}{{- '<think></think>' }}{% endif %}
            {{- message.content + '<|end|>\n' }}
        {%- endfor %}
        {%- if add_generation_prompt %}{{- '<|begin|>assistant\n<think>' }}{%- endif %}

    Silent example:
        # include: sound_template.txt

    Fix: split the content at the closing tag before a block of reasoning is written.

    Real: TRL's Qwen3 templates (an empty block before a completion that only closes its reasoning).
    """
    trial = trial_of(study)
    if trial is None or not trial.mentions("think>", "reasoning", "thinking"):
        return

    def faults(conversation: Conversation) -> frozenset[str]:
        text = finished(trial, conversation)
        if text is None or last_answer(conversation) is None or conversation.continue_final_message:
            return frozenset()
        balance = think_balance(text)
        base = finished(trial, trial.conversations[conversation.base]) if conversation.base else ""
        usual = think_balance(base or "")
        opened = think_balance(trial.text("question", generation_prompt=True) or "")
        return frozenset(
            name
            for name, count in balance.items()
            if count != usual.get(name, 0) and f"/{name}>" in trial.source
            if f"<{name}>" in text or opened.get(name, 0) > 0  # else the caller's text is passed on as it is
        )

    for conversation, name in attributed(trial, faults):
        text = whole(trial, conversation) or ""
        yield Finding(
            message=f"tags of reasoning are not balanced: {conversation.about}",
            saw=f"{conversation.name}: {excerpt(text, text.rfind(f'</{name}>'))}",
            position=trial.place_of(f"</{name}>"),
        )
    if trial.mentions("reasoning_content", "reasoning", "thinking"):
        yield from _lost_reasoning(trial)


def _lost_reasoning(trial: Trial) -> Iterator[Finding]:
    lost = {
        name
        for name in ("reasoning", "reasoning-call", "reasoning-in-content")
        if name in trial.conversations and "reasoning" in missing(trial, trial.conversations[name])
    }
    for name in sorted(lost):
        yield Finding(
            message=f"the reasoning of the last answer is lost: {trial.conversations[name].about}",
            saw=name,
            position=trial.place_of("reasoning_content", "</think>"),
            severity=Severity.INFO,
        )


@check("PF447", "stray-text", severity=Severity.WARNING, family=Family.CHAT)
def stray_text(study: Study | Trial) -> Iterator[Finding]:
    r"""Report accidental text: quotes at both ends, a line break at the beginning, words about missing tools.

    Why: What the template's file holds around its tags is printed.

    Example:
        # file: chat_template.jinja
        "{%- for message in messages %}
            {{- message.role + ': ' + message.content + '\n' }}
        {%- endfor %}"

    Silent example:
        # include: sound_template.txt

    Fix: remove the text, or use `{%-` and `-%}`.

    Real: Falcon-H1 (quotes of the configuration file), Baichuan (line breaks).
    """
    trial = trial_of(study)
    text = trial.text("answer") if trial is not None else None
    if trial is None or text is None:
        return
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        yield Finding(
            message="quotes are at both ends of the prompt",
            saw=f"{text[:20]} … {text[-20:]}",
            position=trial.place(1),
        )
    if text[:1] == "\n":
        yield Finding(message="the prompt begins with a line break", saw=excerpt(text), position=trial.place(1))
    asked = trial.text("question") or ""
    prose = [line for line in asked.partition("Which metal")[0].splitlines() if len(line.split()) > 4]
    found = next((line for line in prose if _PROSE.search(line)), None)
    if found is not None and trial.mentions("tools"):
        yield Finding(
            message="the prompt speaks of tools where none are given",
            saw=excerpt(found),
            position=trial.place_of(found[:30]),
            severity=Severity.INFO,
        )


@check("PF448", "whitespace-by-turn", severity=Severity.WARNING, family=Family.CHAT)
def whitespace_by_turn(study: Study | Trial) -> Iterator[Finding]:
    r"""Report whitespace around contents that is kept in some turns and removed in others.

    Why: The same question is another token sequence when it is asked first.

    Example:
        # file: chat_template.jinja
        {%- for message in messages %}
            {{- message.role + ': ' + (message.content if loop.first else message.content | trim) + '\n' }}
        {%- endfor %}

    Silent example:
        # include: sound_template.txt

    Fix: strip contents everywhere or nowhere.

    Real: Templates with a separate branch for the first user message.
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
