"""What a template reads, by its nodes, and how bad a finding is about a shape that only some hosts send."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_promptfmt.core.finding import Severity
from pytest_promptfmt.profiles.probe_conversations import Conversation
from pytest_promptfmt.profiles.template_hosts import known_hosts, sent_severity
from pytest_promptfmt.profiles.template_trial import TemplateTrial, lone_profile

USER: dict[str, Any] = {"role": "user", "content": "a"}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}
PARTS: dict[str, Any] = {"role": "user", "content": [{"type": "text", "text": "a"}]}


@pytest.mark.parametrize(
    ("source", "kinds"),
    [
        ("{{ messages }}", set()),
        ("{% for part in m.content %}{% endfor %}", {"parts"}),
        ("{% for part in m['content'] %}{% endfor %}", {"parts"}),
        ("{% for part in content %}{% endfor %}", {"parts"}),
        ("{% for part in m.content[1:] %}{% endfor %}", {"parts"}),
        ("{% for part in m.content | list %}{% endfor %}", {"parts"}),
        ("{% for part in m.content or [] %}{% endfor %}", {"parts"}),
        ("{% for part in m.content if m %}{% endfor %}", {"parts"}),
        ("{% for part in (m.content if m else []) %}{% endfor %}", {"parts"}),
        ("{% for part in m.calls %}{% endfor %}", set()),
        ("{% for part in m['calls'] %}{% endfor %}", set()),
        ("{% for part in m.calls[1:] %}{{ content }}{% endfor %}", set()),
        ("{% for part in [1] %}{{ m.content }}{% endfor %}", set()),
        ("{% generation %}{% endgeneration %}", {"training"}),
        ("{% macro a() %}{% endmacro %}{% call a() %}{% endcall %}", set()),
        ("{{ tools }}", {"tools"}),
        ("{{ functions }}", {"tools", "functions"}),
        ("{{ functions }}{{ tools }}", {"tools"}),
        ("{{ m.tools }}", set()),
        ("{{ 'image_url' }}", {"images", "image_url"}),
        ("{{ 'image' }}", {"images"}),
        ("{{ m.tool_calls }}", {"tool_calls"}),
        ("{{ m['tool_calls'] }}", {"tool_calls"}),
        ("<|tool_calls|>", set()),
        ("<image>", {"images"}),
        ("<|audio|>", {"sound"}),
    ],
)
def test_kinds_of_a_template_follow_from_its_nodes(source: str, kinds: set[str]) -> None:
    assert TemplateTrial(lone_profile(source)).kinds == kinds


@pytest.mark.parametrize(
    ("values", "kinds", "hosts", "severity"),
    [
        ({}, (), (), "error"),
        ({"severity": Severity.WARNING}, (), (), "warning"),
        ({"messages": [PARTS]}, (), (), "info"),
        ({"messages": [PARTS]}, ("parts",), (), "error"),
        ({"messages": [PARTS]}, ("parts",), ("lm-eval",), "error"),
        ({"messages": [{"role": "developer", "content": "a"}]}, (), (), "info"),
        ({"messages": [USER, {"role": "assistant", "content": None}]}, ("tool_calls",), (), "error"),
        ({"messages": [USER, {"role": "assistant", "content": None}]}, (), (), "info"),
        ({"messages": [USER, {"role": "assistant", "content": None}]}, ("tool_calls",), ("vllm",), "warning"),
        ({"tools": [TOOL]}, (), (), "error"),
        ({"tools": [TOOL]}, (), ("lm-eval",), "info"),
        ({"tools": [{"function": {**TOOL["function"], "description": None}}]}, ("tools",), ("trl",), "warning"),
        ({"tools": [{"function": {**TOOL["function"], "description": None}}]}, (), ("trl",), "info"),
        ({"documents": [{"text": "a"}]}, (), (), "info"),
    ],
)
def test_a_finding_is_as_bad_as_what_hosts_send(
    values: dict[str, Any], kinds: tuple[str, ...], hosts: tuple[str, ...], severity: str
) -> None:
    conversation = Conversation(**{"name": "a", "about": "b", "messages": [USER], **values})
    assert sent_severity(conversation, kinds, hosts) == severity


def test_hosts_are_those_of_the_table() -> None:
    assert {"vllm", "trl", "lm-eval"} < {*known_hosts()}
