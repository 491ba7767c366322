"""Where a snapshot is, one file for each task@format and profile, safe on Linux, macOS and Windows; and that file."""

from __future__ import annotations

import os
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote_to_bytes

from pytest_promptfmt.core import gate, writing
from pytest_promptfmt.core.errors import Position, SnapshotError
from pytest_promptfmt.core.git import git, has_repository

DIRECTORY: Final = "__prompts__"
SUFFIX: Final = ".txt"
MAX_NAME_BYTES: Final = 255
MAX_BYTES: Final = 64 * 2**20
"""The largest snapshot that is read."""

_UNSAFE = re.compile(rb"[^A-Za-z0-9_.@+=,-]")
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SnapshotPath:
    """Where one snapshot is. `name` is what syrupy calls it: `arc@mcqa/plain`."""

    path: str
    name: str


@dataclass(frozen=True, slots=True)
class Tree:
    """Where the `__prompts__` folders are: next to the task files, or below `mirror`, which mirrors the rootdir."""

    rootdir: Path = Path()
    mirror: Path | None = None

    def directory(self, folder: Path) -> Path:
        """Return the `__prompts__` folder for the task files of a folder; those outside the rootdir have it there."""
        if self.mirror is None or not folder.is_relative_to(self.rootdir):
            return folder / DIRECTORY
        return self.mirror / folder.relative_to(self.rootdir) / DIRECTORY

    def folder_of(self, directory: Path) -> Path:
        """Return the folder of the task files whose snapshots are in a `__prompts__` folder."""
        if self.mirror is None or not directory.is_relative_to(self.mirror):
            return directory.parent
        return self.rootdir / directory.parent.relative_to(self.mirror)

    def folder(self, task_file: Path) -> Path:
        """Return the folder of all snapshots of a task file."""
        return self.directory(task_file.parent) / task_file.stem

    def path(self, task_file: Path, task_id: str, profile: str) -> Path:
        """Return where the snapshot of a task is: `__prompts__/<file stem>/<task@format>/<profile>.txt`."""
        return self.folder(task_file) / encode_name(task_id) / f"{encode_name(profile)}{SUFFIX}"

    def is_left(self, directory: Path) -> bool:
        """Return whether a `__prompts__` folder next to the task files is left from before there was a mirror."""
        return self.mirror is not None and not directory.is_relative_to(self.mirror)


BESIDE: Final = Tree()
"""Snapshots next to their task files."""


def encode_name(name: str) -> str:
    """Return `name` as a file name, different for different names.

    What is unsafe on one of the systems is percent-encoded: all but ASCII letters, digits and `_.@+=,-`, a dot at
    either end, the first letter of a Windows device name. The empty name is `%`.
    """
    encoded = _UNSAFE.sub(lambda match: b"%%%02X" % match[0][0], name.encode("utf-8", "surrogatepass")).decode("ascii")
    if not encoded:
        return "%"
    if encoded.endswith("."):
        encoded = encoded[:-1] + "%2E"
    if encoded.startswith(".") or _RESERVED.fullmatch(encoded):
        encoded = f"%{ord(encoded[0]):02X}{encoded[1:]}"
    return encoded


def decode_name(encoded: str) -> str:
    """Return the name that `encode_name` was given; undefined for other file names."""
    return "" if encoded == "%" else unquote_to_bytes(encoded).decode("utf-8", "surrogateescape")


class Claims:
    """Which test writes which file: each file has one, also where letter case and Unicode form do not count."""

    def __init__(self) -> None:
        self._claimants: dict[str, str] = {}

    def claim(self, path: Path, who: str, position: Position | None = None) -> None:
        """Reserve `path` for `who`.

        Raises SnapshotError, naming both, when another holds it, and when a part of it is too long for a file name.
        """
        for part in path.parts[-3:]:
            if len(part.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
                raise SnapshotError(
                    f"{who} needs a snapshot file with a name longer than {MAX_NAME_BYTES} bytes: {part[:40]!r}…",
                    position=position,
                    hint="shorten the name of the task or profile",
                )
        other = self._claimants.setdefault(folded(str(path)), who)
        if other != who:
            raise SnapshotError(
                f"{who} and {other} would write the same snapshot file {path.parent.name}/{path.name}"
                + (", because they differ only by letter case" if other.casefold() == who.casefold() else ""),
                position=position,
                hint="rename one of them",
            )

    def hold(self, path: Path) -> bool:
        """Return whether `path` is reserved."""
        return folded(str(path)) in self._claimants


def folded(name: str) -> str:
    """Return what names have in common that are one where letter case and Unicode form do not count."""
    return unicodedata.normalize("NFC", name).casefold()


def read_snapshot(path: str) -> bytes | None:
    """Return the content of a file, None where there is none; raises OSError for one that cannot be read.

    A link is never followed, be it the file or a folder of our tree.
    """
    require_no_link(path)
    try:
        return gate.read_bytes(path, limit=MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None


def require_no_link(path: str | Path) -> None:
    """Raise RefusedError where the file, or a folder from `__prompts__` on, is a link: it would lead elsewhere."""
    part = str(path)
    for _ in range(4):  # the file, the folders of the task and of its file, and `__prompts__`
        if os.path.islink(part):  # noqa: PTH114  # thousands of calls
            what = "the snapshot is a link" if part == str(path) else f"the folder {os.path.basename(part)} is a link"
            raise gate.RefusedError(f"{what}, but snapshots must be regular files", path)
        part, name = os.path.split(part)
        if name == DIRECTORY:
            break


_written: Final[dict[str, bytes]] = {}


def write_snapshot(path: str | Path, content: str | bytes) -> None:
    """Write a file, whole or not at all; raises OSError, also where a link or another place is in the way."""
    require_no_link(path)
    writing.write(path, content)
    note_written(path, content)


def note_written(path: str | Path, content: str | bytes) -> None:
    """Note the content of a file that this process wrote."""
    _written[str(path)] = content if isinstance(content, bytes) else content.encode()


def take_written() -> dict[str, bytes]:
    """Return the files that this process wrote since the last call, with their contents."""
    taken = dict(_written)
    _written.clear()
    return taken


def delete_snapshot(path: Path) -> None:
    """Delete a file, and up to three folders above it that are then empty; raises OSError as `write_snapshot`."""
    require_no_link(path)
    writing.remove(path, empty_folders=3)


# -- git: files that a sparse checkout leaves out ----------------------------------------------------------------------


def absent_files(folder: Path) -> frozenset[str]:
    """Return the absolute paths of the files below a folder that git marks skip-worktree; none outside a repository.

    They are tracked and merely absent, so their snapshots are still needed. Raises GitError where git gives no answer.
    """
    if not has_repository(folder):
        return frozenset()
    entries = os.fsdecode(git(folder, "ls-files", "-t", "-z")).split("\0")
    return frozenset(os.path.join(folder, entry[2:]) for entry in entries if entry.startswith("S "))
