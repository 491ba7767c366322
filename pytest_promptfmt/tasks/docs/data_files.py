"""Docs out of local data files: JSON, JSON lines, CSV and Parquet, read no further than needed.

Values are as in the file. CSV columns get the types that Hugging Face datasets 5.2 (which uses pandas) gives them,
because a CSV file itself has none. No file is trusted.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn

from pytest_promptfmt.core import gate
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.docs import Doc
from pytest_promptfmt.core.errors import DocsError, Position, did_you_mean, display_path, json_mistake
from pytest_promptfmt.core.files import expanded_home

MAX_DOCS: Final = 10_000
"""The most docs that are read where a whole split is wanted (few-shot pools, `process_docs`)."""

MAX_LINE_BYTES: Final = 16 * 2**20
MAX_FILE_BYTES: Final = 256 * 2**20
"""How far into a file is read; a .json array, which has to be read whole, may not be larger."""

MAX_PARQUET_BYTES: Final = 2**31
"""The largest Parquet file that is opened; only its first row groups are read."""

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def read_data_file(
    path: Path, *, kind: str | None = None, options: Mapping[str, Any] | None = None, position: Position | None = None
) -> Iterator[Doc]:
    """Yield the docs of a local file, lazily where the format allows it.

    `kind` is `json`, `csv` or `parquet`, by default what the file's name ends in. `options` are the keyword arguments
    of the dataset (`field`, `delimiter`, `column_names`). `position` is where the file is named. Raises DocsError
    with file and line for everything that cannot be read.
    """
    kind = kind or kind_of(path)
    if kind is None:
        message, hint = f"unknown kind of data file: {display_path(path)}", f"use one of {', '.join(SUFFIXES)}"
        raise DocsError(message, position=position, hint=hint)
    try:
        gate.status_of(path)
        yield from _READERS[kind](path, options or {})
    except FileNotFoundError:
        raise missing_file(path, position) from None
    except ValueError as error:  # a name that no file can have
        raise DocsError(f"cannot read {path.name!r}: {error}", position=position) from error
    except OSError as error:
        where = position or Position(path)
        raise DocsError(f"cannot read {display_path(path)}: {error.strerror or error}", position=where) from error


def named_file(folder: Path, written: str, position: Position | None) -> Path:
    """Return the path of a file that another one names, `~` expanded; raises DocsError for one that is not opened."""
    try:
        return gate.named(folder, expanded_home(written))
    except gate.RefusedError as error:
        raise DocsError(f"cannot read {written!r}: {error.strerror}", position=position) from error


def kind_of(path: Path) -> str | None:
    """Return the kind of data file by the end of its name, None for other files."""
    return SUFFIXES.get(path.suffix.lower())


def missing_file(path: Path, position: Position | None) -> DocsError:
    """Return the error for a data file that is not there, naming the closest one that is."""
    if os.path.islink(path):  # noqa: PTH114  # Path.is_symlink raises for a name that is too long
        return DocsError(f"missing docs file: {display_path(path)} is a broken link", position=position)
    beside = [name for name in gate.names_in(path.parent) if kind_of(Path(name))]
    hint = did_you_mean(path.name, beside) or "paths are relative to the task file"
    return DocsError(f"missing docs file: {display_path(path)}", position=position, hint=hint)


# -- JSON ------------------------------------------------------------------------------------------------------------


def _read_json(path: Path, options: Mapping[str, Any]) -> Iterator[Doc]:
    with gate.open_file(path) as file:
        start = file.read(4096).removeprefix(_BYTE_ORDER_MARK).lstrip()
        file.seek(0)
        if options.get("field") is None and start[:1] != b"[":
            yield from _json_lines(file, path)
        else:
            yield from _json_array(file, path, options.get("field"))


def _json_lines(file: BinaryIO, path: Path) -> Iterator[Doc]:
    number = read = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        read += len(line)
        if number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        where = Position(path, number)
        if len(line) > MAX_LINE_BYTES:
            raise DocsError(f"the line is longer than {MAX_LINE_BYTES // 2**20} MiB", position=where)
        if not line.strip():
            continue
        if read > MAX_FILE_BYTES:
            return
        yield _mapping(_parsed(line, where), where)


def _json_array(file: BinaryIO, path: Path, field: Any) -> Iterator[Doc]:
    data = file.read(MAX_FILE_BYTES + 1)
    where = Position(path)
    if len(data) > MAX_FILE_BYTES:
        raise DocsError(
            f"the file is larger than {MAX_FILE_BYTES // 2**20} MiB",
            position=where,
            hint="store the docs as .jsonl, with one doc in each line. Then only the necessary lines are read",
        )
    docs = _parsed(data.removeprefix(_BYTE_ORDER_MARK), where)
    if field is not None:
        if not isinstance(docs, Mapping) or field not in docs:
            raise DocsError(f"the file has no field {field!r} at its top level", position=where)
        docs = docs[field]
    if not isinstance(docs, list):
        raise DocsError(f"expected a list of docs, not {_kind_name(docs)}", position=where)
    for index, doc in enumerate(docs):
        yield _mapping(doc, where, f"doc {index + 1}")


def _mapping(value: Any, where: Position, what: str = "a doc") -> Doc:
    if not isinstance(value, dict):
        raise DocsError(f"{what} is {_kind_name(value)}, not a mapping of columns", position=where)
    return value


def _kind_name(value: Any) -> str:
    names = {list: "a list", dict: "a mapping", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _parsed(data: bytes, where: Position) -> Any:
    try:
        text = data.decode()
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        line = (where.line or 1) + error.lineno - 1
        raise DocsError(
            f"invalid JSON: {json_mistake(error)}", position=Position(where.path, line, error.colno)
        ) from None
    except UnicodeDecodeError as error:
        raise DocsError(f"not UTF-8 (byte {error.start + 1})", position=where) from None
    except UnicodeEncodeError:
        raise DocsError("a text has half of a surrogate pair, which no tokenizer can encode", position=where) from None
    except RecursionError:
        raise DocsError("the JSON is nested too deeply", position=where) from None
    except ValueError as error:
        raise DocsError(f"invalid JSON: {error}", position=where) from None
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"the number {digits[:20]} is too large")
    return number


# -- CSV -------------------------------------------------------------------------------------------------------------

_TABLE: Final = data_table("data_files")
_MISSING: Final = frozenset(_TABLE["missing"])
_BOOLEANS: Final = {"True": True, "TRUE": True, "true": True, "False": False, "FALSE": False, "false": False}
_INTEGER: Final = re.compile(r"\s*[+-]?[0-9]{1,19}\s*", re.ASCII)
_FLOAT: Final = re.compile(r"\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*", re.ASCII)
_INFINITE: Final = re.compile(r"\s*[+-]?inf(?:inity)?\s*", re.IGNORECASE)
_CSV_OPTIONS: Final = frozenset(_TABLE["csv_options"])


def _read_csv(path: Path, options: Mapping[str, Any]) -> Iterator[Doc]:
    unknown = sorted(str(key) for key in set(options) - _CSV_OPTIONS - {*_TABLE["other_options"]})
    if unknown:
        known = sorted(_CSV_OPTIONS)
        raise DocsError(
            f"cannot read {display_path(path)}: unsupported option {unknown[0]!r}",
            hint=f"use only {' and '.join((', '.join(known[:-1]), known[-1]))}, or write the docs as .jsonl",
        )
    delimiter = options.get("sep") or options.get("delimiter") or ("\t" if path.suffix.lower() == ".tsv" else ",")
    limit = csv.field_size_limit(MAX_LINE_BYTES)
    try:
        with gate.open_text(path, "utf-8-sig", newline="") as file:
            rows = csv.reader(file, delimiter=delimiter, quotechar=options.get("quotechar", '"'))
            header = options.get("column_names") or options.get("names") or next(rows, None) or ()
            names = _unique_names([str(name) for name in header])
            cells = list(_cells(path, rows, len(names)))
    except UnicodeDecodeError as error:
        raise DocsError(f"not UTF-8 (byte {error.start + 1})", position=Position(path)) from None
    except (csv.Error, TypeError) as error:
        raise DocsError(f"invalid CSV: {error}", position=Position(path)) from None
    finally:
        csv.field_size_limit(limit)
    columns = [typed_column(column) for column in zip(*cells, strict=True)]
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def _cells(path: Path, rows: Any, width: int) -> Iterator[list[str]]:
    for row in islice(rows, MAX_DOCS):
        if len(row) > width:
            raise DocsError(
                f"the line has {len(row)} fields, but the header has {width}",
                position=Position(path, rows.line_num),
                hint="put quotes around text that contains the delimiter",
            )
        if row:
            yield row + [""] * (width - len(row))


def _unique_names(names: Sequence[str]) -> list[str]:
    """Return the header as pandas reads it: no name empty, none twice."""
    unique: dict[str, None] = {}
    for place, name in enumerate(names):
        wanted = first = name or f"Unnamed: {place}"
        again = 0
        while wanted in unique or (again and wanted in names):
            again += 1
            wanted = f"{first}.{again}"
        unique[wanted] = None
    return list(unique)


def typed_column(cells: Sequence[str]) -> list[Any]:
    """Return the values of one CSV column: integers, floats, booleans or text, None where one is missing.

    As pandas does, one missing value makes integers floats, and one text makes everything text.
    """
    present = [cell for cell in cells if cell not in _MISSING]
    missing = len(present) < len(cells)
    if not present:
        return [None] * len(cells)
    if all(_INTEGER.fullmatch(cell) for cell in present) and all(-(2**63) <= int(cell) < 2**63 for cell in present):
        number: Callable[[str], Any] = float if missing else int
    elif all(_FLOAT.fullmatch(cell) or _INFINITE.fullmatch(cell) for cell in present):
        number = float
    elif all(cell in _BOOLEANS for cell in present):
        number = _BOOLEANS.__getitem__
    else:
        number = str
    return [None if cell in _MISSING else number(cell) for cell in cells]


# -- Parquet ---------------------------------------------------------------------------------------------------------


def _read_parquet(path: Path, _: Mapping[str, Any]) -> Iterator[Doc]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        what = f"reading {display_path(path)}"
        raise needs_datasets(what, Position(path)).naming(what) from error
    try:
        with gate.open_file(path, limit=MAX_PARQUET_BYTES) as opened, parquet.ParquetFile(opened) as file:
            for batch in file.iter_batches(batch_size=64):
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise DocsError(f"not a readable Parquet file: {error}", position=Position(path)) from error


def needs_datasets(what: str, position: Position | None) -> DocsError:
    """Return the error for something that needs the optional package `datasets`."""
    return DocsError(
        f"{what} needs the package datasets",
        position=position,
        hint='pip install "pytest-promptfmt[datasets]"',
    )


SUFFIXES: Final[Mapping[str, str]] = _TABLE["suffixes"]
_READERS: Final[Mapping[str, Callable[[Path, Mapping[str, Any]], Iterator[Doc]]]] = {
    "json": _read_json,
    "csv": _read_csv,
    "parquet": _read_parquet,
}
KINDS: Final = tuple(_READERS)
