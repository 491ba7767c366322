"""The files of a tokenizer are inputs of the tasks whose profiles use it, wherever the profile is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from plugin_project import Project

import pytest_promptfmt
from pytest_promptfmt.engine.processes import CAN_FORK

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CAN_FORK, reason="only outcomes of workers are cached")]

FOLDERS = (Path(pytest_promptfmt.__file__).parent / "data/tokenizers").glob("*/tokenizer.json")
SMALLEST = min(FOLDERS, key=lambda path: path.stat().st_size)
OF_TASKS: dict[str, Any] = {"metadata": {"promptfmt": {"profiles": {"add": ["own"]}}}}
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


def _with_tokenizer(project: Project, written: str, more: str = "", *, is_default: bool = True) -> None:
    defaults = "[plain, own]" if is_default else "[plain]"
    project.write("pytest.ini", "[pytest]\n")
    project.write(
        "promptfmt.yaml",
        f"profiles:\n  own: {{tokenizer: {written}{more}}}\ndefault_profiles: {defaults}\nlint: false\n",
    )
    for name in ("a", "b"):
        project.task(f"tasks/{name}.yaml", **({} if is_default else OF_TASKS))
    _configure(project, TEMPLATE)
    shutil.copyfile(SMALLEST, project.root / "tok/tokenizer.json")


def _configure(project: Project, template: str) -> None:
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "chat_template": template}
    project.write("tok/tokenizer_config.json", json.dumps(config))


@pytest.mark.parametrize("is_default", [True, False], ids=["default profile", "profile of the tasks"])
@pytest.mark.parametrize("written", ["tok", "tok/tokenizer.json"])
def test_the_files_next_to_a_tokenizer_are_inputs(cached_project: Project, written: str, is_default: bool) -> None:
    project = cached_project
    _with_tokenizer(project, written, ", chat_template: own", is_default=is_default)
    project.settle()
    project.accept("tasks")
    assert project.run("tasks").parseoutcomes() == {"unchanged": 4}
    _configure(project, TEMPLATE.replace("<assistant>", "<answer>"))
    project.settle()
    assert project.run("tasks").parseoutcomes()["failed"] == 2
    assert project.found("tasks") == project.found("tasks", "--promptfmt-no-cache")


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["here", "xdist"])
def test_the_run_after_an_update_that_writes_the_lock_runs_nothing(
    cached_project: Project, workers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")  # processes of xdist do not find the plugin there
    project = cached_project
    _with_tokenizer(project, "tok")
    project.accept("tasks")
    lock = (project.root / "promptfmt.lock").read_text("utf-8")
    project.write("promptfmt.lock", lock.replace('content: "', 'content: "0'))
    for name in ("a", "b"):
        project.edit(f"tasks/{name}.yaml", "Q: ", "Question: ")
    project.settle()
    project.run("tasks", "--snapshot-update", *workers)
    assert (project.root / "promptfmt.lock").read_text("utf-8") == lock
    assert project.run("tasks").parseoutcomes() == {"unchanged": 4}


def test_the_lock_is_an_input_of_a_failure_that_it_explains(cached_project: Project) -> None:
    project = cached_project
    _with_tokenizer(project, "tok")
    project.settle()
    project.accept("tasks")
    project.edit("tasks/a.yaml", "Q: ", "Question: ")
    project.settle()
    for _ in range(2):
        assert "is the same as in promptfmt.lock" in project.run("tasks", "--promptfmt-profile=own").stdout.str()
    (project.root / "promptfmt.lock").unlink()
    found = project.run("tasks", "--promptfmt-profile=own").stdout.str()
    assert "promptfmt.lock has no entry for this tokenizer" in found


def test_a_tokenizer_that_is_not_available_does_not_switch_the_cache_off(cached_project: Project) -> None:
    project = cached_project
    _with_tokenizer(project, "nobody/nothing")
    project.settle()
    project.accept("tasks")
    for shown in (0, 2):
        result = project.run("tasks", "-vv")
        assert result.stdout.str().count(": cached: ") == shown
        assert result.parseoutcomes()["failed"] == 2


@pytest.mark.parametrize("code", ["random.Random().random()", "random.SystemRandom().random()"])
def test_random_numbers_without_a_seed_are_made_in_each_run(cached_project: Project, code: str) -> None:
    project = cached_project
    project.write("tasks/utils.py", f"import random\n\n\ndef text(doc):\n    return str({code} > 2)\n")
    task = project.task("tasks/a.yaml", doc_to_text=None)
    task.write_text(task.read_text("utf-8") + "doc_to_text: !function utils.text\n", "utf-8")
    project.settle()
    project.accept("tasks")
    assert "unchanged" not in project.run("tasks").parseoutcomes()
