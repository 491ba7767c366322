"""Numbers, lists, paths and foreign texts as reports show them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pytest_promptfmt.settings.table import BY_NAME, REPORTS

LISTED_BY_V: Final = "; -v lists them all"
NAMES: Final = 8
"""Tasks, files or codes that are named in one line without -v."""
PLACES: Final = 4
"""Places of one cause, excerpts or reasons that are shown without -v."""
LINES: Final = 20
"""Lines of one list without -v."""


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return `1 item`, `1,319 items`; infos have no plural here."""
    return f"{number:,} {noun if number == 1 or noun == 'info' else plural or f'{noun}s'}"


def listed(names: Sequence[str], most: int | None) -> str:
    """Return the names with commas, after `most` of them only how many more there are."""
    if most is None or len(names) <= most:
        return ", ".join(names)
    return ", ".join(names[:most]) + f" and {len(names) - most:,} more"


def first_of(lines: Sequence[str], most: int | None, indent: str = "", note: str = "") -> Iterator[str]:
    """Yield the first lines, and after `most` of them only how many more there are, with a note."""
    yield from (f"{indent}{line}" for line in lines[:most])
    if most is not None and len(lines) > most:
        yield f"{indent}… and {len(lines) - most:,} more{note}"


def below(file: str, rootdir: Path) -> str:
    """Return the path of a file relative to the rootdir with slashes; the whole path where it lies elsewhere."""
    if not file:
        return ""
    path = Path(file)
    return path.relative_to(rootdir).as_posix() if path.is_relative_to(rootdir) else path.as_posix()


def archetype_note(names: Sequence[str]) -> str:
    """Return the note of every report about profiles that are built-in approximations; empty without any."""
    return f"{', '.join(names)}: built-in approximations, not the models' own files" if names else ""


def accept_all(arguments: Sequence[str]) -> str:
    """Return the shell command that accepts what a run with these arguments found; without the options of reports."""
    of_files = {"--junitxml", "--junit-xml", "--promptfmt-write", "--promptfmt-since"}
    of_files |= {BY_NAME[name].option for name in REPORTS}
    kept, rest = [], iter(arguments)
    for argument in rest:
        if argument in of_files:
            next(rest, None)  # the file
        elif argument.partition("=")[0] not in of_files and argument != "--promptfmt-step-summary":
            kept.append(argument)
    return shlex.join(["pytest", *kept, "--snapshot-update"])
