"""The command `promptfmt`: eight subcommands for daily work, and more. Each is a function in a module here.

Commands import the packages they need when they run, so that `promptfmt --help` is fast.
"""

from __future__ import annotations

import gc
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from pytest_promptfmt.cli.cache import cache, why
from pytest_promptfmt.cli.check import check
from pytest_promptfmt.cli.compare import compare, outdated
from pytest_promptfmt.cli.diff import diff
from pytest_promptfmt.cli.explain import explain, formats, profiles, schema
from pytest_promptfmt.cli.fix import convert, fix
from pytest_promptfmt.cli.freeze import freeze
from pytest_promptfmt.cli.init import init
from pytest_promptfmt.cli.output import note
from pytest_promptfmt.cli.record import record
from pytest_promptfmt.cli.review import accept, reject, review
from pytest_promptfmt.cli.show import show
from pytest_promptfmt.cli.verify import verify
from pytest_promptfmt.core.errors import PromptfmtError, SettingsError, did_you_mean

_ELSEWHERE: Final = {
    "test": "pytest --promptfmt",
    "run": "pytest --promptfmt",
    "lint": "promptfmt check",
}
"""Commands that people try, and the commands that do it."""


_GC_THRESHOLDS: Final = (100_000, 50, 100)
"""Of Python's collector, which would take a tenth of the time of importing what a command needs."""


_UsageError: Any = typer.BadParameter.__base__
"""The error of click, or of the click inside typer, for options and arguments that cannot be parsed."""


class _Group(TyperGroup):
    """Prints errors as one message: exit code 2 where the command was used wrongly, 1 where it refuses."""

    def make_context(self, *args: Any, **more: Any) -> Any:
        with _as_message():
            return super().make_context(*args, **more)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        command, *rest = args
        if command in self.commands or command.startswith("-"):
            return super().resolve_command(ctx, args)
        other = _ELSEWHERE.get(command)
        hint = shlex.join([*other.split(), *rest]) if other else did_you_mean(command, self.commands)
        raise SettingsError(f"unknown command {command!r}", hint=hint or "`promptfmt --help` lists all commands")

    def invoke(self, ctx: Any) -> Any:
        with _as_message():
            return super().invoke(ctx)


@contextmanager
def _as_message() -> Iterator[None]:
    try:
        yield
    except PromptfmtError as error:
        note(error)
        raise typer.Exit(2 if isinstance(error, SettingsError) else 1) from error
    except _UsageError as error:
        if error.format_message():  # without a command, typer has printed the help
            note(_usage_error(error))
        raise typer.Exit(2) from error


def _usage_error(error: Any) -> SettingsError:
    """Return click's error as one of ours, with the closest option; click suggests several."""
    path = error.ctx.command_path if error.ctx is not None else "promptfmt"
    hint = f"`{path} --help` describes the command"
    name = getattr(error, "option_name", None)
    if name is None or not hasattr(error, "possibilities"):
        message = error.format_message().removesuffix(".").replace("Value error, ", "")
        return SettingsError(f"{path}: {message[:1].lower()}{message[1:]}", hint=hint)
    known = [option for parameter in error.ctx.command.get_params(error.ctx) for option in parameter.opts]
    return SettingsError(f"{path}: unknown option {name}", hint=did_you_mean(name, known) or hint)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"pytest-promptfmt {version('pytest-promptfmt')}")
        raise typer.Exit


app = typer.Typer(
    name="promptfmt",
    cls=_Group,
    help="Check, show and compare the prompts of language-model evaluations. Start with `promptfmt check`.",
    epilog="Tests run with `pytest --promptfmt`. Exit code: 0 success, 1 refused or different, 2 usage error.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # paragraphs flow with the terminal
    context_settings={"help_option_names": ["-h", "--help"]},
)
_Commands = Sequence[Callable[..., None]]
_DAILY: Final[_Commands] = (check, show, diff, fix, review, accept, explain, init)
_MORE: Final[_Commands] = (
    *(reject, verify, why, cache, compare, convert, freeze, outdated, record, formats, profiles, schema),
)
for _command in _DAILY:
    app.command()(_command)
for _command in _MORE:
    app.command(rich_help_panel="More")(_command)


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
