"""How a template lays out plain turns, learned from its own renderings: what opens and closes an answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Final

from pytest_promptfmt.profiles.probe_conversations import Conversation
from pytest_promptfmt.profiles.template_trial import TemplateTrial
from pytest_promptfmt.profiles.trial_evidence import excerpt, missing

QUESTION: Final = "Which metal rusts?"
ANSWER: Final = "Iron is the one."
LATER: Final = "And which is liquid?"
INSTRUCTION: Final = "Speak as a smith would."
THOUGHT: Final = "Rust is iron oxide."
"""Texts of the built-in conversations."""

MOST_HEADER_WORDS: Final = 12
"""The longest generation prompt that is the header of an answer; a longer one is another task."""

REASONING: Final = re.compile(
    r"<((?:[a-z_]+:)?think[a-z_]*)>.*?(?:</\1>|$)|<[^<>\s]*(?:think|reason)[^<>\s]*>", re.S | re.I
)
"""Reasoning with its tags, or a lone tag of it."""

_END_TOKEN: Final = re.compile(r"<[|｜][^<>]+[|｜]>")
_TURNS: Final = ("question", "answer", "second-question", "turns")


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnLayout:
    """The parts of plain turns; None where the template does not render them.

    `asked` is one question without, `opened` with generation prompt; `closed` the question answered, `longer` with a
    second question. `header` is what is between the question and its answer, `gap` what is between the answer and the
    next question, `tail` what follows an answer at the end, with `first_marker` in it.
    """

    asked: str | None = None
    opened: str | None = None
    closed: str | None = None
    longer: str | None = None
    header: str | None = None
    gap: str | None = None
    tail: str | None = None
    first_marker: str = ""

    @property
    def generation_prompt(self) -> str | None:
        """Return what the generation prompt adds; None where it changes what comes before."""
        if self.asked is None or self.opened is None or not self.opened.startswith(self.asked):
            return None
        return self.opened[len(self.asked) :]

    @property
    def closing(self) -> str:
        """Return the marker that closes every answer, whether or not another turn follows; empty where none does."""
        tail, gap = (self.tail or "").strip(), (self.gap or "").strip()
        first = self.first_marker
        if first in (self.asked or "").partition(QUESTION)[0]:
            return ""  # what opens the next turn closes this one
        return first if tail.startswith(first) and gap.startswith(first) else ""


def layout_of(trial: TemplateTrial, text: Callable[..., str | None] | None = None) -> TurnLayout:
    """Return the layout of plain turns, as the conversations `question` to `second-question` show it.

    `text` returns the prompt of one by its name, as `trial.text` does.
    """
    text = text or trial.text
    asked, opened = text("question"), text("question", generation_prompt=True)
    closed, longer = text("answer"), text("second-question")
    header = tail = gap = None
    if closed is not None and ANSWER in closed:
        before, _, tail = closed.rpartition(ANSWER)
        if asked is not None and before.startswith(asked):
            header = before[len(asked) :]
        elif QUESTION in before:
            header = before.rpartition(QUESTION)[2]
    if longer is not None and ANSWER in longer and LATER in longer:
        gap = longer.partition(ANSWER)[2].partition(LATER)[0]
    first = (trial.markers(tail or "") or [""])[0]
    texts = {"asked": asked, "opened": opened, "closed": closed, "longer": longer}
    return TurnLayout(**texts, header=header, gap=gap, tail=tail, first_marker=first)


def marker_pairs(trial: TemplateTrial) -> tuple[tuple[str, str], ...]:
    """Return the markers that open and close each turn in plain conversations: they take turns, one after the other.

    A turn of the template's own, such as a default system text, may be there besides.
    """
    texts = [trial.text(name) for name in _TURNS]
    if any(text is None for text in texts):
        return ()
    sequences = [trial.markers(text or "") for text in texts]
    bos = trial.profile.special_tokens.get("bos_token")
    counts = [len(trial.conversations[name].messages) for name in _TURNS]
    names = [
        name
        for name in dict.fromkeys(sequences[-1])
        if len({sequence.count(name) - count for sequence, count in zip(sequences, counts, strict=True)}) == 1
        and name != bos
    ]
    closed = [name for name in trial.markers((texts[1] or "").rpartition(ANSWER)[2]) if name in names][-1:]
    follows = {one for other, one in pairwise(sequences[-1]) if other in closed and one in names}
    for opening in (follows, names):  # where each role has a marker of its own, that behind the role opens the turn
        pairs = [(one, other) for one in sorted(opening) for other in closed if one != other]
        found = [pair for pair in pairs if all(alternates(sequence, *pair) for sequence in sequences)]
        if found:
            return tuple(found)
    return ()


def is_for_chat(trial: TemplateTrial) -> bool:
    """Return whether a template writes answers as turns: those of classifiers and rerankers make a task of them.

    It is taken for one if it renders no question.
    """
    if trial.options.is_for_scores:
        return False
    if trial.text("question") is None:
        return True
    if not trial.mentions("role"):
        return False  # the text is the same for every role
    turns, text = trial.conversations.get("turns"), trial.text("turns")
    if turns is not None and text is not None:
        first = next((unit.text for unit in turns.units if unit.kind == "assistant"), "")  # classifiers write the last
        is_there = first.casefold() in text.casefold()  # a template that changes texts may still be one for chats
        if not is_there or ("user" in missing(trial, turns) and trial.mentions("audio")):
            return False
        special = trial.profile.special_tokens.values()
        alone, all_turns = (
            [each for each in trial.markers(prompt) if each not in special]
            for prompt in (trial.text("question") or "", text)
        )
        closed = trial.markers((trial.text("question") or "").partition(QUESTION)[2])
        if closed and alone == all_turns and not missing(trial, turns):
            return False  # one turn holds the whole conversation
    asked = (layout_of(trial).opened or "").partition(QUESTION)[2]
    return len(asked.split()) <= MOST_HEADER_WORDS


def end_of_all(trial: TemplateTrial, layout: TurnLayout) -> str | None:
    """Return the token that ends each prompt without generation prompt, after the marker that closes the last turn."""
    ends = [trial.markers((text or "").partition(QUESTION)[2]) for text in (layout.asked, layout.opened)]
    answered, followed = trial.markers(layout.tail or ""), trial.markers(layout.gap or "")
    if len(answered) < 2 or not ends[0] or layout.asked == layout.opened:
        return None
    *closed, last = answered
    is_extra = ends[0][-1] == last and last not in (*ends[1], *followed) and followed[: len(closed)] == closed
    return last if is_extra else None


def is_closed(trial: TemplateTrial, layout: TurnLayout) -> bool:
    """Return whether an answer before another turn is closed as questions are, or its end is that of all prompts."""
    if layout.tail and (layout.asked or "").endswith(layout.tail):
        return True
    asked, between = ((layout.closed or "").partition(QUESTION)[at] for at in (0, 2))
    closing = trial.markers(layout.gap or "")[:1]
    opening = [each for each in trial.markers(asked) if each != trial.profile.special_tokens.get("bos_token")][:1]
    return bool(closing) and closing == trial.markers(between.partition(ANSWER)[0])[:1] != opening


def turns_of(sequence: list[str], one: str, other: str, plain: set[str]) -> list[str]:
    """Return the two markers of a pair in order, with `other` for an end token that only turns with calls have."""
    found: list[str] = []
    before = ""
    for marker in sequence:
        if marker == one and found[-1:] == [one] and _END_TOKEN.fullmatch(before) and before not in plain:
            found.append(other)
        if marker in (one, other):
            found.append(marker)
        before = marker
    return found


def alternates(sequence: list[str], one: str, other: str) -> bool:
    """Return whether two markers take turns in a sequence, `one` first and `other` last."""
    only = turns_of(sequence, one, other, set(sequence))
    return only == [one, other] * (len(only) // 2)


def closings(trial: TemplateTrial) -> Iterator[tuple[str, str]]:
    """Yield the marker between a user message of plain turns and what the model writes, and the place."""
    for name in ("turns", "second-question", "question"):
        text, units = trial.text(name, generation_prompt=True), trial.conversations[name].units
        for unit, following in zip_longest(units, units[1:]) if text else ():
            if text and unit.kind == "user" and text.count(unit.text) == 1:
                end = text.find(unit.text) + len(unit.text)
                between = REASONING.sub(
                    "", text[end:].partition(following.text)[0] if following is not None else text[end:]
                )
                yield from ((marker, excerpt(text, end)) for marker in trial.markers(between)[:1])


def unclosed(text: str, conversation: Conversation, closing: str) -> Iterator[int]:
    """Yield the ends of answers that the closing does not follow."""
    for number, message in enumerate(conversation.messages):
        merges = [each.get("role") for each in conversation.messages[number + 1 : number + 2]] == ["assistant"]
        if message.get("role") != "assistant" or "tool_calls" in message or merges:
            continue  # calls follow the text, even if there are none; two answers in a row may be written as one
        said = [unit.text for unit in conversation.units if unit.message == number and unit.kind == "assistant"]
        if said and text.count(said[-1]) == 1:
            at = text.find(said[-1]) + len(said[-1])
            if not text[at:].lstrip().startswith(closing):
                yield at


def broken_turn(text: str, pairs: tuple[tuple[str, str], ...]) -> tuple[str, int, int]:
    """Return the marker that is missing where two turns open or close one after the other, and the place of the second.

    Where none does, the last turn is not closed.
    """
    for one, other in pairs:
        last = other
        for found in re.finditer(f"{re.escape(one)}|{re.escape(other)}", text):
            if found[0] == last:
                return other if last == one else one, found.start(), found.end()
            last = found[0]
    return pairs[0][1], len(text), len(text)
