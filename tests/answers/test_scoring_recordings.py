"""Recordings replayed: changed verdicts listed, bad lines told by number, big files in little memory."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.answers.completions import Chain
from pytest_promptfmt.answers.recordings import read_recording
from pytest_promptfmt.answers.replaying import Replay, replayed
from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.errors import ScoringError, TooSlowError
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.recorded import BadRecord, Recorded
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.tasks.renderer import TaskRenderer

DOCS = [{"question": "6 * 7?", "answer": "42"}, {"question": "1 + 1?", "answer": "2"}]


def task(pattern: str = r"answer is (\d+)") -> Task:
    steps = [{"function": "regex", "regex_pattern": pattern}, {"function": "take_first"}]
    return Task(
        name="t",
        doc_to_text="{{question}}",
        doc_to_target="{{answer}}",
        filter_list=[{"name": "strict", "filter": steps}],
        generation_kwargs={"until": ["\n\n"]},
    )


def instances(of: Task) -> Any:
    return tuple(TaskRenderer(of, TaskDocs.in_memory(DOCS)).instances())


def replay(of: Task, instances: Sequence[Instance], path: Path) -> Replay:
    result = Replay()
    for record in replayed(of, instances, path, {instance.index: instance.doc for instance in instances}.get):
        result.add(record)
    return result


def test_changed_verdicts_are_listed_by_record(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    lines = [
        {"doc": 0, "completion": "The answer is 42.", "expected": "42", "correct": True},
        {"doc": 1, "completion": "The answer is 2.", "expected": "2", "correct": True},
        {"doc": 1, "completion": "I do not know", "expected": "[invalid]", "correct": False},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    same = replay(task(), instances(task()), path)
    assert same.summary() == "0 of 3 verdicts changed; 2 right, 0 wrong, 1 not extracted"
    lossy = task(r"answer is (\d)")
    result = replay(lossy, instances(lossy), path)
    assert result.summary() == "1 of 3 verdicts changed; 1 right, 1 wrong, 1 not extracted"
    assert [(one.number, one.was, one.now) for one in result.changes] == [(1, "'42', right", "'4', wrong")]


def test_bad_lines_are_told_by_number_and_nothing_else_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    good = b'{"doc": 0, "completion": "The answer is 42.", "expected": "42"}\n'
    path.write_bytes(good + b"{broken\n" + b"[1]\n" + b'{"doc": 0}\n' + b'{"doc": 9, "completion": "x"}\n\xff\n' + good)
    result = replay(task(), instances(task()), path)
    assert [bad.number for bad in result.bad] == [2, 3, 4, 5, 6]
    assert result.results["right"] == 2
    assert "5 records cannot be used" in result.summary()


def test_samples_that_lm_eval_logged_are_read_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "samples_t.jsonl"
    sample = {
        "doc_id": 0,
        "doc": DOCS[0],
        "target": "42",
        "arguments": {"gen_args_0": {"arg_0": "6 * 7?", "arg_1": {"until": ["\n\n"]}}},
        "resps": [["The answer is 42.\n\nNext"]],
        "filtered_resps": ["42"],
        "filter": "strict",
        "metrics": ["exact_match"],
        "exact_match": 1.0,
    }
    other = {**sample, "filter": "flexible", "filtered_resps": ["42."]}
    path.write_text(json.dumps(sample) + "\n" + json.dumps(other) + "\n", "utf-8")
    result = replay(task(), (), path)
    assert (result.verdicts, result.changed) == (1, 0)
    assert [(bad.number, bad.reason) for bad in result.bad] == [
        (2, "unknown filter pipeline 'flexible'; known: strict")
    ]


def test_what_a_model_of_a_run_generated_is_read_with_its_request(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text('{"kind": "generate", "key": "k", "text": "The answer is 42.", "doc": 0, "task": "t"}\n', "utf-8")
    assert [*read_recording(path)] == [
        Recorded(number=1, doc_index=0, completion="The answer is 42.", task="t", request="k")
    ]


def test_a_line_names_its_doc_by_number_or_is_for_the_first(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    keys: list[dict[str, object]] = [
        {},
        {"doc": 3},
        {"doc_id": 5},
        {"doc": {"q": "x"}},
        {"doc": {"q": "x"}, "doc_id": 9},
    ]
    path.write_text("".join(json.dumps({"completion": "A", **each}) + "\n" for each in keys), "utf-8")
    assert [record.doc_index for record in read_recording(path) if isinstance(record, Recorded)] == [0, 3, 5, 3, 9]


def test_big_recordings_take_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "big.jsonl"
    one = json.dumps({"doc": 0, "completion": "A " * 400})
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{one}\n" for _ in range(20_000))
    size = path.stat().st_size
    tracemalloc.start()
    count = sum(1 for record in read_recording(path) if isinstance(record, Recorded))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 20_000
    assert size > 15_000_000
    assert peak < 8_000_000


def test_lines_that_would_break_a_reader_are_bad_records(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    good = '{"doc": 0, "completion": "The answer is 42."}\n'
    long = json.dumps({"doc": 0, "completion": "A" * (1 << 26)})
    path.write_text(f"{good}{'[' * 200_000}\n{good}{long}\n{good}", "utf-8")
    records = list(read_recording(path))
    assert [type(record) for record in records] == [Recorded, BadRecord, Recorded, BadRecord, Recorded]
    assert [record.number for record in records] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"doc": [0], "completion": "x"}', "`doc` is"),
        ('{"doc": 1e400, "completion": "x"}', "`doc` is inf"),
        ('{"doc": 0, "completion": "x", "pipeline": [1], "expected": "42"}', "`pipeline` is"),
        ('{"doc": 0, "completion": "x", "correct": "no"}', "`correct` is 'no'"),
        ('{"doc_id": 0, "resps": [["x"]], "filtered_resps": ["x"], "filter": {"a": 1}}', "`filter` is"),
        (
            '{"doc_id": 0, "resps": [["x"]], "filtered_resps": ["x"], "metrics": 5}',
            "not a line of lm-eval's --log_samples",
        ),
        ('{"kind": "generate", "key": "k", "text": "x", "doc": true}', "the record has no generated text"),
        ('{"kind": "generate", "key": "k", "text": null, "doc": 0}', "the record has no generated text"),
        ("\x00", "invalid JSON"),
    ],
)
def test_values_of_another_type_make_a_bad_record_and_no_more(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "r.jsonl"
    good = '{"doc": 0, "completion": "The answer is 42.\\u0000\\ud800", "expected": "42"}\n'
    path.write_text(f"\ufeff{good}{line}\n{good}", "utf-8")
    result = replay(task(), instances(task()), path)
    assert (result.results["right"], result.changed, [bad.number for bad in result.bad]) == (2, 0, [2])
    assert result.bad[0].reason.startswith(reason)


@pytest.mark.slow
def test_a_filter_that_hangs_on_every_record_ends_the_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Chain.read, "__kwdefaults__", {"seconds": 0.02})
    path = tmp_path / "r.jsonl"
    path.write_text(('{"doc": 0, "completion": "' + "a" * 40 + '!"}\n') * 40, "utf-8")
    of = task("((?:a+)+)$")
    with pytest.raises(
        TooSlowError, match=r"strict.*record 10 did not finish.*and 9 more of 10 completions are too slow"
    ):
        replay(of, instances(of), path)


def test_a_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScoringError, match="cannot be read"):
        list(read_recording(tmp_path / "none.jsonl"))
