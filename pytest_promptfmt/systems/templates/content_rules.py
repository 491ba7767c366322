"""Rules about texts: each of a conversation is in the prompt once, in order and as text, and no other by accident."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from jinja2 import nodes

from pytest_promptfmt.core.finding import Finding, Severity
from pytest_promptfmt.profiles.probe_conversations import MARKER, Conversation, Unit
from pytest_promptfmt.profiles.template_facts import template_facts
from pytest_promptfmt.profiles.template_trial import TemplateTrial
from pytest_promptfmt.profiles.trial_evidence import (
    BOOLEAN,
    MAPPING,
    PYTHON,
    disordered,
    doubled,
    excerpt,
    first_difference,
    lost_units,
    missing,
    place_of_loss,
    place_printed,
    python_in,
)
from pytest_promptfmt.profiles.turn_layout import ANSWER
from pytest_promptfmt.rules.rule_views import finding, info, warning
from pytest_promptfmt.systems.templates.constructs import lost_assignments, removed_words, stripped_letters
from pytest_promptfmt.systems.templates.template_subjects import template_rule

_NUMBERED: Final = re.compile(r"\D{1,24}(?<!\d)1\D{1,24}")
_IMAGES: Final = {"image": "second-question", "image-url": "question"}
"""Conversations with an image, and the same ones without it."""

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


@template_rule("PF433", "text-lost", severity=Severity.ERROR)
def text_lost(trial: TemplateTrial) -> Iterator[Finding]:
    """Report texts of a conversation that are not in the prompt.

    Why: The model never sees the text, which may be a system text, a question or a tool result. No error reports this.
    If an image is not in the prompt, the finding is an info, or a warning if the template supports images. If the
    template calls `strip` with a word, the finding is a warning: `strip` removes single characters from both ends of a
    text, not the word. It is also a warning if `replace` removes a word from inside other words, too. If a tool result
    is under the name of another tool, the finding is an error: the right name is lost.

    Fix: print the text in the template, or refuse the conversation with `raise_exception`.

    Real: unsloth's Phi-3, open-instruct's Tulu, vLLM's Florence-2 (system text); DeepSeek-V2.5 (tool calls of a message
    with empty content).
    """

    def lost_in(conversation: Conversation) -> frozenset[str]:
        lost = missing(trial, conversation) - {"reasoning"}
        is_known = "argument" in lost and any("call" in missing(trial, base) for base in trial.bases(conversation))
        return lost - {"argument"} if is_known else lost

    for conversation, kind in trial.attributed(lost_in):
        lost = [unit for unit in lost_units(trial, conversation) if unit.kind == kind][-1]
        is_tool = lost.text in (trial.whole(conversation) or "")
        yield conversation.finding(
            f"{_NAMES.get(kind, f'the {kind} text')} is lost in a conversation with {conversation.about}",
            f"{lost.text!r} is {'only among the tools' if is_tool else 'not in the prompt'}",
            place_of_loss(trial, conversation, lost),
            _severity_of_loss(trial, conversation, lost),
        )

    for name, without in _IMAGES.items():
        seen, unseen = trial.text(name), trial.text(without)
        is_given = name in trial.sent and trial.conversations[name].about == trial.given[name].about  # with its image
        if seen and unseen and seen.split() == unseen.split() and is_given:
            yield trial.conversations[name].finding(
                f"an image is not in the prompt of a conversation with {trial.conversations[name].about}",
                excerpt(seen),
                trial.place_of("'image'", '"image"', "'text'", '"text"'),
                Severity.WARNING if name == "image" and trial.mentions("image") else Severity.INFO,
            )
            break  # servers make an image of an address before the template sees it
    once = trial.sent.get("image")
    if once is not None and (seen := trial.finished(once)) and trial.mentions("image"):
        asked, *later = once.messages
        twice = [{**asked, "content": [asked["content"][0], *asked["content"]]}, *later]
        other, place = trial.finished(replace(once, messages=twice)) or "", trial.place_of("'image'", '"image"')
        at, length = first_difference(seen, other), len(other) - len(seen)
        added, saw = other[at : at + length], excerpt(other, at - length, at + length)
        if other == seen != trial.text("second-question"):
            yield once.finding("a second image is not in the prompt", excerpt(seen), place, Severity.WARNING)
        elif length > 0 and _NUMBERED.fullmatch(added) and other[at - length :].startswith(added):
            yield once.finding("two images have the same number", saw, place, Severity.WARNING)
    system = trial.sent.get("system-alone-with-question")
    for word, line in removed_words(trial.nodes) if system is not None else ():
        begins, given = "Read docs", f"Read docs{word}ing first."
        told = [{**each, "content": given} for each in system.messages] if system is not None else []
        text = trial.whole(Conversation(name="word", about="a longer word", messages=told)) or ""
        if text.count(begins) > text.count(given):
            at = next(each.start() for each in re.finditer(begins, text) if not text.startswith(given, each.start()))
            message, saw = f"{word} is removed from inside of other words", f"{given!r} becomes {excerpt(text, at)!r}"
            yield warning(message, saw, trial.place(line), do="read it only at the end of a text")
            break
    for call, letters, line in stripped_letters(trial.nodes):
        yield warning(call, letters, trial.place(line), do="use split or replace, which take the whole word")
    for name in ("parallel", "parallel-without-names"):
        saw = _misnamed(trial, trial.conversations[name]) if name in trial.sent else ""
        if saw and "call" not in missing(trial, trial.conversations[name]):
            message, place = "a tool result is written under the name of another tool", trial.place_of("tool_call_id")
            found = trial.conversations[name].finding(message, saw, place)
            yield replace(found, do="find the call of a result by its tool_call_id")
            break


def _misnamed(trial: TemplateTrial, conversation: Conversation) -> str:
    """Return what is before a result of two parallel calls if it names only the tool of the other result.

    The other result shows that names come before results: they may follow them, and calls may end with a name.
    """
    texts = {kind: [unit.text for unit in conversation.units if unit.kind == kind] for kind in _PARTS_OF_CALLS}
    if any(len(each) != 2 for each in texts.values()):
        return ""  # a conversation of the user's own, or one with less
    (one, other), (_, argument), (first, second) = texts.values()
    head, _, tail = (trial.finished(conversation) or "").partition(first)
    before, between = head.rpartition(argument)[2], tail.partition(second)[0] if second in tail else ""
    if one in before and one in between and other not in between:
        return between
    return before if other in before and other in between and one not in before else ""


_PARTS_OF_CALLS: Final = ("call", "argument", "tool")


def _severity_of_loss(trial: TemplateTrial, conversation: Conversation, lost: Unit) -> Severity:
    """Return a warning for earlier turns, and an info for what a format may have no place for.

    That is text next to a call, and a second call if a comment says that the template takes only one.
    """
    kind, later = lost.kind, conversation.messages[lost.message + 1 :]
    is_earlier = kind in ("user", "assistant") and any(each.get("role") == kind for each in later)
    asked_again = next(
        (at for at, each in enumerate(later, start=lost.message + 1) if each.get("role") == "user"), None
    )
    if kind in ("call", "argument", "tool") and asked_again is not None:  # it may have been written until then
        before, after = trial.finished(conversation, asked_again), trial.whole(conversation)
        is_earlier = (before or "").count(lost.text) > (after or "").count(lost.text)
    is_beside_call = kind == "assistant" and bool(conversation.messages[lost.message].get("tool_calls"))
    calls = [unit for unit in conversation.units if (unit.kind, unit.message) == ("call", lost.message)]
    takes_first = "calls" not in trial.kinds and _FIRST_CALL.search(trial.source) is not None
    is_second_call = takes_first and lost in calls[1:]
    if is_beside_call or (is_second_call and _ONE_CALL.search(trial.source)):
        return Severity.INFO
    return Severity.WARNING if is_earlier or is_second_call else Severity.ERROR


_ONE_CALL: Final = re.compile(r"\{#[^#]*\b(?:1|one|single|first) tool[ _-]?call", re.I)
_FIRST_CALL: Final = re.compile(r"tool_calls['\")\]]*\s*(?:\[0\]|\|\s*first)")


@template_rule("PF434", "text-doubled", severity=Severity.ERROR)
def text_doubled(trial: TemplateTrial) -> Iterator[Finding]:
    """Report texts and tool calls that a template writes twice.

    Why: The model sees the same answer or question twice, and copies this pattern.

    Fix: find the two branches that write the repeated text, and remove the text from one branch.

    Real: axolotl's Qwen3.5, which removed the reasoning a second time; step3 (system text).
    """
    for conversation, kind in trial.attributed(lambda each: doubled(trial, each)):
        text = trial.whole(conversation) or ""
        unit = next(unit for unit in conversation.units if unit.kind == kind and text.count(unit.text) > 1)
        at = text.rfind(unit.text)
        yield conversation.finding(
            f"{_NAMES.get(kind, f'the {kind} text')} is written twice in a conversation with {conversation.about}",
            excerpt(text, at, at + len(unit.text)),
            place_printed(trial, conversation, at, f"'{kind}'", f'"{kind}"'),
        )

    called, text = trial.sent.get("call"), trial.text("call") or ""
    argument = _argument_of(called)
    if called is not None and argument and text.count(argument) > 1:
        saw, place = excerpt(text, text.rfind(argument)), trial.place_of("tool_calls")
        yield trial.conversations["call"].finding("a tool call is written twice", saw, place)


def _argument_of(conversation: Conversation | None) -> str:
    """Return the text of the first argument of a call, empty where there is none."""
    units = conversation.units if conversation is not None else ()
    return next((unit.text for unit in units if unit.kind == "argument"), "")


@template_rule("PF435", "text-out-of-order", severity=Severity.WARNING)
def text_out_of_order(trial: TemplateTrial) -> Iterator[Finding]:
    """Report texts that a template writes before the texts of earlier messages.

    Why: The order of turns and results is part of the meaning of a conversation. For the text of a message with a tool
    call, the finding is an info: it may be the model's own format.

    Fix: write the messages in the order of the conversation.

    Real: Gemma 4: if a message has a text and a tool call, the text comes after the tool's result.
    """

    def faults(each: Conversation) -> frozenset[str]:
        return frozenset() if each.name == "parallel-reversed" else disordered(trial, each)

    for conversation, kind in trial.attributed(faults):
        what = _NAMES.get(kind, f"the {kind} text")
        yield conversation.finding(
            f"{what} is written out of order in a conversation with {conversation.about}",
            excerpt(trial.whole(conversation) or ""),
            trial.place_of(f"'{kind}'", f'"{kind}"'),
            Severity.INFO
            if any(each.get("tool_calls") and each.get("content") for each in conversation.messages)
            else None,
        )


@template_rule("PF437", "python-in-prompt", severity=Severity.ERROR)
def python_in_prompt(trial: TemplateTrial) -> Iterator[Finding]:
    """Report Python's notation in a prompt: None, True, False, or a mapping or list as Python prints it.

    Why: Models are trained on JSON, but `{{ value }}` prints a value as Python does. For a value in the description of
    a tool, or an argument that is None, the finding is a warning if the value is inside JSON, or is a list inside
    quotes. Otherwise it is an info. If a prompt with tools has True or False, the finding is an info, because the
    parsers of servers accept both words. If the template itself writes tool calls or keys in Python's notation, all
    findings are infos.

    Fix: use `tojson` for values that are not text, and write nothing for a content that is null.

    Real: Apriel 1.5 (arguments), mistral-common's v15 (tool results), Qwen3-Coder (types of a schema).
    """
    argument = re.escape(_argument_of(trial.given.get("call-finished")) or "(?!)")
    is_format = re.search(rf"\(\s*\w+=['\"]?{argument}", trial.text("call-finished") or "") is not None  # Python calls
    strings = (each.value for each in trial.nodes if isinstance(each, nodes.Const) and isinstance(each.value, str))
    writes_keys = any(_PYTHON_KEY.search(each) for each in strings)
    reported = set[tuple[str, str | None]]()
    for conversation, (name, is_called) in trial.attributed(
        lambda each: frozenset((name, each.has_tools) for name in python_in(trial, each))
    ):
        is_scalar = name != MAPPING and not any(each.get("content", "") is None for each in conversation.messages)
        if is_scalar and ((is_format and is_called) or (name, conversation.base) in reported):
            continue
        reported |= {(name, conversation.base)} if is_scalar else set()
        text = trial.whole(conversation) or ""
        found = [each for each in PYTHON[name].finditer(text) if text[each.start() :][:_OWN] not in trial.source][-1:]
        for start, end in (each.span() for each in found):
            severity = Severity.WARNING
            if not is_scalar and (is_called or conversation.has_parts):
                severity = Severity.ERROR
            elif (is_called or conversation.tools) and not _is_value(text, start, end, name):
                severity = Severity.INFO
            yield conversation.finding(
                f"the prompt contains {_PYTHON_VALUES[name]} in a conversation with {conversation.about}",
                excerpt(text, start, end),
                place_printed(trial, conversation, start, "arguments", "content"),
                Severity.INFO if writes_keys else severity,
            )


_PYTHON_VALUES: Final = {"None": "Python's None", BOOLEAN: "Python's True or False", MAPPING: "a Python dict or list"}


def _is_value(text: str, start: int, end: int, name: str) -> bool:
    """Return whether a place is the value of a key in JSON, or a mapping or list that two of the same marker quote."""
    opened, closed = re.search(rf'": ?\Z|(?:{MARKER.pattern})\Z', text[:start][-_MARKER:]), MARKER.search(text, end)
    if opened is None or name == BOOLEAN:
        return False
    return opened[0][0] == '"' or (name == MAPPING and closed is not None and opened[0] == closed[0])


_MARKER: Final = 64
"""The length of the longest marker."""
_PYTHON_KEY: Final = re.compile(r"[{,]\s*'\w+': *'?\Z")
"""The end of a text that writes a key and its quotes, before a value."""
_OWN: Final = 16
"""Characters that show whether a text is the template's own."""


# -- text of the template ----------------------------------------------------------------------------------------------

_QUOTED: Final = re.compile(rf"""\s*(['"])[^'"]*(?:{MARKER.pattern})[^'"]*\1\s*""")
"""A whole piece of text between two tags that is a marker in quotation marks."""
_PROSE: Final = re.compile(r"\btools?\b|\bfunction calls?\b", re.I)


@template_rule("PF445", "value-unused", severity=Severity.ERROR)
def value_unused(trial: TemplateTrial) -> Iterator[Finding]:
    """Report a variable that is set in a loop and used after it, if this changes a prompt.

    Why: After a loop, Jinja resets each variable to its value before the loop. So a flag or text that the loop
    collected is lost.

    Fix: keep the value in a `namespace`, or use a filter such as `selectattr`.

    Real: text-generation-webui's Alpaca and Vicuna (a default text in addition to the system text), MiniCPM5 (tool
    calls).
    """
    for name, line, conversation in lost_assignments(trial):
        message = f"a loop sets {name!r}, but the new value is lost after the loop"
        yield conversation.finding(message, trial.source.splitlines()[line - 1].strip(), trial.place(line))


@template_rule("PF447", "stray-text", severity=Severity.ERROR)
def stray_text(trial: TemplateTrial) -> Iterator[Finding]:
    """Report accidental text, such as quotation marks around the prompt, or words about tools if there are none.

    Why: Jinja prints all text of a template that is outside its tags. A space or line break at the start of the prompt
    is a warning, or an info if the template has it in quotes. The finding is also an info for a space between an
    answer and its end token.

    Fix: remove the accidental text from the template.

    Real: LLaMA-Factory (`'<s>'` outside of `{{ }}`), axolotl's Falcon-H1 (quotation marks of a configuration file),
    vLLM's Baichuan (line breaks).
    """
    text = trial.text("answer")
    if text is None:
        return
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        saw, do = f"{text[:20]} … {text[-20:]}", "remove the quotation marks from the template"
        yield finding("the whole prompt is in quotation marks", saw, trial.place(1), do=do)
    written = (each for each in trial.nodes if isinstance(each, nodes.TemplateData) and each.data.strip() in text)
    outside = next((each for each in written if _QUOTED.fullmatch(each.data)), None)
    if outside is not None:
        message, do = "a text in quotation marks is outside of {{ }}", "write it inside of {{ and }}"
        yield finding(message, outside.data, trial.place(outside.lineno), do=do)
    if text[:1].isspace() and not (text.startswith("\n") and template_facts(trial).indentation):  # which has a rule
        what = "a line break" if text[0] == "\n" else "a space"
        do = "remove this whitespace, or trim it with {%- and -%}"
        strings = (each.value for each in trial.nodes if isinstance(each, nodes.Const) and isinstance(each.value, str))
        openings = (each[:_OWN] for each in strings if each.strip() and text.startswith(each[:_OWN]))
        is_opening = any((trial.text("turns") or "").count(each) == 1 for each in openings)  # not that of each turn
        severity = Severity.INFO if is_opening else Severity.WARNING
        yield finding(f"the prompt begins with {what}", excerpt(text), trial.place(1), severity=severity, do=do)
    ended = text.partition(ANSWER)[2]
    if ended.startswith(" ") and trial.marker.match(ended.lstrip(" ")):
        yield info(
            "there is a space between an answer and its end token",
            excerpt(text, len(text) - len(ended)),
            trial.place_of("eos_token", ended.strip()),
            do="remove the space",
        )
    asked = trial.text("question") or ""
    prose = [line for line in asked.partition("Which metal")[0].splitlines() if len(line.split()) > 4]
    found = next((line for line in prose if _PROSE.search(line)), None)
    if found is not None and trial.mentions("tools"):
        yield info(
            "the prompt mentions tools although none are given",
            excerpt(found),
            trial.place_of(found[:30]),
            do="write this text only if tools are given",
        )
