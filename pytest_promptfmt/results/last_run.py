"""What the last run found that could be accepted: `promptfmt accept` and `reject` settle it without testing all again.

Kept in the user's private cache folder, one file for each rootdir: its options become options of pytest.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from pytest_promptfmt.core.files import private_directory, write_atomically
from pytest_promptfmt.results.run_result import ACCEPTABLE, RunResult

MOST_KEPT: Final = 100
"""Rootdirs whose last run is kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One snapshot that is not as it was, as its outcome has it; `file` is the task file, or the obsolete snapshot."""

    file: str
    task: str
    profile: str
    category: str
    key: str
    title: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LastRun:
    """The last run in a rootdir: where it was started, the options that choose what is rendered, and what it found."""

    rootdir: str
    folder: str
    options: tuple[str, ...]
    problems: tuple[Problem, ...]


def keep_last_run(run: LastRun) -> None:
    """Keep this run in place of the one before it, where anything can be kept."""
    folder = private_directory("last-runs")
    if folder is None:
        return
    with suppress(OSError):
        write_atomically(folder / _name(Path(run.rootdir)), json.dumps(asdict(run)).encode())
        files = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime)
        for old in files[:-MOST_KEPT]:
            old.unlink(missing_ok=True)


def last_run_around(here: Path) -> LastRun | None:
    """Return the last run in the nearest rootdir at or above a folder, None where none is known."""
    folder = private_directory("last-runs")
    if folder is None:
        return None
    for rootdir in (here, *here.parents):
        with suppress(OSError, ValueError, KeyError, TypeError):
            data = json.loads((folder / _name(rootdir)).read_bytes())
            problems = tuple(Problem(**each) for each in data["problems"])
            return LastRun(**{**data, "options": tuple(data["options"]), "problems": problems})
    return None


def last_run_of(result: RunResult, options: Sequence[str]) -> LastRun:
    """Return what is kept of a run that ends in the working directory."""
    problems = tuple(
        Problem(
            file=each.file, task=each.task, profile=each.profile, category=each.category, key=each.key, title=each.title
        )
        for each in result.outcomes
        if each.category in ACCEPTABLE
    )
    return LastRun(rootdir=str(result.rootdir), folder=str(Path.cwd()), options=tuple(options), problems=problems)


def _name(rootdir: Path) -> str:
    return f"{sha256(str(rootdir).encode('utf-8', 'surrogateescape')).hexdigest()[:32]}.json"
