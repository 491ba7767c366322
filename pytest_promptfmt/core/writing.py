"""The one way to write and remove files: whole or not at all, never through a link, in an allowed place.

A run writes below the folders that it may open (`gate.limit_to`), and to places that the user typed or keeps a cache
in (`also`). Without such a limit, as in commands that run nothing, a file may be anywhere. In either case a path into
the repository is refused where a link leads out of it, and so are git's own folder, and links, devices, FIFOs and
folders in place of the file. Refusals are `gate.RefusedError`, an OSError.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.gate import RefusedError

_TEMPORARY: Final = re.compile(r"\.promptfmt-([0-9]{1,10})-[0-9]+\.tmp")
"""The names of files that are being written, with the number of the process that writes them."""

_FLAGS: Final = os.O_WRONLY | os.O_CREAT | gate.FLAGS
_GIT: Final = (".git", "git~1")
"""The names of git's own folder, the second on Windows."""

_numbers = itertools.count()


def write(path: Path | str, content: bytes | str, *, also: Iterable[Path] = ()) -> None:
    """Write a file in one step, with the missing folders above it: readers see the old content or the new one.

    Text is written as UTF-8. A file that is there keeps its permissions. `also` are allowed folders and files in
    addition to those of the run. Raises RefusedError and OSError, and then leaves nothing behind.
    """
    place, mode = _place_of_file(path, also)
    _sweep_once(place.parent)
    # The name does not contain that of the file, which may be as long as a file name can be.
    temporary = place.with_name(f".promptfmt-{os.getpid()}-{next(_numbers)}.tmp")
    try:
        with _opened(temporary, os.O_EXCL, mode) as file:
            file.write(content.encode() if isinstance(content, str) else content)
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(place)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def append(path: Path | str, content: bytes, *, also: Iterable[Path] = ()) -> None:
    """Add to the end of a file that other programs write as well; raises as `write`."""
    with _opened(_place_of_file(path, also)[0], os.O_APPEND) as file:
        file.write(content)


def create(path: Path | str, *, also: Iterable[Path] = ()) -> BinaryIO:
    """Return a new file, opened for writing; raises as `write`, and FileExistsError."""
    return _opened(_place_of_file(path, also)[0], os.O_EXCL)


def remove(path: Path | str, *, empty_folders: int = 0, also: Iterable[Path] = ()) -> None:
    """Remove a file if it is there, and up to so many folders above it that are then empty; raises as `write`."""
    place = _place(path, also)
    place.unlink(missing_ok=True)
    with suppress(OSError):
        for folder in list(place.parents)[:empty_folders]:
            folder.rmdir()


def require_allowed(path: Path | str) -> None:
    """Raise RefusedError where no file of this name may be written."""
    _place(path, ())


def _opened(place: Path, flag: int, mode: int | None = None) -> BinaryIO:
    return os.fdopen(os.open(place, _FLAGS | flag, 0o666 if mode is None else mode), "wb")


def _place_of_file(path: Path | str, also: Iterable[Path]) -> tuple[Path, int | None]:
    """Return the place of a file in a folder that is there, and the permissions of the file, None for a new one."""
    place = _place(path, also)
    try:
        status = place.lstat()
    except FileNotFoundError:
        place.parent.mkdir(parents=True, exist_ok=True)
        return place, None
    if not stat.S_ISREG(status.st_mode):
        raise RefusedError(
            f"the path is {gate.kind_of(status)}, not a regular file; remove it, or choose another path", path
        )
    return place, status.st_mode & 0o777


# -- where -------------------------------------------------------------------------------------------------------------


def top_of(folder: Path) -> Path:
    """Return the top folder of the git work tree around a folder, else the folder itself."""
    return next((each for each in (folder, *folder.parents) if (each / ".git").exists()), folder)


def leads_out(path: Path | str, root: Path) -> bool:
    """Return whether a path is, as it is written, in the repository, but links lead out of it.

    That is the one around the root, or the root itself, and the one around the working directory, if any: which folder
    is the root can depend on files of the repository.
    """
    real = os.path.realpath(path)
    others = [top for top in _tops(root, Path.cwd()) if not gate.is_below(real, (top,))]
    if not others:
        return False
    written = Path(os.path.abspath(path))
    return any(gate.real_folder(str(each)) in others for each in (written, *written.parents))


@lru_cache(maxsize=64)
def _tops(root: Path, here: Path) -> frozenset[str]:
    around = top_of(here)
    tops = (top_of(root), around) if (around / ".git").exists() else (top_of(root),)
    return frozenset(map(os.path.realpath, tops))


def _place(path: Path | str, also: Iterable[Path]) -> Path:
    """Return the path with the links above it followed; raises RefusedError where nothing may be written."""
    try:
        is_name = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:  # half of a surrogate pair
        is_name = False
    if not is_name:
        raise RefusedError("no file can have this name")
    folder, name = os.path.split(os.path.abspath(path))
    place = Path(os.path.realpath(folder), name)
    if reason := _refusal(place, folder, also):
        raise RefusedError(reason, path)
    return place


def _refusal(place: Path, folder: str, also: Iterable[Path]) -> str:
    """Return why nothing is written to a place, empty where something may be; `folder` is its folder as written."""
    if place.is_symlink():
        return "the path is a symbolic link; remove the link, or choose another path"
    if gate.is_of_the_system(str(place)):
        return "files of the operating system are never written"
    if _is_of_git(place):
        return "the path is in the .git folder"
    limit = gate.allowed_folders()
    if leads_out(folder, Path(limit[0]) if limit else Path.cwd()):
        return "a folder of the path is a link to a place outside the repository; write the real path"
    if limit is not None and not gate.is_below(str(place), (*limit, *map(os.path.realpath, also))):
        return "the path is outside the rootdir; such a path is allowed only on the command line"
    return ""


def _is_of_git(place: Path) -> bool:
    """Return whether a place is in git's own folder of a work tree, or is that folder."""
    if not any(part.casefold() in _GIT for part in place.parts):
        return False
    for each in (place, *place.parents):
        if each.name.casefold() in _GIT:
            return True
        if os.path.lexists(each / ".git"):
            return False
    return False


# -- files that a killed process leaves behind -------------------------------------------------------------------------


def remove_left_over(folder: Path | str) -> None:
    """Remove the temporary files of ours in a folder whose process has ended before it could rename them."""
    with suppress(OSError):
        _sweep(_place(Path(folder, "-"), ()).parent)


def _sweep(folder: Path) -> None:
    with suppress(OSError):
        with os.scandir(folder) as entries:
            left = [Path(entry) for entry in entries if is_left_over(entry.name)]
        for path in left:
            path.unlink(missing_ok=True)


_sweep_once: Final = lru_cache(maxsize=8192)(_sweep)


def is_left_over(name: str) -> bool:
    """Return whether a file is a temporary one of ours whose process has ended."""
    match = _TEMPORARY.fullmatch(name)
    return match is not None and not _is_running(int(match[1]))


def _is_running(process: int) -> bool:
    if process == os.getpid() or os.name == "nt":  # on Windows os.kill would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass  # of another user, or no number of a process
    return True
