"""`promptfmt accept` and `promptfmt reject`: settle what the last run found, without testing everything again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pytest_promptfmt.cli.review import accept_edit, edits_of_run, rejected_lines
from pytest_promptfmt.core.errors import SettingsError, did_you_mean, display_path
from pytest_promptfmt.core.text import escape_controls
from pytest_promptfmt.results.wording import counted

if TYPE_CHECKING:
    from pytest_promptfmt.results.pending import Edit, LastRun, Problem

_GLOBS: Final = typer.Argument(metavar="GLOB", help="Only these tasks or files; by default all.", show_default=False)


def accept(globs: Annotated[list[str] | None, _GLOBS] = None) -> None:
    """Write the snapshots that the last run found new or changed, and delete those that it found obsolete.

    Only the task files concerned are rendered again. What is no longer as that run found it is left and reported. Exit
    code: 0 all were accepted, 1 some were not, 2 no run is known.
    """
    run = _last_run()
    chosen = _chosen(run, globs or ())
    found = {_identity(edit): edit for edit in _rendered(run, chosen)} if chosen else {}
    settled: list[Problem] = []
    for problem in chosen:
        edit = found.get(_identity_of_problem(problem, run))
        if edit is None:
            text = f"{_name(problem)}: not as the last run found it; run the tests again"
            typer.echo(escape_controls(text), err=True)
        elif accept_edit(edit):
            settled.append(problem)
            if problem.category == "renamed":  # the same prompts are in a snapshot that no task defines
                left_over = found.get((str(Path(run.folder, problem.key)),))
                _ = left_over is None or accept_edit(left_over)
    _settle(run, settled)
    if chosen:
        typer.echo(f"{len(settled):,} of {counted(len(chosen), 'snapshot')} accepted", err=True)
    if len(settled) < len(chosen):
        raise typer.Exit(1)


def reject(globs: Annotated[list[str] | None, _GLOBS] = None) -> None:
    """Drop what the last run found: the snapshots stay as they are, and what is to be fixed is listed by cause.

    Nothing is rendered. Exit code: 0, or 2 where no run is known.
    """
    run = _last_run()
    chosen = _chosen(run, globs or ())
    for line in rejected_lines(chosen):
        typer.echo(escape_controls(line), err=True)
    _settle(run, chosen)
    if chosen:
        typer.echo(f"{counted(len(chosen), 'snapshot')} rejected", err=True)


def _last_run() -> LastRun:
    from pytest_promptfmt.results.pending import last_run_around

    run = last_run_around(Path.cwd())
    if run is None:
        hint = "pytest --promptfmt tests; promptfmt review tests and asks"
        raise SettingsError("no run is known in this folder or above it", hint=hint)
    return run


def _settle(run: LastRun, settled: Sequence[Problem]) -> None:
    from pytest_promptfmt.results.pending import keep_last_run

    keep_last_run(replace(run, problems=tuple(each for each in run.problems if each not in settled)))


def _chosen(run: LastRun, globs: Sequence[str]) -> list[Problem]:
    """Return what the globs match, all without any; raises SettingsError for a glob that matches nothing."""
    if not run.problems:
        typer.echo("the last run found no snapshot to accept or reject", err=True)
        return []
    for glob in globs:
        if not any(_matches(each, glob) for each in run.problems):
            message = f"{glob!r} matches none of {counted(len(run.problems), 'snapshot')} of the last run"
            raise SettingsError(message, hint=did_you_mean(glob, {each.task for each in run.problems}))
    return [each for each in run.problems if not globs or any(_matches(each, glob) for glob in globs)]


def _matches(problem: Problem, glob: str) -> bool:
    return fnmatchcase(problem.task, glob) or fnmatchcase(display_path(problem.file), glob)


def _rendered(run: LastRun, problems: Sequence[Problem]) -> list[Edit]:
    """Return what accepting would do now to the snapshots of the files concerned."""
    from pytest_promptfmt.snapshots.expected import is_snapshot_location

    paths: dict[str, None] = {}
    for problem in problems:
        file = Path(problem.file)
        if problem.category == "obsolete":  # found by a run of the folder whose task file is gone
            beside = file.parents[3] if is_snapshot_location(problem.file) else None
            if beside is None or not any(beside.glob("*.yaml")):
                return edits_of_run(run.options, folder=Path(run.folder))
            paths[str(beside)] = None
        else:
            # A run of one file leaves the old snapshots of others alone; pytest takes no path with such characters.
            is_alone = problem.category != "renamed" and "[" not in problem.file and "::" not in problem.file
            paths[problem.file if is_alone else str(file.parent)] = None
    with TemporaryDirectory(prefix="promptfmt-") as scratch:
        arguments = Path(scratch, "paths.txt")  # a command line may be too short for all of them
        arguments.write_text("".join(f"{path}\n" for path in paths), "utf-8", "surrogateescape")
        return edits_of_run([*run.options, f"@{arguments}"], folder=Path(run.folder))


def _identity(edit: Edit) -> tuple[str, ...]:
    if edit.category == "obsolete":
        return (str(edit.path),)
    return edit.category, edit.task, edit.profile, edit.key


def _identity_of_problem(problem: Problem, run: LastRun) -> tuple[str, ...]:
    """Return what the edit of the same problem has; paths were written as seen from the run's working directory."""
    if problem.category == "obsolete":
        return (str(Path(run.folder, problem.file)),)
    return problem.category, problem.task, problem.profile, problem.key


def _name(problem: Problem) -> str:
    return f"{problem.task} [{problem.profile}]" if problem.profile else display_path(problem.file)
