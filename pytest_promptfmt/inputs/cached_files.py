"""Outcomes of the files of earlier runs, as rows of the store; rows are untrusted, and checked when they are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.inputs.store import as_json, mapping, parsed
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
    are. `read` returns the text of the results of items, of which those that are not `is_valid` are left out.
    `profiles` are the keys of those that its items use, `introduces` of those that no file before it had: it has the
    findings about them.
    """

    tasks: tuple[TaskRow, ...]
    claims: tuple[tuple[str, str], ...]
    size: int
    profiles: frozenset[str]
    introduces: frozenset[str]
    is_quiet: bool
    quiet: Counted
    read: Callable[[], object]
    is_valid: Callable[[Shown], bool]

    @classmethod
    def of(cls, row: Mapping[str, Any], read: Callable[[], object], is_valid: Callable[[Shown], bool]) -> CachedFile:
        """Return the file of a row; raises any error for invalid data."""
        return cls(
            tasks=tuple((str(a), str(b), None if c is None else str(c)) for a, b, c in row["tasks"]),
            claims=tuple((str(a), str(b)) for a, b in row["claims"]),
            size=int(row["size"]),
            profiles=frozenset(map(str, row["profiles"])),
            introduces=frozenset(map(str, row["introduces"])),
            is_quiet=row["is_quiet"] is True,
            quiet=Counted.read(row["quiet"]),
            read=read,
            is_valid=is_valid,
        )

    @cached_property
    def _text(self) -> object:
        return self.read()  # once: another run may write it meanwhile

    def pack(self) -> None:
        """Free the parsed results until they are needed again: as text they take a quarter of the memory."""
        vars(self).pop("items", None)

    @cached_property
    def items(self) -> Mapping[str, Shown]:
        """Return the result of each item, by the rest of its node id, without invalid ones."""
        items = {str(key): mapping(shown) for key, shown in mapping(parsed(self._text)).items()}
        return {key: shown for key, shown in items.items() if self.is_valid(shown)}

    def loud(self) -> Iterator[Shown]:
        """Yield the results of items that are not quiet."""
        return (shown for shown in self.items.values() if not is_quiet(shown))


def read_entry(row: Any) -> IndexEntry:
    """Return the entry of a file in the index; raises any error for invalid data."""
    name, kind, path, parts, tags = row
    return IndexEntry(name, kind, Path(path), tuple(map(str, parts)), tuple(map(str, tags)))


def is_quiet(shown: Shown) -> bool:
    """Return whether an item passed without a warning."""
    return not shown["warnings"] and all("passed" in report for report in shown["reports"])


# -- what is written ---------------------------------------------------------------------------------------------------


class ItemResults:
    """The results of the items of one file as they arrive, and their compressed JSON and counts once all are there."""

    def __init__(self) -> None:
        self.items: dict[str, Shown] = {}
        self.is_empty = True
        self.packed = b""
        self._summary = ""

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
        is_all = len(quiet) == len(self.items)
        self._summary = as_json({"size": len(self.items), "is_quiet": is_all, "quiet": counts.row})
        self.items = {}

    @property
    def summary(self) -> Mapping[str, Any]:
        """Return the counts of packed items, as `CachedFile` reads them."""
        return mapping(parsed(self._summary))


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
