"""`promptfmt review`: accept, reject or skip failing snapshots one by one; no other files change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.errors import Position, SettingsError, SnapshotError, did_you_mean, display_path
from pytest_promptfmt.core.text import escape_controls
from pytest_promptfmt.results.wording import listed

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from pytest_promptfmt.results.pending import Edit, Problem

_KEYS: Final = "[a] accept  [r] reject  [s] skip  [q] quit"
_KEYS_OF_MANY: Final = f"{_KEYS}   in capitals: this and {{same:,}} more with the same change"
SHOWN_TASKS: Final = 8
_HINT: Final = "not a terminal: use --list, or --accept GLOB to accept without asking"


def review(
    source: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PENDING|PATH",
            help="A file that --promptfmt-pending wrote, or paths to test now.",
            show_default=False,
        ),
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option("--accept", metavar="GLOB", help="Accept these tasks or files without asking. Repeatable."),
    ] = None,
    as_list: Annotated[bool, typer.Option("--list", help="List the pending snapshots, and change nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Like --list, as JSON.")] = False,
) -> None:
    """Walk through failing snapshots and accept, reject or skip each. Exit code: 0 all were accepted, 1 some were not.

    Without a file of pending snapshots the tests are run first. What is accepted is written, or deleted where no task
    defines it. What is rejected stays as it is, is listed at the end as what to fix, and leaves the file of pending
    snapshots; what is skipped stays there for the next review. No other file is touched.
    """
    from pytest_promptfmt.results.pending import top_of, write_pending

    top = top_of(Path.cwd())
    names = source or []
    pending = Path(names[0]) if len(names) == 1 and Path(names[0]).suffix == ".jsonl" else None
    edits = read_edits(pending, top) if pending is not None else edits_of_run(names, folder=Path.cwd())
    if as_json:
        typer.echo(json.dumps([_as_data(edit) for edit in edits], indent=1, ensure_ascii=False))
        done = Reviewed(left=edits)
    elif as_list:
        for edit in edits:
            typer.echo(escape_controls(f"{edit.category}  {display_path(edit.path)}"))
        done = Reviewed(left=edits)
    elif accept:
        done = _accepted(edits, accept)
    else:
        done = _asked(edits)
    if pending is not None and len(done.left) < len(edits):
        pending.write_text(write_pending(done.left, top), "utf-8")
    if not edits:
        typer.echo("no pending snapshots", err=True)
    elif not (as_json or as_list):
        for line in done.lines(len(edits)):
            typer.echo(escape_controls(line), err=True)
    if done.left or done.rejected:
        raise typer.Exit(1)


def read_edits(pending: Path, top: Path) -> list[Edit]:
    """Return the pending snapshots of a file, all of them below `top`.

    Raises SettingsError for a file that cannot be read or is not such a list, SnapshotError for one that would change
    anything else.
    """
    from pytest_promptfmt.results.pending import read_pending

    try:
        text = gate.read_text(pending)
    except OSError as error:
        raise SettingsError(f"{display_path(pending)} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"not UTF-8 at byte {error.start}", position=Position(pending)) from error
    return [_require_ours(edit, top) for edit in read_pending(text, pending, top)]


@dataclass(slots=True)
class Reviewed:
    """The decisions of a review: the rejected edits, and those left for another time."""

    rejected: list[Edit] = field(default_factory=list)
    left: list[Edit] = field(default_factory=list)

    def lines(self, total: int) -> Iterator[str]:
        """Yield what is to be fixed, each cause once, and the counts."""
        yield from rejected_lines(self.rejected)
        rejected = f", {len(self.rejected):,} rejected" if self.rejected else ""
        left = f", {len(self.left):,} left" if self.left else ""
        accepted = total - len(self.rejected) - len(self.left)
        yield f"{accepted:,} of {total:,} snapshots accepted{rejected}{left}"


def rejected_lines(rejected: Iterable[Edit | Problem]) -> Iterator[str]:
    """Yield what is to be fixed, each cause once with its tasks."""
    same: dict[tuple[str, str], list[Edit | Problem]] = {}
    for each in rejected:
        same.setdefault((each.category, each.key or each.title), []).append(each)
    for first, *others in same.values():
        yield f"rejected, to be fixed: {first.title or first.category}"
        yield f"    {listed([f'{each.task} [{each.profile}]' for each in (first, *others)], SHOWN_TASKS)}"


def edits_of_run(arguments: Sequence[str], *, folder: Path) -> list[Edit]:
    """Return what accepting would do after a run of pytest in a folder; raises SettingsError where it did not run."""
    from pytest_promptfmt.cli.display import waiting
    from pytest_promptfmt.results.pending import read_pending, top_of

    top = top_of(folder)
    with TemporaryDirectory(prefix="promptfmt-") as scratch:
        file = Path(scratch, "pending.jsonl")
        quiet = ["-q", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider"]
        quiet += ["-o", "promptfmt_lint=false", "-o", "python_files="]  # nothing but snapshots
        command = [sys.executable, "-m", "pytest", "--promptfmt", *quiet, f"--promptfmt-pending={file}", *arguments]
        with waiting("running the tests"):
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
        if done.returncode not in (0, 1, 5) or not file.exists():
            raise SettingsError(f"pytest ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-2000:]}")
        text = file.read_text("utf-8")
    return [_require_ours(edit, top) for edit in read_pending(text, Path("pending"), top)]


def _require_ours(edit: Edit, top: Path) -> Edit:
    """Return the edit; raises SnapshotError for a file that is not a snapshot below `top`."""
    from pytest_promptfmt.snapshots.expected import is_snapshot_location
    from pytest_promptfmt.snapshots.paths import require_no_link

    path = Path(os.path.normpath(edit.path))
    try:
        with gate.limited_to([top]):
            os.fsencode(path)
            gate.allowed(gate.named("", str(path)) if "\0" in str(path) else path)
            require_no_link(path)
            is_ours = is_snapshot_location(str(path)) and all(len(os.fsencode(part)) < 256 for part in path.parts)
    except (OSError, ValueError):  # another place, a link, or a name that no file can have
        is_ours = False
    if not is_ours:
        raise SnapshotError("not a snapshot of this project, so it is not touched", position=Position(edit.path))
    return edit


def _accepted(edits: Sequence[Edit], globs: Sequence[str]) -> Reviewed:
    """Accept the edits that the globs match, leave the rest; raises SettingsError for a glob that matches nothing."""
    left = []
    used: set[str] = set()
    for edit in edits:
        matching = [
            glob for glob in globs if fnmatchcase(edit.task, glob) or fnmatchcase(display_path(edit.path), glob)
        ]
        used.update(matching)
        if not matching or not accept_edit(edit):
            left.append(edit)
    for glob in globs:
        if glob not in used:
            known = [*dict.fromkeys(edit.task for edit in edits)]
            message = f"--accept {glob!r} matches none of {len(edits):,} snapshots"
            raise SettingsError(message, hint=did_you_mean(glob, known))
    return Reviewed(left=left)


def _asked(edits: Sequence[Edit]) -> Reviewed:
    """Ask about each edit, or once about those with the same change."""
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False)
    done = Reviewed()
    decided: dict[tuple[str, str], str] = {}
    for number, edit in enumerate(edits, 1):
        same = (edit.category, edit.key)
        answer = decided.get(same, "") if edit.key else ""
        if not answer:
            _show(console, edit, number, len(edits))
            more = sum((other.category, other.key) == same for other in edits[number:]) if edit.key else 0
            answer = _answer(more)
            if answer == "q":
                done.left += edits[number - 1 :]
                break
            if answer.isupper():
                decided[same] = answer
        if answer in "rR":
            done.rejected.append(edit)
        elif answer in "sS" or not accept_edit(edit):
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
                typer.echo(_HINT, err=True)
            return "q"
        if answer and answer in "arsARS":
            return answer if same else answer.lower()
        if answer in ("q", "Q"):
            return "q"


def _show(console: Console, edit: Edit, number: int, count: int) -> None:
    from rich.text import Text

    whose = f", {edit.task} [{edit.profile}]" if edit.profile else ""
    console.print(Text(escape_controls(f"{number} of {count}: {edit.category}{whose}"), "bold"))
    console.print(Text(escape_controls(display_path(edit.path))))
    if edit.category in ("changed", "renamed", "error", "damaged"):
        console.print(Text(escape_controls(edit.title), "dim"))
    for line in _difference(edit):
        console.print(line)


def _difference(edit: Edit) -> Iterator[Text]:
    from pytest_promptfmt.cli.display import diff_lines
    from pytest_promptfmt.snapshots.changes import unified_diff
    from pytest_promptfmt.snapshots.document import read_document

    try:
        old, new = ((side or b"").decode() for side in (edit.old, edit.new))
        if edit.old is not None and edit.new is not None:
            yield from diff_lines(unified_diff(read_document(old, edit.path), read_document(new, edit.path)))
            return
    except (UnicodeDecodeError, SnapshotError):
        old, new = ((side or b"").decode(errors="replace") for side in (edit.old, edit.new))
    yield from diff_lines([*(f"-{line}" for line in old.splitlines()), *(f"+{line}" for line in new.splitlines())])


def accept_edit(edit: Edit) -> bool:
    """Write or delete the file; return False, and print why, where it has changed since the edit was made."""
    from pytest_promptfmt.core.files import write_atomically
    from pytest_promptfmt.snapshots.paths import delete_snapshot, read_snapshot, require_no_link

    try:
        now = read_snapshot(str(edit.path))
        if now == edit.new:
            return True
        if now != edit.old:
            typer.echo(escape_controls(f"{display_path(edit.path)} has changed since; run the tests again"), err=True)
            return False
        if edit.new is None:
            delete_snapshot(edit.path)
        else:
            edit.path.parent.mkdir(parents=True, exist_ok=True)
            require_no_link(edit.path)
            write_atomically(edit.path, edit.new)
    except OSError as error:
        typer.echo(escape_controls(f"{display_path(edit.path)}: {error.strerror or error}"), err=True)
        return False
    return True


def _as_data(edit: Edit) -> dict[str, str]:
    return {
        "path": display_path(edit.path),
        "category": edit.category,
        "task": edit.task,
        "profile": edit.profile,
        "title": edit.title,
    }
