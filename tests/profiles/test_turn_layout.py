"""What closes an answer, by how plain turns are laid out."""

from __future__ import annotations

import pytest

from pytest_promptfmt.profiles.turn_layout import QUESTION, TurnLayout


@pytest.mark.parametrize(
    ("asked", "tail", "gap", "closing"),
    [
        (f"<u>{QUESTION}", "<e>\n", "<e>\n<u>", "<e>"),
        (f"<u>{QUESTION}", "<e>", "<u>", ""),
        (f"<u>{QUESTION}", "<u>", "<e>", ""),
        (f"<e>{QUESTION}", "<e>", "<e>", ""),
        (f"<u>{QUESTION}", None, "<e>", ""),
        (f"<u>{QUESTION}", "<e>", None, ""),
    ],
)
def test_a_marker_closes_an_answer_where_it_follows_each(
    asked: str, tail: str | None, gap: str | None, closing: str
) -> None:
    assert TurnLayout(asked=asked, tail=tail, gap=gap, first_marker="<e>").closing == closing


def test_a_generation_prompt_is_what_is_added_to_the_question() -> None:
    assert TurnLayout(asked="<u>a", opened="<u>a<b>").generation_prompt == "<b>"
    assert TurnLayout(asked="<u>a", opened="<s><u>a<b>").generation_prompt is None
    assert TurnLayout(asked="<u>a").generation_prompt is None
