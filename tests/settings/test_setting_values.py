"""The types of values that settings have: what each takes from YAML and from the command line, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from typing import Any

import pytest

from pytest_promptfmt.settings.table import split_codes, type_named


def is_taken(read: Callable[[Any], Any], written: Any) -> bool:
    try:
        read(written)
    except ValueError:  # of any reader of numbers or dates, so with any message
        return False
    return True


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        ("flag", True, True),
        ("text", "", ""),
        ("name", "a", "a"),
        ("name_or_none", None, None),
        ("name_or_none", "a", "a"),
        ("seconds", 0.5, 0.5),
        ("seconds", 2, 2.0),
        ("names", "a", ("a",)),
        ("names", ["a", "b"], ("a", "b")),
        ("codes", "PF1, PF2", ("PF1", "PF2")),
        ("codes", ["PF1 PF2", "PF3"], ("PF1", "PF2", "PF3")),
        ("per_file", {"a*": "PF1,PF2", "b": ["PF3"]}, ("a*: PF1 PF2", "b: PF3")),
        ("trained", "t", (("*.jinja", "t"),)),
        ("trained", {"a_*": "t"}, (("a_*", "t"),)),
        ("arguments", {"a": [1, {"b": None}], "on": date(2024, 7, 26)}, {"a": [1, {"b": None}], "on": "2024-07-26"}),
        ("release", "0.4.9", "0.4.9"),
        ("release", "0.4.11.dev0", "0.4.11.dev0"),
        ("release", "0.4.9.1", "0.4.9.1"),
        ("clock", date(2024, 7, 26), datetime(2024, 7, 26, 12)),
        ("clock", "2024-07-26T08:00", datetime(2024, 7, 26, 8)),
        ("clock", datetime(2024, 7, 26, 1), datetime(2024, 7, 26, 1)),
        ("scoring", "none", "none"),
        ("whole 1", 1, 1),
        ("whole 0", 0, 0),
        ("one of fast installed", "installed", "installed"),
        ("several of a b", ["b", "a"], ("b", "a")),
        ("several of a b", "b", ("b",)),
    ],
)
def test_values_of_yaml_are_taken(kind: str, written: Any, value: Any) -> None:
    assert type_named(kind).convert(written) == value


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ("flag", 1),
        ("flag", "true"),
        ("text", None),
        ("name", ""),
        ("name", 1),
        ("name_or_none", ""),
        ("seconds", 0),
        ("seconds", True),
        ("seconds", float("inf")),
        ("seconds", float("nan")),
        ("seconds", "2"),
        ("names", [""]),
        ("names", [1]),
        ("names", {"a": 1}),
        ("per_file", {" ": "PF1"}),
        ("per_file", {1: "PF1"}),
        ("per_file", ["PF1"]),
        ("trained", ["a"]),
        ("trained", {"a": ""}),
        ("arguments", {1: "a"}),
        ("arguments", {"a": {1: "b"}}),
        ("arguments", {"a": {1, 2}}),
        ("arguments", ["a"]),
        ("release", "0.4"),
        ("release", "v0.4.9"),
        ("release", 0.4),
        ("clock", "soon"),
        ("clock", 2024),
        ("scoring", "true"),
        ("whole 1", 0),
        ("whole 0", -1),
        ("whole 0", True),
        ("whole 0", 1.0),
        ("one of fast installed", "slow"),
        ("several of a b", ["c"]),
    ],
)
def test_other_values_are_refused(kind: str, written: Any) -> None:
    assert not is_taken(type_named(kind).convert, written)


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        ("whole 1", "12", 12),
        ("seconds", "1.5", 1.5),
        ("scoring", " True", "all"),
        ("scoring", "false", "none"),
        ("scoring", "AUTO", "auto"),
        ("one of fast installed", "Fast ", "fast"),
        ("codes", ["PF1,PF2"], ("PF1", "PF2")),
        ("names", ["a"], ("a",)),
        ("text", "a", "a"),
        ("release", "0.4.13", "0.4.13"),
    ],
)
def test_texts_of_options_are_read(kind: str, written: Any, value: Any) -> None:
    assert type_named(kind).parse(written) == value


@pytest.mark.parametrize(
    ("kind", "written"), [("whole 1", "0"), ("whole 1", "x"), ("seconds", "0"), ("scoring", "yes"), ("release", "4")]
)
def test_other_texts_are_refused(kind: str, written: str) -> None:
    assert not is_taken(type_named(kind).parse, written)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("whole 3", "a whole number, 3 or more"),
        ("one of a b c", "a, b or c"),
        ("several of a b c", "a list of a, b and c"),
    ],
)
def test_types_are_described_in_words(kind: str, expected: str) -> None:
    assert type_named(kind).expected == expected


def test_codes_have_commas_or_blanks_between_them() -> None:
    assert split_codes(["PF1,PF2", " PF3\tPF4 , ", ""]) == ("PF1", "PF2", "PF3", "PF4")
