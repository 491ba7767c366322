"""Lines, styled lines and data as commands print them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from pytest_promptfmt.core import writing
from pytest_promptfmt.core.errors import SettingsError, display_path, raising
from pytest_promptfmt.core.text import escape_controls


def say(text: object) -> None:
    """Print a line of the result, control characters escaped."""
    typer.echo(escape_controls(str(text)))


def note(text: object) -> None:
    """Print a line that is not part of the result to stderr, control characters escaped."""
    typer.echo(escape_controls(str(text)), err=True)


def styled(text: object, style: str = "") -> Text:
    """Return a line for `print_lines`, control characters escaped."""
    return Text(escape_controls(str(text)), style)


def print_lines(lines: Iterable[Text]) -> None:
    """Print styled lines, in colours on a terminal, and leave breaking them to the terminal."""
    console = Console(soft_wrap=True, highlight=False)
    for line in lines:
        console.print(line)


def print_json(data: Any, indent: int = 1) -> None:
    """Print data as JSON."""
    typer.echo(json.dumps(data, indent=indent, ensure_ascii=False, default=dict))


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file that the command line names; raises SettingsError."""
    with raising(SettingsError, f"{display_path(path)} cannot be written"):
        writing.write(path, content)
