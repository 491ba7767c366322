"""`promptfmt compare`: what another chat template or tokenizer changes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Protocol, runtime_checkable

import typer


@runtime_checkable
class ComparesFiles(Protocol):
    """A system that tells how two of its files differ in prompts."""

    def compare_files(self, first: Path, second: Path) -> list[str]:
        """Return a line for each difference; raises as `check_template`."""
        ...


def compare(
    first: Annotated[Path, typer.Argument(help="A template, a GGUF file, or a folder with a template or tokenizer.")],
    second: Annotated[Path, typer.Argument(help="What to compare it with.")],
) -> None:
    """Compare two chat templates or tokenizers by what they make of all conversations. Exit code 1: they differ.

    Prompts that change are grouped by change; findings that are new or gone follow, and texts with other tokens where
    both sides have a tokenizer. Nothing is downloaded.
    """
    from pytest_promptfmt.core.errors import SettingsError
    from pytest_promptfmt.systems import system_with

    system = system_with(ComparesFiles)
    if system is None:
        raise SettingsError("promptfmt compare needs the system of chat templates, which this installation lacks")
    for path in (first, second):
        if not path.exists():
            raise SettingsError(f"there is no {path}", hint="name a template, a GGUF file, or a folder")
    lines = system.compare_files(first, second)
    typer.echo("\n".join(lines) if lines else "no difference")
    if lines:
        raise typer.Exit(1)
