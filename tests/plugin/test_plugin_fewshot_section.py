"""Few-shot examples of tasks that show none by themselves, as one snapshot of each such task shows them."""

import re
from pathlib import Path
from typing import Any

import pytest
from plugin_project import Project

from pytest_promptfmt.core.profile import PLAIN
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.snapshots.content import snapshot_document
from pytest_promptfmt.study import Study, seen_by
from pytest_promptfmt.systems.task_files import read_task_file

SNAPSHOTS = ("-m", "promptfmt_snapshot")
TASK = """
task: sums
dataset_path: nowhere/docs
output_type: generate_until
training_split: train
test_split: test
description: "Add.\\n\\n"
doc_to_text: "Q: {{question}}\\nA:"
doc_to_target: "{{answer}}"
"""


def section(folder: Path, *more: str) -> str | None:
    """Return the few-shot section of the task with more keys, None where there is none."""
    path = folder / "sums.yaml"
    path.write_text(TASK + "".join(f"{line}\n" for line in more), "utf-8")
    file = read_task_file(path)
    assert file is not None
    study = Study(file.tasks[0], Settings(rootdir=folder, profiles=(PLAIN,)))
    found = snapshot_document(seen_by(study, PLAIN), with_task=True).task
    return next((each.text for each in found if each.title == "few-shot"), None)


@pytest.mark.parametrize(
    "usual",
    [
        (),
        ('fewshot_delimiter: "\\n\\n"', 'target_delimiter: " "'),
        ("fewshot_config: {sampler: first_n}",),
        ("num_fewshot: 1", 'fewshot_delimiter: "\\n"'),  # its docs show the example
        ("num_fewshot: 0",),
    ],
)
def test_examples_made_of_what_the_docs_show_have_no_section(usual: tuple[str, ...], tmp_path: Path) -> None:
    assert section(tmp_path, *usual) is None


@pytest.mark.parametrize(
    ("unusual", "shown"),
    [
        (('fewshot_delimiter: "\\n"',), "»\nQ: "),
        (('target_delimiter: ""',), "\nA:«"),
        (("fewshot_config:", '  doc_to_text: "Q: {{question}}\\nB:"'), "\nB: «"),
        (("fewshot_config:", '  fewshot_delimiter: "\\n###\\n"'), "\n###\nQ:"),
        (('gen_prefix: "So"',), "\nA: So «"),
    ],
)
def test_examples_with_something_of_their_own_have_one(unusual: tuple[str, ...], shown: str, tmp_path: Path) -> None:
    text = section(tmp_path, *unusual)
    assert text is not None
    assert text.startswith("Add.\n\nQ: ")
    assert text.count("Q: ") == 3
    assert shown in text


def test_a_changed_delimiter_of_examples_fails_where_no_doc_shows_any_and_names_its_key(
    pytester: pytest.Pytester,
) -> None:
    project = Project(pytester)
    project.write("pytest.ini", "[pytest]\npromptfmt_profiles = plain chat-chatml\npromptfmt_lint = false\n")
    keys: dict[str, Any] = {"training_split": "train", "generation_kwargs": {"until": ["Q:"]}}
    project.task("sums.yaml", **keys)
    project.task("own.yaml", **keys, fewshot_delimiter="\n")
    project.accept(*SNAPSHOTS)
    kept = project.snapshots()
    assert [name for name, text in kept.items() if b"\n  few-shot\n" in text] == ["__prompts__/own/own/plain.txt"]
    project.accept(*SNAPSHOTS, "--promptfmt-docs", "1")
    assert project.snapshots() == kept
    project.edit("sums.yaml", "training_split", 'fewshot_delimiter: "\\n"\ntraining_split')
    project.edit("own.yaml", '"\\n"', '"\\n--\\n"')
    changed, appeared = project.failures(*SNAPSHOTS)
    assert "+few-shot" in appeared
    assert "own [plain]: few-shot examples changed" in changed
    assert "@@ task, few-shot, line " in changed
    assert re.search(r"cause: (text before )?own.yaml:\d+:\d+ fewshot_delimiter", changed)
