"""Whose Python code runs, and what becomes of a task whose code does not work."""

import json
import random
import shutil
from pathlib import Path

import numpy
import pytest
from plugin_project import Project

pytestmark = pytest.mark.slow


def coded(project: Project, path: str, code: str) -> None:
    """Write a task whose question is made by a function beside it."""
    file = project.task(path, doc_to_text=None)
    file.write_text(file.read_text("utf-8") + f"doc_to_text: !function {file.stem}_utils.question\n", "utf-8")
    project.write(f"{path.removesuffix('.yaml')}_utils.py", code)


GOOD = "def question(doc):\n    return 'Asked: ' + doc['question']\n"


SCORED = """
import scorer


def process_results(doc, results):
    return {"f": scorer.score(results[0], doc["answer"])}
"""


def test_code_runs_below_the_rootdir_and_where_it_is_allowed(
    project: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    coded(project, "inside/arc.yaml", GOOD)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(project.root / "inside", elsewhere / "outside")
    (elsewhere / "outside/arc.yaml").write_text(
        (project.root / "inside/arc.yaml").read_text("utf-8").replace('task: "arc"', 'task: "far"'), "utf-8"
    )
    marker = elsewhere / "outside/ran"
    utils = elsewhere / "outside/arc_utils.py"
    utils.write_text(f"open({str(marker)!r}, 'w').close()\n" + utils.read_text("utf-8"), "utf-8")
    arguments = ("-rs", "--snapshot-update", "-c", "pytest.ini", "inside", str(elsewhere / "outside"))

    result = project.run(*arguments)
    result.assert_outcomes(passed=2, skipped=2)
    result.stdout.fnmatch_lines(
        ["skipped, 2 tests: Python code of the task is not allowed to run (it is outside the rootdir*"]
    )
    assert "outside/arc.yaml:1: Python code" in result.stdout.str(), "the place is that of the task"
    assert not marker.exists()

    allowed = project.run(*arguments, "--promptfmt-allow-code", str(elsewhere))
    allowed.assert_outcomes(passed=4)
    assert marker.exists()
    marker.unlink()
    project.write(
        "pytest.ini", f"[pytest]\npromptfmt_profiles = plain chat-chatml\npromptfmt_allow_code = {elsewhere}\n"
    )
    project.run(*arguments).assert_outcomes(passed=4)
    marker.unlink()
    none = project.run(*arguments, "--promptfmt-no-code")
    none.assert_outcomes(skipped=4)
    none.stdout.fnmatch_lines(["promptfmt: *Python code is not run"])
    assert not marker.exists()


def test_code_that_does_not_work_fails_its_own_task_alone(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\npromptfmt_profiles = plain chat-chatml\npromptfmt_time_limit = 1\n")
    coded(project, "tasks/ends.yaml", f"import sys\nsys.exit(3)\n{GOOD}")
    coded(project, "tasks/endless.yaml", f"while True:\n    pass\n{GOOD}")
    coded(project, "tasks/raises.yaml", "def question(doc):\n    raise SystemExit(7)\n")
    project.write("tasks/raises.docs.jsonl", '{"question": "Why?", "answer": "because"}\n')
    coded(project, "tasks/unknown.yaml", f"import no_such_module_at_all as none\nLIMIT = 2 + none.LIMIT\n{GOOD}")
    coded(project, "tasks/wrong.yaml", "def question(doc)\n")
    coded(project, "tasks/good.yaml", GOOD)
    file = project.task("tasks/again.yaml", doc_to_text=None)
    file.write_text(file.read_text("utf-8") + "doc_to_text: !function endless_utils.question\n", "utf-8")
    result = project.run("tasks", "--promptfmt-profile", "plain", "--snapshot-update", "-v")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    output = result.stdout.str()
    assert "good.yaml::good::snapshot[plain] PASSED" in output
    for name, message in {
        "ends": "importing the module ends the program (exit status 3)",
        "endless": "the import did not finish within 1 s",
        "raises": "SystemExit",
        "wrong": "tasks/wrong_utils.py:1",
    }.items():
        assert f"{name}.yaml::{name}::snapshot[plain] FAILED" in output
        assert any(message in line and ".yaml:6:" in line for line in result.outlines), name
    assert "unknown.yaml::unknown::snapshot[plain] SKIPPED" in output
    result.stdout.fnmatch_lines(
        ["skipped, 1 test: the package 'no_such_module_at_all' is not installed; pip install *"]
    )
    assert "again.yaml::again::snapshot[plain] FAILED" in output, "and it did not wait once more"


def test_scores_that_need_a_missing_package_are_neither_changed_nor_lost(project: Project) -> None:
    project.write("scorer.py", "def score(text, gold):\n    return float(text.strip() == gold)\n")
    project.write("tasks/code.py", SCORED)
    project.write("tasks/t.docs.jsonl", '{"question": "Why?", "answer": "so"}\n')
    file = project.task("tasks/t.yaml")
    file.write_text(file.read_text("utf-8") + "process_results: !function code.process_results\n", "utf-8")
    project.run("tasks", "-o", f"pythonpath={project.root}", "--snapshot-update")
    snapshot = project.root / "tasks/__prompts__/t/t/plain.txt"
    kept = snapshot.read_bytes()
    assert b"doc 1, gold: f 1" in kept
    (project.root / "scorer.py").unlink()
    for options in ((), ("--snapshot-update",)):
        result = project.run("tasks", *options)
        assert result.ret == pytest.ExitCode.OK, result.outlines
        result.stdout.fnmatch_lines(["skipped, 1 test: the package 'scorer' is not installed; pip install *"])
        assert snapshot.read_bytes() == kept


RUNS_TESTS = """
def rate(references, predictions):
    import a_package_that_nobody_has

    return a_package_that_nobody_has.passed(references, predictions)


def programs(resps, docs):
    return [[doc["start"] + text for text in texts] for texts, doc in zip(resps, docs)]
"""

WITH_TESTS = """
task: program
output_type: generate_until
test_split: test
doc_to_text: "{{start}}"
doc_to_target: "{{test}}"
generation_kwargs: {until: ["\\n#"], max_gen_toks: 64}
filter_list: [{name: whole, filter: [{function: custom, filter_fn: !function code.programs}]}]
metric_list: [{metric: !function code.rate, aggregation: mean, higher_is_better: true}]
"""


def test_a_metric_that_imports_a_missing_package_when_it_is_called_is_not_tried(project: Project) -> None:
    project.write("tasks/code.py", RUNS_TESTS)
    doc = {"start": "def one():\n", "test": "def check(f):\n    assert f() == 1\n"}
    project.write("tasks/t.docs.jsonl", json.dumps(doc) + "\n")
    project.write("tasks/t.yaml", WITH_TESTS)
    result = project.run("tasks", "--snapshot-update")
    assert result.ret == pytest.ExitCode.OK, result.outlines
    result.stdout.fnmatch_lines(["skipped, * the package 'a_package_that_nobody_has' is not installed; pip install *"])


def test_the_file_and_its_name_are_no_way_round_the_rule(project: Project, tmp_path: Path) -> None:
    secret = project.root.parent / "beside"
    secret.mkdir(exist_ok=True)
    (secret / "beside_utils.py").write_text("raise RuntimeError('it ran')\n", "utf-8")
    (project.root / "linked_utils.py").symlink_to(secret / "beside_utils.py")
    file = project.task("linked.yaml", doc_to_text=None)
    file.write_text(file.read_text("utf-8") + "doc_to_text: !function linked_utils.question\n", "utf-8")
    result = project.run("linked.yaml")
    result.assert_outcomes(skipped=2)
    assert "it ran" not in result.stdout.str()


def test_docs_that_a_function_draws_at_random_are_the_same_in_every_run(project: Project) -> None:
    file = project.task("drawn.yaml")
    file.write_text(file.read_text("utf-8") + "process_docs: !function drawing.drawn\n", "utf-8")
    project.write("drawn.docs.jsonl", "".join(f'{{"question": "{n}", "answer": "{n}"}}\n' for n in range(40)))
    project.write(
        "drawing.py",
        "import random\nimport numpy\n\n"
        "def drawn(docs):\n"
        "    found = [docs[int(n)] for n in numpy.random.permutation(len(docs))]\n"
        "    random.shuffle(found)\n"
        "    return found\n",
    )
    project.run("--snapshot-update").assert_outcomes(passed=2)
    snapshot = (project.root / "__prompts__/drawn/drawn/plain.txt").read_text("utf-8")
    project.run().assert_outcomes(passed=2)
    seeded = random.Random(0), numpy.random.RandomState(1234)  # those of lm-eval 0.4.13
    for call in range(3):  # for few-shot docs, when the task is built, and for its requests
        for _ in range(24 if call == 2 else 0):
            seeded[0].random()
        found = [int(n) for n in seeded[1].permutation(40)]
        seeded[0].shuffle(found)
    assert [f"| Q: {n}" in snapshot for n in found[:4]] == [True, True, True, False]
