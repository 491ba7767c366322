"""Chat templates render as transformers 5.23 renders them, error texts included."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_promptfmt.core.profile import BUILTIN_PROFILES, Profile, builtin_profile
from pytest_promptfmt.profiles.conversation import render_messages
from pytest_promptfmt.profiles.profile_loading import wanted_template

chat_template_utils = pytest.importorskip("transformers.utils.chat_template_utils")

pytestmark = pytest.mark.parity

TEMPLATES = Path(__file__).parents[3] / "shared" / "data" / "chat_templates"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks <up> & down",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string", "description": "A 'word'"}},
            "required": ["word"],
        },
    },
}
WAYS: list[dict[str, Any]] = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": False},
    {"add_generation_prompt": False, "continue_final_message": True},
]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "call00001", "type": "function", "function": {"name": "look_up", "arguments": arguments}}


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


SYSTEM = {"role": "system", "content": " Be terse.\n\n"}
ANSWER = {"role": "tool", "content": "up is <not> down", "tool_call_id": "call00001", "name": "look_up"}
Case = tuple[list[dict[str, Any]], dict[str, Any]]
CONVERSATIONS: list[Case] = [
    ([user("Hi")], {}),
    ([SYSTEM, user("  spaces\n")], {}),
    ([{"role": "system", "content": ""}, user("empty system")], {}),
    ([{"role": "developer", "content": "Be terse."}, user("Hi")], {}),
    ([SYSTEM, user("1"), assistant("2"), user("3")], {}),
    ([user("1"), assistant("The answer is ")], {}),
    ([user("1"), assistant("The answer is")], {}),
    ([user("1"), assistant("")], {}),
    ([user("1"), assistant(parts("first", "The answer is\n"))], {}),
    ([user("one"), user("two")], {}),
    ([assistant("first"), user("second")], {}),
    ([user("<b>&'\" \u2028 é"), assistant("é", reasoning="because <b>")], {}),
    ([user("1"), assistant("2", reasoning_content=" hm "), user("3"), assistant("<think>\nhm\n</think>\n\n4")], {}),
    ([user("q"), assistant("a", thinking="hm", reasoning_content=None)], {}),
    ([user("q"), assistant(None, tool_calls=[call({"word": "<up>"})]), ANSWER], {"tools": [TOOL]}),
    ([user("q"), assistant("", tool_calls=[call('{"word": "up"}')]), ANSWER, assistant("so")], {"tools": [TOOL]}),
    ([user("q")], {"tools": [TOOL]}),
    ([user(parts("part", "two"))], {}),
    ([user([{"type": "image"}, {"type": "text", "text": "what is it?"}])], {}),
    ([user("q")], {"documents": [{"title": "t", "text": "x"}], "enable_thinking": False}),
    ([user("q")], {"enable_thinking": True, "date_string": "1 Jan 2020", "custom_instructions": "x"}),
    ([user(np.str_("numpy")), assistant(None, extra=np.float64(1.5))], {}),
    ([{"role": "user"}, assistant("no question")], {}),
    ([], {}),
]


class FrozenClock(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> FrozenClock:
        return cls(2024, 7, 26, 12, 0, 0)


@pytest.fixture(autouse=True)
def frozen_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template_utils, "datetime", FrozenClock)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0}, unk_token="<unk>")), **TOKENS
    )


@dataclass(frozen=True)
class Theirs:
    """What transformers did: a text, or an error of the template or of its own, which has other words than ours."""

    kind: str
    text: str
    has_own_words: bool = False


# What transformers says in words of its own, and what we say then: parts of the sentences that carry the meaning.
MEANINGS = {
    "empty conversation": "the conversation is empty",
    "is empty": "the conversation is empty",
    "to continue!": "to continue",
    "could not find any text": "has no text to continue",
    "does not appear in the chat": "its text is not in the rendered chat",
    "not an accepted field": "the chat template does not use",
    "add_generation_prompt": "continue_final_message and add_generation_prompt cannot be used together",
    "Tools should": "a tool must be",
    "Documents should": "a document must be",
    "underscore-prefixed": "names must not begin with '_'",
}


def theirs(tokenizer: Any, source: str, messages: list[dict[str, Any]], options: dict[str, Any]) -> Theirs:
    try:
        text = tokenizer.apply_chat_template(messages, chat_template=source, tokenize=False, **options)
    except Exception as error:
        return Theirs(type(error).__name__, str(error), is_about_arguments(error))
    return Theirs("text", text)


def assert_says(ours: str, theirs: Theirs) -> None:
    if not theirs.has_own_words:
        assert ours == theirs.text
        return
    [meant] = {our_part for their_part, our_part in MEANINGS.items() if their_part in theirs.text} or {theirs.text}
    assert meant in ours


def is_about_arguments(error: Exception) -> bool:
    """Whether transformers itself refuses what it was given, in words of its own; templates and Jinja do not."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    code = frame.tb_frame.f_code if frame is not None else None
    own = ("apply_chat_template", "render_jinja_template", "_check_name")
    return code is not None and "transformers" in code.co_filename and code.co_name in own


def ours(source: str, messages: list[dict[str, Any]], options: dict[str, Any]) -> tuple[str, str]:
    known = ("add_generation_prompt", "continue_final_message", "tools", "documents")
    profile = Profile(
        name="p",
        chat_template=source,
        special_tokens=TOKENS,
        template_args={key: value for key, value in options.items() if key not in known},
    )
    try:
        return "text", render_messages(profile, messages, **{k: v for k, v in options.items() if k in known})
    except Exception as error:
        return type(error).__name__, str(error)


def assert_same(tokenizer: Any, source: str, name: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for messages, given in CONVERSATIONS:
        for way in WAYS:
            options = {**given, **way}
            expected = theirs(tokenizer, source, messages, options)
            our_kind, text = ours(source, messages, options)
            assert our_kind == expected.kind, (name, messages, options, text)
            assert_says(text, expected)
            counts["refused" if expected.has_own_words else "text" if our_kind == "text" else "error"] += 1
    return counts


@pytest.mark.slow
@pytest.mark.skipif(not TEMPLATES.is_dir(), reason="the collection of real chat templates is not here")
def test_real_templates_render_as_in_transformers(tokenizer: Any) -> None:
    counts: Counter[str] = Counter()
    for path in sorted(TEMPLATES.rglob("*.jinja")):
        counts += assert_same(tokenizer, path.read_text("utf-8"), path.name)
    assert counts["text"] > 4000
    assert counts["error"] > 1000  # with their texts
    assert counts["refused"] > 400  # by transformers itself, in other words


@pytest.mark.parametrize("name", [name for name in BUILTIN_PROFILES if builtin_profile(name).chat_template])
def test_archetypes_render_as_in_transformers(tokenizer: Any, name: str) -> None:
    assert_same(tokenizer, builtin_profile(name).chat_template or "", name)


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
        "{% set n = namespace() %}{% set n._a = 2 %}",
        "{{ unknown }}{{ unknown.more }}",
        "{{ messages[0].__class__ }}{{ messages[0]['content'].__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "  {% if true %}\n  x\n  {% endif %}\n{{ bos_token }}{{ eos_token }}\r\ny\n",
        "{{ messages[0].content.strip().upper() }}{{ '%s' % messages }}{{ 'a' ~ messages }}",
        "{% if %}",
        "{{ 'a' | no_such_filter }}",
        "{{ messages | no_such_filter }}{{ content }}",
        "{{ messages[0]['content'] + 1 }}",
        "{% macro a(x) %}{{ x }}{{ caller() }}{% endmacro %}{% call a(1) %}b{% endcall %}",
        "{{ content }}{% include 'x' %}",
        "{{ range(3) | list }}{{ cycler('a', 'b').next() }}{{ joiner('x')() }}{{ range(10**6) }}",
    ],
)
def test_every_feature_of_the_dialect_renders_as_in_transformers(tokenizer: Any, source: str) -> None:
    assert_same(tokenizer, source, "feature")


@pytest.mark.parametrize(
    ("messages", "options"),
    [
        ([user("1"), assistant("2")], {"add_generation_prompt": True, "continue_final_message": True}),
        ([], {"add_generation_prompt": False, "continue_final_message": True}),
        ([user("1"), assistant([{"image": "x"}])], {"add_generation_prompt": False, "continue_final_message": True}),
        ([user("1")], {"add_generation_prompt": True, "tools": ["look_up"]}),
        ([user("1")], {"add_generation_prompt": True, "documents": ["a text"]}),
    ],
)
def test_arguments_that_transformers_refuses_are_refused_for_the_same_reason(
    tokenizer: Any, messages: list[dict[str, Any]], options: dict[str, Any]
) -> None:
    source = "{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}"
    expected = theirs(tokenizer, source, messages, options)
    assert expected.has_own_words
    our_kind, text = ours(source, messages, options)
    assert our_kind == expected.kind
    assert_says(text, expected)


@pytest.mark.parametrize("field", ["content", "reasoning_content", "thinking", "reasoning", "other", "tool_calls"])
@pytest.mark.parametrize("kept", [True, False])
def test_a_named_field_is_continued_as_in_transformers(tokenizer: Any, field: str, kept: bool) -> None:
    trim = "" if kept else " | trim"
    source = (
        "{% for m in messages %}{{ m.role }}:"
        f"{{{{ (m.reasoning_content or '') ~ (m.thinking or '') }}}}|{{{{ m.content{trim} }}}}|{{{{ m.other }}}};"
        "{% endfor %}"
    )
    messages = [user("1"), assistant("so ", reasoning=" it follows ", other=" \n", tool_calls=[{"text": "t"}])]
    options = {"add_generation_prompt": False, "continue_final_message": field}
    expected = theirs(tokenizer, source, messages, options)
    our_kind, text = ours(source, messages, options)
    assert our_kind == expected.kind
    assert_says(text, expected)


@pytest.mark.parametrize(
    ("names", "name", "tools"),
    [
        (("default",), None, True),
        (("default", "tool_use"), None, False),
        (("default", "tool_use"), None, True),
        (("default", "rag"), "rag", True),
        (("rag", "tool_use"), None, False),
        (("rag", "tool_use"), None, True),
    ],
)
def test_of_several_templates_the_one_of_transformers_is_taken(
    tokenizer: Any, names: tuple[str, ...], name: str | None, tools: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    templates = {each: f"the template {each}" for each in names}
    monkeypatch.setattr(tokenizer, "chat_template", templates)
    try:
        expected = tokenizer.get_chat_template(name, [TOOL] if tools else None)
    except ValueError:
        expected = None
    assert templates.get(wanted_template(templates, name, tools=tools)) == expected
