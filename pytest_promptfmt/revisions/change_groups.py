"""The result of a comparison: a run's result whose clusters name tasks of two revisions instead of snapshot files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from pytest_promptfmt.core.outcome import CATEGORIES
from pytest_promptfmt.revisions.unseen_changes import UnseenChange
from pytest_promptfmt.snapshots.paths import decode_name

_SIDES: Final = re.compile(r"^--- .*\n\+\+\+ now$", re.MULTILINE)
_SHOWN_OF_NEW: Final = ("+", "…")
"""Lines of the text about a missing snapshot that show the prompts; the first names the format of the file."""


def as_comparison(
    result: Mapping[str, Any], *, old: str, new: str, unrendered_before: Collection[str]
) -> dict[str, Any]:
    """Return the result with clusters that name tasks instead of snapshot files, and the revisions.

    `result["removed"]` are the prompts of tasks that no file defines any more. `unrendered_before` are tasks, or files,
    that the old revision has and that could not be rendered there: they are new only in that they render now.
    """
    old, new = short_name(old), short_name(new)
    clusters: list[dict[str, Any]] = []
    renamed: list[dict[str, str]] = []
    for cluster in result["clusters"]:
        if cluster["category"] == "renamed":
            renamed += _renamed(cluster)
        elif cluster["category"] == "new":
            clusters += _new(cluster, old, unrendered_before)
        elif cluster["category"] != "obsolete":
            detail = _SIDES.sub(lambda _match: f"--- {old}\n+++ {new}", cluster["detail"])
            detail = detail.removeprefix(cluster["title"]).lstrip("\n")  # of an error the hint is left
            clusters.append({**cluster, "detail": detail})
    found_again = {(prompt["old"], prompt["profile"]) for prompt in renamed}
    removed = [prompt for prompt in result["removed"] if (prompt["task"], prompt["profile"]) not in found_again]
    if renamed:
        members = [{name: prompt[name] for name in ("task", "profile", "file")} for prompt in renamed]
        clusters.append(_cluster("renamed", "the same prompts under another name", members))
    if removed:
        clusters.append(_cluster("obsolete", f"tasks that {new} does not have", removed))
    counts = {name: count for name, count in result["counts"].items() if name not in CATEGORIES}
    for cluster in clusters:
        counts[cluster["category"]] = counts.get(cluster["category"], 0) + cluster["items"]
    clusters.sort(key=lambda cluster: (CATEGORIES.index(cluster["category"]), -cluster["items"]))
    kept = {name: value for name, value in result.items() if name not in ("removed", "defined", "unmatched")}
    return {**kept, "counts": dict(sorted(counts.items())), "clusters": clusters}


def short_name(revision: str) -> str:
    """Return a short form of a revision: of a whole commit id the first characters."""
    return revision[:10] if len(revision) >= 40 and not revision.strip("0123456789abcdef") else revision


def _renamed(cluster: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    path = PurePosixPath(cluster["title"].removeprefix("renamed ").partition(" → ")[0])
    old = decode_name(path.parent.name)
    for member in cluster["members"]:
        yield {**member, "old": old, "task": f"{old} → {member['task']}"}


def _new(cluster: Mapping[str, Any], old: str, unrendered: Collection[str]) -> Iterator[dict[str, Any]]:
    sides: dict[str, list[dict[str, str]]] = {}
    for member in cluster["members"]:
        name = member["task"].partition("@")[0]
        was_there = member["task"] in unrendered or name in unrendered or member["file"] in unrendered
        title = f"tasks that could not be rendered in {old}" if was_there else f"tasks that {old} does not have"
        sides.setdefault(title, []).append(member)
    shown = [line for line in cluster["detail"].splitlines() if line[:1] in _SHOWN_OF_NEW][1:]
    for title, members in sides.items():
        # The text is that of the first of all; where that is not among these, they have none.
        has_text = members[0] == cluster["members"][0]
        yield _cluster("new", title, members, detail="\n".join(shown) if has_text else "")


def _cluster(category: str, title: str, members: Iterable[Mapping[str, Any]], *, detail: str = "") -> dict[str, Any]:
    # The first is the one whose text is shown.
    first, *others = members
    listed = [first, *sorted(others, key=lambda member: (member["task"], member["profile"]))]
    tasks = len({member["task"] for member in listed})
    head = {"category": category, "title": title, "detail": detail, "docs": 0}
    return {**head, "items": len(listed), "tasks": tasks, "members": listed}


def without(clusters: Iterable[dict[str, Any]], tasks: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield the clusters without the changed prompts of these tasks."""
    for cluster in clusters:
        kept = [each for each in cluster["members"] if cluster["category"] != "changed" or each["task"] not in tasks]
        if kept:
            yield {**cluster, "members": kept, "items": len(kept), "tasks": len({each["task"] for each in kept})}


def clusters_of(changes: Iterable[UnseenChange]) -> Iterator[dict[str, Any]]:
    """Yield a cluster for each change that no snapshot shows."""
    alike: dict[str, list[UnseenChange]] = {}
    for change in changes:
        alike.setdefault(change.title, []).append(change)
    for title, found in alike.items():
        members = [{"task": each.task, "profile": "", "file": each.file, "sections": [each.section]} for each in found]
        yield _cluster("changed", title, members, detail=found[0].detail)
