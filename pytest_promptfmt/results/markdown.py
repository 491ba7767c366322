"""The result of a run as Markdown, bounded in bytes: for the summary of a CI job, and for a pull request.

Prompts are hostile text: everything that comes from a file stands in code, behind fences it cannot close.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from pytest_promptfmt.results.clusters import CATEGORIES, Cluster
from pytest_promptfmt.results.outcomes import Tally
from pytest_promptfmt.results.result import findings_of
from pytest_promptfmt.results.terminal import ACCEPTABLE
from pytest_promptfmt.results.wording import accept_all, archetype_note, counted, printable

STEP_LIMIT: Final = 1024 * 1024
"""Bytes that GitHub takes as the summary of one step; a larger one is not shown at all."""

SHOWN_TASKS: Final = 30
SHOWN_LINES: Final = 60
SHOWN_FINDINGS: Final = 50
OPEN_DIFFS: Final = 3
"""Diffs that are seen without a click: more of them would hide how many there are."""

_RESERVE: Final = 400  # for the sentence that says what was left out

_MEANINGS: Final = {
    "error": "could not be read or rendered",
    "damaged": "the snapshot file cannot be trusted",
    "misread": "answers are not read or scored as they should be",
    "changed": "the prompt is not what the snapshot says",
    "new": "there is no snapshot yet",
    "renamed": "the same prompts under another name",
    "obsolete": "a snapshot that no task defines",
    "header-only": "only the snapshot's header is out of date",
}


def markdown_report(tally: Tally, *, arguments: Sequence[str], limit: int = STEP_LIMIT, patch: str = "") -> str:
    """Return the Markdown of a run, at most `limit` bytes: counts, then distinct problems, the most urgent first.

    `patch` is the name of a patch that accepts the changes, where one is written.
    """
    head = "\n".join(_head(tally, arguments, patch))
    blocks = cluster_blocks(tally.clusters)
    findings = finding_table(findings_of(tally.checks))
    return bounded(head, [*blocks, *findings], limit)


def bounded(head: str, blocks: Sequence[str], limit: int) -> str:
    """Return the head and as many of the blocks as fit into `limit` bytes, and say how many were left out."""
    parts = [head.rstrip("\n") + "\n"]
    room = limit - _RESERVE - len(parts[0].encode())
    shown = 0
    for block in blocks:
        room -= len(block.encode()) + 1
        if room < 0:
            break
        parts.append(block)
        shown += 1
    if shown < len(blocks):
        parts.append(f"_… and {len(blocks) - shown:,} more, left out to stay below {limit:,} bytes._\n")
    return "\n".join(parts)


def code(text: str) -> str:
    """Return a text as inline code of one line, whatever backticks it has."""
    shown = printable(text).replace("\n", "⏎")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    return f"{fence} {shown} {fence}" if shown.startswith("`") or shown.endswith("`") else f"{fence}{shown}{fence}"


def fenced(lines: Iterable[str], language: str = "diff") -> str:
    """Return lines as a block of code that they cannot end."""
    text = printable("\n".join(lines))
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`{3,}", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"


def _head(tally: Tally, arguments: Sequence[str], patch: str) -> Iterator[str]:
    problems = {category: tally.counts[category] for category in CATEGORIES if tally.counts[category]}
    yield "## Prompt formats"
    yield ""
    failing = tally.counts["finding"]
    if not problems and not failing:
        yield f"Nothing changed in {counted(tally.counts['passed'], 'item')}."
    else:
        yield "| | items | |"
        yield "|---|--:|---|"
        yield from (f"| {name} | {count:,} | {_MEANINGS[name]} |" for name, count in problems.items())
        if failing:
            yield f"| finding | {failing:,} | the checks found a mistake |"
        yield f"| passed | {tally.counts['passed']:,} | |"
    told = {"skipped": "skipped", "accepted": "in the baseline"}
    yield from (f"\n{counted(tally.counts[name], 'item')} {text}." for name, text in told.items() if tally.counts[name])
    yield ""
    note = archetype_note(tally.archetypes)
    if note:
        yield f"_{_escaped(note)}._"
        yield ""
    if not ACCEPTABLE.isdisjoint(problems):
        yield f"Accept all of it: {code(accept_all(arguments))}" + (
            f", or {code(f'git apply {patch}')}" if patch else ""
        )
        yield ""


def cluster_blocks(clusters: Iterable[Cluster], noun: str = "item") -> list[str]:
    """Return a block for each cluster of what `noun` names; the diffs of the first few are unfolded."""
    return [_cluster_block(cluster, noun, is_open=number < OPEN_DIFFS) for number, cluster in enumerate(clusters)]


def _cluster_block(cluster: Cluster, noun: str, *, is_open: bool) -> str:
    """Return a cluster: its size, the line that tells of it, its first diff, and the tasks."""
    size = f"{counted(len(cluster.members), noun)} of {counted(len(cluster.tasks), 'task')}"
    lines = [f"### {cluster.category}: {size}", ""]
    title = _MEANINGS["header-only"] if cluster.category == "header-only" else cluster.example
    lines += [code(title), ""]
    shown = cluster.detail.splitlines()
    if shown:
        more = [f"… and {len(shown) - SHOWN_LINES:,} more lines"] if len(shown) > SHOWN_LINES else []
        first = cluster.members[0]
        who = _escaped(f"{first.task} [{first.profile}]" if first.profile else first.task)
        lines.append(f"<details{' open' if is_open else ''}><summary>{who}</summary>")
        lines += ["", fenced([*shown[:SHOWN_LINES], *more]), "", "</details>", ""]
    tokens = [f"- {code(profile)}: {code(told)}" for profile, told in cluster.tokens.items() if told]
    lines += [*tokens, ""] if tokens else []
    if len(cluster.tasks) > 1 or not shown:
        lines += ["In " + ", ".join(code(task) for task in cluster.tasks[:SHOWN_TASKS])]
        if len(cluster.tasks) > SHOWN_TASKS:
            lines[-1] += f" and {len(cluster.tasks) - SHOWN_TASKS:,} more"
        lines.append("")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    """Return a text for a place where Markdown and HTML are both read."""
    return re.sub(r"[^\w .,/\[\]@:-]|_", lambda match: f"&#{ord(match[0])};", printable(text))


def finding_table(findings: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the blocks of a table of findings, as `findings_of` gives them."""
    if not findings:
        return
    rows = ["### Checks\n\n| code | severity | findings | where | what | do |\n|---|---|--:|---|---|---|"]
    for finding in findings[:SHOWN_FINDINGS]:
        # A bar ends a cell even within code, and nothing in code can escape it.
        told = (code(finding[name].replace("|", "\u2223")) for name in ("where", "message", "do"))
        cells = [finding["code"], finding["severity"], f"{finding['count']:,}", *told]
        rows.append(f"| {' | '.join(cells)} |")
    if len(findings) > SHOWN_FINDINGS:
        rows.append(f"\n… and {len(findings) - SHOWN_FINDINGS:,} more kinds of findings.")
    yield "\n".join(rows) + "\n"
