"""Versions of tasks as `promptfmt diff` and `check` show them: lines, a section of the Markdown, edits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.text import Text

from pytest_promptfmt.cli.output import note, say, styled
from pytest_promptfmt.core.errors import SettingsError, raising
from pytest_promptfmt.results.markdown import code, fenced
from pytest_promptfmt.results.wording import NAMES, counted, listed
from pytest_promptfmt.revisions.git import Repository
from pytest_promptfmt.revisions.versions import VersionFinding, bumps, next_version, write_bumps

_SENTENCES: Final = {
    "kept": "changed{parts}, but still has version {before}",
    "unsure": "perhaps changed{parts}, but still has version {before}",
    "elsewhere": "changed{parts}, because of docs, settings or chat templates, but still has version {before}",
    "members": "tasks of the group changed, but its version is still {before}",
    "missing": "changed{parts}, but has no version",
    "raised": "changed{parts}, version {before} → {after}",
    "alone": "version {before} → {after}, but nothing else changed",
}


def version_lines(findings: Sequence[VersionFinding], *, verbose: bool) -> Iterator[Text]:
    """Yield a line for each finding, forgotten versions in red; tasks without any version are shown if `verbose`."""
    for finding in findings if verbose else _with_version(findings):
        names = f"{counted(len(finding.tasks), 'task')}: {listed(finding.tasks, None if verbose else NAMES)}"
        where = f"{finding.place}: " if finding.place is not None else ""
        text = f"{where}{_sentence(finding)}; {names}"
        yield styled(text, "bold red" if finding.is_error else "dim")


def version_block(findings: Sequence[VersionFinding]) -> Iterator[str]:
    """Yield the section of the Markdown: what was forgotten, and lines for a changelog."""
    findings = _with_version(findings)
    if not findings:
        return
    forgotten = sum(len(finding.tasks) for finding in findings if finding.is_error)
    summary = f"{counted(forgotten, 'changed task')} without a new version" if forgotten else "none forgotten"
    yield f"### versions: {summary}\n"
    rows = ["| tasks | | version in |", "|---|---|---|"]
    for finding in findings:
        bold = "**" if finding.is_error else ""
        where = code(str(finding.place)) if finding.place is not None else ""
        names = listed([code(name) for name in finding.tasks], NAMES)
        rows.append(f"| {names} | {bold}{_sentence(finding)}{bold} | {where} |")
    yield "\n".join(rows) + "\n"
    lines = []
    for finding in findings:
        version = next_version(finding.before) if finding.is_error else finding.after
        if finding.kind in ("kept", "raised") and version is not None:
            names = ", ".join(finding.tasks[:NAMES]) + (", …" if len(finding.tasks) > NAMES else "")
            lines.append(f"- version {version}: {', '.join(finding.parts)} changed ({names})")
    if lines:
        yield "For the changelog:\n\n" + fenced(lines, "markdown") + "\n"


def raise_versions(findings: Sequence[VersionFinding]) -> bool:
    """Write the edits into the work tree and show them; return whether every forgotten version was raised."""
    here = Path.cwd().resolve()
    made, refused = bumps(findings, here, Repository.around(here).top)
    with raising(SettingsError, "the version cannot be raised"):
        write_bumps(made, here)
    for bump in made:
        say("\n".join(bump.diff))
    for problem in refused:
        note(problem)
    return not refused


def _with_version(findings: Sequence[VersionFinding]) -> list[VersionFinding]:
    """Return the findings about tasks that have a version: a repository may do without."""
    return [finding for finding in findings if finding.kind != "missing"]


def _sentence(finding: VersionFinding) -> str:
    parts = f" ({', '.join(finding.parts)})" if finding.parts else ""
    before, after = ("none" if each is None else str(each)[:40] for each in (finding.before, finding.after))
    return _SENTENCES[finding.kind].format(parts=parts, before=before, after=after)
