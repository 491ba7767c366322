"""Data that compiled code reads, which Python's audit hook does not see: its changes are seen all the same."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from plugin_project import Project

from pytest_promptfmt.engine.processes import CAN_FORK

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CAN_FORK, reason="only outcomes of workers are cached")]

READERS: Final = {
    "ParquetFile": ("import pyarrow.parquet", "pyarrow.parquet.ParquetFile(path).read().to_pylist()[0]['word']"),
    "OSFile": ("import pyarrow", "pyarrow.OSFile(path).read().decode()"),
    "memory_map": ("import pyarrow", "pyarrow.memory_map(path).read().decode()"),
    "arrow csv": ("from pyarrow import csv", "csv.read_csv(path).to_pylist()[0]['word']"),
    "arrow json": ("from pyarrow import json", "json.read_json(path).to_pylist()[0]['word']"),
    "dataset": ("from pyarrow import dataset", "dataset.dataset(path).to_table().to_pylist()[0]['word']"),
    "pandas": ("import pandas", "pandas.read_parquet(path)['word'][0]"),
    "numpy": ("import numpy", "bytes(numpy.memmap(path, mode='r')).decode()"),
    "safetensors": ("from safetensors import safe_open", "safe_open(path, 'np').metadata()['word']"),
    "tokenizers": ("from tokenizers import Tokenizer", "Tokenizer.from_file(path).decode([0])"),
    "sqlite": ("import sqlite3", "sqlite3.connect(path).execute('select * from t').fetchone()[0]"),
    "h5py": ("import h5py", "h5py.File(path)['word'][()].decode()"),
    "netCDF4": ("import netCDF4", "netCDF4.Dataset(path).word"),
    "rasterio": ("import rasterio", "rasterio.open(path).tags()['word']"),
    "lmdb": ("import lmdb", "lmdb.open(path, subdir=False, lock=False, readonly=True).begin().get(b'word').decode()"),
    "duckdb": ("import duckdb", "duckdb.execute('select word from ' + repr(path)).fetchone()[0]"),
    "polars": ("import polars", "polars.scan_parquet(path).collect()['word'][0]"),
    "mmap": ("import mmap", "mmap.mmap(os.open(path, 0), 0, access=mmap.ACCESS_READ)[:].decode()"),
}
"""Code that reads the word in a file."""

RUN_EACH_TIME: Final = ("arrow csv", "arrow json", "pandas", "tokenizers", "sqlite", "mmap")
"""Readers that code is known by: they may read from elsewhere, too."""

PLACES: Final = {
    "beside": ("t/{n}", "os.path.join(os.path.dirname(__file__), '{name}')"),
    "below": ("t/{n}/data/more", "os.path.join(os.path.dirname(__file__), 'data', 'more', '{name}')"),
    "made of parts": ("t/{n}/data", "os.path.dirname(__file__) + '/data/' + f'{{doc[\"kind\"]}}.{ending}'"),
    "in another folder": ("shared", "os.path.join(os.path.dirname(__file__), '..', '..', 'shared', '{name}')"),
    "from the working folder": ("files", "'files/{name}'"),
    "absolute": ("files", "'{root}/files/{name}'"),
    "by a variable": ("files", "os.path.join(os.environ['OF_A_TEST'], '{name}')"),
}
"""Where a file is, and an expression for its path."""


def _parquet(path: Path, word: str) -> None:
    arrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(arrow.table({"word": [word]}), path)


def _sqlite(path: Path, word: str) -> None:
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as connection:
        connection.execute("create table t as select ? as word", (word,))


def _h5py(path: Path, word: str) -> None:
    with pytest.importorskip("h5py").File(path, "w") as file:
        file["word"] = word


def _netcdf(path: Path, word: str) -> None:
    with pytest.importorskip("netCDF4").Dataset(path, "w") as file:
        file.word = word


def _rasterio(path: Path, word: str) -> None:
    rasterio = pytest.importorskip("rasterio")
    size = {"width": 1, "height": 1, "count": 1, "dtype": "uint8"}
    place = rasterio.Affine.translation(1, 1)  # a file without a place causes a warning, and tests with one always run
    with rasterio.open(path, "w", driver="GTiff", transform=place, **size) as file:
        file.update_tags(word=word)


def _lmdb(path: Path, word: str) -> None:
    path.unlink(missing_ok=True)
    opened = pytest.importorskip("lmdb").open(str(path), subdir=False, lock=False)
    with opened, opened.begin(write=True) as transaction:
        transaction.put(b"word", word.encode())


def _safetensors(path: Path, word: str) -> None:
    header = json.dumps({"__metadata__": {"word": word}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)


def _tokenizer(path: Path, word: str) -> None:
    model = {"type": "WordLevel", "vocab": {word: 0}, "unk_token": word}
    path.write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}), "utf-8")


WRITERS: Final[dict[str, tuple[str, Callable[[Path, str], object]]]] = {
    **dict.fromkeys(("ParquetFile", "dataset", "pandas", "duckdb", "polars"), ("parquet", _parquet)),
    "arrow csv": ("csv", lambda path, word: path.write_text(f"word\n{word}\n", "utf-8")),
    "arrow json": ("json", lambda path, word: path.write_text(json.dumps({"word": word}), "utf-8")),
    "h5py": ("h5", _h5py),
    "netCDF4": ("nc", _netcdf),
    "rasterio": ("tif", _rasterio),
    "lmdb": ("mdb", _lmdb),
    "safetensors": ("safetensors", _safetensors),
    "tokenizers": ("json", _tokenizer),
    "sqlite": ("db", _sqlite),
}
_TEXT: Final = ("bin", lambda path, word: path.write_text(word, "utf-8"))


@pytest.fixture(scope="module", params=[*READERS])
def reader(request: pytest.FixtureRequest) -> str:
    """Return a reader whose library is imported.

    That is before pytester notes which modules are imported: it forgets later ones, and numpy is not imported twice.
    """
    name: str = request.param
    pytest.importorskip(READERS[name][0].split()[1].partition(".")[0])
    return name


def test_a_file_that_compiled_code_reads_is_an_input(
    cached_project: Project, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, expression = READERS[reader]
    project = cached_project
    project.write("pytest.ini", "[pytest]\npromptfmt_profiles = plain\npromptfmt_lint = false\n")
    project.task("t/first.yaml")
    monkeypatch.setenv("OF_A_TEST", str(project.root / "files"))
    ending, write = WRITERS.get(reader, _TEXT)
    files: list[Path] = []
    for number, (folder, path) in enumerate(PLACES.values()):
        file = project.root / folder.format(n=number) / f"d{number}.{ending}"
        file.parent.mkdir(parents=True, exist_ok=True)
        files.append(file)
        write(file, "one")
        place = path.format(name=file.name, root=project.root, ending=ending)
        code = f"import os\n{line}\n\ndef text(doc):\n    path = {place}\n    return doc['question'] + {expression}\n"
        project.write(f"t/{number}/utils.py", code)
        docs = [{"question": "Why?", "answer": "So.", "kind": f"d{number}"}]
        task = project.task(f"t/{number}/t{number}.yaml", doc_to_text=None, metadata={"promptfmt": {"docs": docs}})
        task.write_text(task.read_text("utf-8") + "doc_to_text: !function utils.text\n", "utf-8")
    project.settle()
    project.accept("t")
    plain = {"unchanged": 1}
    run, shown = {"passed": len(PLACES), **plain}, {"unchanged": len(PLACES) + 1}
    assert project.run("t").parseoutcomes() == (run if reader in RUN_EACH_TIME else shown)
    for file in files:
        status = file.stat()
        write(file, "two")
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert project.run("t").parseoutcomes() == {"failed": len(PLACES), **plain}
