"""The texts of failing items: what differs, which line of which file made it, and how to accept just this."""

from __future__ import annotations

import glob
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from pytest_promptfmt.core.errors import display_path
from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.results.clusters import MEANINGS
from pytest_promptfmt.results.text_changes import TextChange, is_of_tokens
from pytest_promptfmt.results.wording import LINES, counted, first_of
from pytest_promptfmt.snapshots.changes import FEW_SHOT, SCORES, SCORING, Change, unified_diff
from pytest_promptfmt.snapshots.content import COLUMNS, verdict_lines
from pytest_promptfmt.snapshots.extension import Verdict
from pytest_promptfmt.snapshots.hunks import marked_lines
from pytest_promptfmt.snapshots.lock import Note

if TYPE_CHECKING:
    from pytest_promptfmt.answers.phrasing_verdicts import PhrasingRow
    from pytest_promptfmt.answers.replaying import Replay

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
    COLUMNS: "the columns that the task reads",
    FEW_SHOT: "few-shot examples",
    SCORING: "how answers are read and scored",
    SCORES: "scores of sample answers",
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

    `note` is about the tokenizer in the lock: where nothing but tokens changed and another tokenizer made them, that is
    the key.
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
        return replace(item, category="new", title=MEANINGS["new"])
    changed = _changes(verdict)
    docs = len({change.doc for change in changed if change.doc})
    item = replace(item, sections=tuple(dict.fromkeys(change.section for change in changed)))
    if changed and note is not None and note.is_change and all(map(is_of_tokens, changed)):
        return replace(item, category="changed", key=note.text, title=f"tokens only, {note.text}", docs=docs)
    key, title = (change.key, change.title) if change is not None else ("", "changed")
    return replace(item, category="changed", key=key, title=title, docs=docs)


def compared_lines(who: str, changed: str, verdict: Verdict) -> Iterator[str]:
    """Yield how a snapshot compares: damaged, missing, or a diff below the line about what `changed`."""
    if verdict.error is not None:
        yield from (f"{who}: the snapshot file is damaged or was edited by hand", str(verdict.error))
    elif verdict.state == "missing":
        yield from (f"{who}: {MEANINGS['new']}", display_path(verdict.path))
    else:
        yield from (f"{who}: {changed}", f"--- {display_path(verdict.path)}", "+++ now")
        if verdict.comparison and verdict.comparison.old and verdict.comparison.new:
            yield from unified_diff(verdict.comparison.old, verdict.comparison.new)


def repeated_findings(outcome: Outcome, first: str) -> str:
    """Return the text of an item with the same findings as the item `first`."""
    codes = ", ".join(dict.fromkeys(error.code for error in outcome.errors))
    return f"{outcome.task}: {codes}, the same findings as in {first}"


def repeated_failure(repeats: str, outcome: Outcome, first: str, command: Callable[[], str]) -> str | None:
    """Return the short text of an item that fails as the item `first` did; None where it is shown in full.

    `repeats` is what items of its kind do not show again (`PromptItem.repeats`).
    """
    if repeats == "findings" and outcome.category == "finding":
        return repeated_findings(outcome, first)
    if repeats == "change" and outcome.category != "error":
        return f"{outcome.task} [{outcome.profile}]: as {first}\naccept: {command()}"
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
    """Yield the text of a failing item: what differs as a diff, and where it comes from.

    `docs` is how many there are, `change` what changed in their text.
    """
    who = f"{outcome.task} [{outcome.profile}]"
    if verdict.renamed_from is not None:
        path = display_path(verdict.path)
        yield f"{who}: there is no snapshot {path}, but another snapshot, which no task uses, has the same prompts"
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
        yield f"cause: {change.cause}"
    if note is not None and (note.is_change or (changed and all(map(is_of_tokens, changed)))):
        yield f"tokens: {note.text}"


def _changes(verdict: Verdict) -> tuple[Change, ...]:
    return verdict.comparison.changes if verdict.comparison is not None else ()


# -- answers -----------------------------------------------------------------------------------------------------------


def misread_lines(task: str, failing: Sequence[PhrasingRow], problems: Sequence[str]) -> Iterator[str]:
    """Yield the phrasings that an extraction item found misread, and the problems with the expected failures."""
    if failing:
        yield f"{task} [extraction]: the filters misread {counted(len(failing), 'phrasing')}"
        rows = [f"{row.title}\n    {row.evidence}" if row.evidence else row.title for row in failing]
        yield from first_of(rows, LINES, "  ")
        yield (
            "to accept this, give a reason in the task: metadata.promptfmt.expected_failures: {"
            + failing[0].id
            + ": why}"
        )
    yield from problems


def some_errors(errors: Sequence[object]) -> Iterator[str]:
    """Yield the first errors, and how many more there are."""
    return first_of([str(error) for error in errors], LINES)


def change_of(verdict: Verdict) -> str | None:
    """Return how many verdicts of a recording changed, in words; None where no snapshot can be compared with."""
    old_lines, new_lines = _both(verdict)
    if not old_lines:
        return None
    changed = _changed(old_lines, new_lines)
    what = "blocks of verdicts" if " to " in next(iter(old_lines)) else "verdicts"
    return f"{len(changed):,} of {len(new_lines):,} {what} changed"


def recording_lines(who: str, replay: Replay, verdict: Verdict) -> Iterator[str]:
    """Yield how a replayed recording differs from its snapshot: each changed verdict, by record."""
    if verdict.error is not None:
        yield from compared_lines(who, "", verdict)
        return
    if verdict.state == "missing":
        yield f"{who}: {MEANINGS['new']}; {replay.summary()}"
        yield display_path(verdict.path)
        yield from _recorded_differently(replay)
        return
    old_lines, new_lines = _both(verdict)
    yield f"{who}: {change_of(verdict) or 'only the rest of the snapshot changed'}; {replay.counts()}"
    changed = _changed(old_lines, new_lines)
    none = "not there"
    lines = [f"record {number}: {old_lines.get(number, none)} → {new_lines.get(number, none)}" for number in changed]
    yield from first_of(lines, LINES, "  ")
    if any(" to " in number for number in changed):
        yield from _recorded_differently(replay)


def differing_verdicts(replay: Replay) -> str:
    """Return how many verdicts differ from the recorded ones, with the first of them."""
    first = replay.changes[0]
    counted = f"{replay.changed:,} of {replay.verdicts:,} verdicts differ from the recorded ones"
    return f"{counted}, such as record {first.number}: {first.was} → {first.now}"


def _recorded_differently(replay: Replay) -> Iterator[str]:
    if replay.changed:
        yield f"{replay.changed:,} of {replay.verdicts:,} verdicts differ from the recorded ones:"
    for change in replay.changes[:LINES]:
        yield f"  record {change.number}, doc {change.doc_index}, {change.pipeline}: {change.was} → {change.now}"
    if replay.changed > LINES:
        yield f"  … and {replay.changed - LINES:,} more"
    for bad in replay.bad[:LINES]:
        yield f"  record {bad.number} cannot be used: {bad.reason}"


def _both(verdict: Verdict) -> tuple[dict[str, str], dict[str, str]]:
    comparison = verdict.comparison
    if comparison is None or comparison.old is None or comparison.new is None:
        return {}, {}
    return verdict_lines(comparison.old), verdict_lines(comparison.new)


def _changed(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return [number for number in {**old, **new} if old.get(number) != new.get(number)]


# -- colours -----------------------------------------------------------------------------------------------------------


class FirstLine(str):
    """The line by which pytest lists a failure."""

    __slots__ = ()

    @property
    def message(self) -> str:
        """Return it as a plain string."""
        return str(self)


class FailureText(str):
    """The text of a failure: a plain string for JUnit files, workers and annotations, which pytest prints in colour."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        """Return the first line: on a CI server pytest puts the message into the closing list, the whole diff again."""
        return format(self.reprcrash.message, spec)

    @property
    def reprcrash(self) -> FirstLine:
        """Return the first line, which pytest 8 lists at the end, and pytest prints with `--tb=line`."""
        return FirstLine(self.partition("\n")[0])

    def toterminal(self, tw: Any) -> None:
        """Write the lines to pytest's terminal writer, which leaves colours out where there are none."""
        lines = self.split("\n")
        for line, (sign, pieces) in zip(lines, marked_lines(lines), strict=True):
            markup = next((markup for start, markup in _MARKUP.items() if line.startswith(start)), {})
            tw.write(sign, **markup)
            for text, differs in pieces:
                tw.write(text, invert=differs, **markup)
            tw.line()
