"""The result of a run as linters print it: lines that editors and CI servers read, and counts by rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from pytest_promptfmt.core.text import escape_controls
from pytest_promptfmt.results.clusters import SEVERITIES, FindingGroup, FindingPlace, has_fix
from pytest_promptfmt.results.run_result import RunResult
from pytest_promptfmt.results.sarif import OF_CATEGORY
from pytest_promptfmt.results.terminal import SHOWN_CAUSES, by_importance, effect_lines, excerpts
from pytest_promptfmt.results.wording import below, counted, listed, printable

SHOWN_PLACES: Final = 4
"""Further places of one cause that are named without -v."""

_ANNOTATION_LEVELS: Final = {"error": "error", "warning": "warning", "info": "notice"}


def concise_lines(result: RunResult) -> Iterator[str]:
    """Yield `file:line:column: error: CODE message` for each place of a finding, and the same for other problems.

    Editors read the form, which is gcc's and mypy's. `[*]` marks findings of rules with a fix.
    """
    for group in result.findings:
        for place in group.places:
            yield printable(f"{_at(result, place) or group.where}: {_said(group)}")
    for cluster in result.clusters:
        level = "warning" if cluster.category == "header-only" else "error"
        for file in dict.fromkeys(below(member.file, result.rootdir) for member in cluster.members):
            title = cluster.title or OF_CATEGORY[cluster.category]
            yield printable(f"{file}:1:1: {level}: {cluster.category} {title}")


def explained_lines(result: RunResult, *, is_verbose: bool) -> Iterator[str]:
    """Yield each cause of findings with an excerpt and the fix, the most important first, and the totals."""
    ordered = by_importance(result.findings, result)
    shown = ordered if is_verbose else ordered[:SHOWN_CAUSES]
    most = None if is_verbose else SHOWN_PLACES
    for group in shown:
        first, *others = group.places or (None,)
        where = _at(result, first) if first is not None else ""
        yield printable(f"{where or group.where}: {_said(group)}")
        yield from excerpts(group, most)
        yield f"  do: {group.do}"
        if len(group.tasks) > 1 or others:
            also = f"; also at {listed([_at(result, each) for each in others if each], most)}" if others else ""
            yield printable(f"  in {counted(len(group.tasks), 'profile' if group.concerns_profiles else 'task')}{also}")
        yield from map(printable, effect_lines(result, group))
    if len(shown) < len(result.findings):
        yield f"… and {len(result.findings) - len(shown):,} more causes (-v shows them); by rule:"
        yield from (f"  {line}" for line in statistics_lines(result))
    if result.findings:
        yield totals(result.findings)


def totals(groups: Iterable[FindingGroup]) -> str:
    """Return how many findings there are of each severity, how many can be fixed, and where they are explained."""
    counts: Counter[str] = Counter()
    fixable = 0
    for group in groups:
        counts[group.severity] += group.count
        fixable += group.count if has_fix(group) else 0
    found = ", ".join(counted(counts[severity], severity) for severity in SEVERITIES if counts[severity])
    fix = f"; [*] {fixable:,} may be fixable with `promptfmt fix`" if fixable else ""
    return f"{found}{fix}; `promptfmt explain CODE` says why"


def statistics_lines(result: RunResult) -> Iterator[str]:
    """Yield how often each rule reported something, the most frequent first: `12 PF201 doubled-whitespace`."""
    counts = Counter[tuple[str, str, str]]()
    for group in result.findings:
        counts[group.code, group.name, _mark(group)] += group.count
    width = max((len(str(count)) for count in counts.values()), default=0)
    for (code, name, mark), count in sorted(counts.items(), key=lambda each: (-each[1], each[0])):
        yield f"{count:>{width}} {code} {name}{mark}"


def github_annotations(result: RunResult) -> Iterator[str]:
    """Yield commands of GitHub's runner: each place of a finding, and the first snapshot of each distinct change."""
    for group in result.findings:
        for place in group.places:
            at = {"file": below(place.file, result.rootdir)} if place.file else {}
            at |= {"line": str(place.line)} if place.line else {}
            at |= {"col": str(place.column)} if place.line and place.column else {}
            level = _ANNOTATION_LEVELS[group.severity.value]
            yield github_annotation(level, at, f"{group.code} {group.name}", f"{group.message}: {group.do}")
    for cluster in result.clusters:
        level = "notice" if cluster.category == "header-only" else "error"
        at = {"file": below(cluster.members[0].file, result.rootdir)}
        size = f"{counted(len(cluster.members), 'item')} of {counted(len(cluster.tasks), 'task')}"
        yield github_annotation(level, at, f"{cluster.category}, {size}", cluster.title)


def github_annotation(level: str, place: dict[str, str], title: str, message: str) -> str:
    """Return one command of GitHub's runner; no name or message can end it or begin another."""
    named = ",".join(f"{name}={_property(value)}" for name, value in {**place, "title": title}.items())
    return f"::{level} {named}::{_data(message)}"


def _said(group: FindingGroup) -> str:
    return f"{group.severity}: {group.code} {group.message}{_mark(group)}"


def _mark(group: FindingGroup) -> str:
    return " [*]" if has_fix(group) else ""


def _at(result: RunResult, place: FindingPlace) -> str:
    """Return `file:line:column`, "" for a finding that is not about a file."""
    return ":".join(str(part) for part in (below(place.file, result.rootdir), place.line, place.column) if part)


def _data(text: str) -> str:
    return escape_controls(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
