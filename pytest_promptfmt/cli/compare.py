"""`promptfmt compare` and `outdated`: what another template, tokenizer or run changes, or a revision on the hub."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, runtime_checkable

import typer

from pytest_promptfmt.answers.run_comparison import TaskComparison, compared_runs, comparison_lines
from pytest_promptfmt.answers.run_samples import FinishedRun, is_run, read_run
from pytest_promptfmt.cli.options import AsJson, NoCode, pytest_options, require_path
from pytest_promptfmt.cli.output import print_json, say
from pytest_promptfmt.core.errors import PromptfmtError, SettingsError
from pytest_promptfmt.plugin.collected import CollectedPrompts, with_collected
from pytest_promptfmt.results.wording import NAMES, listed
from pytest_promptfmt.revisions.git import Repository
from pytest_promptfmt.revisions.upstream import Followed, changed_tasks, content_of, followed, is_same
from pytest_promptfmt.snapshots.lock import FILE_NAME, Locked, LockedOrigin, read_lock, write_lock
from pytest_promptfmt.systems import system_with
from pytest_promptfmt.systems.task_files import read_task_file
from pytest_promptfmt.tasks import TaskIndex

_DIGITS: Final = 12


@runtime_checkable
class ComparesFiles(Protocol):
    """A system that knows how two of its files differ in prompts."""

    def compare_files(self, first: Path, second: Path) -> list[str]:
        """Return a line for each difference; raises as `check_template`."""
        ...


def compare(
    first: Annotated[
        Path,
        typer.Argument(
            metavar="A", help="A template, a GGUF file, a folder with a template or tokenizer, or a finished run."
        ),
    ],
    second: Annotated[Path, typer.Argument(metavar="B", help="The template, folder or run to compare with A.")],
    repository: Annotated[
        Path | None,
        typer.Option("--repository", metavar="FOLDER", help="The git repository with the tasks.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two chat templates, two tokenizers, or two finished runs.

    Exit code 1: they differ, or cannot be compared.

    Templates are rendered with all built-in conversations. The output has each kind of change once, then findings that
    are new or fixed, then texts whose tokens differ. Nothing is downloaded.

    A run is an output folder of lm-eval (with --log_samples) or a recording. Requests are compared byte for byte. With
    --repository, the output shows the line of a changed key, and the commits that changed it. --repository and --json
    are for runs only.
    """
    for path in (first, second):
        require_path(path)
        if path.suffix in (".yaml", ".yml"):
            raise SettingsError(
                f"{path} is not a template or a run", hint="to compare prompts of tasks, use promptfmt diff"
            )
    if is_run(first) or is_run(second) or as_json or repository is not None:
        _compare_runs(first, second, repository, as_json=as_json)
        return
    lines = system_with(ComparesFiles).compare_files(first, second)
    typer.echo("\n".join(lines) if lines else "no difference")
    if lines:
        raise typer.Exit(1)


def outdated(
    path: Annotated[
        Path | None, typer.Argument(help="A template or folder that you copied from the hub.", show_default=False)
    ] = None,
    origin: Annotated[
        str | None,
        typer.Option("--origin", metavar="REPOSITORY[@COMMIT]", help="The hub repository from which PATH was copied."),
    ] = None,
    no_code: NoCode = False,
) -> None:
    """Show how newer files on the Hugging Face Hub change prompts and tokens.

    The tokenizers and templates that you use are compared with the newest ones. Exit code 1: some prompts or tokens
    differ.

    `promptfmt.lock` has the repository and commit of each tokenizer. For a copy of a file or folder, give them with
    `--origin`. The newest files are downloaded into the cache. Your copies do not change.
    """
    root = Path.cwd()
    locked = read_lock(root / FILE_NAME)
    origins = dict(locked.origins)
    if path is not None and origin is not None:
        repository, _, revision = origin.partition("@")
        origins = {_name(path, root): LockedOrigin(repository=repository, revision=revision, content=content_of(path))}
        each = list(followed(Locked({}, origins), root))
    elif path is not None or origin is not None:
        raise SettingsError(
            "PATH and --origin must be used together",
            hint="for example: promptfmt outdated models/mine --origin me/mine",
        )
    else:
        each = list(followed(locked, root))
    if not each:
        hint = "name a copied file and its origin: promptfmt outdated models/mine --origin owner/name"
        raise SettingsError(f"{FILE_NAME} lists no tokenizer or template from the hub", hint=hint)
    options = pytest_options(no_code=no_code)
    found = [_newest(one, options) for one in each]
    for one, (newest, there) in zip(each, found, strict=True):
        if one.copy is not None:
            revision = one.revision if there is not None and not is_same(one.copy, there) else newest
            known = LockedOrigin(repository=one.repository, revision=revision, content=content_of(one.copy))
            origins[one.name] = known
    merged = replace(locked, origins={**locked.origins, **origins})
    if merged != locked:
        write_lock(root / FILE_NAME, merged)
        typer.echo(f"{FILE_NAME} was updated")
    if any(there is not None for _, there in found):
        raise typer.Exit(1)


# -- runs --------------------------------------------------------------------------------------------------------------


def _compare_runs(first: Path, second: Path, repository: Path | None, *, as_json: bool) -> None:
    """Print how two runs compare; exits with 1 unless both asked the same and no file was edited."""
    runs = read_run(first), read_run(second)
    tasks = compared_runs(*runs)
    places = {each.task: dict(_places(each, runs, repository)) if repository is not None else {} for each in tasks}
    hashes = {name: run.hashes() for name, run in zip("AB", runs, strict=True)}
    if as_json:
        print_json({"tasks": [each.to_json(places[each.task]) for each in tasks], "hashes": hashes})
    else:
        for task in tasks:
            for line in comparison_lines(task, runs, places[task.task]):
                say(line)
        for name, found in hashes.items():
            if found["checked"] or found["wrong"]:
                wrong = f", not {found['wrong'][0]}" if found["wrong"] else ""
                say(
                    f"{name}: {found['reproduced']:,} of {found['checked']:,} recorded "
                    f"hashes are the same when computed again{wrong}"
                )
    if any(task.verdict != "same" for task in tasks) or any(found["wrong"] for found in hashes.values()):
        raise typer.Exit(1)


def _places(
    task: TaskComparison, runs: tuple[FinishedRun, FinishedRun], repository: Path
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield for each key of the task that differs where it is written now, and the commits between both runs."""
    index = TaskIndex([repository])
    entry = index.find(task.task)
    file = read_task_file(entry.path, index) if entry is not None and entry.path is not None else None
    known = next((each for each in file.tasks if each.name == task.task), None) if file is not None else None
    if known is None:
        return
    revisions = [str(run.facts.get("git_hash") or "") for run in runs]
    for cause in task.causes:
        position = known.position(cause.name) if cause.kind == "edit" else None
        if position is None:
            continue
        try:
            commits = Repository.around(repository).commits_between(revisions[0], revisions[1], [position.path])
        except PromptfmtError:
            commits = []
        yield cause.name, {"place": str(position), "commits": commits}


# -- revisions on the hub ----------------------------------------------------------------------------------------------


def _name(path: Path, root: Path) -> str:
    try:
        return Path(os.path.abspath(path)).relative_to(root).as_posix()
    except ValueError:
        raise SettingsError(f"{path} is outside the working directory", hint="copy the file into this folder") from None


def _newest(one: Followed, options: Sequence[str]) -> tuple[str, Path | None]:
    """Print how the newest commit differs; return it, and its files if they are not those here."""
    newest = one.newest()
    there = one.there(newest) if one.revision != newest or one.copy is not None else None
    if there is None or is_same(one.here(), there):
        say(f"{one.name}: no newer revision than {one.repository}@{newest[:_DIGITS]}")
        return newest, None
    before = one.revision[:_DIGITS] or "unknown"
    say(f"{one.name}: {one.repository}@{newest[:_DIGITS]}, here {before}")
    differences = system_with(ComparesFiles).compare_files(one.here(), there)
    for line in (*(differences or ["all prompts and all tokens are the same"]), *_tasks(one, there, options)):
        say(f"  {line}")
    return newest, there


def _tasks(one: Followed, there: Path, options: Sequence[str]) -> list[str]:
    lines: list[str] = []

    def use(found: Sequence[CollectedPrompts]) -> None:
        changed, seen = changed_tasks((each.seen for each in found), one, there)
        names = f": {listed(changed, NAMES)}" if changed else ""
        lines.append(f"{len(changed):,} of {seen:,} tasks get other prompts or tokens{names}")

    with_collected(use, [], options)
    return lines
