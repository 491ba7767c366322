"""Snapshots that wait to be accepted: as a patch for git, as JSON lines for a review, and those of the last run.

Rendering is deterministic, so a run in CI makes the same bytes that a run at a desk would write. The last run of each
rootdir is kept in the user's private cache folder, since its options become options of pytest: `promptfmt accept` and
`reject` settle what it found without testing everything again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from difflib import diff_bytes, unified_diff
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core import gate, writing
from pytest_promptfmt.core.errors import Position, SettingsError, SnapshotError, display_path, raising
from pytest_promptfmt.core.files import private_directory
from pytest_promptfmt.core.json_values import value_of
from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.snapshots.expected import is_snapshot_location
from pytest_promptfmt.snapshots.lock import FILE_NAME as LOCK_NAME
from pytest_promptfmt.snapshots.paths import delete_snapshot, read_snapshot, require_no_link, write_snapshot

ACCEPTABLE: Final = ("new", "changed", "renamed", "damaged", "header-only", "obsolete")
"""The categories that --snapshot-update settles."""

_QUOTED: Final = b'"\\'
_WORDS: Final = ("category", "task", "profile", "key", "title")
_NO_END: Final = b"\n\\ No newline at end of file\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Edit:
    """One file as it is (`old`, None if missing) and as it would be (`new`, None if it would be deleted).

    `category`, `key` and `title` are those of the cluster that the change belongs to.
    """

    path: Path
    old: bytes | None
    new: bytes | None
    category: str = "changed"
    task: str = ""
    profile: str = ""
    key: str = ""
    title: str = ""

    @property
    def is_lock(self) -> bool:
        """Return whether the edit writes `promptfmt.lock`, which goes with the snapshots that are accepted."""
        return self.path.name == LOCK_NAME and self.new is not None


# -- the patch ---------------------------------------------------------------------------------------------------------


def git_patch(edits: Iterable[Edit], top: Path) -> bytes:
    """Return a patch that `git apply` takes at the folder `top`, without files that lie outside it.

    Names are quoted as git quotes them; files without a line end at their end stay so.
    """
    changed = [edit for edit in edits if edit.old != edit.new and edit.path.is_relative_to(top)]
    return b"".join(_file_patch(edit, top) for edit in sorted(changed, key=lambda edit: str(edit.path)))


def _file_patch(edit: Edit, top: Path) -> bytes:
    name = edit.path.relative_to(top).as_posix()
    before, after = _quoted(f"a/{name}"), _quoted(f"b/{name}")
    head = f"diff --git {before} {after}\n"
    head += "new file mode 100644\n" if edit.old is None else "deleted file mode 100644\n" if edit.new is None else ""
    # After a name with a space a tab ends the name, as git writes it itself.
    first, second = (
        b"/dev/null" if content is None else name.encode() + (b"\t" if " " in name and name[0] != '"' else b"")
        for name, content in ((before, edit.old), (after, edit.new))
    )
    # Only a line feed ends a line for git.
    old, new = (re.findall(rb"[^\n]*\n|[^\n]+", content or b"") for content in (edit.old, edit.new))
    lines = diff_bytes(unified_diff, old, new, first, second)
    return head.encode() + b"".join(line if line.endswith(b"\n") else line + _NO_END for line in lines)


def _quoted(name: str) -> str:
    """Return a path as a patch has it: as it is, or in quotes with octal bytes where git would quote it."""
    raw = name.encode("utf-8", "surrogateescape")
    shown = [chr(byte) if 32 <= byte < 127 and byte not in _QUOTED else f"\\{byte:03o}" for byte in raw]
    return name if "".join(shown) == name else f'"{"".join(shown)}"'


# -- the list for a review ---------------------------------------------------------------------------------------------


def write_pending(edits: Iterable[Edit], top: Path) -> str:
    """Return the edits as JSON lines, the paths relative to `top` where they lie below it."""
    lines = []
    for edit in edits:
        path = edit.path.relative_to(top) if edit.path.is_relative_to(top) else edit.path
        contents = {
            name: None if content is None else content.decode("latin-1")
            for name, content in (("old", edit.old), ("new", edit.new))
        }
        lines.append({"path": path.as_posix(), **{name: getattr(edit, name) for name in _WORDS}, **contents})
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def _edit(entry: Mapping[str, Any], top: Path) -> Edit:
    old, new = (None if entry[name] is None else entry[name].encode("latin-1") for name in ("old", "new"))
    return Edit(path=top / entry["path"], old=old, new=new, **{name: str(entry[name]) for name in _WORDS})


def read_edits(path: Path, top: Path) -> list[Edit]:
    """Return the edits of a file that `write_pending` made: of snapshots and of the lock, all of them below `top`.

    Raises SettingsError for a file that cannot be read or is not such a list, SnapshotError for one that would change
    anything else.
    """
    hint = None if path.exists() else gate.missing_hint(path)
    with raising(SettingsError, f"{display_path(path)} cannot be read", hint=hint):
        text = gate.read_text(path)
    edits = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            edits.append(_edit(json.loads(line), top))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            hint = "to write such a file, use --promptfmt-write pending=FILE"
            raise SettingsError(
                "not a line of pending snapshots", position=Position(path, number), hint=hint
            ) from error
        if not _is_ours(edits[-1], top):
            where = Position(edits[-1].path)
            raise SnapshotError("not a snapshot of this project, so it was not changed", position=where)
    return edits


def _is_ours(edit: Edit, top: Path) -> bool:
    path = Path(os.path.normpath(edit.path))
    try:
        with gate.limited_to([top]):
            os.fsencode(path)
            gate.allowed(gate.named("", str(path)) if "\0" in str(path) else path)
            require_no_link(path)
            is_named = edit.is_lock or is_snapshot_location(str(path))
            return is_named and all(len(os.fsencode(part)) < 256 for part in path.parts)
    except (OSError, ValueError):  # another place, a link, or a name that no file can have
        return False


def accept_edit(edit: Edit) -> str:
    """Write or delete the file; return why that is not possible, "" where it is done."""
    try:
        now = read_snapshot(str(edit.path))
        if now == edit.new:
            return ""
        if now != edit.old:
            return " has changed since; run the tests again"
        if edit.new is None:
            delete_snapshot(edit.path)
        else:
            write_snapshot(edit.path, edit.new)
    except OSError as error:
        return f": {error.strerror or error}"
    return ""


# -- the last run ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One snapshot that differs, as its outcome describes it; `path` is the task file, or the obsolete snapshot."""

    path: str
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


def last_run_of(rootdir: Path, outcomes: Iterable[Outcome], options: Sequence[str]) -> LastRun:
    """Return what is kept of a run that ends in the working directory."""
    found = [outcome for outcome in outcomes if outcome.category in ACCEPTABLE]
    problems = tuple(Problem(path=each.file, **{name: getattr(each, name) for name in _WORDS}) for each in found)
    return LastRun(rootdir=str(rootdir), folder=str(Path.cwd()), options=tuple(options), problems=problems)


def keep_last_run(run: LastRun) -> None:
    """Keep this run in place of the one before it, where anything can be kept."""
    folder = private_directory("last-runs")
    if folder is None:
        return
    with suppress(OSError):
        writing.write(folder / _name(Path(run.rootdir)), json.dumps(asdict(run)), also=[folder])
        files = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime)
        for old in files[:-100]:  # those of a hundred rootdirs are kept
            writing.remove(old, also=[folder])


def last_run_around(here: Path) -> LastRun | None:
    """Return the last run in the nearest rootdir at or above a folder, None if there was none."""
    folder = private_directory("last-runs")
    if folder is None:
        return None
    for rootdir in (here, *here.parents):
        with suppress(OSError, ValueError, KeyError, TypeError):
            return value_of(LastRun, json.loads((folder / _name(rootdir)).read_bytes()))
    return None


def _name(rootdir: Path) -> str:
    return f"{sha256(str(rootdir).encode('utf-8', 'surrogateescape')).hexdigest()[:32]}.json"
