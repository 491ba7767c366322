"""What is in files and folders, as digests; a file is read again only where its stamp says that it may have changed.

A stamp is what the file system tells of a file without reading it: size, both times, number. One that is younger than
the clock of the file system can tell apart proves nothing, so it is never kept.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.files import cache_directory, hub_cache
from pytest_promptfmt.engine.facts import is_fact, value_of

ABSENT: Final = "-"
"""The digest of what does not exist."""

FOLDER: Final = "/"
"""The digest of a folder whose names do not count."""

OTHER: Final = ""
"""In place of a digest: what is no ordinary file or folder, or cannot be read. It is never the same as before."""

_SETTLED_NS: Final = 2_000_000_000
"""How old the times of a file must be to tell it from a later one: some file systems count in steps of two seconds."""

_MOST_BYTES: Final = 2**30

_UNCOUNTED: Final = (".", "__")
"""How names in a folder begin that do not count."""

Stamp = tuple[int, int, int, int]
"""Size, time of the last change of content and of the file itself in nanoseconds, and number."""

Input = tuple[str, str, Stamp | None]
"""A path, the digest of what is there, and its stamp where that is settled. The path of a folder whose names
count ends with a slash; those that begin with a dot or two underscores never do."""


class Contents:
    """The contents of files and folders as this run meets them: each is looked at once."""

    def __init__(self) -> None:
        self._found: dict[str, Input] = {}
        self._taken: set[str] = set()
        self._facts: dict[str, str] = {}
        self._real: dict[str, str] = {}
        self._stamps: dict[str, str] = {}
        self.began = time.time_ns()

    def take(self, folder: str) -> None:
        """Look at a folder now: what it holds at the end of the run is to be the same."""
        self.input(folder)
        self._taken.add(folder)

    def input(self, path: str) -> Input:
        """Return a path with what is there now; of a folder, whose path ends with a slash, the names in it count."""
        known = self._found.get(path)
        if known is None:
            known = self._found[path] = self._look(path, None)
        return known

    def is_same(self, before: Sequence[object]) -> bool:
        """Return whether a path holds what it held when an `Input` was written; raises nothing, whatever that says."""
        try:
            path, digest, stamp = before
        except ValueError:
            return False
        if not isinstance(path, str) or not isinstance(digest, str) or digest == OTHER:
            return False
        known = self._found.get(path)
        if known is None:
            settled = tuple(stamp) if isinstance(stamp, list | tuple) else None
            known = self._found[path] = self._look(path, (digest, settled))
        return known[1] == digest

    def all(self, paths: Iterable[str]) -> list[Input] | None:
        """Return the inputs of these paths; None where one of them may have changed since this run began."""
        inputs = [self.input(path) for path in sorted(self._without_implied(set(paths)))]
        return None if any(self._is_young(each) for each in inputs) else inputs

    def _without_implied(self, paths: set[str]) -> Iterator[str]:
        """Yield the paths without those whose absence follows from other ones.

        That is so in a folder whose names count; and below one that is not there either, which stands for them all. A
        link to nothing is a name, and what it leads to may appear elsewhere.
        """
        absent: set[str] = set()
        for path in paths:
            if is_fact(path) or self.input(path)[1] != ABSENT:
                yield path
                continue
            folder, _, name = path.rstrip("/").rpartition("/")
            while folder and self.input(folder)[1] == ABSENT:
                path = folder
                folder, _, name = folder.rpartition("/")
            if f"{folder}/" not in paths or name.startswith(_UNCOUNTED) or os.path.lexists(path):
                absent.add(path)
        yield from absent

    def stamps(self, paths: Iterable[str]) -> str | None:
        """Return what `stamps_now` returns as long as these paths hold what this run saw, None where nobody knows.

        The stamp of a file that has just changed proves nothing.
        """
        parts: list[str] = []
        for path in paths:
            is_new = path not in self._found
            found = self.input(path)
            if is_new and not self.is_older(path):
                return None
            if path in self._taken:  # what is compiled or written beside the files of a folder is no name in it
                now = self._look(path, None)
                found = now if now[1] == found[1] else (path, OTHER, None)
            if found[1] == OTHER or (found[2] is None and found[1] != ABSENT and not is_fact(path)):
                return None
            parts.append(found[1] if found[2] is None else _written(found[2]))
        return _digest_of_stamps(parts)

    def stamps_now(self, paths: Iterable[str], is_shared: Callable[[str], bool]) -> str:
        """Return the digest of the stamps of files and folders as they are now, and of facts as this run found them.

        What `is_shared` by many is looked at once; the stamps of the others, which are most, are not kept.
        """
        known = self._stamps
        return _digest_of_stamps(
            (known.get(path) or self._stamp_now(path)) if is_shared(path) else _stamp_of(path) for path in paths
        )

    def _stamp_now(self, path: str) -> str:
        stamp = self._stamps[path] = self._fact(path) if is_fact(path) else _stamp_of(path)
        return stamp

    def _fact(self, fact: str) -> str:
        if fact not in self._facts:  # the names in a cache are many
            self._facts[fact] = digest_of(value_of(fact).encode("utf-8", "backslashreplace"))
        return self._facts[fact]

    def is_older(self, path: str) -> bool:
        """Return whether a path has not changed since this run began."""
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            return True
        return max(status.st_mtime_ns, status.st_ctime_ns) < self.began

    def _is_young(self, found: Input) -> bool:
        if found[1] == OTHER or is_fact(found[0]):
            return found[1] == OTHER
        if found[0] in self._taken:
            return self._look(found[0], None)[1] != found[1]
        try:
            status = os.stat(found[0])
        except OSError:
            return found[1] != ABSENT
        same = found[2] is None or found[2] == _stamp(status)
        return not same or max(status.st_mtime_ns, status.st_ctime_ns) >= self.began

    def _look(self, path: str, before: tuple[str, object] | None) -> Input:
        if is_fact(path):
            return path, self._fact(path), None
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return path, ABSENT, None
        except (OSError, ValueError) as error:
            is_no_name = getattr(error, "errno", None) == errno.ENAMETOOLONG
            return path, ABSENT if is_no_name else OTHER, None
        stamp = _stamp(status)
        if before is not None and before[1] == stamp:
            return path, before[0], stamp
        is_settled = time.time_ns() - max(stamp[1], stamp[2]) > _SETTLED_NS
        try:
            digest, has_links = _listed(path) if path.endswith("/") else (_read(path, status), False)
            real = self._led_to(path.rstrip("/"))
        except OSError:
            return path, OTHER, None
        if real != path.rstrip("/"):
            digest = digest_of(f"{digest} {real}".encode("utf-8", "surrogateescape"))  # messages name where it is
        return path, digest, stamp if is_settled and not has_links else None

    def _led_to(self, path: str) -> str:
        """Return where a path leads; where its folder does is looked up once."""
        if stat.S_ISLNK(os.lstat(path).st_mode):
            return os.path.realpath(path)
        folder, name = os.path.split(path)
        if folder not in self._real:
            self._real[folder] = os.path.realpath(folder)
        return os.path.join(self._real[folder], name)


def _stamp_of(path: str) -> str:
    try:
        return _written(_stamp(os.stat(path)))
    except (FileNotFoundError, NotADirectoryError):
        return ABSENT
    except (OSError, ValueError) as error:
        return ABSENT if getattr(error, "errno", None) == errno.ENAMETOOLONG else OTHER


def _written(stamp: Stamp) -> str:
    size, changed, made, number = stamp
    return f"{size} {changed} {made} {number}"


def _digest_of_stamps(stamps: Iterable[str]) -> str:
    return digest_of("\n".join(stamps).encode())


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _listed(path: str) -> tuple[str, bool]:
    """Return the digest of the names in a folder and of where links among them lead, and whether there are links.

    What is opened through a link is known by the name of the file that it led to.
    """
    names, links = [], []
    with os.scandir(path) as entries:
        for entry in entries:
            if not entry.name.startswith(_UNCOUNTED):
                names.append(entry.name)
                if entry.is_symlink():
                    links.append(f"{entry.name}/{Path(entry.path).exists()}/{os.path.realpath(entry.path)}")
    digest = digest_of("\0".join([*sorted(names), "", *sorted(links)]).encode("utf-8", "surrogateescape"))
    return digest, bool(links)


def _read(path: str, status: os.stat_result) -> str:
    if stat.S_ISDIR(status.st_mode):
        return FOLDER
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
        return OTHER
    made = blake2b(digest_size=16)
    with gate.open_file(path, limit=_MOST_BYTES, also=_folders_of_programs()) as file:
        while part := file.read(1 << 20):
            made.update(part)
    return made.hexdigest()


def _folders_of_programs() -> tuple[Path, ...]:
    """Return where a run reads besides what it may open for the repository: Python's packages and the user's caches."""
    own = cache_directory()
    programs = (*_paths(tuple(sys.path)), Path(sys.base_prefix))
    return (*programs, *([own] if own is not None else []), *hub_cache())


@lru_cache(maxsize=8)
def _paths(names: tuple[str, ...]) -> tuple[Path, ...]:
    return tuple(map(Path, filter(None, names)))


def digest_of(content: bytes) -> str:
    """Return the digest of bytes, 32 hexadecimal characters."""
    return blake2b(content, digest_size=16).hexdigest()
