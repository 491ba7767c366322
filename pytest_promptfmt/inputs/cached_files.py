"""Outcomes of the files of earlier runs, as rows of the store; rows are untrusted, and checked when they are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.inputs.places import digest_of
from pytest_promptfmt.inputs.store import Store, as_json, mapping
from pytest_promptfmt.tasks import IndexEntry

Shown = Mapping[str, Any]
"""The result of one item: its reports, warnings, syrupy's counts, and facts `about` the item."""

TaskRow = tuple[str, str, str | None]
"""A task as id, name and format."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Items that are only counted. `passed` are tests, `matched` snapshots.

    `counts` are their outcomes by category, `notable` outcomes by item, which need more than counting.
    """

    passed: int
    matched: int
    counts: Mapping[str, int]
    notable: tuple[tuple[str, Outcome], ...]

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Counted:
        """Return the counts in a row; raises any error for invalid data."""
        return cls(
            passed=int(row["passed"]),
            matched=int(row["matched"]),
            counts={str(category): int(count) for category, count in row["counts"].items()},
            notable=tuple((str(name), Outcome.from_json(outcome)) for name, outcome in row["notable"]),
        )


@dataclass(frozen=True)
class CachedFile:
    """The cached outcomes of a file whose inputs are the same.

    `tasks` are those that it defines; `claims` the snapshots that they have, as task and profile; `size` counts its
    items. `quiet` are the items that passed without a warning: they need not be shown, and if it `is_quiet`, all items
    are. With `has_new`, a snapshot is missing; if it `is_partial`, the run did not make it. `results` is the digest of
    the packed results of items, which `read` returns. `profiles` are the keys of those that its items use, `introduces`
    of those that no file before it had: it has the findings about them.
    """

    tasks: tuple[TaskRow, ...]
    claims: tuple[tuple[str, str], ...]
    size: int
    profiles: frozenset[str]
    introduces: frozenset[str]
    is_quiet: bool
    quiet: Counted
    has_new: bool
    is_partial: bool
    results: str
    read: Callable[[], bytes]
    unpack: Callable[[bytes], Any]

    @classmethod
    def of(cls, row: Mapping[str, Any], read: Callable[[], bytes], store: Store) -> CachedFile:
        """Return the file of a row; raises any error for invalid data."""
        return cls(
            tasks=tuple((str(a), str(b), None if c is None else str(c)) for a, b, c in row["tasks"]),
            claims=tuple((str(a), str(b)) for a, b in row["claims"]),
            size=int(row["size"]),
            profiles=frozenset(map(str, row["profiles"])),
            introduces=frozenset(map(str, row["introduces"])),
            is_quiet=row["is_quiet"] is True,
            quiet=Counted.read(row["quiet"]),
            has_new=row["has_new"] is True,
            is_partial=row["is_partial"] is True,
            results=str(row["results"]),
            read=read,
            unpack=store.unpacked,
        )

    @cached_property
    def _packed(self) -> bytes:
        return self.read()  # once: another run may write it meanwhile

    @cached_property
    def is_whole(self) -> bool:
        """Return whether the results of its items are still those that were written."""
        return digest_of(self._packed) == self.results

    def pack(self) -> None:
        """Free the parsed results until they are needed again: packed they take little memory."""
        vars(self).pop("items", None)

    @cached_property
    def items(self) -> Mapping[str, Shown]:
        """Return the result of each item, by the rest of its node id; none if they are damaged."""
        return mapping(self.unpack(self._packed)) if self.is_whole else {}

    def loud(self) -> Iterator[Shown]:
        """Yield the results of items that are not quiet."""
        return (shown for shown in self.items.values() if not is_quiet(shown))


def read_entry(row: Any) -> IndexEntry:
    """Return the entry of a file in the index; raises any error for invalid data."""
    name, kind, path, parts, tags = row
    return IndexEntry(name, kind, Path(path), tuple(map(str, parts)), tuple(map(str, tags)))


def is_new(shown: Shown, *, made: bool = True) -> bool:
    """Return whether the result of an item is about a missing snapshot, or one that was not even `made`."""
    outcomes = [mapping(report.get("promptfmt")) for report in shown["reports"]]
    return any(each.get("category") == "new" and (made or not each.get("rendered")) for each in outcomes)


def is_quiet(shown: Shown) -> bool:
    """Return whether an item passed without a warning."""
    return not shown["warnings"] and all("passed" in report for report in shown["reports"])


# -- what is written ---------------------------------------------------------------------------------------------------


class ItemResults:
    """The results of the items of one file as they arrive; once all are there, compressed and with a summary."""

    def __init__(self) -> None:
        self.items: dict[str, Shown] = {}
        self.is_empty = True
        self.packed = b""
        self.summary: Mapping[str, Any] = {}

    def add(self, name: str, shown: Shown) -> bool:
        """Add the result of an item; return whether it is the first of this item."""
        if name in self.items or self.packed:
            return False
        self.items[name] = shown
        self.is_empty = False
        return True

    def pack(self, pack: Callable[[str], bytes]) -> None:
        """Compress the results, which are complete."""
        self.packed = pack(as_json(self.items))
        counts, quiet = _Counts(), {name: shown for name, shown in self.items.items() if is_quiet(shown)}
        for name, shown in quiet.items():
            counts.add_item(name, shown)
        self.summary = {
            "size": len(self.items),
            "is_quiet": len(quiet) == len(self.items),
            "quiet": counts.row,
            "has_new": any(map(is_new, self.items.values())),
            "is_partial": any(is_new(shown, made=False) for shown in self.items.values()),
            "results": digest_of(self.packed),
        }
        self.items = {}


def together(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the counts of the quiet items of several files; names of items begin with that of their file."""
    counts = _Counts()
    for file, row in rows:
        counts.add_row(file, row["quiet"])
    return counts.row


def written_entry(entry: IndexEntry) -> list[Any]:
    """Return the entry of a file as `read_entry` reads it."""
    return [entry.name, entry.kind, str(entry.path), list(entry.parts), list(entry.tags)]


class _Counts:
    """Counts of items in JSON's types, as `Counted` reads them."""

    def __init__(self) -> None:
        self.row: dict[str, Any] = {"passed": 0, "matched": 0, "counts": Counter(), "notable": []}
        self._tokenizers: set[str] = set()

    def add_row(self, file: str, row: Mapping[str, Any]) -> None:
        """Add the counts of a file."""
        for name in ("passed", "matched"):
            self.row[name] += row[name]
        self.row["counts"].update(row["counts"])
        for name, written in row["notable"]:
            self._add_outcome(f"{file}::{name}", written)

    def add_item(self, name: str, shown: Shown) -> None:
        """Add the result of a quiet item."""
        self.row["matched"] += len(shown["counted"])
        for report in shown["reports"]:
            self.row["passed"] += report["when"] == "call"
            if "promptfmt" in report:
                self._add_outcome(name, report["promptfmt"])

    def _add_outcome(self, name: str, written: Any) -> None:
        outcome = Outcome.from_json(written)
        used = outcome.tokenizer.name if outcome.tokenizer is not None else ""
        if outcome.is_remarkable or (used and used not in self._tokenizers):
            self.row["notable"].append((name, written))
        else:
            self.row["counts"][outcome.category] += 1
        self._tokenizers.add(used)
