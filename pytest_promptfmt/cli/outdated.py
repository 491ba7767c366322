"""`promptfmt outdated`: what newer revisions of tokenizers and chat templates on the hub would change."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pytest_promptfmt.core.errors import SettingsError
from pytest_promptfmt.core.text import escape_controls

if TYPE_CHECKING:
    from pytest_promptfmt.plugin.collected import CollectedPrompts
    from pytest_promptfmt.revisions.upstream import Followed

_DIGITS: Final = 12
_SHOWN: Final = 12


def outdated(
    path: Annotated[
        Path | None, typer.Argument(help="A template or folder that was copied from the hub.", show_default=False)
    ] = None,
    origin: Annotated[
        str | None, typer.Option("--origin", metavar="REPOSITORY[@COMMIT]", help="Where it was copied from.")
    ] = None,
) -> None:
    """Show what newer revisions on the Hugging Face hub change in prompts, tokens and tasks. Exit code 1: some do.

    `promptfmt.lock` says which repository and commit tokenizers come from; `--origin` notes it for a file or folder of
    yours. The newest files are downloaded into the cache; yours are left alone. No other command looks for revisions.
    """
    from pytest_promptfmt.revisions.upstream import content_of, followed, is_same
    from pytest_promptfmt.snapshots.lock import FILE_NAME, Locked, LockedOrigin, read_lock, write_lock

    root = Path.cwd()
    locked = read_lock(root / FILE_NAME)
    origins = dict(locked.origins)
    if path is not None and origin is not None:
        repository, _, revision = origin.partition("@")
        origins = {_name(path, root): LockedOrigin(repository=repository, revision=revision, content=content_of(path))}
        each = list(followed(Locked({}, origins), root))
    elif path is not None or origin is not None:
        raise SettingsError("give both a path and --origin", hint="promptfmt outdated models/mine --origin me/mine")
    else:
        each = list(followed(locked, root))
    if not each:
        hint = "name one: promptfmt outdated models/mine --origin owner/name"
        raise SettingsError(f"{FILE_NAME} names no tokenizer or template of the hub", hint=hint)
    found = [_is_outdated(one) for one in each]
    for one, (newest, there) in zip(each, found, strict=True):
        if one.copy is not None:
            revision = one.revision if there is not None and not is_same(one.copy, there) else newest
            known = LockedOrigin(repository=one.repository, revision=revision, content=content_of(one.copy))
            origins[one.name] = known
    merged = Locked(locked.tokenizers, {**locked.origins, **origins})
    if merged != locked:
        write_lock(root / FILE_NAME, merged)
        typer.echo(f"{FILE_NAME} was updated")
    if any(there is not None for _, there in found):
        raise typer.Exit(1)


def _name(path: Path, root: Path) -> str:
    try:
        return Path(os.path.abspath(path)).relative_to(root).as_posix()
    except ValueError:
        raise SettingsError(f"{path} is not below the working directory", hint="copy it there") from None


def _is_outdated(one: Followed) -> tuple[str, Path | None]:
    """Return the newest commit, and the files of it where they differ from those here, after saying how."""
    from pytest_promptfmt.revisions.upstream import is_same

    newest = one.newest()
    there = one.there(newest) if one.revision != newest or one.copy is not None else None
    if there is None or is_same(one.here(), there):
        typer.echo(escape_controls(f"{one.name}: nothing newer than {one.repository}@{newest[:_DIGITS]}"))
        return newest, None
    before = one.revision[:_DIGITS] or "unknown"
    typer.echo(escape_controls(f"{one.name}: {one.repository}@{newest[:_DIGITS]}, here {before}"))
    for line in (*_differences(one.here(), there), *_tasks(one, there)):
        typer.echo(escape_controls(f"  {line}"))
    return newest, there


def _differences(here: Path, there: Path) -> list[str]:
    """Return what changes in the prompts of all conversations, in findings and in tokens."""
    from pytest_promptfmt.cli.compare import ComparesFiles
    from pytest_promptfmt.systems import system_with

    system = system_with(ComparesFiles)
    if system is None:
        return ["prompts and tokens of conversations need the system of chat templates, which this installation lacks"]
    return system.compare_files(here, there) or ["prompts of conversations and tokens are the same"]


def _tasks(one: Followed, there: Path) -> list[str]:
    from pytest_promptfmt.plugin.collected import with_collected
    from pytest_promptfmt.revisions.upstream import changed_tasks

    said: list[str] = []

    def use(found: Sequence[CollectedPrompts]) -> None:
        changed, seen = changed_tasks((each.seen for each in found), one, there)
        more = f" and {len(changed) - _SHOWN:,} more" if len(changed) > _SHOWN else ""
        names = f": {', '.join(changed[:_SHOWN])}{more}" if changed else ""
        said.append(f"prompts or tokens of {len(changed):,} of {seen:,} tasks change{names}")

    with_collected(use, [], [])
    return said
