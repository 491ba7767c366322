"""The closing table about a model: one row for each task@format and profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pytest_promptfmt.models.judging import Judged

_COLUMNS: Final = ("task", "profile", "mass", "extracted", "score", "tokens", "seconds")
SHOWN_ROWS: Final = 40
"""How many rows are shown without -v."""


def model_lines(rows: Sequence[Mapping[str, Any]], *, verbosity: int = 0) -> list[str]:
    """Return the table as lines, aligned; empty when no model was asked.

    `mass` is the probability on the candidates, `extracted` the share of generations in which the filters find an
    answer, `tokens` the mean length of what was written or scored.
    """
    if not rows:
        return []
    shown = rows if verbosity > 0 else rows[:SHOWN_ROWS]
    cells = [_COLUMNS, *(_cells(row) for row in shown)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_COLUMNS))]
    lines = [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]
    if len(rows) > len(shown):
        lines.append(f"… and {len(rows) - len(shown):,} more rows; -v lists them all")
    return lines


def problems_text(judged: Judged) -> str:
    """Return the text of a failing model item."""
    lines = [f"{judged.task} [{judged.profile}]: what the model answers shows that the chain does not hold"]
    for problem in judged.problems:
        lines += [f"  {problem.title}", f"    {problem.details}"]
    return "\n".join(lines)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        row["task"],
        row["profile"],
        _share(row["mass"]),
        "" if row["extraction"] is None else f"{row['extraction']:.0%}",
        "" if row["score"] is None else f"{row['score']:.2f}",
        f"{row['tokens']:.1f}",
        f"{row['seconds']:.2f}",
    )


def _share(mass: float | None) -> str:
    if mass is None:
        return ""
    return f"{mass:.2f}" if mass >= 0.01 else f"{mass:.0e}"
