"""What a rendered conversation lacks, holds twice, or has in another order; and how two prompts differ."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies

from pytest_promptfmt.profiles.probe_conversations import Conversation
from pytest_promptfmt.profiles.template_trial import TemplateTrial, lone_profile
from pytest_promptfmt.profiles.trial_evidence import (
    disordered,
    doubled,
    excerpt,
    first_difference,
    holds,
    last_answer,
    missing,
    place_printed,
    python_in,
    think_balance,
)

USER: dict[str, Any] = {"role": "user", "content": "red?"}
ANSWER: dict[str, Any] = {"role": "assistant", "content": "iron"}
CALL: dict[str, Any] = {"id": "c7", "type": "function", "function": {"name": "melt", "arguments": {"of": "tin"}}}
CALLS: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "c7", "name": "melt", "content": "232 °C"}
CALLED = "{% for c in m.tool_calls or () %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}"


def each(written: str) -> str:
    """Return a template that writes this for each message."""
    return f"{{% for m in messages %}}{written}{{% endfor %}}"


def tried(source: str, *messages: dict[str, Any], base: str | None = None) -> tuple[TemplateTrial, Conversation]:
    """Return the trial of a template, and a conversation of these messages after a simpler one of the first."""
    simple = Conversation(name="simple", about="a question", messages=messages[:1])
    whole = Conversation(name="whole", about="messages", messages=messages, base=base)
    return TemplateTrial(lone_profile(source), {"simple": simple, "whole": whole}), whole


@pytest.mark.parametrize(
    ("source", "messages", "lacks"),
    [
        (each("{{ m.content }}\n"), [USER, ANSWER], set()),
        (each("{% if m.role == 'user' %}{{ m.content }}{% endif %}"), [USER, ANSWER], {"assistant"}),
        ("{{ messages[-1].content }}", [USER, ANSWER], {"user"}),
        ("{{ raise_exception('no') }}", [USER, ANSWER], set()),
        (each(f"{{{{ m.content }}}}{CALLED}\n"), [USER, CALLS, RESULT], set()),
        (each("{{ m.content }}\n"), [USER, CALLS, RESULT], {"call"}),
        (each("{{ m.content }}{% for c in m.tool_calls or () %}{{ c.function.name }}{% endfor %}"),
         [USER, CALLS, RESULT], {"argument"}),
        (each("{{ m.content }}{% for c in m.tool_calls or () %}{{ c.id }}{% endfor %}"),
         [USER, CALLS, RESULT], {"argument"}),
        (each("{{ m.content | e }}\n"), [{"role": "user", "content": "1 < 2"}], set()),
        (each("{{ m.content | tojson }}\n"), [{"role": "user", "content": 'a "b"\tc'}], set()),
        (each("{{ m.content | string }}\n"), [{"role": "user", "content": "a"}], set()),
    ],
)  # fmt: skip
def test_what_a_prompt_lacks_is_named_by_its_kind(source: str, messages: list[dict[str, Any]], lacks: set[str]) -> None:
    assert missing(*tried(source, *messages)) == lacks


@pytest.mark.parametrize(
    ("source", "messages", "twice"),
    [
        (each("{{ m.content }}\n"), [USER, ANSWER], set()),
        (each("{{ m.content }}\n"), [USER, {"role": "assistant", "content": "red? iron"}], set()),
        (each("{{ m.content }}\n") + "{{ messages[0].content }}", [USER, ANSWER], {"user"}),
        (each("{{ m.content }}\n") + "{{ messages[-1].content }}", [USER, ANSWER], {"assistant"}),
        (each(f"{{{{ m.content }}}}{CALLED}{CALLED}\n"), [USER, CALLS, RESULT], set()),
        ("{{ raise_exception('no') }}", [USER, ANSWER], set()),
    ],
)
def test_texts_that_a_prompt_holds_more_often_are_named_but_not_calls(
    source: str, messages: list[dict[str, Any]], twice: set[str]
) -> None:
    assert doubled(*tried(source, *messages)) == twice


@pytest.mark.parametrize(
    ("source", "moved"),
    [
        (each("{{ m.content }}\n"), set()),
        ("{% for m in messages | reverse %}{{ m.content }}{% endfor %}", {"assistant"}),
        ("{{ messages[1].content }}{{ messages[0].content }}{{ messages[1].content }}", set()),
        ("{{ messages[1].content }}", set()),
        ("{{ raise_exception('no') }}", set()),
    ],
)
def test_texts_before_those_of_an_earlier_message_are_disordered(source: str, moved: set[str]) -> None:
    assert disordered(*tried(source, USER, ANSWER)) == moved
    before = {"role": "system", "content": "late"}
    swapped = "{{ messages[1].content }}{{ messages[0].content }}"
    assert disordered(*tried(swapped, before, USER)) == set(), "the system message may be anywhere"


@pytest.mark.parametrize(
    ("source", "base", "notation"),
    [
        (each("{{ m.content }}{{ m.tool_calls }}"), "simple", {"a mapping or list"}),
        (each("{{ m.content }}{{ m.tool_calls }}"), None, set()),
        (each("{{ m.content }}{{ m.missing or none }}\n"), "simple", {"None"}),
        (each("{{ m.content }}") + "{{ messages[0].missing or none }}", "simple", set()),
        (each("{{ m.role == 'user' }}\n"), "simple", {"True or False"}),
        (each("`{{ none }}`'{{ none }}'\n"), "simple", set()),
        ("{{ raise_exception('no') }}", "simple", set()),
        ("{% if messages | length < 2 %}{{ raise_exception('no') }}{% endif %}{{ none }}", "simple", set()),
    ],
)
def test_notation_of_python_counts_beyond_that_of_the_simpler_conversation(
    source: str, base: str | None, notation: set[str]
) -> None:
    found = python_in(*tried(source, USER, CALLS, base=base))
    assert found == notation


@given(strategies.text(min_size=1))
def test_a_text_is_held_however_it_is_written(text: str) -> None:
    quoted = json.dumps(text, ensure_ascii=False)[1:-1]
    for written in (text, quoted, json.dumps(text)[1:-1], repr(text)[1:-1], json.dumps(quoted)[1:-1]):
        assert holds(f"<{written}>", text)
    assert holds(html.escape(text), text)
    assert not holds("", text)


def test_a_text_is_held_where_a_template_escapes_by_hand() -> None:
    assert holds(r"a\n\t\"b\'c", "a\n\t\"b'c")
    assert not holds("ab", "a\nb")


@given(strategies.text("ab", max_size=9), strategies.text("ab", max_size=9))
def test_the_first_difference_is_where_the_common_beginning_ends(one: str, other: str) -> None:
    at = first_difference(one, other)
    assert one[:at] == other[:at]
    assert at == min(len(one), len(other)) or one[at] != other[at]


@pytest.mark.parametrize(
    ("text", "balance"),
    [
        ("", {}),
        ("<think></think>", {"think": 0}),
        ("<think><think>", {"think": 2}),
        ("</thought><seed:think>", {"thought": -1, "seed:think": 1}),
        ("<thinker>", {"thinker": 1}),
        ("<rethink>", {}),
    ],
)
def test_each_tag_of_reasoning_has_its_balance(text: str, balance: dict[str, int]) -> None:
    assert think_balance(text) == balance


@pytest.mark.parametrize(
    ("last", "text"),
    [(ANSWER, "iron"), (USER, None), (CALLS, None), (RESULT, None), ({"role": "assistant", "content": " "}, None)],
)
def test_the_last_answer_is_that_of_the_last_message_without_calls(last: dict[str, Any], text: str | None) -> None:
    _, conversation = tried("", USER, ANSWER, last)
    found = last_answer(conversation)
    assert (found and found.text) == text


def test_an_excerpt_has_dots_only_where_something_is_left_out() -> None:
    long = "".join(chr(0x4E00 + number) for number in range(1_000))
    assert excerpt("short", 2) == "short"
    shown = excerpt(long, 500, 510)
    around = (len(shown) - 12) // 2
    assert shown == f"…{long[500 - around : 510 + around]}…"
    assert excerpt(long, 0) == f"{long[:around]}…"
    assert excerpt(long, len(long)) == f"…{long[-around:]}"
    assert excerpt(long, around, len(long) - around) == long, "nothing is left out at the very ends"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("{# arguments #}\n{% for m in messages %}\n{{ m.content }}\n{% endfor %}", 3),
        ("{% macro say(m) %}\n{{ m.content }}{% endmacro %}\n{% for m in messages %}{{ say(m) }}{% endfor %}", 3),
        ("{% set all %}\n{{ messages[-1].content }}{% endset %}\n\n{{ all }}", 4),
        ("{{ messages[0].content }}\n{{ messages[-1].content -}}\n", 2),
    ],
)
def test_a_place_in_a_prompt_has_the_line_that_prints_it(tmp_path: Path, source: str, line: int) -> None:
    _, conversation = tried(source, USER, ANSWER)
    trial = TemplateTrial(lone_profile(source, tmp_path / "a.jinja"), {"whole": conversation})
    place = place_printed(trial, conversation, (trial.whole(conversation) or "").index("iron"))
    assert place is not None
    assert place.line == line
