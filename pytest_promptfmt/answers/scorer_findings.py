"""What a check of a scorer has to say: one value, which the checks of choices, generation and stop sequences make."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_promptfmt.core.errors import Position


@dataclass(frozen=True, kw_only=True, slots=True)
class ScorerFinding:
    """One thing wrong with how a task scores; `name` is that of the check."""

    name: str
    message: str
    hint: str | None = None
    position: Position | None = None
