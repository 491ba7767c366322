"""`promptfmt fix`: the findings that have one mechanical fix, shown as a difference and made on demand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pytest_promptfmt.core.errors import display_path
from pytest_promptfmt.core.text import escape_controls

if TYPE_CHECKING:
    from pytest_promptfmt.plugin.collected import CollectedPrompts
    from pytest_promptfmt.rules.fixing import Fixed

_SHOWN_TASKS = 6


def fix(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Files or folders; by default as pytest does.", show_default=False)
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Change the files.")] = False,
    select: Annotated[
        list[str] | None, typer.Option("--select", metavar="CODES", help="As --promptfmt-select. Repeatable.")
    ] = None,
    allow_code: Annotated[
        list[Path] | None, typer.Option("--allow-code", metavar="PATH", help="As --promptfmt-allow-code.")
    ] = None,
) -> None:
    """Fix the findings that have one mechanical fix, and show the difference.

    Each fix is proved by rendering every task of these paths that includes the file: the finding is gone, no error or
    warning is new, and no other text of any prompt changes. All else in the file stays as it is, comments included.
    Without `--write` nothing is written, and the exit code is 1 where something would be.
    """
    fixed = fix_files(paths or [], write=write, select=select or (), allow_code=allow_code or ())
    if not write and any(each.files for each in fixed):
        raise typer.Exit(1)


def fix_files(
    paths: Sequence[Path], *, write: bool, select: Sequence[str] = (), allow_code: Sequence[Path] = ()
) -> Sequence[Fixed]:
    """Find, print and, where asked, write the fixes of these paths; return them."""
    from pytest_promptfmt.plugin.collected import with_collected
    from pytest_promptfmt.rules.fixing import find_fixes, write_fixes

    options = ["--promptfmt-profile", "plain"]
    for codes in select:
        options += ["--promptfmt-select", codes]
    for path in allow_code:
        options += ["--promptfmt-allow-code", str(path)]
    found: list[Fixed] = []

    def use(collected: Sequence[CollectedPrompts]) -> None:
        if collected:
            folders = collected[0].folders
            files = dict.fromkeys(each.path for each in collected)
            found.append(find_fixes(files, folders, below=paths or [folders.settings.rootdir]))
            if write:
                write_fixes(found[0])

    collection = with_collected(use, paths, options)
    for error in collection.errors:
        typer.echo(escape_controls(str(error)), err=True)
    for fixed in found:
        print_fixes(fixed, written=write)
    return found


def print_fixes(fixed: Fixed, *, written: bool) -> None:
    """Print the difference of each file, and on stderr what it changes and what was not fixed."""
    from pytest_promptfmt.cli.convert import print_difference

    for file in fixed.files:
        name = display_path(file.path)
        print_difference(file.before.decode(), file.after.decode(), name, "fixed")
        codes = Counter(finding.code for finding in file.findings)
        what = ", ".join(f"{code} ({count})" if count > 1 else code for code, count in sorted(codes.items()))
        typer.echo(escape_controls(f"{name}: {what}; {_changes(file.changed)}"), err=True)
    for finding, reason in fixed.refused:
        typer.echo(escape_controls(f"{finding.where}: {finding.code} is not fixed: {reason}"), err=True)
    count = sum(len(file.findings) for file in fixed.files)
    files = f"{len(fixed.files):,} file{'s' if len(fixed.files) != 1 else ''}"
    if not count:
        typer.echo("no finding has a mechanical fix", err=True)
    elif written:
        typer.echo(f"fixed {count:,} finding{'s' if count > 1 else ''} in {files}", err=True)
    else:
        typer.echo(f"{count:,} finding{'s' if count > 1 else ''} in {files} can be fixed; --write does it", err=True)


def _changes(changed: Mapping[str, int]) -> str:
    """Return which tasks get other prompts."""
    if not changed:
        return "no prompt changes"
    names = list(changed)
    more = f" and {len(names) - _SHOWN_TASKS:,} more" if len(names) > _SHOWN_TASKS else ""
    return f"changes prompts of {', '.join(names[:_SHOWN_TASKS])}{more}"
