"""`promptfmt docs`: the pages of the rules and the catalogue of formats, made from what documents itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from pytest_promptfmt.cli.explain import CHECK_FILES
from pytest_promptfmt.core.errors import Position, SettingsError, display_path

_BEGIN: Final = "<!-- promptfmt docs: {} -->\n"
_END: Final = "<!-- promptfmt docs: end -->\n"


def docs(
    folder: Annotated[
        Path | None, typer.Argument(help="Write a page for every rule here, and one that lists them.")
    ] = None,
    checks: Annotated[list[Path] | None, CHECK_FILES] = None,
    formats: Annotated[
        Path | None, typer.Option("--formats", metavar="PAGE", help="Rewrite the catalogue of formats in this page.")
    ] = None,
) -> None:
    """Write the pages of the rules, and the catalogue of formats in a Markdown page."""
    if folder is None and formats is None:
        raise SettingsError("write what?", hint="give a folder for the rules, --formats PAGE, or both")
    if folder is not None:
        _write_rules(folder, tuple(checks or ()))
    if formats is not None:
        if not formats.is_file():
            raise SettingsError(f"there is no page {display_path(formats)}")
        formats.write_text(_with_sections(formats, _format_sections()), "utf-8")


def _write_rules(folder: Path, files: tuple[Path, ...]) -> None:
    from pytest_promptfmt.checks.documentation import pages
    from pytest_promptfmt.checks.registry import known_checks

    folder.mkdir(parents=True, exist_ok=True)
    shown = [check for check in known_checks(files).values() if check.is_builtin or files]
    for name, text in pages(shown).items():
        (folder / name).write_text(text, "utf-8")


def _format_sections() -> Mapping[str, str]:
    """Return what each section of the page of formats holds: the published formats, and the axes of variants."""
    from pytest_promptfmt.cli.formats import catalogue
    from pytest_promptfmt.formats import AXES
    from pytest_promptfmt.formats.registry import PUBLISHED, published_format

    sections = {kind: f"\n{catalogue(map(published_format, names))}\n" for kind, names in PUBLISHED.items()}
    rows = [
        f"| `{axis.name}` | {axis.summary} | {', '.join(f'`{value}`' for value in axis.values)} |\n"
        for axis in AXES.values()
    ]
    return {**sections, "axes": "\n| axis | what differs | values |\n|---|---|---|\n" + "".join(rows) + "\n"}


def _with_sections(page: Path, sections: Mapping[str, str]) -> str:
    """Return the text of the page with new sections. Raises SettingsError where the page lacks one."""
    text = page.read_text("utf-8")
    for name, section in sections.items():
        begin = _BEGIN.format(name)
        found = re.search(f"(?s){re.escape(begin)}(.*?){re.escape(_END)}", text)
        if found is None:
            raise SettingsError(
                f"the page has no section {name!r}",
                position=Position(page),
                hint=f"write the lines {begin.strip()} and {_END.strip()} where it belongs",
            )
        text = text[: found.start(1)] + section + text[found.end(1) :]
    return text
