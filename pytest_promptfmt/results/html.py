"""The HTML report: one file with everything in it, made for ten thousand items and for hostile text.

A small index is read when the page opens; what an item shows is kept in compressed chunks that the page unpacks when
somebody looks at the item. The page may load nothing: its policy allows its own script and style, by their hashes.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from gzip import compress
from hashlib import sha256
from importlib import resources
from string import Template
from typing import Any, Final, Literal

from pytest_promptfmt.core.finding import Reported, Severity
from pytest_promptfmt.core.outcome import CATEGORIES, Outcome
from pytest_promptfmt.formats import split_name
from pytest_promptfmt.results.run_result import RunResult
from pytest_promptfmt.results.wording import archetype_note, below, printable

CHUNK: Final = 100
"""Items in one compressed piece: unpacked together when one of them is looked at."""

_ORDER: Final = (*CATEGORIES, "finding")
_HARMLESS: Final = ("passed", "skipped")


@dataclass(slots=True)
class _Row:
    """One task@format and profile, put together from its items."""

    task: str
    profile: str
    file: str
    category: str = "passed"
    title: str = ""
    key: str = ""
    findings: list[Reported] = field(default_factory=list)
    views: list[str] = field(default_factory=list)

    @property
    def urgency(self) -> tuple[int, int]:
        """Return what rows are ordered by: the category, then whether there are findings."""
        place = _ORDER.index(self.category) if self.category in _ORDER else len(_ORDER)
        return place, 0 if self.category in _ORDER or self.findings else 1

    def add(self, outcome: Outcome) -> None:
        self.findings += outcome.findings
        if outcome.view:
            self.views.append(outcome.view)
        if outcome.category == "finding":
            self.category = "finding" if self.category in _HARMLESS else self.category
        elif outcome.category != "passed" and self.category in (*_HARMLESS, "finding"):
            self.category, self.title, self.key = outcome.category, outcome.title, outcome.key


def packed_view(view: Mapping[str, Any]) -> str:
    """Return what the page shows of an item as small text, for its outcome."""
    return b64encode(zlib.compress(json.dumps(view).encode(), 1)).decode()


def html_report(result: RunResult) -> str:
    """Return the page."""
    numbers: Mapping[tuple[str, str], int] = {
        (cluster.category, cluster.key): number for number, cluster in enumerate(result.clusters)
    }
    rows = sorted(_rows(result.outcomes), key=lambda row: (row.urgency, row.file, row.task, row.profile))
    title = f"Prompt formats: {result.rootdir.name}"
    index = {
        "title": title,
        "accept": result.accept_command,
        "categories": _ORDER,
        "items": [_entry(row, numbers.get((row.category, row.key)), result) for row in rows],
        "clusters": [
            {
                "category": cluster.category,
                "title": cluster.title,
                "items": len(cluster.members),
                "tasks": len(cluster.tasks),
            }
            for cluster in result.clusters
        ],
        "chunk": CHUNK,
    }
    chunks = [rows[at : at + CHUNK] for at in range(0, len(rows), CHUNK)]
    note = archetype_note(result.archetypes)
    return _page(index, [_packed(_body(row) for row in chunk) for chunk in chunks], title, note)


def _rows(outcomes: Iterable[Outcome]) -> Iterable[_Row]:
    """Return a row for each task and profile.

    Findings of an item without a profile are in the rows of the profiles that they name, others in the task's first.
    """
    rows: dict[tuple[str, str, str], _Row] = {}
    of_task: dict[tuple[str, str], list[_Row]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: not outcome.profile):
        key = outcome.file, outcome.task, outcome.profile
        others = of_task.setdefault(key[:2], [])
        if outcome.category == "obsolete":
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
            for row in [row for row in others if row.profile in finding.profiles] or others[:1]:
                row.add(part)
    return rows.values()


def _entry(row: _Row, cluster: int | None, result: RunResult) -> list[Any]:
    name, layout = split_name(row.task)
    codes = sorted({finding.code for finding in row.findings})
    file = below(row.file, result.rootdir)
    return [row.task, layout or "", row.profile, file, row.category, cluster, codes, name]


def _body(row: _Row) -> bytes:
    """Return what an item shows as JSON, its views as they are: reading them would cost more than all the rest."""
    own = {"title": row.title, "findings": [_finding(each) for each in row.findings]}
    objects = [json.dumps(own).encode(), *(zlib.decompress(b64decode(view)) for view in row.views)]
    return b"{" + b",".join(text[1:-1] for text in objects) + b"}"


def _finding(finding: Reported) -> list[str]:
    names = ("severity", "code", "name", "where", "message", "saw", "do")
    return [printable(str(getattr(finding, name))) for name in names]


def _packed(bodies: Iterable[bytes]) -> str:
    return b64encode(compress(b"[" + b",".join(bodies) + b"]", 6, mtime=0)).decode()


def _page(index: Mapping[str, Any], chunks: Sequence[str], title: str, note: str) -> str:
    folder = resources.files("pytest_promptfmt") / "data" / "report"
    script, style, page = ((folder / f"report.{name}").read_text("utf-8") for name in ("js", "css", "html"))
    packed = b64encode(compress(json.dumps(index).encode(), 6, mtime=0)).decode()
    data = "".join(
        f'<script type="text/plain" id="chunk-{number}">{chunk}</script>\n' for number, chunk in enumerate(chunks)
    )
    return Template(page).substitute(
        title=_escaped(title),
        note=f'<p class="dim">{_escaped(note)}</p>' if note else "",
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        index=packed,
        chunks=data,
    )


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
