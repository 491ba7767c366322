"""Equal changes of many prompts as one cluster: a changed format breaks ten thousand snapshots in one way.

Plain data without pytest; everything survives JSON, because it travels through pytest-xdist.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any, Literal, get_args

from pytest_promptfmt.core.text import END
from pytest_promptfmt.snapshots.changes import Change
from pytest_promptfmt.snapshots.hunks import shared_end, shared_start

Category = Literal["error", "damaged", "misread", "changed", "new", "renamed", "obsolete", "header-only"]
CATEGORIES: tuple[Category, ...] = get_args(Category)
"""All categories, the most urgent first."""

_MARK = "| "  # stands before every line of a text; other lines begin with two characters as well


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One snapshot of a cluster; `docs` is how many of its docs changed."""

    task: str
    profile: str
    file: str
    docs: int = 0


@dataclass(kw_only=True, slots=True)
class Cluster:
    """Snapshots that changed in the same way; `example` is the line that tells of the first, `detail` all of it.

    `tokens` tells of each profile which tokens followed the text; "" where it shows none.
    """

    category: Category
    key: str
    example: str
    detail: str = ""
    members: list[Member] = field(default_factory=list)
    tokens: dict[str, str] = field(default_factory=dict)

    @property
    def docs(self) -> int:
        """Return how many docs changed in all members."""
        return sum(member.docs for member in self.members)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the different tasks, in the order they came."""
        return tuple(dict.fromkeys(member.task for member in self.members))


class Clusters:
    """The clusters of a run, by category and key."""

    def __init__(self) -> None:
        self._clusters: dict[tuple[str, str], Cluster] = {}

    def add(
        self, category: Category, key: str, example: str, member: Member, *, detail: str = "", tokens: str = ""
    ) -> bool:
        """Add one snapshot; return whether it is the first of its cluster, whose example is kept."""
        cluster = self._clusters.get((category, key))
        first = cluster is None
        if cluster is None:
            cluster = self._clusters[category, key] = Cluster(
                category=category, key=key, example=example, detail=detail
            )
        cluster.members.append(member)
        cluster.tokens.setdefault(member.profile, tokens)
        return first

    def holds(self, category: str, key: str, profile: str) -> bool:
        """Return whether there is a snapshot of this profile in a cluster."""
        cluster = self._clusters.get((category, key))
        return cluster is not None and profile in cluster.tokens

    def __iter__(self) -> Iterator[Cluster]:
        """Yield clusters by urgency, then the largest first, then in the order they came."""
        return iter(
            sorted(
                self._clusters.values(),
                key=lambda cluster: (CATEGORIES.index(cluster.category), -len(cluster.members)),
            )
        )

    def __len__(self) -> int:
        return len(self._clusters)

    def counts(self) -> dict[Category, int]:
        """Return how many snapshots are in each category, those without any left out."""
        counts = dict.fromkeys(CATEGORIES, 0)
        for cluster in self._clusters.values():
            counts[cluster.category] += len(cluster.members)
        return {category: count for category, count in counts.items() if count}

    def to_json(self) -> list[dict[str, Any]]:
        """Return the clusters as lists and mappings that JSON knows."""
        return [asdict(cluster) for cluster in self._clusters.values()]

    @classmethod
    def from_json(cls, data: Iterable[Mapping[str, Any]]) -> Clusters:
        """Return the clusters that `to_json` wrote."""
        clusters = cls()
        clusters.merge(data)
        return clusters

    def merge(self, data: Iterable[Mapping[str, Any]]) -> None:
        """Add the clusters that `to_json` wrote, such as those of an xdist worker."""
        for cluster in data:
            for member in cluster["members"]:
                example, detail = cluster["example"], cluster.get("detail", "")
                tokens = cluster.get("tokens", {}).get(member["profile"], "")
                self.add(cluster["category"], cluster["key"], example, Member(**member), detail=detail, tokens=tokens)


def cluster_key(changes: Iterable[Change], origin: str = "") -> str:
    """Return a digest that is equal for changes that differ only in the docs' own text.

    Of each change counts which part of a line came and went, and in which kind of section; how often and in which
    docs does not. `origin` is the configuration key behind the change. Without it the place in the line (start, end,
    inside) has to tell changes apart; that place differs between profiles, where markup stands around the same text.
    """
    parts = {part if not origin else part[:-1] for change in changes for part in fragments(change)}
    return sha256(json.dumps([origin, sorted(parts)]).encode()).hexdigest()[:16]


def fragments(change: Change) -> Iterator[tuple[str, ...]]:
    """Yield kind of section, what went, what came, and where in the line that is: start, end, inside, whole."""
    section = "prompt" if change.section.startswith("prompt ") else change.section
    if len(change.removed) == len(change.added):
        for old, new in zip(change.removed, change.added, strict=True):
            if old != new:
                yield (section, *_trimmed(old, new))
    else:
        yield section, *_trimmed("\n".join(change.removed), "\n".join(change.added))


def _trimmed(old: str, new: str) -> tuple[str, str, str]:
    """Return what differs between two texts, and whether it stands at the `start`, `end`, `whole` or `inside`."""
    start = shared_start(old, new)
    tail = shared_end(old[start:], new[start:])
    old_part, new_part = old[start : len(old) - tail], new[start : len(new) - tail]
    at_start = start <= len(_MARK)
    at_end = tail == 0 or (tail == len(END) and old.endswith(END))
    where = {(True, True): "whole", (True, False): "start", (False, True): "end"}.get((at_start, at_end), "inside")
    return old_part, new_part, where
