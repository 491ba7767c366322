"""Parsers of servers: those that are missing are an error, and recordings take the place of installed ones."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from plugin_project import Project

from pytest_promptfmt import check_template
from pytest_promptfmt.core.errors import SettingsError
from pytest_promptfmt.profiles.probe_conversations import Conversation
from pytest_promptfmt.profiles.template_trial import TemplateTrial, TrialOptions, lone_profile
from pytest_promptfmt.systems.templates.answer_parsers import recorded_line
from pytest_promptfmt.systems.templates.answers_read_back import (
    ReadMessage,
    failure_on_part,
    lost_parts,
    pieces_of,
    written_answers,
)
from pytest_promptfmt.systems.templates.server_engines import write_recording

TEMPLATE = """{%- for message in messages %}
{{- '<|begin|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' + {'name': call.function.name, 'arguments': call.function.arguments} | tojson + '</tool_call>' }}
{%- endfor %}
{{- '<|end|>\\n' }}
{%- endfor %}
{%- if tools %}{{ '' if tools }}{% endif %}
{%- if add_generation_prompt %}{{- '<|begin|>assistant\\n' }}{%- endif %}"""


class TagParser:
    """Reads calls as JSON in tags, as many servers do."""

    version = "1"

    def read(self, pieces: Sequence[str], prompt: str, conversation: Conversation) -> Mapping[str, Any]:
        text = "".join(pieces).removesuffix("<|end|>\n")
        calls = [{"function": json.loads(each)} for each in re.findall("<tool_call>(.*?)</tool_call>", text, re.S)]
        return {"content": re.sub("<tool_call>.*", "", text, flags=re.S), **({"tool_calls": calls} if calls else {})}


def record(path: Path, parser: Any) -> None:
    trial = TemplateTrial(lone_profile(TEMPLATE), options=TrialOptions(parser="vllm/tags"))
    made = [recorded_line("vllm/tags", parser, each, pieces_of(trial, each.text)) for each in written_answers(trial)]
    write_recording(path, {line["key"]: line for line in made})


def read_back(template: str | Path, **options: Any) -> list[tuple[str, str]]:
    found = check_template(template, **options)
    return [(each.severity, each.message) for each in found if each.code == "PF467"]


@pytest.mark.parametrize("name", ["vllm/hermes", "sglang/qwen25+qwen3"])
def test_a_parser_that_is_not_installed_is_an_error(name: str) -> None:
    if find_spec(name.partition("/")[0]):
        pytest.skip("it is installed here")
    assert read_back(TEMPLATE, parser=name) == [("error", f"no answer can be read with {name}")]


@pytest.mark.parametrize("name", ["vlm/hermes", "hermes", "vllm/"])
def test_an_unknown_parser_is_a_mistake_of_the_caller(name: str) -> None:
    with pytest.raises(SettingsError, match="unknown parser"):
        check_template(TEMPLATE, parser=name)


def test_a_recording_next_to_the_template_is_read_and_its_gaps_are_an_error(tmp_path: Path) -> None:
    template = tmp_path / "chat_template.jinja"
    template.write_text(TEMPLATE, "utf-8")
    assert read_back(template) == []
    record(tmp_path / "chat_template.answers.jsonl", TagParser())
    found = [each for each in read_back(template) if each[0] == "error"]
    assert found == []
    template.write_text(TEMPLATE.replace("<|begin|>", "<|turn|>"), "utf-8")
    assert ("error", "an answer is missing in the recording") in read_back(template)


def test_the_call_whose_arguments_are_read_differently_is_named() -> None:
    written = ReadMessage(content="", reasoning="", calls=(("sum", "[1]"), ("sum", "[2]")))
    read = ReadMessage(content="", reasoning="", calls=(("sum", "[1]"), ("sum", "[3]")))
    assert [*written.differences(read, "sum sum")] == [("an argument of a tool call", "[2] was read as [3]")]


def test_a_run_shows_what_was_recorded(project: Project) -> None:
    class Careless(TagParser):
        def read(self, pieces: Sequence[str], prompt: str, conversation: Conversation) -> Mapping[str, Any]:
            return {"content": super().read(pieces, prompt, conversation)["content"]}

    project.write("chat_template.jinja", TEMPLATE)
    recording = project.root / "chat_template.answers.jsonl"
    record(recording, TagParser())
    project.accept("-m", "promptfmt_snapshot")
    (written,) = project.snapshots().values()
    assert '  answers read back\n    "message 2: comes back"\n' in written.decode()
    record(recording, Careless())
    changed = project.run("-q", "-o", "promptfmt_lint=true")
    changed.stdout.fnmatch_lines(["*PF467 the parser changes a tool call*"])
    recording.write_text("{}\n", "utf-8")
    project.run("-q").stdout.fnmatch_lines(["*chat_template.answers.jsonl:1: not a line of recorded prompts*"])


class PlainParser:
    """Takes the whole answer for its content."""

    version = "1"

    def read(self, pieces: Sequence[str], prompt: str, conversation: Conversation) -> Mapping[str, Any]:
        return {"content": "".join(pieces).removesuffix("<|end|>\n")}


def test_reasoning_left_in_the_content_is_a_loss_if_no_other_parser_may_read_it() -> None:
    source = TEMPLATE.replace("(message.content or '')", "('<think>' + message.reasoning_content + '</think>' + BODY)")
    source = source.replace("BODY", "message.content if message.reasoning_content else (message.content or '')")
    for parser, expected in (({}, {"the parser leaves the reasoning in the content"}), ("vllm/hermes", set())):
        trial = TemplateTrial(lone_profile(source), options=TrialOptions(parser=parser))
        answers = [each for each in written_answers(trial) if set(each.message) >= {"content", "reasoning_content"}]
        texts = [each for each in answers if "tool_calls" not in each.message]
        assert {loss.what for each in texts for loss in lost_parts(trial, PlainParser(), each)} == expected


class StrictParser(TagParser):
    """Ends with the errors that a broken text causes."""

    def read(self, pieces: Sequence[str], prompt: str, conversation: Conversation) -> Mapping[str, Any]:
        try:
            head, _, rest = pieces[0].partition("<tool_call>")
            json.loads(rest.split("</tool_call>")[0]) if rest else None
            return super().read([head] if not rest else pieces, prompt, conversation)
        except json.JSONDecodeError as error:
            raise self.error(str(error)) from self.cause

    error, cause = ValueError, IndexError("list index out of range")


@pytest.mark.parametrize(("parser", "fails"), [(TagParser(), False), (StrictParser(), True)])
def test_answers_that_end_early_or_are_malformed_are_read(parser: TagParser, fails: bool) -> None:
    """A JSON error is what clients expect of a parser; other exceptions of its code end them."""
    trial = TemplateTrial(lone_profile(TEMPLATE))
    called = next(each for each in written_answers(trial) if each.message.get("tool_calls"))
    assert (failure_on_part(parser, called) is not None) == fails
