"""`promptfmt formats`: which formats there are, what each looks like and how its answers are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pytest_promptfmt.cli.output import visible
from pytest_promptfmt.core.errors import SettingsError, did_you_mean, display_path

if TYPE_CHECKING:
    from pytest_promptfmt.formats.format import Format


def formats(
    names: Annotated[list[str] | None, typer.Argument(help="Only these formats.", show_default=False)] = None,
    tasks: Annotated[
        Path, typer.Option("--tasks", metavar="FOLDER", help="The folder of tasks that has formats/*.yaml beside them.")
    ] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="Print data instead of text.")] = False,
    brief: Annotated[bool, typer.Option("--brief", help="Print names and summaries only.")] = False,
) -> None:
    """Show the formats: built in, from the literature, and your own, each with a sample of its prompt."""
    from pytest_promptfmt.formats.registry import known_formats

    if not tasks.is_dir():
        raise SettingsError(f"there is no folder {display_path(tasks)}", hint="--tasks takes the folder of task files")
    known = known_formats(tasks)
    for name in names or ():
        if name not in known:
            raise SettingsError(
                f"there is no format {name!r}", hint=did_you_mean(name, known) or f"there are {', '.join(known)}"
            )
    shown = {name: known[name] for name in (dict.fromkeys(names) if names else known)}
    if as_json:
        import json

        typer.echo(
            json.dumps([_as_data(layout, _kind(layout, tasks)) for layout in shown.values()], indent=2, default=dict)
        )
        return
    _print(shown, tasks, brief=brief)


def _kind(layout: Format, folder: Path) -> str:
    """Return where a format comes from, in words that are headings too."""
    from pytest_promptfmt.formats.builtin import BUILTIN_FORMATS
    from pytest_promptfmt.formats.literature import LITERATURE_FORMATS
    from pytest_promptfmt.formats.registry import FOLDER
    from pytest_promptfmt.systems import known_systems

    if layout in BUILTIN_FORMATS:
        return "built in"
    if layout in LITERATURE_FORMATS:
        return "from the literature"
    for system in known_systems().values():
        if layout in system.formats():
            return f"task styles of {system.name}"
    if (folder / FOLDER / f"{layout.name}.yaml").is_file():
        return f"from {display_path(folder / FOLDER)}"
    return "from installed packages"


def _as_data(layout: Format, kind: str) -> Mapping[str, Any]:
    import dataclasses

    from pytest_promptfmt.formats.catalogue import sample
    from pytest_promptfmt.formats.format import DOCUMENTATION_FIELDS
    from pytest_promptfmt.formats.scorers import make_scorer

    scorer = make_scorer(layout.scorer, layout.choice_labels)
    fields = {
        field.name: getattr(layout, field.name)
        for field in dataclasses.fields(layout)
        if field.name not in ("name", *DOCUMENTATION_FIELDS)
    }
    return {
        "name": layout.name,
        "origin": kind,
        "summary": layout.summary,
        "sample": sample(layout),
        "output_type": layout.output_type,
        "scorer": None if scorer is None else {"name": scorer.name, "extracts": scorer.extracts},
        "notes": layout.notes,
        "citation": layout.citation,
        "fields": fields,
    }


def _print(shown: Mapping[str, Format], folder: Path, *, brief: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    from pytest_promptfmt.formats.catalogue import describe

    console = Console(soft_wrap=True, highlight=False)
    kinds: dict[str, list[Format]] = {}
    for layout in shown.values():
        kinds.setdefault(_kind(layout, folder), []).append(layout)
    for kind, layouts in kinds.items():
        console.print(Text(kind, style="bold underline"))
        for layout in layouts:
            name, *lines = (visible(line) for line in describe(layout))
            console.print(Text(name, style="bold cyan"))
            for line in lines[:1] if brief else lines:
                console.print(Text(line, style="green" if line.startswith("  | ") else ""))
            if not brief:
                console.print()
