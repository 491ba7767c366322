"""Changed prompts in a terminal: a diff with what differs within a line marked, and clusters of equal changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

from rich.text import Text

from pytest_promptfmt.cli.output import visible
from pytest_promptfmt.results.wording import counted, listed
from pytest_promptfmt.snapshots.words import changed_words

if TYPE_CHECKING:
    from pytest_promptfmt.results.clusters import Cluster

STYLES: Final = {"-": "red", "+": "green", "@": "cyan", "?": "yellow"}
SHOWN_LINES: Final = 60
SHOWN_TASKS: Final = 12


def diff_lines(lines: Sequence[str], most: int | None = SHOWN_LINES) -> Iterator[Text]:
    """Yield the lines of a unified diff in colour; where lines were replaced, the words that differ stand out."""
    shown = lines if most is None else lines[:most]
    removed: list[str] = []
    for mark, run in groupby(shown, key=lambda line: line[:1] if line[:1] in "-+" else ""):
        group = [visible(line) for line in run]
        if mark == "-":
            removed = group
            continue
        if mark == "+" and len(removed) == len(group):
            yield from _replaced(removed, group)
        else:
            yield from (_plain(line) for line in (*removed, *group))
        removed = []
    yield from (_plain(line) for line in removed)
    if len(shown) < len(lines):
        yield Text(f"… and {len(lines) - len(shown):,} more lines", "dim")


def cluster_lines(cluster: Cluster, *, verbose: bool = False) -> Iterator[Text]:
    """Yield a cluster: its category and size, the line that tells of it, its first diff, and the tasks."""
    size = f"{counted(len(cluster.members), 'prompt')} of {counted(len(cluster.tasks), 'task')}"
    yield Text(f"{cluster.category}: {size}", "bold")
    yield Text(visible(cluster.example))
    detail = cluster.detail.splitlines()
    yield from diff_lines(detail, None if verbose else SHOWN_LINES)
    if len(cluster.tasks) > 1 or not detail:
        yield Text(f"in {visible(listed(cluster.tasks, None if verbose else SHOWN_TASKS))}", "dim")
    yield Text("")


def _plain(line: str) -> Text:
    return Text(line, STYLES.get(line[:1], ""))


def _replaced(removed: Sequence[str], added: Sequence[str]) -> Iterator[Text]:
    pairs = [changed_words(old[1:], new[1:]) for old, new in zip(removed, added, strict=True)]
    for mark, lines, side in (("-", removed, 0), ("+", added, 1)):
        for line, pair in zip(lines, pairs, strict=True):
            text = _plain(mark)
            for piece, differs in pair[side]:
                text.append(piece, f"{STYLES[mark]} reverse" if differs else STYLES[mark])
            assert len(text.plain) == len(line)
            yield text
