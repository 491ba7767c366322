"""Rules about the rules: ignores that are of no use, and rules that fail themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_promptfmt.checks.registry import check
from pytest_promptfmt.core.finding import Family, Finding, Severity

_IGNORE = ("metadata", "promptfmt", "ignore")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ignores:
    """What is known once all other rules have run: ignores of no use, and rules that failed (code, why)."""

    unknown: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    crashes: tuple[tuple[str, str], ...] = ()


@check("PF001", "unknown-ignore", severity=Severity.WARNING, family=Family.CHECKS, scope="ignores")
def unknown_ignore(ignores: Ignores) -> Iterator[Finding]:
    """Report a code in `metadata.promptfmt.ignore` that no rule has.

    Why: a mistyped code ignores nothing, and the reader believes that it does.

    Example:
        metadata:
          promptfmt:
            docs: [{question: Which metal rusts?, choices: [iron, gold], answer: 0}]
            ignore: {PFX01: the blank is in the paper}

    Silent example:
        metadata:
          promptfmt:
            docs: [{question: Which metal rusts?, choices: [iron, gold], answer: 0}]

    Fix: write the code that the finding shows, or a prefix of it.

    Real: the same in every linter with ignores; ruff has RUF100 for it.
    """
    for code in ignores.unknown:
        yield Finding(
            message="an ignored code that no rule has",
            saw=code,
            do="write the code of a rule or a prefix; `promptfmt explain` lists them",
            keys=(*_IGNORE, code),
        )


@check("PF002", "unused-ignore", severity=Severity.WARNING, family=Family.CHECKS, scope="ignores")
def unused_ignore(ignores: Ignores) -> Iterator[Finding]:
    r"""Report a code in `metadata.promptfmt.ignore` that matches no finding any more.

    Why: the mistake was mended, the ignore stayed, and the next mistake of the kind will be ignored with it. An ignore
    that an include brings in is not reported: it may be for another task.

    Example:
        metadata:
          promptfmt:
            docs: [{question: Which metal rusts?, choices: [iron, gold], answer: 0}]
            ignore: {PF201: the blank is in the paper}

    Silent example:
        doc_to_text: "Question: {{question}}\nAnswer: "
        metadata:
          promptfmt:
            docs: [{question: Which metal rusts?, choices: [iron, gold], answer: 0}]
            ignore: {PF201: the blank is in the paper}

    Fix: remove the ignore.

    Real: the same in every linter with ignores; ruff has RUF100 for it.
    """
    for code in ignores.unused:
        yield Finding(
            message="an ignored code that matches no finding",
            saw=code,
            keys=(*_IGNORE, code),
        )


@check("PF003", "failed-rule", severity=Severity.WARNING, family=Family.CHECKS, scope="ignores")
def failed_rule(ignores: Ignores) -> Iterator[Finding]:
    """Report a rule that raised an exception instead of looking at a task.

    Why: a rule that fails must not stop the run, and must not pass for a rule that found nothing.

    Fix: if it is a rule of your own, make it expect anything; if it is a built-in rule, report a bug.
    """
    for code, error in ignores.crashes:
        yield Finding(message=f"the rule {code} failed", saw=error, do="mend the rule, or leave it out")
