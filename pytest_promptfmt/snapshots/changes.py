"""A rendered document against the stored file, and what changed: a diff for people, bare changes for grouping.

Plain text without colours; docs are matched by their numbers, so one doc's lines are never taken for another's.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pytest_promptfmt.core.errors import Position, SnapshotError
from pytest_promptfmt.core.text import shared_end, shared_start
from pytest_promptfmt.snapshots.document import (
    DocRecord,
    Document,
    body_of,
    read_document,
    record_name,
    section_lines,
    write_document,
)
from pytest_promptfmt.snapshots.hunks import Hunk, find_hunks

# Pairs of characters that look the same in most fonts, beyond those that NFKC already unites.
_LOOK_ALIKES = str.maketrans(
    "АВЕКМНОРСТХЅІЈаеорсухѕіјԁһΑΒΕΖΗΙΚΜΝΟΡΤΥΧον‐‑‒–—−‘’‚′“”„″·•",
    "ABEKMHOPCTXSIJaeopcyxsijdhABEZHIKMNOPTYXov------''''\"\"\"\"..",
)
_LOOK_LIMIT = 10_000
_WORD_START: Final = re.compile(r"(?<!\S)\S")

VERSION: Final = "version"
"""The fact of a header that is the task's version."""

SCORING: Final = "scoring"
"""The title of the section about how answers are read and scored."""
SCORES: Final = "scores"
"""The title of the section about what code of the task gives to answers of the first docs."""
FEW_SHOT: Final = "few-shot"
"""The title of the section that shows a task with few-shot examples which is rendered without any."""


@dataclass(frozen=True, slots=True)
class Change:
    """Neighbouring lines of one doc that were replaced, removed or added.

    `removed` and `added` are lines as shown in the file, without indentation. `place` is where it is in a prompt. The
    doc 0 is the task itself.
    """

    doc: int
    section: str
    removed: tuple[str, ...]
    added: tuple[str, ...]
    place: ChangePlace | None = None


@dataclass(frozen=True, slots=True)
class ChangePlace:
    """Where the new text of a prompt changed, by its index and offsets into it, all from 0.

    The change begins at one of the offsets `first` to `last`: one more line break between two line breaks may be any of
    the three. From there `length` characters are new: 0 where text was only removed, and at least 1 where it was
    replaced.
    """

    prompt: int
    first: int
    last: int
    length: int


class _Line(NamedTuple):
    shown: str
    section: str
    number: int
    raw: str | None = None
    prompt: int | None = None
    offset: int = 0


State = Literal["equal", "header-only", "changed", "damaged", "missing"]


@dataclass(frozen=True, kw_only=True)
class SnapshotComparison:
    """The result of comparing.

    `text` is what an update writes; `stored` the old text, damaged bytes replaced; `old` and `new` are the
    documents where both could be read and differ; `error` is what is damaged. `is_partial` is whether stored scores
    are kept, because they are unknown here.
    """

    state: State
    text: str
    stored: str | None = None
    old: Document | None = None
    new: Document | None = None
    error: SnapshotError | None = None
    is_partial: bool = False

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """Return what changed in the docs, found once; nothing where there are not two documents."""
        return () if self.old is None or self.new is None else changes(self.old, self.new)


def compare(stored: bytes | None, rendered: Document, path: Path, *, narrowed_run: bool = False) -> SnapshotComparison:
    """Return how the file's bytes (None: there is no file) relate to the rendered document.

    In a `narrowed_run`, which rendered fewer docs than it usually would, stored docs that were not rendered are kept
    and not compared. Sections about the task are compared where both have them: another profile may have shown them. A
    snapshot without one of them is equal to one with it, and `text` has it for the next update; a run whose profiles
    leave it out keeps it. A missing version is not written for its own sake.
    """
    text = write_document(rendered)
    if stored is None:
        return SnapshotComparison(state="missing", text=text, new=rendered)
    if stored == text.encode():
        return SnapshotComparison(state="equal", text=text, stored=text)
    try:
        known = _decode(stored, path)
        old = read_document(known, path)
    except SnapshotError as error:
        return SnapshotComparison(
            state="damaged", text=text, stored=stored.decode(errors="replace"), new=rendered, error=error
        )
    if narrowed_run:
        rendered = narrowed(rendered, old)
    if old.task and not rendered.task:
        rendered = replace(rendered, task=old.task)
    known_titles = {section.title for section in rendered.task}
    is_unknown = rendered.unknown is not None
    kept = [one for one in old.task if is_unknown and one.title in (SCORING, SCORES) and one.title not in known_titles]
    rendered = replace(rendered, task=(*rendered.task, *kept))
    # Few-shot examples are shown only where needed: a missing section is information, too.
    held = {FEW_SHOT, *(section.title for section in old.task)} if old.task else ()
    shown = replace(rendered, task=tuple(section for section in rendered.task if section.title in held))
    if VERSION not in old.header:
        shown = replace(shown, header={key: fact for key, fact in shown.header.items() if key != VERSION})
    text, compared = write_document(rendered), write_document(shown)
    if compared == known:
        text = known if shown.task == rendered.task else text
        return SnapshotComparison(state="equal", text=text, stored=known, is_partial=bool(kept))
    state: State = "header-only" if body_of(compared) == body_of(known) else "changed"
    return SnapshotComparison(state=state, text=text, stored=known, old=old, new=shown, is_partial=bool(kept))


def narrowed(rendered: Document, stored: Document) -> Document:
    """Return `rendered` with the stored docs that were not rendered, and all that is stored about docs or shots."""
    numbers = {doc.number for doc in rendered.docs}
    kept = [doc for doc in stored.docs if doc.number not in numbers]
    if not kept:
        return rendered
    header = {
        key: stored.header.get(key, value) if key in ("docs", "shots") else value
        for key, value in rendered.header.items()
    }
    shots = [section for section in stored.task if section.title == FEW_SHOT]
    task = (*shots, *(section for section in rendered.task if section.title != FEW_SHOT)) if rendered.task else ()
    docs = sorted([*rendered.docs, *kept], key=lambda doc: doc.number)
    return replace(rendered, header=header, docs=tuple(docs), task=task)


def _decode(stored: bytes, path: Path) -> str:
    try:
        return stored.decode()
    except UnicodeDecodeError as error:
        line = stored.count(b"\n", 0, error.start) + 1
        raise SnapshotError(
            f"byte {stored[error.start]:#04x} is not UTF-8",
            position=Position(path, line),
            hint="find the commit that changed the encoding (`git log`), then rewrite the file with --snapshot-update",
        ) from None


def changes(old: Document, new: Document) -> tuple[Change, ...]:
    """Return what changed in the docs, in order; headers are not compared."""
    found: list[Change] = []
    for number, (before, after, hunks) in _differing_docs(old, new):
        found += [
            Change(
                number,
                _first(hunk, before, after).section,
                tuple(line.shown for line in before[hunk.old_start : hunk.old_end]),
                tuple(line.shown for line in after[hunk.new_start : hunk.new_end]),
                _place_in_prompt(hunk, before, after),
            )
            for hunk in hunks
        ]
    return tuple(found)


_SAME_CHANGES: Final = 3
"""At how many places a diff shows the same change."""


def unified_diff(
    old: Document, new: Document, *, context: int = 3, max_lines: int = 200, max_width: int = 400
) -> list[str]:
    """Return the diff as lines: `@@ doc 1, prompt, line 2 @@`, then kept, removed and added lines.

    The same change is shown at three places, and counted after that. At most `max_lines` lines of at most about
    `max_width` characters, then a line that reports more.
    Lines that differ but look the same are followed by the code points that differ.
    """
    lines = list(islice(_diff(old, new, context, max_width), max_lines + 1))
    if len(lines) > max_lines:
        lines[-1] = "… (more lines follow)"
    return lines


def _diff(old: Document, new: Document, context: int, width: int) -> Iterator[str]:
    facts = [[f"{key}: {value}" for key, value in document.header.items()] for document in (old, new)]
    if facts[0] != facts[1]:
        yield "@@ header @@"
        yield from (f"-{fact[:width]}" for fact in facts[0] if fact not in facts[1])
        yield from (f"+{fact[:width]}" for fact in facts[1] if fact not in facts[0])
    met, left_out = Counter[tuple[Any, ...]](), 0
    for number, (before, after, hunks) in _differing_docs(old, new):
        shown = _shown(before), _shown(after)
        for group in _grouped(hunks, context):
            edits = [
                (shown[0][hunk.old_start : hunk.old_end], shown[1][hunk.new_start : hunk.new_end]) for hunk in group
            ]
            kinds = [_kind_of_edit(removed, added) for removed, added in edits]
            met.update(kinds)
            if all(met[kind] > _SAME_CHANGES for kind in kinds):
                left_out += 1
                continue
            line, lines = _first(group[0], before, after), after or before
            has_heading = bool(lines) and (len(lines) == 1 or lines[1].number == 0)  # a first section without lines
            heading = f" ({lines[0].shown})" if has_heading else ""
            yield f"@@ {record_name(number)}{heading}, {line.section}, line {line.number} @@"
            at = max(0, group[0].old_start - context)
            for hunk, (removed, added) in zip(group, edits, strict=True):
                yield from (f" {line[:width]}" for line in shown[0][at : hunk.old_start])
                yield from _replaced(removed, added, width)
                at = hunk.old_end
            yield from (f" {line[:width]}" for line in shown[0][at : at + context])
    if left_out:
        yield f"… and the same changes in {left_out:,} more place{'s' * (left_out > 1)}"


def _kind_of_edit(removed: Sequence[str], added: Sequence[str]) -> tuple[Any, ...]:
    """Return what differs in the lines, without what they share at their ends."""
    if len(removed) != len(added):
        return tuple(removed), tuple(added)
    starts = [shared_start(*pair) for pair in zip(removed, added, strict=True)]
    rests = [(one[at:], other[at:]) for one, other, at in zip(removed, added, starts, strict=True)]
    ends = [shared_end(*rest) for rest in rests]
    return tuple((one[: len(one) - at], other[: len(other) - at]) for (one, other), at in zip(rests, ends, strict=True))


def _replaced(removed: Sequence[str], added: Sequence[str], width: int) -> Iterator[str]:
    pairs = [*zip(removed, added, strict=True)] if len(removed) == len(added) else []
    starts = [shared_start(one, other) for one, other in pairs] or [0] * max(len(removed), len(added))
    yield from (f"-{clipped(line, start, width)}" for line, start in zip(removed, starts, strict=False))
    yield from (f"+{clipped(line, start, width)}" for line, start in zip(added, starts, strict=False))
    for (one, other), start in zip(pairs, starts, strict=False):
        if _looks_alike(one, other):
            yield f"?they look alike: {_code_points(one, start)} → {_code_points(other, start)}"


def clipped(line: str, at: int, width: int) -> str:
    """Return the part of a long line that holds the character `at`: at most `width` characters, from a whole word on.

    Where no word begins between the start of that part and `at`, the part begins inside one.
    """
    if len(line) <= width:
        return line
    start = max(0, min(at - width // 2, len(line) - width))
    word = _WORD_START.search(line, start, at + 1)
    start = word.start() if word is not None else start
    return ("…" if start else "") + line[start : start + width] + ("…" if start + width < len(line) else "")


def _looks_alike(one: str, other: str) -> bool:
    if (one.isascii() and other.isascii()) or max(len(one), len(other)) > _LOOK_LIMIT:
        return False
    first, second = (unicodedata.normalize("NFKC", line).translate(_LOOK_ALIKES) for line in (one, other))
    return first == second


def _code_points(line: str, at: int) -> str:
    return " ".join(f"{character} U+{ord(character):04X}" for character in line[at : at + 2]) or "nothing"


def _differing_docs(old: Document, new: Document) -> Iterator[tuple[int, _Differing]]:
    before: Mapping[int, DocRecord] = {doc.number: doc for doc in old.records}
    after: Mapping[int, DocRecord] = {doc.number: doc for doc in new.records}
    for number in sorted({*before, *after}):
        one, other = before.get(number), after.get(number)
        if one != other:
            yield number, _differing(one, other)


_Differing = tuple[Sequence[_Line], Sequence[_Line], Sequence[Hunk]]
"""The lines of a doc before and after, and where they differ."""


@lru_cache(maxsize=16)
def _differing(one: DocRecord | None, other: DocRecord | None) -> _Differing:
    """Return how a doc differs; cluster, failure text and page use the docs of one item one after the other."""
    before, after = _lines(one), _lines(other)
    return before, after, find_hunks(_shown(before), _shown(after))


def _lines(doc: DocRecord | None) -> list[_Line]:
    lines: list[_Line] = []
    prompts = 0
    for section in doc.sections if doc else ():
        # The title is compared too, so that an added or removed section is seen even where it has no lines.
        lines.append(_Line(section.title, section.title, 0))
        raws: list[str] = [] if section.text is None else section.text.split("\n")
        is_prompt = section.text is not None and (
            section.title in ("prompt", FEW_SHOT) or section.title.startswith("prompt ")
        )
        offset = 0
        for number, shown in enumerate(section_lines(section), 1):
            raw = raws[number - 1] if number <= len(raws) else None
            in_prompt = is_prompt and raw is not None
            lines.append(_Line(shown[2:], section.title, number, raw, prompts if in_prompt else None, offset))
            offset += len(raw or "") + 1
        prompts += is_prompt
    return lines


def _shown(lines: Sequence[_Line]) -> list[str]:
    return [line.shown for line in lines]


def _first(hunk: Hunk, before: Sequence[_Line], after: Sequence[_Line]) -> _Line:
    return after[hunk.new_start] if hunk.new_start < hunk.new_end else before[hunk.old_start]


def _place_in_prompt(hunk: Hunk, before: Sequence[_Line], after: Sequence[_Line]) -> ChangePlace | None:
    """Return where a change is in a prompt that still exists; None for changes outside of prompts."""
    if hunk.new_start == hunk.new_end:
        return _place_of_lines(before, hunk.old_start, hunk.old_end, after, hunk.new_start, is_new=False)
    if hunk.old_start == hunk.old_end:
        return _place_of_lines(after, hunk.new_start, hunk.new_end, after, hunk.new_start, is_new=True)
    line = after[hunk.new_start]
    if line.prompt is None or line.raw is None:
        return None
    old_lines, new_lines = before[hunk.old_start : hunk.old_end], after[hunk.new_start : hunk.new_end]
    if len(old_lines) == len(new_lines):
        old_lines, new_lines = old_lines[:1], new_lines[:1]
    first, last, length = _first_change(
        *("\n".join(each.raw or "" for each in side) for side in (old_lines, new_lines))
    )
    return ChangePlace(line.prompt, line.offset + first, line.offset + last, length)


def _place_of_lines(
    lines: Sequence[_Line], start: int, end: int, after: Sequence[_Line], at: int, *, is_new: bool
) -> ChangePlace | None:
    """Return the place of whole lines that were added or removed, with the line break before or after them."""
    prompt = lines[start].prompt
    if prompt is None:
        return None
    length = sum(len(line.raw or "") + 1 for line in lines[start:end]) if is_new else 0
    has_line_before = at > 0 and after[at - 1].prompt == prompt
    behind = at + (end - start if is_new else 0)
    if behind < len(after) and after[behind].prompt == prompt:
        offset = after[at].offset
        return ChangePlace(prompt, offset - has_line_before, offset, length)
    if not has_line_before:
        return ChangePlace(prompt, 0, 0, length) if is_new else None
    offset = after[at - 1].offset + len(after[at - 1].raw or "")
    return ChangePlace(prompt, offset, offset, length)


def _first_change(old: str, new: str) -> tuple[int, int, int]:
    """Return where in `new` the first change begins, at the earliest and at the latest, and how long it is.

    One more space between two spaces may be any of the three. As the last it would be attributed to the piece after
    it, which differs between profiles.
    """
    start = first = shared_start(old, new)
    longer = len(new) - len(old)
    if longer > 0 and new.endswith(old[start:]):
        while first and new[first - 1] == new[first - 1 + longer]:
            first -= 1
        return first, start, longer
    if longer < 0 and old.endswith(new[start:]):
        while first and old[first - 1] == old[first - 1 - longer]:
            first -= 1
        return first, start, 0
    return start, start, 1


def _grouped(hunks: Sequence[Hunk], context: int) -> Iterator[list[Hunk]]:
    """Yield runs of hunks whose context lines would touch."""
    group: list[Hunk] = []
    for hunk in hunks:
        if group and hunk.old_start - group[-1].old_end > 2 * context:
            yield group
            group = []
        group.append(hunk)
    if group:
        yield group
