"""The HTML report: one file with everything in it, made for ten thousand items and for hostile text.

A small index is read when the page opens; what an item shows is kept in compressed chunks that the page unpacks when
the item is opened. The page may load nothing: its policy allows its own script and style, by their hashes.
Items are small JSON: spans with their origins, requests, tokens, before and after. Text is named there as snapshots
name it, so that all characters of a prompt (control characters, bidi marks, lone surrogates) are visible on the page.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from gzip import compress
from hashlib import sha256
from html import escape
from importlib import resources
from itertools import repeat
from pathlib import Path
from string import Template
from typing import Any, Final, Literal

from pytest_promptfmt.core.finding import Reported, Severity
from pytest_promptfmt.core.git import GitError, git
from pytest_promptfmt.core.outcome import CATEGORIES, Outcome
from pytest_promptfmt.core.text import printable
from pytest_promptfmt.formats import split_name
from pytest_promptfmt.results.clusters import SEVERITIES, Cluster, FindingGroup
from pytest_promptfmt.results.item_views import diff_view, packed_view, unpacked_view
from pytest_promptfmt.results.markdown import SHOWN_TASKS
from pytest_promptfmt.results.run_result import Cause, RunResult, causes_of
from pytest_promptfmt.results.terminal import since_lines
from pytest_promptfmt.results.wording import archetype_note, below

CHUNK: Final = 100
"""Items in one compressed piece: unpacked together when one of them is opened."""

_NEW: Final = CATEGORIES.index("new")
_ORDER: Final = (*CATEGORIES[:_NEW], "finding", *CATEGORIES[_NEW:])
_WEIGHTS: Final = {"passed": 0, "skipped": 1, "new": 2, "finding": 3}
"""The categories that any other takes the place of, the most harmless first."""


@dataclass(slots=True)
class _Row:
    """One task@format and profile, put together from its items."""

    task: str
    profile: str
    file: str
    category: str = "passed"
    title: str = ""
    key: str = ""
    findings: list[Reported | FindingGroup] = field(default_factory=list)
    views: list[str] = field(default_factory=list)
    is_synthetic: bool = False

    @property
    def urgency(self) -> tuple[int, int]:
        """Return what rows are ordered by: the category, then whether there are findings."""
        place = _ORDER.index(self.category) if self.category in _ORDER else len(_ORDER)
        return place, 0 if self.category in _ORDER or self.findings else 1

    def add(self, outcome: Outcome) -> None:
        self.findings += outcome.findings
        self.is_synthetic = self.is_synthetic or outcome.is_synthetic
        if outcome.view:
            self.views.append(outcome.view)
        if _WEIGHTS.get(outcome.category, len(_WEIGHTS)) > _WEIGHTS.get(self.category, len(_WEIGHTS)):
            self.category, self.title, self.key = outcome.category, outcome.title, outcome.key

    @property
    def cause(self) -> Hashable:
        """Return what rows share that are one entry of the page: a change, a finding, or why they were skipped."""
        if self.category not in ("passed", "finding"):
            return self.category, self.key if self.category != "skipped" else self.title
        return min(self.findings, key=lambda each: SEVERITIES.index(each.severity)).cluster if self.findings else None


def html_report(result: RunResult) -> str:
    """Return the page."""
    numbers = {cause: number for number, cause in enumerate(result.causes)}

    def place(row: _Row) -> tuple[object, ...]:
        """Order by cause; of each, real docs come before synthetic ones, and text without markup before chats."""
        number = numbers.get(row.cause, len(numbers))
        return row.urgency, number, row.is_synthetic, row.profile != "plain", row.file, row.task, row.profile

    rows = sorted(_rows(result.outcomes), key=place)
    notes = [archetype_note(result.archetypes), *since_lines(result)]
    return _made_of(rows, result, result.causes, f"Prompt formats: {result.rootdir.name}", notes)


def html_comparison(
    clusters: Sequence[Cluster], findings: Sequence[FindingGroup], *, old: str, new: str, notes: Sequence[str]
) -> str:
    """Return the page of a comparison of revisions: below `notes` each change with its example, then new findings."""
    here, changed = Path.cwd(), [replace(cluster, key=str(number)) for number, cluster in enumerate(clusters)]
    rows = [
        _Row(each.task, each.profile, each.file, cluster.category, cluster.title, cluster.key, views=[view])
        for cluster in changed
        for each, view in zip(cluster.members, _examples(cluster), strict=False)
        if each.profile or cluster.category != "obsolete"  # a file, of no prompt
    ]
    of_task = {row.task: row for row in reversed(rows)}
    for group in findings:
        for place in group.places:
            where = " ".join(filter(None, (place.at(here), place.keys)))
            for task in place.tasks:  # a change of the task shows it, too
                if task not in of_task:
                    category = "finding" if group.severity is Severity.ERROR else "passed"
                    rows.append(of_task.setdefault(task, _Row(task, "", place.file, category)))
                of_task[task].findings.append(replace(group, where=where, saw=place.saw, do=place.do))
    causes = causes_of(changed, findings)
    return _made_of(rows, RunResult(rootdir=here), causes, f"Prompts: {old} → {new}", notes, sides=(old, new))


def _made_of(
    rows: Sequence[_Row],
    result: RunResult,
    causes: Mapping[Hashable, Cause],
    title: str,
    notes: Sequence[str],
    *,
    sides: tuple[str, str] = ("snapshot", "now"),
) -> str:
    """Return a page of these rows and their causes; `sides` are the heads of before and after."""
    numbers = {cause: number for number, cause in enumerate(causes)}
    explained = {[*numbers][number]: group for number, group in result.explained.items()}
    index = {
        "title": title,
        "sides": sides,
        "accept": result.accept_command,
        "categories": _ORDER,
        "items": [_entry(row, numbers.get(row.cause), result) for row in rows],
        "causes": [
            {
                "category": cause.category,
                "title": printable(cause.title),
                "tasks": len(cause.tasks),
                "names": cause.tasks[:SHOWN_TASKS],
                "new": result.is_new(cause.identity),
                "because": f"{explained[key].code} {explained[key].message}" if key in explained else "",
            }
            for key, cause in causes.items()
        ],
        "chunk": CHUNK,
    }
    chunks = [rows[at : at + CHUNK] for at in range(0, len(rows), CHUNK)]
    bodies = [_packed(b"[%s]" % b",".join(_body(row, result) for row in chunk)) for chunk in chunks]
    return _page(index, bodies, title, notes, _written_at(result.rootdir))


def _written_at(rootdir: Path) -> str:
    """Return branch and commit, where git knows them, and the time."""
    said = []
    for arguments in (("rev-parse", "--abbrev-ref", "HEAD"), ("rev-parse", "--short", "HEAD")):
        with suppress(GitError):
            said.append(git(rootdir, *arguments, seconds=5).decode("utf-8", "replace").strip())
    return ", ".join([*said, f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}"])


def _rows(outcomes: Iterable[Outcome]) -> Iterable[_Row]:
    """Return a row for each task and profile.

    Findings of an item without a profile are in the rows of the profiles that they name, others in the task's first.
    """
    rows: dict[tuple[str, str, str], _Row] = {}
    of_task: dict[tuple[str, str], list[_Row]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: not outcome.profile):
        key = outcome.file, outcome.task, outcome.profile
        others = of_task.setdefault(key[:2], [])
        if outcome.category == "obsolete" and not outcome.profile:  # a file, of no prompt of this run
            continue
        if outcome.profile or not others or outcome.category not in ("passed", "finding"):
            if key not in rows:
                rows[key] = _Row(outcome.task, outcome.profile, outcome.file)
                others.append(rows[key])
            rows[key].add(outcome)
            continue
        for finding in outcome.findings:
            category: Literal["passed", "finding"] = "finding" if finding.severity is Severity.ERROR else "passed"
            part = replace(outcome, category=category, findings=(finding,))
            seen_by = (*finding.profiles, finding.conversation)
            for row in [row for row in others if row.profile in seen_by] or others[:1]:
                row.add(part)
    return rows.values()


def _entry(row: _Row, cause: int | None, result: RunResult) -> list[Any]:
    name, layout = split_name(row.task)
    codes, file = sorted({finding.code for finding in row.findings}), below(row.file, result.rootdir)
    has_new = any(result.is_new((each.code, each.message)) for each in row.findings)
    return [row.task, layout or "", row.profile, file, row.category, cause, codes, name, has_new]


def _body(row: _Row, result: RunResult) -> bytes:
    """Return what an item shows as JSON, its views as they are: reading them would cost more than all the rest."""
    own = {"title": row.title, "findings": [_finding(each, result) for each in row.findings]}
    objects = [json.dumps(own).encode(), *(unpacked_view(view) for view in row.views)]
    return b"{" + b",".join(text[1:-1] for text in objects) + b"}"


def _finding(finding: Reported | FindingGroup, result: RunResult) -> list[str | bool]:
    names = ("severity", "code", "name", "where", "message", "saw", "do")
    return [*(printable(str(getattr(finding, name))) for name in names), result.is_new((finding.code, finding.message))]


def _packed(content: bytes) -> str:
    return b64encode(compress(content, 6, mtime=0)).decode()


def _page(index: Mapping[str, Any], chunks: Sequence[str], title: str, notes: Sequence[str], where: str) -> str:
    folder = resources.files("pytest_promptfmt") / "data" / "report"
    script, style, page = ((folder / f"report.{name}").read_text("utf-8") for name in ("js", "css", "html"))
    data = "".join(
        f'<script type="text/plain" id="chunk-{number}">{chunk}</script>\n' for number, chunk in enumerate(chunks)
    )
    return Template(page).substitute(
        title=escape(title),
        where=escape(where),
        note="\n".join(f'<p class="dim">{escape(printable(note))}</p>' for note in notes if note),
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        index=_packed(json.dumps(index).encode()),
        chunks=data,
    )


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _examples(cluster: Cluster) -> Iterator[str]:
    """Yield the view of the example, and for each further member the same with the name of its task."""
    lines = cluster.detail.splitlines()
    yield packed_view(diff_view(lines))
    yield from repeat(packed_view(diff_view(lines, [f"the example is from {cluster.members[0].name}"])))
