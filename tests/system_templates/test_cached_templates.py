"""Unchanged chat templates are not rendered again, and all their inputs are watched."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plugin_project import Project

from pytest_promptfmt.core.profile import builtin_template
from pytest_promptfmt.engine.processes import CAN_FORK
from pytest_promptfmt.profiles.tokenizer_sources import archetype_folder
from pytest_promptfmt.systems.templates import SYSTEM

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CAN_FORK, reason="only outcomes of workers are cached")]

CHATML = builtin_template("chatml")

CONVERSATION = (
    "conversations: {why: {about: asked why, messages: [{role: user, content: why}, {role: assistant, content: so}]}}\n"
)
SETTINGS = "training_of: {second.jinja: ../other/model.jinja}\n"


@pytest.fixture
def models(cached_project: Project, kept: Path) -> Project:
    """Return a project with two templates that share a tokenizer and a conversation, and two tasks."""
    cached_project.make_once(kept / "models", lambda: write_models(cached_project))
    return cached_project


def write_models(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\n")
    project.write("models/first.jinja", CHATML)
    project.write("models/second.jinja", CHATML.replace("system", "developer"))
    project.write("models/why.conversations.yaml", CONVERSATION)
    project.write("models/promptfmt.yaml", SETTINGS)
    project.write("other/model.jinja", CHATML)
    project.task("models/ant.yaml")
    project.task("models/yak.yaml", name="bee")
    for file in archetype_folder("bytelevel-qwen").iterdir():
        if file.suffix == ".json":
            # transformers 4 has no other class of this kind
            text = file.read_text("utf-8").replace("TokenizersBackend", "PreTrainedTokenizerFast")
            project.write(f"models/{file.name}", text)
    project.accept("models")


def result(project: Project, *options: str) -> dict[str, Any]:
    """Return what a run found, as JSON."""
    return project.found("models", *options)


def warm(project: Project) -> None:
    """Run until all outcomes that can be cached are: the first run writes a frozen tokenizer."""
    project.settle()
    project.run("models")
    project.run("models")


def unchanged(project: Project) -> int:
    return project.run("models").parseoutcomes().get("unchanged", 0)


def test_templates_that_are_the_same_are_not_run(models: Project) -> None:
    before = result(models, "--promptfmt-no-cache")
    warm(models)
    assert models.run("models").parseoutcomes() == {"unchanged": 12}
    assert result(models) == before
    listed = models.run("models", "-v").stdout.str()
    assert "models/first.jinja::first::snapshot[conversations] PASSED" in listed
    shared = models.run(".").parseoutcomes()
    assert shared == {"unchanged": 8}, "runs of other paths share outcomes, and templates need a named folder"


def edit_snapshot(project: Project) -> None:
    path = next(project.root.rglob("first/conversations.txt"))
    path.write_text(path.read_text("utf-8").replace("why", "who"), "utf-8")


EDITS: dict[str, Callable[[Project], object]] = {
    "a template": lambda p: p.edit("models/first.jinja", "assistant", "model"),
    "a conversation": lambda p: p.edit("models/why.conversations.yaml", "so", "for a reason"),
    "a conversation that appears": lambda p: p.write(
        "models/x.conversations.yaml", CONVERSATION.replace("{why:", "{x:").replace("content: why", "content: x")
    ),
    "conversations that make no sense": lambda p: p.write("models/x.conversations.yaml", "a: b\n"),
    "the configuration of a tokenizer": lambda p: p.edit("models/tokenizer_config.json", "<|im_end|>", "<|end|>"),
    "a tokenizer": lambda p: p.edit("models/tokenizer.json", "<|im_end|>", "<|im_ende|>"),
    "a tokenizer that vanishes": lambda p: (p.root / "models/tokenizer.json").unlink(),
    "a template for training": lambda p: p.write("models/first_training.jinja", CHATML.replace("im_end", "end")),
    "a template that is trained for": lambda p: p.edit("other/model.jinja", "im_end", "end"),
    "a snapshot": edit_snapshot,
    "a snapshot that vanishes": lambda p: next(p.root.rglob("first/conversations.txt")).unlink(),
    "a task of the same name": lambda p: p.task("models/first.yaml"),
    "settings": lambda p: p.write("models/promptfmt.yaml", f"{SETTINGS}ignore: [PF]\n"),
    "a link": lambda p: (p.root / "models/third.jinja").symlink_to("first.jinja"),
}


@pytest.mark.parametrize("name", EDITS)
def test_after_an_edit_a_run_finds_what_a_fresh_one_finds(models: Project, name: str) -> None:
    warm(models)
    before = result(models)
    EDITS[name](models)
    after = result(models)
    assert after != before
    assert after == result(models, "--promptfmt-no-cache")
    assert after == result(models)


def test_what_becomes_a_template_comes_before_a_later_task_of_its_name(models: Project) -> None:
    models.write("models/bee.jinja", "Dear {{ name }}")
    warm(models)
    assert unchanged(models) == 12
    models.write("models/bee.jinja", CHATML)
    assert result(models) == result(models, "--promptfmt-no-cache")


def test_a_task_beside_templates_still_says_what_there_is_to_say_of_its_profiles(models: Project) -> None:
    models.write("models/promptfmt.yaml", "profiles: {own: {chat_template: own.txt}}\ndefault_profiles: [own]\n")
    models.write("models/own.txt", "{% for message in messages %}{{ message.content | trim }}{% endfor %}")
    models.task("models/task.yaml")
    models.task("models/zebra.yaml")
    models.accept("models")
    warm(models)
    found = result(models)
    assert unchanged(models) > 0
    assert found == result(models, "--promptfmt-no-cache")


def test_the_rules_say_the_same_of_a_copy_of_a_template(models: Project) -> None:
    for name in ("one", "two"):
        models.write(f"copies/{name}.jinja", "{{ unknown_name }}" + CHATML)
    models.start("--promptfmt", "copies", "--promptfmt-json=found.json", "--snapshot-update")
    found = json.loads((models.root / "found.json").read_text("utf-8"))
    assert "PF407" in {finding["code"] for finding in found["findings"]}, "a rule about any profile's template"
    assert {finding["count"] for finding in found["findings"]} == {2}


def test_what_another_program_renders_is_rendered_each_time(models: Project) -> None:
    models.write("models/promptfmt.yaml", 'template_engines: ["@huggingface/jinja"]\n')
    warm(models)
    assert unchanged(models) == 8, "the tasks"


def test_what_is_compared_with_a_recording_is_compared_with_it_as_it_is_now(models: Project) -> None:
    models.write("models/promptfmt.yaml", "template_engines: [vllm.jsonl]\n")
    line = {"engine": "vllm", "from": "first why", "key": "0" * 32, "text": "why"}
    models.write("models/vllm.jsonl", json.dumps(line) + "\n")
    warm(models)
    before = result(models)
    models.write("models/vllm.jsonl", json.dumps({**line, "key": 1}) + "\n")
    after = result(models)
    assert after != before
    assert after == result(models, "--promptfmt-no-cache")


def test_the_metadata_of_a_model_is_read_each_time(tmp_path: Path) -> None:
    assert SYSTEM.inputs_of(tmp_path / "model.gguf") is None
