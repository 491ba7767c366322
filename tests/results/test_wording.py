"""Numbers, lists and paths as reports show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_promptfmt.core.text import printable
from pytest_promptfmt.results.wording import accept_all, archetype_note, below, counted, first_of, listed


@pytest.mark.parametrize(
    ("number", "noun", "shown"),
    [(0, "item", "0 items"), (1, "item", "1 item"), (2, "item", "2 items"), (1319, "doc", "1,319 docs")],
)
def test_a_number_has_its_noun_in_the_right_form(number: int, noun: str, shown: str) -> None:
    assert counted(number, noun) == shown


def test_nouns_may_have_another_plural_and_infos_have_none() -> None:
    assert [counted(2, "entry", "entries"), counted(1, "entry", "entries"), counted(2, "info")] == [
        "2 entries",
        "1 entry",
        "2 info",
    ]


def test_names_and_lines_after_the_most_are_counted() -> None:
    names = ["a", "b", "c"]
    assert [listed(names, most) for most in (None, 3, 2, 1)] == [
        "a, b, c",
        "a, b, c",
        "a, b and 1 more",
        "a and 2 more",
    ]
    assert [*first_of(names, 3, "  ")] == ["  a", "  b", "  c"]
    assert [*first_of(names, None)] == names
    assert [*first_of(names, 1, "  ", "; -v")] == ["  a", "  … and 2 more; -v"]


def test_paths_are_those_below_the_rootdir(tmp_path: Path) -> None:
    assert below(str(tmp_path / "a/b.yaml"), tmp_path) == "a/b.yaml"
    assert below(str(tmp_path.parent / "b.yaml"), tmp_path) == (tmp_path.parent / "b.yaml").as_posix()
    assert below("", tmp_path) == ""


def test_the_command_that_accepts_has_no_options_of_reports() -> None:
    arguments = ["--promptfmt", "my tasks", "--junitxml", "x.xml", "--promptfmt-html=x.html", "-k", "a"]
    assert accept_all([*arguments, "--promptfmt-step-summary", "--promptfmt-json", "x.json"]) == (
        "pytest --promptfmt 'my tasks' -k a --snapshot-update"
    )


def test_approximations_are_named_only_where_there_are_some() -> None:
    assert archetype_note([]) == ""
    assert archetype_note(["a", "b"]) == "a, b: built-in approximations, not the models' own files"


def test_only_characters_that_draw_others_differently_are_escaped() -> None:
    assert printable("a\tb\n\u202eé\x1b\x7f") == "a\tb\n\\u202eé\\x1b\\x7f"
