"""`promptfmt explain`: what the rules report, why, and what to do."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

WIDTH: Final = 100
"""Longer lines are hard to read."""

CHECK_FILES: Final = typer.Option(
    "--rules", metavar="FILE", help="A Python file that defines rules of your own. Repeatable."
)


def explain(
    code: Annotated[str | None, typer.Argument(help="A code or name of a rule.", show_default=False)] = None,
    rules: Annotated[list[Path] | None, CHECK_FILES] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print data instead of text.")] = False,
) -> None:
    """Explain what a rule reports, why, and what to do. Without a code all rules are listed."""
    from pytest_promptfmt.rules.documentation import documentation_of, page
    from pytest_promptfmt.rules.rule_registry import find_rule, known_rules

    files = tuple(rules or ())
    found = [find_rule(code, files)] if code is not None else [*known_rules(files).values()]
    if as_json:
        facts = ({"code": each.code, "name": each.name, "severity": each.severity.value} for each in found)
        data = [fact | asdict(documentation_of(each)) for fact, each in zip(facts, found, strict=True)]
        typer.echo(json.dumps(data[0] if code is not None else data, indent=1, ensure_ascii=False))
    elif code is None:
        from pytest_promptfmt.cli.listings import rule_lines

        for line in rule_lines(found):
            typer.echo(line)
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        console = Console()
        console.print(Markdown(page(found[0])), width=min(console.width, WIDTH))
    else:
        typer.echo(page(found[0]), nl=False)
