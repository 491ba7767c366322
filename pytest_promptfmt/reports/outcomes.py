"""What became of each item, small enough to travel in pytest's reports, and the tally of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from pytest_promptfmt.errors import PromptfmtError
from pytest_promptfmt.reports.clusters import Category, Clusters, Member
from pytest_promptfmt.reports.findings import FindingTally


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One item's result. `key` is equal for results to be shown once; `title` is the line that shows them.

    `findings` are those of the checks, as JSON; `globs` the per-file ignores for the item's file, `used_globs` those
    that took a finding away.
    """

    task: str
    file: str
    profile: str = ""
    category: Category | Literal["passed", "skipped", "finding"] = "passed"
    key: str = ""
    title: str = ""
    docs: int = 0
    findings: tuple[Mapping[str, Any], ...] = ()
    globs: tuple[str, ...] = ()
    used_globs: tuple[str, ...] = ()

    def failed(self, error: PromptfmtError) -> Outcome:
        """Return the outcome of the same item when it could not be read or rendered; equal messages are shown once."""
        where = f"{error.position}: " if error.position else ""
        return replace(self, category="error", key=error.message, title=f"{where}{error.message}")

    def skipped(self, reason: str) -> Outcome:
        """Return the outcome of the same item when it was skipped."""
        return replace(self, category="skipped", title=reason)

    def misread(self, key: str, title: str) -> Outcome:
        """Return the outcome of the same item when answers are not read or scored as they should be."""
        return replace(self, category="misread", key=key, title=title)

    def to_json(self) -> dict[str, Any]:
        """Return a mapping that JSON knows."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Outcome:
        """Return the outcome that `to_json` wrote."""
        return cls(**data)


@dataclass(slots=True)
class Tally:
    """The outcomes of a run: clusters of equal problems, and skipped tasks by reason."""

    clusters: Clusters = field(default_factory=Clusters)
    skipped: dict[str, list[str]] = field(default_factory=dict)
    checks: FindingTally = field(default_factory=FindingTally)
    _first: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, outcome: Outcome, item: str) -> bool:
        """Count the outcome of an item; return whether it repeats a problem that an earlier item had."""
        self.checks.add(outcome)
        if outcome.category == "passed":
            return False
        if outcome.category == "skipped":
            self.skipped.setdefault(outcome.title, []).append(outcome.task)
            return False
        if outcome.category == "finding":
            return self._first.setdefault((outcome.category, outcome.key), item) != item
        self._first.setdefault((outcome.category, outcome.key), item)
        member = Member(task=outcome.task, profile=outcome.profile, file=outcome.file, docs=outcome.docs)
        return not self.clusters.add(outcome.category, outcome.key, outcome.title, member)

    def first_item(self, outcome: Outcome) -> str | None:
        """Return the item that had the same problem first, None when there was none yet."""
        return self._first.get((outcome.category, outcome.key))
