"""`promptfmt compare` on runs of lm-eval 0.4.13 with two tiny models, one edited task and a chat template."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from promptfmt_command import git
from typer.testing import CliRunner

from pytest_promptfmt.cli import app

RUNS = Path(__file__).parents[1] / "answers" / "runs"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RUNS, tmp_path / "runs"))


def compare(*args: str | Path) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(app, ["compare", *map(str, args), "--json"])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done.exit_code, json.loads(done.stdout)


def rewrite(folder: Path, task: str, change: Callable[[dict[str, Any]], object]) -> None:
    [file] = folder.glob(f"samples_{task}_*.jsonl")
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    for line in lines:
        change(line)
    file.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")


def test_two_models_were_asked_the_same_and_every_hash_is_reproduced(runs: Path) -> None:
    status, data = compare(runs / "tiny", runs / "other-model")
    assert status == 0
    assert [(task["task"], task["verdict"], task["same"]) for task in data["tasks"]] == [
        ("letters", "same", 3),
        ("words", "same", 3),
    ]
    assert data["hashes"] == {name: {"checked": 29, "reproduced": 29, "wrong": []} for name in "AB"}


def test_an_edit_is_named_with_the_line_that_holds_the_key_and_the_commit(runs: Path) -> None:
    tasks = runs / "tasks"
    git(runs, "init", "-q", "-b", "main")
    git(runs, "add", ".")
    git(runs, "commit", "-qm", "one")
    shots = tasks / "letters.yaml"
    shots.write_text(shots.read_text("utf-8").replace("Question: {{", "Q: {{"), "utf-8")
    git(runs, "commit", "-qam", "Shorter cue")
    for name, revision in (("tiny", "main~1"), ("edited", "main")):
        [file] = (runs / name).glob("results_*.json")
        commit = git(runs, "rev-parse", revision).strip()
        file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), "git_hash": commit}), "utf-8")
    status, data = compare(runs / "tiny", runs / "edited", "--repository", tasks)
    letters, words = data["tasks"]
    assert (status, letters["verdict"], words["verdict"]) == (1, "different", "same")
    assert letters["differing"] == [{"A": number, "B": number, "parts": ["text"]} for number in range(3)]
    [cause] = letters["causes"]
    assert (cause["kind"], cause["name"], letters["unexplained"]) == ("edit", "doc_to_text", [])
    assert cause["place"].endswith("tasks/letters.yaml:8:1")
    assert [commit.partition(" ")[2] for commit in cause["commits"]] == ["Shorter cue"]
    done = CliRunner().invoke(app, ["compare", str(runs / "tiny"), str(runs / "edited")])
    assert (
        "letters: different; 0 samples with the same requests, 3 different (3 in text)\n  because of edit doc_to_text:"
        in done.stdout
    )
    assert "  both have version 1.0\n" in done.stdout


def test_a_chat_template_explains_contexts_and_continuations(runs: Path) -> None:
    status, data = compare(runs / "tiny", runs / "chat")
    assert status == 1
    for task in data["tasks"]:
        assert [(cause["kind"], cause["name"]) for cause in task["causes"]] == [("template", "chat_template_sha")]
        assert task["unexplained"] == []


def test_a_continuation_that_lm_eval_does_not_hash_is_compared(runs: Path) -> None:
    def change(line: dict[str, Any]) -> None:
        line["arguments"]["gen_args_1"]["arg_1"] = " C"

    rewrite(runs / "other-model", "letters", change)
    status, data = compare(runs / "tiny", runs / "other-model")
    assert (status, data["hashes"]["B"]["reproduced"]) == (1, 29)
    letters = data["tasks"][0]
    assert (letters["differing"][0]["parts"], letters["unexplained"]) == (["request"], ["request"]), (
        "nothing explains it"
    )


def test_a_file_without_texts_is_unknown_where_its_hashes_are_the_same(runs: Path) -> None:
    for name in ("tiny", "other-model"):
        rewrite(runs / name, "words", lambda line: line.pop("arguments"))
    status, data = compare(runs / "tiny", runs / "other-model")
    assert (status, data["tasks"][1]["verdict"]) == (1, "unknown")


def test_a_file_that_was_edited_is_noticed(runs: Path) -> None:
    rewrite(runs / "tiny", "words", lambda line: line.update(target="x") if line["doc_id"] == 1 else None)
    status, data = compare(runs / "tiny", runs / "other-model")
    assert status == 1
    assert [name.partition(":")[2] for name in data["hashes"]["A"]["wrong"]] == ["2 target_hash", "5 target_hash"]


def test_samples_of_one_run_alone_are_counted(runs: Path) -> None:
    [file] = (runs / "tiny").glob("samples_letters_*.jsonl")
    file.write_text("".join(file.read_text("utf-8").splitlines(keepends=True)[:2]), "utf-8")
    letters = compare(runs / "tiny", runs / "other-model")[1]["tasks"][0]
    assert (letters["verdict"], letters["same"], letters["only_in_A"], letters["only_in_B"]) == ("different", 2, 0, 1)


def recording(path: Path, *, key: str = "k", sent: str = "s", version: str = "1") -> Path:
    facts = {"tokenizers": version}
    lines = [
        {"task": "t", "profile": "plain", "doc": doc, "request": 0, "key": f"{key}{doc}", "sent": f"{sent}{doc}"}
        for doc in range(2)
    ]
    path.write_text("".join(json.dumps({**line, "model": "tiny", "with": facts}) + "\n" for line in lines), "utf-8")
    return path


def test_recordings_know_the_tokens_too(tmp_path: Path) -> None:
    first = recording(tmp_path / "a.jsonl")
    assert compare(first, first)[1]["tasks"][0]["tokens"] == "same"
    status, data = compare(first, recording(tmp_path / "b.jsonl", sent="z", version="2"))
    [task] = data["tasks"]
    assert (status, task["verdict"], task["tokens"]) == (0, "same", "different"), "the bytes are the same"
    assert [(cause["kind"], cause["name"]) for cause in task["causes"]] == [("tokenizer", "tokenizers")]
    status, data = compare(first, recording(tmp_path / "c.jsonl", key="other"))
    assert (status, data["tasks"][0]["unexplained"]) == (1, ["request"])


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nowhere", "nowhere"),
        (".", "has several runs"),
        ("tasks", "has no samples_*.jsonl"),
        ("docs.jsonl", "is not a recording"),
    ],
)
def test_a_place_without_a_run_is_said_in_a_line(runs: Path, name: str, told: str) -> None:
    done = CliRunner().invoke(app, ["compare", str(runs / name), str(runs / "tiny")])
    assert (done.exit_code, told in done.stderr) == (2, True)
