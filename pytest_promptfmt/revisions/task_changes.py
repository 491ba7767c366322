"""The result of a comparison: clusters that name tasks instead of snapshot files, with both names of renamed tasks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from pytest_promptfmt.core.outcome import CATEGORIES
from pytest_promptfmt.results.clusters import grouped
from pytest_promptfmt.revisions.verdicts import Place, UnseenChange
from pytest_promptfmt.snapshots.paths import BESIDE, decode_name

_SIDES: Final = re.compile(r"^--- .*\n\+\+\+ now$", re.MULTILINE)
_SHOWN_OF_NEW: Final = ("+", "…")
"""Lines of the text about a missing snapshot that show the prompts; the first names the format of the file."""


def as_comparison(
    result: Mapping[str, Any], *, old: str, new: str, unrendered_before: Collection[str]
) -> dict[str, Any]:
    """Return the result with clusters that name tasks instead of snapshot files, and the revisions.

    `result["followed"]` are the prompts of the old revision as they are named now, with their `old` names;
    `result["removed"]` those of tasks that no file defines any more. `unrendered_before` are tasks, or files, that the
    old revision has and that could not be rendered there: they are new only in that they render now.
    """
    old, new = short_name(old), short_name(new)
    clusters: list[dict[str, Any]] = []
    names = {(each["file"], each["task"]): each["old"] for each in result["followed"] if each["task"] != each["old"]}
    # The name of a task is in the header of its snapshot.
    found = [*without(result["clusters"], names, "header-only")]
    renamed = [*_same_under_other_names({**result, "clusters": found}, names)]
    for cluster in found:
        if cluster["category"] == "renamed":
            renamed += _renamed(cluster)
        elif cluster["category"] == "new":
            clusters += _new(cluster, old, unrendered_before)
        elif cluster["category"] != "obsolete":
            detail = _SIDES.sub(lambda _match: f"--- {old}\n+++ {new}", cluster["detail"])
            detail = detail.removeprefix(cluster["title"]).lstrip("\n")  # of an error the hint is left
            members = [_named(each, names) for each in cluster["members"]]
            clusters.append({**cluster, "detail": detail, "members": members})
    found_again = {_prompt(each, "old_file", "old") for each in renamed}
    removed = [prompt for prompt in result["removed"] if _prompt(prompt) not in found_again]
    members = [{name: prompt[name] for name in ("task", "profile", "file")} for prompt in renamed]
    clusters += _cluster("renamed", "the snapshot has another name, but the same prompts", members)
    clusters += _cluster("obsolete", f"tasks that {new} does not have", removed)
    counts = Counter({name: count for name, count in result["counts"].items() if name not in CATEGORIES})
    for cluster in clusters:
        counts[cluster["category"]] += cluster["items"]
    clusters.sort(key=lambda cluster: (CATEGORIES.index(cluster["category"]), -cluster["items"]))
    own = ("followed", "removed", "defined", "unmatched", "command", "next_steps")
    kept = {name: value for name, value in result.items() if name not in own}
    return {**kept, "counts": dict(sorted(counts.items())), "clusters": clusters}


def short_name(revision: str) -> str:
    """Return a short form of a revision: of a whole commit id the first characters."""
    return revision[:10] if len(revision) >= 40 and not revision.strip("0123456789abcdef") else revision


def without(
    clusters: Iterable[dict[str, Any]], tasks: Collection[Place], category: str = "changed"
) -> Iterator[dict[str, Any]]:
    """Yield the clusters without the prompts of these tasks in clusters of one category."""
    for cluster in clusters:
        is_kept = cluster["category"] != category
        kept = [each for each in cluster["members"] if is_kept or (each["file"], each["task"]) not in tasks]
        if kept:
            yield {**cluster, "members": kept, **_sizes(kept)}


def unseen_clusters(changes: Iterable[UnseenChange]) -> Iterator[dict[str, Any]]:
    """Yield a cluster for each change that no snapshot shows."""
    for title, found in grouped(changes, lambda change: change.title).items():
        members = [{"task": each.task, "profile": "", "file": each.file, "sections": [each.section]} for each in found]
        yield from _cluster("changed", title, members, detail=found[0].detail)


def _named(member: Mapping[str, Any], names: Mapping[Place, str]) -> dict[str, Any]:
    """Return a prompt with both names of its task, if they differ."""
    old = names.get((member["file"], member["task"]))
    return {**member, "task": f"{old} → {member['task']}"} if old is not None else {**member}


def _same_under_other_names(result: Mapping[str, Any], names: Mapping[Place, str]) -> Iterator[dict[str, Any]]:
    """Yield the prompts of renamed tasks, after both names, that were rendered again and are in no cluster."""
    shown = {_prompt(each) for cluster in result["clusters"] for each in cluster["members"]}
    lost = set(map(_prompt, result["removed"]))
    failed = {(file, task) for file, tasks in result["unrendered"].items() for task in tasks}
    errors = [cluster for cluster in result["clusters"] if cluster["category"] == "error"]
    failed |= {(each["file"], each["task"]) for cluster in errors for each in cluster["members"]}
    for prompt in result["followed"]:
        place = prompt["file"], prompt["task"]
        is_there = prompt["task"] in result["defined"].get(prompt["file"], ()) and place not in failed
        is_told = _prompt(prompt, "old_file", "old") in lost or _prompt(prompt) in shown
        if place in names and is_there and not is_told:
            yield _named(prompt, names)


def _prompt(each: Mapping[str, str], file: str = "file", task: str = "task") -> tuple[PurePosixPath, str, str]:
    """Return what tells a prompt from others: the folder of all snapshots of its file, its task and its profile."""
    return PurePosixPath(BESIDE.folder(Path(each[file]))), each[task], each["profile"]


def _renamed(cluster: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    path = PurePosixPath(cluster["title"].removeprefix("renamed ").partition(" → ")[0])
    old = decode_name(path.parent.name)
    old_file = (path.parents[3] / path.parts[-3]).as_posix()  # but for its suffix
    for member in cluster["members"]:
        yield {**member, "old": old, "old_file": old_file, "task": f"{old} → {member['task']}"}


def _new(cluster: Mapping[str, Any], old: str, unrendered: Collection[str]) -> Iterator[dict[str, Any]]:
    def title(member: Mapping[str, str]) -> str:
        was_there = not {member["task"], member["task"].partition("@")[0], member["file"]}.isdisjoint(unrendered)
        return f"tasks that could not be rendered in {old}" if was_there else f"tasks that {old} does not have"

    shown = [line for line in cluster["detail"].splitlines() if line[:1] in _SHOWN_OF_NEW][1:]
    for name, members in grouped(cluster["members"], title).items():
        # The text is that of the first of all; where that is not among these, they have none.
        has_text = members[0] == cluster["members"][0]
        yield from _cluster("new", name, members, detail="\n".join(shown) if has_text else "")


def _cluster(
    category: str, title: str, members: Sequence[Mapping[str, Any]], *, detail: str = ""
) -> Iterator[dict[str, Any]]:
    """Yield a cluster of these members, the first of which is the one whose text is shown; nothing without any."""
    listed = [*members[:1], *sorted(members[1:], key=lambda member: (member["task"], member["profile"]))]
    if listed:
        head = {"category": category, "title": title, "detail": detail, "docs": 0}
        yield {**head, **_sizes(listed), "members": listed}


def _sizes(members: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    return {"items": len(members), "tasks": len({member["task"] for member in members})}
