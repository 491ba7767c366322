"""What became of each item, small enough to travel in pytest's reports, and the tally of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from pytest_promptfmt.core.errors import PromptfmtError, display_path
from pytest_promptfmt.results.baseline import BaselineTally
from pytest_promptfmt.results.clusters import Category, Clusters, Member
from pytest_promptfmt.results.findings import FindingTally
from pytest_promptfmt.results.html import HtmlReport
from pytest_promptfmt.snapshots.lock import LockEntry


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One item's result. `key` is equal for results to be shown once; `title` is the line that shows them.

    `findings` are those of the checks, as JSON; `globs` the per-file ignores for the item's file, `used_globs` those
    that took a finding away. `detail` shows the first of a cluster in full. `snapshot` is the snapshot file, and
    `new_text` what --snapshot-update would write to it, where that was asked for.
    `tokenizer` is the name, loader and content of the one that was used.
    `model` is the row of the table about a model.
    `tokens` is the line about the tokens that followed the text, of the first item of a profile in its cluster.
    `view` is what the HTML report shows of the item, where one is wanted.
    `accepted` are findings and errors of the baseline, each with the key of its `entry`; `reached` says how far the
    item came, so that an entry that was not met again can be called fixed.
    """

    task: str
    file: str
    profile: str = ""
    category: Category | Literal["passed", "skipped", "finding", "accepted"] = "passed"
    key: str = ""
    title: str = ""
    docs: int = 0
    findings: tuple[Mapping[str, Any], ...] = ()
    globs: tuple[str, ...] = ()
    used_globs: tuple[str, ...] = ()
    detail: str = ""
    tokens: str = ""
    snapshot: str = ""
    new_text: str | None = None
    view: Mapping[str, Any] = field(default_factory=dict)
    accepted: tuple[Mapping[str, Any], ...] = ()
    model: Mapping[str, Any] | None = None
    reached: Literal["", "rendered", "profile linted", "linted"] = ""
    tokenizer: tuple[str, str, str] | None = None

    def failed(self, error: PromptfmtError) -> Outcome:
        """Return the outcome of the same item when it could not be read or rendered; equal messages are shown once."""
        where = f"{error.position}: " if error.position else ""
        title = f"{where}{error.message}"
        return replace(self, category="error", key=error.message, title=title, detail=str(error))

    def skipped(self, reason: str) -> Outcome:
        """Return the outcome of the same item when it was skipped."""
        return replace(self, category="skipped", title=reason)

    def misread(self, key: str, title: str) -> Outcome:
        """Return the outcome of the same item when answers are not read or scored as they should be."""
        return replace(self, category="misread", key=key, title=title)

    def without_files(self) -> Outcome:
        """Return the outcome without what only reports in files show: most of its size."""
        return replace(self, view={}, new_text=None)

    def to_json(self) -> dict[str, Any]:
        """Return a mapping that JSON knows, without what is as usual: it travels with every report."""
        return {name: value for name in _NAMES if (value := getattr(self, name)) != _USUAL.get(name, _ALWAYS)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Outcome:
        """Return the outcome that `to_json` wrote."""
        return cls(**data)


_NAMES = tuple(entry.name for entry in fields(Outcome))
_ALWAYS = object()
_USUAL = {entry.name: entry.default for entry in fields(Outcome) if entry.name not in ("task", "file")} | {"view": {}}


@dataclass(slots=True)
class Tally:
    """The outcomes of a run: clusters of equal problems, and skipped tasks by reason.

    `counts` are items by category, `edits` those that know what --snapshot-update would write, `baseline` what was
    met of a baseline, `obsolete` the snapshot files that no task defines, `tokenizers` what was used, by name,
    `models` the rows of the table about a model, `archetypes` the profiles that are no model's own. `html` gathers
    what its page shows, `unrendered` are the tasks that were skipped, by file, `not_run` the items that pytest could
    not even set up.
    """

    clusters: Clusters = field(default_factory=Clusters)
    counts: Counter[str] = field(default_factory=Counter)
    edits: list[Outcome] = field(default_factory=list)
    baseline: BaselineTally = field(default_factory=BaselineTally)
    obsolete: list[Path] = field(default_factory=list)
    models: list[Mapping[str, Any]] = field(default_factory=list)
    archetypes: tuple[str, ...] = ()
    html: HtmlReport | None = None
    skipped: dict[str, list[str]] = field(default_factory=dict)
    unrendered: dict[str, set[str]] = field(default_factory=dict)
    not_run: list[str] = field(default_factory=list)
    checks: FindingTally = field(default_factory=FindingTally)
    tokenizers: dict[str, LockEntry] = field(default_factory=dict)
    _first: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, outcome: Outcome, item: str) -> bool:
        """Count the outcome of an item; return whether it repeats a problem that an earlier item had."""
        self.checks.add(outcome)
        self.baseline.add(outcome)
        self.counts[outcome.category] += 1
        if outcome.tokenizer is not None:
            name, loader, content = outcome.tokenizer
            self.tokenizers[name] = LockEntry(loader=loader, content=content)
        if outcome.model is not None:
            self.models.append(outcome.model)
        if self.html is not None:
            self.html.add(outcome)
        if outcome.new_text is not None:
            self.edits.append(replace(outcome, view={}))
        if outcome.category == "passed" or outcome.category == "accepted":
            return False
        if outcome.category == "skipped":
            self.skipped.setdefault(outcome.title, []).append(outcome.task)
            self.unrendered.setdefault(outcome.file, set()).add(outcome.task)
            return False
        if outcome.category == "finding":
            return self._first.setdefault((outcome.category, outcome.key), item) != item
        self._first.setdefault((outcome.category, outcome.key), item)
        member = Member(task=outcome.task, profile=outcome.profile, file=outcome.file, docs=outcome.docs)
        return not self.clusters.add(
            outcome.category, outcome.key, outcome.title, member, detail=outcome.detail, tokens=outcome.tokens
        )

    def add_obsolete(self, paths: Iterable[Path]) -> None:
        """Count the snapshots that no task defines; one that was found again under another name counts as renamed."""
        renamed = {cluster.key for cluster in self.clusters if cluster.category == "renamed"}
        for path in paths:
            self.obsolete.append(path)
            shown = display_path(path)
            if shown not in renamed:
                self.counts["obsolete"] += 1
                member = Member(task=shown, profile="", file=str(path))
                self.clusters.add("obsolete", "", "snapshots that no task defines", member)

    def first_item(self, outcome: Outcome) -> str | None:
        """Return the item that had the same problem first, None when there was none yet."""
        return self._first.get((outcome.category, outcome.key))

    def knows_profile(self, outcome: Outcome) -> bool:
        """Return whether an item of the same profile had the same problem."""
        return self.clusters.holds(outcome.category, outcome.key, outcome.profile)
