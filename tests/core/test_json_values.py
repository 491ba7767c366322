"""Values that another process wrote: each reader returns its kind, and refuses every other."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_promptfmt.core import json_values

NUMBERS: list[Any] = [1, 0, -(2**53), 2**53, 2**53 + 1, -(2**53) - 1, 1.5]
VALUES: list[Any] = ["a", "", *NUMBERS, True, False, None, ["a"], ("a",), [], {}]


@pytest.mark.parametrize(
    ("read", "accepted"),
    [
        (json_values.text, ["a", ""]),
        (json_values.number, [1, 0, -(2**53), 2**53]),
        (json_values.listed, [["a"], ("a",), []]),
        (json_values.if_any(json_values.text), ["a", "", None]),
    ],
)
def test_a_reader_returns_its_kind_and_refuses_others(read: Callable[[Any], Any], accepted: list[Any]) -> None:
    def is_accepted(value: Any) -> bool:
        try:
            found = read(value)
        except ValueError as error:
            assert str(error).endswith(f", got {type(value).__name__}")  # noqa: PT017
            return False
        return bool(found == (tuple(value) if isinstance(value, list) else value))

    assert [each for each in VALUES if is_accepted(each)] == accepted
    assert [type(each) for each in VALUES if is_accepted(each)] == [type(each) for each in accepted]


def test_each_element_of_a_list_is_read() -> None:
    assert json_values.listed([1, 2], json_values.number) == (1, 2)
    with pytest.raises(ValueError, match="expected a whole number, got str"):
        json_values.listed([1, "2"], json_values.number)


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    path: Path
    flag: bool = True


@dataclass(frozen=True)
class Outer:
    name: str
    colour: Colour
    word: Literal["a", "b"] | Literal["c"]
    keys: tuple[str | int, ...]
    pair: tuple[str, int]
    inner: Inner | None
    more: Sequence[Inner]
    by_name: Mapping[str, int]
    number: int | None = None


WHOLE = Outer("x", Colour.RED, "c", ("k", 2), ("p", 1), Inner(Path("a/b")), (Inner(Path("c"), False),), {"n": 3})


def test_a_dataclass_is_read_back_as_it_was() -> None:
    data = json.loads(json.dumps(json_values.data_of(WHOLE)))
    assert json_values.value_of(Outer, data) == WHOLE
    assert json_values.value_of(Outer, {**data, "inner": None, "number": 4}) == replace(WHOLE, inner=None, number=4)


@pytest.mark.parametrize(
    "change",
    [
        {"name": 1},
        {"colour": "blue"},
        {"word": "d"},
        {"keys": ["k", 1.5]},
        {"keys": "k"},
        {"pair": ["p"]},
        {"pair": ["p", "1"]},
        {"inner": {"path": "a", "flag": 1}},
        {"inner": {"flag": True}},
        {"more": [None]},
        {"by_name": {"n": "3"}},
        {"number": True},
        {"unknown": 1},
    ],
)
def test_other_data_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        json_values.value_of(Outer, {**json_values.data_of(WHOLE), **change})
