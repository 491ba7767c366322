"""Severities by who sends a conversation, what is found behind a failure, and answers that are read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt import SettingsError, SourceError, check_template
from pytest_promptfmt.core import gate
from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.finding import Reported
from pytest_promptfmt.profiles.probe_conversations import ConversationSpec, builtin_conversations
from pytest_promptfmt.profiles.template_trial import TemplateTrial, TrialOptions, lone_profile
from pytest_promptfmt.systems.templates.answers_read_back import loop_table
from pytest_promptfmt.systems.templates.template_files import templates_of

CALL = "{{ '<call>' + call.function.name + ' ' + (call.function.arguments | tojson) + '</call>' }}"
LOOP = f"{{% for call in message.tool_calls or [] %}}{CALL}{{% endfor %}}"
TURN = "{{ '<|begin|>' + message.role + '\\n' + CONTENT }}" + LOOP + "{{ '<|end|>\\n' }}"
PROMPT = "{% if add_generation_prompt %}{{ '<|begin|>assistant\\n' }}{% endif %}"
TOOLS = "{% for tool in tools or [] %}{{ tool.function | tojson }}{% endfor %}"
CONTENT = "(message.content or '')"


def template(content: str = CONTENT, tools: str = TOOLS, turn: str = TURN) -> str:
    return f"{tools}{{% for message in messages %}}{turn.replace('CONTENT', content)}{{% endfor %}}{PROMPT}"


def marked(source: str) -> str:
    """Return a template whose turns are learnt."""
    loop, _, prompt = source.rpartition("{% endfor %}")
    head, begin, turns = loop.partition("{% for message in messages %}")
    return f"{head}{begin}{{% generation %}}{turns}{{% endgeneration %}}{{% endfor %}}{prompt}"


def severities(findings: list[Reported], code: str) -> dict[str, str]:
    return {finding.message: finding.severity for finding in findings if finding.code == code}


def test_every_shape_of_a_builtin_conversation_has_its_hosts() -> None:
    known = data_table("hosts")
    for conversation in builtin_conversations().values():
        assert conversation.shapes <= set(known["shapes"])
    for shape in known["shapes"].values():
        assert set(shape["hosts"]) <= set(known["hosts"])


def test_what_a_host_sends_is_an_error_and_an_info_or_warning_where_only_others_count() -> None:
    message, broken = "the template fails on a tool call whose content is null", template("message.content")
    assert severities(check_template(broken), "PF431")[message] == "error"
    assert severities(check_template(broken, hosts=["vllm"]), "PF431")[message] == "warning"
    with pytest.raises(SettingsError, match="did you mean 'vllm'"):
        check_template(broken, hosts=["vlm"])


def test_parts_of_text_count_for_templates_that_loop_over_them() -> None:
    found = severities(check_template(template()), "PF431")
    assert found["the template fails on a user message that is a list of parts"] == "info"
    loop = "{% for part in message.content %}{{ part.text }}{% endfor %}"
    written = f"{{% if message.content is string %}}{{{{ message.content }}}}{{% else %}}{loop}{{% endif %}}"
    system = f"{{% if message.role == 'system' %}}{{{{ '' + message.content }}}}{{% else %}}{written}{{% endif %}}"
    turn = "{{ '<|begin|>' + message.role + '\\n' }}" + system + "{{ '<|end|>\\n' }}"
    found = severities(check_template(template(turn=turn, tools="")), "PF431")
    assert found["the template fails on a system message that is a list of parts"] == "error"


def test_a_failure_hides_nothing_behind_it() -> None:
    broken = template("message.content", "{% if tools %}{{ tools.nothing.at.all }}{% endif %}")
    found = severities(check_template(broken), "PF431")
    assert found["the template fails on tools that are not called"] == "error"
    assert found["the template fails on a tool call whose content is null, without tools"] == "error"


def test_templates_that_read_functions_are_given_them() -> None:
    source = template(tools="{% for function in functions or [] %}{{ function | tojson }}{% endfor %}")
    assert "assay_metal" in (TemplateTrial(lone_profile(source)).text("tools") or "")
    assert "assay_metal" not in (TemplateTrial(lone_profile(template(tools=""))).text("tools") or "")


@pytest.mark.parametrize(
    ("right", "wrong", "what"),
    [
        ("{{ tool.function | tojson }}", "{{ tool.function | tojson | e }}", "tools"),
        ("{{ '<call>' + call", "{{ ('<call>' | safe) + call", "tool calls"),
        ("(message.content or '')", "(message.content | e)", "content"),
    ],
)
def test_text_escaped_as_html_is_an_error(right: str, wrong: str, what: str) -> None:
    assert right in template()
    assert not severities(check_template(template()), "PF406")
    found = severities(check_template(template().replace(right, wrong)), "PF406")
    assert found[f"the chat template writes special characters in {what} as HTML entities"] == "error"


def test_a_system_message_refused_by_accident_is_an_error_and_by_intention_an_info() -> None:
    order = "{% if message.role not in ('user', 'assistant', 'tool') %}{{ raise_exception('MESSAGE') }}{% endif %}"
    branch = "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
    refused = "{% if message.role == 'system' %}{{ raise_exception('no system messages') }}{% endif %}"
    source = template(turn=order.replace("MESSAGE", "roles must alternate") + refused + TURN)
    assert severities(check_template(source), "PF432")["the template refuses a system message"] == "info"
    for message, severity in (("roles must alternate", "error"), ("the system role is not supported", "info")):
        source = branch + template(turn=order.replace("MESSAGE", message) + TURN)
        assert severities(check_template(source), "PF432")["the template refuses a system message"] == severity


@pytest.mark.parametrize(
    ("source", "code", "message"),
    [
        (
            "{{ messages[0].content }}" + template(),
            "PF434",
            "the system text is written twice in a conversation with a system message",
        ),
        (
            "{{ bos_token * 2 }}" + template(),
            "PF414",
            "BOS is written twice at the beginning of a conversation with a single user message",
        ),
        (
            "{{ raise_exception('no') if messages[0].role == 'user' }}{{ messages[0].content }}",
            "PF432",
            "the template refuses a single user message",
        ),
    ],
)
def test_plain_requests_and_tools_that_come_out_wrong_are_errors(source: str, code: str, message: str) -> None:
    found = severities(check_template(source), code)
    assert [severity for each, severity in found.items() if message in each] == ["error"]


@pytest.mark.parametrize(
    ("tools", "severity"),
    [
        ("{{ tools or '' }}", "info"),
        ("<q>{{ (tools or [{'function': {}}])[0].function.get('parameters', {}).get('required', '') }}<q>", "warning"),
        (
            "{% for tool in tools or [] %}{{ \"{'name': '\" + tool.function.name + \"'}\" + tool | string }}"
            "{% endfor %}",
            "info",
        ),
    ],
)
def test_python_among_tools_is_no_error_for_no_parser_reads_it(tools: str, severity: str) -> None:
    found = severities(check_template(template(tools=tools)), "PF437")
    assert [each for message, each in found.items() if "dict or list" in message][:1] == [severity]


def test_text_of_the_template_is_not_printed_by_a_value() -> None:
    written = "{% if tools %}Write {'name': <name>, 'arguments': <arguments>}.{% endif %}"
    assert not severities(check_template(template(tools=TOOLS + written)), "PF437")


def test_a_failure_that_needs_two_shapes_names_both() -> None:
    call = "{% if message.content is none %}{% for call in message.tool_calls %}{{ '' + call.function.arguments }}"
    turn = "{{ message.role }}" + call + "{% endfor %}{% else %}{{ message.content }}{% endif %}{{ '<|end|>' }}"
    found = severities(check_template(template(turn=turn)), "PF431")
    assert "the template fails on a tool call whose content is null and arguments as mappings" in found


def test_calls_lost_only_after_another_question_are_a_warning() -> None:
    turn = TURN.replace(LOOP, f"{{% if not messages[4:] %}}{LOOP}{{% endif %}}")
    found = severities(check_template(template(turn=turn)), "PF433")
    lost = "the name of a tool call is lost in a conversation with a user message after the answer to a tool result"
    assert found[lost] == "warning"


def test_a_template_that_makes_a_task_of_a_conversation_has_infos_only() -> None:
    task = "{{ ' ' if 0 }} Judge {{ messages[-1].role }}: {{ messages[-1].content }}\n<|begin|>"
    found = check_template(task + "Now answer with one word, yes or no, whether this text is safe for the users")
    assert found
    assert {finding.severity for finding in found} == {"info"}


def test_the_space_before_an_opening_text_is_its_own_and_before_each_turn_an_accident() -> None:
    began = "the prompt begins with a line break"
    opening = "{{ '\nThe following is a conversation.' }}"
    assert severities(check_template(opening + template()), "PF447")[began] == "info"
    assert severities(check_template(template(turn="{{ '\n\n' }}" + TURN, tools="")), "PF447")[began] == "warning"


def test_special_tokens_that_come_with_a_processor_are_no_failure() -> None:
    turn = "{% if message.content is string %}{{ message.content }}{% else %}{{ image_token + '' }}{% endif %}"
    assert "error" not in severities(check_template(template(turn=turn)), "PF431").values()


@pytest.mark.parametrize(
    ("turn", "line"),
    [
        ("{{ message.role }}\n{% if message.content is string %}\n{{ message.content }}\n{% endif %}", 2),
        ("{% if message.role in ('user', 'assistant') %}\n{{ message.content }}\n{% endif %}", 1),
    ],
)
def test_a_lost_text_has_the_line_of_its_message_or_of_the_loop(turn: str, line: int, tmp_path: Path) -> None:
    path = tmp_path / "chat_template.jinja"
    path.write_text("{% for message in messages %}" + "\n" + turn + "{% endfor %}")
    name = "user-parts" if line == 2 else "system"
    found = [
        each
        for each in check_template(path)
        if each.code == "PF433" and each.saw.startswith(f"conversation '{name}': ")
    ]
    assert [each.position.line for each in found if each.position] == [line]


def test_a_template_that_loses_only_user_texts_is_one_for_chats() -> None:
    lost = template().replace("(message.content or '')", "('' if message.role == 'user' else message.content or '')")
    assert (
        severities(check_template(lost), "PF433")["a user text is lost in a conversation with a single user message"]
        == "error"
    )


def test_messages_name_what_templates_call_by_its_name_there() -> None:
    saw = next(each.saw for each in check_template("{{ dict.from_keys([1]) }}") if each.code == "PF431")
    assert "'dict object' has no attribute 'from_keys'" in saw


def test_endless_recursion_is_the_same_failure_each_time() -> None:
    saw = next(each.saw for each in check_template("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(messages) }}"))
    assert saw == "conversation 'question': RecursionError: the template calls itself endlessly, also in transformers"


def test_conversations_are_plain_mappings_too() -> None:
    refund: ConversationSpec = {"about": "a refund", "messages": [{"role": "user", "content": "Refund it."}]}
    found = check_template("{{ messages[0].role }}", conversations={"refund": refund})
    assert "a user text is lost in a conversation with a refund" in severities(found, "PF433")
    misspelt: Any = {**refund, "abuot": "x"}
    with pytest.raises(SourceError, match="unknown key 'abuot'"):
        check_template("{{ messages }}", conversations={"refund": misspelt})


READING: dict[str, Any] = {
    "start_anchor": "<|begin|>assistant\n",
    "fields": {
        "tool_calls": {
            "open_pattern": r"<call>(?P<name>\w+) ",
            "close": "</call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"close_pattern": r"<\|end\|>\n?"},
    },
}


def test_answers_that_a_parser_reads_back_are_no_finding_and_others_are() -> None:
    pytest.importorskip("transformers.utils.chat_parsing.response_parser")
    assert not severities(check_template(template(), response_template=READING), "PF467")
    printing = template().replace("(call.function.arguments | tojson)", "(call.function.arguments | string)")
    found = severities(check_template(printing, response_template=READING), "PF467")
    assert found["the parser fails on an answer in a conversation with a tool call"] == "error"
    calls = {**READING["fields"]["tool_calls"], "repeats": False}
    alone = {**READING, "fields": {**READING["fields"], "tool_calls": calls}}
    found = severities(check_template(template(), response_template=alone), "PF467")
    assert found["the parser fails on an answer in a conversation with a tool call"] == "error"


def test_a_table_shows_at_which_step_an_answer_is_lost() -> None:
    pytest.importorskip("transformers.utils.chat_parsing.response_parser")

    def cells(source: str, response_template: Any = None) -> dict[tuple[str, str], list[str]]:
        table = loop_table(TemplateTrial(lone_profile(source), options=TrialOptions(parser=response_template)))
        return {(name, message): cells for name, message, cells, _ in table["rows"]}

    fine = cells(template(), READING)
    assert fine["call-finished", "message 2"] == ["ok", "ok", "ok", "ok"]
    assert fine["answer", "message 2"] == ["ok", "ok", "ok", "-"]
    printing = template().replace("(call.function.arguments | tojson)", "(call.function.arguments | string)")
    assert cells(printing, READING)["call-finished", "message 2"][0] == "miss: the parser fails on an answer"
    changing = template().replace(
        "'<|end|>\\n'", "('<|over|>' if message.role == 'assistant' and not loop.last else '<|end|>')"
    )
    assert cells(changing)["turns", "message 2"] == ["miss: a later prompt has another text"]


def test_every_change_of_a_training_template_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(template(), "utf-8")
    end = "'<|end|>' + ('' if message.role == 'assistant' else '\\n')"
    changed = template().replace("'</call>'", "' </call>'").replace("'<|end|>\\n'", end)
    (tmp_path / "chat_template_training.jinja").write_text(marked(changed), "utf-8")
    about = "the prompts for training and inference differ in a conversation with "
    assert set(severities(check_template(tmp_path / "chat_template.jinja"), "PF454")) == {
        f"{about}a finished answer",
        f"{about}a tool call",
    }


@pytest.mark.parametrize(("served", "trained", "severity"), [(False, True, "info"), (True, False, "warning")])
def test_reasoning_only_in_training_may_be_meant_and_only_in_inference_is_not(
    served: bool, trained: bool, severity: str, tmp_path: Path
) -> None:
    thought = "{{ '<think>' + message.reasoning_content + '</think>' if message.reasoning_content else '' }}"
    served_turn, trained_turn = ((thought if writes else "") + TURN for writes in (served, trained))
    (tmp_path / "chat_template.jinja").write_text(template(turn=served_turn), "utf-8")
    (tmp_path / "chat_template_training.jinja").write_text(marked(template(turn=trained_turn)), "utf-8")
    found = severities(check_template(tmp_path / "chat_template.jinja"), "PF454")
    assert set(found.values()) == {severity}


def test_different_calls_that_look_alike_are_reported() -> None:
    plain = "{% for name, value in call.function.arguments.items() %}{{ '<' + name + '>' ~ value ~ '</>' }}{% endfor %}"
    found = severities(check_template(template().replace(CALL, "{{ call.function.name }}" + plain)), "PF468")
    assert 'two different arguments of a tool call give the same prompt: "7" and 7' in found
    assert "an argument can contain text that closes the argument's tag and adds another argument" in found
    assert not severities(check_template(template()), "PF468")


def test_a_mask_ends_with_the_stop_token() -> None:
    answer = "{% generation %}{{ message.content + '<|end|>AFTER' }}{% endgeneration %}"
    other = "{{ message.content + '<|end|>' }}"
    turn = (
        "{{ '<|begin|>' + message.role + '\\n' }}"
        f"{{% if message.role == 'assistant' %}}{answer}{{% else %}}{other}{{% endif %}}{{{{ '\\n' }}}}"
    )
    for after, expected in (
        ("", {}),
        (" ", {"the training mask ({% generation %}) continues after the stop token": "warning"}),
    ):
        source = template(turn=turn.replace("AFTER", after), tools="")
        assert severities(check_template(source), "PF453") == expected


GLUED = (
    "{% for message in messages %}{{ ('' if message.role == 'assistant' else '<|begin|>' + message.role + '\\n') }}"
    "{{ message.content + '<|end|>\\n' }}"
    "{% if message.role == 'user' %}{{ '<|begin|>assistant\\n' }}{% endif %}{% endfor %}"
)
MISTAKES = {
    "an id is looked for in the function": (
        template(turn=TURN.replace("'<call>' +", "'<call>' ~ call.function.id ~")),
        ("PF407", "the chat template prints the undefined name 'id'"),
    ),
    "minutes are written for the month": (
        "Today is {{ strftime_now('%Y-%M-%d') }}.\n" + template(),
        ("PF402", "minutes and months are mixed up: %M is the minute, %m the month"),
    ),
    "the file was indented within quotes": (
        template().replace("assistant\\n' }}", "assistant\n        ' }}").replace("<|end|>\\n", "<|end|>\n        "),
        ("PF408", "the chat template prints the indentation of its own file"),
    ),
    "a name that only another branch sets is looped over": (
        "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{% endif %}"
        + template().replace("in messages", "in rest"),
        ("PF407", "the chat template prints the undefined name 'rest'"),
    ),
    "a key of messages is taken for a name": (
        template("content").replace("+ content", "~ content"),
        ("PF407", "the chat template prints the undefined name 'content'"),
    ),
    "a description with quotes breaks the tools": (
        template(
            tools="{% for tool in tools or [] %}"
            '{{ \'{"name": "\' + tool.function.name + \'", "description": "\' + tool.function.description + \'"}\' }}'
            "{% endfor %}"
        ),
        ("PF455", "the JSON of the tools is broken in a conversation with a tool whose description holds quotes"),
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_every_host_sends_is_an_error_where_it_is_lost(name: str) -> None:
    source, (code, message) = MISTAKES[name]
    assert severities(check_template(source), code)[message] == "error"
    assert message not in severities(check_template(template()), code)


def test_a_generation_prompt_after_each_user_message_is_an_info() -> None:
    message = "a generation prompt follows each user message, even before another user message"
    assert severities(check_template(GLUED), "PF442")[message] == "info"


def test_arguments_that_servers_parse_are_infos_as_text() -> None:
    message = "arguments that are already JSON text are encoded as JSON again"
    assert severities(check_template(template()), "PF438")[message] == "info"
    items = CALL.replace("call.function.arguments | tojson", "call.function.arguments | items | list | tojson")
    found = severities(check_template(template().replace(CALL, items)), "PF431")
    assert found["the template fails on tool call arguments that are JSON text"] == "info"


@pytest.mark.parametrize(
    ("taken", "call", "about", "severity"),
    [
        ("message.tool_calls[0]", CALL, "parallel calls", "warning"),
        ("message['tool_calls'] | first", CALL, "parallel calls", "warning"),
        ("message.get('tool_calls')[0]", CALL, "parallel calls", "warning"),
        ("message.tool_calls[-1]", CALL, "parallel calls", "error"),
        ("message.tool_calls[0]", CALL.replace("call.function.name + ' ' + ", ""), "a tool call", "error"),
    ],
)
def test_a_second_call_that_is_left_out_is_a_warning_where_only_the_first_is_taken(
    taken: str, call: str, about: str, severity: str
) -> None:
    first = f"{{% if message.tool_calls %}}{{% set call = {taken} %}}{call}{{% endif %}}"
    found = severities(check_template(template(turn=TURN.replace(LOOP, first))), "PF433")
    assert found[f"the name of a tool call is lost in a conversation with {about}"] == severity


def test_a_word_as_the_characters_of_strip_is_reported() -> None:
    said = "lstrip('<think>') removes each of these characters, not the word"
    assert severities(check_template(template("(message.content or '').lstrip('<think>')")), "PF433")[said] == "warning"
    assert said not in severities(check_template(template("(message.content or '').lstrip('\\n')")), "PF433")


def test_indentation_outside_of_tags_is_an_info_where_a_program_may_join_the_lines(tmp_path: Path) -> None:
    message = "the chat template prints the indentation of its own file"
    turn = "{{ '<|begin|>' + message.role + '\\n' + message.content + '<|end|>' }}"
    source = f"{{% for message in messages %}}\n    {turn}\n{{% endfor %}}\n"
    for name, severity in (("chat_template", "warning"), ("zephyr", "info")):
        path = tmp_path / f"{name}.jinja"
        path.write_text(source)
        assert severities(check_template(path), "PF408")[message] == severity
    path.write_text(f"<|first|>\n    {source}")
    assert severities(check_template(path), "PF408")[message] == "warning"
    path.write_text("{%- set unused = '[\\n    ' -%}\n" + path.read_text())
    assert severities(check_template(path), "PF408")[message] == "warning"


ENDED = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% else %}{{ eos_token }}{% endif %}"
)
"""Phi-3's ends: the end token follows the last message of any role."""


def test_an_end_token_after_the_last_message_of_any_role_is_a_warning() -> None:
    message = "an end token follows the last message of any role"
    assert severities(check_template(ENDED), "PF440")[message] == "warning"
    after_answers = ENDED.replace("{% else %}", "{% elif messages[-1].role == 'assistant' %}")
    assert message not in severities(check_template(after_answers), "PF440")


@pytest.mark.parametrize(("reason", "severity"), [("roles must alternate", "warning"), ("no system role", "info")])
def test_a_refusal_of_system_messages_that_blames_something_else_is_a_warning(reason: str, severity: str) -> None:
    refusal = "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('REASON') }}{% endif %}"
    source = ENDED.replace("<|{{ m.role }}|>", refusal.replace("REASON", reason) + "<|{{ m.role }}|>")
    assert severities(check_template(source), "PF432")["the template refuses a system message"] == severity


def test_a_template_that_is_only_sent_tools_fails_on_these_alone() -> None:
    source = (
        "{%- macro named(type) %}{% if type in ['string', 'integer', 'boolean'] %}{{ type }}{% else %}"
        "{% for each in type %}{{ named(each) }}{% endfor %}{% endif %}{% endmacro %}"
        "{% for tool in tools[:] %}{% for _, each in (tool.function.parameters or {}).get('properties', {})|items %}"
        "{{ named(each.type) }}{% endfor %}{% endfor %}"
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ m.tool_calls }}<|end|>{% endfor %}"
    )
    found = severities(check_template(source), "PF431")
    assert found["the template fails on a single user message"] == "info"
    assert found["the template fails on tools that are not called"] == "error"


@pytest.mark.parametrize(
    ("architecture", "severity"),
    [("LlamaForCausalLM", "warning"), ("LlamaForSequenceClassification", "info"), ("Qwen2ForRewardModel", "info")],
)
def test_findings_are_infos_where_the_model_gives_a_score(tmp_path: Path, architecture: str, severity: str) -> None:
    (tmp_path / "chat_template.jinja").write_text(ENDED)
    (tmp_path / "config.json").write_text(f'{{"architectures": ["{architecture}"], "eos_token_id": 2}}')
    found = severities(check_template(tmp_path), "PF440")
    assert found["an end token follows the last message of any role"] == severity


def test_a_configuration_that_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    template = tmp_path / "model/chat_template.jinja"
    template.parent.mkdir()
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}", "utf-8")
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForSequenceClassification"]}', "utf-8")
    (template.parent / "config.json").symlink_to(tmp_path / "config.json")
    with gate.limited_to([template.parent]):
        assert not templates_of(template)[0].is_for_scores
    assert templates_of(template)[0].is_for_scores


def test_a_call_id_of_a_server_may_not_be_refused() -> None:
    refusing = (
        "{% if (message.tool_call_id or '') | length > 9 %}{{ raise_exception('the id is too long') }}{% endif %}"
    )
    message = "the template refuses the id that a server gives to a call"
    assert severities(check_template(template(turn=refusing + TURN)), "PF432")[message] == "warning"
    assert message not in severities(check_template(template()), "PF432")


def test_a_parameter_named_as_a_word_of_json_schema_has_to_be_written() -> None:
    listed = (
        "{% for key, value in tool.function.parameters.properties.items() KEPT %}{{ value.description }}{% endfor %}"
    )
    tools = "{% for tool in (tools or []) if tool.function.parameters %}{{ tool.function | tojson }}{% endfor %}"
    named = tools.replace("{{ tool.function | tojson }}", f"{{{{ tool.function.name }}}}{listed}")
    message = "parameters that are named as words of JSON schema are not in the prompt"
    lost = named.replace("KEPT", "if key not in ['description', 'type']")
    assert severities(check_template(template(tools=lost)), "PF439")[message] == "error"
    assert message not in severities(check_template(template(tools=named.replace("KEPT", ""))), "PF439")


def test_an_empty_list_of_tools_is_no_tool() -> None:
    message = "the text of the prompt differs between an empty list of tools and the same content in its usual form"
    given = "{% if tools is defined and tools is not none %}{{ 'Tools: ' + tools | tojson }}{% endif %}"
    assert severities(check_template(template(tools=given)), "PF436")[message] == "info"
    assert message not in severities(check_template(template()), "PF436")


def test_a_flag_is_not_removed_from_inside_of_a_word() -> None:
    message = "/think is removed from inside of other words"
    assert severities(check_template(template("(message.content or '') | replace('/think', '')")), "PF433")[message]
    whole = "((message.content or '')[:-6] if (message.content or '').endswith('/think') else message.content or '')"
    assert message not in severities(check_template(template(whole)), "PF433")


def test_answers_keep_their_whitespace_where_user_texts_do() -> None:
    message = "whitespace is removed around answers, but kept around user texts"
    trimmed = "(message.content | trim if message.role == 'assistant' else message.content or '')"
    assert severities(check_template(template(trimmed)), "PF448")[message] == "info"
    assert message not in severities(check_template(template("(message.content or '') | trim")), "PF448")


def test_a_partial_answer_inside_its_reasoning_gets_no_other_block() -> None:
    message = "the template opens reasoning before a partial answer that already opens it"
    block = "{{ '<think>\\n\\n</think>\\n\\n' if message.role == 'assistant' }}"
    turn = TURN.replace("'\\n' + CONTENT", "'\\n' }}" + block + "{{ CONTENT")
    assert severities(check_template(template(turn=turn)), "PF446")[message] == "info"
    assert message not in severities(check_template(template()), "PF446")
