"""Extraction and scoring as pytest items: asked for, failing with reasons, snapshotted, never obsolete."""

from __future__ import annotations

from pathlib import Path

# pytester forgets what a run imports: each would import these again, and numpy warns of that.
import numpy  # noqa: F401
import pytest
from promptfmt_command import promptfmt

import pytest_promptfmt.answers.replaying
import pytest_promptfmt.plugin.session  # noqa: F401

TASK = """\
task: capitals
output_type: generate_until
doc_to_text: "{{question}}\\nA. {{choices[0]}}\\nB. {{choices[1]}}\\nAnswer:"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n\\n"]}
filter_list:
  - name: strict
    filter:
      - {function: regex, regex_pattern: "PATTERN"}
      - {function: take_first}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
metadata:
  promptfmt:
    docs:
      - {question: "Capital of Italy?", choices: [Bonn, Rome], answer: B}
      - {question: "Capital of Kenya?", choices: [Nairobi, Lima], answer: A}
"""
SOUND = r"^\\s*([AB])\\.?\\s*$"
GREEDY = r"([A-Z])"


def write(pytester: pytest.Pytester, pattern: str, more: str = "") -> Path:
    path = pytester.path / "capitals.yaml"
    path.write_text(TASK.replace("PATTERN", pattern) + more, "utf-8")
    return path


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("--promptfmt", "--promptfmt-profile=plain", "-p", "no:cacheprovider", *options)


def test_a_task_that_looks_for_answers_is_tried_in_every_run(pytester: pytest.Pytester) -> None:
    write(pytester, SOUND)
    run(pytester, "--snapshot-update").assert_outcomes(passed=3)
    run(pytester, "-m", "promptfmt_extraction").assert_outcomes(passed=1, deselected=2)
    assert (pytester.path / "__prompts__/capitals/capitals/extraction.txt").is_file()
    without = run(pytester, "-o", "promptfmt_scoring=none")
    without.assert_outcomes(passed=1)
    without.stdout.no_fnmatch_line("*unused*")


def test_a_task_without_such_filters_is_tried_when_asked_for(pytester: pytest.Pytester) -> None:
    path = write(pytester, SOUND)
    text = path.read_text("utf-8")
    start, end = text.index("filter_list"), text.index("metric_list")
    path.write_text(text[:start] + text[end:], "utf-8")
    run(pytester, "--snapshot-update").assert_outcomes(passed=1)
    run(pytester, "--promptfmt-scoring", "--snapshot-update", "-m", "promptfmt_scoring").assert_outcomes(
        passed=1, deselected=2
    )


def test_check_does_not_request_the_snapshot_of_misread_phrasings(pytester: pytest.Pytester) -> None:
    write(pytester, GREEDY)
    found = promptfmt(pytester.path, "check")
    assert found.returncode == 1
    assert "the filters misread " in found.stdout
    assert "snapshot" not in found.stdout
    run(pytester, "-m", "promptfmt_extraction", "--snapshot-update")
    write(pytester, r"([A-D])")
    changed = promptfmt(pytester.path, "check")
    assert "the filters misread " in changed.stdout
    assert "the answers that the filters read have changed" in changed.stdout, "a file with snapshots"


def test_misread_phrasings_fail_until_a_snapshot_accepts_them(pytester: pytest.Pytester) -> None:
    write(pytester, GREEDY)
    result = run(pytester, "-m", "promptfmt_extraction")
    result.assert_outcomes(failed=1, deselected=2)
    result.stdout.fnmatch_lines(["*the filters misread *", "*there is no snapshot yet"])
    accepting = run(pytester, "-m", "promptfmt_extraction", "--snapshot-update")
    accepting.assert_outcomes(passed=1, deselected=2, warnings=1)
    accepting.stdout.fnmatch_lines(["*the snapshot accepts * misread phrasings, such as hazard negated: WRONG(T)*"])
    run(pytester, "-m", "promptfmt_extraction").assert_outcomes(passed=1, deselected=2)
    run(pytester, "-m", "promptfmt_extraction", "--promptfmt-scoring").assert_outcomes(failed=1, deselected=2)


def test_what_the_task_asks_for_is_never_accepted(pytester: pytest.Pytester) -> None:
    write(pytester, r"^Letter ([AB])$")
    for options in (["--snapshot-update"], []):
        result = run(pytester, "-m", "promptfmt_extraction", *options)
        result.assert_outcomes(failed=1, deselected=2)
        result.stdout.fnmatch_lines(["*the filters do not find the answer: contract own-answer-1: MISS"])


def test_a_greedy_filter_fails_with_every_stage_told(pytester: pytest.Pytester) -> None:
    write(pytester, GREEDY)
    result = run(pytester, "--promptfmt-scoring", "--snapshot-update")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*capitals [[]extraction[]]: the filters misread * phrasings",
            "*hazard article-A: *",
            "*completion 'The answer is a city*extracted 'T' → scores 0",
        ]
    )


def test_a_changed_regex_shows_which_phrasings_it_loses(pytester: pytest.Pytester) -> None:
    write(pytester, SOUND)
    run(pytester, "--snapshot-update")
    write(pytester, r"^\\s*([AB])\\s*$")
    result = run(pytester)
    result.assert_outcomes(passed=1, failed=2)  # the snapshot shows the pattern, and this what becomes of it
    result.stdout.fnmatch_lines(
        ["*the answers that the filters read have changed", "-*dot*OK", "+*dot*MISS", "accept: pytest*"]
    )


def test_expected_failures_pass_with_a_reason_and_fail_when_healed(pytester: pytest.Pytester) -> None:
    told = """\
    completions:
      - {id: mine, completion: "It is B", expected: B}
    expected_failures: {mine: "the prompt requests the letter first"}
"""
    write(pytester, SOUND, told)
    run(pytester, "--snapshot-update").assert_outcomes(passed=3)
    write(pytester, r"^(?:It is)?\\s*([AB])\\.?\\s*$", told)
    result = run(pytester, "-m", "promptfmt_extraction")
    result.assert_outcomes(failed=1, deselected=2)
    result.stdout.fnmatch_lines(["*expected failure 'mine' no longer fails*remove the entry"])


def test_a_scorer_that_cannot_tell_fails_with_its_findings(pytester: pytest.Pytester) -> None:
    path = write(pytester, SOUND)
    path.write_text(path.read_text("utf-8").replace("mean,", "mean, weight_by_size: true,"), "utf-8")
    result = run(pytester, "--promptfmt-scoring", "-m", "promptfmt_scoring")
    result.assert_outcomes(failed=1, deselected=2)
    result.stdout.fnmatch_lines(
        ["PF109 scoring fails when *", "  at: capitals.yaml:*", "*exact_match does not take weight_by_size*"]
    )


def test_choices_are_scored_without_a_model(pytester: pytest.Pytester) -> None:
    (pytester.path / "choices.yaml").write_text(
        """\
task: choices
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metadata:
  promptfmt:
    docs:
      - {question: "Which?", choices: [" red", " green"], answer: "green"}
""",
        "utf-8",
    )
    result = run(pytester, "--promptfmt-scoring", "--snapshot-update", "-m", "promptfmt_scoring")
    result.assert_outcomes(failed=1, deselected=1)
    result.stdout.fnmatch_lines(["PF701 *", "  at: choices.yaml:*", "*' green' differs only in spaces*"])


def test_code_that_may_not_run_skips(pytester: pytest.Pytester) -> None:
    path = write(pytester, SOUND)
    path.write_text(path.read_text("utf-8") + "process_results: !function scorer.judge\n", "utf-8")
    (pytester.path / "scorer.py").write_text("def judge(doc, results):\n    return {'acc': 1.0}\n", "utf-8")
    run(pytester, "--promptfmt-scoring", "--promptfmt-no-code", "--snapshot-update").assert_outcomes(
        passed=1, skipped=2
    )


def test_user_code_filters_and_scores_as_it_is(pytester: pytest.Pytester) -> None:
    path = write(pytester, SOUND)
    text = path.read_text("utf-8").replace("{function: take_first}", "{function: custom, filter_fn: !function f.pick}")
    path.write_text(text + "process_results: !function f.judge\n", "utf-8")
    (pytester.path / "f.py").write_text(
        "def pick(resps, docs):\n    return [r[0] for r in resps]\n\n"
        "def judge(doc, results):\n    return {'exact_match': float(results[0] == doc['answer'])}\n",
        "utf-8",
    )
    run(pytester, "--promptfmt-scoring", "--snapshot-update").assert_outcomes(passed=3)


def test_completions_beside_the_task_are_tried_and_bad_lines_are_told(pytester: pytest.Pytester) -> None:
    write(pytester, SOUND)
    sidecar = pytester.path / "capitals.completions.jsonl"
    sidecar.write_text('{"id": "mine", "completion": "It is B", "expected": null, "correct": false}\n', "utf-8")
    run(pytester, "--snapshot-update", "-m", "promptfmt_extraction").assert_outcomes(passed=1, deselected=2)
    assert "  own\n    mine                      OK" in (
        pytester.path / "__prompts__/capitals/capitals/extraction.txt"
    ).read_text("utf-8")
    for line, message in [
        ('{"completion": "B", "expectd": "B"}', "*completions.jsonl:2: unknown key 'expectd' of a completion*"),
        ('{"completion": "B", "correct": true, "doc": 7}', "*answers doc 7, but the last doc has the index 1"),
        ("{", "*completions.jsonl:2: invalid JSON*"),
    ]:
        sidecar.write_text(f"\n{line}\n", "utf-8")
        result = run(pytester, "-m", "promptfmt_extraction")
        result.assert_outcomes(failed=1, deselected=2)
        result.stdout.fnmatch_lines([message])
