"""The HTML page of `promptfmt diff`: the report of a run, made of what a comparison of two revisions found."""

from __future__ import annotations

import tempfile
import webbrowser
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_promptfmt.core.errors import Position, display_path
from pytest_promptfmt.core.finding import Reported, Severity
from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.results.html import html_comparison, packed_view, row_in_pieces
from pytest_promptfmt.results.run_result import RunResult

if TYPE_CHECKING:
    from pytest_promptfmt.results.clusters import Cluster, FindingGroup

_SIDES = ("--- ", "+++ ")


def diff_page(
    clusters: Sequence[Cluster], findings: Sequence[FindingGroup], *, old: str, new: str, notes: Sequence[str]
) -> str:
    """Return the page: each change with the example that the comparison has of it, and new findings; `notes` above."""
    outcomes = [outcome for number, cluster in enumerate(clusters) for outcome in _of_cluster(cluster, str(number))]
    outcomes += [outcome for group in findings for outcome in _of_findings(group)]
    result = RunResult(rootdir=Path.cwd(), outcomes=tuple(outcomes))
    return html_comparison(result, old=old, new=new, notes=notes)


def open_in_browser(page: str) -> str:
    """Write the page to a temporary file that stays, show it in the browser, and return a line that names the file."""
    with tempfile.NamedTemporaryFile("wb", prefix="promptfmt-diff-", suffix=".html", delete=False) as file:
        file.write(page.encode("utf-8", "backslashreplace"))
    path = Path(file.name)
    is_open = webbrowser.open(path.as_uri())
    return f"{display_path(path)} is open in the browser" if is_open else f"no browser found: open {display_path(path)}"


def _of_cluster(cluster: Cluster, key: str) -> Iterator[Outcome]:
    """Yield an outcome for each member; all show the example, and those that it is not of say whose it is."""
    first = cluster.members[0]
    for member in cluster.members:
        remarks = [] if member == first else [f"the example is of {_name(first.task, first.profile)}"]
        yield Outcome(
            task=member.task,
            file=member.file,
            profile=member.profile,
            category=cluster.category,
            key=key,
            title=cluster.title,
            view=packed_view(_view(cluster.detail, remarks)),
        )


def _of_findings(group: FindingGroup) -> Iterator[Outcome]:
    for place in group.places:
        position = Position(Path(place.file), place.line, place.column) if place.file else None
        for task in place.tasks:
            finding = Reported(
                message=group.message,
                do=group.do,
                saw=group.saw,
                keys=(place.keys,) if place.keys else (),
                position=position,
                code=group.code,
                name=group.name,
                severity=group.severity,
                task=task,
                file=place.file,
                stable_keys=("",),
            )
            is_error = group.severity is Severity.ERROR
            yield Outcome(task=task, file=place.file, category="finding" if is_error else "passed", findings=(finding,))


def _view(detail: str, remarks: list[str]) -> dict[str, Any]:
    """Return what the page shows of the text of a cluster: its diff as rows in pieces, other lines as they are."""
    parts: list[dict[str, Any]] = []
    removed: list[str] = []
    added: list[str] = []

    def end_of_run() -> None:
        if removed or added:
            if not parts:
                parts.append({"title": "the prompts", "rows": []})
            parts[-1]["rows"] += [row_in_pieces(*pair) for pair in zip_longest(removed, added)]
        removed.clear()
        added.clear()

    for line in detail.splitlines():
        sign, text = line[:1], line[1:]
        if sign == "+" and not line.startswith(_SIDES):
            added.append(text)
            continue
        if added or sign != "-":
            end_of_run()
        if line.startswith(_SIDES):
            continue
        if line.startswith("@@ "):
            parts.append({"title": line.removeprefix("@@ ").removesuffix(" @@"), "rows": []})
        elif sign == "-":
            removed.append(text)
        elif sign == " " and parts:
            parts[-1]["rows"].append(row_in_pieces(text, text))
        elif line:
            remarks.append(line)
    end_of_run()
    return {"remarks": "\n".join(remarks), **({"comparison": parts} if parts else {})}


def _name(task: str, profile: str) -> str:
    return f"{task} [{profile}]" if profile else task
