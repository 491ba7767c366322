"""A failure names the key that was edited, whatever came or went at a seam where several keys meet."""

import json
from typing import Any

import pytest
from plugin_project import Project

Keys = dict[str, Any]
BASE: Keys = {
    "training_split": "train",
    "num_fewshot": 2,
    "description": "Answer.\n\n",
    "doc_to_text": "Q: {{question}}\nA:",
    "target_delimiter": " ",
    "fewshot_delimiter": "\n\n",
    "generation_kwargs": {"until": ["\n"]},
}
CHOICES: Keys = {"output_type": "multiple_choice", "doc_to_choice": ["yes", "no"], "generation_kwargs": None}

EDITS: dict[str, tuple[str, Keys, Keys]] = {
    "question_gets_a_blank": ("doc_to_text", {}, {"doc_to_text": "Q: {{question}}\nA: "}),
    "question_loses_a_blank": ("doc_to_text", {"doc_to_text": "Q: {{question}}\nA: "}, BASE),
    "question_gets_a_line": ("doc_to_text", {}, {"doc_to_text": "\nQ: {{question}}\nA:"}),
    "question_loses_a_line": ("doc_to_text", {"doc_to_text": "Q: {{question}}\n\nA:"}, BASE),
    "question_loses_a_first_line": ("doc_to_text", {"doc_to_text": "\nQ: {{question}}\nA:"}, BASE),
    "shots_closer": ("fewshot_delimiter", {}, {"fewshot_delimiter": "\n"}),
    "shots_wider": ("fewshot_delimiter", {"fewshot_delimiter": "\n"}, BASE),
    "shots_ruled": ("fewshot_delimiter", {}, {"fewshot_delimiter": " ## "}),
    "shots_glued": ("fewshot_delimiter", {}, {"fewshot_delimiter": ""}),
    "answers_closer": ("target_delimiter", {}, {"target_delimiter": ""}),
    "answers_wider": ("target_delimiter", {}, {"target_delimiter": "  "}),
    "answers_after_a_colon": ("target_delimiter", {}, {"target_delimiter": ": "}),
    "description_longer": ("description", {}, {"description": "Answer!\n\n"}),
    "description_new": ("description", {"description": None}, BASE),
    "prefix": ("gen_prefix", {}, {"gen_prefix": "It is"}),
    "stops": ("generation_kwargs", {}, {"generation_kwargs": {"until": ["."]}}),
    "choice": ("doc_to_choice", CHOICES, {**CHOICES, "doc_to_choice": ["yes", "never"]}),
    "choice_delimiter": ("target_delimiter", {**CHOICES, "num_fewshot": 0}, {"target_delimiter": ""}),
    "choice_gold": ("doc_to_target", {**CHOICES, "doc_to_target": 0}, {"doc_to_target": 1}),
}


@pytest.fixture
def titles(project: Project) -> dict[str, set[str]]:
    """Edit one key in each of many tasks, and return what each task's clusters are called."""
    for name, (_, keys, _) in EDITS.items():
        project.task(f"tasks/{name}.yaml", **BASE | keys)
    project.accept("-m", "promptfmt_snapshot")
    for name, (_, keys, edit) in EDITS.items():
        project.task(f"tasks/{name}.yaml", **BASE | keys | edit)
    project.run("-q", "-m", "promptfmt_snapshot", "--promptfmt-json", "result.json")
    found: dict[str, set[str]] = {name: set() for name in EDITS}
    for cluster in json.loads((project.root / "result.json").read_text("utf-8"))["clusters"]:
        for member in cluster["members"]:
            found[member["task"]].add(cluster["title"])
    return found


def test_the_edited_key_is_named_and_no_other(titles: dict[str, set[str]]) -> None:
    wrong = {
        name: told
        for name, told in titles.items()
        if not told or any(not title.endswith(f" {EDITS[name][0]})") for title in told)
    }
    assert wrong == {}
    assert titles["shots_closer"] == {"an empty line is gone (from tasks/shots_closer.yaml:11:1 fewshot_delimiter)"}


def test_a_delimiter_of_an_included_file_is_found_where_it_is_written(project: Project) -> None:
    project.write("tasks/_shared.yaml", 'num_fewshot: 1\ntraining_split: train\nfewshot_delimiter: "\\n\\n"\n')
    for name in ("arc", "boolq"):
        file = project.task(f"tasks/{name}.yaml")
        file.write_text("include: _shared.yaml\n" + file.read_text("utf-8"), "utf-8")
    project.accept("-m", "promptfmt_snapshot")
    project.edit("tasks/_shared.yaml", "\\n\\n", "\\n")
    result = project.run("-m", "promptfmt_snapshot")
    result.stdout.fnmatch_lines(
        [
            "cause: tasks/_shared.yaml:3:1 fewshot_delimiter",
            "changed, 4 tests of 2 tasks: an empty line is gone (from tasks/_shared.yaml:3:1 fewshot_delimiter)",
        ]
    )


def test_a_text_that_is_gone_from_the_start_is_said_to_have_stood_before_what_follows(project: Project) -> None:
    project.task("tasks/arc.yaml", description="Answer.\n\n")
    project.accept("-m", "promptfmt_snapshot")
    project.task("tasks/arc.yaml")
    result = project.run("-m", "promptfmt_snapshot")
    result.stdout.fnmatch_lines(
        [
            "cause: text before tasks/arc.yaml:5:1 doc_to_text",
            "changed, *: | Answer. and 1 more line are gone (before tasks/arc.yaml:5:1 doc_to_text)",
        ]
    )
