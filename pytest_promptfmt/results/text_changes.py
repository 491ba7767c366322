"""What an edit did to the text of a task, in the same words for all of its profiles and for all tasks it changed.

A chat template moves lines and a tokenizer sees other tokens in each of them, but an edit takes the same words away and
puts the same words in, whatever is around them and whatever the docs say. `causes` finds which key it was.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import repeat
from typing import Any, Final

from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.prompt import Instance, Span
from pytest_promptfmt.core.task import Locate, locate_nowhere
from pytest_promptfmt.core.text import END, shared_start
from pytest_promptfmt.results.causes import ChangeCause, cause_of
from pytest_promptfmt.results.clusters import cluster_key, fragments
from pytest_promptfmt.results.wording import counted
from pytest_promptfmt.snapshots.changes import FEW_SHOT, Change, SnapshotComparison, clipped
from pytest_promptfmt.snapshots.token_sections import TITLE as TOKENS

_FACTS: Final = ("output", "docs", "shots")
"""The facts of a header that change what prompts say."""

_DELIMITER: Final = "target_delimiter"

_REWRITTEN: Final = 3
"""From so many words on, a change is a rewritten text."""

_MOVED: Final = "* moved"
"""The word for a gold answer that is another one now."""


_WORD: Final = re.compile(r"⟨[^⟨⟩]*⟩|\w+|.", re.DOTALL)
_NUMBER: Final = re.compile(r"\d+")
_OF_SECTION: Final = re.compile(r" (?:\d+ of \d+|without context)$")

_DIGEST: Final = re.compile(r", digest [0-9a-f]+")

_SHOWN_WIDTH: Final = 60  # of a line, in the title of a change


@dataclass(frozen=True, slots=True)
class Words:
    """Words that the text has fewer of than before, and more of; each with the kind of section it is in."""

    gone: frozenset[tuple[str, str]] = frozenset()
    came: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class TextChange:
    """What is not as it was in the text of a task.

    `key` is equal where the same was changed, `title` says it in a line. `cause` is where the first change comes from.
    `is_fact` is whether a fact of the header shows it, such as another number of shots.
    """

    key: str
    title: str
    cause: ChangeCause | None = None
    words: Words = field(default_factory=Words)
    is_fact: bool = False

    def explains(self, comparison: SnapshotComparison) -> bool:
        """Return whether the same task in another profile changed no more than this; tokens follow the text."""
        if self.is_fact:
            return True
        words = words_of(change for change in comparison.changes if not is_of_tokens(change))
        # In whatever section: a space moves from the prompt to its continuations where turns are put together.
        return _bare(words.gone) <= _bare(self.words.gone) and _bare(words.came) <= _bare(self.words.came)


def text_change(
    comparison: SnapshotComparison,
    instances: Sequence[Instance],
    locate: Locate = locate_nowhere,
    *,
    docs: TaskDocs | None = None,
) -> TextChange | None:
    """Return what changed between the documents of a comparison; None where they are not two, or the same.

    `instances` are those that were rendered now of these `docs`, and with the index -1 the one of the section about
    few-shot examples; `locate` says where the task's keys are written.
    """
    changed, old, new = comparison.changes, comparison.old, comparison.new
    if not changed or old is None or new is None:
        return None
    text = [change for change in changed if not is_of_tokens(change)] or list(changed)
    if any(change.doc for change in text):  # few-shot examples follow the docs
        text = [change for change in text if change.section != FEW_SHOT]
    text.sort(key=lambda change: change.doc == 0)  # prompts say more than how answers are read
    cause = cause_of(text, instances, locate)
    title = _title(text[0], cause)
    if is_of_tokens(text[0]):
        return TextChange(key=cluster_key(text), title=title, cause=cause)
    facts = [(name, old.header.get(name), new.header.get(name)) for name in _FACTS]
    differ = [(name, before or "none", after or "none") for name, before, after in facts if before != after]
    if differ:
        title = f"{', '.join(f'{name} {before} became {after}' for name, before, after in differ)}: {title}"
        return TextChange(key=_digest(differ), title=title, cause=cause, is_fact=True)
    words = words_of(text)
    if cause is None or not (words.gone or words.came):
        return TextChange(key=cluster_key(text, cause.key if cause else ""), title=title, cause=cause, words=words)
    if cause.key == _DELIMITER:
        # Shots show it in the prompt, too: the same change, whether a task has some or none.
        signature: Any = [sorted(_bare(side)) for side in (words.gone, words.came)]
    elif docs is not None and docs.kind == "synthetic":
        signature = _signature(words, text, lambda word: _NUMBER.sub("0", word))
    elif _is_of_docs(words, instances):
        signature = str(cause.origin.position)
    else:
        signature = _signature(words, text)
    return TextChange(key=_digest([cause.key, signature]), title=title, cause=cause, words=words)


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
        return f"{new.partition(':')[0]}: as many as before, others in the middle"
    at = shared_start(old, new)
    return f"{clipped(old, at, _SHOWN_WIDTH)} became {clipped(new, at, _SHOWN_WIDTH)}"


def words_of(changes: Iterable[Change]) -> Words:
    """Return the words that changed in number, whatever moved between lines; a space and a line end are words too."""
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


def _bare(words: Iterable[tuple[str, str]]) -> set[str]:
    return {word for _, word in words}


def _signature(
    words: Words, changes: Sequence[Change], named: Callable[[str], str] = lambda word: word
) -> Sequence[Sequence[Any]]:
    """Return what distinguishes changes of one key: the words, and without letters where in the line they are.

    Where a text is rewritten, how many spaces and commas it has more or less depends on the docs.
    """
    sides = (words.gone, words.came)
    spelled = [{pair for pair in side if _is_spelled(pair[1])} for side in sides]
    count = sum(map(len, spelled))
    distinct = spelled if count >= _REWRITTEN else sides
    signature: list[list[Any]] = [sorted({(kind, named(word)) for kind, word in side}) for side in distinct]
    if count == 0:
        last = [change for change in changes if change.place is not None and change.doc == changes[-1].doc][-1:]
        signature.append(sorted({part[-1] for change in last for part in fragments(change)}))
    return signature


def _is_spelled(word: str) -> bool:
    return word[0].isalnum() or word == _MOVED


def _digest(value: Any) -> str:
    return sha256(json.dumps(value).encode()).hexdigest()[:16]


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


def _is_of_docs(words: Words, instances: Iterable[Instance]) -> bool:
    """Return whether what came is mostly text of docs, which differs from task to task, and not of the templates."""
    came = {word for word in _bare(words.came) if word[0].isalnum()}
    if not came:
        return False
    written: set[str] = set()
    for span in _spans(instances):
        if span.origin.field is None and span.origin.part != "chat template":
            written.update(_WORD.findall(span.text))
            if 2 * len(came & written) >= len(came):
                return False
    return True


def _spans(instances: Iterable[Instance]) -> Iterator[Span]:
    for instance in instances:
        for prompt in instance.prompts:
            yield from prompt.spans


def _title(change: Change, cause: ChangeCause | None) -> str:
    where = f"{cause.preposition} {cause.origin}" if cause else f"in {change.section}"
    if change.removed and change.added:
        old, new = change.removed[0].strip(), change.added[0].strip()
        at = shared_start(old, new)
        return f"{_shown(old, at)} became {_shown(new, at)}, {where}"
    lines = change.removed or change.added
    line = _shown(lines[0].strip())
    more = f" and {counted(len(lines) - 1, 'more line')}" if len(lines) > 1 else ""
    return f"{line}{more} {'is' if len(lines) == 1 else 'are'} {'gone' if change.removed else 'new'}, {where}"


def _shown(line: str, at: int = 0) -> str:
    return "an empty line" if line == "|" else clipped(line, at, _SHOWN_WIDTH)
