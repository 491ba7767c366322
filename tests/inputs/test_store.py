"""The store of outcomes: somebody else's data, believed only in the one form that it is written in."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from pathlib import Path
from threading import Thread

import pytest

from pytest_promptfmt.inputs.store import FILE_NAME, VERSION, Store

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x, 'a', '1' FROM n"
ROWS = "CREATE TABLE rows (kind TEXT, path TEXT, content TEXT, PRIMARY KEY (kind, path)) WITHOUT ROWID"


def written(folder: Path) -> Path:
    store = Store(folder)
    store.put("outcomes", "t.yaml", {"is": "ours"})
    store.write()
    return folder / FILE_NAME


def known(folder: Path) -> dict[str, object]:
    store = Store(folder)
    rows = {path: store.row("outcomes", path) for path in ("t.yaml", "u.yaml")}
    return {path: row for path, row in rows.items() if row is not None}


def test_rows_are_kept_and_removed(tmp_path: Path) -> None:
    written(tmp_path)
    assert known(tmp_path) == {"t.yaml": {"is": "ours"}}
    store = Store(tmp_path)
    store.put("outcomes", "t.yaml", None)
    store.put("outcomes", "u.yaml", [1])
    store.write()
    assert known(tmp_path) == {"u.yaml": [1]}
    assert (store.rows("outcomes"), store.paths("outcomes")) == ({"u.yaml": [1]}, ["u.yaml"])
    assert (store.rows("items"), store.paths("items")) == ({}, [])


def test_a_packed_row_is_read_like_any_other(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put_packed("outcomes", "t.yaml", store.packed('{"is": ["ours", "\\u00fc"]}'))
    store.write()
    assert known(tmp_path) == {"t.yaml": {"is": ["ours", "ü"]}}


@pytest.mark.parametrize("content", [b"", b"no", zlib.compress(b"[1]")[:-6], zlib.compress(b"\xff")])
def test_a_damaged_packed_row_is_missing(tmp_path: Path, content: bytes) -> None:
    store = Store(tmp_path)
    store.put_packed("outcomes", "t.yaml", content)
    store.put("outcomes", "u.yaml", [1])
    store.write()
    assert known(tmp_path) == {"u.yaml": [1]}


def test_a_packed_row_of_gigabytes_is_not_unpacked(tmp_path: Path) -> None:
    packer = zlib.compressobj()
    bomb = b"".join(packer.compress(b"[" + b" " * 2**24) for _ in range(16)) + packer.flush()
    store = Store(tmp_path)
    store.put_packed("outcomes", "t.yaml", bomb)
    store.write()
    assert known(tmp_path) == {}


@pytest.mark.parametrize(
    "statements",
    [
        f"CREATE VIEW rows(kind, path, content) AS {ENDLESS}",
        f"{ROWS}; CREATE TRIGGER t BEFORE INSERT ON rows BEGIN INSERT INTO rows {ENDLESS}; END",
        f"{ROWS}; CREATE TRIGGER t AFTER DELETE ON rows BEGIN SELECT RAISE(FAIL, 'no'); END",
        "CREATE TABLE rows (kind TEXT, path TEXT, content TEXT AS ('[\"theirs\"]'))",
        "CREATE TABLE rows (kind TEXT)",
        "CREATE TABLE other (x)",
        "PRAGMA writable_schema = ON; CREATE TABLE x (y); UPDATE sqlite_master SET sql = CAST(x'8522' AS TEXT)",
        "",
    ],
)
def test_a_database_of_another_form_is_neither_read_nor_written_but_replaced(tmp_path: Path, statements: str) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection, connection:
        connection.executescript(f"PRAGMA user_version = {VERSION}; {statements};")
    assert known(tmp_path) == {}
    written(tmp_path)
    assert known(tmp_path) == {"t.yaml": {"is": "ours"}}


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0" + b"x" * 5000])
def test_a_damaged_store_is_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    assert known(tmp_path) == {}
    written(tmp_path)
    assert known(tmp_path) == {"t.yaml": {"is": "ours"}}


def test_a_store_that_is_cut_off_is_replaced(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes()[:5000])
    written(tmp_path)
    assert known(tmp_path) == {"t.yaml": {"is": "ours"}}


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give files away")
def test_a_store_of_another_user_is_not_believed(tmp_path: Path) -> None:
    path = written(tmp_path)
    os.chown(path, 65534, 65534)
    assert known(tmp_path) == {}
    written(tmp_path)
    assert path.stat().st_uid == os.getuid()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    target = written(tmp_path / "elsewhere")
    before = target.read_bytes()
    (tmp_path / FILE_NAME).symlink_to(target)
    assert known(tmp_path) == {}
    written(tmp_path)
    assert not (tmp_path / FILE_NAME).is_symlink()
    assert target.read_bytes() == before


def test_a_store_or_row_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    path = written(tmp_path)
    with path.open("r+b") as file:
        file.truncate(2**29 + 1)
    assert known(tmp_path) == {}
    written(tmp_path)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO rows VALUES ('outcomes', 'u.yaml', CAST(zeroblob(100000000) AS TEXT))")
    assert "u.yaml" not in known(tmp_path)


def test_a_row_whose_text_is_damaged_costs_no_other_row(tmp_path: Path) -> None:
    path = written(tmp_path)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO rows VALUES ('outcomes', CAST(x'85' AS TEXT), CAST(x'228522' AS TEXT))")
    assert known(tmp_path)["t.yaml"] == {"is": "ours"}


def test_a_store_that_another_run_writes_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path)
    monkeypatch.setattr("pytest_promptfmt.inputs.store._WRITING_SECONDS", 0.01)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        inode = path.stat().st_ino
        store = Store(tmp_path)
        store.put("outcomes", "u.yaml", 1)
        store.write()
    assert path.stat().st_ino == inode
    assert known(tmp_path) == {"t.yaml": {"is": "ours"}}


def test_a_run_waits_for_another_one_that_begins_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_promptfmt.inputs.store._PATIENCE_SECONDS", 0.0)  # only reading gives up
    store = Store(tmp_path)
    store.put("outcomes", "u.yaml", [1])
    path = tmp_path / FILE_NAME
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        other.execute(ROWS)
        other.execute("INSERT INTO rows VALUES ('outcomes', 't.yaml', '2')")
        other.execute(f"PRAGMA user_version = {VERSION}")
        inode = path.stat().st_ino
        writing = Thread(target=store.write)
        writing.start()
        writing.join(0.2)
        other.execute("COMMIT")
        writing.join()
    assert path.stat().st_ino == inode
    assert known(tmp_path) == {"t.yaml": 2, "u.yaml": [1]}
