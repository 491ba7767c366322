"""What the renderings of a template show, and to which conversation a fault belongs."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Hashable, Iterator, Set
from typing import Final, TypeVar

from pytest_promptfmt.core.finding import Severity
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.study import Study
from pytest_promptfmt.systems.templates.conversations import Conversation, State, Unit
from pytest_promptfmt.systems.templates.trial import TemplateTrial

Key = TypeVar("Key", bound=Hashable)

_AROUND: Final = 28
PYTHON: Final = {
    "None": re.compile(r"(?<![A-Za-z_`\"'])None(?![A-Za-z_`\"'])"),
    "True or False": re.compile(r"(?<![A-Za-z_`\"'])(?:True|False)(?![A-Za-z_`\"'])"),
    "a Python mapping or list": re.compile(r"[\[{]'|': ['\[{]"),
}
"""Python's notation in a prompt, by what it is."""
_PARTS: Final = "user-parts"
_REPR: Final = re.compile(r"[\[{]['\"]type")
_THINK: Final = re.compile(r"<(/?)((?:[a-z_]+:)?(?:think|thinking|reasoning|thought)[a-z_]*)>")


def trial_of(subject: Study | TemplateTrial) -> TemplateTrial | None:
    """Return the trial of a template's task; None for tasks of other systems."""
    if isinstance(subject, TemplateTrial):
        return subject
    task: Task = subject.given
    make: Callable[[Study], TemplateTrial] | None = getattr(task.assembly, "trial", None)
    return subject.once("template trial", lambda: make(subject)) if make is not None else None


def whole(trial: TemplateTrial, conversation: Conversation) -> str | None:
    """Return the text of a whole conversation as it is sent."""
    return trial.render(conversation, conversation.states[-1]).text


def bases(trial: TemplateTrial, conversation: Conversation) -> Iterator[Conversation]:
    """Yield the simpler conversations below one."""
    name, seen = conversation.base, {conversation.name}
    while name is not None and name not in seen:
        seen.add(name)
        conversation = trial.conversations[name]
        yield conversation
        name = conversation.base


def applicable(trial: TemplateTrial) -> list[Conversation]:
    """Return the conversations that say something about a template.

    Where it writes no tools, or takes no list of parts in a user message, it does so nowhere: that is said once.
    """
    writes_tools, parts = trial.mentions("tool_call"), trial.conversations.get(_PARTS)
    takes_parts = parts is None or _takes(trial, parts)
    return [
        each
        for each in trial.conversations.values()
        if (writes_tools or not each.has_tools) and (takes_parts or not each.has_parts or each.name == _PARTS)
    ]


def _takes(trial: TemplateTrial, parts: Conversation) -> bool:
    text = whole(trial, parts)
    return text is not None and all(unit.text in text for unit in parts.units) and not _REPR.search(text)


def mildest(conversation: Conversation, severity: Severity = Severity.ERROR) -> Severity:
    """Return a severity, no worse than a finding about the conversation can be."""
    order = (Severity.ERROR, Severity.WARNING, Severity.INFO)
    return max(severity, conversation.severity, key=order.index)


def attributed(trial: TemplateTrial, faults: Callable[[Conversation], Set[Key]]) -> Iterator[tuple[Conversation, Key]]:
    """Yield each fault with the simplest conversations that show it; what a simpler one shows is not repeated."""
    known: dict[str, Set[Key]] = {}

    def of(conversation: Conversation) -> Set[Key]:
        if conversation.name not in known:
            known[conversation.name] = faults(conversation)
        return known[conversation.name]

    for conversation in applicable(trial):
        found = of(conversation)
        if found:
            simpler = {key for base in bases(trial, conversation) for key in of(base)}
            for key in sorted(found - simpler, key=str):
                yield conversation, key


def variants(text: str) -> tuple[str, ...]:
    """Return the ways in which a text may be written into a prompt: as it is, in JSON, in Python, in HTML."""
    plain, quoted = json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]
    found = [text, quoted, plain, repr(text)[1:-1], json.dumps(quoted)[1:-1]]
    found += [html.escape(each) for each in (text, quoted, plain)]
    return tuple(dict.fromkeys(found))


def holds(rendered: str, text: str) -> bool:
    """Return whether a text is in the prompt, however it is written there."""
    return text in rendered or any(each in rendered for each in variants(text)[1:]) or text in _unescaped(rendered)


def _unescaped(rendered: str) -> str:
    """Return a text without backslashes: templates escape some characters by hand."""
    for escape, character in (("\\n", "\n"), ("\\t", "\t"), ('\\"', '"'), ("\\'", "'")):
        rendered = rendered.replace(escape, character)
    return rendered


def missing(trial: TemplateTrial, conversation: Conversation) -> frozenset[str]:
    """Return the kinds of texts of a conversation that its prompt lacks."""
    text = whole(trial, conversation)
    if text is None:
        return frozenset()
    first = trial.render(conversation, conversation.states[0]).text or ""
    lacking = set()
    for unit in conversation.units:
        if unit.kind == "call":
            before = first.count(unit.text) if len(conversation.states) > 1 else 0
            named = [each.get("id") or unit.text for each in conversation.messages[unit.message]["tool_calls"]]
            if text.count(unit.text) <= before and not all(each in text and each != unit.text for each in named):
                lacking.add(unit.kind)
        elif not holds(text, unit.text):
            lacking.add(unit.kind)
    return frozenset(lacking - {"argument"} if "call" in lacking else lacking)


def doubled(trial: TemplateTrial, conversation: Conversation) -> frozenset[str]:
    """Return the kinds of texts that the prompt holds more often than the conversation does."""
    text = whole(trial, conversation)
    if text is None:
        return frozenset()
    units = [unit for unit in conversation.units if unit.kind not in ("call", "argument")]
    given = [unit.text for unit in conversation.units]
    return frozenset(
        unit.kind for unit in units if text.count(unit.text) > sum(each.count(unit.text) for each in given)
    )


def disordered(trial: TemplateTrial, conversation: Conversation) -> frozenset[str]:
    """Return the kinds of texts that come before one of an earlier message."""
    text = whole(trial, conversation)
    if text is None:
        return frozenset()
    found: set[str] = set()
    end = 0
    for unit in conversation.units:
        if unit.kind not in ("user", "assistant", "tool") or unit.text not in text:
            continue
        at = text.find(unit.text, end)
        if at < 0:
            found.add(unit.kind)
        else:
            end = at + len(unit.text)
    return frozenset(found)


def markers(text: str, trial: TemplateTrial) -> list[str]:
    """Return the markers of a text in order, the end token among them."""
    return trial.marker.findall(text)


def excerpt(text: str, at: int = 0, end: int | None = None) -> str:
    """Return the part of a prompt around a place."""
    end = at if end is None else end
    start = max(at - _AROUND, 0)
    return f"{'…' if start else ''}{text[start : end + _AROUND]}{'…' if end + _AROUND < len(text) else ''}"


def first_difference(one: str, other: str) -> int:
    """Return the place of the first character at which two texts differ."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def think_balance(text: str) -> dict[str, int]:
    """Return for each tag of reasoning by how much its openings outnumber its closings."""
    found: dict[str, int] = {}
    for closing, name in _THINK.findall(text):
        found[name] = found.get(name, 0) + (-1 if closing else 1)
    return found


def without_generation_prompt(trial: TemplateTrial, conversation: Conversation, state: State) -> str | None:
    """Return the text of a state without what opens the answer."""
    return trial.render(conversation, State(count=state.count, generation_prompt=False)).text


def finished(trial: TemplateTrial, conversation: Conversation) -> str | None:
    """Return the text of a whole conversation without what opens another answer."""
    return without_generation_prompt(trial, conversation, conversation.states[-1])


def last_answer(conversation: Conversation) -> Unit | None:
    """Return the text of the last message where that is an answer without tool calls."""
    if conversation.messages[-1].get("role") != "assistant" or conversation.messages[-1].get("tool_calls"):
        return None
    units = [unit for unit in conversation.units if unit.message == len(conversation.messages) - 1]
    return units[-1] if units else None


def python_in(trial: TemplateTrial, conversation: Conversation) -> frozenset[str]:
    """Return what of Python's notation the prompt holds more often than that of the simpler conversation."""
    text = whole(trial, conversation)
    if text is None:
        return frozenset()
    base = whole(trial, trial.conversations[conversation.base]) if conversation.base else None
    if base is None:
        return frozenset()
    return frozenset(
        name for name, pattern in PYTHON.items() if len(pattern.findall(text)) > len(pattern.findall(base))
    )
