"""`promptfmt freeze` keeps real rows of local data, redacted as told, with a note of where they are from."""

import json
from pathlib import Path

import pytest
from promptfmt_command import promptfmt

PEOPLE = [
    {"question": f"Who is {name}@example.org, {number}?", "tags": [name, number], "answer": name}
    for number, name in enumerate("abcdefgh")
]
TASK = "task: who\ntest_split: test\noutput_type: generate_until\ndoc_to_text: question\ndoc_to_target: answer\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "who.yaml").write_text(TASK, "utf-8")
    (tmp_path / "people.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PEOPLE), "utf-8")
    return tmp_path


def docs(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "who.docs.jsonl").read_text("utf-8").splitlines()]


def test_the_chosen_rows_are_kept_and_the_tests_use_them(folder: Path) -> None:
    done = promptfmt(folder, "freeze", "who.yaml", "--from", "people.jsonl", "--rows", "5,1")
    assert done.returncode == 0
    assert docs(folder) == [PEOPLE[1], PEOPLE[5]]
    note = json.loads((folder / "who.docs.origin.json").read_text("utf-8"))
    assert note == {"file": "people.jsonl", "split": "test", "rows": [1, 5]}
    shown = promptfmt(folder, "show", "who", "--profile", "plain", "--no-spaces")
    assert "Who is b@example.org, 1?" in shown.stdout
    again = promptfmt(folder, "freeze", "who.yaml", "--from", "people.jsonl")
    assert (again.returncode, "exists already" in again.stderr) == (2, True)


def test_local_files_of_the_task_are_read_and_a_seed_draws_the_same_rows(folder: Path) -> None:
    data = "dataset_path: json\ndataset_kwargs: {data_files: {test: people.jsonl}}\n"
    (folder / "who.yaml").write_text(TASK + data, "utf-8")
    drawn = [promptfmt(folder, "freeze", "who.yaml", "--seed", seed, "--stdout").stdout for seed in ("1", "1", "2")]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(json.loads(line) in PEOPLE for line in drawn[2].splitlines())
    assert not (folder / "who.docs.jsonl").exists()


def test_what_is_to_be_redacted_is_in_neither_file(folder: Path) -> None:
    rules = ["--redact", r"question~\S+@\S+=<mail>", "--redact", "tags=X"]
    done = promptfmt(folder, "freeze", "who.yaml", "--from", "people.jsonl", "--count", "1", *rules)
    assert done.returncode == 0
    assert docs(folder) == [{"question": "Who is <mail> 0?", "tags": ["X", 0], "answer": "a"}]
    assert "example.org" not in (folder / "who.docs.origin.json").read_text("utf-8")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--rows", "8"], "no row 8: the split has 8 rows"),
        (["--rows", "a"], "invalid --rows 'a'"),
        (["--redact", "questoin=x"], "no doc has the column 'questoin'\n  hint: did you mean 'question'?"),
        (["--redact", "x"], "invalid --redact 'x'"),
        (["--redact", "question~(=x"], "--redact 'question~(=x'"),
    ],
)
def test_what_makes_no_sense_is_told_and_nothing_is_written(folder: Path, args: list[str], told: str) -> None:
    done = promptfmt(folder, "freeze", "who.yaml", "--from", "people.jsonl", *args)
    assert (done.returncode, told in done.stderr) == (2, True)
    assert not (folder / "who.docs.jsonl").exists()


def test_every_task_of_a_folder_is_frozen_and_the_rest_is_named(folder: Path) -> None:
    data = "dataset_path: json\ndataset_kwargs: {data_files: {test: people.jsonl}}\n"
    for name in ("a", "b"):
        (folder / f"{name}.yaml").write_text(TASK.replace("who", name) + data, "utf-8")
    done = promptfmt(folder, "freeze", ".", "--count", "2", "--redact", "tags=X")
    assert (done.returncode, "who: " in done.stderr) == (1, True), "that one names no dataset"
    for name in ("a", "b"):
        assert len((folder / f"{name}.docs.jsonl").read_text("utf-8").splitlines()) == 2
        assert json.loads((folder / f"{name}.docs.origin.json").read_text("utf-8"))["redacted"] == ["tags"]
    (folder / "a.docs.jsonl").write_text("", "utf-8")
    assert "a.docs.jsonl already exists, and was not changed" in promptfmt(folder, "freeze", ".").stdout
    assert (folder / "a.docs.jsonl").read_text("utf-8") == ""
    assert promptfmt(folder, "freeze", ".", "--from", "people.jsonl").returncode == 2


def test_the_split_of_shots_is_frozen_and_checked_as_well(folder: Path) -> None:
    data = "dataset_path: json\ndataset_kwargs: {data_files: {test: people.jsonl, dev: shown.jsonl}}\n"
    (folder / "who.yaml").write_text(f"{TASK}{data}fewshot_split: dev\nnum_fewshot: 4\n", "utf-8")
    (folder / "shown.jsonl").write_bytes((folder / "people.jsonl").read_bytes())
    assert promptfmt(folder, "freeze", ".", "--count", "2", "--shots").returncode == 0
    assert docs(folder) == PEOPLE[:2]
    assert len((folder / "who.docs.dev.jsonl").read_text("utf-8").splitlines()) == 5, "for four shots"
    assert json.loads((folder / "who.dev.docs.origin.json").read_text("utf-8"))["split"] == "dev"
    (folder / "shown.jsonl").write_text('{"query": "Who?", "tags": [], "answer": "a"}\n', "utf-8")
    done = promptfmt(folder, "freeze", ".", "--check")
    assert done.returncode == 1
    assert done.stdout == "who.docs.dev.jsonl: the columns of the dataset changed; removed: question; new: query\n"
    done = promptfmt(folder, "freeze", "who.yaml", "--shots", "--split", "dev")
    assert (done.returncode, "--shots cannot be combined with" in done.stderr) == (2, True)


def test_docs_whose_columns_the_dataset_has_no_more_are_named(folder: Path) -> None:
    data = "dataset_path: json\ndataset_kwargs: {data_files: {test: people.jsonl}}\n"
    (folder / "who.yaml").write_text(TASK + data, "utf-8")
    assert promptfmt(folder, "freeze", "who.yaml").returncode == 0
    assert promptfmt(folder, "freeze", ".", "--check").returncode == 0
    rows = [{"query": row["question"], "tags": row["tags"], "answer": row["answer"]} for row in PEOPLE]
    (folder / "people.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    done = promptfmt(folder, "freeze", ".", "--check")
    assert done.returncode == 1
    assert done.stdout == "who.docs.jsonl: the columns of the dataset changed; removed: question; new: query\n"
    assert docs(folder)[0] == PEOPLE[0], "nothing is written"


def test_docs_of_a_file_of_the_command_line_are_checked_against_that_file_alone(folder: Path) -> None:
    assert promptfmt(folder, "freeze", "who.yaml", "--from", "people.jsonl").returncode == 0
    done = promptfmt(folder, "freeze", "who.yaml", "--check")
    assert (done.returncode, "name that file with --from" in done.stderr) == (1, True)
    assert promptfmt(folder, "freeze", "who.yaml", "--check", "--from", "people.jsonl").returncode == 0


def test_rows_are_chosen_by_the_branches_that_they_take_the_task_through(folder: Path) -> None:
    text = TASK.replace("question\n", "\"{% if answer > 'e' %}Late: {% endif %}{{question}}\"\n", 1)
    (folder / "who.yaml").write_text(text, "utf-8")
    done = promptfmt(folder, "freeze", "who.yaml", "--from", "people.jsonl", "--count", "2", "--cover")
    assert done.returncode == 0
    assert docs(folder) == [PEOPLE[0], PEOPLE[5]]
    assert done.stderr.startswith("who: 2 rows (of the first 8) run ")
    done = promptfmt(folder, "freeze", "who.yaml", "--from", "people.jsonl", "--cover", "--seed", "1", "--force")
    assert (done.returncode, "--cover cannot be combined with" in done.stderr) == (2, True)
