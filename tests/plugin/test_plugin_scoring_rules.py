"""Rules about scoring in whole runs: reported, ignored and accepted as all others; one mistake is one finding."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from plugin_project import Project

LINT = ("-o", "promptfmt_lint=true", "--promptfmt-profile", "plain")

# A filter that looks for answers, so that scoring is tried in every run.
LABELLED: dict[str, Any] = {
    "doc_to_text": "{{question}}\nA. plus\nB. minus\nAnswer:",
    "generation_kwargs": {"until": ["\n"]},
    "filter_list": [
        {"name": "label", "filter": [{"function": "regex", "regex_pattern": "([AB+])"}, {"function": "take_first"}]}
    ],
}


def docs(*answers: str) -> dict[str, Any]:
    return {"docs": [{"question": f"Which is {number}?", "answer": answer} for number, answer in enumerate(answers)]}


def result_of(project: Project, *options: str) -> tuple[pytest.RunResult, dict[str, Any]]:
    done = project.run(*LINT, "--promptfmt-json", "out.json", *options)
    return done, json.loads((project.root / "out.json").read_text("utf-8"))


def failed(result: pytest.RunResult) -> list[str]:
    return [line.split()[1] for line in result.outlines if line.startswith("FAILED ")]


@pytest.mark.parametrize(
    ("keys", "answers", "code"),
    [
        ({"generation_kwargs": {"until": ["\\n"]}}, ("A", "B"), "PF902"),
        ({"generation_kwargs": {"until": [["\n"]]}}, ("A", "B"), "PF902"),
        ({"generation_kwargs": {"until": ["A"]}}, ("A", "B"), "PF903"),
        ({"metric_list": [{"metric": "exact_match", "weight_by_size": True}]}, ("A", "B"), "PF109"),
    ],
)
def test_one_mistake_is_one_finding_of_one_item(
    project: Project, keys: dict[str, Any], answers: tuple[str, ...], code: str
) -> None:
    project.task("sums.yaml", **{**LABELLED, **keys}, metadata={"promptfmt": docs(*answers)})
    done, out = result_of(project, "--snapshot-update", "-m", "promptfmt_lint or promptfmt_scoring")
    assert failed(done) == ["sums.yaml::sums::lint"]
    assert [finding["code"] for finding in out["findings"] if finding["severity"] == "error"] == [code]


@pytest.mark.parametrize(
    ("choices", "code"), [(["red", "blue", "blue"], "PF705"), (["red", " "], "PF704"), (["Red", "blue"], "PF701")]
)
def test_one_mistake_in_choices_is_one_finding_of_one_item(project: Project, choices: list[str], code: str) -> None:
    given = {"docs": [{"question": "Which?", "choices": choices, "answer": "red"}]}
    keys: dict[str, Any] = {
        "output_type": "multiple_choice",
        "doc_to_choice": "choices",
        "metadata": {"promptfmt": given},
    }
    project.task("colours.yaml", **keys)
    done, out = result_of(project, "--promptfmt-scoring", "-m", "promptfmt_lint or promptfmt_scoring")
    assert failed(done) == ["colours.yaml::colours::lint"]
    assert [finding["code"] for finding in out["findings"] if finding["severity"] == "error"] == [code]


PUNCTUATION: dict[str, Any] = {"metric_list": [{"metric": "exact_match", "ignore_punctuation": True}]}


def write_sums(project: Project, **own: Any) -> None:
    """Write a task with two mistakes of scoring: an answer that metrics ignore, and one that is empty."""
    project.task("sums.yaml", **LABELLED, **PUNCTUATION, metadata={"promptfmt": {**docs("+", " "), **own}})


def test_all_findings_about_scoring_reach_summary_and_json_in_a_default_run(project: Project) -> None:
    write_sums(project)
    done, out = result_of(project, "--snapshot-update")
    assert failed(done) == ["sums.yaml::sums::lint", "sums.yaml::sums::scoring"]
    assert Counter(finding["code"] for finding in out["findings"] if finding["code"].startswith("PF6")) == {
        "PF601": 2,
    }
    assert any(": error: PF601 " in each for each in done.outlines)
    message = "PF601 exact_match ignores all characters of an answer *"
    done.stdout.fnmatch_lines([message, "  at: sums.yaml:* (metric_list, doc 1)"])


@pytest.mark.parametrize(
    "options", [("--promptfmt-ignore", "PF601"), ("-o", "promptfmt_per_file_ignores=sums.yaml: PF60")]
)
def test_findings_about_scoring_are_ignored_by_code_and_by_file(project: Project, options: tuple[str, str]) -> None:
    write_sums(project)
    done, out = result_of(project, "-m", "promptfmt_scoring", *options)
    assert failed(done) == []
    assert not [finding for finding in out["findings"] if finding["code"].startswith("PF6")]
    done.stdout.no_fnmatch_line("*promptfmt_per_file_ignores*remove it*")
    done, _ = result_of(project, "-m", "promptfmt_lint", *options)
    done.stdout.no_fnmatch_line("*promptfmt_per_file_ignores*remove it*")  # of what was not tried nobody can tell


def test_findings_about_scoring_are_ignored_by_the_task_with_a_reason(project: Project) -> None:
    write_sums(project, ignore={"PF601": "the paper has such docs"})
    done, out = result_of(project, "-m", "promptfmt_lint or promptfmt_scoring")
    assert failed(done) == []
    assert "PF002" not in {finding["code"] for finding in out["findings"]}


def test_an_ignore_of_a_rule_about_scoring_that_is_needed_no_more_is_reported_by_the_item_that_knows(
    project: Project,
) -> None:
    project.task("sums.yaml", **LABELLED, metadata={"promptfmt": {**docs("A", "B"), "ignore": {"PF601": "so"}}})
    for items, found in (("promptfmt_lint", []), ("promptfmt_scoring", ["PF002"])):
        _, out = result_of(project, "-m", items)
        assert [finding["code"] for finding in out["findings"] if finding["code"] == "PF002"] == found


def test_findings_about_scoring_are_accepted_by_a_baseline_and_taken_out_when_fixed(project: Project) -> None:
    write_sums(project)
    baseline = ("--promptfmt-baseline", "known.jsonl")
    scoring = ("-m", "promptfmt_lint or promptfmt_scoring")
    result_of(project, *scoring, *baseline, "--promptfmt-baseline-update", "write")
    assert {"PF601"} <= {json.loads(line).get("code") for line in (project.root / "known.jsonl").open()}
    done, out = result_of(project, *scoring, *baseline)
    assert (failed(done), out["findings"]) == ([], [])
    project.task("sums.yaml", **LABELLED, **PUNCTUATION, metadata={"promptfmt": docs("A", "B")})
    done, _ = result_of(project, "-m", "promptfmt_lint", *baseline)
    done.stdout.no_fnmatch_line("*PF601*")  # nobody looked
    done, _ = result_of(project, *scoring, *baseline)
    done.stdout.fnmatch_lines(["    sums.yaml: PF601 *"])


def test_what_spoils_the_score_is_reported_by_the_item_scoring_where_the_lint_item_does_not_run(
    project: Project,
) -> None:
    keys = {**LABELLED, "generation_kwargs": {"until": ["\\n"]}}
    project.task("sums.yaml", **keys, metadata={"promptfmt": docs("A", "B")})
    done, _ = result_of(project, "-m", "promptfmt_scoring")
    assert failed(done) == ["sums.yaml::sums::scoring"]


HELPER = """
from pathlib import Path

LOG = Path(__file__).with_name("calls.log")

def log(*words):
    with LOG.open("a") as file:
        print(*words, file=file)

log("import")

def chosen(docs):
    log("docs", docs[0]["question"])
    return docs

def asked(doc):
    log("asked", doc["question"])
    return doc["question"] + " A. plus B. minus Answer:"
"""


def test_in_one_run_functions_are_bound_docs_loaded_and_prompts_rendered_once(project: Project) -> None:
    pytest.importorskip("datasets")
    project.write("helper.py", HELPER)
    project.write(
        "sums.yaml",
        """
task: sums
output_type: generate_until
test_split: test
fewshot_split: dev
num_fewshot: 1
process_docs: !function helper.chosen
doc_to_text: !function helper.asked
doc_to_target: answer
generation_kwargs: {until: ["\\n"]}
filter_list: [{name: label, filter: [{function: regex, regex_pattern: "([AB])"}, {function: take_first}]}]
metadata:
  promptfmt:
    docs:
      test: [{question: "two?", answer: A}]
      dev: [{question: "one?", answer: B}]
""",
    )
    done = project.run("-o", "promptfmt_lint=true", "--snapshot-update")
    done.assert_outcomes(passed=5)  # two snapshots, lint, extraction, scoring
    calls = Counter((project.root / "calls.log").read_text("utf-8").splitlines())
    # Rendering looks at the first doc to see whether it has several inputs, and so does scoring.
    assert calls == {"import": 1, "docs two?": 1, "docs one?": 1, "asked one?": 1, "asked two?": 3}
