"""The text of a failure: whole where it is printed, one line where pytest lists it."""

import re
from io import StringIO

import pytest
from _pytest._io import TerminalWriter

from pytest_promptfmt.results.failures import FailureText


@pytest.mark.parametrize("text", ["", "one line", "first\nsecond"])
def test_the_closing_list_on_a_server_shows_the_first_line(text: str) -> None:
    assert f"{FailureText(text)}" == text.split("\n")[0]
    assert str(FailureText(text)) == text


def test_what_differs_within_a_line_is_marked_where_there_are_colours_and_the_text_stays() -> None:
    text = (
        "--- a\n+++ now\n@@ doc 1 @@\n-| Answer:⟨end⟩\n+| Answer: ⟨end⟩\n-| gone\n | same\n+| two\n+| more\naccept: x"
    )
    for colours in (True, False):
        file = StringIO()
        writer = TerminalWriter(file)
        writer.hasmarkup = colours
        FailureText(text).toterminal(writer)
        shown = file.getvalue()
        assert re.sub(r"\x1b\[[0-9;]*m", "", shown) == f"{text}\n"
        assert ("\x1b" in shown) is colours
        if colours:
            # 7 is reversed; nothing is marked in lines that no other line replaces.
            marked = ["".join(re.findall(r"\x1b\[7m(?:\x1b\[\d+m)*([^\x1b]*)", line)) for line in shown.splitlines()]
            assert [line for line in marked if line] == [" "]
            codes = [{*re.findall(r"\x1b\[(\d+)m", line)} - {"0", "7"} for line in shown.splitlines()]
            bold, cyan, red, green = {"1"}, {"36"}, {"31"}, {"32"}
            assert codes == [bold, bold, cyan, red, green, red, set(), green, green, bold]
