"""Parsers of vLLM and SGLang, where one of them is installed, with templates that write what they read."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import tokenizers

from pytest_promptfmt import check_template
from pytest_promptfmt.core.errors import TokenizerError
from pytest_promptfmt.profiles.template_trial import TemplateTrial, lone_profile
from pytest_promptfmt.profiles.tokenizer_sources import archetype_folder

NamedParser = pytest.importorskip(
    "pytest_promptfmt.systems.templates.answer_parsers", reason="a slice has the parsers"
).NamedParser
pytestmark = pytest.mark.parity

JSON = "{'name': call.function.name, 'arguments': call.function.arguments} | tojson"
XML = """'<function=' + call.function.name + '>\\n' }}
{%- for key, value in call.function.arguments | items %}
{{- '<parameter=' + key + '>\\n' + (value if value is string else value | tojson) + '\\n</parameter>\\n' }}
{%- endfor %}{{- '</function>'"""
CALLS = {
    "hermes": f"{{{{- '<tool_call>\\n' + ({JSON}) + '\\n</tool_call>' }}}}",
    "qwen": f"{{{{- '\\n' if not loop.first }}}}{{{{- '<tool_call>\\n' + ({JSON}) + '\\n</tool_call>' }}}}",
    "qwen3_coder": f"{{{{- '<tool_call>\\n' + {XML} + '\\n</tool_call>' }}}}",
    "llama": "{{- '{\"name\": \"' + call.function.name + '\", ' }}"
    "{{- '\"parameters\": ' + call.function.arguments | tojson + '}' }}",
    "mistral": f"{{{{- '[TOOL_CALLS] [' if loop.first else ', ' }}}}{{{{- {JSON} }}}}{{{{- ']' if loop.last }}}}",
}
PARSERS = {
    "vllm/hermes": "hermes",
    "vllm/qwen3_coder": "qwen3_coder",
    "vllm/llama3_json": "llama",
    "vllm/mistral": "mistral",
    "sglang/hermes": "hermes",
    "sglang/qwen": "qwen",
    "sglang/qwen3_coder": "qwen3_coder",
    "sglang/llama3": "llama",
    "sglang/mistral": "mistral",
}
PIECES = "the content of the message is read differently when the answer arrives in pieces"
LOST = {
    "vllm/llama3_json": {"the content of the message", "a tool call"},
    "sglang/llama3": {"the content of the message", "a tool call", "the parser fails on an answer", PIECES},
    "sglang/mistral": {PIECES},
}
"""What these parsers lose: text next to a call, and calls after the first (SGLang fails on them or streams them)."""


def template(calls: str) -> str:
    return f"""{{%- if tools %}}{{{{- tools | tojson }}}}{{%- endif %}}
{{%- for message in messages %}}
{{{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}}}
{{%- for call in message.tool_calls or [] %}}{calls}{{%- endfor %}}
{{{{- '<|im_end|>\\n' }}}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}{{{{- '<|im_start|>assistant\\n' }}}}{{%- endif %}}"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer with the tokens that parsers look for."""
    made = tokenizers.Tokenizer.from_file(str(archetype_folder("bytelevel-qwen") / "tokenizer.json"))
    made.add_special_tokens(["<|python_tag|>", "[TOOL_CALLS]"])
    made.add_tokens(["<tool_call>", "</tool_call>"])
    made.save(str(tmp_path / "tokenizer.json"))
    config = archetype_folder("bytelevel-qwen") / "tokenizer_config.json"
    (tmp_path / "tokenizer_config.json").write_bytes(config.read_bytes())
    return tmp_path


def require(parser: str) -> None:
    package = parser.partition("/")[0]
    if find_spec(package) is None:
        pytest.skip(f"needs {package}")


@pytest.mark.parametrize("parser", PARSERS)
def test_what_a_template_in_the_format_of_a_parser_writes_comes_back(parser: str, folder: Path) -> None:
    require(parser)
    path = folder / "chat_template.jinja"
    path.write_text(template(CALLS[PARSERS[parser]]), "utf-8")
    found = [each for each in check_template(path, folder, parser=parser) if each.code == "PF467"]
    errors = [each.message.partition(":")[0] for each in found if each.severity == "error"]
    lost = {message.removeprefix("the parser changes ") for message in errors}
    assert lost == LOST.get(parser, set()), [(each.message, each.saw) for each in found]


@pytest.mark.parametrize("parser", PARSERS)
def test_calls_in_another_format_do_not_come_back(parser: str, folder: Path) -> None:
    require(parser)
    path = folder / "chat_template.jinja"
    path.write_text(template(f"{{{{- '<function_call>' + ({JSON}) + '<end>' }}}}"), "utf-8")
    found = [each for each in check_template(path, folder, parser=parser) if each.code == "PF467"]
    assert any(each.severity == "error" and "call" in each.message for each in found)


def test_an_answer_ends_before_its_stop_token_also_behind_a_system_turn() -> None:
    require("sglang/llama3")
    with_system = "{{- '<|im_start|>system\\nYou are a smith.<|im_end|>\\n' }}" + template(CALLS["hermes"])
    found = [each for each in check_template(with_system, parser="sglang/hermes") if each.code == "PF467"]
    assert not [each for each in found if each.severity == "error"], [(each.message, each.saw) for each in found]


@pytest.mark.parametrize("package", ["vllm", "sglang"])
def test_an_unknown_name_lists_what_is_meant(package: str) -> None:
    require(package)
    with pytest.raises(TokenizerError, match="did you mean 'hermes'"):
        NamedParser(f"{package}/hermess", TemplateTrial(lone_profile("{{ messages }}")))
