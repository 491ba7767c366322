"""The result of a run as linters print it: lines that editors and CI servers read, and counts by rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.core.text import escape_controls
from pytest_promptfmt.results.clusters import FindingGroup
from pytest_promptfmt.results.run_result import RunResult
from pytest_promptfmt.results.terminal import SHOWN_CAUSES, by_importance, cause_lines, effect_lines, totals
from pytest_promptfmt.results.wording import below, printable

SHOWN_PLACES: Final = 4
"""Further places of one cause that are named without -v."""

_ANNOTATION_LEVELS: Final = {"error": "error", "warning": "warning", "info": "notice"}


def concise_lines(result: RunResult) -> Iterator[str]:
    """Yield `file:line:column: error: CODE message` for each place of a finding, and the same for other problems.

    Editors read the form, which is gcc's and mypy's. `[*]` marks findings of rules with a fix.
    """
    for group in result.findings:
        for place in group.places:
            yield printable(f"{place.at(result.rootdir) or group.where}: {_said(group)}")
    for cluster in result.clusters:
        level = "warning" if cluster.category == "header-only" else "error"
        for file in cluster.files(result.rootdir):
            yield printable(f"{file}:1:1: {level}: {cluster.category} {cluster.headline}")


def explained_lines(result: RunResult, *, is_verbose: bool) -> Iterator[str]:
    """Yield each cause of findings with an excerpt and the fix, the most important first, and the totals."""
    ordered = by_importance(result.findings, result)
    shown = ordered if is_verbose else ordered[:SHOWN_CAUSES]
    most = None if is_verbose else SHOWN_PLACES
    for group in shown:
        where = group.places[0].at(result.rootdir) if group.places else ""
        yield printable(f"{where or group.where}: {_said(group)}")
        yield from map(printable, (*cause_lines(group, result.rootdir, most), *effect_lines(result, group)))
    if len(shown) < len(result.findings):
        yield f"… and {len(result.findings) - len(shown):,} more causes (-v shows them); by rule:"
        yield from (f"  {line}" for line in statistics_lines(result))
    if result.findings:
        yield totals(result.findings)


def statistics_lines(result: RunResult) -> Iterator[str]:
    """Yield how often each rule reported something, the most frequent first: `12 PF201 doubled-whitespace`."""
    counts = Counter[tuple[str, str, str]]()
    for group in result.findings:
        counts[group.code, group.name, _mark(group)] += group.count
    width = max((len(str(count)) for count in counts.values()), default=0)
    for (code, name, mark), count in sorted(counts.items(), key=lambda each: (-each[1], each[0])):
        yield f"{count:>{width}} {code} {name}{mark}"


def github_annotations(result: RunResult) -> Iterator[str]:
    """Yield a command of GitHub's runner for each cause of findings and each distinct change, at their first places."""
    for group in result.findings:
        file, line, column = (place := group.places[0]).file, place.line, place.column
        at = {"file": below(file, result.rootdir)} if file else {}
        at |= {"line": str(line)} if line else {}
        at |= {"col": str(column)} if line and column else {}
        text = "\n".join((group.message, *cause_lines(group, result.rootdir, SHOWN_PLACES)))
        yield github_annotation(_ANNOTATION_LEVELS[group.severity.value], at, f"{group.code} {group.name}", text)
    for cluster in result.clusters:
        level = "notice" if cluster.category == "header-only" else "error"
        at = {"file": cluster.files(result.rootdir)[0]}
        yield github_annotation(level, at, f"{cluster.category}, {cluster.size()}", cluster.headline)


def github_annotation(level: str, place: dict[str, str], title: str, message: str) -> str:
    """Return one command of GitHub's runner; no name or message can end it or begin another."""
    named = ",".join(f"{name}={_property(value)}" for name, value in {**place, "title": title}.items())
    return f"::{level} {named}::{_data(message)}"


def _said(group: FindingGroup) -> str:
    return f"{group.severity}: {group.code} {group.message}{_mark(group)}"


def _mark(group: FindingGroup) -> str:
    return " [*]" if group.is_fixable else ""


def _data(text: str) -> str:
    return escape_controls(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
