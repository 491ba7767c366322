"""Rules about the rules: invalid or unused ignores, and rules that raise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import finding

_IGNORE = ("metadata", "promptfmt", "ignore")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ignores:
    """What is known after all other rules have run: invalid and unused ignores, and rules that failed (code, error)."""

    unknown: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    crashes: tuple[tuple[str, str], ...] = ()


@rule("PF001", "unknown-ignore", severity=Severity.WARNING, family=Family.RULES, scope="ignores")
def unknown_ignore(ignores: Ignores) -> Iterator[Finding]:
    """Report an unknown rule code in `metadata.promptfmt.ignore`.

    Why: a misspelled code ignores nothing, although it looks as if it did.

    Example:
        metadata:
          promptfmt:
            docs: [{question: Which metal rusts?, choices: [iron, gold], answer: 0}]
            ignore: {PFX01: the space is in the paper}

    Silent example:
        metadata: {promptfmt: {docs: [{question: Which metal rusts?, choices: [iron, gold], answer: 0}]}}

    Fix: use the code of a rule or a prefix; `promptfmt explain` lists them.

    Real: the same in every linter with ignores; ruff has RUF100 for it.
    """
    for code in ignores.unknown:
        yield finding("unknown rule code in ignore", code, (*_IGNORE, code))


@rule("PF002", "unused-ignore", severity=Severity.WARNING, family=Family.RULES, scope="ignores")
def unused_ignore(ignores: Ignores) -> Iterator[Finding]:
    r"""Report a code in `metadata.promptfmt.ignore` that no longer matches a finding.

    Why: the mistake was fixed but the ignore stayed, so it hides the next mistake of this kind. An ignore
    from an include is not reported: it may be for another task.

    Example:
        metadata:
          promptfmt:
            docs: [{question: Which metal rusts?, choices: [iron, gold], answer: 0}]
            ignore: {PF201: the space is in the paper}

    Silent with:
        doc_to_text: "Question: {{question}}\nAnswer: "

    Fix: remove the ignore.

    Real: the same in every linter with ignores; ruff has RUF100 for it.
    """
    for code in ignores.unused:
        yield finding("the ignored code matches no finding", code, (*_IGNORE, code))


@rule("PF003", "failed-rule", severity=Severity.WARNING, family=Family.RULES, scope="ignores")
def failed_rule(ignores: Ignores) -> Iterator[Finding]:
    """Report a rule that raised an exception.

    Why: a rule that fails must not stop the run, and must not look like a rule that found nothing.

    Fix: fix the rule, or ignore it; if it is built in, report a bug.
    """
    for code, error in ignores.crashes:
        yield finding(f"the rule {code} failed", error)
