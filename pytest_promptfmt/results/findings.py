"""The findings of a run: each distinct problem once, with its place, how often and in which tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pytest_promptfmt.results.wording import counted, listed

if TYPE_CHECKING:
    from pytest_promptfmt.results.outcomes import Outcome

SEVERITIES: Final = ("error", "warning", "info")
"""All severities, the worst first."""

SHOWN_ENTRIES: Final = 3
"""How many entries of one rule are shown without -v."""

SHOWN_TASKS: Final = 6

_PROFILE: Final = "profile "


@dataclass(slots=True)
class Entry:
    """Findings that say the same: one of them in full, and who has it."""

    example: Mapping[str, Any]
    tasks: dict[str, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Return how many findings there are."""
        return sum(self.tasks.values())


@dataclass(slots=True)
class FindingTally:
    """The findings of a run by rule and message, and the per-file ignores that were of use."""

    entries: dict[tuple[str, str, str], Entry] = field(default_factory=dict)
    globs: dict[str, bool] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        """Count the findings of an item."""
        for finding in outcome.findings:
            key = (finding["severity"], finding["code"], finding["message"])
            entry = self.entries.setdefault(key, Entry(finding))
            if finding["task"]:
                entry.tasks[finding["task"]] = entry.tasks.get(finding["task"], 0) + 1
            else:  # about a profile: said once, though each worker of a run with xdist finds it out
                entry.tasks[f"{_PROFILE}{finding['profile']}"] = 1
        for glob in outcome.globs:
            self.globs[glob] = self.globs.get(glob, False) or glob in outcome.used_globs

    def by_rule(self) -> dict[tuple[str, str], list[Entry]]:
        """Return severity and code to entries: the worst first, then by code, then the largest entry first."""
        ordered = sorted(self.entries.items(), key=lambda item: (SEVERITIES.index(item[0][0]), item[0][1]))
        rules: dict[tuple[str, str], list[Entry]] = {}
        for (severity, code, _), entry in ordered:
            rules.setdefault((severity, code), []).append(entry)
        return {rule: sorted(entries, key=lambda entry: -entry.count) for rule, entries in rules.items()}


def finding_lines(tally: FindingTally, *, verbosity: int = 0, gone: Iterable[str] = ()) -> list[str]:
    """Return the closing lines about findings; infos are in the tally only where they were asked for.

    `gone` are the globs of per-file ignores that no file fits.
    """
    told = [f"promptfmt_per_file_ignores: {glob!r} fits no file any more; remove the line" for glob in gone]
    return [*_lines(tally, verbosity), *told]


def _lines(tally: FindingTally, verbosity: int) -> Iterator[str]:
    counts = dict.fromkeys(SEVERITIES, 0)
    for (severity, code), entries in tally.by_rule().items():
        total = sum(entry.count for entry in entries)
        subjects = {task for entry in entries for task in entry.tasks}
        word = "profile" if all(subject.startswith(_PROFILE) for subject in subjects) else "task"
        counts[severity] += total
        name = entries[0].example["name"]
        yield f"{code} {name}: {counted(total, severity)} in {counted(len(subjects), word)}"
        shown = len(entries) if verbosity > 0 else SHOWN_ENTRIES
        for entry in entries[:shown]:
            yield from _entry_lines(entry, verbosity)
        if len(entries) > shown:
            yield f"  … and {len(entries) - shown:,} more kinds; -v lists them all"
    for glob, was_used in tally.globs.items():
        if not was_used:
            yield f"promptfmt_per_file_ignores: {glob!r} takes no finding away any more; remove the line"
    if tally.entries:
        told = ", ".join(counted(count, severity) for severity, count in counts.items() if count)
        yield f"{told}; `promptfmt explain CODE` says why"


def _entry_lines(entry: Entry, verbosity: int) -> Iterator[str]:
    example = entry.example
    yield f"  {example['where']}: {example['message']}"
    if example["severity"] != "error" or verbosity > 0:  # the failure of an error has told it
        if example["saw"]:
            yield f"    saw: {example['saw']}"
        yield f"    do: {example['do']}"
    if len(entry.tasks) > 1:
        yield f"    in {listed(list(entry.tasks), None if verbosity > 0 else SHOWN_TASKS)}"
