"""Tasks that differ only in their names: the findings of the first are those of the others, with their own names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rule_examples import write_example

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.finding import Reported
from pytest_promptfmt.core.profile import PLAIN, resolve_profiles
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.rules.documentation import documentation_of
from pytest_promptfmt.rules.linter import Linter
from pytest_promptfmt.rules.rule_registry import known_rules
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.settings import Settings
from pytest_promptfmt.study import Study, seen_by
from pytest_promptfmt.study.shared_results import SharedResults
from pytest_promptfmt.systems.task_files import read_task_file
from pytest_promptfmt.tasks.task_index import TaskIndex

RULES = {code: rule for code, rule in known_rules().items() if rule.is_builtin}
PROFILES = resolve_profiles(("plain", "chat-chatml"), {})
NO_DOCS = "metadata: {version: 1}\n"  # synthetic docs: nothing is shared by tasks with others
_OF_RULES = {
    **{code: documentation_of(rule).example for code, rule in RULES.items() if rule.scope in ("task", "profile")},
    **{
        f"{code} {name}": case["example"]
        for code, cases in data_table("rule_cases").items()
        for name, case in cases.items()
    },
}
OTHERS = ("# file:", "group:")
"""Parts of examples that are not one task."""

EXAMPLES = {name: text for name, text in _OF_RULES.items() if text and not any(each in text for each in OTHERS)}


def tasks_in(folder: Path, example: str) -> Sequence[Task]:
    """Return the first task of an example, and the same under other names."""
    keys = "" if "\nmetadata:" in f"\n{example}" else NO_DOCS
    files = [path for path in write_example(keys + example, folder) if path.suffix == ".yaml"]
    text = files[0].read_text("utf-8")
    found: list[Task] = []
    for name in ("arc_metals", "trasnlation_fr", "second"):
        path = files[0].with_name(f"{name}.yaml")
        path.write_text(text.replace("task: example\n", f"task: {name}\ndataset_name: {name[-2:]}\n"), "utf-8")
        file = read_task_file(path, TaskIndex([folder]))
        found += file.tasks[:1] if file is not None else []
    return found


def findings(task: Task, settings: Settings, results: SharedResults) -> tuple[Reported, ...]:
    study = Study(task, settings, None, results)
    views = [seen_by(study, each) for each in PROFILES]
    found = Linter().check(study, Selection(rules=RULES, rootdir=settings.rootdir), views, introduces=())
    return found.findings


@pytest.mark.parametrize("name", EXAMPLES)
def test_findings_are_the_same_as_without_the_tasks_before(name: str, tmp_path: Path) -> None:
    settings = Settings(rootdir=tmp_path, profiles=(PLAIN,))
    tasks, shared = tasks_in(tmp_path, EXAMPLES[name]), SharedResults()
    for task in tasks:
        assert findings(task, settings, shared) == findings(task, settings, SharedResults())


def test_results_are_shared_by_names_and_not_by_texts_or_docs(tmp_path: Path) -> None:
    results, settings = SharedResults(), Settings(rootdir=tmp_path, profiles=(PLAIN,))
    first, second, _ = tasks_in(tmp_path, 'doc_to_text: "Q: {{question}}"\n')

    def shared(task: Task) -> int:
        return id(Study(task, settings, None, results).shared)

    assert shared(first) == shared(second)
    other = replace(second, config={**second.config, "description": "Other."}, description="Other.")
    assert shared(other) != shared(first)
    (tmp_path / "second.docs.jsonl").write_text('{"question": "Why?", "choices": ["a", "b"], "answer": 0}\n', "utf-8")
    assert shared(tasks_in(tmp_path, 'doc_to_text: "Q: {{question}}"\n')[2]) != shared(first)
