"""The file that keeps what a model answered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from pytest_promptfmt.core.errors import ModelError
from pytest_promptfmt.models.model import Answer, Ask, Generation, Likelihood
from pytest_promptfmt.models.recording import (
    AnswerRecorder,
    RecordingEntry,
    ReplayModel,
    join_parts,
    read_entries,
    write_entries,
)

FACTS = {"torch": "2.13.0"}


def entry(ask: Ask, answer: Answer, *, model: str = "hf:m", doc: int = 0) -> RecordingEntry:
    place = {"task": "t@mcqa", "profile": "plain"}
    return RecordingEntry(**place, doc=doc, request=0, key=ask.key, answer=answer, sent=None, model=model, facts=FACTS)


def keep(path: Path, *entries: RecordingEntry) -> None:
    recorder = AnswerRecorder(path)
    for each in entries:
        recorder.keep(each)
    recorder.close()


def likelihood(*logprobs: float) -> Likelihood:
    return Likelihood(logprobs=logprobs, is_greedy=False)


@given(
    text=st.text(),
    logprobs=st.lists(st.floats(-50, 0).map(lambda value: round(value, 6)), min_size=1),
    context=st.text(),
)
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, text: str, logprobs: list[float], context: str
) -> None:
    path = tmp_path_factory.mktemp("recording") / "r.jsonl"
    entries = [
        entry(Ask(context=context), Generation(text=text, finish="stop", tokens=3), doc=0),
        entry(Ask(context=context, continuation=" A"), likelihood(*logprobs), doc=1),
    ]
    write_entries(path, entries)
    assert read_entries(path) == entries


def test_the_order_of_writing_does_not_matter(tmp_path: Path) -> None:
    entries = [
        entry(Ask(context=f"c{doc}"), Generation(text="x", finish="end", tokens=1), doc=doc) for doc in range(12)
    ]
    write_entries(tmp_path / "one.jsonl", entries)
    write_entries(tmp_path / "two.jsonl", reversed(entries))
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()


def test_a_key_is_that_of_exactly_what_is_asked() -> None:
    asks = [
        Ask(context="Answer:"),
        Ask(context="Answer: "),
        Ask(context="Answer:", continuation=" A"),
        Ask(context="Answer:", continuation="A"),
        Ask(context="Answer:", stop=("\n",)),
        Ask(context="Answer:", max_tokens=5),
    ]
    assert len({ask.key for ask in asks}) == len(asks)
    assert Ask(context="Answer:", context_ids=(1,)).key == asks[0].key


def test_what_a_broken_off_run_kept_is_taken_up(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    first, second = Ask(context="one"), Ask(context="two")
    keep(path, entry(first, Generation(text="1", finish="stop", tokens=1)))
    [part] = tmp_path.glob("*.part")
    part.write_text(part.read_text() + '{"task": "half a li')  # killed while writing
    assert not path.exists()
    again = AnswerRecorder(path)
    known = again.known(first, "hf:m")
    assert known is not None
    assert known.answer == Generation(text="1", finish="stop", tokens=1)
    assert again.known(first, "hf:other") is None
    keep(path, entry(second, Generation(text="2", finish="stop", tokens=1)))
    join_parts(path)
    assert {one.key for one in read_entries(path)} == {first.key, second.key}
    assert [file.name for file in tmp_path.iterdir()] == ["r.jsonl"]


def test_parts_of_several_runs_are_joined(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    for text in ("one", "two"):
        keep(path, entry(Ask(context=text), Generation(text=text, finish="end", tokens=1)))
    join_parts(path)
    assert len(read_entries(path)) == 2


def test_a_later_answer_replaces_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write_entries(path, [entry(Ask(context="c"), Generation(text="old", finish="end", tokens=1))])
    keep(path, entry(Ask(context="c"), Generation(text="new", finish="end", tokens=1)))
    join_parts(path)
    [only] = read_entries(path)
    assert isinstance(only.answer, Generation)
    assert only.answer.text == "new"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not a line of a recording"),
        ("[]", "not a line of a model recording"),
        ('{"key": "k"}', "is missing"),
        (json.dumps({"completion": "A", "doc": 0}), "--promptfmt-record"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "r.jsonl"
    write_entries(path, [entry(Ask(context="c"), Generation(text="x", finish="end", tokens=1))])
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ModelError) as caught:
        read_entries(path)
    assert says in str(caught.value)
    assert caught.value.position is not None
    assert caught.value.position.line == 2


def test_a_missing_file_an_empty_one_and_one_of_two_models_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with pytest.raises(ModelError, match="cannot be read"):
        ReplayModel(path)
    path.write_text("")
    with pytest.raises(ModelError, match="empty"):
        ReplayModel(path)
    answer = Generation(text="x", finish="end", tokens=1)
    write_entries(path, [entry(Ask(context="c"), answer), entry(Ask(context="c"), answer, model="tiny")])
    with pytest.raises(ModelError, match="hf:m, tiny"):
        ReplayModel(path)


def test_a_prompt_that_changed_has_no_recording(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write_entries(path, [entry(Ask(context="Answer:", continuation=" A"), likelihood(-0.5))])
    model = ReplayModel(path)
    [answer] = model.loglikelihood([Ask(context="Answer:", continuation=" A")])
    assert answer.total == -0.5
    with pytest.raises(ModelError, match="it changed after 'hf:m' was recorded"):
        list(model.loglikelihood([Ask(context="Answer: ", continuation="A")]))
