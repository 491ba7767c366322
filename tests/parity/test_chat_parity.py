"""Chat templates render as transformers 5.23 renders them, errors included."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_promptfmt.profiles import BUILTIN_PROFILES, Profile, builtin_profile
from pytest_promptfmt.rendering.chat import render_messages

chat_template_utils = pytest.importorskip("transformers.utils.chat_template_utils")

pytestmark = pytest.mark.parity

TEMPLATES = Path(__file__).parents[3] / "shared" / "data" / "chat_templates"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
TOOL = {
    "type": "function",
    "function": {"name": "look_up", "description": "Looks <up> & down", "parameters": {"type": "object"}},
}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


SYSTEM = {"role": "system", "content": " Be terse.\n\n"}
CONVERSATIONS: list[tuple[list[dict[str, Any]], dict[str, Any]]] = [
    ([user("Hi")], {"add_generation_prompt": True}),
    ([user("Hi")], {}),
    ([SYSTEM, user("  spaces  ")], {"add_generation_prompt": True}),
    ([SYSTEM, user("1"), assistant("2"), user("3")], {"add_generation_prompt": True}),
    ([user("1"), assistant("The answer is ")], {"continue_final_message": True}),
    ([user("1"), assistant("The answer is")], {"continue_final_message": True}),
    ([user("1"), assistant("")], {"continue_final_message": True}),
    ([user("one"), user("two")], {"add_generation_prompt": True}),
    ([assistant("first")], {}),
    ([user("<b>&'\" \u2028"), assistant("é", reasoning="because")], {}),
    ([user("q"), assistant("a", thinking="hm", reasoning_content=None)], {}),
    ([user("q")], {"tools": [TOOL], "add_generation_prompt": True}),
    ([user([{"type": "text", "text": "part"}])], {"add_generation_prompt": True}),
    (
        [user("q")],
        {"documents": [{"title": "t", "text": "x"}], "enable_thinking": False, "add_generation_prompt": True},
    ),
    ([user(np.str_("numpy")), assistant(None, extra=np.float64(1.5))], {}),
    ([], {"add_generation_prompt": True}),
]


class FrozenClock(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> FrozenClock:
        return cls(2024, 7, 26, 12, 0, 0)


def theirs(source: str, messages: list[dict[str, Any]], options: dict[str, Any]) -> tuple[str, str]:
    try:
        rendered, _ = chat_template_utils.render_jinja_template([messages], chat_template=source, **TOKENS, **options)
    except Exception as error:
        return type(error).__name__, ""
    return "text", rendered[0]


def ours(source: str, messages: list[dict[str, Any]], options: dict[str, Any]) -> tuple[str, str]:
    known = ("add_generation_prompt", "continue_final_message", "tools", "documents")
    profile = Profile(
        name="p",
        chat_template=source,
        special_tokens=TOKENS,
        template_args={key: value for key, value in options.items() if key not in known},
    )
    given = {"add_generation_prompt": False, **{key: value for key, value in options.items() if key in known}}
    try:
        return "text", render_messages(profile, messages, **given)
    except Exception as error:
        return type(error).__name__, ""


@pytest.fixture(autouse=True)
def frozen_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template_utils, "datetime", FrozenClock)


def assert_same(source: str, name: str) -> int:
    for messages, options in CONVERSATIONS:
        assert ours(source, messages, options) == theirs(source, messages, options), (name, messages, options)
    return len(CONVERSATIONS)


@pytest.mark.skipif(not TEMPLATES.is_dir(), reason="the collection of real chat templates is not here")
def test_real_templates_render_as_in_transformers() -> None:
    compared = sum(assert_same(path.read_text("utf-8"), path.name) for path in sorted(TEMPLATES.rglob("*.jinja")))
    assert compared > 1000


@pytest.mark.parametrize("name", [name for name in BUILTIN_PROFILES if name != "plain"])
def test_archetypes_render_as_in_transformers(name: str) -> None:
    assert_same(builtin_profile(name).chat_template or "", name)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages | tojson }}{{ messages | tojson(indent=2) }}",
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
        "{% generation %}{{ messages }}{% endgeneration %}",
        "{{ strftime_now('%d %B %Y') }}",
        "{{ raise_exception('no') }}",
        "{{ dict(a=1) }}{{ dict.fromkeys('ab') }}{{ dict.__class__ }}",
        "{% set n = namespace(a=1) %}{% set n.b = 2 %}{{ n.a + n.b }}",
        "{% set n = namespace(_a=1) %}",
        "{{ unknown }}{{ unknown.more }}",
        "{{ messages[0].__class__ }}{{ messages[0]['content'].__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "  {% if true %}\n  x\n  {% endif %}\n{{ bos_token }}{{ eos_token }}\r\ny\n",
        "{{ messages[0].content.strip().upper() }}{{ '%s' % messages }}{{ 'a' ~ messages }}",
    ],
)
def test_every_feature_of_the_dialect_renders_as_in_transformers(source: str) -> None:
    assert_same(source, "feature")
