"""`promptfmt diff` of task classes, HELM files and chat templates: what it could not see of them is unknown, too."""

import json
from typing import Any

import pytest
from promptfmt_command import git, promptfmt
from slices import needs

pytestmark = needs("eval_framework", "helm", "templates")

CLASSES = """
class Base:
    SAMPLE_SPLIT = FEWSHOT_SPLIT = "test"
    RESPONSE_TYPE = "completion"
    METRICS = ["AccuracyCompletion"]
    VERSION = 1

    def _get_ground_truth(self, item):
        return " yes"


class Rows(Base):
    PROMPTFMT_DOCS = [{"question": "Who?"}, {"question": "What?"}, {"question": "How?"}]


class Branching(Rows):
    def _get_instruction_text(self, item):
        return "Rare" if item["question"] == "rare" else self._usual(item)

    def _usual(self, item):
        if "secret" in item["question"]:
            return "?"
        return item["question"]


class Rewritten(Rows):
    cue = "Q: "

    def _get_instruction_text(self, item):
        return self.cue + item["question"]


class Lacking(Base):
    def _get_instruction_text(self, item):
        return item["question"]
"""
EDITS = {
    'return "?"': 'return "??"',
    'cue = "Q: "': 'cue = "Q" + ": "',
    'return self.cue + item["question"]': "return f\"{self.cue}{item['question']}\"",
    'text(self, item):\n        return item["question"]': 'text(self, item):\n        return item["query"]',
    "VERSION = 1": "VERSION = 2",
}
HELM = '{"adapter_spec": {"method": "nosuch", "instructions": "Do it."}}'
TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.role == 'critic' %}!{% endif %}{% endfor %}"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("repository")
    (folder / "promptfmt.yaml").write_text("task_modules: [tasks.py]\ntemplates: [own.jinja]\n", "utf-8")
    (folder / "named.yaml").write_text("task: named\nclass: tasks:Branching\n", "utf-8")
    (folder / "tasks.py").write_text(CLASSES, "utf-8")
    (folder / "helm.json").write_text(HELM, "utf-8")
    (folder / "own.jinja").write_text(TEMPLATE, "utf-8")
    for command in (("init", "-q", "-b", "main"), ("add", "."), ("commit", "-qm", "one")):
        git(folder, *command)
    edited = CLASSES
    for before, after in EDITS.items():
        assert before in edited
        edited = edited.replace(before, after)
    (folder / "tasks.py").write_text(edited, "utf-8")
    (folder / "helm.json").write_text(HELM.replace("Do it", "Do that"), "utf-8")
    (folder / "own.jinja").write_text(TEMPLATE.replace("!", "?"), "utf-8")
    done = promptfmt(folder, "diff", "HEAD", "--profile", "plain", "--json")
    assert done.returncode == 3, done.stderr
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def test_code_of_a_class_that_did_not_run_is_unknown_and_what_ran_is_the_same(found: dict[str, Any]) -> None:
    unknown = {each["task"]: (each["reason"], each["step"]) for each in found["unknown"]}
    for name in ("Branching", "named"):
        why, step = unknown[name]
        assert why == "the code of class changed, but tasks.py:22 in Branching did not run"
        assert step == f"put rows that show the change into {name}.docs.jsonl, then compare again"
    assert found["same"] == {"Rewritten": "class (tasks.py:26 Rewritten): the same text for 6 docs"}


def test_a_class_without_rows_is_unknown_and_a_new_version_alone_is_no_change(found: dict[str, Any]) -> None:
    why = {each["task"]: each["reason"] for each in found["unknown"]}
    assert why["Lacking"].endswith("changed, but the task could not be rendered: there are no docs for the task class")
    assert why.keys() == {"Branching", "named", "Lacking", "helm.json", "own"}
    assert {finding["kind"] for finding in found["versions"]} == {"alone", "raised"}, "none was forgotten"


def test_a_changed_file_that_fails_on_both_sides_or_shows_no_change_is_unknown(found: dict[str, Any]) -> None:
    why = {each["task"]: each["reason"] for each in found["unknown"]}
    assert why["helm.json"].startswith("the file changed, but could not be rendered: unknown adaptation method")
    assert why["own"] == "the file changed, but the rendered prompts did not"
