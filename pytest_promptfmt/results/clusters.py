"""The changes and findings of many items, grouped by cause: one edit changes ten thousand snapshots in one way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from pytest_promptfmt.core.errors import without_task
from pytest_promptfmt.core.finding import Effect, Reported, Severity
from pytest_promptfmt.core.json_values import data_of, value_of
from pytest_promptfmt.core.outcome import CATEGORIES, Category, Outcome
from pytest_promptfmt.results.wording import below, counted

SHOWN_DETAIL: Final = 20_000
"""Characters of one cluster's text in JSON at most."""

SEVERITIES: Final = tuple(Severity)
"""All severities, the worst first."""

EFFECTS: Final = tuple(Effect)
"""All effects on the score, the greatest first."""

MEANINGS: Final[Mapping[str, str]] = {
    "error": "could not be read or rendered",
    "damaged": "the snapshot file is damaged or was edited by hand",
    "misread": "answers are read or scored wrongly",
    "changed": "the prompt differs from the snapshot",
    "new": "there is no snapshot yet",
    "renamed": "the snapshot has another name, but the same prompts",
    "obsolete": "a snapshot without a task",
    "header-only": "only the header of the snapshot is out of date",
}
"""Categories of problems, each with its meaning."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def grouped(values: Iterable[Value], key: Callable[[Value], Key]) -> dict[Key, list[Value]]:
    """Return the values by their key, keys and values in the order they came."""
    groups: dict[Key, list[Value]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return groups


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One snapshot of a cluster; `sections` are the titles of those that changed."""

    task: str
    profile: str
    file: str
    sections: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the task with its profile, as in node ids of pytest."""
        return f"{self.task} [{self.profile}]" if self.profile else self.task

    def to_json(self, rootdir: Path) -> dict[str, Any]:
        """Return a mapping for JSON, with the file below the rootdir, and sections where there are any."""
        sections = {"sections": list(self.sections)} if self.sections else {}
        return {"task": self.task, "profile": self.profile, "file": below(self.file, rootdir), **sections}


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Snapshots that changed in the same way; `title` is the line that most of them have, `detail` a whole text.

    `docs` is how many docs changed in all members; `tokens` describes for each profile which tokens followed the text.
    """

    category: Category
    key: str
    title: str
    detail: str = ""
    docs: int = 0
    members: tuple[Member, ...] = ()
    tokens: Mapping[str, str] = field(default_factory=dict)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the different tasks, in the order they came."""
        return tuple(dict.fromkeys(member.task for member in self.members))

    @property
    def headline(self) -> str:
        """Return the title, or the meaning of the category where that says more."""
        return MEANINGS[self.category] if self.category == "header-only" or not self.title else self.title

    @property
    def line(self) -> str:
        """Return `changed, 12 tests of 6 tasks: the headline`."""
        return f"{self.category}, {self.size()}: {self.headline}"

    def size(self, noun: str = "test") -> str:
        """Return `12 tests of 6 tasks`."""
        return f"{counted(len(self.members), noun)} of {counted(len(self.tasks), 'task')}"

    def files(self, rootdir: Path) -> list[str]:
        """Return the different files, in the order they came."""
        return [*dict.fromkeys(below(member.file, rootdir) for member in self.members)]

    def to_json(self, rootdir: Path) -> dict[str, Any]:
        """Return a mapping for JSON, with paths below the rootdir."""
        return {
            "category": self.category,
            "title": self.title,
            "detail": self.detail[:SHOWN_DETAIL],
            "items": len(self.members),
            "tasks": len(self.tasks),
            "docs": self.docs,
            "tokens": dict(self.tokens),
            "members": [member.to_json(rootdir) for member in self.members],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cluster:
        """Return the cluster that `to_json` wrote; it has no key."""
        names = ("category", "title", "detail", "docs", "members", "tokens")
        return value_of(cls, {name: data[name] for name in names if name in data} | {"key": ""})


def clusters_of(outcomes: Iterable[Outcome]) -> tuple[Cluster, ...]:
    """Return the clusters by urgency, then the largest first, then in the order they came."""
    problems = (outcome for outcome in outcomes if outcome.category in CATEGORIES)
    groups = grouped(problems, lambda outcome: (outcome.category, outcome.key))
    made = [_cluster(group) for group in groups.values()]
    return tuple(sorted(made, key=lambda cluster: (CATEGORIES.index(cluster.category), -len(cluster.members))))


def _cluster(outcomes: list[Outcome]) -> Cluster:
    (usual, _), *_ = Counter(outcome.title for outcome in outcomes).most_common(1)
    first = next(outcome for outcome in outcomes if outcome.title == usual)
    is_of_many = len({outcome.task for outcome in outcomes}) > 1
    tokens = grouped(outcomes, lambda outcome: outcome.profile)
    return Cluster(
        category=cast("Category", first.category),
        key=first.key,
        title=without_task(first.title, first.task) if is_of_many else first.title,
        # Whether a repeated change has a text depends on the process that ran it; the first one has it in any.
        detail=(first if first.category == "misread" else outcomes[0]).detail,
        docs=sum(outcome.docs for outcome in outcomes),
        members=tuple(
            Member(task=each.task, profile=each.profile, file=each.file, sections=each.sections) for each in outcomes
        ),
        tokens={profile: group[0].tokens for profile, group in tokens.items() if group[0].tokens},
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingPlace:
    """One place where the same mistake is written, the tasks that have it from there, and text and fix of the first."""

    file: str
    line: int | None
    column: int | None
    keys: str
    count: int
    tasks: tuple[str, ...]
    saw: str = ""
    do: str = ""

    def at(self, rootdir: Path) -> str:
        """Return `file:line:column`, "" for a finding that is not about a file."""
        return ":".join(str(part) for part in (below(self.file, rootdir), self.line, self.column) if part)


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingGroup:
    """Findings of one rule with the same message: one cause. `where`, `saw` and `do` are those of the first.

    `tasks` are the different ones; findings about a profile are under `profile NAME`. `profiles` are those that see
    the mistake, if not all do. It `is_fixable` if one of its findings is.
    """

    code: str
    name: str
    severity: Severity
    message: str
    count: int
    where: str
    saw: str
    do: str
    tasks: tuple[str, ...]
    effect: Effect = Effect.SOME_DOCS
    places: tuple[FindingPlace, ...] = ()
    profiles: tuple[str, ...] = ()
    concerns_profiles: bool = False
    is_fixable: bool = False

    def to_json(self, rootdir: Path) -> dict[str, Any]:
        """Return a mapping for JSON, with paths below the rootdir; `value_of` makes it a group again."""
        places = [{**data_of(place), "file": below(place.file, rootdir)} for place in self.places]
        return {**data_of(self), "places": places}

    @property
    def cluster(self) -> tuple[str, str, str]:
        """Return what the findings share, as `Reported.cluster`."""
        return self.code, self.severity, self.message

    @property
    def mark(self) -> str:
        """Return `[*]` after a space where one of the findings may be fixable."""
        return " [*]" if self.is_fixable else ""

    @property
    def headline(self) -> str:
        """Return `error: CODE message`, with its mark."""
        return f"{self.severity}: {self.code} {self.message}{self.mark}"

    @property
    def rank(self) -> tuple[int, int, int, str]:
        """Return what causes are ordered by, those first that matter most: effect, severity, number of tasks."""
        return EFFECTS.index(self.effect), SEVERITIES.index(self.severity), -len(self.tasks), self.code


def finding_groups(findings: Iterable[Reported]) -> tuple[FindingGroup, ...]:
    """Return the findings by cause, those first that matter most to the score."""
    groups: dict[tuple[str, str, str], dict[object, Reported]] = {}
    for number, finding in enumerate(findings):
        # A finding about a profile counts once, also if it was found for several files.
        place = number if finding.task else (finding.profiles, finding.position)
        groups.setdefault(finding.cluster, {}).setdefault(place, finding)
    made = [_finding_group([*group.values()]) for group in groups.values()]
    return tuple(sorted(made, key=lambda group: group.rank))


_SHARED: Final = ("code", "name", "severity", "message", "where", "saw", "do", "effect")
"""What a group has of its first finding."""


def _finding_group(findings: list[Reported]) -> FindingGroup:
    shared: dict[str, Any] = {name: getattr(findings[0], name) for name in _SHARED}
    return FindingGroup(
        **shared,
        count=len(findings),
        tasks=_subjects(findings),
        places=tuple(map(_place, grouped(findings, lambda finding: (finding.position, finding.keys)).values())),
        profiles=tuple(dict.fromkeys(name for finding in findings for name in finding.profiles)),
        concerns_profiles=not any(finding.task for finding in findings),
        is_fixable=any(finding.is_fixable for finding in findings),
    )


def _place(findings: list[Reported]) -> FindingPlace:
    position = findings[0].position
    return FindingPlace(
        file="" if position is None else str(position.path),
        line=None if position is None else position.line,
        column=None if position is None else position.column,
        keys=".".join(map(str, findings[0].keys)),
        count=len(findings),
        tasks=_subjects(findings),
        saw=findings[0].saw,
        do=findings[0].do,
    )


def _subjects(findings: Iterable[Reported]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(finding.task or f"profile {', '.join(finding.profiles)}" for finding in findings))
