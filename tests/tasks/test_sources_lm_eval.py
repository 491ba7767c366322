from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.core.errors import FunctionError, Position, SourceError
from pytest_promptfmt.core.task import UNSET, FunctionRef, Task, locate_nowhere
from pytest_promptfmt.systems.task_files import load_tasks, read_task_file
from pytest_promptfmt.tasks.recognition import kind_of, looks_like_task
from pytest_promptfmt.tasks.task_config import task_from_config
from pytest_promptfmt.tasks.task_file import TaskFile

MINIMAL = {"task": "t", "doc_to_text": "{{q}}", "doc_to_target": "a"}


def task(**keys: Any) -> Task:
    return task_from_config({**MINIMAL, **keys}, path=None, locate=locate_nowhere)


def refused(**keys: Any) -> SourceError:
    with pytest.raises(SourceError) as caught:
        task(**keys)
    return caught.value


def read(folder: Path, text: str, name: str = "t.yaml") -> TaskFile | None:
    (folder / name).write_text(text, encoding="utf-8")
    return read_task_file(folder / name)


TASK_TEXTS = [
    "task: a\ndoc_to_text: q\n",
    "# comment\n---\ntask: a\ndataset_path: json\n",
    "%YAML 1.1\n---\n'task': a\n\"output_type\": x\n",
    "{task: a, doc_to_text: '{{q}}'}",
    '{"task": "a",\n "dataset_path": "json"}',
    "--- {task: a, include: x}\n",
    "\ufefftask: a\r\ninclude: base\r\n",
    "task: a\rinclude: base\r",
    "  task: a\n  include: base\n",
    "task: a\ndoc_to_text: 'never closed\n",
    "task: a\n\tdoc_to_text: x\ninclude: y\n",
    "task:a\ndoc_to_text: x\n",
    "? task\n: a\ninclude: base\ndataset_name: b\n",
    "group: g\ntask:\n  - a\n",
    "task: a\nclass: !function task.A\n",
    "include: base\ndataset_name: x\n",
    "# a comment\n---\n    {task: a, doc_to_text: b}\n",
    "    task: a\n    doc_to_text: b\n",
]
OTHER_TEXTS = [
    "",
    "\n\n",
    "on: push\nconcurrency:\n  group: x\njobs:\n  build:\n    steps:\n      - task: x\n",
    "services:\n  web:\n    image: nginx\ninclude:\n  - other.yaml\n",
    "task: detect\nmode: train\nmodel: yolo.pt\nepochs: 3\n",
    "promptfmt:\n  task: a\n  doc_to_text: b\n",
    "profiles:\n  - plain\ninclude: x\n",
    "group: admins\nusers: [a, b]\n",
    "- task: a\n  doc_to_text: b\n",
    "apiVersion: v1\nkind: Pod\nmetadata:\n  name: task\n",
    "key: 'never closed\n",
    "\x00\x01\x02",
    " " * 1_000_000 + "task",
]


@pytest.mark.parametrize("text", TASK_TEXTS)
def test_bytes_of_a_task_whole_or_broken_are_recognised(text: str) -> None:
    assert looks_like_task(text.encode())


@pytest.mark.parametrize("text", OTHER_TEXTS)
def test_bytes_of_other_yaml_are_passed_over(text: str, tmp_path: Path) -> None:
    assert not looks_like_task(text.encode())
    assert read(tmp_path, text) is None


@pytest.mark.parametrize(("indent", "is_task"), [(100, True), (101, False)])
def test_keys_are_looked_for_up_to_some_indentation(indent: int, is_task: bool) -> None:
    assert looks_like_task(f"{' ' * indent}task: a\n{' ' * indent}doc_to_text: b\n".encode()) == is_task


def test_a_task_in_utf_16_is_recognised() -> None:
    assert looks_like_task("task: a\ninclude: b\n".encode("utf-16"))


def test_class_comes_before_group_before_task() -> None:
    assert kind_of({"task": 1, "group": 1, "class": 1}) == "class"
    assert kind_of({"task": 1, "group": 1}) == "group"
    assert kind_of({"task": 1}) == "task"
    assert kind_of({"include": 1}) is None


def test_a_broken_task_file_is_an_error_and_a_broken_other_file_is_not(tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        read(tmp_path, "task: a\ndoc_to_text: 'x\n")
    assert read(tmp_path, "jobs: 'x\n") is None


def test_a_huge_file_is_an_error_only_where_it_reads_like_a_task(tmp_path: Path) -> None:
    padding = "#" * 9 * 2**20
    assert read(tmp_path, f"jobs: x\n{padding}\n") is None
    with pytest.raises(SourceError, match="9 MiB"):
        read(tmp_path, f"task: a\ninclude: b\n{padding}\n")


def test_a_task_file_gives_one_task_with_typed_fields(tmp_path: Path) -> None:
    (tmp_path / "base").write_text("output_type: multiple_choice\ndoc_to_text: '{{q}}'\nfewshot_split: train\n")
    text = (
        "task: a\ninclude: base\ndataset_path: json\ndataset_kwargs: {data_files: x.jsonl}\ntest_split: test\n"
        "doc_to_target: 0\ndoc_to_choice: [x, y]\nnum_fewshot: 2\ntag: [s]\n"
        "fewshot_config: {sampler: first_n, split: null}\n"
        "process_docs: !function utils.f\nmetadata: {version: 1, promptfmt: {docs: []}}\n"
    )
    file = read(tmp_path, text)
    assert file is not None
    assert (file.kind, file.names, file.notes) == ("task", ("a",), ())
    (found,) = file.tasks
    assert (found.name, found.output_type, found.doc_to_target, found.doc_to_choice) == (
        "a",
        "multiple_choice",
        0,
        ["x", "y"],
    )
    assert (found.dataset.path, found.dataset.evaluation_split, found.dataset.fewshot_split) == (
        "json",
        "test",
        "train",
    )
    assert isinstance(found.dataset.process_docs, FunctionRef)
    assert (found.fewshot.sampler, found.fewshot.split, found.fewshot.doc_to_text) == ("first_n", None, UNSET)
    assert found.own_metadata == {"docs": []}
    assert list(found.config)[:3] == ["output_type", "doc_to_text", "fewshot_split"]
    assert found.position("doc_to_text") == Position(tmp_path / "base", 2, 1)


def test_defaults_are_those_of_lm_eval() -> None:
    found = task()
    assert (found.output_type, found.target_delimiter, found.fewshot_delimiter) == ("generate_until", " ", "\n\n")
    assert (found.num_fewshot, found.repeats, found.generation_kwargs) == (None, 1, None)


def test_an_explicit_null_in_fewshot_config_is_not_inherited() -> None:
    found = task(doc_to_choice=["a"], fewshot_config={"doc_to_choice": None}).fewshot
    assert found.doc_to_choice is None
    assert found.doc_to_text is UNSET


def test_metadata_that_is_no_mapping_is_wrapped() -> None:
    assert task(metadata=1.0).metadata == {"_metadata": 1.0}
    assert task(metadata=None).metadata == {}


def test_own_and_structural_keys_are_accepted_and_stay_in_config() -> None:
    found = task(formats="mcqa", template={"x": 1}, tag="t", task_list=[], task_alias="A", unsafe_code=True)
    assert found.config["formats"] == "mcqa"
    assert found.config["template"] == {"x": 1}


def test_what_lm_eval_accepts_is_accepted() -> None:
    task(description=False, doc_to_target=True, custom_dataset="ignored", process_results="ignored", doc_to_image=[1])
    task(fewshot_config={"fewshot_indices": [1, 2]}, generation_kwargs={"temperature": "0.5"}, metadata="1")
    task(fewshot_split="train", fewshot_config={"samples": "unused because there is a split"})


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"output_type": "multiple_choise"}, "did you mean 'multiple_choice'?"),
        ({"output_type": "greedy_until"}, "write output_type: generate_until"),
        ({"output_type": None}, "output_type must be text, not null"),
        ({"num_fewshot": "five"}, "num_fewshot must be a whole number or null, not 'five'"),
        ({"num_fewshot": 2.5}, "not 2.5"),
        ({"doc_to_txt": "x"}, "did you mean 'doc_to_text'?"),
        ({"sampler": "first_n"}, "write it under fewshot_config"),
        ({"doc_to_targets": 1}, "did you mean 'doc_to_target'?"),
        ({"fewshot_config": ["x"]}, "fewshot_config must be a mapping or null, not a list"),
        ({"fewshot_config": {"num_fewshot": 5}}, "belongs at the top level"),
        ({"fewshot_config": {"smapler": "x"}}, "did you mean 'sampler'?"),
        ({"fewshot_config": {"sampler": "frist_n"}}, "did you mean 'first_n'?"),
        ({"fewshot_config": {"sampler": None}}, "unknown sampler null"),
        ({"fewshot_config": {"samples": "x"}}, "a list of docs"),
        ({"fewshot_config": {"doc_to_text": ["x"]}}, "fewshot_config.doc_to_text must be"),
        ({"process_docs": "utils.process_docs"}, "write process_docs: !function utils.process_docs"),
        ({"doc_to_text": {"a": 1}}, "not a mapping"),
        ({"dataset_name": False}, "YAML reads yes, no, on and off"),
        ({"dataset_name": 2024}, "put the text in quotes"),
        ({"target_delimiter": None}, "target_delimiter must be text, not null"),
        ({"tag": 3}, "tag must be text or a list"),
        ({"tag": [3]}, "a tag must be text, not 3"),
        ({"task": ["a", "b"]}, "is a group"),
        ({"task": False}, "task must be text, not false"),
        ({"metric_list": ["acc"]}, "write `- metric: acc`"),
        ({"metric_list": "acc"}, "metric_list must be a list or null"),
        ({"filter_list": [{"filter": []}]}, "'name' is missing"),
        ({"filter_list": [{"name": "x", "filter": ["take_first"]}]}, "write `- function: take_first`"),
        ({"filter_list": [{"name": "x", "filter": "take_first"}]}, "`filter` must be a list of steps"),
        ({"generation_kwargs": ["until"]}, "generation_kwargs must be a mapping or null"),
        ({"generation_kwargs": {"temperature": "hot"}}, "temperature must be a number, not 'hot'"),
        ({"use_prompt": "qa-basic"}, "category:name"),
        ({"use_prompt": "qa-basic:q-newline-b"}, "did you mean 'q-newline-a'?"),
        ({"use_prompt": "qa-basics:q-newline-a"}, "did you mean 'qa-basic'?"),
        ({"use_prompt": "promptsource:x"}, "needs the promptsource package"),
        ({"use_prompt": "nowhere.yaml:x"}, "does not exist"),
    ],
)
def test_what_lm_eval_refuses_is_refused_with_advice(keys: dict[str, Any], said: str) -> None:
    assert said in str(refused(**keys))


def test_a_key_that_is_no_text_is_refused() -> None:
    with pytest.raises(SourceError, match="keys are text"):
        task_from_config({**MINIMAL, 5: 1}, path=None, locate=locate_nowhere)


def test_a_task_without_a_name_is_refused() -> None:
    with pytest.raises(SourceError, match="needs a name"):
        task_from_config({"doc_to_text": "q"}, path=None, locate=locate_nowhere)


def test_an_error_points_at_the_nested_key_that_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        read(tmp_path, "task: a\ndoc_to_text: q\nfewshot_config:\n  sampler: default\n  spilt: train\n")
    assert caught.value.position == Position(tmp_path / "t.yaml", 5, 3)
    assert caught.value.hint == "did you mean 'split'?"


def test_a_built_in_prompt_replaces_text_target_and_choices_also_for_shots() -> None:
    found = task(
        use_prompt="qa-basic:q-newline-a",
        doc_to_choice=["a"],
        fewshot_config={"doc_to_text": "x", "doc_to_target": "y", "sampler": "first_n"},
    )
    template = "Q: {{question}}\nA:"
    assert (found.doc_to_text, found.doc_to_target, found.doc_to_choice) == (template, template, template)
    assert (found.fewshot.doc_to_text, found.fewshot.doc_to_target) == (UNSET, UNSET)
    assert found.fewshot.sampler == "first_n"


def test_a_prompt_file_replaces_text_and_target(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        "prompts:\n  mine: {doc_to_text: 'Q {{q}}', doc_to_target: answer}\n  half: {doc_to_text: x}\n"
    )
    file = read(tmp_path, "task: a\ndoc_to_text: x\nuse_prompt: p.yaml:mine\n")
    assert file is not None
    assert (file.tasks[0].doc_to_text, file.tasks[0].doc_to_target) == ("Q {{q}}", "answer{##}")
    for name, said in (("half", "doc_to_target of the prompt 'half'"), ("mien", "did you mean 'mine'?")):
        with pytest.raises(SourceError) as caught:
            read(tmp_path, f"task: a\ndoc_to_text: x\nuse_prompt: p.yaml:{name}\n")
        assert said in str(caught.value)


def test_a_python_task_class_has_a_name_and_a_reason_but_no_tasks(tmp_path: Path) -> None:
    file = read(tmp_path, "task: squad\nclass: !function task.Squad\n")
    assert file is not None
    assert (file.kind, file.tasks, file.names) == ("class", (), ("squad",))
    assert "task.Squad" in file.untested["squad"].message
    with pytest.raises(SourceError, match="needs a name"):
        read(tmp_path, "class: !function task.Squad\ndataset_path: x\n")


def test_a_key_written_twice_is_noted(tmp_path: Path) -> None:
    file = read(tmp_path, "task: a\ndoc_to_text: q\ndoc_to_text: r\n")
    assert file is not None
    assert file.tasks[0].doc_to_text == "r"
    assert "t.yaml:3:1: 'doc_to_text' is written twice" in file.notes[0]


def test_load_tasks_takes_a_file_a_folder_or_a_mapping(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    read(tmp_path, "task: b\ndoc_to_text: q\n", "b.yaml")
    read(tmp_path / "sub", "task: c\ndoc_to_text: q\n", "c.yaml")
    read(tmp_path, "jobs: {}\n", "a.yaml")
    assert [found.name for found in load_tasks(tmp_path)] == ["b", "c"]
    assert [found.name for found in load_tasks(str(tmp_path / "b.yaml"))] == ["b"]
    assert [found.name for found in load_tasks(MINIMAL)] == ["t"]
    group = {"group": "g", "num_fewshot": 1, "task": [MINIMAL]}
    assert [(found.name, found.num_fewshot) for found in load_tasks(group)] == [("g.t", 1)]


def test_load_tasks_says_what_is_wrong_with_a_path(tmp_path: Path) -> None:
    read(tmp_path, "jobs: {}\n", "other.yaml")
    with pytest.raises(SourceError, match="defines no task"):
        load_tasks(tmp_path / "other.yaml")
    with pytest.raises(SourceError) as caught:
        load_tasks(tmp_path / "othr.yaml")
    assert caught.value.hint == "did you mean 'other.yaml'?"
    (tmp_path / "z.yaml").write_text("task: a\ndoc_to_text: 'x\n")
    with pytest.raises(SourceError, match="never closed"):
        load_tasks(tmp_path)


def test_load_tasks_binds_functions_only_where_code_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "utils.py").write_text("def text(doc):\n    return doc['q'] * 2\n")
    read(tmp_path, "task: a\ndoc_to_text: !function utils.text\n")
    assert isinstance(load_tasks(tmp_path)[0].doc_to_text, FunctionRef)
    assert load_tasks(tmp_path, allow_code=True)[0].doc_to_text({"q": "x"}) == "xx"
    read(tmp_path, "task: a\ndoc_to_text: !function utils.txt\n")
    with pytest.raises(FunctionError):
        load_tasks(tmp_path, allow_code=True)
