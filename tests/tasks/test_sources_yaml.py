from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from pytest_promptfmt.core.errors import Position, SourceError
from pytest_promptfmt.core.task import FunctionRef
from pytest_promptfmt.tasks.yaml_file import YamlFile, read_yaml


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / next(iter(files))


def refused(folder: Path, files: dict[str, str]) -> SourceError:
    with pytest.raises(SourceError) as caught:
        read_yaml(write(folder, files))
    return caught.value


def place(file: YamlFile, *keys: str | int) -> tuple[str, int | None, int | None] | None:
    position = file.locate(keys)
    return None if position is None else (position.path.name, position.line, position.column)


def at(error: SourceError) -> tuple[int | None, int | None]:
    assert error.position is not None
    return error.position.line, error.position.column


def test_local_keys_win_over_includes_and_keys_of_includes_stand_first(tmp_path: Path) -> None:
    path = write(tmp_path, {"t.yaml": "task: a\ninclude: base\nq: 2\n", "base": "q: 1\nr: {x: 1}\ntask_list: [z]\n"})
    file = read_yaml(path)
    assert list(file.config.items()) == [("q", 2), ("r", {"x": 1}), ("task", "a")]


def test_an_include_is_relative_to_the_file_that_contains_it(tmp_path: Path) -> None:
    path = write(tmp_path, {"a/t.yaml": "include: ../b/x\n", "b/x": "include: y\n", "b/y": "task: t\n"})
    assert dict(read_yaml(path).config) == {"task": "t"}


def test_an_absolute_include_and_a_link_are_followed(tmp_path: Path) -> None:
    write(tmp_path, {"real/base": "include: beside\n", "real/beside": "q: 1\n"})
    (tmp_path / "link").symlink_to(tmp_path / "real" / "base")
    path = write(tmp_path, {"t.yaml": f"include: {tmp_path / 'link'}\n"})
    assert dict(read_yaml(path).config) == {"q": 1}


def test_function_tags_are_references_with_folder_and_place_and_nothing_runs(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "utils.py").write_text("raise SystemExit('must not run')")
    file = read_yaml(write(tmp_path, {"t.yaml": "include: d/base\n", "d/base": "a: 1\nf: !function sub.utils.g\n"}))
    reference = file.config["f"]
    assert reference == FunctionRef("sub.utils", "g", tmp_path / "d", Position(tmp_path / "d" / "base", 2, 4))


def test_positions_of_top_level_and_nested_keys_point_into_the_file_that_won(tmp_path: Path) -> None:
    file = read_yaml(
        write(
            tmp_path,
            {
                "t.yaml": "include: base\n'task': a\nmetric_list:\n"
                "  - metric: acc\n  -   {metric: f1, aggregation: mean}\n",
                "base": "# first\nmetric_list: []\nfewshot_config:\n"
                "  sampler: first_n\n  samples:\n  - q: 1\n    r: 2\n",
            },
        )
    )
    assert place(file, "task") == ("t.yaml", 2, 1)
    assert place(file, "metric_list") == ("t.yaml", 3, 1)
    assert place(file, "metric_list", 1) == ("t.yaml", 5, 7)
    assert place(file, "metric_list", 1, "aggregation") == ("t.yaml", 5, 20)
    assert place(file, "fewshot_config", "samples", 0, "r") == ("base", 7, 5)
    assert place(file, "fewshot_config", "split") is None
    assert place(file, "metric_list", 7) is None
    assert place(file, "nothing") is None
    assert file.locate(()) is None


def test_positions_are_found_through_merge_keys(tmp_path: Path) -> None:
    file = read_yaml(write(tmp_path, {"t.yaml": "x: &x {a: 1}\ny:\n  <<: *x\n  b: 2\n<<: {task: t}\n"}))
    assert dict(file.config) == {"task": "t", "x": {"a": 1}, "y": {"a": 1, "b": 2}}
    assert place(file, "y", "a") == ("t.yaml", 1, 8)
    assert place(file, "task") == ("t.yaml", 5, 6)


def test_a_key_written_twice_is_noted_with_the_later_place(tmp_path: Path) -> None:
    file = read_yaml(write(tmp_path, {"t.yaml": "task: a\nq: 1\ntask: b\n"}))
    assert file.config["task"] == "b"
    assert file.repeated == (("task", Position(tmp_path / "t.yaml", 3, 1), False),)


@pytest.mark.parametrize(
    ("text", "repeated"),
    [
        ("task: t\na: {b: 1, b: 1}\n", [("b", 2, 11, True)]),
        ("task: t\na:\n- b: 1\n  c: 2\n  b: 2\n  b: 1\n", [("b", 5, 3, False), ("b", 6, 3, True)]),
        ("task: t\na: {1: x, 1: x, '1': y}\n", [(1, 2, 11, True)]),
        ("task: t\nx: &x {b: 1}\na:\n  <<: *x\n  <<: *x\n  b: 2\n", []),
        ("task: t\na: {b: {c: [1, 2]}, b: {c: [1, 2]}}\n", [("b", 2, 21, True)]),
    ],
)
def test_keys_repeated_below_the_top_are_noted_once_with_whether_they_hold_the_same(
    text: str, repeated: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    [part] = read_yaml(write(tmp_path, {"t.yaml": text})).parts
    found = [(each.name, each.position.line, each.position.column, each.is_same) for each in part.repeated_inside]
    assert found == repeated


def test_a_changed_file_is_read_again_and_an_unchanged_one_is_shared(tmp_path: Path) -> None:
    path = write(tmp_path, {"t.yaml": "q: {a: 1}\n"})
    first = read_yaml(path)
    assert read_yaml(path).config["q"] is first.config["q"]
    path.write_text("q: {a: 22}\n")
    assert read_yaml(path).config["q"] == {"a": 22}
    assert first.config["q"] == {"a": 1}


def test_the_merged_mapping_cannot_be_changed(tmp_path: Path) -> None:
    config = read_yaml(write(tmp_path, {"t.yaml": "q: 1\n"})).config
    with pytest.raises(TypeError):
        config["q"] = 2  # type: ignore[index]


JINJA_HINT = "put quotes around a Jinja template that starts with '{{' or '{%', or write it after '|'"
DIAMOND = {"t.yaml": "include: [x, y]\n", "x": "s: 1\ninclude: z\n", "y": "s: 2\ninclude: z\n", "z": "r: 1\n"}


def harness_in(folder: Path, release: str) -> None:
    """Put a harness of a release around the files of a folder."""
    (folder / "lm_eval" / "tasks").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(f'[project]\nname = "lm_eval"\nversion = "{release}"\n')


@pytest.mark.parametrize("is_submodule", [False, True])
def test_a_harmless_diamond_is_read_as_before_0_4_12_and_the_first_include_wins(
    is_submodule: bool, tmp_path: Path
) -> None:
    if is_submodule:  # of an unknown release, not checked out
        (tmp_path / ".gitmodules").write_text('[submodule "lm-evaluation-harness"]\n')
    else:
        harness_in(tmp_path, "0.4.11")
    file = read_yaml(write(tmp_path, DIAMOND))
    assert dict(file.config) == {"r": 1, "s": 1}
    assert [(position.path.name, position.line) for position in file.early] == [("x", 2)]


def test_a_harmless_diamond_is_refused_with_both_routes_since_0_4_12(tmp_path: Path) -> None:
    harness_in(tmp_path, "0.4.12")
    error = refused(tmp_path, DIAMOND)
    assert at(error) == (2, 1)
    assert error.position is not None
    assert error.position.path.name == "y"
    assert "x -> " in error.message
    assert "y -> " in error.message
    assert "lm-eval 0.4.12" in (error.hint or "")


def test_a_circle_of_includes_is_refused(tmp_path: Path) -> None:
    error = refused(tmp_path, {"t.yaml": "include: x\n", "x": "include: t.yaml\n"})
    assert "circle" in error.message


def test_a_missing_include_suggests_the_file_that_was_meant(tmp_path: Path) -> None:
    error = refused(tmp_path, {"t.yaml": "task: a\ninclude:\n  - _template\n", "_template_yaml": "q: 1\n"})
    assert at(error) == (3, 5)
    assert error.hint == "did you mean '_template_yaml'?"


@pytest.mark.parametrize(
    "text", ["include:\n", "include: 5\n", "include: {a: b}\n", "include: [null]\n", "include: ''\n"]
)
def test_an_include_that_is_no_path_is_refused_with_its_place(text: str, tmp_path: Path) -> None:
    assert at(refused(tmp_path, {"t.yaml": text}))[0] == 1


def test_a_tilde_in_an_include_is_not_the_home_folder(tmp_path: Path) -> None:
    assert "does not expand '~'" in (refused(tmp_path, {"t.yaml": "include: ~/x\n"}).hint or "")


@pytest.mark.parametrize(
    ("text", "line", "column", "said"),
    [
        ("task: a\n\tq: 1\n", 2, 1, "cannot start a value"),
        ("task: a: b\n", 1, 8, "put quotes around text that contains ': '"),
        ("task: a\ndoc_to_text: {{question}}\n", 2, 15, JINJA_HINT),
        ("doc_to_text: {{question}} and more\n", 1, 27, JINJA_HINT),
        ("task: 'a\nq: 1\n", 1, 7, "never closed"),
        ("task: a\nq: [1, 2\nr: 1\n", 3, 2, "not closed"),
        ("task: a\n  q: 1\n", 2, 4, "quotes"),
        ("task: !fuction a.b\n", 1, 7, "did you mean '!function'?"),
        ("task: !!python/object:os.system x\n", 1, 7, "unknown tag"),
        ("task: !function f\n", 1, 7, "module.function"),
        ("task: !function [a]\n", 1, 7, "scalar"),
        ("task: a\nq: 2024-13-45\n", 2, 4, "is not a valid date"),
        ("q: !!int abc\n", 1, 4, "is not a valid number"),
        ("q: !!bool abc\n", 1, 4, "is not a valid truth value"),
        ("q: *nowhere\n", 1, 4, "no '&' defines"),
        ("? [a, b]\n: c\n", 1, 3, "cannot be a key"),
        ('q:\n  - "a"\n  - "\\d"\n', 3, None, "backslash"),
        ("a: 1\n---\nb: 2\n", 2, 1, "second YAML document"),
        ("- a\n- b\n", 1, 1, "a list at its top level"),
        ("just text\n", 1, 1, "a single value at its top level"),
        ("", None, None, "nothing at its top level"),
        ("a: &x [*x]\n", 1, 4, "contains an alias of itself"),
        ("q: \x07\n", 1, 4, "control character U+0007"),
    ],
)
def test_broken_yaml_is_explained_where_it_breaks(
    text: str, line: int | None, column: int | None, said: str, tmp_path: Path
) -> None:
    error = refused(tmp_path, {"t.yaml": text})
    # libyaml and PyYAML's own scanner disagree by one column inside quotes
    assert at(error) == (line, column if column is not None or line is None else at(error)[1])
    assert said in str(error)


def test_bytes_that_are_no_utf_8_are_named_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_bytes("task: a\nq: ü".encode() + b"\xff\n")
    with pytest.raises(SourceError, match="not UTF-8: byte 0xff") as caught:
        read_yaml(path)
    assert at(caught.value) == (2, 5)


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 200_000,
        "a: " + "{a: " * 200_000,
        "- " * 200_000 + "a",
        "? " * 200_000 + "a",
        "".join(" " * depth + "a:\n" for depth in range(500)),
        "a: " + "[" * 99 + "]" * 99 + " ]" + "[" * 200_000,
    ],
    ids=["lists", "mappings", "dashes", "keys", "blocks", "lists after a mistake"],
)
def test_deep_nesting_is_refused_and_overflows_nothing(text: str, tmp_path: Path) -> None:
    error = refused(tmp_path, {"t.yaml": text})
    assert error.position is not None
    assert "deep" in error.message or "not valid YAML" in error.message


def test_nesting_as_people_write_it_is_accepted(tmp_path: Path) -> None:
    write(tmp_path, {"t.yaml": "a: " + "[" * 60 + "]" * 60})
    assert "a" in read_yaml(tmp_path / "t.yaml").config


def test_aliases_that_multiply_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert "300,000 values, its aliases written out" in refused(tmp_path, {"t.yaml": "\n".join(lines)}).message


def test_aliases_that_nest_without_end_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 5000))]
    assert "deep" in refused(tmp_path, {"t.yaml": "\n".join(lines)}).message


def test_merge_keys_that_multiply_are_refused(tmp_path: Path) -> None:
    # PyYAML 6.0.4 merges the same key once, so that only different keys can become many.
    lines = [f"a0_{m}: &a0_{m} {{{', '.join(f'k{m}_{n}: 1' for n in range(1_500))}}}" for m in range(9)]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join(f'*a0_{m}' for m in range(9))}]}}" for n in range(1, 3)]
    assert "'<<' merges more than" in refused(tmp_path, {"t.yaml": "\n".join(lines)}).message


@pytest.mark.parametrize("number", ["9" * 50_000, "1" + ":1" * 200_000])
def test_numbers_without_end_are_refused(number: str, tmp_path: Path) -> None:
    assert "digits" in refused(tmp_path, {"t.yaml": f"a: {number}\n"}).message


@pytest.mark.parametrize("text", ["x:\n" + "- a\n" * 400_000, "x: [" + "a," * 400_000 + "]"], ids=["lines", "commas"])
def test_values_without_number_are_refused(text: str, tmp_path: Path) -> None:
    assert "more than 300,000 values" in refused(tmp_path, {"t.yaml": text}).message


def test_a_long_text_is_no_problem(tmp_path: Path) -> None:
    path = write(tmp_path, {"t.yaml": "x: |\n" + "  a, [b]\n" * 400_000})
    assert len(read_yaml(path).config["x"]) == 7 * 400_000


def test_a_file_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    with path.open("wb") as stream:
        stream.truncate(9 * 2**20)
    with pytest.raises(SourceError, match="9 MiB"):
        read_yaml(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_an_include_of_a_pipe_is_refused_instead_of_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refused(tmp_path, {"t.yaml": "include: pipe\n"}).message


def test_a_missing_file_suggests_its_neighbour(tmp_path: Path) -> None:
    write(tmp_path, {"arc_easy.yaml": "task: a\n"})
    with pytest.raises(SourceError) as caught:
        read_yaml(tmp_path / "arc_esay.yaml")
    assert caught.value.hint == "did you mean 'arc_easy.yaml'?"


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(min_size=1, max_size=8).filter(lambda key: key not in ("include", "<<")), plain_values))
def test_what_pyyaml_writes_is_read_back(tmp_path: Path, value: dict[str, object]) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(yaml.safe_dump(value, sort_keys=False), encoding="utf-8")
    file = read_yaml(path)
    assert dict(file.config) == value
    assert all(file.locate((key,)) is not None for key in value)


@given(st.binary(max_size=200) | st.text("ab:-[]{}#&*!|>'\"% \n\t?,<", max_size=60).map(str.encode))
def test_any_bytes_give_a_mapping_or_a_source_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "t.yaml"
    path.write_bytes(data)
    try:
        read_yaml(path)
    except SourceError as error:
        explained = error.position is not None and bool(str(error))
    else:
        explained = True
    assert explained
