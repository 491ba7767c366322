"""`promptfmt review`, `accept` and `reject`: settle snapshots and the lock that goes with them, and no other files."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final, TypeVar

import typer
from rich.text import Text

from pytest_promptfmt.cli.display import diff_lines, waiting
from pytest_promptfmt.cli.options import NoCode, pytest_options, repeatable
from pytest_promptfmt.cli.output import note, print_json, print_lines, say, styled, write_file
from pytest_promptfmt.core import writing
from pytest_promptfmt.core.errors import SettingsError, SnapshotError, did_you_mean, display_path, raising
from pytest_promptfmt.results.clusters import grouped
from pytest_promptfmt.results.pending import (
    Edit,
    LastRun,
    Problem,
    accept_edit,
    keep_last_run,
    last_run_around,
    read_edits,
    write_pending,
)
from pytest_promptfmt.results.wording import NAMES, counted, listed
from pytest_promptfmt.revisions.pytest_process import run_pytest
from pytest_promptfmt.snapshots.changes import unified_diff
from pytest_promptfmt.snapshots.document import Document, read_document
from pytest_promptfmt.snapshots.expected import is_snapshot_location

_KEYS: Final = "[a] accept  [r] reject  [s] skip  [q] quit"
_KEYS_OF_MANY: Final = f"{_KEYS}   capital letter: do the same for {{same:,}} more snapshots with this change"
_HINT: Final = "this is not a terminal, so no questions can be asked: use --list or --accept GLOB"
_GLOBS: Final = typer.Argument(metavar="GLOB", help="Only these tasks or files. Default: all.", show_default=False)

_Pending = TypeVar("_Pending", "Edit", "Problem")


def review(
    source: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PENDING|PATH",
            help="A file of pending snapshots from an earlier run, or files and folders to test now.",
            show_default=False,
        ),
    ] = None,
    accept: Annotated[
        list[str] | None, repeatable("--accept", "GLOB", "Accept these tasks or files without asking.")
    ] = None,
    as_list: Annotated[bool, typer.Option("--list", help="List the pending snapshots. Nothing is changed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Like --list, as JSON.")] = False,
    no_code: NoCode = False,
) -> None:
    """Review new and changed snapshots one by one: accept, reject or skip.

    Without a file of pending snapshots, the tests run first. Accepted snapshots are written, or deleted if their
    task is gone. Rejected snapshots stay, and are listed at the end. Skipped snapshots wait for the next review. Only
    snapshots and promptfmt.lock are changed. Exit code: 0 all were accepted, 1 some were not.
    """
    top = writing.top_of(Path.cwd())
    names = source or []
    pending = Path(names[0]) if len(names) == 1 and Path(names[0]).suffix == ".jsonl" else None
    arguments = [*pytest_options(no_code=no_code), *names]
    found = read_edits(pending, top) if pending is not None else _edits_of_run(arguments, folder=Path.cwd())
    edits, locks = [edit for edit in found if not edit.is_lock], [edit for edit in found if edit.is_lock]
    done = _Reviewed(left=edits)
    if as_json:
        words = ("category", "task", "profile", "title")
        print_json(
            [{"path": display_path(each.path), **{word: getattr(each, word) for word in words}} for each in edits]
        )
    elif as_list:
        for edit in edits:
            say(f"{edit.category}  {display_path(edit.path)}")
    elif accept:
        chosen = _chosen(edits, accept, option="--accept ")
        done = _Reviewed(left=[edit for edit in edits if edit not in chosen or not _accept(edit)])
    else:
        done = _asked(edits)
    if len(done.left) + len(done.rejected) < len(edits):
        _renew(locks)
    if pending is None:
        _keep_left(done.left)
    elif len(done.left) < len(edits):
        write_file(pending, write_pending([*done.left, *(locks if done.left else ())], top))
    if not edits:
        note("no pending snapshots")
    elif not (as_json or as_list):
        for line in done.lines(len(edits)):
            note(line)
    if done.left or done.rejected:
        raise typer.Exit(1)


def accept(globs: Annotated[list[str] | None, _GLOBS] = None, no_code: NoCode = False) -> None:
    """Write all snapshots that were new or changed in the last run.

    Snapshots without a task are deleted, and promptfmt.lock is updated. Only the affected task files are rendered
    again. A snapshot that changed again since the last run is not accepted. Exit code: 0 all were accepted, 1 some were
    not, 2 there was no earlier run.
    """
    run, chosen = _last_run(globs or ())
    options = [*run.options, *pytest_options(no_code=no_code)]
    rendered = _rendered(run, chosen, options) if chosen else []
    found = {_identity(edit): edit for edit in rendered}
    settled: list[Problem] = []
    for problem in chosen:
        edit = found.get(_identity(problem, run.folder))
        if edit is None:
            name = f"{problem.task} [{problem.profile}]" if problem.profile else display_path(problem.path)
            note(f"{name} changed after the last run. Run the tests again")
        elif _accept(edit):
            settled.append(problem)
            if problem.category == "renamed":  # the same prompts are in a snapshot that no task defines
                left_over = found.get((str(Path(run.folder, problem.key)),))
                _ = left_over is None or _accept(left_over)
    _settle(run, settled)
    if settled:
        _renew(edit for edit in rendered if edit.is_lock)
    if chosen:
        note(f"{len(settled):,} of {counted(len(chosen), 'snapshot')} accepted")
    if len(settled) < len(chosen):
        raise typer.Exit(1)


def reject(globs: Annotated[list[str] | None, _GLOBS] = None) -> None:
    """Keep the snapshots as they are, and list what to fix in the tasks.

    The list has the problems of the last run, grouped by cause. No test runs. Exit code: 0, or 2 without an earlier
    run.
    """
    run, chosen = _last_run(globs or ())
    for line in _rejected_lines(chosen):
        note(line)
    _settle(run, chosen)
    if chosen:
        note(f"{counted(len(chosen), 'snapshot')} rejected")


@dataclass(slots=True)
class _Reviewed:
    """The decisions of a review: the rejected edits, and those left for another time."""

    rejected: list[Edit] = field(default_factory=list)
    left: list[Edit] = field(default_factory=list)

    def lines(self, total: int) -> Iterator[str]:
        """Yield what is to be fixed, each cause once, and the counts."""
        yield from _rejected_lines(self.rejected)
        rejected = f", {len(self.rejected):,} rejected" if self.rejected else ""
        left = f", {len(self.left):,} left" if self.left else ""
        accepted = total - len(self.rejected) - len(self.left)
        yield f"{accepted:,} of {counted(total, 'snapshot')} accepted{rejected}{left}"


def _chosen(pending: Sequence[_Pending], globs: Sequence[str], *, option: str = "", of: str = "") -> list[_Pending]:
    """Return what the globs match; raises SettingsError for a glob that matches nothing."""
    found: list[_Pending] = []
    for glob in globs:
        matching = [each for each in pending if fnmatchcase(each.task, glob)]
        matching += [each for each in pending if fnmatchcase(display_path(each.path), glob)]
        if not matching:
            message = f"{option}{glob!r} matches none of {counted(len(pending), 'snapshot')}{of}"
            raise SettingsError(message, hint=did_you_mean(glob, [*dict.fromkeys(each.task for each in pending)]))
        found += matching
    return [each for each in pending if each in found]


def _rejected_lines(rejected: Iterable[Edit | Problem]) -> Iterator[str]:
    """Yield what is to be fixed, each cause once with its tasks."""
    for first, *others in grouped(rejected, lambda each: (each.category, each.key or each.title)).values():
        yield f"rejected; fix this: {first.title or first.category}"
        yield f"    {listed([f'{each.task} [{each.profile}]' for each in (first, *others)], NAMES)}"


# -- the changes of a run ----------------------------------------------------------------------------------------------


def _edits_of_run(arguments: Sequence[str], *, folder: Path) -> list[Edit]:
    """Return what accepting would do after a run of pytest in a folder; raises SettingsError where it did not run."""
    with TemporaryDirectory(prefix="promptfmt-") as scratch:
        file = Path(scratch, "pending.jsonl")
        options = ["-o", "promptfmt_lint=false", f"--promptfmt-write=pending={file}"]
        with raising(SettingsError), waiting("running the tests"):
            run_pytest(folder, options, arguments)
        run = last_run_around(folder)  # paths are relative to the rootdir, which can be above
        return read_edits(file, writing.top_of(Path(run.rootdir) if run is not None else folder))


def _last_run(globs: Sequence[str]) -> tuple[LastRun, list[Problem]]:
    """Return the last run around the working directory, and its problems that the globs match, all without any."""
    run = last_run_around(Path.cwd())
    if run is None:
        hint = (
            "first run `pytest --promptfmt` or `promptfmt check`. Or use `promptfmt review`: it runs the tests itself"
        )
        raise SettingsError("no earlier run was found in this folder or its parents", hint=hint)
    if not run.problems:
        _require_tasks(globs, run)
        note(
            "nothing to accept or reject: in the last run, no snapshots were new or "
            "changed. After a change, run the tests again"
        )
        return run, []
    return run, _chosen(run.problems, globs, of=" of the last run") if globs else list(run.problems)


def _require_tasks(globs: Sequence[str], run: LastRun) -> None:
    """Raise SettingsError for a name that no task of the project has."""
    from pytest_promptfmt.cli.show import narrowed, unknown_task  # later: it imports how prompts are shown

    for name in globs:
        files, names = narrowed(name, [Path(run.rootdir)])
        if files is None and not Path(name).exists():
            raise unknown_task(name, names)


def _keep_left(left: Sequence[Edit]) -> None:
    """Keep the changes that a review left open as those of the last run."""
    run = last_run_around(Path.cwd())
    if run is not None:
        known = {_identity(edit) for edit in left}
        _settle(run, [each for each in run.problems if _identity(each, run.folder) not in known])


def _settle(run: LastRun, settled: Sequence[Problem]) -> None:
    keep_last_run(replace(run, problems=tuple(each for each in run.problems if each not in settled)))


def _rendered(run: LastRun, problems: Sequence[Problem], options: Sequence[str]) -> list[Edit]:
    """Return what accepting would do now to the snapshots of the files concerned."""
    paths: dict[str, None] = {}
    for problem in problems:
        file = Path(problem.path)
        if problem.category == "obsolete":  # only a run of its folder finds it, since its task file is gone
            folder = file.parents[3] if is_snapshot_location(problem.path) else None
            if folder is None or not any(folder.glob("*.yaml")):
                return _edits_of_run(options, folder=Path(run.folder))
            paths[str(folder)] = None
        else:
            # A run of one file ignores old snapshots of others, and pytest takes no path with these characters.
            is_single = problem.category != "renamed" and "[" not in problem.path and "::" not in problem.path
            paths[problem.path if is_single else str(file.parent)] = None
    if any("\n" in path for path in paths):  # each line is an argument
        return _edits_of_run(options, folder=Path(run.folder))
    with TemporaryDirectory(prefix="promptfmt-") as scratch:
        arguments = Path(scratch, "paths.txt")  # a command line may be too short for all of them
        arguments.write_text("".join(f"{path}\n" for path in paths), "utf-8", "surrogateescape")
        return _edits_of_run([*options, f"@{arguments}"], folder=Path(run.folder))


def _identity(change: Edit | Problem, folder: str = "") -> tuple[str, ...]:
    """Return what a problem and the edit that settles it share; a problem's path is relative to `folder`."""
    if change.category == "obsolete":
        return (str(Path(folder, change.path)),)
    return change.category, change.task, change.profile, change.key


# -- asking ------------------------------------------------------------------------------------------------------------


def _asked(edits: Sequence[Edit]) -> _Reviewed:
    """Ask about each edit, or once about those with the same change."""
    done = _Reviewed()
    decided: dict[tuple[str, str], str] = {}
    for number, edit in enumerate(edits, 1):
        same = (edit.category, edit.key)
        answer = decided.get(same, "") if edit.key else ""
        if not answer:
            print_lines(_lines(edit, number, len(edits)))
            more = sum((other.category, other.key) == same for other in edits[number:]) if edit.key else 0
            answer = _answer(more)
            if answer == "q":
                done.left += edits[number - 1 :]
                break
            if answer.isupper():
                decided[same] = answer
        if answer in "rR":
            done.rejected.append(edit)
        elif answer in "sS" or not _accept(edit):
            done.left.append(edit)
    return done


def _answer(same: int) -> str:
    """Return one of a, r, s, in capitals for all with the same change, or q; end of input and Ctrl-C are q."""
    while True:
        typer.echo(_KEYS_OF_MANY.format(same=same) if same else _KEYS)
        try:
            answer = input("> ").strip()[:1]
        except (EOFError, KeyboardInterrupt):
            typer.echo()
            if not sys.stdin.isatty():
                note(_HINT)
            return "q"
        if answer and answer in "arsARS":
            return answer if same else answer.lower()
        if answer in ("q", "Q"):
            return "q"


def _lines(edit: Edit, number: int, count: int) -> Iterator[Text]:
    whose = f", {edit.task} [{edit.profile}]" if edit.profile else ""
    yield styled(f"{number} of {count}: {edit.category}{whose}", "bold")
    yield styled(display_path(edit.path))
    if edit.category in ("changed", "renamed", "error", "damaged"):
        yield styled(edit.title, "dim")
    yield from _difference(edit)


def _difference(edit: Edit) -> Iterator[Text]:
    """Yield the diff that a failure prints; a side that is missing or damaged counts as empty."""
    sides = [Document({}, ()), Document({}, ())]
    for number, content in enumerate((edit.old, edit.new)):
        with suppress(UnicodeDecodeError, SnapshotError):
            sides[number] = read_document(content.decode(), edit.path) if content else sides[number]
    yield from diff_lines(unified_diff(*sides))


def _accept(edit: Edit) -> bool:
    """Write or delete the file; return False, and print why, where that is not possible."""
    problem = accept_edit(edit)
    if problem:
        note(f"{display_path(edit.path)}{problem}")
    return not problem


def _renew(locks: Iterable[Edit]) -> None:
    """Write the lock as the run that writes snapshots does, and print that it changed."""
    for lock in locks:
        if _accept(lock) and lock.old is not None:
            note(f"{display_path(lock.path)} was updated")
