"""What failing items about answers say: which phrasings, checks or recorded verdicts, stage by stage, what changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pytest_promptfmt.answers.phrasing_verdicts import PhrasingRow
from pytest_promptfmt.answers.replaying import Replay
from pytest_promptfmt.core.errors import display_path
from pytest_promptfmt.results.failures import compared_lines
from pytest_promptfmt.results.wording import first_of
from pytest_promptfmt.snapshots.extension import Verdict
from pytest_promptfmt.snapshots.snapshot_verdicts import verdict_lines

SHOWN_ROWS = 20
"""Failing phrasings that are shown with their stages."""

SHOWN_VERDICTS = 50
"""Changed verdicts of a recording that are listed."""

SHOWN_BAD = 10
"""Records that cannot be used and are listed."""


def extraction_lines(
    task: str, failing: Sequence[PhrasingRow], problems: Sequence[str], verdict: Verdict, *, command: str
) -> Iterator[str]:
    """Yield what a failing extraction item says."""
    if failing:
        are_misread = "phrasing is not read as it" if len(failing) == 1 else "phrasings are not read as they"
        yield f"{task} [extraction]: {len(failing)} {are_misread} should be"
        rows = [f"{row.title}\n    {row.evidence}" if row.evidence else row.title for row in failing]
        yield from first_of(rows, SHOWN_ROWS, "  ")
        yield "accept with a reason: metadata.promptfmt.expected_failures: {" + failing[0].id + ": why}"
    yield from problems
    if verdict.passed:
        return
    yield from compared_lines(f"{task} [extraction]", "what the filters read has changed", verdict)
    yield f"accept: {command}"


def scores_lines(task: str, errors: Sequence[object], verdict: Verdict, *, command: str) -> Iterator[str]:
    """Yield what a failing item about recorded completions says; `errors` are states that cannot be scored."""
    yield from some_errors(errors)
    if verdict.passed:
        return
    yield from compared_lines(f"{task} [recorded]", "what the recorded completions score has changed", verdict)
    yield f"accept: {command}"


def some_errors(errors: Sequence[object]) -> Iterator[str]:
    """Yield the first errors, and how many more there are."""
    return first_of([str(error) for error in errors], SHOWN_BAD)


def change_of(verdict: Verdict) -> str | None:
    """Return how many verdicts of a recording changed, in words; None where no snapshot can be compared with."""
    old_lines, new_lines = _both(verdict)
    if not old_lines:
        return None
    changed = _changed(old_lines, new_lines)
    what = "blocks of verdicts" if " to " in next(iter(old_lines)) else "verdicts"
    return f"{len(changed):,} of {len(new_lines):,} {what} changed"


def recording_lines(who: str, replay: Replay, verdict: Verdict) -> Iterator[str]:
    """Yield what a replayed recording says that is not as its snapshot: each changed verdict, by record."""
    if verdict.error is not None:
        yield from compared_lines(who, "", verdict)
        return
    if verdict.state == "missing":
        yield f"{who}: there is no snapshot yet; {replay.summary()}"
        yield display_path(verdict.path)
        yield from _recorded_differently(replay)
        return
    old_lines, new_lines = _both(verdict)
    yield f"{who}: {change_of(verdict) or 'what is beside the verdicts changed'}; {replay.counts()}"
    changed = _changed(old_lines, new_lines)
    none = "not there"
    lines = [f"record {number}: {old_lines.get(number, none)} → {new_lines.get(number, none)}" for number in changed]
    yield from first_of(lines, SHOWN_VERDICTS, "  ")
    if any(" to " in number for number in changed):
        yield from _recorded_differently(replay)


def differing_verdicts(replay: Replay) -> str:
    """Return how many verdicts differ from those of the recording, with the first of them."""
    first = replay.changes[0]
    counted = f"{replay.changed:,} of {replay.verdicts:,} verdicts differ from those of the recording"
    return f"{counted}, such as record {first.number}: {first.was} → {first.now}"


def _recorded_differently(replay: Replay) -> Iterator[str]:
    if replay.changed:
        yield f"{replay.changed:,} of {replay.verdicts:,} verdicts differ from those of the recording:"
    for change in replay.changes[:SHOWN_VERDICTS]:
        yield f"  record {change.number}, doc {change.doc_index}, {change.pipeline}: {change.was} → {change.now}"
    if replay.changed > SHOWN_VERDICTS:
        yield f"  … and {replay.changed - SHOWN_VERDICTS:,} more"
    for bad in replay.bad[:SHOWN_BAD]:
        yield f"  record {bad.number} cannot be used: {bad.reason}"


def _both(verdict: Verdict) -> tuple[dict[str, str], dict[str, str]]:
    comparison = verdict.comparison
    if comparison is None or comparison.old is None or comparison.new is None:
        return {}, {}
    return verdict_lines(comparison.old), verdict_lines(comparison.new)


def _changed(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return [number for number in {**old, **new} if old.get(number) != new.get(number)]
