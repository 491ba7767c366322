"""The HTML report: one file with everything in it, made for ten thousand items and for hostile text.

A small index is read when the page opens; what an item shows is kept in compressed chunks that the page unpacks when
somebody looks at the item. The page may load nothing: its policy allows its own script and style, by their hashes.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from gzip import compress
from hashlib import sha256
from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Any, Final

from pytest_promptfmt.formats import split_name
from pytest_promptfmt.results.clusters import CATEGORIES, Clusters
from pytest_promptfmt.results.wording import printable

if TYPE_CHECKING:
    from pytest_promptfmt.results.outcomes import Outcome

CHUNK: Final = 100
"""Items in one compressed piece: unpacked together when one of them is looked at."""


_UNTOLD: Final = ("passed", "skipped")


@dataclass(slots=True)
class _Row:
    """One task@format and profile, put together from its items."""

    task: str
    profile: str
    file: str
    category: str = "passed"
    title: str = ""
    key: str = ""
    findings: list[Mapping[str, Any]] = field(default_factory=list)
    views: list[bytes] = field(default_factory=list)


class HtmlReport:
    """Gathers the items of a run; each is kept compressed until the page is written."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str], _Row] = {}

    def add(self, outcome: Outcome) -> None:
        """Add what an item found and shows; items of one task and profile share a row."""
        key = outcome.file, outcome.task, outcome.profile
        row = self._rows.setdefault(key, _Row(outcome.task, outcome.profile, outcome.file))
        row.findings += outcome.findings
        if outcome.view:
            row.views.append(zlib.compress(json.dumps(outcome.view).encode(), 1))
        if outcome.category == "finding":
            row.category = "finding" if row.category in _UNTOLD else row.category
        elif outcome.category != "passed" and row.category in (*_UNTOLD, "finding"):
            row.category, row.title, row.key = outcome.category, outcome.title, outcome.key

    def page(
        self,
        clusters: Clusters,
        *,
        title: str,
        shown_path: Callable[[str], str],
        accept: str = "",
        note: str = "",
    ) -> str:
        """Return the page; `shown_path` shortens the paths of files, `accept` is the command that accepts all.

        `note` stands below the title.
        """
        numbers: dict[tuple[str, str], int] = {
            (cluster.category, cluster.key): number for number, cluster in enumerate(clusters)
        }
        rows = sorted(self._rows.values(), key=lambda row: (_urgency(row), row.file, row.task, row.profile))
        index = {
            "title": title,
            "accept": accept,
            "categories": [*CATEGORIES, "finding"],
            "items": [self._entry(row, numbers, shown_path) for row in rows],
            "clusters": [
                {
                    "category": cluster.category,
                    "title": cluster.example,
                    "items": len(cluster.members),
                    "tasks": len(cluster.tasks),
                }
                for cluster in clusters
            ],
            "chunk": CHUNK,
        }
        chunks = [rows[at : at + CHUNK] for at in range(0, len(rows), CHUNK)]
        return _page(index, [_packed(_body(row) for row in chunk) for chunk in chunks], title, note)

    def _entry(self, row: _Row, numbers: Mapping[tuple[str, str], int], shown_path: Callable[[str], str]) -> list[Any]:
        name, layout = split_name(row.task)
        codes = sorted({finding["code"] for finding in row.findings})
        cluster = numbers.get((row.category, row.key))
        return [row.task, layout or "", row.profile, shown_path(row.file), row.category, cluster, codes, name]


def _urgency(row: _Row) -> tuple[int, int]:
    known: dict[str, int] = {name: number for number, name in enumerate((*CATEGORIES, "finding"))}
    return known.get(row.category, len(known)), 0 if row.category in known or row.findings else 1


def _body(row: _Row) -> bytes:
    """Return what an item shows as JSON, its views as they are: reading them would cost more than all the rest."""
    own = {"title": row.title, "findings": [_finding(each) for each in row.findings]}
    objects = [json.dumps(own).encode(), *map(zlib.decompress, row.views)]
    return b"{" + b",".join(text[1:-1] for text in objects) + b"}"


def _finding(finding: Mapping[str, Any]) -> list[str]:
    return [printable(str(finding[name])) for name in ("severity", "code", "name", "where", "message", "saw", "do")]


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
