"""Options that several commands have, and the options of pytest that they become."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import SettingsError, display_path


def repeatable(name: str, metavar: str, text: str) -> Any:
    """Return an option that can be given several times."""
    return typer.Option(name, metavar=metavar, help=f"{text} Repeatable.")


def _forbid_code(no_code: bool) -> bool:
    """Allow no code of tasks in this process and those that it starts, and no module of the working directory."""
    if no_code:
        gate.forbid_code(True)
        os.environ["PYTHONSAFEPATH"] = "1"  # as python -P
        if not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()):  # put there by python -m
            del sys.path[0]
    return no_code


Paths = Annotated[
    list[Path] | None,
    typer.Argument(help="Files or folders. Default: the setting `paths`, or the current folder.", show_default=False),
]
Tasks = Annotated[list[str] | None, repeatable("--task", "GLOB", "Only tasks with a matching name, such as 'arc_*'.")]
Profiles = Annotated[
    list[str] | None, repeatable("--profile", "NAME", "Render only for this profile, such as chat-chatml.")
]
Select = Annotated[
    list[str] | None, repeatable("--select", "CODES", "Run only these rules, such as PF2 or PF101,PF203.")
]
AllowCode = Annotated[list[Path] | None, repeatable("--allow-code", "PATH", "Allow Python code below PATH to run.")]
NoCode = Annotated[
    bool, typer.Option("--no-code", help="Run no Python code of tasks, and no conftest.py.", callback=_forbid_code)
]
RuleFiles = Annotated[list[Path] | None, repeatable("--rules", "FILE", "A Python file with rules of your own.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show all tasks and whole diffs.")]


def require_path(path: Path, what: Literal["folder", "file or folder"] = "file or folder") -> None:
    """Raise SettingsError for a path of the command line that is not what it must be."""
    if not (path.is_dir() if what == "folder" else path.exists()):
        raise SettingsError(f"no such {what}: {display_path(path)}", hint=gate.missing_hint(path))


def pytest_options(
    *,
    tasks: Iterable[str] | None = None,
    profiles: Iterable[str] | None = None,
    select: Iterable[str] | None = None,
    allow_code: Iterable[Path] | None = None,
    no_code: bool = False,
) -> list[str]:
    """Return the options of pytest for those of a command."""
    given = {"task": tasks, "profile": profiles, "select": select, "allow-code": allow_code}
    options = [f"--promptfmt-{name}={value}" for name, values in given.items() for value in values or ()]
    # Plugins and folders of modules that an ini file names are code, too.
    without = ["--promptfmt-no-code", "--noconftest", "-o", "addopts=", "-o", "pythonpath="]
    return [*options, *without] if no_code else options
