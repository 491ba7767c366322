"""Filters and metrics that lm-eval 0.4.13 does not have: of a fork of it, of a task's own module, of a package."""

from __future__ import annotations

import os
from typing import Any

import pytest
from plugin_project import Project

FORK = {
    # What lm-eval's own registry does, as far as a fork's filters and metrics need it.
    "lm_eval/__init__.py": "open('imported', 'w').close()\n",
    "lm_eval/api/__init__.py": "",
    "lm_eval/tasks/__init__.py": "",
    "lm_eval/api/filter.py": "class Filter:\n    def __init__(self, **kwargs): pass\n",
    "lm_eval/api/registry.py": """\
FILTER_REGISTRY, METRIC_REGISTRY, AGGREGATION_REGISTRY = {}, {}, {}
METRIC_AGGREGATION_REGISTRY, HIGHER_IS_BETTER_REGISTRY = {}, {}

def register_filter(name):
    return lambda made: FILTER_REGISTRY.setdefault(name, made)

def register_aggregation(name):
    return lambda function: AGGREGATION_REGISTRY.setdefault(name, function)

def register_metric(**given):
    METRIC_AGGREGATION_REGISTRY[given["metric"]] = AGGREGATION_REGISTRY[given["aggregation"]]
    HIGHER_IS_BETTER_REGISTRY[given["metric"]] = given["higher_is_better"]
    return lambda function: METRIC_REGISTRY.setdefault(given["metric"], function)
""",
    "lm_eval/api/metrics.py": """\
from lm_eval.api.registry import register_aggregation, register_metric

@register_aggregation("worst")
def worst(values):
    return min(values)

@register_metric(
    metric="same_letter", higher_is_better=True, aggregation="worst"
)
def letters_agree(predictions, references, **kwargs):
    return {"same_letter": float(predictions[0][:1] == references[0][:1])}
""",
    "lm_eval/filters/__init__.py": "from lm_eval.filters import thinking\n",
    "lm_eval/filters/thinking.py": """\
from lm_eval.api.filter import Filter
from lm_eval.api.registry import register_filter

@register_filter("after_verdict")
class AfterVerdict(Filter):
    def __init__(self, mark="VERDICT", **kwargs):
        self.mark = mark

    def apply(self, resps, docs):
        return [[each.rpartition(self.mark)[2].strip() for each in repeats] for repeats in resps]
""",
}
KEYS: dict[str, Any] = {
    "doc_to_text": "{{question}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nAnswer:",
    "doc_to_target": "{{answer}}",
    "generation_kwargs": {"until": ["\n\n"]},
    "filter_list": [
        {"name": "strict", "filter": [{"function": "after_verdict", "mark": "VERDICT"}, {"function": "take_first"}]}
    ],
    "metric_list": [{"metric": "same_letter"}],
    "metadata": {
        "promptfmt": {
            "docs": [{"question": "Capital of Italy?", "choices": ["Bonn", "Rome"], "answer": "B"}],
            "completions": [
                {"completion": "It is hot there. VERDICT B", "expected": "B", "correct": True},
                {"completion": "Bonn is cold. VERDICT A", "expected": "A", "correct": False},
            ],
        }
    },
}


@pytest.fixture
def fork(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Return a project with a checkout of lm-eval that can be imported, and a task that uses its filter and metric."""
    for path, text in FORK.items():
        project.write(path, text)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(project.root), os.environ.get("PYTHONPATH", "")]))
    project.write("pytest.ini", "[pytest]\npromptfmt_profiles = plain\n")
    project.task("tasks/arc.yaml", **KEYS)
    return project


def test_filters_and_metrics_of_a_fork_read_and_score_answers(fork: Project) -> None:
    fork.run("tasks", "--snapshot-update").assert_outcomes(passed=3)
    shown = fork.snapshots()["tasks/__prompts__/arc/arc/extraction.txt"].decode()
    assert "OK" in shown
    fork.edit("tasks/arc.yaml", '"mark": "VERDICT"', '"mark": "ANSWER"')
    failed = fork.run("tasks", "-m", "promptfmt_extraction")
    failed.assert_outcomes(failed=1, deselected=2)
    failed.stdout.fnmatch_lines(["*completion 'It is hot there. VERDICT B' → extracted *"])


def test_filters_and_metrics_of_a_checkout_are_used_and_are_inputs(cached_project: Project) -> None:
    project = cached_project
    for path, text in FORK.items():
        project.write(f"fork/{path}", text.replace("open('imported', 'w').close()", ""))
    project.write("pytest.ini", "[pytest]\npromptfmt_profiles = plain\n")
    project.task("fork/lm_eval/tasks/arc.yaml", **KEYS)
    project.accept("fork")
    project.settle()
    again = project.run("fork")
    again.assert_outcomes(passed=4, warnings=1)
    again.stdout.fnmatch_lines(["collected 1 item"])  # the file, whose warning is shown again
    project.edit("fork/lm_eval/filters/thinking.py", "rpartition(self.mark)[2]", "partition(self.mark)[0]")
    project.run("fork", "-m", "promptfmt_extraction").assert_outcomes(failed=1, deselected=3)
    project.run("fork", "-m", "promptfmt_extraction", "--promptfmt-no-code").assert_outcomes(skipped=1, deselected=3)


def test_a_filter_of_ours_that_a_checkout_changes_is_its_own(project: Project) -> None:
    for path, text in FORK.items():
        text = text.replace("after_verdict", "remove_whitespace").replace("open('imported', 'w').close()", "")
        project.write(f"fork/{path}", text)
    project.write(
        "fork/lm_eval/api/more.py",
        "import evaluate\nfrom lm_eval.api.registry import register_metric\nload = evaluate.load('no/such')\n"
        '@register_metric(metric="exact_match", higher_is_better=True, aggregation="mean")\n'
        "def of_a_hub(**given): return load.compute(**given)\n",
    )
    project.write("pytest.ini", "[pytest]\npromptfmt_profiles = plain\n")
    project.task("fork/lm_eval/tasks/arc.yaml", **KEYS)
    project.edit("fork/lm_eval/tasks/arc.yaml", "after_verdict", "remove_whitespace")
    project.edit("fork/lm_eval/tasks/arc.yaml", "same_letter", "exact_match")  # that of a hub stays ours
    project.run("fork", "-m", "promptfmt_extraction", "--snapshot-update").assert_outcomes(passed=1, deselected=2)


def test_code_of_a_fork_that_may_not_run_is_not_imported_and_the_task_skipped(fork: Project) -> None:
    result = fork.run("tasks", "--promptfmt-no-code", "-rs", "-m", "promptfmt_extraction or promptfmt_scoring")
    result.assert_outcomes(skipped=2, deselected=1)
    result.stdout.fnmatch_lines(["SKIPPED * tasks/arc.yaml:1: *Python code of the task is not allowed to run *"])
    assert not (fork.root / "imported").exists()


def test_a_filter_that_nobody_registers_is_refused_and_nothing_imported_for_it(fork: Project) -> None:
    fork.edit("tasks/arc.yaml", "after_verdict", "after_verdct")
    fork.edit("tasks/arc.yaml", "same_letter", "exact_match")
    result = fork.run("tasks", "-m", "promptfmt_extraction")
    result.stdout.fnmatch_lines(
        ["tasks/arc.yaml:*: unknown filter 'after_verdct'; the filters of lm-eval 0.4.13 are custom, *"]
    )
    result.stdout.fnmatch_lines(["*hint: did you mean 'after_verdict'?"])
    assert not (fork.root / "imported").exists()


def test_a_filter_and_a_metric_that_a_module_of_the_task_registers_are_found(fork: Project) -> None:
    code = FORK["lm_eval/filters/thinking.py"].replace("after_verdict", "mine") + (
        "from lm_eval.api.registry import register_metric\n"
        'of_mine = register_metric(metric="mine", higher_is_better=True, aggregation="worst")\n'
        "of_mine(lambda predictions, references: float(predictions[0][:1] == references[0][:1]))\n"
        "def question(doc): return doc['question']\n"
    )
    fork.write("tasks/utils.py", code)
    fork.edit("tasks/arc.yaml", "after_verdict", "mine")
    fork.edit("tasks/arc.yaml", "same_letter", "mine")
    task = fork.root / "tasks/arc.yaml"
    lines = [line for line in task.read_text("utf-8").splitlines() if not line.startswith("doc_to_text")]
    task.write_text("\n".join([*lines, "doc_to_text: !function utils.question"]) + "\n", "utf-8")
    fork.run("tasks", "-m", "promptfmt_extraction", "--snapshot-update").assert_outcomes(passed=1, deselected=2)


def test_filters_and_metrics_of_a_package_are_found_by_their_entry_points(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("pytest.ini", "[pytest]\npromptfmt_profiles = plain\n")
    project.task("tasks/arc.yaml", **KEYS)
    thinking = FORK["lm_eval/filters/thinking.py"].partition("@register_filter")[2].partition("\n")[2]
    project.write(
        "site/acme_scoring.py",
        thinking.replace("(Filter)", "")
        + "def same_letter(predictions, references):\n    return float(predictions[0][:1] == references[0][:1])\n",
    )
    project.write(
        "site/acme_scoring-1.0.dist-info/entry_points.txt",
        "[pytest_promptfmt.filters]\nafter_verdict = acme_scoring:AfterVerdict\n"
        "[pytest_promptfmt.metrics]\nsame_letter = acme_scoring:same_letter\n",
    )
    project.write("site/acme_scoring-1.0.dist-info/METADATA", "Name: acme-scoring\nVersion: 1.0\n")
    path = [str(project.root / "site"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    project.run("tasks", "--snapshot-update").assert_outcomes(passed=3)
    project.write("site/acme_scoring.py", "import no_such_module_here\n")
    broken = project.run("tasks", "-m", "promptfmt_extraction")
    broken.stdout.fnmatch_lines(["*'after_verdict' of acme_scoring:AfterVerdict cannot be imported: ModuleNotFound*"])
