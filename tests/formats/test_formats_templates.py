"""Templates as a front of formats: what lays out their prompts, and templates of other packages."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_promptfmt import (
    ClassificationTemplateConfig,
    ClozeTemplateConfig,
    GenerationTemplateConfig,
    MCQTemplateConfig,
    RankingTemplateConfig,
    TemplateConfig,
    TemplateFactory,
)
from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.errors import FormatError
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.formats import laid_out, lay_out
from pytest_promptfmt.formats.template import known_templates
from pytest_promptfmt.systems.task_files import load_tasks

CHOICES = ["Rome", "Oslo"]
DOC = {"question": "Capital of Italy?", "choices": CHOICES, "answer": 0}
TASK = Task(name="t", doc_to_text="question", doc_to_choice="choices", doc_to_target="answer")


@pytest.mark.parametrize(
    "template",
    [
        MCQTemplateConfig(),
        MCQTemplateConfig(prefix="Answer.", choice_labels=["1", "2"], choice_format="{choice} [{label}]"),
        MCQTemplateConfig(show_choices_in_prompt=False),
        ClozeTemplateConfig(blank_position="inline", suffix="Answer:"),
        ClozeTemplateConfig(blank_position="inline", show_choices=False),
        GenerationTemplateConfig(prefix="Think."),
        RankingTemplateConfig(question_choice_delimiter="\n\n"),
        ClassificationTemplateConfig(labels=CHOICES, labels_prefix="One of {{: "),
    ],
)
def test_format_of_a_template_lays_out_the_prompt_of_the_template(template: TemplateConfig) -> None:
    task = lay_out(TASK, template.to_format())
    prompt = next(iter(task.render(TaskDocs.in_memory([DOC]), num_fewshot=0))).prompts[0]
    assert prompt.text == template.format_prompt("Capital of Italy?", CHOICES)


def test_prompt_without_choices_shows_none() -> None:
    assert MCQTemplateConfig().format_prompt("Capital of Italy?") == "Capital of Italy?\nAnswer:"
    assert MCQTemplateConfig().format_prompt("Capital of Italy?", []) == "Capital of Italy?\nAnswer:"


def test_prompt_shows_fewer_choices_than_labels() -> None:
    assert MCQTemplateConfig().format_prompt("Which?", CHOICES) == "Which?\nA. Rome\nB. Oslo\nAnswer:"


@pytest.fixture
def fresh_templates() -> Iterator[None]:
    known_templates.cache_clear()
    yield
    known_templates.cache_clear()


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    (folder / "their_templates.py").write_text(
        "from dataclasses import dataclass\nfrom pytest_promptfmt import TemplateConfig\n"
        "@dataclass\nclass YesNo(TemplateConfig):\n"
        "    suffix: str = 'Yes or no?'\n"
        "    def get_doc_to_choice(self):\n        return ['yes', 'no']\n"
    )
    info = folder / "their_templates-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-templates\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[pytest_promptfmt.templates]\nyes_no = {target}\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "their_templates", raising=False)
    importlib.invalidate_caches()


@pytest.mark.usefixtures("fresh_templates")
def test_installed_package_offers_a_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "their_templates:YesNo")
    config = {"task": "t", "template": {"template_type": "yes_no", "prefix": "Judge:"}, "doc_to_target": "answer"}
    (task,) = laid_out(load_tasks(config)[0])
    instance = next(iter(task.render([{"question": " Rome is in Italy. ", "answer": 0}])))
    assert instance.prompts[0].text == "Judge:\nRome is in Italy.\nYes or no?"
    assert [request.continuation for request in instance.requests] == [" yes", " no"]
    assert TemplateFactory.from_dict({"template_type": "yes_no"}).task_keys() == {"output_type": "multiple_choice"}


@pytest.mark.usefixtures("fresh_templates")
def test_entry_point_that_is_not_a_template_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "their_templates:dataclass")
    with pytest.raises(FormatError, match=r"entry point 'yes_no'.*does not extend TemplateConfig"):
        known_templates()


@pytest.mark.usefixtures("fresh_templates")
def test_template_that_does_not_import_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "no_such_module_here:YesNo")
    with pytest.raises(FormatError, match=r"template 'yes_no' of no_such_module_here:YesNo cannot be imported"):
        known_templates()


def test_the_mark_of_a_blank_is_text_whatever_it_looks_like() -> None:
    for marker in ("{{ x", "{% y %}", "___"):
        assert (
            ClozeTemplateConfig(blank_marker=marker, show_choices=False).format_prompt("Iron is") == f"Iron is {marker}"
        )
