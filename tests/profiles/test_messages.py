"""What a message holds: its texts with whose they are, and the shapes in which hosts send it."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_promptfmt.profiles.messages import has_calls, read_arguments, shapes_of, texts_of

CALL: dict[str, Any] = {"id": "1", "function": {"name": "find", "arguments": {"of": ["tin", {"type": "text"}]}}}


@pytest.mark.parametrize(
    ("message", "texts"),
    [
        ({"role": "user", "content": "Tin?"}, [("user", "Tin?")]),
        ({"content": None}, []),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, "b", {"type": "image", "url": "c"}]}, ["a", "b"]),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "c"}}, {"x": "d"}]}, ["d"]),
        ({"role": "tool", "content": {"found": {"tin": "Sn"}, "n": 1}}, ["Sn"]),
        ({"role": "assistant", "content": "<think>why</think>Tin."}, [("reasoning", "why"), ("assistant", "Tin.")]),
        ({"role": "assistant", "content": "why</think>"}, [("reasoning", "why"), ("assistant", "")]),
        ({"role": "assistant", "content": "<think>why"}, ["<think>why"]),
        ({"role": "user", "content": "a</think>b"}, ["a</think>b"]),
        ({"role": "assistant", "reasoning_content": "why", "content": "Tin."}, [("reasoning", "why"), "Tin."]),
        ({"role": "assistant", "reasoning_content": None, "content": "Tin."}, ["Tin."]),
        ({"role": "assistant", "tool_calls": None}, []),
        ({"role": "assistant", "tool_calls": [CALL]}, [("call", "find"), ("argument", "tin")]),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "find", "arguments": '{"of": "tin"}'}}]},
            [("call", "find"), ("argument", "tin")],
        ),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}, [("call", "f")]),
        ({"role": "assistant", "tool_calls": [{}]}, [("call", "None")]),
    ],
)
def test_texts_of_a_message_have_the_kind_of_whose_they_are(
    message: dict[str, Any], texts: list[str | tuple[str, str]]
) -> None:
    role = str(message.get("role"))
    assert [*texts_of(message)] == [(role, text) if isinstance(text, str) else text for text in texts]


@pytest.mark.parametrize(
    ("message", "shapes", "more_with_null"),
    [
        ({"role": "user", "content": "a"}, set(), set()),
        ({"role": "developer", "content": "a"}, {"developer"}, set()),
        ({"role": "user", "content": [{"type": "text"}, "b"]}, {"parts"}, set()),
        ({"role": "user", "content": [{"type": "image"}]}, {"parts", "image"}, set()),
        ({"role": "user", "content": [{"type": "image_url"}]}, {"parts", "image_address"}, set()),
        ({"role": "tool", "name": "f", "content": ["a"]}, {"result_parts"}, set()),
        ({"role": "tool", "name": "f", "content": {"a": 1}}, {"result_value"}, set()),
        ({"role": "tool", "name": "f", "content": None}, {"result_value"}, set()),
        ({"role": "tool", "content": "a"}, {"no_result_name"}, set()),
        ({"role": "assistant"}, {"null_content"}, set()),
        ({"role": "user", "content": 1}, set(), set()),
        ({"role": "assistant", "content": "a</think>b"}, {"lone_thought_end"}, set()),
        ({"role": "assistant", "content": "<think>a</think>b"}, set(), set()),
        ({"role": "assistant", "content": "", "tool_calls": []}, {"empty_calls"}, set()),
        ({"role": "assistant", "content": "", "tool_calls": None}, set(), {"null_calls"}),
        ({"role": "assistant", "content": "", "reasoning_content": None}, set(), {"null_reasoning"}),
        ({"role": "assistant", "content": "", "reasoning_content": "a"}, set(), set()),
        ({"role": "assistant", "content": "", "tool_calls": [CALL]}, set(), set()),
        ({"role": "assistant", "content": "", "tool_calls": [{"function": None}]}, {"no_id"}, set()),
        ({"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"arguments": "{}"}}]},
         {"arguments_text"}, set()),
    ],
)  # fmt: skip
def test_shapes_of_a_message_are_those_that_hosts_differ_in(
    message: dict[str, Any], shapes: set[str], more_with_null: set[str]
) -> None:
    assert {*shapes_of(message, keeps_null=False)} == shapes
    assert {*shapes_of(message, keeps_null=True)} == shapes | more_with_null


@pytest.mark.parametrize(
    ("calls", "readable"),
    [
        (None, True),
        ([], True),
        ([{}], True),
        ([{"function": None}], True),
        ([CALL], True),
        ("find", False),
        ({"function": {}}, False),
        (["find"], False),
        ([{"function": "find"}], False),
        ([CALL, {"function": ["find"]}], False),
    ],
)
def test_calls_are_readable_if_all_are_mappings(calls: Any, readable: bool) -> None:
    assert has_calls({"tool_calls": calls}) is readable


def test_arguments_that_are_not_json_or_too_deep_have_no_value() -> None:
    assert read_arguments('{"a": [1]}') == {"a": [1]}
    assert read_arguments("{a: 1}") is None
    assert read_arguments("[" * 200_000) is None
