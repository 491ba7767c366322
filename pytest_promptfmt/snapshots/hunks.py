"""Which lines differ between two lists of lines, and which words of two lines, in bounded time."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Final, NamedTuple

from pytest_promptfmt.core.text import shared_end, shared_start

# SequenceMatcher is cubic at worst; beyond this many pairs of lines it is not used.
_SMALL = 10_000


class Hunk(NamedTuple):
    """Lines `old_start:old_end` became lines `new_start:new_end`; one of the two may be empty."""

    old_start: int
    old_end: int
    new_start: int
    new_end: int


def find_hunks(old: Sequence[str], new: Sequence[str]) -> list[Hunk]:
    """Return the differing stretches of two lists of lines, in order, none touching the next."""
    hunks: list[Hunk] = []
    old_at = new_at = 0
    for old_match, new_match in [*_matches(old, new, Hunk(0, len(old), 0, len(new))), (len(old), len(new))]:
        if old_at < old_match or new_at < new_match:
            hunks.append(Hunk(old_at, old_match, new_at, new_match))
        old_at, new_at = old_match + 1, new_match + 1
    return hunks


def _matches(old: Sequence[str], new: Sequence[str], within: Hunk) -> Iterator[tuple[int, int]]:
    """Yield pairs of indexes of equal lines, ascending in both."""
    low, high, new_low, new_high = within
    while low < high and new_low < new_high and old[low] == new[new_low]:
        yield low, new_low
        low, new_low = low + 1, new_low + 1
    tail = 0
    while low < high and new_low < new_high and old[high - 1] == new[new_high - 1]:
        high, new_high, tail = high - 1, new_high - 1, tail + 1
    if low < high and new_low < new_high:
        yield from _inner_matches(old, new, Hunk(low, high, new_low, new_high))
    yield from ((high + number, new_high + number) for number in range(tail))


def _inner_matches(old: Sequence[str], new: Sequence[str], within: Hunk) -> Iterator[tuple[int, int]]:
    low, high, new_low, new_high = within
    if high - low == new_high - new_low:
        # A changed format changes lines in place, the same few in every shot.
        same = [(low + at, new_low + at) for at in range(high - low) if old[low + at] == new[new_low + at]]
        if 2 * len(same) >= high - low:
            yield from same
            return
    if (high - low) * (new_high - new_low) <= _SMALL:
        matcher = SequenceMatcher(None, old[low:high], new[new_low:new_high], autojunk=False)
        for block in matcher.get_matching_blocks():
            yield from ((low + block.a + at, new_low + block.b + at) for at in range(block.size))
        return
    anchors = _anchors(old, new, within)
    if not anchors:
        if high - low == new_high - new_low:
            yield from ((low + at, new_low + at) for at in range(high - low) if old[low + at] == new[new_low + at])
        return
    for old_match, new_match in anchors:
        yield from _matches(old, new, Hunk(low, old_match, new_low, new_match))
        yield old_match, new_match
        low, new_low = old_match + 1, new_match + 1
    yield from _matches(old, new, Hunk(low, high, new_low, new_high))


def _anchors(old: Sequence[str], new: Sequence[str], within: Hunk) -> list[tuple[int, int]]:
    """Return the longest ascending run of lines that occur once on either side (patience diff)."""
    low, high, new_low, new_high = within
    old_counts, new_counts = Counter(old[low:high]), Counter(new[new_low:new_high])
    where = {new[at]: at for at in range(new_low, new_high) if new_counts[new[at]] == 1}
    pairs = [(at, where[old[at]]) for at in range(low, high) if old_counts[old[at]] == 1 and old[at] in where]
    ends: list[int] = []
    last: list[int] = []
    before: list[int | None] = []
    for number, (_, new_at) in enumerate(pairs):
        rank = bisect_left(ends, new_at)
        before.append(last[rank - 1] if rank else None)
        ends[rank : rank + 1] = [new_at]
        last[rank : rank + 1] = [number]
    run: list[tuple[int, int]] = []
    at = last[-1] if last else None
    while at is not None:
        run.append(pairs[at])
        at = before[at]
    return run[::-1]


Pieces = tuple[tuple[str, bool], ...]
"""Neighbouring pieces of a line, each with whether it differs; joined they are the line."""

_WORD: Final = re.compile(r"\s+|⟨[^⟨⟩]*⟩|\w+|.", re.DOTALL)
_MOST_CHARACTERS: Final = 2000
"""SequenceMatcher is quadratic and worse: longer lines are compared by what they share at their ends."""


@lru_cache(maxsize=1000)
def changed_words(old: str, new: str) -> tuple[Pieces, Pieces]:
    """Return both lines in pieces that are shared and pieces that are not; a run of whitespace is one word.

    One edit changes the same lines in many prompts, so the last results are kept.
    """
    if max(len(old), len(new)) <= _MOST_CHARACTERS:
        return _matched(_WORD.findall(old), _WORD.findall(new))
    start = shared_start(old, new)
    tail = shared_end(old[start:], new[start:])
    head, end = (old[:start], False), (old[len(old) - tail :], False)
    before = (old[start : len(old) - tail], True)
    after = (new[start : len(new) - tail], True)
    return _pieces(head, before, end), _pieces(head, after, end)


def _pieces(*pieces: tuple[str, bool]) -> Pieces:
    return tuple(piece for piece in pieces if piece[0])


def _matched(old: Sequence[str], new: Sequence[str]) -> tuple[Pieces, Pieces]:
    before: list[tuple[str, bool]] = []
    after: list[tuple[str, bool]] = []
    for kind, low, high, new_low, new_high in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        differs = kind != "equal"
        if low < high:
            before.append(("".join(old[low:high]), differs))
        if new_low < new_high:
            after.append(("".join(new[new_low:new_high]), differs))
    return tuple(before), tuple(after)


def marked_lines(lines: Sequence[str]) -> Iterator[tuple[str, Pieces]]:
    """Yield the sign of each line of a diff, "" without one, and the rest in pieces, with what differs within it.

    Lines that replace each other one by one are compared; of others no piece differs.
    """
    signs = [line[:1] if line[:4] not in ("--- ", "+++ ") else "" for line in lines]
    pieces: dict[int, Pieces] = {}
    at = 0
    while at < len(lines):
        middle = _end(signs, at, "-")
        end = _end(signs, middle, "+")
        if at < middle and middle - at == end - middle:
            for old, new in zip(range(at, middle), range(middle, end), strict=True):
                pieces[old], pieces[new] = changed_words(lines[old][1:], lines[new][1:])
        at = max(end, at + 1)
    for number, (sign, line) in enumerate(zip(signs, lines, strict=True)):
        yield sign, pieces.get(number) or ((line[len(sign) :], False),)


def _end(signs: Sequence[str], start: int, sign: str) -> int:
    """Return where a run of lines with a sign ends."""
    return next((at for at in range(start, len(signs)) if signs[at] != sign), len(signs))
