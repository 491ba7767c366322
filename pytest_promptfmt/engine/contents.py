"""Digests of inputs: of files, of folders, and of facts, such as the value of an environment variable.

A file is read again only if its stamp differs: its size, both times and number, known without reading it. The stamp of
a file that changed within the resolution of the file system's clock proves nothing, so it is never kept. A fact is
written like a path that no file can have.
"""

from __future__ import annotations

import errno
import os
import platform
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Final

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.files import cache_directory, hub_cache, hub_caches, is_installed

ABSENT: Final = "-"
"""The digest of a path without a file or folder."""

FOLDER: Final = "/"
"""The digest of a folder whose names do not count."""

OTHER: Final = ""
"""In place of a digest: not a regular file or folder, or not readable. It never equals an earlier one."""

_SETTLED_NS: Final = 2_000_000_000
"""The age from which the times of a file prove that it has not changed since: some file systems count in two
seconds."""

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

_FACT: Final = "fact:"

PLATFORM: Final = f"{_FACT}platform"
"""The machine, as `platform` describes it."""

PROCESSORS: Final = f"{_FACT}processors"
"""The number of processors, and which of them this process may use."""

HUB: Final = f"{_FACT}hub"
"""The names in the caches of Hugging Face's libraries, and the variables that these libraries read."""

ZONE: Final = f"{_FACT}zone"
"""The time zone of this process."""

SEARCHED: Final = f"{_FACT}searched"
"""The folders, in their order, in which Python searches for modules that are not installed."""

_HUB_VARIABLES: Final = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_")
_ZONE_FILE: Final = "/etc/localtime"
_HUB_LEVELS: Final = 5
"""Folders of a hub's cache that name its content: repository, revision, and the configurations of a dataset."""


def variable(name: str) -> str:
    """Return the fact that is the value of an environment variable."""
    return f"{_FACT}variable:{name}"


def program(name: str) -> str:
    """Return the fact that is the path of a program of this name."""
    return f"{_FACT}program:{name}"


def is_fact(path: str) -> bool:
    """Return whether an input is a fact, not a path."""
    return path.startswith(_FACT)


class Contents:
    """The inputs of this run: each is read once."""

    def __init__(self) -> None:
        self._found: dict[str, Input] = {}
        self._taken: set[str] = set()
        self._wrote: dict[str, str] = {}
        self._fact = cache(_digest_of_fact)  # a hub's cache has many names
        self._real = cache(os.path.realpath)
        self._shared_stamp = cache(lambda path: self._fact(path) if is_fact(path) else _stamp_of(path))
        self.began = time.time_ns()

    def take(self, folder: str) -> None:
        """Read a folder now: at the end of the run it must hold the same names."""
        self.input(folder)
        self._taken.add(folder)

    def wrote(self, path: str, digest: str) -> None:
        """Note the digest of a file that this run wrote: as long as the file has it, the file has not changed since.

        The folders above it hold the names that they have now.
        """
        self._wrote[path] = digest
        folders = [f"{folder}/" for folder in list(Path(path).parents)[:_FOLDERS_OF_SNAPSHOTS]]
        for each in (path, *folders):
            self._found.pop(each, None)
            self._found.pop(each.rstrip("/"), None)
        self._taken.update(folders)

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

    def without_implied(self, paths: set[str]) -> Iterator[str]:
        """Yield the paths without absent ones that others imply.

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
            if f"{folder}/" not in paths or name.startswith(_UNCOUNTED) or os.path.lexists(path):
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
            if is_new and not self.is_older(path):
                return None
            if path in self._taken:  # a run may have added names that do not count
                now = self._look(path, None)
                found = now if now[1] == found[1] else (path, OTHER, None)
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
            digest, has_links = _listed(path) if path.endswith("/") else (_read(path, status), False)
            digest = self._placed(path, digest)
        except OSError:
            return path, OTHER, None
        return path, digest, stamp if is_settled and not has_links else None

    def _placed(self, path: str, digest: str) -> str:
        """Return the digest of a path that a link leads elsewhere with its place, which messages name."""
        real = self._led_to(path.rstrip("/"))
        return digest if real == path.rstrip("/") else digest_of(f"{digest} {real}".encode("utf-8", "surrogateescape"))

    def _led_to(self, path: str) -> str:
        """Return a path with links resolved; those of its folder are resolved once."""
        if stat.S_ISLNK(os.lstat(path).st_mode):
            return os.path.realpath(path)
        folder, name = os.path.split(path)
        return os.path.join(self._real(folder), name)


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


def _listed(path: str) -> tuple[str, bool]:
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
    """Return the folders that a run reads in addition to the repository: Python's packages and the user's caches."""
    own = cache_directory()
    programs = (*_paths(tuple(sys.path)), Path(sys.base_prefix))
    return (*programs, *([own] if own is not None else []), *hub_cache())


@lru_cache(maxsize=8)
def _paths(names: tuple[str, ...]) -> tuple[Path, ...]:
    return tuple(map(Path, filter(None, names)))


def digest_of(content: bytes) -> str:
    """Return the digest of bytes, 32 hexadecimal characters."""
    return blake2b(content, digest_size=16).hexdigest()


def _digest_of_fact(fact: str) -> str:
    return digest_of(_value_of(fact).encode("utf-8", "backslashreplace"))


def _value_of(fact: str) -> str:
    """Return the value of a fact now."""
    _, kind, *rest = fact.split(":", 2)
    name = rest[0] if rest else ""
    if kind == "variable":
        return repr(os.environ.get(name))
    if kind == "program":
        return repr(shutil.which(name))
    if fact == PLATFORM:
        return repr(platform.uname())
    if fact == PROCESSORS:
        may_use = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
        return repr((os.cpu_count(), sorted(may_use)))
    if fact == ZONE:
        return repr((os.environ.get("TZ"), os.path.realpath(_ZONE_FILE)))
    if fact == SEARCHED:
        return repr([*dict.fromkeys(os.path.realpath(each) for each in search_path() if not is_installed(each))])
    names = [found for folder in hub_caches() for found in sorted(_names_below(folder, _HUB_LEVELS))]
    return repr((names, sorted(item for item in os.environ.items() if item[0].startswith(_HUB_VARIABLES))))


def search_path() -> list[str]:
    """Return the folders in which Python searches for modules."""
    return [folder for folder in sys.path if folder and os.path.isdir(folder)]


def _names_below(folder: str, levels: int) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            below = [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except OSError:
        return []
    deeper = [name for path, is_folder in below if is_folder and levels > 1 for name in _names_below(path, levels - 1)]
    return [path for path, _ in below] + deeper
