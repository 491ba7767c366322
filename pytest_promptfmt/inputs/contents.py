"""Digests of inputs: of files, of folders, and of facts, such as the value of an environment variable.

A file is read again only if its stamp differs: its size, both times and number, known without reading it. The stamp of
a file that changed within the resolution of the file system's clock proves nothing, so it is never kept. A fact is
written like a path that no file can have.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import cache, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.files import cache_directory, hub_cache
from pytest_promptfmt.inputs.facts import is_fact, value_of
from pytest_promptfmt.inputs.places import Places, digest_of

ABSENT: Final = "-"
"""The digest of a path without a file or folder."""

FOLDER: Final = "/"
"""The digest of a folder whose names do not count."""

OTHER: Final = ""
"""In place of a digest: not a regular file or folder, or not readable. It never equals an earlier one."""

_SETTLED_NS: Final = 2_000_000_000
"""The age from which the times of a file prove that it has not changed since: some file systems count in two
seconds."""

_TICK_NS: Final = 20_000_000
"""How far the time of a file may lie before the clock: kernels write the time of their last tick, at most 10 ms ago."""

_FOLDERS_OF_SNAPSHOTS: Final = 3
"""The folders that writing a snapshot may make: of all snapshots, of a file, of a task."""

_MOST_BYTES: Final = 2**30

_UNCOUNTED: Final = (".", "__")
"""The beginnings of names in a folder that do not count."""

Stamp = tuple[int, int, int, int]
"""Size, time of the last change of content and of the file itself in nanoseconds, and number."""

Input = tuple[str, str, Stamp | None]
"""A path, the digest of its content, and its stamp if that is settled. The path of a folder whose names
count ends with a slash; names that begin with a dot or two underscores never count."""


class Contents:
    """The inputs of this run: each is read once."""

    def __init__(self, places: Places | None = None) -> None:
        self.places = places or Places()
        self._found: dict[str, Input] = {}
        self._taken: set[str] = set()
        self._settled: set[str] = set()
        self._wrote: dict[str, str] = {}
        # A hub's cache has many names.
        self._fact = cache(lambda fact: digest_of(value_of(fact, self.places).encode("utf-8", "backslashreplace")))
        self._real = cache(os.path.realpath)
        self._shared_stamp = cache(lambda path: self._fact(path) if is_fact(path) else _stamp_of(path))
        self.began = time.time_ns() - _TICK_NS

    def take(self, folder: str) -> None:
        """Read a folder now: at the end of the run it must hold the same names."""
        if folder not in self._taken:
            self.input(folder)
            self._taken.add(folder)
            if self.is_older(folder):
                self._settled.add(folder)

    def holds_same_names(self, folder: str) -> bool:
        """Return whether a folder has not changed since this run began, or only in ways that `stamps` finds."""
        return folder in self._settled or self.is_older(folder)

    def wrote(self, path: str, digest: str) -> None:
        """Note the digest of a file that this run wrote: as long as the file has it, the file has not changed since.

        The folders above it hold the names that they have now.
        """
        self._wrote[path] = digest
        folders, above = [], path
        for _ in range(_FOLDERS_OF_SNAPSHOTS):
            above = os.path.dirname(above)
            folders.append(f"{above}/")
        for each in (path, *folders):
            self._found.pop(each, None)
            self._found.pop(each.rstrip("/"), None)
        self._taken.update(folders)
        self._settled.difference_update(folders)

    def input(self, path: str) -> Input:
        """Return a path with its content now; of a path that ends with a slash, the names in the folder count."""
        known = self._found.get(path)
        if known is None:
            known = self._found[path] = self._look(path, None)
        return known

    def is_same(self, before: Sequence[object]) -> bool:
        """Return whether a path has the content of an `Input` that was stored; raises nothing for invalid data."""
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
        """Return the inputs of these paths; None if one of them may have changed since this run began."""
        inputs = [self.input(path) for path in sorted(self.without_implied(set(paths)))]
        return None if any(self._is_young(each) for each in inputs) else inputs

    def without_implied(self, paths: set[str], others: Set[str] = frozenset()) -> Iterator[str]:
        """Yield the paths without absent ones that these or `others` imply.

        An absent path is implied by a folder whose names count, and by an absent folder above it. A broken link is a
        name, and its target may appear elsewhere.
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
            is_listed = f"{folder}/" in paths or f"{folder}/" in others
            if not is_listed or name.startswith(_UNCOUNTED) or os.path.lexists(path):
                absent.add(path)
        yield from absent

    def stamps(self, paths: Iterable[str]) -> str | None:
        """Return the value of `stamps_now` as long as these paths have the content that this run saw, None if unknown.

        It is unknown for a file that has just changed.
        """
        parts: list[str] = []
        for path in paths:
            is_new = path not in self._found
            found = self.input(path)
            if is_new and path not in self._taken and not self.is_older(path):
                return None
            is_unsettled = found[2] is None and found[1] != ABSENT and not is_fact(path)  # it may have settled since
            if path in self._taken or is_unsettled:  # a run may have added names that do not count, and snapshots
                now = self._look(path, None)
                found = self._found[path] = now if now[1] == found[1] else (path, OTHER, None)
            if found[1] == OTHER or (found[2] is None and found[1] != ABSENT and not is_fact(path)):
                return None
            parts.append(found[1] if found[2] is None else _written(found[2]))
        return digest_of("\n".join(parts).encode())

    def stamps_now(self, paths: Iterable[str], is_shared: Callable[[str], bool]) -> str:
        """Return the digest of the stamps of files and folders now, and of facts as this run found them.

        Stamps of paths that `is_shared` by many are read once; those of the others, which are most, are not kept.
        """
        parts = (self._shared_stamp(path) if is_shared(path) else _stamp_of(path) for path in paths)
        return digest_of("\n".join(parts).encode())

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
        if found[0] in self._wrote:
            return self._look(found[0], None)[1] != self._placed(found[0], self._wrote[found[0]])
        try:
            status = os.stat(found[0])
        except OSError:
            return found[1] != ABSENT
        same = found[1] != ABSENT and (found[2] is None or found[2] == _stamp(status))
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
            digest, has_links = self._listed(path) if path.endswith("/") else (_read(path, status), False)
            digest = self._placed(path, digest)
        except OSError:
            return path, OTHER, None
        return path, digest, stamp if is_settled and not has_links else None

    def _placed(self, path: str, digest: str) -> str:
        """Return the digest of a path that a link leads elsewhere with its place, which messages name."""
        path = path.rstrip("/")
        real = self._led_to(path)
        if real == path:
            return digest
        real = self.places.neutral(real)
        is_there = real == self.places.neutral(path)  # the checkout itself is behind a link
        return digest if is_there else digest_of(f"{digest} {real}".encode("utf-8", "surrogateescape"))

    def _led_to(self, path: str) -> str:
        """Return a path with links resolved; those of its folder are resolved once."""
        if stat.S_ISLNK(os.lstat(path).st_mode):
            return os.path.realpath(path)
        folder, name = os.path.split(path)
        return os.path.join(self._real(folder), name)

    def _listed(self, path: str) -> tuple[str, bool]:
        """Return the digest of the names in a folder and of the targets of links, and whether there are links.

        A file that is opened through a link is traced under the name of its target.
        """
        names, links = [], []
        with os.scandir(path) as entries:
            for entry in entries:
                if not entry.name.startswith(_UNCOUNTED):
                    names.append(entry.name)
                    if entry.is_symlink():
                        links.append(f"{entry.name}/{Path(entry.path).exists()}/{os.path.realpath(entry.path)}")
        parts = [*sorted(names), "", *sorted(map(self.places.neutral, links))]
        return digest_of("\0".join(parts).encode("utf-8", "surrogateescape")), bool(links)


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


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


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
    """Return the folders that a run reads in addition to the repository: Python's packages and the user's caches."""
    own = cache_directory()
    programs = (*_paths(tuple(sys.path)), Path(sys.base_prefix))
    return (*programs, *([own] if own is not None else []), *hub_cache())


@lru_cache(maxsize=8)
def _paths(names: tuple[str, ...]) -> tuple[Path, ...]:
    return tuple(map(Path, filter(None, names)))
