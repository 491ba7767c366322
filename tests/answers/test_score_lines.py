"""Scores of a task's own code in its snapshot: what it gives to the gold answer and to near misses."""

import random
from pathlib import Path

import pytest
from linting import study_of

from pytest_promptfmt.answers.phrasing_verdicts import score_lines
from pytest_promptfmt.core.profile import PLAIN
from pytest_promptfmt.snapshots.content import snapshot_document
from pytest_promptfmt.study import Study, seen_by
from pytest_promptfmt.systems.task_files import read_task_file

TASK = """
task: capitals
dataset_path: nowhere/docs
output_type: generate_until
test_split: test
doc_to_text: "Question: {{q}}\\nAnswer:"
doc_to_target: "{{a}}"
process_results: !function scorer.score
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
metadata: {promptfmt: {docs: [{q: "3 + 4?", a: "7"}, {q: "9 + 6?", a: "15"}, {q: "1 + 1?", a: "2"}]}}
"""
EXACT = "def score(doc, results):\n    return {'acc': int(results[0].strip() == doc['a'])}\n"


def study_with(folder: Path, code: str, task: str = TASK) -> Study:
    (folder / "scorer.py").write_text(code, "utf-8")
    (folder / "capitals.yaml").write_text(task, "utf-8")
    file = read_task_file(folder / "capitals.yaml")
    assert file is not None
    return study_of(file.tasks[0], folder)


def test_the_gold_answer_and_near_misses_of_two_docs_are_shown(tmp_path: Path) -> None:
    assert list(score_lines(study_with(tmp_path, EXACT))) == [
        f"doc {doc}, {what}: acc {score}"
        for doc in (1, 2)
        for what, score in {
            "gold": 1,
            "gold in a sentence": 0,
            "gold and a digit": 0,
            "another answer": 0,
            "nothing": 0,
        }.items()
    ]


@pytest.mark.parametrize(
    ("mistake", "line"),
    [
        ("doc['a'] in results[0]", "doc 1, gold and a digit: acc 1"),
        ("results == doc['a']", "doc 1, gold: acc 0"),
        ("results[0] != doc['a']", "doc 1, nothing: acc 1"),
        ("results[0][0] == doc['a']", "doc 1, nothing: IndexError"),
    ],
)
def test_a_mistake_in_the_code_changes_the_snapshot(tmp_path: Path, mistake: str, line: str) -> None:
    code = f"def score(doc, results):\n    return {{'acc': int({mistake})}}\n"
    sections = snapshot_document(seen_by(study_with(tmp_path, code), PLAIN), with_task=True).task
    shown = [entry.text for section in sections if section.title == "scores" for entry in section.entries]
    assert line in shown


def test_choices_are_shown_by_the_likelihoods_that_make_them_win(tmp_path: Path) -> None:
    code = "def score(doc, results):\n    return {'acc': int(results[0][0] > results[1][0])}\n"
    task = TASK.replace("generate_until", 'multiple_choice\ndoc_to_choice: ["yes", "no"]').replace('"{{a}}"', "0")
    lines = list(score_lines(study_with(tmp_path, code, task)))
    assert lines[:3] == [
        "doc 1, gold most likely: acc 1",
        "doc 1, another most likely: acc 0",
        "doc 1, all alike: acc 0",
    ]


def test_scores_by_chance_are_not_shown(tmp_path: Path) -> None:
    code = (
        "import itertools\n\nCOUNT = itertools.count()\n\n\ndef score(doc, results):\n    return {'acc': next(COUNT)}\n"
    )
    assert set(score_lines(study_with(tmp_path, code))) >= {"doc 1, gold: another score each time"}


def test_what_a_scorer_draws_at_random_is_the_same_in_every_run(tmp_path: Path) -> None:
    code = "import random\n\n\ndef score(doc, results):\n    return {'acc': random.choice([0, 0, 0, 1])}\n"
    found = set()
    for seed in range(8):
        random.seed(seed)
        before = random.getstate()
        found.add(tuple(score_lines(study_with(tmp_path, code))))
        assert random.getstate() == before
    assert len(found) == 1


def test_metrics_of_lm_eval_are_not_shown(tmp_path: Path) -> None:
    task = TASK.replace("process_results: !function scorer.score\n", "").replace("metric: acc", "metric: exact_match")
    assert not list(score_lines(study_with(tmp_path, EXACT, task)))
