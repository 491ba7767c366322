"""The change that an edit made to the text of a task: the same value for all of its profiles and all tasks it changed.

A chat template moves lines and a tokenizer makes other tokens of each of them, but an edit takes the same words away
and puts the same words in, in any surrounding text. Which key of which file made a change is found by comparing it with
the origins of the text. A snapshot has no origins, so text that is gone is only known by its neighbours. One change may
come from several keys, a line break between two shots from the question or from the delimiter; all changes of a task
together rarely can.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise, repeat
from typing import Any, Final

from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.finding import stable_key
from pytest_promptfmt.core.prompt import Instance, Origin, Part, Prompt, Span
from pytest_promptfmt.core.task import Locate, locate_nowhere
from pytest_promptfmt.core.text import END, shared_end, shared_start
from pytest_promptfmt.results.wording import counted
from pytest_promptfmt.snapshots.changes import FEW_SHOT, SCORING, Change, ChangePlace, SnapshotComparison, clipped
from pytest_promptfmt.snapshots.content import COLUMNS
from pytest_promptfmt.snapshots.token_sections import TITLE as TOKENS

_FACTS: Final = ("output", "docs", "shots")
"""The facts of a header that change prompts."""

_DELIMITER: Final = "target_delimiter"

_REWRITTEN: Final = 3
"""From so many words on, a change is a rewritten text."""

_MOVED: Final = "* moved"
"""The word for a gold answer that is another one now."""

_SEARCHED: Final = 40
"""Changes of one item that are searched for a key in common."""

_SCORING_KEYS: Final = {"filter": "filter_list", "metric": "metric_list"}
"""Keys by the first word of the lines about how answers are read and scored; other lines begin with their key."""

_DELIMITERS: Final[tuple[Part, ...]] = ("fewshot delimiter", "target delimiter")

_WORD: Final = re.compile(r"⟨[^⟨⟩]*⟩|\w+|.", re.DOTALL)
_NUMBER: Final = re.compile(r"\d+")
_OF_SECTION: Final = re.compile(r" (?:\d+ of \d+|without context)$")
_DIGEST: Final = re.compile(r", digest [0-9a-f]+")
_MARK: Final = "| "  # before every line of a text; other lines begin with two characters as well
_SHOWN_WIDTH: Final = 60  # of a line, in the title of a change


@dataclass(frozen=True, slots=True)
class ChangeCause:
    """The origin of the text at the first change; `is_before` where that text is gone and came before the origin."""

    origin: Origin
    is_before: bool = False

    @property
    def key(self) -> str:
        """Return the configuration key, or else the part of the prompt."""
        return self.origin.key or self.origin.part

    def __str__(self) -> str:
        """Return the place and key, as in `tasks/arc.yaml:5:1 doc_to_text`."""
        return f"{'text before ' if self.is_before else ''}{self.origin}"


@dataclass(frozen=True, slots=True)
class Words:
    """Words that the text has fewer of than before, and more of; each with the kind of section it is in."""

    gone: frozenset[tuple[str, str]] = frozenset()
    came: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class TextChange:
    """The change of a task's text.

    `key` is equal for the same change, `title` describes it in a line. `cause` is where the first change comes from.
    `is_fact` is whether a fact of the header shows it, such as another number of shots.
    """

    key: str
    title: str
    cause: ChangeCause | None = None
    words: Words = field(default_factory=Words)
    is_fact: bool = False

    def explains(self, comparison: SnapshotComparison) -> bool:
        """Return whether the same task in another profile changed only as much as this; tokens follow the text."""
        if self.is_fact:
            return True
        words = words_of(change for change in comparison.changes if not is_of_tokens(change))
        # In any section: a space moves from the prompt to its continuations where turns are put together.
        return _bare(words.gone) <= _bare(self.words.gone) and _bare(words.came) <= _bare(self.words.came)


def text_change(
    comparison: SnapshotComparison,
    instances: Sequence[Instance],
    locate: Locate = locate_nowhere,
    *,
    docs: TaskDocs | None = None,
) -> TextChange | None:
    """Return what changed between the documents of a comparison; None where one is missing or they are the same.

    `instances` are those that were rendered now of these `docs`, and with the index -1 the one of the section about
    few-shot examples; `locate` returns where the task's keys are written.
    """
    changed, old, new = comparison.changes, comparison.old, comparison.new
    if not changed or old is None or new is None:
        return None
    text = [change for change in changed if not is_of_tokens(change)] or list(changed)
    if any(change.doc for change in text):  # few-shot examples follow the docs
        text = [change for change in text if change.section != FEW_SHOT]
    text.sort(key=lambda change: change.doc == 0)  # prompts show more than how answers are read
    cause = cause_of(text, instances, locate)
    title = _title(text[0], cause)
    if is_of_tokens(text[0]):
        return TextChange(key=change_key(text), title=title, cause=cause)
    facts = [(name, old.header.get(name), new.header.get(name)) for name in _FACTS]
    differ = [(name, before or "none", after or "none") for name, before, after in facts if before != after]
    if differ:
        title = f"{', '.join(f'{name} {before} → {after}' for name, before, after in differ)}: {title}"
        return TextChange(key=stable_key(json.dumps(differ)), title=title, cause=cause, is_fact=True)
    words = words_of(text)
    if cause is None or not (words.gone or words.came):
        return TextChange(key=change_key(text, cause.key if cause else ""), title=title, cause=cause, words=words)
    if cause.key == _DELIMITER:
        # Shots show it in the prompt, too: the same change, whether a task has some or none.
        signature: Any = [sorted(_bare(side)) for side in (words.gone, words.came)]
    elif docs is not None and docs.kind == "synthetic":
        signature = _signature(words, text, lambda word: _NUMBER.sub("0", word))
    elif _is_of_docs(words, instances):
        signature = str(cause.origin.position)
    else:
        signature = _signature(words, text)
    return TextChange(key=stable_key(json.dumps([cause.key, signature])), title=title, cause=cause, words=words)


def is_of_tokens(change: Change) -> bool:
    """Return whether a change is one of tokens, which follow the text and the tokenizer."""
    return change.section.startswith(TOKENS)


def describe_token_change(changed: Iterable[Change]) -> str:
    """Return the line about the first tokens that changed, without digests; "" where none did."""
    pairs = [
        (_DIGEST.sub("", old.strip(" *")), _DIGEST.sub("", new.strip(" *")))
        for change in changed
        if is_of_tokens(change) and len(change.removed) == len(change.added)
        for old, new in zip(change.removed, change.added, strict=True)
    ]
    if not pairs:
        return ""
    old, new = next(((old, new) for old, new in pairs if old != new), pairs[0])
    if old == new:
        return f"{new.partition(':')[0]}: the number of tokens is the same, but some tokens in the middle differ"
    at = shared_start(old, new)
    return f"{clipped(old, at, _SHOWN_WIDTH)} → {clipped(new, at, _SHOWN_WIDTH)}"


# -- the key that made a change ----------------------------------------------------------------------------------------


def cause_of(changed: Sequence[Change], instances: Sequence[Instance], locate: Locate) -> ChangeCause | None:
    """Return where the first change with a known origin comes from; of several keys, one that made the others too."""
    by_number = {instance.index + 1: instance for instance in instances}
    found = (_candidates(change, by_number.get(change.doc), locate) for change in changed)
    known = islice((candidates for candidates in found if candidates), _SEARCHED)
    first = next(known, None)
    if first is None:
        return None
    common = {cause.key for cause in first}
    for candidates in known:
        if len(common) == 1:
            break
        common = common & {cause.key for cause in candidates} or common
    return next(cause for cause in first if cause.key in common)


def _candidates(change: Change, instance: Instance | None, locate: Locate) -> list[ChangeCause]:
    """Return what may have made a change, the likeliest first."""
    place = change.place
    if place is None:
        return [ChangeCause(origin) for origin in _origins_of_requests(change, locate)]
    if instance is None or place.prompt >= len(instance.prompts):
        return []
    prompt = instance.prompts[place.prompt]
    if place.length:
        origins = [*_origins_of_new(place, prompt, locate)]
        if len(change.removed) > len(change.added) > 0:  # lines were joined
            around = [span for span, _ in _spans(prompt, max(0, place.first - 1), place.first + 1)]
            origins = [*_delimiters_between(around, locate), *origins]
    else:
        origins = _origins_of_gone(place, prompt, locate)
    is_before = place.length == 0 and place.last == 0
    # Text that is written once is in all shots.
    causes = (replace(origin, shot=None) if origin.field is None else origin for origin in origins)
    return [ChangeCause(origin, is_before) for origin in causes]


def _origins_of_new(place: ChangePlace, prompt: Prompt, locate: Locate) -> Iterator[Origin]:
    """Yield the origins of the text that may be new: first pieces that are new as a whole, the chat template last."""
    new = list(_spans(prompt, place.first, place.last + place.length))
    for span, shared in sorted(new, key=lambda entry: _rank(entry[0], is_whole=entry[1] == len(entry[0].text))):
        if shared or len(new) == 1:
            yield span.origin
            if span.origin.part == "answer" and span.origin.key == "doc_to_choice":  # this key chooses the one shown
                yield from _origin_of_key("answer", "doc_to_target", locate)


def _origins_of_gone(place: ChangePlace, prompt: Prompt, locate: Locate) -> list[Origin]:
    """Return the origins around the place, and those of a delimiter that may have been all of the text there."""
    around = list(_spans(prompt, max(0, place.first - 1), place.last + 1))
    inside = [span.origin for span, length in around if length > 1 and not _is_of_template(span.origin)]
    origins = [span.origin for span, _ in around]
    delimiters = [origin for origin in origins if origin.part in _DELIMITERS]
    if not delimiters and not inside:
        delimiters = list(_delimiters_between([span for span, _ in around], locate))
    rest = sorted(origins, key=lambda origin: (_is_of_template(origin), origin.field is not None))
    return [*delimiters, *inside, *rest]


def _delimiters_between(spans: Sequence[Span], locate: Locate) -> Iterator[Origin]:
    for before, behind in pairwise(spans):
        parts = before.origin.part, behind.origin.part
        if parts == ("question", "answer"):
            yield from _origin_of_key("target delimiter", _DELIMITER, locate)
        elif parts == ("answer", "question"):
            yield from _origin_of_key("fewshot delimiter", "fewshot_delimiter", locate)


def _origins_of_requests(change: Change, locate: Locate) -> Iterator[Origin]:
    """Yield what makes the section of requests that changed."""
    section = change.section.partition(" ")[0]
    if section == "generate":
        yield from _origin_of_key("answer", "generation_kwargs", locate)
    elif section in (SCORING, COLUMNS):
        lines = change.removed or change.added
        word = lines[0].split()[0].removesuffix(":") if lines else ""
        yield from _origin_of_key("answer", _SCORING_KEYS.get(word, word), locate)
    elif section == "target":
        yield from _origin_of_key("answer", "doc_to_target", locate)
    elif section == "continuations":
        old, new = (_read(lines[0]) if lines else None for lines in (change.removed, change.added))
        if old == new:  # another one is right
            yield from _origin_of_key("answer", "doc_to_target", locate)
            return
        if old is not None and new is not None and old.lstrip() == new.lstrip():
            yield from _origin_of_key("target delimiter", _DELIMITER, locate)
        yield from _origin_of_key("answer", "doc_to_choice", locate)
        yield from _origin_of_key("target delimiter", _DELIMITER, locate)


def _rank(span: Span, *, is_whole: bool) -> int:
    """Return how unlikely a piece is the one that is new: one that is new as a whole brings its delimiter along."""
    if _is_of_template(span.origin):
        return 4
    if span.origin.part in _DELIMITERS:
        return 1 if is_whole else 2
    return 0 if is_whole else 3


def _is_of_template(origin: Origin) -> bool:
    return origin.part == "chat template"


def _origin_of_key(part: Part, key: str, locate: Locate) -> Iterator[Origin]:
    position = locate(tuple(key.split(".")))
    if position is not None:
        yield Origin(part, key, position)


def _spans(prompt: Prompt, start: int, end: int) -> Iterator[tuple[Span, int]]:
    """Yield the spans that have characters from `start` to `end`, with how many; the last one for the end."""
    at = 0
    last = None
    for span in prompt.spans:
        shared = min(end, at + len(span.text)) - max(start, at)
        at += len(span.text)
        last = span if span.text else last
        if shared > 0:
            yield span, shared
        if at >= end:
            return
    if last is not None and start >= at:
        yield last, 0


# -- keys of equal changes ---------------------------------------------------------------------------------------------


def change_key(changes: Iterable[Change], origin: str = "") -> str:
    """Return a digest that is equal for changes that differ only in the docs' own text.

    Of each change counts which part of a line came and went, and in which kind of section; how often and in which
    docs does not. `origin` is the configuration key behind the change. Without it the place in the line (start, end,
    inside) distinguishes changes; that place differs between profiles, where markup is around the same text.
    """
    parts = {part if not origin else part[:-1] for change in changes for part in _fragments(change)}
    return stable_key(json.dumps([origin, sorted(parts)]))


def _fragments(change: Change) -> Iterator[tuple[str, ...]]:
    """Yield kind of section, what went, what came, and where in the line that is: start, end, inside, whole."""
    section = "prompt" if change.section.startswith("prompt ") else change.section
    if len(change.removed) == len(change.added):
        for old, new in zip(change.removed, change.added, strict=True):
            if old != new:
                yield (section, *_trimmed(old, new))
    else:
        yield section, *_trimmed("\n".join(change.removed), "\n".join(change.added))


def _trimmed(old: str, new: str) -> tuple[str, str, str]:
    """Return what differs between two texts, and whether it is at the `start`, `end`, `whole` or `inside`."""
    start = shared_start(old, new)
    tail = shared_end(old[start:], new[start:])
    at_start = start <= len(_MARK)
    at_end = tail == 0 or (tail == len(END) and old.endswith(END))
    where = {(True, True): "whole", (True, False): "start", (False, True): "end"}.get((at_start, at_end), "inside")
    return old[start : len(old) - tail], new[start : len(new) - tail], where


def words_of(changes: Iterable[Change]) -> Words:
    """Return the words that changed in number, ignoring moves between lines; a space and a line end are words too."""
    before: Counter[tuple[str, str]] = Counter()
    after: Counter[tuple[str, str]] = Counter()
    for change in changes:
        kind = _OF_SECTION.sub("", change.section)
        marks = [[line.startswith("*") for line in side] for side in (change.removed, change.added)]
        if marks[0] != marks[1] and len(marks[0]) == len(marks[1]):
            after[kind, _MOVED] += 1
        before.update(zip(repeat(kind), _words(change.removed), strict=False))
        after.update(zip(repeat(kind), _words(change.added), strict=False))
    return Words(gone=frozenset(before - after), came=frozenset(after - before))


def _words(lines: Iterable[str]) -> list[str]:
    words: list[str] = []
    for line in lines:
        words += _WORD.findall(_read(line))
        if line.startswith("|") and not line.endswith(END):
            words.append("\n")
    return words


def _read(line: str) -> str:
    """Return a line without its bar or star; a JSON string is read, so that its escapes do not count as words."""
    text = line[2:].removesuffix(END).replace("⟨SP⟩", " ")
    if text.startswith('"') and not line.startswith("|"):
        with suppress(ValueError):
            return str(json.loads(text))
    return text


def _bare(words: Iterable[tuple[str, str]]) -> set[str]:
    return {word for _, word in words}


def _signature(
    words: Words, changes: Sequence[Change], named: Callable[[str], str] = lambda word: word
) -> Sequence[Sequence[Any]]:
    """Return what distinguishes changes of one key: the words, and without letters where in the line they are.

    Where a text is rewritten, how many spaces and commas it has more or less depends on the docs.
    """
    sides = (words.gone, words.came)
    spelled = [{pair for pair in side if pair[1][0].isalnum() or pair[1] == _MOVED} for side in sides]
    count = sum(map(len, spelled))
    distinct = spelled if count >= _REWRITTEN else sides
    signature: list[list[Any]] = [sorted({(kind, named(word)) for kind, word in side}) for side in distinct]
    if count == 0:
        last = [change for change in changes if change.place is not None and change.doc == changes[-1].doc][-1:]
        signature.append(sorted({part[-1] for change in last for part in _fragments(change)}))
    return signature


def _is_of_docs(words: Words, instances: Iterable[Instance]) -> bool:
    """Return whether what came is mostly text of docs, which differs from task to task, and not of the templates."""
    came = {word for word in _bare(words.came) if word[0].isalnum()}
    if not came:
        return False
    written: set[str] = set()
    for span in (span for instance in instances for prompt in instance.prompts for span in prompt.spans):
        if span.origin.field is None and not _is_of_template(span.origin):
            written.update(_WORD.findall(span.text))
            if 2 * len(came & written) >= len(came):
                return False
    return True


def _title(change: Change, cause: ChangeCause | None) -> str:
    where = f"in {change.section}"
    if cause is not None:
        where = f"{'before' if cause.is_before else 'from'} {cause.origin}"
    if change.removed and change.added:
        old, new = change.removed[0].strip(), change.added[0].strip()
        at = shared_start(old, new)
        return f"{_shown(old, at)} → {_shown(new, at)} ({where})"
    lines = change.removed or change.added
    line = _shown(lines[0].strip())
    more = f" and {counted(len(lines) - 1, 'more line')}" if len(lines) > 1 else ""
    return f"{line}{more} {'is' if len(lines) == 1 else 'are'} {'gone' if change.removed else 'new'} ({where})"


def _shown(line: str, at: int = 0) -> str:
    return "an empty line" if line == "|" else clipped(line, at, _SHOWN_WIDTH)
