"""Recorded runs: completions to be replayed, and what became of prompts and answers of a run that is made again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.errors import PromptfmtError
from pytest_promptfmt.core.prompt import Origin

SHOWN_DIFFERENCES: Final = 5
"""How many prompts that differ are shown; all are counted."""

SHOWN_SCORES: Final = 100
"""How many answers a snapshot shows one by one; all are scored."""

_AROUND: Final = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptDifference:
    """A recorded prompt that is not ours: from which character on, both texts, and what made ours there."""

    where: str
    offset: int
    recorded: str
    ours: str
    origin: Origin | None = None

    def __str__(self) -> str:
        """Return where, both texts around the first difference, and the key that made ours."""
        made = f", in {self.origin}" if self.origin is not None else ""
        start = max(self.offset - _AROUND, 0)
        lines = [
            f"{self.where}: the rendered prompt differs from the recorded one at character {self.offset + 1}{made}"
        ]
        for name, text in (("recorded", self.recorded), ("ours", self.ours)):
            shown = text[start : self.offset + _AROUND]
            dots = "…" if start else "", "…" if len(text) > self.offset + _AROUND else ""
            lines.append(f"  {name + ':':<10}{dots[0]}{shown!r}{dots[1]}")
        return "\n".join(lines)


@dataclass(kw_only=True, slots=True)
class RecordedPrompts:
    """The recorded prompts of a file, compared with ours.

    `cut` are prompts that a window cut, of which only the beginning was compared. `different` counts all that differ,
    `differences` keeps the first ones. `states` are all requests that were read, `bad` those that cannot be used.
    """

    states: int = 0
    equal: int = 0
    cut: int = 0
    different: int = 0
    differences: list[PromptDifference] = field(default_factory=list)
    bad: list[PromptfmtError] = field(default_factory=list)

    def add(self, difference: PromptDifference | None, *, is_cut: bool) -> None:
        """Count one prompt; `difference` is None where it is ours."""
        if difference is None:
            self.cut += is_cut
            self.equal += not is_cut
            return
        self.different += 1
        if len(self.differences) < SHOWN_DIFFERENCES:
            self.differences.append(difference)

    @property
    def summary(self) -> str:
        """Return one line."""
        total = self.equal + self.cut + self.different
        if not total:
            return f"{self.states:,} recorded request{'s' * (self.states != 1)}, but none has a prompt"
        if self.different:
            return f"{self.different:,} of {total:,} rendered prompts differ from the recorded ones"
        cut = f"; {self.cut:,} of them were cut to the model's window" if self.cut else ""
        return f"all {total:,} rendered prompts are equal to the recorded ones{cut}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredAnswer:
    """One recorded answer: its number, the id of its doc, the completion that counts, and what was read of it.

    `answer` is None where the completion is not one of the labels. Where choices were asked about one by one, `answer`
    is the one that comes first, and `completion` None. `scores` are by metric.
    """

    number: int
    id: str
    completion: str | None
    answer: str | None
    golds: tuple[str, ...]
    scores: dict[str, float]


@dataclass(kw_only=True, slots=True)
class RecordedScores:
    """The scores of all recorded answers of a file: means by metric, and the first answers one by one.

    `count` is how many were scored. `not_mapped` counts completions that are not one of the labels, `bad` are those
    that cannot be scored.
    """

    count: int = 0
    not_mapped: int = 0
    totals: dict[str, float] = field(default_factory=dict)
    first: list[ScoredAnswer] = field(default_factory=list)
    bad: list[PromptfmtError] = field(default_factory=list)

    def add(self, scored: ScoredAnswer) -> None:
        """Count one more."""
        self.count += 1
        self.not_mapped += scored.answer is None
        for name, score in scored.scores.items():
            self.totals[name] = self.totals.get(name, 0.0) + score
        if len(self.first) < SHOWN_SCORES:
            self.first.append(scored)

    @property
    def means(self) -> dict[str, float]:
        """Return the mean of each metric."""
        return {name: total / self.count for name, total in self.totals.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """One completion: of the doc with this number (from 0), or of the doc that the record itself holds.

    `extractions` and `scores` are those of the recording, by filter pipeline (None: of any). `task` is the name or
    `name@format` that the record is for, None for any. `request` is the hash of what was asked, where it was kept.
    `target` is None where none is recorded.
    """

    number: int
    doc_index: int
    completion: str
    doc: Doc | None = None
    target: str | None = None
    extractions: Mapping[str | None, Any] = field(default_factory=dict)
    scores: Mapping[str | None, bool] = field(default_factory=dict)
    task: str | None = None
    request: str | None = None


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that cannot be used: its number in the file, from 1, and why."""

    number: int
    reason: str
