"""The command `promptfmt`: eight subcommands for daily work, and more. Each is a function in a module here.

A module is imported when one of its commands runs, so that `promptfmt --help` is fast.
"""

from __future__ import annotations

import gc
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module, resources
from typing import Annotated, Any, Final

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from pytest_promptfmt.cli.output import note
from pytest_promptfmt.core.errors import PromptfmtError, SettingsError, did_you_mean

_DAILY: Final = ("check", "show", "diff", "fix", "review", "accept", "explain", "init")
_MORE: Final = (
    *("reject", "verify", "why", "cache", "compare", "convert", "freeze", "outdated", "record"),
    *("formats", "profiles", "schema"),
)
COMMANDS: Final = (*_DAILY, *_MORE)

_MODULES: Final = dict.fromkeys(("formats", "profiles", "schema"), "explain") | {
    **dict.fromkeys(("accept", "reject"), "review"),
    "convert": "fix",
    "outdated": "compare",
    "why": "cache",
}
"""The modules of commands that are not called like their command."""

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


def _without_types(parameters: Any) -> Any:
    """Return the parameters of a command without what typer shows of their types: `<bool>`, `<list[Path]>`."""
    for each in parameters:
        if getattr(each, "is_flag", False) or isinstance(each, TyperArgument):
            each.display_type_rich = lambda **_ctx: None
    return parameters


class _Command(TyperCommand):
    """Shows the names of its options and arguments."""

    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))


class _Group(TyperGroup):
    """Prints errors as one message: exit code 2 where the command was used wrongly, 1 where it refuses."""

    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))

    def make_context(self, *args: Any, **more: Any) -> Any:
        with _as_message():
            return super().make_context(*args, **more)

    def list_commands(self, _ctx: Any) -> list[str]:
        return [*COMMANDS]

    def get_command(self, _ctx: Any, name: str) -> Any:
        """Return what the help shows of a command, None for an unknown name."""
        if name not in COMMANDS:
            return None
        source = (resources.files(__name__) / f"{_MODULES.get(name, name)}.py").read_text("utf-8")
        summary = re.search(rf'^def {name}\(.*?\) -> None:\n    """(.*?)(?:"""|$)', source, re.DOTALL | re.MULTILINE)
        return TyperCommand(name, help=summary and summary[1], rich_help_panel="More" if name in _MORE else None)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, *rest = args
        if name in COMMANDS:
            return name, command(name), rest
        if name.startswith("-"):
            return super().resolve_command(ctx, args)
        other = _ELSEWHERE.get(name)
        hint = shlex.join([*other.split(), *rest]) if other else did_you_mean(name, COMMANDS)
        raise SettingsError(f"unknown command {name!r}", hint=hint or "`promptfmt --help` lists all commands")

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
    path += f" {sys.argv[1]}" if path == "promptfmt" and sys.argv[1:2] and sys.argv[1] in COMMANDS else ""
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


_STYLE: Final[dict[str, Any]] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "markdown",  # paragraphs flow with the terminal
    "context_settings": {"help_option_names": ["-h", "--help"]},
}

app = typer.Typer(
    name="promptfmt",
    cls=_Group,
    help="Check, show and compare the prompts of language-model evaluations. Start with `promptfmt check`.",
    epilog="Tests run with `pytest --promptfmt`. Exit code: 0 success, 1 problems or differences, 2 usage error.",
    no_args_is_help=True,
    **_STYLE,
)


def command(name: str) -> Any:
    """Return the command of that name."""
    alone = typer.Typer(**_STYLE)
    alone.command(name, cls=_Command)(getattr(import_module(f"{__name__}.{_MODULES.get(name, name)}"), name))
    return typer.main.get_command(alone)


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
