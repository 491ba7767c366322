"""`promptfmt explain` and `promptfmt docs`: what the rules of the checks report, why, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_FILES = typer.Option("--checks", metavar="FILE", help="A Python file that defines rules of your own. Repeatable.")


def explain(
    code: Annotated[str | None, typer.Argument(help="A code or name of a rule.", show_default=False)] = None,
    checks: Annotated[list[Path] | None, _FILES] = None,
) -> None:
    """Say what a rule of the checks reports, why, and what to do. Without a code all rules are listed."""
    from pytest_promptfmt.checks.documentation import explanation
    from pytest_promptfmt.checks.registry import find_check, known_checks

    files = tuple(checks or ())
    if code is not None:
        typer.echo(explanation(find_check(code, files)))
        return
    for check in known_checks(files).values():
        typer.echo(f"{check.code}  {check.severity:<7}  {check.name}")


def docs(
    folder: Annotated[Path, typer.Argument(help="Where to write.", show_default=False)],
    checks: Annotated[list[Path] | None, _FILES] = None,
) -> None:
    """Write a page for every rule of the checks, and a page that lists them."""
    from pytest_promptfmt.checks.documentation import pages
    from pytest_promptfmt.checks.registry import known_checks

    files = tuple(checks or ())
    folder.mkdir(parents=True, exist_ok=True)
    shown = [check for check in known_checks(files).values() if check.is_builtin or files]
    for name, text in pages(shown).items():
        (folder / name).write_text(text, "utf-8")
