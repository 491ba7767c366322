"""`promptfmt why` and `cache`: which outcomes of an earlier run hold, and why others do not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from pytest_promptfmt.cli.options import NoCode, Paths, pytest_options
from pytest_promptfmt.cli.output import say
from pytest_promptfmt.core.errors import display_path
from pytest_promptfmt.inputs.store import FILE_NAME, remove_store
from pytest_promptfmt.plugin.collected import decisions
from pytest_promptfmt.results.wording import LINES, counted, first_of


def why(
    paths: Annotated[list[Path], typer.Argument(help="Task files or folders.", show_default=False)],
    no_code: NoCode = False,
) -> None:
    """Print whether the next run tests a task file again, and why."""
    _, found = decisions(paths, pytest_options(no_code=no_code))
    for path, decision in found.items():
        say(f"{display_path(path)}: {decision}")


def cache(
    paths: Paths = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove the cached results of this project.")] = False,
    no_code: NoCode = False,
) -> None:
    """Print where test results are cached, and for how many files.

    It also prints why the other files must be tested again, and how many files have each reason. `promptfmt why FILE`
    prints the reason for one file. No test runs.
    """
    store, found = decisions(paths or [], pytest_options(no_code=no_code))
    if store is None:
        say("nothing is cached, because there is no cache folder outside the repository")
        return
    file = store / FILE_NAME
    size = file.stat().st_size if file.is_file() else 0
    say(f"{file}: {size / 1e6:,.1f} MB")
    if clear:
        remove_store(store)
        say("removed")
        return
    misses = Counter(decision.reason for decision in found.values() if decision.file is None)
    say(
        f"{len(found) - misses.total():,} of {len(found):,} files are unchanged: the next run uses their cached results"
    )
    for line in first_of(
        [f"{counted(number, 'file')} will be tested: {reason}" for reason, number in misses.most_common()], LINES
    ):
        say(line)
