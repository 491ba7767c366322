"""The one way to read files that a repository names or has: below the allowed folders, ordinary, of bounded size.

A run limits the places to the rootdir, to what its command line names and to `--promptfmt-allow-path`; without such a
limit (in a notebook) a file may be anywhere. In either case devices, FIFOs, sockets and the files below `/proc` and
`/sys` are refused, and no link is followed that appears after the path was resolved. Refusals are `RefusedError`, an
OSError, so that whoever reports a file that cannot be read reports these as well. They never quote the file.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from io import BufferedReader, BytesIO, TextIOWrapper
from pathlib import Path
from typing import Final

from pytest_promptfmt.core.errors import did_you_mean, display_path

VARIABLE: Final = "PROMPTFMT_ALLOWED_FOLDERS"
"""The environment variable with the allowed folders: every process that a run starts has the same limit."""

NO_CODE: Final = "PROMPTFMT_NO_CODE"
"""The environment variable that is set where no Python code of a repository may run."""

OPTION: Final = "--promptfmt-allow-path"

MAX_BYTES: Final = 256 * 2**20
"""The largest file that is read whole where its reader has no smaller limit of its own."""

MAX_NAMES: Final = 1000
"""The most names of a folder that are looked at for a hint."""

_SHOWN_NAMES: Final = 5

_CAUTION: Final = ("O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY")
FLAGS: Final = sum(getattr(os, name, 0) for name in _CAUTION)
"""The flags of each file that is opened, as far as the system has them."""

_OWN: Final = os.path.realpath(os.path.dirname(os.path.dirname(__file__)))
"""This package: its formats, chat templates and tokenizers are files as well."""

_OF_THE_SYSTEM: Final = re.compile(r"/(?:proc|sys|dev(?!/shm/))(?:/|$)")
_DEVICE: Final = re.compile(
    r"(?:con|prn|aux|nul|clock\$|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³]) *(?:[.:].*)?", re.IGNORECASE
)
_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a link"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class RefusedError(PermissionError):
    """A path that is not opened, whatever is there; `strerror` is the reason."""

    def __init__(self, reason: str, path: Path | str = "") -> None:
        super().__init__(errno.EACCES, reason, os.fspath(path))


# -- where -------------------------------------------------------------------------------------------------------------


def limit_to(folders: Iterable[Path] | None) -> None:
    """Let this process and those that it starts open and write files below these folders only; None lifts the limit.

    The first one is the root: no link in its repository leads a file that is written out of it.
    """
    real = None if folders is None else dict.fromkeys(os.path.realpath(folder) for folder in folders)
    _set(VARIABLE, None if real is None else json.dumps(list(real)))


def forbid_code(is_forbidden: bool) -> None:
    """Let this process and those that it starts run no Python code that a file or setting names, or lift that."""
    _set(NO_CODE, "1" if is_forbidden else None)


def allows_code() -> bool:
    """Return whether Python code that a file or setting names may run at all."""
    return not os.environ.get(NO_CODE)


@contextmanager
def also_reading(folder: Path) -> Iterator[None]:
    """Let files below a folder be read inside the block as well: those of an installed package, which nobody names."""
    _extra.append(real_folder(os.fspath(folder)))
    try:
        yield
    finally:
        _extra.pop()


_extra: Final[list[str]] = []


@contextmanager
def limited_to(folders: Iterable[Path] | None) -> Iterator[None]:
    """Limit the places inside the block, and restore the limit of before after it."""
    before = limits()
    limit_to(folders)
    try:
        yield
    finally:
        restore(before)


def limits() -> tuple[str | None, str | None]:
    """Return what is limited now, for `restore`."""
    return os.environ.get(VARIABLE), os.environ.get(NO_CODE)


def restore(before: tuple[str | None, str | None]) -> None:
    """Restore what `limits` returned."""
    for name, value in zip((VARIABLE, NO_CODE), before, strict=True):
        _set(name, value)


def _set(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def refusal_of_name(written: str, *, windows: bool = os.name == "nt") -> str | None:
    r"""Return why a name that a file gives to another file is refused whatever is there, None where it is not.

    Drives (`C:\`), shares (`\\server`) and device names (`NUL`, `con.txt`) are refused on every system, so that a file
    means the same everywhere; on Windows also a colon, which names a stream.
    """
    if "\0" in written:
        return "a name cannot contain a NUL character"
    if re.match(r"[A-Za-z]:", written) and (windows or len(written) < 3 or written[2] in "\\/"):
        return "a path with a drive is not allowed; write a path relative to this file"
    if written.startswith(("\\", "//")):
        return "a path of a network share or device is not allowed; write a path relative to this file"
    if windows and ":" in written:
        return "a name with a colon is not allowed on Windows"
    if any(_DEVICE.fullmatch(part) for part in re.split(r"[\\/]", written)):
        return "the name is that of a device on Windows"
    return None


def named(folder: Path | str, written: str) -> Path:
    """Return the path that a file in `folder` names; raises RefusedError for a name that no file of ours has."""
    reason = refusal_of_name(written)
    if reason is not None:
        raise RefusedError(reason, written.replace("\0", "\\0"))
    return Path(folder, written)


def resolved(path: Path | str) -> str:
    """Return the absolute path with links followed, wherever it leads. A folder is followed once in a process."""
    text = os.fspath(path)
    try:
        folder, name = os.path.split(text)
        if name in ("", os.curdir, os.pardir):
            return os.path.realpath(text)
        joined = os.path.join(real_folder(os.path.join(os.getcwd(), folder)), name)
        return os.path.realpath(joined) if os.path.islink(joined) else joined  # noqa: PTH114  # thousands of calls
    except ValueError:  # a NUL character, or half of a surrogate pair
        raise RefusedError("no file can have this name") from None


@lru_cache(maxsize=8192)
def real_folder(folder: str) -> str:
    """Return a folder with links followed, once in a process."""
    return os.path.realpath(folder)


def allowed(path: Path | str, *, also: Iterable[Path] = ()) -> str:
    """Return the resolved path; raises RefusedError where it is outside the allowed folders and those of `also`."""
    real = resolved(path)
    _require_allowed(real, os.fspath(path), also)
    return real


def is_allowed(path: Path | str) -> bool:
    """Return whether a path, once resolved, is below the allowed folders."""
    try:
        allowed(path)
    except RefusedError:
        return False
    return True


def _require_allowed(real: str, shown: str, also: Iterable[Path] = ()) -> None:
    limit = os.environ.get(VARIABLE)
    reason = _refusal(os.path.dirname(real), limit)
    if reason is None:
        return
    if limit is not None and is_below(real, _folders_of(limit)) and not is_of_the_system(real):
        return  # one of the allowed places itself
    more = (*_extra, *(real_folder(os.fspath(folder)) for folder in also))
    if is_below(real, more) and not is_of_the_system(real):
        return
    raise RefusedError(reason, shown)


@lru_cache(maxsize=8192)
def _refusal(folder: str, limit: str | None) -> str | None:
    """Return why files of a resolved folder are refused; the same for all of them."""
    if _OF_THE_SYSTEM.match(f"{folder}/"):
        return "files of the operating system are never opened"
    if limit is None or is_below(folder, (*_folders_of(limit), _OWN)):
        return None
    return f"the path is outside the rootdir; to allow its folder, use {OPTION}"


@lru_cache(maxsize=64)
def _folders_of(limit: str) -> tuple[str, ...]:
    try:
        return tuple(json.loads(limit))
    except (ValueError, TypeError):
        return ()  # of somebody else: nothing is allowed


def allowed_folders() -> tuple[str, ...] | None:
    """Return the resolved folders of the limit, None where there is no limit."""
    limit = os.environ.get(VARIABLE)
    return None if limit is None else _folders_of(limit)


def is_of_the_system(real: str) -> bool:
    """Return whether a resolved path is that of a device, or of a file that the kernel makes up."""
    return _OF_THE_SYSTEM.match(real) is not None


def is_below(path: str, folders: Iterable[str]) -> bool:
    """Return whether a path is one of these folders or below one; all are absolute."""
    return any(path == folder or path.startswith(folder.rstrip(os.sep) + os.sep) for folder in folders if folder)


@contextmanager
def replaced(files: Mapping[str, str]) -> Iterator[None]:
    """Read other files in place of these inside the block, all by their resolved paths: what a change would do."""
    _instead.update(files)
    try:
        yield
    finally:
        for path in files:
            _instead.pop(path, None)


_instead: Final[dict[str, str]] = {}


# -- reading -----------------------------------------------------------------------------------------------------------


def open_file(path: Path | str, *, limit: int | None = None, also: Iterable[Path] = ()) -> BufferedReader:
    """Return an ordinary file below the allowed folders, opened for reading; with `limit` only up to so many bytes.

    Raises RefusedError, and OSError for a file that is missing or cannot be read.
    """
    real = allowed(path, also=also)
    real = _instead.get(real, real)
    try:
        _require_ordinary(os.lstat(real), path, limit)  # first: to open a device can have effects
        descriptor = os.open(real, os.O_RDONLY | FLAGS)
    except ValueError:
        raise RefusedError("no file can have this name") from None
    try:
        _require_ordinary(os.fstat(descriptor), path, limit)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path | str, *, limit: int = MAX_BYTES, also: Iterable[Path] = ()) -> bytes:
    """Return what is in a file of at most `limit` bytes; raises as `open_file`."""
    with open_file(path, limit=limit, also=also) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(size + 1)  # not `limit`: room for so much would be made and given back for each file
        if len(data) > size:
            data += file.read(limit + 1 - len(data))
    if len(data) > limit:  # it grows
        raise RefusedError(_too_large(limit), path)
    return data


def read_text(path: Path | str, encoding: str = "utf-8", errors: str = "strict") -> str:
    """Return the text of a file, with line ends as Python reads them; raises as `open_file`, or UnicodeDecodeError."""
    with TextIOWrapper(BytesIO(read_bytes(path)), encoding, errors) as text:
        return text.read()


def open_text(path: Path | str, encoding: str = "utf-8", *, newline: str | None = None) -> TextIOWrapper:
    """Return a file opened for reading as text, of any size; raises as `open_file`."""
    return TextIOWrapper(open_file(path), encoding, newline=newline)


def status_of(path: Path | str, *, also: Iterable[Path] = ()) -> os.stat_result:
    """Return size and times of an ordinary file below the allowed folders; raises as `open_file`."""
    real = allowed(path, also=also)
    status = os.lstat(_instead.get(real, real))
    _require_ordinary(status, path, None)
    return status


def is_there(path: Path | str) -> bool:
    """Return whether something has this name, be it a broken link, a device or a file outside: opening it says what."""
    try:
        return os.path.lexists(path)
    except (OSError, ValueError):
        return False


def names_in(folder: Path | str) -> list[str]:
    """Return names in a folder for a hint; none of a folder outside the allowed ones."""
    try:
        real = allowed(folder)
        _require_allowed(os.path.join(real, "-"), real)
        with os.scandir(real) as entries:
            return sorted(entry.name for entry, _ in zip(entries, range(MAX_NAMES), strict=False))
    except OSError:
        return []


def missing_hint(path: Path) -> str:
    """Return the hint about a missing path: the closest name in its folder, else some of its names."""
    folder = display_path(path.parent)
    if not path.parent.is_dir():
        return f"there is no folder {folder}"
    where = "the working directory" if folder == "." else f"the folder {folder}"
    names = names_in(path.parent)
    shown = [repr(name) for name in names if not name.startswith(".")] or ["no such file or folder"]
    more = ", …" if len(shown) > _SHOWN_NAMES else ""
    return did_you_mean(path.name, names) or f"{where} contains {', '.join(shown[:_SHOWN_NAMES])}{more}"


def _require_ordinary(status: os.stat_result, path: Path | str, limit: int | None) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise RefusedError(f"{kind_of(status)}, not a regular file", path)
    if limit is not None and status.st_size > limit:
        raise RefusedError(_too_large(limit), path)


def kind_of(status: os.stat_result) -> str:
    """Return the kind of something that is not a regular file, with its article."""
    return next((kind for is_kind, kind in _KINDS if is_kind(status.st_mode)), "no file")


def _too_large(limit: int) -> str:
    size = f"{limit // 2**20:,} MiB" if limit >= 2**20 else f"{limit:,} bytes"
    return f"the file is larger than {size}"
