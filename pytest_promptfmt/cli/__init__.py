"""The command `promptfmt`. Each subcommand is a function in one file here, and a line below.

Commands import the packages they need when they run, so that `promptfmt --help` is fast.
"""

from __future__ import annotations

import gc
import sys
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from pytest_promptfmt.cli.accept import accept, reject
from pytest_promptfmt.cli.check import check
from pytest_promptfmt.cli.compare import compare
from pytest_promptfmt.cli.compare_runs import comparable
from pytest_promptfmt.cli.convert import convert
from pytest_promptfmt.cli.diff import diff
from pytest_promptfmt.cli.docs_pages import docs
from pytest_promptfmt.cli.explain import explain
from pytest_promptfmt.cli.fix import fix
from pytest_promptfmt.cli.formats import formats
from pytest_promptfmt.cli.freeze import freeze
from pytest_promptfmt.cli.init import init
from pytest_promptfmt.cli.listings import profiles, rules
from pytest_promptfmt.cli.outdated import outdated
from pytest_promptfmt.cli.record import record
from pytest_promptfmt.cli.review import review
from pytest_promptfmt.cli.schema import schema
from pytest_promptfmt.cli.show import show
from pytest_promptfmt.core.errors import PromptfmtError, SettingsError
from pytest_promptfmt.core.text import escape_controls

_ELSEWHERE: Final = {
    "test": "pytest --promptfmt",
    "run": "pytest --promptfmt",
    "lint": "pytest --promptfmt -m promptfmt_lint",
}
"""What people try, and what does it."""


_GC_THRESHOLDS: Final = (100_000, 50, 100)
"""Of Python's collector: a tenth of the time of importing what a command needs is to look for garbage."""


class _Group(TyperGroup):
    """Prints our errors as one message: exit code 2 where the command was used wrongly, 1 where it refuses."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in _ELSEWHERE and args[0] not in self.commands:
            command, *rest = args
            typer.echo(f"promptfmt has no command {command!r}: {' '.join([_ELSEWHERE[command], *rest])}", err=True)
            raise typer.Exit(2)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PromptfmtError as error:
            typer.echo(escape_controls(str(error)), err=True)
            raise typer.Exit(2 if isinstance(error, SettingsError) else 1) from error


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"pytest-promptfmt {version('pytest-promptfmt')}")
        raise typer.Exit


app = typer.Typer(
    name="promptfmt",
    cls=_Group,
    help="Show, compare and review the prompts of language-model evaluations.",
    epilog="Tests run with `pytest --promptfmt`. Exit code: 0 done, 1 refused or something differs, 2 used wrongly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # paragraphs flow with the terminal
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(check)
app.command()(show)
app.command()(diff)
app.command()(comparable)
app.command()(compare)
app.command()(outdated)
app.command()(record)
app.command()(review)
app.command()(accept)
app.command()(reject)
app.command()(fix)
app.command()(convert)
app.command()(formats)
app.command()(profiles)
app.command()(rules)
app.command()(schema)
app.command()(init)
app.command()(freeze)
app.command()(explain)
app.command()(docs)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line and exit: 0 done, 1 refused or something differs, 2 used wrongly."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # a prompt may hold characters that the terminal's encoding lacks
            reconfigure(errors="backslashreplace")
    gc.set_threshold(*_GC_THRESHOLDS)
    app(prog_name="promptfmt")
