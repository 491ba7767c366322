from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pytest_promptfmt.core.errors import DocsError, Position
from pytest_promptfmt.tasks.docs import data_files
from pytest_promptfmt.tasks.docs.data_files import read_data_file

SURROGATE = "\\ud800"


def read(path: Any, **options: Any) -> Any:
    return list(read_data_file(path, **options))


def written(tmp_path: Path, name: Any, data: Any) -> Any:
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


# -- JSON -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("x.jsonl", '{"a": 1}\n\n{"a": 2}'),
        ("x.jsonl", b'\xef\xbb\xbf{"a": 1}\r\n{"a": 2}\r\n'),
        ("x.json", '{"a": 1}\n{"a": 2}\n'),
        ("x.json", '\n [{"a": 1},\n {"a": 2}]'),
        ("x.ndjson", '[{"a": 1}, {"a": 2}]'),
    ],
)
def test_json_lines_and_arrays_are_told_apart_by_content(tmp_path: Path, name: Any, data: Any) -> None:
    assert read(written(tmp_path, name, data)) == [{"a": 1}, {"a": 2}]


def test_field_of_a_json_file(tmp_path: Path) -> None:
    path = written(tmp_path, "x.json", '{"version": 1, "data": [{"a": 1}]}')
    assert read(path, options={"field": "data"}) == [{"a": 1}]
    with pytest.raises(DocsError, match="no field 'rows'"):
        read(path, options={"field": "rows"})


@given(
    docs=st.lists(
        st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"])),
            st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
        ),
        max_size=5,
    )
)
def test_json_values_come_back_as_they_were_written(tmp_path: Path, docs: Any) -> None:
    path = written(tmp_path, "x.jsonl", "".join(json.dumps(doc) + "\n" for doc in docs))
    assert read(path) == docs


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"a": }', "invalid JSON: Expecting value"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": -Infinity}', "-Infinity is not a JSON number"),
        ('{"a": 1e999}', "too large"),
        ('{"a": ' + "9" * 5000 + "}", "invalid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"a": "' + SURROGATE + '"}', "surrogate"),
        ('{"' + SURROGATE.upper().replace("U", "u") + '": 1}', "surrogate"),
        ('{"a": "x\0y"}', "invalid JSON"),
        (b'{"a": "\xff"}', "not UTF-8"),
        ("3", "a doc is a number, not a mapping"),
        ("null", "a doc is null, not a mapping"),
        ('"text"', "a doc is a text, not a mapping"),
        ("[1]", "a doc is a list, not a mapping"),
    ],
)
def test_bad_line_is_told_with_its_number(tmp_path: Path, line: Any, said: Any) -> None:
    data = line if isinstance(line, bytes) else line.encode()
    path = written(tmp_path, "x.jsonl", b'{"a": 1}\n\n' + data + b"\n")
    with pytest.raises(DocsError, match=said) as caught:
        read(path)
    assert f"{Position(path, 3)}" in str(caught.value)


def test_escaped_nul_is_a_character_like_any_other(tmp_path: Path) -> None:
    assert read(written(tmp_path, "x.jsonl", '{"a": "x\\u0000y"}')) == [{"a": "x\0y"}]


def test_pair_of_surrogates_is_one_character(tmp_path: Path) -> None:
    assert read(written(tmp_path, "x.jsonl", '{"a": "\\ud83d\\ude00"}')) == [{"a": "\N{GRINNING FACE}"}]


def test_bad_array_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(DocsError) as caught:
        read(written(tmp_path, "x.json", '[{"a": 1},\n {"a": }]'))
    assert str(caught.value.position).endswith("x.json:2:8")


def test_array_of_something_else_is_told(tmp_path: Path) -> None:
    with pytest.raises(DocsError, match="doc 2 is a number"):
        read(written(tmp_path, "x.json", '[{"a": 1}, 2]'))


def test_endless_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "MAX_LINE_BYTES", 100)
    with pytest.raises(DocsError, match="the line is longer") as caught:
        read(written(tmp_path, "x.jsonl", '{"a": "' + "x" * 200 + '"}'))
    assert str(caught.value.position).split(":")[1] == "1"


def test_large_array_is_refused_and_large_lines_end_the_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_files, "MAX_FILE_BYTES", 30)
    with pytest.raises(DocsError, match="the file is larger"):
        read(written(tmp_path, "x.json", "[" + '{"a": 1},' * 9 + "{}]"))
    assert len(read(written(tmp_path, "x.jsonl", '{"a": 1}\n' * 9))) == 3


def test_lines_are_read_one_by_one(tmp_path: Path) -> None:
    docs = read_data_file(written(tmp_path, "x.jsonl", '{"a": 1}\nbroken'))
    assert next(docs) == {"a": 1}
    with pytest.raises(DocsError):
        next(docs)


# -- CSV --------------------------------------------------------------------------------------------------------------


def real_datasets_docs(path: Any, tmp_path: Path, **options: Any) -> Any:
    datasets = pytest.importorskip("datasets")
    return list(datasets.Dataset.from_csv(str(path), cache_dir=str(tmp_path / "cache"), **options))


def assert_same_docs(ours: Any, theirs: Any) -> None:
    assert ours == theirs
    assert [[type(v) for v in doc.values()] for doc in ours] == [[type(v) for v in doc.values()] for doc in theirs]


COLUMNS = {
    "integers": ["1", "-2", "+3"],
    "padded integers": ["007", " 8", "9"],
    "integers and a gap": ["1", "", "3"],
    "floats": ["1.5", ".5", "2e3"],
    "floats and integers": ["1", "2.5", "3."],
    "infinity": ["inf", "-Infinity", "1"],
    "booleans": ["True", "FALSE", "true"],
    "booleans and a gap": ["True", "NA", "False"],
    "booleans and integers": ["True", "1", "0"],
    "text": ["a", " b ", "c,d"],
    "text and a gap": ["a", "null", "None"],
    "text and numbers": ["a", "1", "2.50"],
    "nothing": ["", "NA", "n/a"],
    "line ends": ["a\nb", 'say "x"', "c"],
    "dates": ["2020-01-01", "2020-01-02", "2020-01-03"],
    "underscores": ["1_000", "2", "3"],
    "not numbers": ["0x1F", "1e", "1.2.3"],
    "large": ["9223372036854775807", "1", "2"],
    "unicode": ["ä", "\N{GRINNING FACE}", "٣"],
}


@pytest.mark.parametrize("cells", COLUMNS.values(), ids=COLUMNS.keys())
def test_csv_values_have_the_types_datasets_gives_them(tmp_path: Path, cells: Any) -> None:
    text = io.StringIO()
    csv.writer(text).writerows([["key", "value"], *(["k", cell] for cell in cells)])
    path = written(tmp_path, "x.csv", text.getvalue())
    assert_same_docs(read(path), real_datasets_docs(path, tmp_path))


@pytest.mark.parametrize(
    "text",
    [
        "a,a,,b\n1,2,3,4\n",
        "a,b\n1\n2,3\n",
        "\ufeffa,b\n1,2\n",
        "a,b\r\n1,2\r\n\r\n3,4\r\n",
        'a,b\n"1","x ""y"" z"\n',
        "a,a,a.1\n1,2,3\n",
    ],
)
def test_csv_layout_is_read_as_datasets_reads_it(tmp_path: Path, text: Any) -> None:
    path = written(tmp_path, "x.csv", text)
    assert_same_docs(read(path), real_datasets_docs(path, tmp_path))


def test_csv_delimiter_and_names_can_be_given(tmp_path: Path) -> None:
    path = written(tmp_path, "x.csv", "1;x\n2;y\n")
    options = {"delimiter": ";", "column_names": ["a", "b"]}
    assert_same_docs(read(path, options=options), real_datasets_docs(path, tmp_path, **options))


def test_tsv_is_split_at_tabs(tmp_path: Path) -> None:
    assert read(written(tmp_path, "x.tsv", "a\tb\n1\tx, y\n")) == [{"a": 1, "b": "x, y"}]


def test_csv_line_with_too_many_fields_is_told(tmp_path: Path) -> None:
    with pytest.raises(DocsError, match="the line has 3 fields, but the header has 2") as caught:
        read(written(tmp_path, "x.csv", "a,b\n1,2\n1,2,3\n"))
    assert str(caught.value.position).split(":")[1] == "3"


@pytest.mark.parametrize("options", [{"skiprows": 2}, {"delimiter": "ab"}, {"quotechar": 3}])
def test_csv_options_that_cannot_be_followed_are_told(tmp_path: Path, options: Any) -> None:
    with pytest.raises(DocsError):
        read(written(tmp_path, "x.csv", "a,b\n1,2\n"), options=options)


def test_csv_that_is_no_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(DocsError, match="not UTF-8"):
        read(written(tmp_path, "x.csv", b"a,b\n\xff,2\n"))


def test_reading_csv_leaves_the_limit_of_the_module_alone(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    assert len(read(written(tmp_path, "x.csv", "a\n" + "x" * 200_000 + "\n"))) == 1
    assert csv.field_size_limit() == before


# -- Parquet ----------------------------------------------------------------------------------------------------------


def test_parquet_docs_are_those_that_datasets_reads(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    docs = [{"a": 1, "b": ["x", None], "c": {"d": 1.5}}, {"a": None, "b": [], "c": {"d": 2.0}}]
    path = tmp_path / "x.parquet"
    datasets.Dataset.from_list(docs).to_parquet(path)
    assert read(path) == docs == list(datasets.Dataset.from_parquet(str(path), cache_dir=str(tmp_path / "cache")))


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" + b"\0" * 100 + b"PAR1"])
def test_damaged_parquet_is_told(tmp_path: Path, data: Any) -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(DocsError, match="not a readable Parquet"):
        read(written(tmp_path, "x.parquet", data))


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(DocsError, match=r"pytest-promptfmt\[datasets\]"):
        read(written(tmp_path, "x.parquet", b"PAR1"))


def test_unknown_kind_of_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(DocsError, match="unknown kind of data file") as caught:
        read(Path(tmp_path / "x.xlsx"))
    assert ".jsonl" in str(caught.value.hint)
