"""The result of a run as Markdown, bounded in bytes: for the summary of a CI job, and for a pull request.

Prompts are hostile text: everything that comes from a file is in code, behind fences it cannot close.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from pytest_promptfmt.core.outcome import CATEGORIES
from pytest_promptfmt.core.text import printable
from pytest_promptfmt.results.clusters import MEANINGS, Cluster, FindingGroup
from pytest_promptfmt.results.run_result import RunResult
from pytest_promptfmt.results.terminal import excerpts, since_lines
from pytest_promptfmt.results.wording import PLACES, archetype_note, counted, listed

STEP_LIMIT: Final = 1024 * 1024
"""Bytes that GitHub takes as the summary of one step; a larger one is not shown at all."""

SHOWN_TASKS: Final = 30
SHOWN_LINES: Final = 60
SHOWN_FINDINGS: Final = 50
OPEN_DIFFS: Final = 3
"""Diffs that are seen without a click: more of them would hide how many there are."""

_RESERVE: Final = 400  # for the sentence about what was left out


def markdown_report(result: RunResult, limit: int = STEP_LIMIT) -> str:
    """Return the Markdown of a run, at most `limit` bytes: counts, then distinct problems, the most urgent first."""
    blocks = [*cluster_blocks(result.unexplained), *finding_table(result.findings)]
    return bounded("\n".join(_head(result)), blocks, limit)


def bounded(head: str, blocks: Sequence[str], limit: int, tail: str = "") -> str:
    """Return head, tail, and as many blocks between as fit into `limit` bytes, and how many were left out."""
    parts = [head.rstrip("\n") + "\n"]
    room = limit - _RESERVE - len(parts[0].encode()) - len(tail.encode())
    shown = 0
    for block in blocks:
        room -= len(block.encode()) + 1
        if room < 0:
            break
        parts.append(block)
        shown += 1
    if shown < len(blocks):
        parts.append(
            f"_{len(blocks) - shown:,} more changes are left out: this report may have at most {limit:,} bytes._\n"
        )
    return "\n".join([*parts, tail] if tail else parts)


def code(text: str) -> str:
    """Return a text as inline code of one line, which its backticks cannot end."""
    shown = printable(text).replace("\n", "⏎")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    return f"{fence} {shown} {fence}" if shown.startswith("`") or shown.endswith("`") else f"{fence}{shown}{fence}"


def fenced(lines: Iterable[str], language: str = "diff") -> str:
    """Return lines as a block of code that they cannot end."""
    text = printable("\n".join(lines))
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`{3,}", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"


def _head(result: RunResult) -> Iterator[str]:
    counts = result.counts
    problems = {category: counts[category] for category in CATEGORIES if counts.get(category)}
    passed, failing = counts.get("passed", 0), counts.get("finding", 0)
    yield "## Prompt formats\n"
    if not problems and not failing:
        yield f"{counted(passed, 'test')} passed."
    else:
        yield "| | tests | |\n|---|--:|---|"
        yield from (f"| {name} | {count:,} | {MEANINGS[name]} |" for name, count in problems.items())
        if failing:
            yield f"| finding | {failing:,} | a rule found a mistake |"
        yield f"| passed | {passed:,} | |"
    others = {"skipped": "skipped", "accepted": "in the baseline"}
    yield from (f"\n{counted(counts[name], 'test')} {text}." for name, text in others.items() if counts.get(name))
    yield ""
    if result.archetypes:
        yield f"{archetype_note([code(name) for name in result.archetypes])}.\n"
    if result.earlier is not None:
        yield from (f"- {code(line)}" for line in since_lines(result))
        yield ""
    if result.accept_command:
        patch = f", or {code(f'git apply {result.patch}')}" if result.patch else ""
        yield f"Accept all changes: {code(result.accept_command)}{patch}\n"


def cluster_blocks(clusters: Iterable[Cluster], noun: str = "test") -> list[str]:
    """Return a block for each cluster of what `noun` names; the diffs of the first few are unfolded."""
    return [_cluster_block(cluster, noun, is_open=number < OPEN_DIFFS) for number, cluster in enumerate(clusters)]


def _cluster_block(cluster: Cluster, noun: str, *, is_open: bool) -> str:
    """Return a cluster: its size, its title, its first diff, and the tasks."""
    lines = [f"### {cluster.category}: {cluster.size(noun)}", "", code(cluster.headline), ""]
    shown = cluster.detail.splitlines()
    if shown:
        more = [f"… and {len(shown) - SHOWN_LINES:,} more lines"] if len(shown) > SHOWN_LINES else []
        who = _escaped(cluster.members[0].name)
        # Within code no @name is a mention, no #1 a reference and no address a link.
        lines.append(f"<details{' open' if is_open else ''}><summary><code>{who}</code></summary>")
        lines += ["", fenced([*shown[:SHOWN_LINES], *more]), "", "</details>", ""]
    tokens = [f"- {code(profile)}: {code(line)}" for profile, line in cluster.tokens.items()]
    lines += [*tokens, ""] if tokens else []
    if len(cluster.tasks) > 1 or not shown:
        lines += [f"In {listed([code(task) for task in cluster.tasks], SHOWN_TASKS)}", ""]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    """Return a text of one line for a place where Markdown and HTML are both read."""
    shown = printable(text).replace("\n", "⏎")
    return re.sub(r"[^\w .,\[\]-]|_", lambda match: f"&#{ord(match[0])};", shown)


def finding_table(groups: Sequence[FindingGroup]) -> Iterator[str]:
    """Yield the blocks of a table of findings."""
    if not groups:
        return
    rows = ["### Checks\n\n| code | severity | affects | findings | where | what | do |\n|---|---|---|--:|---|---|---|"]
    for group in groups[:SHOWN_FINDINGS]:
        more = len({place.file for place in group.places}) - 1
        files = f" and {counted(more, 'more file')}" if more > 0 else ""
        # A bar ends a cell even within code, and nothing in code can escape it.
        cells = (group.where, group.message, group.do, *map(str.strip, excerpts(group, PLACES)))
        where, what, do, *seen = (code(text.replace("|", "\u2223")) for text in cells)
        what = "<br>".join([what, *seen])
        row = f"| {group.code} | {group.severity} | {group.effect} | {group.count:,} | {where}{files}"
        rows.append(f"{row} | {what} | {do} |")
    if len(groups) > SHOWN_FINDINGS:
        rows.append(f"\n… and {len(groups) - SHOWN_FINDINGS:,} more kinds of findings.")
    yield "\n".join(rows) + "\n"
