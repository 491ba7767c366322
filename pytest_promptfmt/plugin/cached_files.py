"""What an earlier run found out about files, as the store keeps it: somebody else's data, checked where it is read."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.engine.store import mapping, parsed
from pytest_promptfmt.tasks import IndexEntry

TaskRow = tuple[str, str, str | None, int | None, int | None]
"""A task as id, name, format, and where it is written, line and column."""

_SHOWN: Final = {"about", "reports", "warnings", "counted"}

Shown = Mapping[str, Any]
"""What a worker sent of one item: its reports, warnings, what syrupy is to count, and what is `about` the item."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Items that are only counted. `passed` are tests, `matched` snapshots, `failed` reports of a failure.

    `counts` are their outcomes by category, `said` those that say more than that a test passed, by the item.
    """

    passed: int
    matched: int
    failed: int
    counts: Mapping[str, int]
    said: tuple[tuple[str, Outcome], ...]

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Counted:
        """Return what a row says; raises whatever reading data of somebody else raises."""
        return cls(
            passed=int(row["passed"]),
            matched=int(row["matched"]),
            failed=int(row["failed"]),
            counts={str(category): int(count) for category, count in row["counts"].items()},
            said=tuple((str(name), Outcome.from_json(outcome)) for name, outcome in row["said"]),
        )


@dataclass(frozen=True)
class Remembered:
    """What is known of a file whose inputs are the same as then.

    `tasks` are those that it defines; `claims` the snapshots that they have, as task and profile; `size` counts its
    items. Those that passed without a warning are `quiet`: nobody needs to see them one by one, and where it `is_quiet`
    there are no others. `counted` are all items where only outcomes are wanted: None where there is more to say. `read`
    returns the text of what the items showed. A file that `brings_profiles` says nothing of the profiles of the run.
    """

    tasks: tuple[TaskRow, ...]
    claims: tuple[tuple[str, str], ...]
    size: int
    brings_profiles: bool
    is_quiet: bool
    quiet: Counted
    counted: Counted | None
    read: Callable[[], object]

    @cached_property
    def _text(self) -> object:
        return self.read()  # once: another run may write another

    def pack(self) -> None:
        """Keep what the items showed as text, a quarter of the memory, until it is asked for again."""
        vars(self).pop("items", None)

    @cached_property
    def items(self) -> Mapping[str, Shown]:
        """Return what each item showed, by the rest of its node id; of one that cannot be read nothing."""
        items = {str(key): mapping(shown) for key, shown in mapping(parsed(self._text)).items()}
        return {key: shown for key, shown in items.items() if shown.keys() >= _SHOWN and _can_be_shown(shown)}

    @property
    def is_complete(self) -> bool:
        """Return whether what the items showed can be shown again."""
        return len(self.items) == self.size and all(map(_is_about_item, self.items.values()))

    def loud(self) -> Iterator[Shown]:
        """Yield what the items showed that are not quiet."""
        return (shown for shown in self.items.values() if not is_quiet(shown))


def remembered(row: Mapping[str, Any], read: Callable[[], object]) -> Remembered:
    """Return what a row says of a file; raises whatever reading data of somebody else raises."""
    quiet = Counted.read(row["quiet"])
    counted = row["counted"]
    return Remembered(
        tasks=tuple((str(a), str(b), c, d, e) for a, b, c, d, e in row["tasks"]),
        claims=tuple((str(a), str(b)) for a, b in row["claims"]),
        size=int(row["size"]),
        brings_profiles=row["brings_profiles"] is True,
        is_quiet=row["is_quiet"] is True,
        quiet=quiet,
        counted=None if counted is None else quiet if row["is_quiet"] is True else Counted.read(counted),
        read=read,
    )


def is_quiet(shown: Shown) -> bool:
    """Return whether an item passed without a warning."""
    return not shown["warnings"] and all("passed" in report for report in shown["reports"])


def _can_be_shown(shown: Shown) -> bool:
    """Return whether the reports of an item are some that pytest reads: they are somebody else's data."""
    try:
        for report in shown["reports"]:
            if report["when"] not in ("setup", "call", "teardown"):
                return False
            if "promptfmt" in report:
                Outcome.from_json(report["promptfmt"])
            if "passed" not in report:
                pytest.TestReport._from_json(own_copy(report))
            elif not isinstance(report["passed"], int | float) or (
                report["when"] == "call" and "promptfmt" not in report
            ):
                return False
        written = all({"text", "module", "category", "filename", "lineno"} <= each.keys() for each in shown["warnings"])
        return written and all(isinstance(each, str) for each in shown["counted"])
    except Exception:  # whatever is wrong with it, it says nothing
        return False


def own_copy(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a report as pytest may read it: it writes into what says why an item failed."""
    return {**report, "longrepr": copy.deepcopy(report["longrepr"])}


def _is_about_item(shown: Shown) -> bool:
    """Return whether a row says all that is needed to show an item."""
    match shown.get("about"):
        case [str(), [str(), int() | None, str()], str(), str(), str() | None]:
            return True
    return False


def read_entry(row: Any) -> IndexEntry:
    """Return the entry of a file in the index; raises whatever reading data of somebody else raises."""
    name, kind, path, parts, tags = row
    return IndexEntry(name, kind, Path(path), tuple(map(str, parts)), tuple(map(str, tags)))


# -- what is written ---------------------------------------------------------------------------------------------------


def summary(items: Mapping[str, Shown]) -> dict[str, Any]:
    """Return what a run has to know of the items of a file, as `remembered` reads it."""
    loud = {name: shown for name, shown in items.items() if not is_quiet(shown)}
    says_all = True
    for shown in loud.values():
        explained = (mapping(each.get("promptfmt")).get("detail") for each in shown["reports"] if _has_failed(each))
        says_all = says_all and not shown["warnings"] and all(explained)
    return {
        "size": len(items),
        "is_quiet": not loud,
        "quiet": _counted((name, shown) for name, shown in items.items() if name not in loud),
        "counted": (_counted(items.items()) if loud else {}) if says_all else None,
    }


def together(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return what the rows of several files say of their quiet items, each with the name of its file."""
    found: dict[str, Any] = {"passed": 0, "matched": 0, "failed": 0}
    counts: Counter[str] = Counter()
    said = _Said(counts)
    for file, row in rows:
        quiet = row["quiet"]
        for name in found:
            found[name] += quiet[name]
        counts.update(quiet["counts"])
        for name, written in quiet["said"]:
            said.add(f"{file}::{name}", written)
    return {**found, "counts": counts, "said": said.found}


def written_entry(entry: IndexEntry) -> list[Any]:
    """Return the entry of a file as `read_entry` reads it."""
    return [entry.name, entry.kind, str(entry.path), list(entry.parts), list(entry.tags)]


def _counted(items: Iterable[tuple[str, Shown]]) -> dict[str, Any]:
    passed = matched = failed = 0
    counts: Counter[str] = Counter()
    said = _Said(counts)
    for name, shown in items:
        matched += len(shown["counted"])
        for report in shown["reports"]:
            passed += "passed" in report and report["when"] == "call"
            failed += _has_failed(report)
            if "promptfmt" in report:
                said.add(name, report["promptfmt"])
    return {"passed": passed, "matched": matched, "failed": failed, "counts": counts, "said": said.found}


class _Said:
    """Outcomes of which more than their category has to be known; the others are counted."""

    def __init__(self, counts: Counter[str]) -> None:
        self.found: list[tuple[str, Any]] = []
        self._counts = counts
        self._tokenizers: set[str] = set()

    def add(self, name: str, written: Any) -> None:
        """Take note of the outcome of an item, written in JSON's types."""
        outcome = Outcome.from_json(written)
        used = outcome.tokenizer.name if outcome.tokenizer is not None else ""
        if outcome.is_remarkable or (used and used not in self._tokenizers):
            self.found.append((name, written))
        else:
            self._counts[outcome.category] += 1
        self._tokenizers.add(used)


def _has_failed(report: Mapping[str, Any]) -> bool:
    return report.get("outcome") == "failed"


def snapshots_in(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[tuple[str, str, str]]:
    """Yield the snapshots of the tasks of several files: file, task and profile."""
    return ((file, task, profile) for file, row in rows for task, profile in row["claims"])
