"""Engines behind servers: asked by one command, recorded, and compared in every run without the server."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import forked_runs
import pytest
from loopback_renderer import LoopbackRenderer
from plugin_project import Project

from pytest_promptfmt import SettingsError, check_template
from pytest_promptfmt.core.profile import ENGINES
from pytest_promptfmt.systems.templates.engines import _ENGINES

pytestmark = pytest.mark.slow

TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|' + message.role + '|>' + (message.content if message.content is string else '') }}
    {%- for call in message.tool_calls or [] %}
        {{- '<call>' + call.function.name + ' ' + (call.function.arguments | tojson) }}
    {%- endfor %}
    {{- '<|end|>' }}
{%- endfor %}
{%- if messages | length > 9 %}{{ raise_exception('too long') }}{% endif %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{% endif %}
"""


@pytest.fixture
def server() -> Iterator[LoopbackRenderer]:
    with LoopbackRenderer(TEMPLATE) as renderer:
        threading.Thread(target=renderer.serve_forever, daemon=True).start()
        yield renderer
        renderer.shutdown()


def record(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = forked_runs.run("pytest_promptfmt", "record", *arguments, folder=folder)
    assert "Traceback" not in done.stderr
    return done


def differences(folder: Path, engine: str) -> list[tuple[str, int | None, str]]:
    found = check_template(folder / "chat_template.jinja", engines=[engine])
    warnings = [each for each in found if each.code == "PF449" and each.severity == "warning"]
    return [(each.message, each.position.line if each.position else None, each.saw) for each in warnings]


def test_the_engines_of_the_settings_are_those_that_there_are() -> None:
    assert set(ENGINES) == set(_ENGINES)


@pytest.mark.parametrize("name", ["llama.cpp", "vllm"])
def test_a_server_that_renders_the_same_is_silent_and_a_planted_difference_has_line_and_construct(
    server: LoopbackRenderer, tmp_path: Path, name: str
) -> None:
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    assert differences(tmp_path, f"{name}:{server.url}/v1") == []
    [(message, line, saw)] = differences(tmp_path, f"{name}:{server.url}/planted")
    assert message == f"{name} renders another prompt: other whitespace"
    assert line == 5
    assert saw.startswith("call, | tojson: ")


def test_a_recording_takes_the_place_of_the_server(server: LoopbackRenderer, tmp_path: Path) -> None:
    file = tmp_path / "chat_template.jinja"
    file.write_text(TEMPLATE, "utf-8")
    done = record(tmp_path, file.name, "--engine", f"llama.cpp:{server.url}/planted", "--to", "served.jsonl")
    assert done.returncode == 0, done.stderr
    recording = tmp_path / "served.jsonl"
    lines = [json.loads(line) for line in recording.read_text("utf-8").splitlines()]
    assert done.stdout == f"served.jsonl: {len(lines)} prompts of llama.cpp; {len(lines)} of them are new or changed\n"
    assert any(line.get("refused") == "too long" for line in lines)
    asked = len(server.asked)
    [(message, line, _)] = differences(tmp_path, str(recording))
    assert (message.partition(":")[0], line) == ("llama.cpp renders another prompt", 5)
    file.write_text(TEMPLATE.replace("<|end|>", "<|stop|>"), "utf-8")
    assert len(differences(tmp_path, str(recording))) == 1  # the template changed since
    (tmp_path / "more.conversations.yaml").write_text(
        "conversations: {own: {about: one more, messages: [{role: user, content: Name this ore}]}}\n", "utf-8"
    )
    assert ("some prompts are not in the recording of llama.cpp", None) in [
        each[:2] for each in differences(tmp_path, str(recording))
    ]
    assert len(server.asked) == asked
    again = record(tmp_path, file.name, "--engine", f"vllm:{server.url}", "--to", "served.jsonl")
    assert "this is a recording of another engine, llama.cpp" in again.stderr


def test_the_engine_of_a_profile_is_compared_on_the_prompts_of_tasks(
    server: LoopbackRenderer, project: Project
) -> None:
    project.write("mine.jinja", TEMPLATE.replace("message.content if", "message.content | trim if"))
    project.task("arc.yaml", doc_to_text="Q: {{question}}\n")
    project.write("promptfmt.yaml", "profiles: {mine: {chat_template: mine.jinja, engine: served.jsonl}}\n")
    server.source = project.root.joinpath("mine.jinja").read_text("utf-8")
    arguments = ("--profile", "mine", "--to", "served.jsonl", "--engine")
    done = record(project.root, *arguments, f"llama.cpp:{server.url}")
    assert done.returncode == 0, done.stderr
    lint = ("-o", "promptfmt_lint=true", "-m", "promptfmt_lint", "--promptfmt-select", "PF463")
    project.run(*lint).stdout.no_fnmatch_line("*PF463*")
    server.source = TEMPLATE
    record(project.root, *arguments, f"llama.cpp:{server.url}")
    asked = len(server.asked)
    shown = project.run(*lint).stdout
    shown.fnmatch_lines(["*mine.jinja:3*PF463 llama.cpp renders another prompt*"])
    assert len(server.asked) == asked
    project.edit("promptfmt.yaml", "served.jsonl", f'"llama.cpp:{server.url}"')
    project.run(*lint).stderr.fnmatch_lines(["*promptfmt.yaml:1:*unknown template engine*", "*promptfmt record*"])
    assert len(server.asked) == asked


def test_a_server_is_asked_and_none_that_it_leads_to(server: LoopbackRenderer, tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    moved = record(tmp_path, "chat_template.jinja", "--engine", f"llama.cpp:{server.url}/moved")
    assert (moved.returncode, moved.stderr.count("\n")) == (2, 1)
    assert "refuses /apply-template: 302" in moved.stderr
    assert server.asked == ["/moved/apply-template"]


def test_what_cannot_be_asked_or_read_is_one_message(server: LoopbackRenderer, tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    wrong = record(tmp_path, "chat_template.jinja", "--engine", f"llama.cpp:{server.url}/nowhere")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "refuses /apply-template: 404" in wrong.stderr
    assert not (tmp_path / "prompts.jsonl").exists()
    assert "is not a server" in record(tmp_path, "--engine", "minijinja").stderr
    (tmp_path / "half.jsonl").write_text('{"engine": "vllm"\n', "utf-8")
    with pytest.raises(SettingsError, match="not a line of recorded prompts") as caught:
        check_template(TEMPLATE, engines=[str(tmp_path / "half.jsonl")])
    assert caught.value.position is not None
    assert caught.value.position.line == 1
