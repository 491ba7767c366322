"""Templates held to the files next to them: the tokens of the vocabulary, and those at which generation stops."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_promptfmt import check_template
from pytest_promptfmt.core.finding import Reported

LOOP = (
    "{% for message in messages %}{{ '<|begin|>' + message.role + '\\n' + message.content + '<|end|>\\n' }}{% endfor %}"
)
TEMPLATE = LOOP + "{% if add_generation_prompt %}{{ '<|begin|>assistant\\n' }}{% endif %}"
IDS = {"<|done|>": 0, "<|begin|>": 1, "<|end|>": 2}


def checked(folder: Path, source: str, *, stops: object = None, ids: dict[str, int] = IDS) -> list[Reported]:
    (folder / "chat_template.jinja").write_text(source, "utf-8")
    decoder = {str(number): {"content": token} for token, number in ids.items()}
    config = {"eos_token": "<|end|>", "added_tokens_decoder": decoder}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    if stops is not None:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}), "utf-8")
    return check_template(folder)


def severities(findings: list[Reported], code: str) -> dict[str, str]:
    return {finding.message: finding.severity for finding in findings if finding.code == code}


@pytest.mark.parametrize(("stops", "is_right"), [(0, False), ([0], False), (2, True), ([0, 2], True), ("broken", True)])
def test_generation_stops_at_the_token_that_ends_an_answer(tmp_path: Path, stops: object, is_right: bool) -> None:
    expected = {} if is_right else {"generation_config.json does not stop at the end of an answer": "error"}
    assert severities(checked(tmp_path, TEMPLATE, stops=stops), "PF461") == expected


def test_a_stop_token_without_known_id_is_not_judged(tmp_path: Path) -> None:
    source = TEMPLATE.replace("<|end|>", "<|close|>")
    assert "PF461" in {each.code for each in checked(tmp_path, source)}  # eos_token is another
    assert "PF461" not in {each.code for each in checked(tmp_path, source, stops=[0, 7])}


def test_a_marker_has_the_characters_of_the_token_that_it_looks_like(tmp_path: Path) -> None:
    alike = {"<|done|>": 0, "<｜begin｜>": 1, "<|end|>": 2}
    found = [each for each in checked(tmp_path, TEMPLATE, ids=alike) if each.code == "PF413"]
    assert [(each.message, each.saw) for each in found] == [
        ("a marker looks like a token, but has other characters", "<|begin|> is not <｜begin｜>")
    ]
    assert "PF413" not in {each.code for each in checked(tmp_path, TEMPLATE)}


def test_a_token_after_every_prompt_may_end_a_document(tmp_path: Path) -> None:
    source = LOOP + "{% if add_generation_prompt %}{{ '<|begin|>assistant\\n' }}{% else %}{{ '<|done|>' }}{% endif %}"
    message = "an end token follows the last message of any role"
    assert severities(checked(tmp_path, source, stops=2), "PF440")[message] == "warning"
    assert severities(checked(tmp_path, source, stops=[0, 2]), "PF440")[message] == "info"


def test_a_quoted_marker_outside_of_braces_is_text() -> None:
    message = "a text in quotation marks is outside of {{ }}"
    assert severities(check_template("'<|start|>'" + TEMPLATE), "PF447")[message] == "error"
    assert message not in severities(check_template("{{ '<|start|>' }}" + TEMPLATE), "PF447")


def test_the_time_of_day_changes_every_prompt() -> None:
    message = "the chat template writes the time of day, so no two prompts begin alike"
    clock = "{{ strftime_now('%Y-%m-%d %H:%M') }}"
    assert severities(check_template(clock + TEMPLATE), "PF402")[message] == "warning"
    assert message not in severities(check_template(clock.replace(" %H:%M", "") + TEMPLATE), "PF402")


def test_a_mask_inside_a_macro_is_misplaced_by_transformers() -> None:
    text = "{% generation %}{{ message.content + '<|end|>' }}{% endgeneration %}"
    header = "{{ '<|begin|>' + message.role + '\\n' }}"
    macro = f"{{% macro turn(message) %}}{header}{text}{{% endmacro %}}"
    loop = "{% for message in messages %}BODY{% endfor %}"
    prompt = "{% if add_generation_prompt %}{{ '<|begin|>assistant\\n' }}{% endif %}"
    message = "transformers misplaces the training mask ({% generation %}) inside a macro or {% set %}"
    inside = macro + loop.replace("BODY", "{{ turn(message) }}") + prompt
    assert severities(check_template(inside), "PF451")[message] == "error"
    for body in (header + text, header + "{{ turn(message) }}"):
        outside = macro.replace(header, "") + loop.replace("BODY", body) + prompt
        assert message not in severities(check_template(outside), "PF451")


def test_an_image_is_refused_only_next_to_a_system_message() -> None:
    parts = "{% for part in message.content %}{{ '<|image|>' if part.type == 'image' else part.text }}{% endfor %}"
    written = "{% if message.content is string %}{{ message.content }}{% else %}" + parts + "{% endif %}"
    turns = TEMPLATE.replace(" + message.content + '<|end|>\\n'", " }}" + written + "{{ '<|end|>\\n'")
    both = "messages[0].role == 'system' and messages[1].content is not string"
    refusing = f"{{% if {both} %}}{{{{ raise_exception('no') }}}}{{% endif %}}"
    message = "the template refuses an image after a system message"
    assert severities(check_template(refusing + turns), "PF432")[message] == "warning"
    assert message not in severities(check_template(turns), "PF432")


def test_a_tool_result_leaves_the_reasoning_of_its_call() -> None:
    thought = "{{ '<think>' + message.reasoning_content + '</think>' if message.reasoning_content and KEPT else '' }}"
    call = "{% for call in message.tool_calls or [] %}{{ '<call>' + call.function | tojson + '</call>' }}{% endfor %}"
    written = "'\\n' }}" + thought + "{{ message.content or '' }}" + call + "{{ '<|end|>\\n' }}"
    source = TEMPLATE.replace("'\\n' + message.content + '<|end|>\\n' }}", written)
    message = "a tool result removes the reasoning of its call"
    assert severities(check_template(source.replace("KEPT", "loop.last")), "PF446")[message] == "warning"
    assert message not in severities(check_template(source.replace("KEPT", "true")), "PF446")


def test_a_turn_that_does_not_begin_is_not_reported_as_open() -> None:
    is_other = "loop.first or messages[loop.index0 - 1].role != message.role"
    heads = f"{{% if {is_other} %}}{{{{ '<|begin|>' + message.role }}}}{{% endif %}}"
    source = TEMPLATE.replace("{{ '<|begin|>' + message.role + '\\n'", heads + "{{ '\\n'")
    found = severities(check_template(source), "PF440")
    assert found["a turn is not opened in a conversation with two answers in a row"] == "info"
