"""What a failing snapshot says: what differs, which line of which file made it, and how to accept just this."""

from __future__ import annotations

import glob
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Final

from pytest_promptfmt.core.errors import display_path
from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.results.text_changes import TextChange, is_of_tokens
from pytest_promptfmt.results.wording import counted, first_of
from pytest_promptfmt.snapshots.changes import FEW_SHOT, Change, unified_diff
from pytest_promptfmt.snapshots.content import COLUMNS, SCORING
from pytest_promptfmt.snapshots.extension import Verdict
from pytest_promptfmt.snapshots.hunks import Pieces, changed_words
from pytest_promptfmt.snapshots.lock import Note

PREVIEW_LINES = 40
"""Lines shown of a snapshot that does not exist yet."""

_MARKUP: Final[Mapping[str, Mapping[str, bool]]] = {
    "--- ": {"bold": True},
    "+++ ": {"bold": True},
    "@@ ": {"cyan": True},
    "-": {"red": True},
    "+": {"green": True},
    "accept": {"bold": True},
}

_OF_TASK: Final = {
    COLUMNS: "the columns that it reads",
    FEW_SHOT: "few-shot examples",
    SCORING: "how answers are read and scored",
}
_NOT_IN_PATHS = re.compile(r"\[|::")


def outcome_of(
    verdict: Verdict,
    item: Outcome,
    *,
    change: TextChange | None = None,
    note: Note | None = None,
) -> Outcome:
    """Return what a comparison made of an item; where its text changed, it is keyed by that `change`.

    `note` is what the lock says of the tokenizer: where nothing but tokens changed and another tokenizer made them,
    that is the key.
    """
    if verdict.error is not None:
        return replace(item, category="damaged", key=verdict.error.message, title=str(verdict.error))
    if verdict.passed:
        stale = verdict.state == "header-only" and not verdict.written
        return replace(item, category="header-only" if stale else "passed")
    if verdict.renamed_from is not None:
        old, new = display_path(verdict.renamed_from), display_path(verdict.path)
        return replace(item, category="renamed", key=old, title=f"renamed {old} → {new}")
    if verdict.state == "missing":
        return replace(item, category="new", title="snapshots that do not exist yet")
    changed = _changes(verdict)
    docs = len({change.doc for change in changed if change.doc})
    item = replace(item, sections=tuple(dict.fromkeys(change.section for change in changed)))
    if changed and note is not None and note.is_change and all(map(is_of_tokens, changed)):
        return replace(item, category="changed", key=note.text, title=f"tokens alone, {note.text}", docs=docs)
    key, title = (change.key, change.title) if change is not None else ("", "changed")
    return replace(item, category="changed", key=key, title=title, docs=docs)


def compared_lines(who: str, changed: str, verdict: Verdict) -> Iterator[str]:
    """Yield how a snapshot compares: it cannot be trusted, there is none yet, or a diff below what `changed`."""
    if verdict.error is not None:
        yield f"{who}: the snapshot cannot be trusted"
        yield str(verdict.error)
    elif verdict.state == "missing":
        yield f"{who}: there is no snapshot yet"
        yield display_path(verdict.path)
    else:
        yield f"{who}: {changed}"
        yield f"--- {display_path(verdict.path)}"
        yield "+++ now"
        if verdict.comparison and verdict.comparison.old and verdict.comparison.new:
            yield from unified_diff(verdict.comparison.old, verdict.comparison.new)


def repeated_text(outcome: Outcome, first: str, *, command: str) -> str:
    """Return the short text of an item that fails as `first` did."""
    return f"{outcome.task} [{outcome.profile}]: as {first}\naccept: {command}"


def repeated_findings(outcome: Outcome, first: str) -> str:
    """Return the text of an item with the same findings as the item `first`."""
    codes = ", ".join(dict.fromkeys(error.code for error in outcome.errors))
    return f"{outcome.task}: {codes}, as {first}"


def said_again(repeats: str, outcome: Outcome, first: str, command: Callable[[], str]) -> str | None:
    """Return what an item says that fails as the item `first` did; None where it says everything again.

    `repeats` is what items of its kind do not say again (`PromptItem.repeats`).
    """
    if repeats == "findings" and outcome.category == "finding":
        return repeated_findings(outcome, first)
    if repeats == "change" and outcome.category != "error":
        return repeated_text(outcome, first, command=command())
    return None


def accept_command(path: str, names: str, options: Sequence[str], task: str) -> str:
    """Return the shell command that accepts one item: its file, the rest of its node id, and this run's options.

    pytest 9.2 takes no path with `[` or `::` in it; then the nearest folder above is searched for the task.
    """
    chosen = [f"{path}::{names}"]
    if _NOT_IN_PATHS.search(path):
        folder = next(above for above in PurePosixPath(path).parents if not _NOT_IN_PATHS.search(str(above)))
        chosen = [str(folder), "--promptfmt-task", glob.escape(task), "-k", names.rpartition("::")[2]]
    return shlex.join(["pytest", "--promptfmt", *options, *chosen, "--snapshot-update"])


def explanation(
    verdict: Verdict, outcome: Outcome, *, docs: int, change: TextChange | None = None, note: Note | None = None
) -> Iterator[str]:
    """Yield what a failing item has to say: what differs as a diff, and where it comes from.

    `docs` is how many there are, `change` what changed in their text.
    """
    who = f"{outcome.task} [{outcome.profile}]"
    if verdict.renamed_from is not None:
        path = display_path(verdict.path)
        yield f"{who}: there is no snapshot {path}, but one that no task defines shows the same"
        yield outcome.title
        return
    prompts = f"{outcome.docs} of {counted(docs, 'doc')}"
    of_task = " and ".join(name for section, name in _OF_TASK.items() if section in outcome.sections)
    yield from compared_lines(who, f"{prompts if outcome.docs else of_task} changed", verdict)
    if verdict.state == "missing" and verdict.comparison is not None:
        new = verdict.comparison.text.splitlines()
        yield from first_of([f"+{line}" for line in new], PREVIEW_LINES)
    changed = _changes(verdict)
    if change is not None and change.cause is not None:
        yield f"the first change is {change.cause.place} {change.cause.origin}"
    if note is not None and (note.is_change or (changed and all(map(is_of_tokens, changed)))):
        yield f"tokens: {note.text}"


def _changes(verdict: Verdict) -> tuple[Change, ...]:
    return verdict.comparison.changes if verdict.comparison is not None else ()


class FailureText(str):
    """The text of a failure: a plain string for JUnit files, workers and annotations, which pytest prints in colour."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        """Return the first line: on a CI server pytest puts the message into the closing list, the whole diff again."""
        # Of a text of one line partition() gives the object itself, of this class.
        return format(str(self).partition("\n")[0], spec)

    def toterminal(self, tw: Any) -> None:
        """Write the lines to pytest's terminal writer, which leaves colours out where there are none."""
        lines = self.split("\n")
        pieces = dict(_in_pieces(lines))
        for number, line in enumerate(lines):
            markup = next((markup for start, markup in _MARKUP.items() if line.startswith(start)), {})
            if number not in pieces:
                tw.line(line, **markup)
                continue
            tw.write(line[0], **markup)
            for text, differs in pieces[number]:
                tw.write(text, invert=differs, **markup)
            tw.line()


def _in_pieces(lines: Sequence[str]) -> Iterator[tuple[int, Pieces]]:
    """Yield the numbers of the lines of a diff that replace each other, one by one, with what differs within them."""
    signs = [line[:1] if line[:4] not in ("--- ", "+++ ") else "" for line in lines]
    at = 0
    while at < len(lines):
        middle = _end(signs, at, "-")
        end = _end(signs, middle, "+")
        if at < middle and middle - at == end - middle:
            for old, new in zip(range(at, middle), range(middle, end), strict=True):
                before, after = changed_words(lines[old][1:], lines[new][1:])
                yield from ((old, before), (new, after))
        at = max(end, at + 1)


def _end(signs: Sequence[str], start: int, sign: str) -> int:
    """Return where a run of lines with a sign ends."""
    return next((at for at in range(start, len(signs)) if signs[at] != sign), len(signs))
