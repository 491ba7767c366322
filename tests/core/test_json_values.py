"""Values that another process wrote: each reader returns its kind, and refuses every other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_promptfmt.core import json_values

NUMBERS: list[Any] = [1, 0, -(2**53), 2**53, 2**53 + 1, -(2**53) - 1, 1.5]
VALUES: list[Any] = ["a", "", *NUMBERS, True, False, None, ["a"], ("a",), [], {}]


@pytest.mark.parametrize(
    ("read", "accepted"),
    [
        (json_values.text, ["a", ""]),
        (json_values.number, [1, 0, -(2**53), 2**53]),
        (json_values.flag, [True, False]),
        (json_values.listed, [["a"], ("a",), []]),
        (json_values.if_any(json_values.flag), [True, False, None]),
    ],
)
def test_a_reader_returns_its_kind_and_refuses_others(read: Callable[[Any], Any], accepted: list[Any]) -> None:
    def is_accepted(value: Any) -> bool:
        try:
            found = read(value)
        except ValueError as error:
            assert str(error).startswith(f"{type(value).__name__}, not ")  # noqa: PT017
            return False
        return bool(found == (tuple(value) if isinstance(value, list) else value))

    assert [each for each in VALUES if is_accepted(each)] == accepted
    assert [type(each) for each in VALUES if is_accepted(each)] == [type(each) for each in accepted]


def test_each_element_of_a_list_is_read() -> None:
    assert json_values.listed([1, 2], json_values.number) == (1, 2)
    with pytest.raises(ValueError, match="str, not a whole number"):
        json_values.listed([1, "2"], json_values.number)
