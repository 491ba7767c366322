"""What an earlier run found out about a file, as the store keeps it: somebody else's data, checked where it is read."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pytest

from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.engine.store import mapping

TaskRow = tuple[str, str, str | None, int | None, int | None]
"""A task as id, name, format, and where it is written, line and column."""

_SHOWN: Final = {"about", "reports", "warnings", "counted"}

Shown = Mapping[str, Any]
"""What a worker sent of one item: its reports, warnings, what syrupy is to count, and what is `about` the item."""


@dataclass(frozen=True)
class Remembered:
    """What is known of a file whose inputs are the same as then.

    `tasks` are those that it defines; `claims` the snapshots that they have, as task and profile. `counts` are its
    outcomes by category, `said` those that say more than that a test passed, by the rest of the node id. It `is_quiet`
    where every item passed without a warning: then nobody needs to see them one by one. It `says_all` where all that
    there is to say stands in the outcomes. `size` counts its items, `failed` those that failed.
    """

    tasks: tuple[TaskRow, ...]
    claims: tuple[tuple[str, str], ...]
    size: int
    is_quiet: bool
    says_all: bool
    failed: int
    counts: Mapping[str, int]
    said: tuple[tuple[str, Outcome], ...]
    read: Callable[[], Any]

    def forget_items(self) -> None:
        """Read `items` again where they are needed again: those of thousands of files take much memory."""
        self.__dict__.pop("items", None)

    @cached_property
    def items(self) -> Mapping[str, Shown]:
        """Return what each item showed, by the rest of its node id; of one that cannot be read nothing."""
        items = {str(key): mapping(shown) for key, shown in mapping(self.read()).items()}
        return {key: shown for key, shown in items.items() if shown.keys() >= _SHOWN and _can_be_shown(shown)}


def remembered(row: Mapping[str, Any], read: Callable[[], Any]) -> Remembered:
    """Return what a row says of a file; raises whatever reading data of somebody else raises."""
    return Remembered(
        tasks=tuple((str(a), str(b), c, d, e) for a, b, c, d, e in row["tasks"]),
        claims=tuple((str(a), str(b)) for a, b in row["claims"]),
        size=int(row["size"]),
        is_quiet=row["is_quiet"] is True,
        says_all=row["says_all"] is True,
        failed=int(row["failed"]),
        counts={str(category): int(count) for category, count in row["counts"].items()},
        said=tuple((str(name), Outcome.from_json(outcome)) for name, outcome in row["said"]),
        read=read,
    )


def _can_be_shown(shown: Shown) -> bool:
    """Return whether the reports of an item are some that pytest reads: they are somebody else's data."""
    try:
        for report in shown["reports"]:
            if report["when"] not in ("setup", "call", "teardown"):
                return False
            if "promptfmt" in report:
                Outcome.from_json(report["promptfmt"])
            if "passed" not in report:
                pytest.TestReport._from_json(copy.deepcopy(report))
            elif not isinstance(report["passed"], int | float) or (
                report["when"] == "call" and "promptfmt" not in report
            ):
                return False
        written = all({"text", "module", "category", "filename", "lineno"} <= each.keys() for each in shown["warnings"])
        return written and all(isinstance(each, str) for each in shown["counted"])
    except Exception:  # whatever is wrong with it, it says nothing
        return False


def summary(items: Mapping[str, Shown]) -> dict[str, Any]:
    """Return what a run has to know of items that it does not show one by one."""
    counts: Counter[str] = Counter()
    said: list[tuple[str, Any]] = []
    is_quiet = says_all = True
    failed = 0
    tokenizers: set[str] = set()
    for name, shown in items.items():
        is_quiet = is_quiet and not shown["warnings"] and all("passed" in report for report in shown["reports"])
        says_all = says_all and not shown["warnings"]
        for report in shown["reports"]:
            has_failed = report.get("outcome") == "failed"
            failed += has_failed
            says_all = says_all and not (has_failed and not mapping(report.get("promptfmt")).get("detail"))
            if "promptfmt" not in report:
                continue
            outcome = Outcome.from_json(report["promptfmt"])
            used = outcome.tokenizer.name if outcome.tokenizer is not None else ""
            if outcome.is_remarkable or (used and used not in tokenizers):
                said.append((name, report["promptfmt"]))
            else:
                counts[outcome.category] += 1
            tokenizers.add(used)
    kept = {"size": len(items), "is_quiet": is_quiet, "says_all": says_all, "failed": failed}
    return {**kept, "counts": counts, "said": said}
