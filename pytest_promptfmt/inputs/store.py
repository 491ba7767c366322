"""The store: rows of JSON about files, kept from earlier runs in one SQLite file.

It is in the user's cache folder, never in a work tree: a repository cannot bring one. Its content is untrusted all the
same: parsed as JSON, never run, and used only if the file belongs to this user. A file that is damaged, of another
version, or not writable is ignored.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import stat
import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pytest_promptfmt.core.files import cache_directory, private_directory
from pytest_promptfmt.core.writing import top_of
from pytest_promptfmt.inputs.contents import OTHER, Contents, Input
from pytest_promptfmt.inputs.places import Places, digest_of, identity_of

VERSION: Final = 15
FILE_NAME: Final = "outcomes.sqlite"
_MOST_BYTES: Final = 2**29
_MOST_BYTES_OF_ROW: Final = 2**26
_SCHEMA: Final = "CREATE TABLE rows (kind TEXT, path TEXT, content TEXT, PRIMARY KEY (kind, path)) WITHOUT ROWID"
_DAMAGE: Final = (sqlite3.Error, UnicodeDecodeError)
"""Errors of a database that is damaged or not ours; messages quote its content, which need not be text."""

_CONTEXTS: Final = "contexts"
_MOST_CONTEXTS: Final = 4

_INPUTS: Final = "inputs"
_DIGESTS: Final = "digests"
"""Rows with the digest of many files."""

_KEY_LENGTH: Final = 20
"""Hexadecimal characters of the digest that is the key of an input."""

_PATIENCE_SECONDS: Final = 2.0
_WRITING_SECONDS: Final = 60.0
"""The times to wait for another process that writes: a run without a cache is as good, but its outcomes cost minutes.

Two runs may write at the same time, each for seconds if it tested thousands of files.
"""

_KEPT_SECONDS: Final = 90 * 24 * 3600
"""The age of a store that is removed when another folder gets its first one."""

_CACHE_KILOBYTES: Final = 16_384

_LEVEL: Final = 1
"""Of compression: the fastest, which makes results a fifth of their size."""


def store_folder(root: Path) -> Path | None:
    """Return the folder of the store for a rootdir: one for all clones of its repository.

    None without a private cache folder, and for one in the work tree of the rootdir: its files may be committed.
    """
    base, root = cache_directory(), root.resolve()
    if base is None or base.resolve().is_relative_to(top_of(root)):
        return None
    above = private_directory("outcomes", base)
    if above is None:
        return None
    folder = above / digest_of(identity_of(root).encode("utf-8", "surrogateescape"))
    if not folder.exists():
        _remove_unused(above)
    return folder


def remove_store(folder: Path) -> None:
    """Remove the store of a folder, if there is one."""
    with contextlib.suppress(OSError):
        (folder / FILE_NAME).unlink()
        folder.rmdir()


def _remove_unused(above: Path) -> None:
    """Remove the stores of rootdirs that no run has written for long."""
    for old in above.glob(f"*/{FILE_NAME}"):
        with contextlib.suppress(OSError):
            if old.lstat().st_mtime < time.time() - _KEPT_SECONDS:
                remove_store(old.parent)


class Store:
    """Rows of JSON by kind and path, in a folder; None for nowhere. They name no `places` of this machine.

    If the file cannot be used, reading finds nothing and writing does nothing. Rows of the kinds `by_context` belong to
    the `context` of this run, a digest without spaces: those of the last few others stay beside them.
    """

    def __init__(
        self,
        folder: Path | None,
        places: Places | None = None,
        *,
        by_context: Collection[str] = (),
        context: Callable[[], str] = str,
    ) -> None:
        self._places = places or Places()
        self.is_on = folder is not None
        self._by_context = frozenset(by_context)
        self._context = context
        self._forgotten: list[str] = []
        self._path = (folder or Path()) / FILE_NAME
        self._changed: dict[tuple[str, str], str | bytes | None] = {}
        self._reading: sqlite3.Connection | None = None

    def row(self, kind: str, path: str) -> Any:
        """Return the content of a row as an earlier run wrote it, None for a missing row."""
        return self.unpacked(self._content(kind, path))

    def packed_row(self, kind: str, path: str) -> bytes:
        """Return the content of a row that was `packed`, empty for a missing one."""
        content = self._content(kind, path)
        return content if isinstance(content, bytes) else b""

    def _content(self, kind: str, path: str) -> object:
        query = "SELECT content FROM rows WHERE kind = ? AND path = ?"
        found = self._select(query, self._kind(kind), self._places.neutral(path))
        return found[0][0] if found else None

    def rows(self, kind: str) -> dict[str, Any]:
        """Return all rows of a kind by their paths, as earlier runs wrote them."""
        found = self._select("SELECT path, content FROM rows WHERE kind = ?", self._kind(kind))
        return {self._places.here(path): self.unpacked(content) for path, content in found}

    def paths(self, kind: str) -> list[str]:
        """Return the paths of a kind."""
        found = self._select("SELECT path FROM rows WHERE kind = ?", self._kind(kind))
        return [self._places.here(path) for (path,) in found]

    def unpacked(self, content: object) -> Any:
        """Return the value of a row's content, also of one that was `packed`; None for invalid data."""
        try:
            if isinstance(content, bytes):
                content = zlib.decompressobj().decompress(content, _MOST_BYTES_OF_ROW).decode("utf-8", "replace")
            return json.loads(self._places.read(content)) if isinstance(content, str) else None
        except (zlib.error, ValueError, RecursionError):
            return None

    def _kind(self, kind: str) -> str:
        return f"{kind} {self._context()}" if kind in self._by_context else kind

    def _select(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        if self._reading is None and self.is_on:
            self._reading = self._opened()
        if self._reading is not None:
            with contextlib.suppress(*_DAMAGE):
                return self._reading.execute(query, values).fetchall()
        return []

    @property
    def has_to_shrink(self) -> bool:
        """Return whether a file is written that has half of the size from which it is replaced."""
        try:
            return bool(self._changed) and os.lstat(self._path).st_size > _MOST_BYTES // 2
        except OSError:
            return False

    def put(self, kind: str, path: str, content: Any) -> None:
        """Keep a row of JSON values until it is written; None removes it."""
        self._put(kind, path, None if content is None else self._places.written(as_json(content)))

    def packed(self, text: str) -> bytes:
        """Return the compressed JSON of a large row, which is read as seldom as written."""
        return zlib.compress(self._places.written(text).encode("utf-8"), _LEVEL)

    def put_packed(self, kind: str, path: str, content: bytes) -> None:
        """Keep a row that is `packed`."""
        self._put(kind, path, content)

    def _put(self, kind: str, path: str, content: str | bytes | None) -> None:
        if self.is_on:
            self._changed[self._kind(kind), self._places.neutral(path)] = content

    def keep_context(self) -> None:
        """Note that this run used its context, and forget the one that was used least recently if there are many."""
        used = {context: last for context, last in self.rows(_CONTEXTS).items() if isinstance(last, int)}
        context, last = self._context(), max(used.values(), default=0)
        if context not in used or used[context] < last:
            self.put(_CONTEXTS, context, last + 1)
        for old in sorted(used.keys() - {context}, key=used.__getitem__)[: -(_MOST_CONTEXTS - 1)]:
            self.put(_CONTEXTS, old, None)
            self._forgotten.append(old)

    def forget_others(self) -> None:
        """Forget the rows of all other contexts."""
        for old in self.rows(_CONTEXTS).keys() - {self._context()}:
            self.put(_CONTEXTS, old, None)
            self._forgotten.append(old)

    def write(self) -> None:
        """Write all rows that were put, in one transaction."""
        self.close()
        if self._changed:
            with contextlib.suppress(OSError, *_DAMAGE):
                self._write()
            self._changed.clear()

    def close(self) -> None:
        """Close the connection for reading."""
        if self._reading is not None:
            self._reading.close()
            self._reading = None

    def _write(self) -> None:
        patience = _WRITING_SECONDS
        if os.path.lexists(self._path) and not (self._is_ours() and self._is_whole(patience)):
            self._path.unlink()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(self._path, os.O_CREAT | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0), 0o600))
        with contextlib.closing(self._connect("rwc", patience)) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            if not _has_schema(connection):
                connection.execute(_SCHEMA)
                connection.execute(f"PRAGMA user_version = {VERSION}")
            gone = [key for key, text in self._changed.items() if text is None]
            rows = ((*key, text) for key, text in self._changed.items() if text is not None)
            kept = (row for row in rows if len(row[2]) <= _MOST_BYTES_OF_ROW)
            connection.executemany("DELETE FROM rows WHERE kind = ? AND path = ?", gone)
            connection.executemany("DELETE FROM rows WHERE kind LIKE '% ' || ?", [(each,) for each in self._forgotten])
            connection.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?, ?)", kept)

    def _is_whole(self, patience: float) -> bool:
        """Return whether the file has the one table that this version writes, or nothing: another run begins it.

        Raises sqlite3.Error while it is busy.
        """
        try:
            with contextlib.closing(self._connect("ro", patience)) as connection:
                is_ours = _has_schema(connection) or _is_empty(connection)
                return is_ours and connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",)
        except _DAMAGE as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise
            return False

    def _opened(self) -> sqlite3.Connection | None:
        if not self._is_ours():
            return None
        try:
            connection = self._connect("ro", _PATIENCE_SECONDS)
        except _DAMAGE:
            return None
        with contextlib.suppress(*_DAMAGE):
            if _has_schema(connection):
                return connection
        connection.close()
        return None

    def _connect(self, mode: str, patience: float) -> sqlite3.Connection:
        connection = sqlite3.connect(f"{self._path.absolute().as_uri()}?mode={mode}", uri=True, timeout=patience)
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES_OF_ROW)
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KILOBYTES}")
        return connection

    def _is_ours(self) -> bool:
        """Return whether this is a regular file of this user, and not too large to be read."""
        try:
            status = os.lstat(self._path)
        except OSError:
            return False
        is_mine = not hasattr(os, "getuid") or status.st_uid == os.getuid()
        return stat.S_ISREG(status.st_mode) and is_mine and status.st_size <= _MOST_BYTES


class StoredInputs:
    """Inputs in the store, by a digest of themselves: most belong to many files, and each is stored once."""

    def __init__(self, store: Store, contents: Contents) -> None:
        self._store = store
        self._contents = contents
        self._rows: dict[str, Any] = {}
        self._same: dict[str, bool] = {}

    def is_same(self, key: str) -> bool:
        """Return whether the input of a key is the same now; an unknown one is not."""
        same = self._same.get(key)
        if same is None:
            same = self._same[key] = self._contents.is_same(self._row(key) or ())
        return same

    def path(self, key: str) -> str:
        """Return the path of an input that was kept, or is the same."""
        return str(self._row(key)[0])

    def keep(self, found: Input) -> str:
        """Store an input, and return its key."""
        path, digest, stamp = found
        key = self._contents.places.digest((path, digest))[:_KEY_LENGTH]
        written = [path, digest, None if stamp is None else list(stamp)]
        if self._row(key) != written:
            self._rows[key] = written
            self._store.put(_INPUTS, key, written)
        self._same[key] = True
        return key

    def digest_of(self, name: str, files: Sequence[str]) -> str:
        """Return the digest of the contents of files, which are read again only if a stamp has changed.

        It is kept under a name; `OTHER` if one of them is not known.
        """
        row = mapping(self._store.row(_DIGESTS, name))
        digest = row.get("digest")
        if isinstance(digest, str) and row.get("stamps") == self._contents.stamps_now(files, lambda _: False):
            return digest
        read = [self._contents.input(path)[:2] for path in files]
        digest = OTHER if OTHER in (each for _, each in read) else self._contents.places.digest(read)
        stamps = self._contents.stamps(files)
        if stamps is not None:
            self._store.put(_DIGESTS, name, {"stamps": stamps, "digest": digest})
        return digest

    def keep_only(self, keys: Collection[str]) -> None:
        """Remove all inputs but these, and those of this run."""
        for key in self._store.paths(_INPUTS):
            if key not in keys and key not in self._rows:
                self._store.put(_INPUTS, key, None)

    def _row(self, key: str) -> Any:
        if key not in self._rows:
            self._rows[key] = self._store.row(_INPUTS, key)
        return self._rows[key]


def _has_schema(connection: sqlite3.Connection) -> bool:
    """Return whether a database has our one table; an added view or trigger could run without end."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    found = connection.execute("SELECT type, sql FROM sqlite_master LIMIT 2").fetchall()
    return version == VERSION and found == [("table", _SCHEMA)]


def _is_empty(connection: sqlite3.Connection) -> bool:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return version == 0 and connection.execute("SELECT type FROM sqlite_master LIMIT 1").fetchone() is None


def as_json(content: object) -> str:
    """Return the text of a row, or of a part of it."""
    return json.dumps(content, separators=(",", ":"))


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a value of the store where it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}
