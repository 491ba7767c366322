"""Equal changes of many prompts as one cluster: a changed format breaks ten thousand snapshots in one way."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core.outcome import CATEGORIES, Category, Outcome
from pytest_promptfmt.core.text import END, shared_end, shared_start
from pytest_promptfmt.results.wording import below
from pytest_promptfmt.snapshots.changes import Change

SHOWN_DETAIL: Final = 20_000
"""Characters of one cluster's text in JSON at most."""

_BY_NAME: Final[Mapping[str, Category]] = {category: category for category in CATEGORIES}
_MARK = "| "  # before every line of a text; other lines begin with two characters as well


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One snapshot of a cluster; `sections` are the titles of those that changed."""

    task: str
    profile: str
    file: str
    sections: tuple[str, ...] = ()

    def to_json(self, rootdir: Path) -> dict[str, Any]:
        """Return a mapping that JSON knows, with the file below the rootdir, and sections where there are any."""
        sections = {"sections": list(self.sections)} if self.sections else {}
        return {"task": self.task, "profile": self.profile, "file": below(self.file, rootdir), **sections}


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Snapshots that changed in the same way; `title` is the line about the first, `detail` all of it.

    `docs` is how many docs changed in all members; `tokens` says for each profile which tokens followed the text.
    """

    category: Category
    key: str
    title: str
    detail: str = ""
    docs: int = 0
    members: tuple[Member, ...] = ()
    tokens: Mapping[str, str] = field(default_factory=dict)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the different tasks, in the order they came."""
        return tuple(dict.fromkeys(member.task for member in self.members))

    def to_json(self, rootdir: Path) -> dict[str, Any]:
        """Return a mapping that JSON knows, with paths below the rootdir."""
        return {
            "category": self.category,
            "title": self.title,
            "detail": self.detail[:SHOWN_DETAIL],
            "items": len(self.members),
            "tasks": len(self.tasks),
            "docs": self.docs,
            "tokens": dict(self.tokens),
            "members": [member.to_json(rootdir) for member in self.members],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cluster:
        """Return the cluster that `to_json` wrote; it has no key."""
        return cls(
            category=data["category"],
            key="",
            title=data["title"],
            detail=data["detail"],
            docs=data["docs"],
            members=tuple(Member(**{**each, "sections": tuple(each.get("sections", ()))}) for each in data["members"]),
            tokens=data.get("tokens", {}),
        )


def clusters_of(outcomes: Iterable[Outcome]) -> tuple[Cluster, ...]:
    """Return the clusters by urgency, then the largest first, then in the order they came."""
    found: dict[tuple[Category, str], list[Outcome]] = {}
    for outcome in outcomes:
        category = _BY_NAME.get(outcome.category)
        if category is not None:
            found.setdefault((category, outcome.key), []).append(outcome)
    made = [_cluster(category, key, members) for (category, key), members in found.items()]
    return tuple(sorted(made, key=lambda cluster: (CATEGORIES.index(cluster.category), -len(cluster.members))))


def _cluster(category: Category, key: str, outcomes: list[Outcome]) -> Cluster:
    first = outcomes[0]
    tokens: dict[str, str] = {}
    for outcome in outcomes:
        tokens.setdefault(outcome.profile, outcome.tokens)
    return Cluster(
        category=category,
        key=key,
        title=first.title,
        detail=first.detail,
        docs=sum(outcome.docs for outcome in outcomes),
        members=tuple(
            Member(task=each.task, profile=each.profile, file=each.file, sections=each.sections) for each in outcomes
        ),
        tokens={profile: line for profile, line in tokens.items() if line},
    )


def cluster_key(changes: Iterable[Change], origin: str = "") -> str:
    """Return a digest that is equal for changes that differ only in the docs' own text.

    Of each change counts which part of a line came and went, and in which kind of section; how often and in which
    docs does not. `origin` is the configuration key behind the change. Without it the place in the line (start, end,
    inside) distinguishes changes; that place differs between profiles, where markup is around the same text.
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
    """Return what differs between two texts, and whether it is at the `start`, `end`, `whole` or `inside`."""
    start = shared_start(old, new)
    tail = shared_end(old[start:], new[start:])
    old_part, new_part = old[start : len(old) - tail], new[start : len(new) - tail]
    at_start = start <= len(_MARK)
    at_end = tail == 0 or (tail == len(END) and old.endswith(END))
    where = {(True, True): "whole", (True, False): "start", (False, True): "end"}.get((at_start, at_end), "inside")
    return old_part, new_part, where
