"""`renderer: installed`: lm-eval itself makes the requests, so what only a fork can do is tested."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from plugin_project import Project

pytestmark = pytest.mark.parity

INSTALLED = ("--promptfmt-renderer", "installed")
FORK = ("-o", "pythonpath=fork")


@pytest.fixture
def project(pytester: pytest.Pytester) -> Project:
    spec = find_spec("lm_eval") if find_spec("datasets") else None
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs lm-evaluation-harness")
    project = Project(pytester)
    project.task("t.yaml", output_type="multiple_choice", doc_to_choice=["x", "y"], doc_to_target=0, num_fewshot=2)
    copy_without_tasks(Path(spec.submodule_search_locations[0]), project.root / "fork/lm_eval")
    return project


def copy_without_tasks(package: Path, fork: Path) -> None:
    shutil.copytree(package, fork, ignore=shutil.ignore_patterns("*.yaml", "__pycache__", "[!_]*.jsonl", "tasks"))
    (fork / "tasks").mkdir()
    for module in (package / "tasks").glob("*.py"):
        shutil.copy(module, fork / "tasks")


def edit(project: Project, old: str, new: str) -> None:
    project.edit("fork/lm_eval/api/task.py", old, new)


def test_snapshots_are_those_of_the_fast_way(project: Project) -> None:
    project.task("g.yaml", gen_prefix="So", description="Answer.")
    project.run("--snapshot-update")
    result = project.run(*INSTALLED)
    assert result.ret == 0, result.outlines
    again = project.run(*INSTALLED, "-v")
    assert sum("snapshot[" in line and "PASSED" in line for line in again.outlines) >= 4


def test_a_fork_that_makes_other_requests_fails_the_snapshot(project: Project) -> None:
    project.run("--snapshot-update")
    edit(project, '(ctx, f"{target_delimiter}{cont}")', '(ctx, f"{target_delimiter}<{cont}>")')
    result = project.run(*INSTALLED, *FORK)
    assert result.ret == 1
    assert any("<x>" in line for line in result.outlines)
    assert project.run(*FORK).ret == 0


def test_the_chat_template_around_other_requests_is_not_text_of_the_task(project: Project) -> None:
    edit(project, '(ctx, f"{target_delimiter}{cont}")', '(ctx, f"{target_delimiter}<{cont}>")')
    result = project.run(*INSTALLED, *FORK, "-m", "promptfmt_lint", "-v", "-o", "promptfmt_lint=true")
    assert any("::lint PASSED" in line for line in result.outlines), result.outlines
    assert not any("PF003" in line or "PF425" in line for line in result.outlines)


def test_an_output_type_of_a_fork_has_requests(project: Project) -> None:
    project.task("own.yaml", output_type="ordered_regex", generation_kwargs={"until": ["###"]})
    edit(
        project,
        'elif self.OUTPUT_TYPE == "generate_until":',
        'elif self.OUTPUT_TYPE in ("generate_until", "ordered_regex"):',
    )
    edit(project, '    "generate_until",\n]', '    "generate_until",\n    "ordered_regex",\n]')
    project.run("--snapshot-update", *FORK, "own.yaml")  # by itself
    assert "###" in (project.root / "__prompts__/own/own/plain.txt").read_text("utf-8")
    assert project.run(*INSTALLED, *FORK, "own.yaml", "-k", "snapshot").parseoutcomes()["passed"]


def test_requests_of_an_output_type_of_no_installed_harness_are_unknown(project: Project) -> None:
    project.task("own.yaml", output_type="ordered_regex")
    for written in ("--snapshot-update",), ():
        result = project.run(*written, "own.yaml", "-k", "snapshot")
        assert "passed" not in result.parseoutcomes()
    result.stdout.fnmatch_lines(["skipped*promptfmt does not know the requests of output type 'ordered_regex'*"])
    project.edit("own.yaml", "doc_to_text:", "description: New.\ndoc_to_text:")
    assert project.run("own.yaml", "-k", "snapshot").parseoutcomes()["failed"]


def test_nothing_is_said_about_scores_of_an_output_type_of_no_installed_harness(project: Project) -> None:
    pattern = {"function": "regex", "regex_pattern": "Answer: (.)"}
    project.task(
        "own.yaml",
        output_type="ordered_regex",
        filter_list=[{"name": "f", "filter": [pattern, {"function": "take_first"}]}],
        metric_list=[{"metric": "exact_match"}],
    )
    result = project.run("own.yaml", "-m", "promptfmt_lint", "-o", "promptfmt_lint=true")
    assert not any(code in line for line in result.outlines for code in ("PF109", "PF112")), result.outlines


ANSWERS: dict[str, Any] = {
    "doc_to_text": "{{question}}",
    "doc_to_target": "{{answer}}",
    "generation_kwargs": {"until": ["###"]},
    "filter_list": [{"name": "f", "filter": [{"function": "regex", "regex_pattern": "([AB])"}, {"function": "own"}]}],
    "metric_list": [{"metric": "exact_match"}, {"metric": "agree"}],
    "metadata": {
        "promptfmt": {
            "docs": [{"question": "Capital of Italy?", "answer": "B"}],
            "completions": [{"completion": "first A, then B", "expected": "B", "correct": True}],
        }
    },
}


def with_scoring(project: Project) -> None:
    """Add a filter and a metric of the fork, and let its `regex` take the last match."""
    own = """

@register_filter("own")
class Own(Filter):
    def apply(self, resps, docs):
        return [each[0] for each in resps]
"""
    agree = """

@register_metric(metric="agree", higher_is_better=True, aggregation="mean")
def agree(items):
    return float(items[0] == items[1])
"""
    extraction, metrics = (f"fork/lm_eval/{name}.py" for name in ("filters/extraction", "api/metrics"))
    for path, more in ((extraction, own), (metrics, agree)):
        project.write(path, (project.root / path).read_text("utf-8") + more)
    project.edit(extraction, "match = match[self.group_select]", "match = match[-1]")


def test_answers_are_filtered_and_scored_by_the_installed_lm_eval(project: Project) -> None:
    project.task("answers.yaml", **ANSWERS)
    with_scoring(project)
    scored = ("answers.yaml", "-m", "promptfmt_scoring or promptfmt_extraction", "--snapshot-update", *FORK)
    ours = project.run(*scored)  # the fork's `regex`, since it is no release's
    assert ours.ret == 0, ours.outlines
    theirs = project.run(*scored, *INSTALLED)
    assert theirs.ret == 0, theirs.outlines
    project.edit("fork/lm_eval/api/metrics.py", "return exact_match_hf_evaluate(**kwargs)", "return {'exact_match': 0}")
    wrong = project.run(*scored, *INSTALLED)
    assert wrong.ret == 1, wrong.outlines


def test_a_filter_that_the_installed_lm_eval_lacks_fails(project: Project) -> None:
    project.task("answers.yaml", **ANSWERS)
    with_scoring(project)
    project.edit("fork/lm_eval/filters/extraction.py", '@register_filter("regex")', '@register_filter("regexp")')
    result = project.run("answers.yaml", "-m", "promptfmt_extraction", *FORK, *INSTALLED)
    assert result.ret == 1
    assert any("the installed lm-eval does not have the filter 'regex'" in line for line in result.outlines)


def test_scores_of_the_installed_lm_eval_are_those_of_the_fast_way(project: Project) -> None:
    taken = {"filter_list": ANSWERS["filter_list"][:0], "metric_list": ANSWERS["metric_list"][:1]}
    project.task("answers.yaml", **ANSWERS | taken, num_fewshot=0)
    project.task("plain.yaml", **{key: ANSWERS[key] for key in ("doc_to_text", "doc_to_target")})
    project.run("--snapshot-update")
    before = project.snapshots()
    result = project.run(*INSTALLED, "--snapshot-update")
    assert project.run().parseoutcomes() == result.parseoutcomes()
    assert project.snapshots() == before


def test_a_task_that_lm_eval_refuses_is_not_green(project: Project) -> None:
    project.run("--snapshot-update")
    edit(
        project,
        "choices = self.doc_to_choice(doc)\n            target_delimiter",
        "raise KeyError('lost')\n            choices",
    )
    result = project.run(*INSTALLED, *FORK, "t.yaml")
    assert result.ret == 1
    assert any("lm-eval makes no requests for 't': it raises KeyError: 'lost'" in line for line in result.outlines)


def test_no_lm_eval_of_a_checkout_is_imported_where_no_code_may_run(project: Project) -> None:
    project.write("promptfmt.yaml", "renderer: installed\n")
    project.write("lm_eval/__init__.py", "open('ran', 'w').close()\nraise ImportError\n")
    result = project.run("-o", "pythonpath=.", "--promptfmt-no-code", "-m", "promptfmt_snapshot", "t.yaml")
    assert result.parseoutcomes().keys() == {"skipped"}
    assert not (project.root / "ran").exists()
    assert project.run("-o", "pythonpath=.", "-m", "promptfmt_snapshot", "t.yaml").ret == 1
    assert (project.root / "ran").exists()
