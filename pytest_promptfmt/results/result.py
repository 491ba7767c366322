"""The result of a run as one small JSON object, for scripts: the same categories and clusters that people see."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.results.baseline import below
from pytest_promptfmt.results.clusters import Cluster, Clusters, Member
from pytest_promptfmt.results.findings import FindingTally
from pytest_promptfmt.results.outcomes import Tally

VERSION: Final = 1
SHOWN_DETAIL: Final = 20_000
"""Characters of one cluster's text at most."""


def result_json(
    tally: Tally,
    *,
    rootdir: Path,
    arguments: Sequence[str],
    exit_status: int,
    unmatched: Sequence[str] = (),
    defined: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """Return the result as JSON: `counts` of items by category, `clusters` with their members, `findings`, `skipped`.

    `archetypes` are the profiles that no model has.

    `unmatched` says which choices of the run chose nothing; `defined` are the files that were read to their end, with
    the names of their tasks, where that is wanted. Paths are below the rootdir, with slashes.
    """
    result = {
        "version": VERSION,
        "pytest_promptfmt": version("pytest-promptfmt"),
        "command": shlex.join(["pytest", *arguments]),
        "exit": exit_status,
        "archetypes": list(tally.archetypes),
        "counts": dict(sorted(tally.counts.items())),
        "clusters": [_cluster(cluster, rootdir) for cluster in tally.clusters],
        "findings": findings_of(tally.checks),
        "skipped": [{"reason": reason, "tasks": tasks} for reason, tasks in tally.skipped.items()],
        "unrendered": {below(file, rootdir): sorted(tasks) for file, tasks in sorted(tally.unrendered.items())},
        "not_run": tally.not_run,
        "unmatched": list(unmatched),
        "accepted_by_baseline": len({finding["key"] for finding in tally.baseline.accepted}),
    }
    if defined is not None:
        result["defined"] = {below(file, rootdir): list(names) for file, names in defined.items()}
    return json.dumps(result, indent=1, ensure_ascii=False) + "\n"


def _cluster(cluster: Cluster, rootdir: Path) -> dict[str, Any]:
    return {
        "category": cluster.category,
        "title": cluster.example,
        "detail": cluster.detail[:SHOWN_DETAIL],
        "items": len(cluster.members),
        "tasks": len(cluster.tasks),
        "docs": cluster.docs,
        "tokens": {profile: tokens for profile, tokens in cluster.tokens.items() if tokens},
        "members": [
            {
                "task": member.task,
                "profile": member.profile,
                "file": below(member.file, rootdir),
            }
            for member in cluster.members
        ],
    }


def clusters_of(result: Mapping[str, Any]) -> Clusters:
    """Return the clusters of a result that `result_json` wrote."""
    clusters = Clusters()
    for cluster in result["clusters"]:
        for member in cluster["members"]:
            clusters.add(
                cluster["category"],
                f"{cluster['title']}\0{cluster['detail']}",
                cluster["title"],
                Member(task=member["task"], profile=member["profile"], file=member["file"]),
                detail=cluster["detail"],
                tokens=cluster.get("tokens", {}).get(member["profile"], ""),
            )
    return clusters


def findings_of(tally: FindingTally) -> list[dict[str, Any]]:
    """Return each kind of finding with how often it was found and in which tasks, the worst first."""
    return list(_findings(tally))


def _findings(tally: FindingTally) -> Iterable[dict[str, Any]]:
    for (severity, code), entries in tally.by_rule().items():
        for entry in entries:
            example = entry.example
            yield {
                "code": code,
                "name": example["name"],
                "severity": severity,
                "message": example["message"],
                "count": entry.count,
                "where": example["where"],
                "saw": example["saw"],
                "do": example["do"],
                "tasks": list(entry.tasks),
            }
