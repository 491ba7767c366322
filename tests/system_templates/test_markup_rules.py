"""What is written around the texts of a conversation: JSON, markers, tags and whitespace, wrong in one branch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_promptfmt import check_template

TEMPLATE = """\
{%- if tools %}{{- '<|begin|>tools\\n' + (tools | tojson) + '<|end|>\\n' }}{% endif %}
{%- for message in messages %}
    {{- '<|begin|>' + message.role + '\\n' }}
    {%- if message.role == 'tool' %}
        {{- '<result>' + (message.content | string) + '</result>' }}
    {%- else %}
        {{- message.content or '' }}
    {%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '<call>{"name": "' + call.function.name + '", "arguments": ' }}
        {{- (call.function.arguments | tojson) + '}</call>' }}
    {%- endfor %}
    {{- '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|begin|>assistant\\n' }}{% endif %}"""

MISTAKES = {
    "a brace of a call": (
        "+ '}</call>'",
        "+ '</call>'",
        "PF455",
        "the JSON of a tool call is broken in a conversation with a tool call",
    ),
    "a marker closed twice": ("'<|end|>\\n' }}\n{%- endfor", "'<|end|><|end|>\\n' }}\n{%- endfor", "PF456", "single"),
    "a result left open": (
        "'</result>' }}",
        "('' if loop.last else '</result>') }}",
        "PF457",
        "an opening or closing tag is missing in a conversation with a tool result",
    ),
    "a line break escaped": ("message.role + '\\n'", "message.role + '<x>\\\\n'", "PF458", "a single user message"),
    "tools as text of text": (
        "(tools | tojson)",
        "(tools | tojson | tojson)",
        "PF438",
        "tools are encoded as JSON twice",
    ),
    "arguments as text of text": (
        "(call.function.arguments | tojson)",
        "(call.function.arguments | tojson | tojson)",
        "PF438",
        "arguments are encoded as JSON twice",
    ),
    "answers never closed": (
        "{{- '<|end|>\\n' }}\n{%- endfor",
        "{{- '\\n' if message.role == 'assistant' else '<|end|>\\n' }}\n{%- endfor",
        "PF440",
        "user messages are closed, but answers are not",
    ),
    "questions never closed": (
        "{{- '<|end|>\\n' }}\n{%- endfor",
        "{{- '\\n' if message.role == 'user' else '<|end|>\\n' }}\n{%- endfor",
        "PF440",
        "answers are closed, but user messages are not",
    ),
    "a prompt opened twice": (
        "{{- '<|begin|>assistant\\n' }}{% endif",
        "{{- '<|begin|>assistant\\n' * 2 }}{% endif",
        "PF442",
        "the generation prompt is written twice",
    ),
    "a prompt always opened": ("if add_generation_prompt", "if true", "PF442", "although none is requested"),
    "a question left open": (
        "{{- '<|end|>\\n' }}\n{%- endfor",
        "{{- '\\n' if message.role == 'user' and loop.last else '<|end|>\\n' }}\n{%- endfor",
        "PF440",
        "only some user messages are closed",
    ),
    "a prompt for questions only": (
        "{%- if add_generation_prompt %}",
        "{%- if add_generation_prompt and messages[-1].role == 'user' %}",
        "PF442",
        "the generation prompt is missing in a conversation with an answer after a tool result",
    ),
    "an end token after the prompt": (
        "{{- '<|begin|>assistant\\n' }}{% endif %}",
        "{{- '<|begin|>assistant\\n' }}{% endif %}{{- eos_token }}",
        "PF442",
        "an end token follows the generation prompt",
    ),
    "an answer to a result refused": (
        "{%- for message in messages %}\n",
        "{%- for message in messages %}\n    {%- if message.role == 'assistant' and loop.previtem.role != 'user' %}"
        "{{- raise_exception('no answer without question') }}{%- endif %}\n",
        "PF432",
        "the template refuses an answer after a tool result",
    ),
    "a space before the end token": (
        "message.content or ''",
        "message.content ~ ' '",
        "PF447",
        "there is a space between an answer and its end token",
    ),
    "a line break escaped in results": ("'<result>' +", "'<result>one\\\\n' +", "PF458", "a tool result"),
    "calls without an end": (
        "{{- '<|end|>\\n' }}\n{%- endfor",
        "{{- '\\n' if message.tool_calls else '<|end|>\\n' }}\n{%- endfor",
        "PF440",
        "a turn is not closed",
    ),
    "another role for calls": (
        "{{- '<|begin|>' + message.role",
        "{{- '<|begin|>' + ('caller' if message.tool_calls else message.role)",
        "PF442",
        "finished answers begin differently from the generation prompt in a conversation with a tool call",
    ),
    "an own system text left open": (
        "{%- for message",
        "{{- '<|begin|>system\\nBe brief.\\n' if messages[0].role != 'system' }}{%- for message",
        "PF440",
        "the template's own turn before the first question is not closed",
    ),
    "an end without begin": (
        "{%- for message",
        "{{- '<|end|>\\n' if not tools and messages[0].role != 'system' }}{%- for message",
        "PF440",
        "an end token comes before the first turn",
    ),
    "a system message as an answer": (
        "'<|begin|>' + message.role",
        "'<|begin|>' + (message.role if message.role != 'system' else 'assistant')",
        "PF440",
        "system messages begin in the same way as answers",
    ),
    "a result as an answer": (
        "'<|begin|>' + message.role + '\\n' }}",
        "'<|begin|>' + ('assistant' if message.role == 'tool' else message.role) + '\\n' }}",
        "PF440",
        "tool results begin in the same way as answers",
    ),
    "indentation before calls": (
        "{{- '<call>",
        "{{ '<call>",
        "PF408",
        "the chat template prints the indentation of its own file in a conversation with a tool call",
    ),
    "tools beside a system message only": (
        "{%- if tools %}",
        "{%- if tools and messages[0].role == 'system' %}",
        "PF439",
        "the tools of the request are in the prompt only if there is a system message",
    ),
    "tools for questions only": (
        "{%- if tools %}",
        "{%- if tools and messages[-1].role != 'tool' %}",
        "PF439",
        "the tools of the request are not in the prompt of a conversation with a tool result",
    ),
    "empty lines removed": (
        "message.content or ''",
        "(message.content or '') | replace('\\n\\n', '\\n')",
        "PF448",
        "the template changes line breaks, spaces or quotation marks inside a text",
    ),
    "quotes of results removed": (
        "(message.content | string)",
        "(message.content | string | replace('\"', ''))",
        "PF448",
        "the template changes line breaks, spaces or quotation marks inside a text",
    ),
    "arguments behind the call": (
        '", "arguments": \' }}',
        '"}, "arguments": \' }}',
        "PF455",
        "the JSON of a tool call is broken in a conversation with a tool call",
    ),
    "results refused": (
        "{%- if message.role == 'tool' %}",
        "{%- if message.role == 'tool' %}{{- raise_exception('no such role') }}",
        "PF432",
        "the template refuses a tool result",
    ),
    "calls written twice": (
        "in message.tool_calls or [] %}",
        "in (message.tool_calls or []) * 2 %}",
        "PF434",
        "a tool call is written twice",
    ),
    "a result that is only closed": (
        "'<result>' +",
        "",
        "PF457",
        "an opening or closing tag is missing in a conversation with a tool result",
    ),
    "a last answer left open": (
        "{{- '<|end|>\\n' }}\n{%- endfor",
        "{{- '' if loop.last and message.role == 'assistant' else '<|end|>\\n' }}\n{%- endfor",
        "PF440",
        "the last answer has no end token, but earlier answers have one",
    ),
    "a prompt without its line break": (
        "{{- '<|begin|>assistant\\n' }}{% endif",
        "{{- '<|begin|>assistant' }}{% endif",
        "PF442",
        "the generation prompt and finished answers have different whitespace before the answer",
    ),
}


def messages(source: str, code: str) -> list[str]:
    return [finding.message for finding in check_template(source) if finding.code == code]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_one_mistake_is_found_by_one_rule_and_only_there(mistake: str) -> None:
    right, wrong, code, message = MISTAKES[mistake]
    assert right in TEMPLATE
    broken = messages(TEMPLATE.replace(right, wrong, 1), code)
    assert any(message in each for each in broken), broken
    assert not any(message in each for each in messages(TEMPLATE, code))


def test_a_marker_of_no_role_is_no_turn() -> None:
    chat = "{{- '<|chat|>This is a talk between two.\\n' }}{%- for message"
    assert not [
        each for each in check_template(TEMPLATE.replace("{%- for message", chat, 1)) if "own turn" in each.message
    ]


def test_answers_in_a_row_that_become_one_turn_are_separated() -> None:
    opened, closed = "{{- '<|begin|>' + message.role + '\\n' }}", "{{- '<|end|>\\n' }}\n{%- endfor"
    first = opened.replace(" }}", " if not loop.previtem or loop.previtem.role != message.role else BETWEEN }}")
    last = closed.replace(" }}", " if not loop.nextitem or loop.nextitem.role != message.role }}", 1)
    merged = TEMPLATE.replace(opened, first).replace(closed, last)
    glued = messages(merged.replace("BETWEEN", "''"), "PF440")
    assert {"nothing separates two answers in a row", "nothing separates two user messages in a row"} <= {*glued}
    assert not [each for each in messages(merged.replace("BETWEEN", "'\\n'"), "PF440") if "nothing separates" in each]


ROLES = """\
{%- for message in messages %}
    {{- '<|start|>' + message.role + '<|head|>' + ('' if message.role == 'tool' else '\\n') }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {{- IMAGES }}{%- for part in message.content or [] %}{{- part.text }}{%- endfor %}
    {%- endif %}
    {%- for call in message.tool_calls or [] %}{{- call.function | tojson }}{%- endfor %}
    {{- '<|end|>' }}
{%- endfor %}"""


def test_each_image_has_a_place_of_its_own() -> None:
    lost = "a second image is not in the prompt"
    images = "message.content | selectattr('type', 'equalto', 'image') | list"
    assert lost in messages(ROLES.replace("IMAGES", f"'<image>' if {images}"), "PF433")
    assert lost not in messages(ROLES.replace("IMAGES", f"'<image>' * ({images} | length)"), "PF433")


def test_the_shown_conversation_is_the_one_that_is_not_balanced() -> None:
    closes = "{{- '<quote>' if messages[0].role == 'system' }}{{- '</quote>' }}"
    source = TEMPLATE.replace("{%- for message in messages %}\n", "{%- for message in messages %}\n" + closes, 1)
    assert not [each for each in messages(source, "PF457") if each.endswith("a system message")]


JSON_CALL = """{{- '<call>{"name": "' + call.function.name + '", "arguments": ' }}
        {{- (call.function.arguments | tojson) + '}</call>' }}"""
PYTHON_CALL = """{{- '[' + call.function.name + '(' }}
        {%- for key, value in call.function.arguments.items() %}
            {{- key + '=' + (value | tojson) + ('' if loop.last else ', ') }}
        {%- endfor %}
        {{- ')]' }}"""


@pytest.mark.parametrize(
    ("right", "wrong", "shows"),
    [
        ("(value | tojson)", "(value if value is string else value | tojson)", "the text of sample changes"),
        ("('' if loop.last else ', ')", "''", "not a Python call"),
        (
            "(value | tojson)",
            '("\'" + value + "\'" if value is string else value | tojson)',
            "not a Python call",
        ),
    ],
    ids=["no quotes", "no commas", "quotes by hand"],
)
def test_calls_that_begin_as_python_have_to_be_python(right: str, wrong: str, shows: str) -> None:
    sound = TEMPLATE.replace(JSON_CALL, PYTHON_CALL)
    assert sound != TEMPLATE
    assert not messages(sound, "PF455")
    found = [each for each in check_template(sound.replace(right, wrong)) if each.code == "PF455"]
    assert any("the Python syntax of a tool call is broken" in each.message and shows in each.saw for each in found), (
        found
    )


def test_only_the_marker_of_a_result_ends_its_call_where_no_marker_closes_turns() -> None:
    opened = TEMPLATE.replace("{{- '<|end|>\\n' }}", "{{- '\\n' }}").replace(
        "'<|begin|>' + message.role", "'<|' + message.role + '|>'"
    )
    source = opened.replace("<|begin|>assistant", "<|assistant|>")
    assert not [each for each in messages(source, "PF440") if "a tool call and its result" in each]
    role = "{{- '<|' + message.role + '|>' + '\\n' }}"
    assert role in source
    running = source.replace(role, f"{{%- if message.role != 'tool' %}}{role}{{%- endif %}}")
    assert "a tool result is in the same turn as the tool call" in messages(running, "PF440")


def test_a_marker_that_quotes_values_is_there_twice_around_an_empty_one() -> None:
    quoting = "{{- '<result>' + (message.content | string) + '</result>' }}"
    source = TEMPLATE.replace(quoting, "{{- '<quote>' + (message.content | string) + '<quote>' }}")
    assert source != TEMPLATE
    assert not messages(source, "PF456")


def test_an_end_token_is_no_tag_of_the_same_name() -> None:
    tagged = TEMPLATE.replace("message.role + '\\n'", "'<role>' + message.role + '</role>'")
    assert tagged != TEMPLATE
    assert not messages(tagged.replace("<|end|>", "<|role_end|>"), "PF457")


def test_a_brace_is_missed_also_where_calls_are_not_json() -> None:
    json_call = TEMPLATE[TEMPLATE.index("        {{- '<call>") : TEMPLATE.index("    {%- endfor %}\n    {{- '<|end|>")]
    own = (
        "{{- 'call:' + call.function.name + '{' }}"
        "{%- for key, value in call.function.arguments | items %}{{- key + ':' + (value | string) }}{% endfor %}}\n"
    )
    source = TEMPLATE.replace(json_call, own)
    assert not messages(source, "PF457")
    assert messages(source.replace("{% endfor %}}", "{% endfor %}"), "PF457") == [
        "a brace is missing in a conversation with a tool call"
    ]


def test_an_empty_block_of_reasoning_in_earlier_answers_is_an_info() -> None:
    thinking = TEMPLATE.replace(
        "message.content or ''",
        "('<think></think>' if message.role == 'assistant' else '') + "
        "message.reasoning_content | default('') + (message.content or '')",
    )
    assert "earlier answers get an empty block of reasoning" in messages(thinking, "PF446")


def test_turns_separated_by_words_alone_can_be_forged_by_anyone() -> None:
    words = "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
    found = [finding for finding in check_template(words) if finding.code == "PF460"]
    assert [(each.message, each.severity) for each in found] == [
        ("a user message can contain text that looks like further turns", "info")
    ]
    assert messages(TEMPLATE, "PF460") == [
        "a user message or a tool result can contain text that looks like further turns"
    ]
    assert not messages(words.replace("m.content", "(m.content | tojson)"), "PF460")


def test_an_end_token_is_compared_only_with_one_that_is_known(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    assert not messages(TEMPLATE, "PF461")
    for eos, expected in (("<|end|>", []), ("<|done|>", ["answers do not end with the tokenizer's eos_token"])):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": eos}}), "utf-8")
        found = check_template(tmp_path / "chat_template.jinja")
        assert [finding.message for finding in found if finding.code == "PF461"] == expected
