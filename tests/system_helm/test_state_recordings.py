"""A `scenario_state.json` as a recording of a YAML task: read state by state, replayed through the task's filters."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from plugin_project import Project

from pytest_promptfmt.answers.recordings import read_recording
from pytest_promptfmt.answers.replaying import Replay, replayed
from pytest_promptfmt.core.errors import ScoringError
from pytest_promptfmt.core.recorded import BadRecord, Recorded
from pytest_promptfmt.core.task import Task

FILTER = [{"function": "regex", "regex_pattern": "answer is ([A-D])"}, {"function": "take_first"}]
LETTERS = Task(
    name="t",
    doc_to_text="{{question}}",
    doc_to_target="{{answer}}",
    filter_list=[{"name": "strict", "filter": FILTER}],
    generation_kwargs={"until": ["\n\n"]},
)


def state(text: str, gold: str, **more: Any) -> dict[str, Any]:
    return {
        "instance": {
            "input": {"text": "6 * 7?"},
            "references": [{"output": {"text": gold}, "tags": ["correct"]}, {"output": {"text": "7"}, "tags": []}],
        },
        "output_mapping": {"A": gold, "B": "7"},
        "result": {"success": True, "completions": [{"text": text, "logprob": -1.4, "tokens": []}]},
        **more,
    }


def write(folder: Path, states: list[Any], **more: Any) -> Path:
    path = folder / "scenario_state.json"
    path.write_text(json.dumps({"adapter_spec": {"method": "x"}, "request_states": states, **more}, indent=2), "utf-8")
    return path


def test_the_most_likely_completion_of_each_state_is_replayed(tmp_path: Path) -> None:
    several = state(
        "",
        "42",
        result={
            "completions": [
                {"text": "answer is B", "logprob": -3},
                {"text": "answer is A", "logprob": -1},
                {"text": "no", "logprob": -2},
            ]
        },
    )
    path = write(tmp_path, [state(" The answer is A", "42"), several, state("no", "42"), {"instance": {}}])
    records = list(read_recording(path))
    assert [type(record) for record in records] == [Recorded, Recorded, Recorded, BadRecord]
    result = Replay()
    for record in replayed(LETTERS, (), path, lambda _number: None):
        result.add(record)
    assert result.results == {"right": 2, "not extracted": 1}


def test_states_that_cannot_be_replayed_are_bad_records_with_the_reason(tmp_path: Path) -> None:
    without, untold = state("A", "42"), state("A", "42", result=None)
    del without["instance"]["references"]
    wrong = state("A", "42", result={"completions": [{"logprob": -1}]})
    reasons = [one.reason for one in read_recording(write(tmp_path, [without, untold, wrong]))]  # type: ignore[union-attr]
    assert reasons == [
        "request_states[0]: `instance.references` is missing, but answers are compared with the references",
        "no completion in this request state",
        "request_states[2]: a completion has no text",
    ]


def test_a_state_that_is_cut_off_is_named_and_the_ones_before_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, [state("A", "42")] * 3)
    text = path.read_text("utf-8")
    path.write_text(text[:-40], "utf-8")
    *read, bad = read_recording(path)
    assert [type(record) for record in read] == [Recorded, Recorded]
    lines = text[:-40].rstrip().count("\n") + 1
    reason = f"the rest of the file cannot be read: the text ends before it is complete, line {lines}"
    assert bad == BadRecord(3, reason)


def test_a_file_of_this_shape_without_states_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "scenario_state.json"
    path.write_text('{"adapter_spec": {}, "other": []}', "utf-8")
    with pytest.raises(ScoringError, match="the file has no request_states"):
        list(read_recording(path))


@pytest.mark.slow
def test_big_recordings_take_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "big.json"
    with path.open("w", encoding="utf-8") as file:
        file.write('{"adapter_spec": {}, "request_states": [')
        file.write(",\n".join([json.dumps(state("A " * 400, "42"))] * 20_000))
        file.write("]}")
    tracemalloc.start()
    count = sum(1 for record in read_recording(path) if isinstance(record, Recorded))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 20_000
    assert path.stat().st_size > 15_000_000
    assert peak < 8_000_000


def test_a_recording_beside_a_yaml_task_is_an_item_of_that_task(project: Project) -> None:
    steps = [{"name": "strict", "filter": FILTER}]
    project.task(
        "sums.yaml", filter_list=steps, metadata={"promptfmt": {"docs": [{"question": "6*7?", "answer": "A"}]}}
    )
    write(project.root, [state("The answer is A", "42")]).rename(project.root / "sums.helm.scenario_state.json")
    chosen = ("--promptfmt-profile=plain", "-m", "promptfmt_recording or promptfmt_recorded")
    assert project.collected("--promptfmt", *chosen) == ["sums.yaml::sums::recording[helm]"]
    project.accept(*chosen)
    shown = project.snapshots()["__prompts__/sums/sums/recording-helm.txt"].decode()
    assert "1  right 'A'" in shown
