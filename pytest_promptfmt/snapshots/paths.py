"""Where a snapshot is, one file for each task@format and profile, safe on Linux, macOS and Windows; and that file."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote_to_bytes

from pytest_promptfmt.core.errors import Position, SnapshotError

DIRECTORY: Final = "__prompts__"
SUFFIX: Final = ".txt"
MAX_NAME_BYTES: Final = 255
_UNSAFE = re.compile(rb"[^A-Za-z0-9_.@+=,-]")
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Place:
    """Where one snapshot is. `name` is what syrupy calls it: `arc@mcqa/plain`."""

    path: str
    name: str


def snapshot_path(task_file: Path, task_id: str, profile: str) -> Path:
    """Return where the snapshot of a task is: `__prompts__/<file stem>/<task@format>/<profile>.txt`."""
    return snapshot_folder(task_file) / encode_name(task_id) / f"{encode_name(profile)}{SUFFIX}"


def snapshot_folder(task_file: Path) -> Path:
    """Return the folder of all snapshots of a task file."""
    return task_file.parent / DIRECTORY / task_file.stem


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
                    f"{who} needs a snapshot file named {part[:40]!r}…, longer than {MAX_NAME_BYTES} bytes",
                    position=position,
                    hint="shorten the name of the task or profile",
                )
        other = self._claimants.setdefault(_folded(path), who)
        if other != who:
            raise SnapshotError(
                f"{who} and {other} would write the same snapshot file {path.parent.name}/{path.name}"
                + (", because they differ only by letter case" if other.casefold() == who.casefold() else ""),
                position=position,
                hint="rename one of them",
            )

    def hold(self, path: Path) -> bool:
        """Return whether `path` is reserved."""
        return _folded(path) in self._claimants


def _folded(path: Path) -> str:
    return unicodedata.normalize("NFC", str(path)).casefold()


def read_snapshot(path: str) -> bytes | None:
    """Return the content of a file, None where there is none; raises OSError for one that cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def delete_snapshot(path: Path) -> None:
    """Delete a file, and up to three folders above it that are then empty."""
    path.unlink(missing_ok=True)
    for folder in list(path.parents)[:3]:
        try:
            folder.rmdir()
        except OSError:
            return
