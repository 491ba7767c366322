"""What the rules about chat templates find in a text, as a function of Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import wraps
from pathlib import Path

import pytest

from pytest_promptfmt import SourceError, check_template
from pytest_promptfmt.core.finding import Finding, Severity
from pytest_promptfmt.core.profile import builtin_template
from pytest_promptfmt.profiles.dialect import compiled_template
from pytest_promptfmt.profiles.probe_conversations import Conversation, State, builtin_conversations
from pytest_promptfmt.profiles.template_trial import Rendering, TemplateTrial, lone_profile
from pytest_promptfmt.profiles.tokenizer_sources import archetype_folder
from pytest_promptfmt.rules.rule_registry import find_rule, known_rules
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.systems.templates import SYSTEM, template_check

TURN = "{{ '<|begin|>' + message.role + '\\n' + message.content + '<|end|>\\n' }}"
PROMPT = "{% if add_generation_prompt %}{{ '<|begin|>assistant\\n' }}{% endif %}"
PLAIN = f"{{% for message in messages %}}{TURN}{{% endfor %}}{PROMPT}"


def found(template: str, code: str) -> list[str]:
    return [finding.message for finding in check_template(template) if finding.code == code]


def rendered(trial: TemplateTrial, name: str) -> Rendering:
    return trial.render(trial.conversations[name], trial.conversations[name].states[-1])


def test_every_builtin_conversation_says_each_text_once_and_names_what_there_is() -> None:
    known = builtin_conversations()
    assert len(known) > 60
    for conversation in known.values():
        assert {conversation.base, conversation.same_as} <= {None, *known}
        own = [unit.text for unit in conversation.units if unit.kind in ("user", "assistant", "tool", "system")]
        assert len(own) == len(set(own)), conversation.name


def test_the_states_of_a_conversation_are_the_turns_of_the_model_and_the_whole() -> None:
    states = builtin_conversations()["interleaved"].states
    assert states == (State(count=1), State(count=3), State(count=5), State(count=7))
    assert builtin_conversations()["turns"].states[-1] == State(count=6, generation_prompt=False)


def test_errors_come_first_and_know_line_and_fix() -> None:
    first = check_template("{{ messages[0].content }\n")[0]
    assert (first.code, first.severity) == ("PF430", Severity.ERROR)
    assert first.do
    assert check_template(PLAIN)[-1].severity is Severity.INFO


@pytest.mark.parametrize(
    ("text", "is_reported"), [("Answer each question in words.", True), ("Answer in few words.", False)]
)
def test_a_text_of_the_template_next_to_the_system_message_is_noted(text: str, is_reported: bool) -> None:
    said = "the template adds its default system text to the given system text"
    assert (said in found(f"{text}\n{PLAIN}", "PF401")) == is_reported


def test_general_rules_of_templates_are_rules_of_others() -> None:
    rules = [find_rule(code) for code in SYSTEM.general_rules]
    assert not {rule.function.__module__ for rule in rules} & {*SYSTEM.rules}


def test_a_rule_that_raises_is_one_finding_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(trial: TemplateTrial) -> Iterator[Finding]:
        raise KeyError(trial.source)

    rule = find_rule("PF440")
    selection = Selection(rules={**known_rules(), rule.code: replace(rule, function=wraps(rule.function)(raising))})
    monkeypatch.setattr(template_check, "_selection", lambda: selection)
    findings = check_template(PLAIN)
    (crash,) = [each for each in findings if each.code == "PF003"]
    assert "PF440" in crash.message + crash.saw
    assert len(findings) > 1


def test_a_finding_without_a_place_is_that_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].role }}", "utf-8")
    places = [each.position for each in check_template(tmp_path / "chat_template.jinja")]
    assert places
    assert all(each is not None and each.path == tmp_path / "chat_template.jinja" for each in places)
    assert not [each for each in check_template("{{ messages[0].role }}") if each.position is not None]


def test_what_a_simpler_conversation_shows_is_not_repeated() -> None:
    broken = PLAIN.replace("message.content", "message.content.missing.key")
    assert found(broken, "PF431") == ["the template fails on a single user message"]


def test_a_filter_that_jinja_lacks_has_its_own_remedy() -> None:
    lacking = PLAIN.replace("message.content", "(message.content | from_json if message.role else '')")
    remedies = [each.do for each in check_template(lacking) if each.code == "PF431"]
    assert remedies == ["use only filters and tests that Jinja has"]


def test_an_answer_to_continue_that_transformers_does_not_find_is_no_failure_of_the_template() -> None:
    assert found(PLAIN.replace("message.content", "message.content | upper"), "PF431") == []


@pytest.mark.parametrize(("end", "is_reported"), [("", True), ("</think>", False)])
def test_a_tag_of_reasoning_that_the_template_opens_is_closed(end: str, is_reported: bool) -> None:
    opened = f"{{{{ '<think>' + message.reasoning_content + '{end}' if message.reasoning_content else '' }}}}"
    messages = found(PLAIN.replace(TURN, f"{opened}{TURN}{{# </think> #}}"), "PF446")
    assert any(message.startswith("reasoning tags are unbalanced or doubled") for message in messages) is is_reported


@pytest.mark.parametrize(("switch", "is_noted"), [("", False), ("{% if enable_thinking %}{% endif %}", True)])
def test_a_switch_of_reasoning_that_changes_nothing_is_noted(switch: str, is_noted: bool) -> None:
    opened = "{{ '<think>' + message.reasoning_content + '</think>' if message.reasoning_content else '' }}"
    messages = found(switch + PLAIN.replace(TURN, opened + TURN), "PF446")
    assert ("the argument enable_thinking changes nothing" in messages) is is_noted


def test_refusals_are_told_apart_from_failures() -> None:
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + PLAIN
    assert "the template refuses a system message" in found(refusing, "PF432")
    assert not [text for text in found(refusing, "PF431") if "system" in text]


@pytest.mark.parametrize("wrong", ["message.content | backwards", "message.content.missing.key", "message.pop('role')"])
def test_a_failure_has_the_line_of_the_template_that_was_at_work(wrong: str) -> None:
    macro = f"{{% macro shown(message) %}}\n{{{{ {wrong} }}}}\n{{% endmacro %}}\n\n"
    source = macro + PLAIN.replace(TURN, "{{ shown(message) }}")
    trial = TemplateTrial(lone_profile(source))
    stopped = rendered(trial, "question")
    assert (stopped.text, stopped.line) == (None, 2)


def test_keys_of_mappings_are_read_as_jinja_reads_them() -> None:
    reading = "{% set m = messages[0] %}{{ m.role }}{{ m.missing }}{{ m.items is callable }}"
    assert TemplateTrial(lone_profile(reading)).text("question") == "userTrue"
    stopped = rendered(TemplateTrial(lone_profile("{{ messages[0].__class__.__name__ }}")), "question")
    assert "SecurityError" in (stopped.error or "")


def test_a_turn_left_open_after_a_tool_result_is_found() -> None:
    call = "{% for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}"
    turn = "{{ '<|begin|>' + message.role + '\\n' + (message.content or '') }}" + call
    end = "{{ '<|end|>\\n' if not loop.index0 or messages[loop.index0 - 1].role != 'tool' else '' }}"
    messages = found(f"{{% for message in messages %}}{turn}{end}{{% endfor %}}{PROMPT}", "PF440")
    assert messages[0] == "a turn is not closed in a conversation with an answer after a tool result"


def test_a_variable_lost_after_a_loop_is_reported_only_where_that_changes_a_prompt() -> None:
    flag = (
        "{% set f = false %}{% for m in messages %}{% if m.role == 'system' %}{% set f = true %}{% endif %}{% endfor %}"
    )
    assert found(f"{flag}{{% if not f %}}{{{{ 'Be kind.' }}}}{{% endif %}}{PLAIN}", "PF445")
    assert not found(f"{flag}{{% if not f %}}{{{{ '' }}}}{{% endif %}}{PLAIN}", "PF445")


def test_templates_that_take_only_parts_are_given_parts() -> None:
    turn = TURN.replace("message.content", "message.content | map(attribute='text') | join")
    template = f"{{% for message in messages %}}{turn}{{% endfor %}}{PROMPT}"
    assert any("only as lists of parts" in message for message in found(template, "PF431"))
    assert not [text for text in found(template, "PF433") if "is lost" in text]


def test_an_endless_template_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_promptfmt.profiles.conversation._TEMPLATE_SECONDS", 0.2)
    slow = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{{ messages }}"
    assert "did not finish within" in check_template(slow)[0].saw


@pytest.mark.parametrize(
    "end",
    [
        PROMPT,
        "\n  {%- if add_generation_prompt -%}  <|begin|>assistant\n  {%- endif -%}  ",
        "{% if add_generation_prompt %}{{ '<|begin|>' 'assistant' }}\n{# the answer #} \n{% endif %}\n\n",
        f"{PROMPT}<|last|>",
        "{% if add_generation_prompt %}A{% elif tools %}B{% else %}C{% endif %}",
        "{% if not add_generation_prompt %}A{% endif %}",
        f"{{% if add_generation_prompt %}}A{{% endif %}}{PROMPT}",
        f"{{% if messages[1:] %}}{{% set add_generation_prompt = false %}}{{% endif %}}{PROMPT}",
        "{% macro opened() %}{% if add_generation_prompt %}A{% endif %}{% endmacro %}{{ opened() }}",
        "{% filter upper %}{% if add_generation_prompt %}a{% endif %}{% endfilter %}",
        "{% if add_generation_prompt %}{{ 'a' | upper }}{% if enable_thinking is false %}T{% endif %}{% endif %}",
        "{% if add_generation_prompt %}{% generation %}A{% endgeneration %}{% endif %}",
        "{% if add_generation_prompt and messages[-1].role != 'assistant' %}{{ '<|begin|>' ~ bos_token }}{% endif %}",
        "{% if add_generation_prompt %}{% if messages[1:] %}{{ raise_exception('long') }}{% endif %}A{% endif %}",
        "{% if add_generation_prompt %}{{ messages[0].content + messages[1].content }}{% endif %}",
        "{% if not messages[1:] or add_generation_prompt %}A{% endif %}",
        "{# add_generation_prompt #}",
    ],
)
def test_a_generation_prompt_is_cut_off_only_where_the_template_would_write_the_same(end: str) -> None:
    default = "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
    for source in (end, PLAIN.removesuffix(PROMPT) + end, default + end):
        trial = TemplateTrial(lone_profile(source))
        for conversation in trial.given.values():
            for state in (*conversation.states, conversation.finished, State(count=len(conversation.messages))):
                assert trial.render(conversation, state) == trial.rendered_by(
                    compiled_template(source), conversation, state
                )


def test_arguments_of_equal_value_are_told_apart_by_their_names() -> None:
    asked = [{"role": "user", "content": "Hello there"}]
    given = {
        name: Conversation(name=name, about=name, messages=asked, template_args={name: True})
        for name in ("short", "polite")
    }
    trial = TemplateTrial(lone_profile("{{ 'S' if short }}{{ 'P' if polite }}"), given)
    assert [rendered(trial, name).text for name in given] == ["S", "P"]


def test_a_path_and_a_folder_are_taken(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(builtin_template("chatml"), "utf-8")
    by_folder = check_template(tmp_path)
    assert by_folder == check_template(tmp_path / "chat_template.jinja")
    assert by_folder[0].position is not None
    with pytest.raises(SourceError, match="no chat template"):
        check_template(tmp_path / "nothing.json") if (tmp_path / "nothing.json").write_text("{}") else None


def test_own_conversations_take_the_place_of_the_builtin_ones() -> None:
    only = Conversation(name="only", about="our own", messages=[{"role": "user", "content": "Hello there"}])
    trial = TemplateTrial(lone_profile("{{ messages[0].role }}"), {"only": only})
    assert rendered(trial, "only").text == "user"
    check_template("{% generation %}{{ messages[0].content }}{% endgeneration %}", conversations={"only": only})
    findings = check_template("{{ messages[0].role }}", conversations={"only": only})
    assert [finding.message for finding in findings if finding.code == "PF433"] == [
        "a user text is lost in a conversation with our own"
    ]


def test_a_tokenizer_brings_the_rules_about_tokens(tmp_path: Path) -> None:
    folder = archetype_folder("sentencepiece-llama2")
    codes = {finding.code for finding in check_template("{{ bos_token }}" + PLAIN, tokenizer=folder)}
    assert {"PF413", "PF414"} <= codes
    assert not {"PF413", "PF414"} & {finding.code for finding in check_template("{{ bos_token }}" + PLAIN)}


def test_a_mask_of_several_parts_in_a_row_is_one() -> None:
    answer = (
        "{% generation %}{{ message.content }}{% endgeneration %}{% generation %}{{ '<|end|>' }}{% endgeneration %}"
    )
    turn = "{{ '<|begin|>' + message.role + '\\n' }}"
    other = "{{ message.content + '<|end|>' }}"
    body = f"{turn}{{% if message.role == 'assistant' %}}{answer}{{% else %}}{other}{{% endif %}}{{{{ '\\n' }}}}"
    template = f"{{% for message in messages %}}{body}{{% endfor %}}{PROMPT}"
    assert not found(template, "PF453") + found(template, "PF451")


@pytest.mark.parametrize(("gap", "is_told"), [("", False), ("\\n", True)])
def test_what_a_server_has_the_model_generate_before_the_mask_is_reported(gap: str, is_told: bool) -> None:
    answer = "{% generation %}{{ message.content + '<|end|>' }}{% endgeneration %}"
    turn = "{{ '<|begin|>' + message.role + '\\n' }}"
    other = "{{ message.content + '<|end|>' }}"
    body = f"{turn}{{% if message.role == 'assistant' %}}{gap!r}{answer}{{% else %}}{other}{{% endif %}}{{{{ '\\n' }}}}"
    body = body.replace(repr(gap), f"{{{{ '{gap}' }}}}")
    messages = found(f"{{% for message in messages %}}{body}{{% endfor %}}{PROMPT}", "PF451")
    assert messages == ["the training mask ({% generation %}) begins too late"] * is_told


def test_arguments_escaped_by_hand_are_not_lost() -> None:
    escaped = "value | replace('\\n', '\\\\n') | replace('\"', '\\\\\"')"
    call = (
        "{% for call in message.tool_calls or [] %}{{ call.function.name }}("
        f"{{% for value in call.function.arguments.values() if value is string %}}{{{{ {escaped} }}}}{{% endfor %}})"
        "{% endfor %}"
    )
    turn = "{{ '<|begin|>' + message.role + '\\n' + (message.content or '') }}" + call + "{{ '<|end|>\\n' }}"
    template = f"{{% for message in messages %}}{turn}{{% endfor %}}{PROMPT}"
    assert not [message for message in found(template, "PF433") if "several lines" in message]


def test_a_training_template_is_compared_with_and_without_generation_prompt(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(PLAIN, "utf-8")
    marked = PLAIN.replace(TURN, f"{{% generation %}}{TURN}{{% endgeneration %}}")
    for written, conversations in (
        (PLAIN, [""]),
        (marked, []),
        (marked.replace("assistant", "model"), ["question"]),
        (marked.replace("<|end|>", "<|x|>"), ["question"]),
    ):
        (tmp_path / "chat_template_training.jinja").write_text(written, "utf-8")
        found = [each for each in check_template(tmp_path / "chat_template.jinja") if each.code == "PF454"]
        assert [each.conversation for each in found] == conversations


def test_empty_reasoning_that_only_training_writes_is_noted(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(THINKING, "utf-8")
    always = THINKING.replace(" and loop.last", "").replace(
        "{{- message.content }}", "{% generation %}{{- message.content }}{% endgeneration %}"
    )
    for written, is_warning in ((always, False), (always.replace("</think>\\n", "</think>"), True)):
        (tmp_path / "chat_template_training.jinja").write_text(written, "utf-8")
        severities = {
            each.severity for each in check_template(tmp_path / "chat_template.jinja") if each.code == "PF454"
        }
        assert severities
        assert (Severity.WARNING in severities) == is_warning


RICH = """\
{%- set rest = messages[1:] if messages[0].role == 'system' else messages %}
{%- set asked = messages[0].content if messages[0].role == 'system' else 'You are a helpful assistant of our firm.' %}
{{- '<|begin|>system\\n' + asked + '<|end|>\\n' }}
{%- for tool in tools or [] %}{{- (tool.function | tojson) + '\\n' }}{% endfor %}
{%- for message in rest %}
    {%- if message.role == 'tool' %}
        {{- '<|begin|>user' if loop.first or rest[loop.index0 - 1].role != 'tool' else '' }}
        {{- '<result>' + message.content + '</result>' }}
        {{- '<|end|>\\n' if loop.last or rest[loop.index0 + 1].role != 'tool' else '' }}
    {%- else %}
        {{- '<|begin|>' + message.role + '\\n' }}
        {%- if message.content is string %}{{- message.content }}
        {%- else %}
            {%- for part in message.content or [] %}{{- part.text if part.type == 'text' else '<image>' }}{% endfor %}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}{{- call.function | tojson }}{% endfor %}
        {{- '<|end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|begin|>assistant\\n' }}{%- endif %}"""
SLIPS = {
    "neighbours in another list": (
        "rest[loop.index0 + 1]",
        "messages[loop.index0 + 1]",
        "PF440",
        "after a system message",
    ),
    "a default for an empty text": (
        "if messages[0].role == 'system' else 'You",
        "if messages[0].role == 'system' and messages[0].content else 'You",
        "PF401",
        "although the system message is empty",
    ),
    "an image dropped": ("else '<image>'", "else ''", "PF433", "an image is not in the prompt"),
    "letters as escapes": (
        "{{- call.function | tojson }}",
        "{{- call.function | tojson(ensure_ascii=true) }}",
        "PF438",
        "arguments with non-ASCII letters are written as escapes",
    ),
    "BOS again with tools": (
        "{{- '<|begin|>system",
        "{{- bos_token + (bos_token if tools else '') + '<|begin|>system",
        "PF414",
        "BOS is written twice at the beginning of a conversation with tools that are not called",
    ),
    "BOS in the middle after a call": (
        "{{- '<|begin|>' + message.role + '\\n' }}",
        "{{- (bos_token if loop.first or message.tool_calls else '') + '<|begin|>' + message.role + '\\n' }}",
        "PF414",
        "BOS is written in the middle of a conversation with a tool call",
    ),
    "no BOS with a system message": (
        "{{- '<|begin|>system",
        "{{- bos_token if messages[0].role != 'system' else '' }}{{- '<|begin|>system",
        "PF415",
        "BOS is missing in a conversation with a system message",
    ),
    "a description in quotes by hand": (
        "{{- (tool.function | tojson) + '\\n' }}",
        """{{- '{"name": "' ~ tool.function.name ~ '", "description": "' ~ tool.function.description ~ '"}' }}""",
        "PF455",
        "the JSON of the tools is broken in a conversation with a tool whose description holds quotes",
    ),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_slips_that_need_two_things_at_once_are_found_and_only_there(slip: str) -> None:
    right, wrong, code, message = SLIPS[slip]
    assert right in RICH
    assert any(message in each for each in found(RICH.replace(right, wrong), code))
    assert not any(message in each for each in found(RICH, code))


def test_a_tool_result_must_not_change_the_call_before_it_where_tokens_are_appended_in_training() -> None:
    answer = "{% generation %}{{ '<think></think>' if loop.last else '' }}{{ calls }}{% endgeneration %}"
    calls = (
        "{% set calls %}{% for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}{% endset %}"
    )
    turn = f"{{{{ '<|begin|>' + message.role + '\\n' }}}}{calls}{answer}{{{{ message.content or '' }}}}<|end|>\n"
    template = f"{{% for message in messages %}}{turn}{{% endfor %}}{PROMPT}"
    message = "a tool result changes the call before it"
    assert message not in found(template.replace("if loop.last else ''", ""), "PF441")
    untrained = template.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    for source, severity in ((template, "warning"), (untrained, "info")):
        assert {each.severity for each in check_template(source) if each.message == message} == {severity}


# -- mistakes next to reasoning, tool results at the end, and markers of one vendor ------------------------------------

THINKING = (
    "{%- for message in messages %}"
    "{{- '<|begin|>' + message.role + '\\n' }}"
    "{%- if message.role == 'assistant' and loop.last %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    "{{- message.content }}{{- '<|end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|begin|>assistant\\n<think>\\n' }}{% endif %}"
)


def errors_of(source: str) -> set[tuple[str, str]]:
    return {(each.code, each.message) for each in check_template(source) if each.severity == "error"}


def test_an_answer_without_end_token_is_found_next_to_reasoning() -> None:
    changed = THINKING.replace("{{- '<|end|>\\n' }}", "{{- '\\n' if message.role == 'assistant' else '<|end|>\\n' }}")
    assert errors_of(changed) - errors_of(THINKING) == {("PF440", "user messages are closed, but answers are not")}


def test_a_last_answer_that_is_lost_is_an_error_where_earlier_ones_are_written() -> None:
    changed = THINKING.replace(
        "{{- message.content }}", "{{- message.content if not loop.last or loop.first else '' }}"
    )
    assert ("PF433", "an assistant text is lost in a conversation with a finished answer") in errors_of(
        changed
    ) - errors_of(THINKING)


@pytest.mark.parametrize(("gap", "is_told"), [("", True), ("\\n", False)])
def test_empty_reasoning_has_the_same_whitespace_in_prompts_and_answers(gap: str, is_told: bool) -> None:
    turn = TURN.replace(
        "message.content", "(message.role == 'assistant' and '<think></think>\\n' or '') + message.content"
    )
    prompt = PROMPT.replace(
        "{% endif", f"{{% if enable_thinking is false %}}{{{{ '<think></think>{gap}' }}}}{{% endif %}}{{% endif"
    )
    messages = found(f"{{% for message in messages %}}{turn}{{% endfor %}}{prompt}", "PF442")
    assert any("different whitespace" in message for message in messages) == is_told


def test_a_tool_result_is_closed_before_the_generation_prompt() -> None:
    calls = "{% for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}"
    text = "{{ '<|begin|>' + message.role + '\\n' + (message.content or '') }}" + calls
    sound = f"{{% for message in messages %}}{text}{{{{ '<|end|>\\n' }}}}{{% endfor %}}{PROMPT}"
    changed = sound.replace("'<|end|>\\n'", "'\\n' if loop.last and message.role == 'tool' else '<|end|>\\n'")
    assert {code for code, _ in errors_of(changed) - errors_of(sound)} == {"PF440"}


def test_a_comment_about_tools_does_not_make_a_template_write_them() -> None:
    assert not errors_of("{# tool_calls are dropped: not needed for training #}" + PLAIN)


def test_a_new_namespace_inside_a_loop_is_not_meant_for_later() -> None:
    after = "{% if ns.n == 1 %}{{ 'one: ' }}{% endif %}"
    inside = "{% set ns = namespace(n=1) %}{% for m in messages %}VALUE{% endfor %}" + after
    assert not found(inside.replace("VALUE", "{% set ns = namespace(n=2) %}") + PLAIN, "PF445")
    assert found(inside.replace("VALUE", "{% set ns = {'n': 2} %}") + PLAIN, "PF445")


def test_a_mask_that_holds_the_header_is_found_where_the_generation_prompt_goes_on() -> None:
    masked = THINKING.replace("{{- '<|begin|>'", "{%- generation %}{{- '<|begin|>'") + "{# #}"
    masked = masked.replace(
        "{{- '<|end|>\\n' }}{%- endfor", "{{- '<|end|>' }}{% endgeneration %}{{- '\\n' }}{%- endfor"
    )
    severity = {each.message: each.severity for each in check_template(masked) if each.code == "PF452"}
    assert severity["the generation prompt is inside the training mask ({% generation %})"] == "warning"


def test_what_is_only_in_the_generation_prompt_is_no_part_of_a_mask() -> None:
    answer = "{% generation %}{{ message.content + '<|end|>' }}{% endgeneration %}{{ '\\n' }}"
    answer = "{{ '<|begin|>assistant\\n' }}" + answer
    body = f"{{% if message.role == 'assistant' %}}{answer}{{% else %}}{TURN}{{% endif %}}"
    prompt = PROMPT.replace("{{", "{% generation %}{{").replace("}}", "}}{% endgeneration %}")
    codes = {code for code, _ in errors_of(f"{{% for message in messages %}}{body}{{% endfor %}}{prompt}")}
    assert not codes & {"PF451", "PF452", "PF453"}


def test_turns_of_minimax_take_turns() -> None:
    turn = "{{- ']~b]' + message.role + '\\n' + message.content + ('[e~[\\n' if END else '\\n') }}"
    source = f"{{% for message in messages %}}{turn}{{% endfor %}}" + PROMPT.replace("<|begin|>", "]~b]")
    assert not errors_of(source.replace("END", "true")) & {
        ("PF440", "a turn is not closed in a conversation with a system message")
    }
    assert "PF440" in {code for code, _ in errors_of(source.replace("END", "message.role != 'system'"))}


def test_tools_that_make_a_template_fail_are_not_reported_as_lost() -> None:
    listed = "{% for tool in tools or [] %}{{ tool.name }}{{ missing.name }}{% endfor %}"
    lost = "the tools of the request are not in the prompt"
    assert lost in found(f"{{% if tools %}}You have tools.{{% endif %}}{PLAIN}", "PF439")
    assert lost not in found(f"{listed}{PLAIN}", "PF439")
    assert any("tools" in message for message in found(f"{listed}{PLAIN}", "PF431"))


def test_whitespace_is_not_compared_where_the_texts_are_lost() -> None:
    stripped = PLAIN.replace("message.content", "(message.content | trim if not loop.last else message.content)")
    assert found(stripped, "PF448")
    last_user = "{% if message.role != 'user' or loop.last %}" + TURN + "{% endif %}"
    assert found(f"{{% for message in messages %}}{last_user}{{% endfor %}}{PROMPT}", "PF448") == []


# -- names, numbers and turns that one message changes in another ------------------------------------------------------

NAMED = """\
{%- set rest = messages[1:] if messages[0].role == 'system' else messages %}
{%- if messages[0].role == 'system' %}{{- '<|begin|>system\\n' + messages[0].content + '<|end|>\\n' }}{% endif %}
{%- for tool in tools or [] %}{{- '<tool>' ~ tool.function.name ~ (tool.function | tojson) ~ '</tool>' }}{% endfor %}
{%- set names = namespace(of={}) %}
{%- for message in rest %}
    {{- '<|begin|>' + message.role + '\\n' }}
    {%- for call in message.tool_calls or [] %}
        {%- set names.of = dict(names.of, **{call.id: call.function.name}) %}
        {{- '<call>' + (call.function | tojson) + '</call>' }}
    {%- endfor %}
    {%- if message.role == 'tool' %}{{- '<result of ' ~ names.of[message.tool_call_id] ~ '>' }}{% endif %}
    {%- if message.role == 'assistant' and loop.index0 + 1 == rest | length %}{{- '<think></think>' }}{% endif %}
    {{- message.content or '' }}{{- '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|begin|>assistant\\n<think>\\n' }}{% endif %}"""


@pytest.mark.parametrize(
    ("right", "wrong", "code", "message"),
    [
        (
            "names.of[message.tool_call_id]",
            "names.of.values() | first",
            "PF433",
            "a tool result is written under the name of another tool",
        ),
        ("~ tool.function.name ~", "~ tool.name ~", "PF407", "the chat template prints the undefined name 'name'"),
        (
            "== rest | length",
            "== messages | length",
            "PF441",
            "a system message changes later turns of a conversation with several turns",
        ),
        (
            "\\n<think>\\n' }}",
            "\\n' ~ ('<think>\\n' if messages[-1].role != 'tool' else '') }}",
            "PF442",
            "the generation prompt has other reasoning tags after a tool result than after a question",
        ),
    ],
)
def test_what_depends_on_another_message_is_compared(right: str, wrong: str, code: str, message: str) -> None:
    assert right in NAMED
    assert message in found(NAMED.replace(right, wrong), code)
    assert message not in found(NAMED, code)


def test_names_after_results_and_in_tags_of_calls_are_right() -> None:
    message = "a tool result is written under the name of another tool"
    named = "{{- '<result of ' ~ names.of[message.tool_call_id] ~ '>' }}"
    after = NAMED.replace(named, "").replace(
        "message.content or '' }}", "(message.content or '') ~ (message.name or '') }}"
    )
    tags = NAMED.replace(named, "").replace("'</call>'", "'</' ~ call.function.name ~ '>'")
    assert after != NAMED != tags
    assert message not in found(after, "PF433") + found(tags, "PF433")


def test_a_default_text_after_the_question_is_no_shift_of_turns() -> None:
    own = "{{ ' Think it over.' if loop.first and messages[0].role != 'system' else '' }}"
    source = PLAIN.replace(" + '<|end|>\\n' }}", f" }}}}{own}{{{{ '<|end|>\\n' }}}}")
    assert not [each for each in found(source, "PF441") if each.startswith("a system message changes")]


@pytest.mark.parametrize(("number", "is_reported"), [("images.count", False), ("1", True)])
def test_images_are_numbered(number: str, is_reported: bool) -> None:
    image = f"{{% set images.count = images.count + 1 %}}{{{{ '<image' ~ {number} ~ '>' }}}}"
    content = (
        "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
        f"{{% if part.type == 'image' %}}{image}{{% else %}}{{{{ part.text }}}}{{% endif %}}{{% endfor %}}{{% endif %}}"
    )
    turn = f"{{{{ '<|begin|>' + message.role + '\\n' }}}}{content}{{{{ '<|end|>\\n' }}}}"
    template = f"{{% set images = namespace(count=0) %}}{{% for message in messages %}}{turn}{{% endfor %}}{PROMPT}"
    assert ("two images have the same number" in found(template, "PF433")) == is_reported


def test_a_field_that_messages_may_lack_is_noted_and_a_test_prints_nothing() -> None:
    template = PLAIN.replace("message.role +", "message.role ~ ('' if message.place is iterable else ' ') +")
    assert not found(template, "PF407")
    printed = PLAIN.replace("message.role +", "message.role ~ message.place +")
    assert [each.severity for each in check_template(printed) if each.code == "PF407"] == [Severity.INFO]


def test_a_template_that_quotes_a_conversation_in_one_turn_is_none_for_chats() -> None:
    lines = "{% for message in messages %}{{ '[' + message.role + ']: ' + message.content + '\\n' }}{% endfor %}"
    guard = f"{{{{ '<|begin|>user\\n' }}}}{lines}{{{{ '<|end|>\\n' }}}}{PROMPT}"
    assert {each.severity for each in check_template(guard)} == {Severity.INFO}
