"""What a finding is expected to do to the score: a property of its rule, by which reports are ordered.

It follows from the family and the severity of the rule; a rule may declare it (`@rule(…, effect=…)`), and the
built-in ones that differ from their family are listed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pytest_promptfmt.core.finding import Effect, Family, Severity
from pytest_promptfmt.rules.rule_registry import Rule

_WORST: Final[Mapping[Family, Effect]] = {
    Family.RULES: Effect.APPEARANCE,
    Family.PROMPT: Effect.SOME_DOCS,
    Family.TOKENS: Effect.SOME_DOCS,
    Family.FEWSHOT: Effect.SHOTS,
}
"""The worst that rules of a family do; every doc where a family is not listed."""

_BUILTIN: Final[Mapping[str, Effect]] = {
    **dict.fromkeys(("PF501", "PF706", "PF707", "PF714"), Effect.EVERY_DOC),
    **dict.fromkeys(("PF101", "PF704", "PF705"), Effect.SOME_DOCS),
    **dict.fromkeys(
        (
            "PF103",
            "PF105",
            "PF108",
            "PF129",
            "PF134",
            "PF205",
            "PF206",
            "PF225",
            "PF226",
            "PF237",
            "PF238",
            "PF240",
            "PF242",
            "PF757",
        ),
        Effect.APPEARANCE,
    ),
}


def effect_of(rule: Rule, severity: Severity) -> Effect:
    """Return what a finding of a rule, this severe, is expected to do to the score."""
    if severity is Severity.INFO:
        return Effect.APPEARANCE
    declared = rule.effect or (_BUILTIN.get(rule.code) if rule.is_builtin else None)
    if declared is not None:
        return declared
    worst = _WORST.get(rule.family, Effect.EVERY_DOC)
    return Effect.SOME_DOCS if severity is Severity.WARNING and worst is Effect.EVERY_DOC else worst
