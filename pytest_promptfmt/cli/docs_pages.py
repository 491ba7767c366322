"""`promptfmt docs`: pages of the rules, and sections of pages about formats and settings, made from their tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from pytest_promptfmt.cli.explain import CHECK_FILES
from pytest_promptfmt.core.errors import Position, SettingsError, display_path

_SECTION: Final = re.compile(
    r"(?P<begin><!-- promptfmt docs: (?P<name>.+?) -->\n).*?(?P<end><!-- promptfmt docs: end -->\n)", re.DOTALL
)


def docs(
    folder: Annotated[
        Path | None, typer.Argument(help="Write a page for every rule here, and one that lists them.")
    ] = None,
    rules: Annotated[list[Path] | None, CHECK_FILES] = None,
    page: Annotated[
        list[Path] | None,
        typer.Option("--page", metavar="PAGE", help="Rewrite the sections of this page that are made. Repeatable."),
    ] = None,
) -> None:
    """Write the pages of the rules, and the sections of Markdown pages that are made from formats and settings."""
    pages = page or ()
    if folder is None and not pages:
        raise SettingsError("write what?", hint="give a folder for the rules, --page PAGE, or both")
    if folder is not None:
        _write_rules(folder, tuple(rules or ()))
    for each in pages:
        if not each.is_file():
            raise SettingsError(f"there is no page {display_path(each)}")
        each.write_text(_with_sections(each), "utf-8")


def _write_rules(folder: Path, files: tuple[Path, ...]) -> None:
    from pytest_promptfmt.rules.documentation import pages
    from pytest_promptfmt.rules.rule_registry import known_rules

    folder.mkdir(parents=True, exist_ok=True)
    shown = [check for check in known_rules(files).values() if check.is_builtin or files]
    for name, text in pages(shown).items():
        (folder / name).write_text(text, "utf-8")


def _sections() -> Mapping[str, str]:
    """Return what each section of a page holds: published formats, the axes of variants, and tables of settings."""
    from pytest_promptfmt.cli.formats import catalogue
    from pytest_promptfmt.formats.format_registry import published_format, published_names
    from pytest_promptfmt.formats.variants import axes
    from pytest_promptfmt.settings.pages import settings_tables

    formats = {kind: catalogue(map(published_format, names)) for kind, names in published_names().items()}
    rows = [
        f"| `{axis.name}` | {axis.summary} | {', '.join(f'`{value}`' for value in axis.values)} |\n"
        for axis in axes().values()
    ]
    table = "| axis | what differs | values |\n|---|---|---|\n" + "".join(rows)
    return {name: f"\n{text}\n" for name, text in {**formats, "axes": table, **settings_tables()}.items()}


def _with_sections(page: Path) -> str:
    """Return the text of the page with new sections. Raises SettingsError where it has none, or an unknown one."""
    sections = _sections()
    text = page.read_text("utf-8")
    names = [match["name"] for match in _SECTION.finditer(text)]
    unknown = [name for name in names if name not in sections]
    if unknown or not names:
        says = f"unknown section {unknown[0]!r}" if unknown else "the page has no section to write"
        lines = "<!-- promptfmt docs: NAME --> and <!-- promptfmt docs: end -->"
        hint = f"write the lines {lines} where it belongs; names are {', '.join(sections)}"
        raise SettingsError(says, position=Position(page), hint=hint)
    return _SECTION.sub(lambda match: match["begin"] + sections[match["name"]] + match["end"], text)
