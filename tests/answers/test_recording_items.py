"""Recordings as pytest items: found beside the task or named, verdicts compared with their snapshot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# pytester forgets what a run imports: each would import these again, and numpy warns of that.
import numpy  # noqa: F401
import pytest
from plugin_project import Project

import pytest_promptfmt.answers.replaying
import pytest_promptfmt.plugin.session  # noqa: F401

TASK = """\
task: sums
output_type: generate_until
doc_to_text: "{{question}}\\nAnswer:"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n\\n"]}
filter_list:
  - name: strict
    filter:
      - {function: regex, regex_pattern: "PATTERN"}
      - {function: take_first}
"""
DOCS = [{"question": f"{number} + 1?", "answer": str(number + 1)} for number in range(40)]
WHOLE = r"answer is (-?[0-9]+)"
ONE_DIGIT = r"answer is (-?[0-9])"


def write(pytester: pytest.Pytester, pattern: str = WHOLE, more: str = "") -> Path:
    path = pytester.path / "sums.yaml"
    path.write_text(TASK.replace("PATTERN", pattern) + more, "utf-8")
    (pytester.path / "sums.docs.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in DOCS), "utf-8")
    return path


def record(pytester: pytest.Pytester, name: str, lines: list[Any]) -> Path:
    path = pytester.path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines), "utf-8")
    return path


def answered(doc: int, answer: object, **more: Any) -> dict[str, Any]:
    return {"doc": doc, "completion": f"The answer is {answer}.", **more}


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    chosen = ["--promptfmt", "--promptfmt-profile=plain", "-m", "promptfmt_recording"]
    return pytester.runpytest_inprocess(*chosen, "-p", "no:cacheprovider", *options)


def test_a_changed_regex_lists_the_verdicts_that_it_changes(pytester: pytest.Pytester) -> None:
    write(pytester)
    record(pytester, "sums.recording.jsonl", [answered(doc, doc + 1) for doc in range(40)])
    run(pytester, "--snapshot-update").assert_outcomes(passed=1, deselected=3)
    run(pytester).assert_outcomes(passed=1, deselected=3)
    write(pytester, ONE_DIGIT)
    result = run(pytester)
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(
        [
            "sums [[]recording[]]: 31 of 40 verdicts changed; 9 right, 31 wrong, 0 not extracted",
            "  record 10: right '10' → wrong '1'",
            "accept: pytest --promptfmt *sums.yaml::sums::recording --snapshot-update",
        ]
    )


def test_what_is_not_found_any_more_is_not_called_wrong(pytester: pytest.Pytester) -> None:
    write(pytester)
    record(pytester, "sums.tuned.recording.jsonl", [answered(0, 1), answered(1, 7)])
    run(pytester, "--snapshot-update").assert_outcomes(passed=1, deselected=3)
    write(pytester, "result: ([0-9]+)")
    result = run(pytester)
    result.stdout.fnmatch_lines(
        [
            "*recording-tuned*2 of 2 verdicts changed; 0 right, 0 wrong, 2 not extracted",
            "  record 1: right '1' → not extracted",
            "  record 2: wrong '7' → not extracted",
        ]
    )


def test_what_the_recording_tells_counts_until_there_is_a_snapshot(pytester: pytest.Pytester) -> None:
    write(pytester, ONE_DIGIT)
    record(
        pytester, "sums.recording.jsonl", [answered(9, 10, expected="10", correct=True), answered(0, 1, expected="1")]
    )
    result = run(pytester)
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(
        [
            "*there is no snapshot yet; 1 of 2 verdicts changed; 1 right, 1 wrong, 0 not extracted",
            "1 of 2 verdicts differ from the recorded ones:",
            "  record 1, doc 9, strict: '10', right → '1', wrong",
        ]
    )
    accepted = run(pytester, "--snapshot-update")
    accepted.assert_outcomes(passed=1, deselected=3, warnings=1)
    accepted.stdout.fnmatch_lines(["*1 of 2 verdicts differ from the recorded ones, such as record 1:*"])


def test_bad_records_are_told_by_number_and_the_others_count(pytester: pytest.Pytester) -> None:
    write(pytester)
    record(pytester, "sums.recording.jsonl", [answered(0, 1), "{broken", answered(400, 1), answered(1, 2)])
    result = run(pytester, "--snapshot-update")
    result.assert_outcomes(passed=1, deselected=3, warnings=1)
    result.stdout.fnmatch_lines(["*sums.recording.jsonl: 2 records cannot be used, such as record 2: invalid JSON:*"])
    stored = (pytester.path / "__prompts__/sums/sums/recording.txt").read_text("utf-8")
    assert "strict: 2 right, 0 wrong, 0 not extracted" in stored
    assert "3  there is no doc 400" in stored


def test_recordings_are_named_in_the_metadata_or_lie_where_lm_eval_wrote_them(pytester: pytest.Pytester) -> None:
    write(pytester, more='metadata:\n  promptfmt:\n    recordings: ["runs/*.jsonl"]\n')
    record(pytester, "runs/small.jsonl", [answered(0, 1)])
    sample = {
        "doc_id": 0,
        "doc": DOCS[0],
        "target": "1",
        "resps": [["The answer is 1."]],
        "filtered_resps": ["1"],
        "filter": "strict",
        "metrics": ["exact_match"],
        "exact_match": 1.0,
    }
    record(pytester, "samples_sums_2026-01-01T00-00-00.jsonl", [sample])
    run(pytester, "--snapshot-update").assert_outcomes(passed=2, deselected=3)
    names = sorted(path.stem for path in (pytester.path / "__prompts__/sums/sums").glob("recording*"))
    assert names == ["recording-samples_sums_2026-01-01T00-00-00", "recording-small"]


def test_a_recording_that_is_gone_leaves_an_unused_snapshot(pytester: pytest.Pytester) -> None:
    write(pytester)
    path = record(pytester, "sums.recording.jsonl", [answered(0, 1)])
    run(pytester, "--snapshot-update").assert_outcomes(passed=1, deselected=3)
    kept = run(pytester, "-o", "promptfmt_scoring=none", "-m", "promptfmt_snapshot", "--snapshot-update")
    kept.stdout.no_fnmatch_line("*deleted*")
    path.unlink()
    gone = Project(pytester).run("--promptfmt-profile=plain", "--snapshot-update")
    gone.stdout.fnmatch_lines(["*1 unused snapshot deleted*"])


def test_records_of_other_tasks_are_left_out(pytester: pytest.Pytester) -> None:
    write(pytester)
    record(pytester, "sums.recording.jsonl", [answered(0, 1, task="products")])
    run(pytester).assert_outcomes(skipped=1, deselected=3)


def test_a_recording_that_does_not_exist_is_told(pytester: pytest.Pytester) -> None:
    write(pytester, more="metadata:\n  promptfmt:\n    recordings: [nowhere.jsonl]\n")
    result = Project(pytester).run("--promptfmt-profile=plain", "-k", "load")
    result.stdout.fnmatch_lines(["*sums.yaml:13:*there is no recording 'nowhere.jsonl'*"])
