"""The findings of a run by cause: each distinct problem once, with how often it was found and every place of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core.errors import display_path
from pytest_promptfmt.core.finding import Effect, Reported, Severity
from pytest_promptfmt.results.wording import below, counted, listed

SEVERITIES: Final = tuple(Severity)
"""All severities, the worst first."""

EFFECTS: Final = tuple(Effect)
"""All effects on the score, the greatest first."""

SHOWN_GROUPS: Final = 3
"""How many groups of one rule are shown without -v."""

SHOWN_CAUSES: Final = 10
"""How many causes are shown without -v where a run has more: those that matter most."""

SHOWN_TASKS: Final = 6
SHOWN_PLACES: Final = 8
"""Files, or folders where there are more files, that are named without -v."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingPlace:
    """One place where the same mistake is written, and the tasks that have it from there."""

    file: str
    line: int | None
    column: int | None
    keys: str
    count: int
    tasks: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingGroup:
    """Findings of one rule that say the same: one cause. `where`, `saw` and `do` are those of the first.

    `tasks` are the different ones; what concerns a profile alone is under `profile NAME`.
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
    concerns_profiles: bool = False

    def to_json(self, rootdir: Path) -> dict[str, Any]:
        """Return a mapping that JSON knows, with paths below the rootdir."""
        places = [{**asdict(place), "file": below(place.file, rootdir)} for place in self.places]
        return {**asdict(self), "places": places}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FindingGroup:
        """Return the group that `to_json` wrote."""
        places = tuple(FindingPlace(**{**place, "tasks": tuple(place["tasks"])}) for place in data["places"])
        severity, effect = Severity(data["severity"]), Effect(data.get("effect", Effect.SOME_DOCS))
        values = {"severity": severity, "effect": effect, "tasks": tuple(data["tasks"]), "places": places}
        return cls(**{**data, **values})

    @property
    def rank(self) -> tuple[int, int, int, str]:
        """Return what causes are ordered by, those first that matter most: effect, severity, number of tasks."""
        return EFFECTS.index(self.effect), SEVERITIES.index(self.severity), -len(self.tasks), self.code


def grouped(findings: Iterable[Reported]) -> tuple[FindingGroup, ...]:
    """Return the findings by cause, those first that matter most to the score."""
    groups: dict[tuple[str, str, str], dict[object, Reported]] = {}
    for number, finding in enumerate(findings):
        # What concerns a profile alone is said once, though each worker of a run with xdist finds it.
        place = number if finding.task else (finding.profiles, finding.position)
        groups.setdefault(finding.cluster, {}).setdefault(place, finding)
    made = [_group(list(found.values())) for found in groups.values()]
    return tuple(sorted(made, key=lambda group: group.rank))


def _group(findings: list[Reported]) -> FindingGroup:
    first = findings[0]
    places: dict[tuple[object, ...], list[Reported]] = {}
    for finding in findings:
        places.setdefault((finding.position, finding.keys), []).append(finding)
    return FindingGroup(
        code=first.code,
        name=first.name,
        severity=first.severity,
        message=first.message,
        count=len(findings),
        where=first.where,
        saw=first.saw,
        do=first.do,
        effect=first.effect,
        tasks=_subjects(findings),
        places=tuple(_place(each) for each in places.values()),
        concerns_profiles=not any(finding.task for finding in findings),
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
    )


def _subjects(findings: Iterable[Reported]) -> tuple[str, ...]:
    names = (finding.task or f"profile {', '.join(finding.profiles)}" for finding in findings)
    return tuple(dict.fromkeys(names))


def finding_lines(groups: Iterable[FindingGroup], *, verbosity: int = 0) -> Iterator[str]:
    """Yield the closing lines about findings; infos are among them only where they were asked for.

    Of many causes those that matter most are shown, then how often each rule reported something; -v shows all.
    """
    ordered = sorted(groups, key=lambda group: group.rank)
    rules: dict[tuple[Severity, str], list[FindingGroup]] = {}
    for group in ordered:
        rules.setdefault((group.severity, group.code), []).append(group)
    if verbosity <= 0 and len(ordered) > SHOWN_CAUSES:
        yield f"the {SHOWN_CAUSES} causes that matter most to the score, of {len(ordered):,} (-v lists them all):"
        for group in ordered[:SHOWN_CAUSES]:
            yield _header(group.severity, [group])
            yield from _group_lines(group, verbosity)
        yield "by rule:"
        yield from (f"  {_header(severity, found)}" for (severity, _), found in rules.items())
    else:
        for (severity, _), found in rules.items():
            yield _header(severity, found)
            shown = len(found) if verbosity > 0 else SHOWN_GROUPS
            for group in found[:shown]:
                yield from _group_lines(group, verbosity)
            if len(found) > shown:
                yield f"  … and {len(found) - shown:,} more kinds; -v lists them all"
    if rules:
        counts: Counter[Severity] = Counter()
        for group in ordered:
            counts[group.severity] += group.count
        totals = ", ".join(counted(counts[severity], severity) for severity in SEVERITIES if counts[severity])
        yield f"{totals}; `promptfmt explain CODE` says why"


def _header(severity: Severity, found: Sequence[FindingGroup]) -> str:
    """Return the line about findings of one rule: how many, in how many tasks, and what they do to the score."""
    subjects = {task for group in found for task in group.tasks}
    word = "profile" if all(group.concerns_profiles for group in found) else "task"
    total = counted(sum(group.count for group in found), severity)
    effect = min((group.effect for group in found), key=EFFECTS.index)
    return f"{found[0].code} {found[0].name}: {total} in {counted(len(subjects), word)} (affects {effect})"


def _group_lines(group: FindingGroup, verbosity: int) -> Iterator[str]:
    yield f"  {group.where}: {group.message}"
    if group.severity is not Severity.ERROR or verbosity > 0:  # the failure of an error shows it
        if group.saw:
            yield f"    saw: {group.saw}"
        yield f"    do: {group.do}"
    if len(group.tasks) > 1:
        yield f"    in {listed(group.tasks, None if verbosity > 0 else SHOWN_TASKS)}"
    places = _places(group, verbosity)
    if len(places) > 1:
        yield f"    {listed(places, None if verbosity > 0 else SHOWN_PLACES)}"


def _places(group: FindingGroup, verbosity: int) -> list[str]:
    """Return files with counts, the most frequent first; folders where there are too many files to name."""
    files: Counter[str] = Counter()
    for place in group.places:
        if place.file:
            files[display_path(place.file)] += place.count
    if verbosity <= 0 and len(files) > SHOWN_PLACES:
        folders: Counter[str] = Counter()
        for file, count in files.items():
            folders[f"{file.rpartition('/')[0] or '.'}/"] += count
        files = folders
    return [f"{file} ({count:,})" for file, count in files.most_common()]
