"""What closes an answer, by how plain turns are laid out."""

from __future__ import annotations

import pytest

from pytest_promptfmt.profiles.template_trial import TemplateTrial, lone_profile
from pytest_promptfmt.profiles.turn_layout import QUESTION, TurnLayout, is_for_chat, marker_pairs

TURN = "<|begin|>{{ m.role }}: {{ m.content }}<|end|>"
TURNS = f"{{% for m in messages %}}{TURN}{{% endfor %}}"


def trial_of(source: str) -> TemplateTrial:
    return TemplateTrial(lone_profile(source))


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


def test_pairs_of_markers_are_those_around_every_turn() -> None:
    assert marker_pairs(trial_of(TURNS)) == (("<|begin|>", "<|end|>"),)


def test_a_template_that_refuses_a_plain_conversation_has_no_pairs() -> None:
    refusing = "{% if messages | length > 3 %}{{ raise_exception('too long') }}{% endif %}"
    assert marker_pairs(trial_of(refusing + TURNS)) == ()


@pytest.mark.parametrize(
    ("dropped", "mentioned", "is_chat"),
    [("", "audio", True), ("user", "video", True), ("user", "audio", False), ("assistant", "video", False)],
)
def test_a_template_of_sound_without_texts_of_users_is_no_chat(dropped: str, mentioned: str, is_chat: bool) -> None:
    turn = f"{{% if m.role != '{dropped}' %}}{TURN}{{% endif %}}{{% if m.{mentioned} %}}<media>{{% endif %}}"
    assert is_for_chat(trial_of(f"{{% for m in messages %}}{turn}{{% endfor %}}")) == is_chat
