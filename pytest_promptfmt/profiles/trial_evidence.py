"""What the renderings of a trial show: texts that are missing, doubled or out of order, Python's notation, tags."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from jinja2 import nodes

from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.profiles.dialect import compiled_template, generation_marks
from pytest_promptfmt.profiles.probe_conversations import Conversation, State, Unit
from pytest_promptfmt.profiles.template_trial import TemplateTrial

_AROUND: Final = 28

MAPPING: Final = "a mapping or list"
BOOLEAN: Final = "True or False"
PYTHON: Final = {
    "None": re.compile(r"None(?<![A-Za-z_`\"']None)(?![A-Za-z_`\"'])"),
    BOOLEAN: re.compile(r"(?:True(?<![A-Za-z_`\"']True)|False(?<![A-Za-z_`\"']False))(?![A-Za-z_`\"'])"),
    MAPPING: re.compile(r"[\[{]'|': ['\[{]"),
}
"""Python's notation in a prompt, by what it is; what precedes is looked at last, for the sake of speed."""
_SIGNS: Final = {"None": ("None",), BOOLEAN: ("True", "False"), MAPPING: ("'",)}
"""Texts that are in each notation, which are found faster."""
_THINK: Final = re.compile(r"<(/?)((?:[a-z_]+:)?(?:think|thinking|reasoning|thought)[a-z_]*)>")


@lru_cache(maxsize=1024)
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
    lacking = frozenset(unit.kind for unit in lost_units(trial, conversation))
    return lacking - {"argument"} if "call" in lacking else lacking


def lost_units(trial: TemplateTrial, conversation: Conversation) -> list[Unit]:
    """Return the texts of a conversation that its prompt lacks; a call that is named only as a tool is lost."""
    text = trial.whole(conversation)
    if text is None:
        return []
    asked = trial.render(conversation, conversation.states[0]).text or "" if len(conversation.states) > 1 else ""

    def is_lost(unit: Unit) -> bool:
        if unit.kind != "call":
            return not holds(text, unit.text)
        named = [each.get("id") or unit.text for each in conversation.messages[unit.message]["tool_calls"]]
        is_written = all(each in text and each != unit.text for each in named)
        return text.count(unit.text) <= asked.count(unit.text) and not is_written

    return [unit for unit in conversation.units if is_lost(unit)]


def doubled(trial: TemplateTrial, conversation: Conversation) -> frozenset[str]:
    """Return the kinds of texts that the prompt holds more often than the conversation does."""
    text = trial.whole(conversation)
    if text is None:
        return frozenset()
    units = [unit for unit in conversation.units if unit.kind not in ("call", "argument")]
    given = [unit.text for unit in conversation.units]
    return frozenset(
        unit.kind
        for unit in units
        if (count := text.count(unit.text)) > 1 and count > sum(each.count(unit.text) for each in given)
    )


def disordered(trial: TemplateTrial, conversation: Conversation) -> frozenset[str]:
    """Return the kinds of texts that come before one of an earlier message."""
    text = trial.whole(conversation)
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


def excerpt(text: str, at: int = 0, end: int | None = None) -> str:
    """Return the part of a prompt around a place."""
    end = at if end is None else end
    start = max(at - _AROUND, 0)
    return f"{'…' if start else ''}{text[start : end + _AROUND]}{'…' if end + _AROUND < len(text) else ''}"


def place_printed(trial: TemplateTrial, conversation: Conversation, at: int, *texts: str) -> Position | None:
    """Return the line of the template that prints the character `at` a place of a whole conversation.

    Where that is unknown, it is the first line that holds one of the texts.
    """
    lines = [line for begin, line in written_lines(trial, conversation, conversation.states[-1]) if begin <= at]
    return trial.place(lines[-1]) if lines else trial.place_of(*texts)


def place_of_loss(trial: TemplateTrial, conversation: Conversation, lost: Unit) -> Position | None:
    """Return the line of the template at which a text should be printed.

    That is the line of what its message adds to the prompt, else the loop over messages.
    """
    text, number = trial.whole(conversation) or "", lost.message
    kinds = (f"'{lost.kind}'", f'"{lost.kind}"', "tool_calls")
    others = [*conversation.messages[:number], *conversation.messages[number + 1 :]]
    without = trial.whole(replace(conversation, messages=others)) if others else None
    if without is not None and without != text:
        return place_printed(trial, conversation, first_difference(text, without), *kinds)
    loops = [each for each in trial.nodes if isinstance(each, nodes.For)]
    read = ((each, [each.iter, *each.iter.find_all(nodes.Name)]) for each in loops)
    over = [each for each, names in read if any("messages" in getattr(name, "name", "") for name in names)]
    if without is None or not over:
        return trial.place_of(*kinds)
    return trial.place(max(over, key=lambda each: sum(1 for _ in each.find_all(nodes.Node))).lineno)


def written_lines(trial: TemplateTrial, conversation: Conversation, state: State) -> list[tuple[int, int]]:
    """Return where the pieces of a prompt begin (characters), each with the line of the template that writes it."""
    stepping, begin, found = _Stepping(trial.source), 0, []
    trial.rendered_by(stepping, conversation, state)
    for piece, line in stepping.pieces:
        if piece:
            found.append((begin, line))
        begin += len(piece)
    return found


def has_inner_mask(trial: TemplateTrial, conversation: Conversation) -> bool:
    """Return whether a piece that a template writes, such as the text of a macro, has text before a mask in it.

    transformers uses the start of the piece as the start of the mask.
    """
    stepping = _Stepping(trial.source)
    trial.rendered_by(stepping, conversation, conversation.finished)
    return stepping.has_inner_mask


class _Stepping:
    """The template as Jinja compiles it, which keeps each piece that it writes, with its line."""

    def __init__(self, source: str) -> None:
        self._source, self._template = source, compiled_template(source)
        self.pieces: list[tuple[str, int]] = []
        self.has_inner_mask = False

    def render(self, variables: Mapping[str, Any], /) -> str:
        written: Any = self._template.root_render_func(self._template.new_context(dict(variables)))
        text = []
        for piece in written:
            line = self._template.get_corresponding_lineno(written.gi_frame.f_lineno)
            plain, begin = piece, generation_marks.get()[0]
            self.has_inner_mask |= begin != "" and begin in piece[1:]
            for mark in generation_marks.get():
                plain = plain.replace(mark, "") if mark else plain
            self.pieces.append((plain, self._line_of(plain, line) if piece in written.gi_code.co_consts else line))
            text.append(piece)
        return "".join(text)

    def _line_of(self, literal: str, before: int) -> int:
        """Return the line of literal text, of which Jinja keeps only that of what is before it."""
        first, start = literal.strip().partition("\n")[0], 0
        for _ in range(before - 1):
            start = self._source.find("\n", start) + 1
        at = self._source.find(first, start)
        at = self._source.find(first) if at < 0 else at
        return before if at < 0 or not first else self._source.count("\n", 0, at) + 1


def first_difference(one: str, other: str) -> int:
    """Return the place of the first character at which two texts differ."""
    same, end = 0, min(len(one), len(other)) + 1
    while same + 1 < end:  # halves are compared, for comparing character by character takes long
        middle = (same + end) // 2
        same, end = (middle, end) if one[same:middle] == other[same:middle] else (same, middle)
    return same


def think_balance(text: str) -> dict[str, int]:
    """Return for each tag of reasoning by how much its openings outnumber its closings."""
    found: dict[str, int] = {}
    for closing, name in _THINK.findall(text):
        found[name] = found.get(name, 0) + (-1 if closing else 1)
    return found


def last_answer(conversation: Conversation) -> Unit | None:
    """Return the text of the last message where that is an answer without tool calls."""
    if conversation.messages[-1].get("role") != "assistant" or conversation.messages[-1].get("tool_calls"):
        return None
    units = [unit for unit in conversation.units if unit.message == len(conversation.messages) - 1]
    return units[-1] if units else None


def python_in(trial: TemplateTrial, conversation: Conversation) -> frozenset[str]:
    """Return what of Python's notation the prompt holds more often than that of the simpler conversation."""
    text = trial.whole(conversation)
    if text is None:
        return frozenset()
    base = trial.whole(trial.conversations[conversation.base]) if conversation.base else None
    if base is None:
        return frozenset()
    counts = zip(PYTHON, _counts_of_python(text), _counts_of_python(base), strict=True)
    return frozenset(name for name, own, simpler in counts if own > simpler)


@lru_cache(maxsize=256)
def _counts_of_python(text: str) -> tuple[int, ...]:
    return tuple(
        len(PYTHON[name].findall(text)) if any(map(text.__contains__, signs)) else 0 for name, signs in _SIGNS.items()
    )
