"""What stands in the terminal before and after a run, as plain lines; colours and sections are pytest's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from pytest_promptfmt.core.errors import display_path
from pytest_promptfmt.results.clusters import Cluster
from pytest_promptfmt.results.outcomes import Tally
from pytest_promptfmt.results.wording import accept_all, archetype_note, counted, listed
from pytest_promptfmt.settings import Settings

ACCEPTABLE: Final = frozenset({"new", "changed", "renamed", "damaged", "header-only", "obsolete"})
"""The categories that `--snapshot-update` settles."""

SHOWN_TASKS: Final = 8
"""How many tasks of one cluster are named without -v."""

SHOWN_CLUSTERS: Final = 20
"""How many clusters are listed without -v."""


def header_lines(settings: Settings) -> list[str]:
    """Return the lines for pytest's header: what is rendered, and whose Python code may run."""
    allowed = ", ".join(["the rootdir", *(display_path(path) for path in settings.allow_code)])
    code = "Python code is not run" if settings.no_code else f"Python code may run below {allowed}"
    profiles = ", ".join(settings.run_id(profile.name) for profile in settings.profiles)
    lines = [f"promptfmt: profiles {profiles}; {code}"]
    note = archetype_note(archetypes_of(settings))
    return [*lines, f"promptfmt: {note}"] if note else lines


def archetypes_of(settings: Settings) -> tuple[str, ...]:
    """Return the names of the run's profiles that are archetypes."""
    return tuple(profile.name for profile in settings.profiles if profile.is_archetype)


def summary_lines(tally: Tally, *, arguments: Sequence[str], verbosity: int = 0) -> list[str]:
    """Return the closing lines: each distinct problem once, with how often and where; empty when all was well.

    `arguments` are those that this run was started with; with one more, it accepts what it found.
    """
    lines = list(_summary(tally, verbosity))
    if not ACCEPTABLE.isdisjoint(tally.clusters.counts()):
        lines.append(f"accept all of it: {accept_all(arguments)}")
    return lines


def _summary(tally: Tally, verbosity: int) -> Iterator[str]:
    shown = len(tally.clusters) if verbosity > 0 else SHOWN_CLUSTERS
    for cluster in islice(tally.clusters, shown):
        yield from _cluster_lines(cluster, verbosity)
    if len(tally.clusters) > shown:
        yield f"… and {len(tally.clusters) - shown:,} more distinct problems; -v lists them all"
    for reason, tasks in sorted(tally.skipped.items(), key=lambda entry: -len(entry[1])):
        yield f"skipped, {counted(len(tasks), 'item')}: {reason}"


def _cluster_lines(cluster: Cluster, verbosity: int) -> Iterator[str]:
    size = f"{counted(len(cluster.members), 'item')} of {counted(len(cluster.tasks), 'task')}"
    title = "the header is out of date" if cluster.category == "header-only" else ""
    yield f"{cluster.category}, {size}: {title or cluster.example}"
    if len(cluster.members) > 1:
        yield f"    {listed(cluster.tasks, None if verbosity > 0 else SHOWN_TASKS)}"
    yield from (f"    {profile}: {tokens}" for profile, tokens in cluster.tokens.items() if tokens)
