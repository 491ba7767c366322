"""The text of a failure: whole where it is printed, one line where pytest lists it."""

import pytest

from pytest_promptfmt.results.failures import FailureText


@pytest.mark.parametrize("text", ["", "one line", "first\nsecond"])
def test_the_closing_list_on_a_server_shows_the_first_line(text: str) -> None:
    assert f"{FailureText(text)}" == text.split("\n")[0]
    assert str(FailureText(text)) == text
