from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.core.errors import CodeNotAllowedError, DocsError, LimitExceededError, Position
from pytest_promptfmt.core.profile import PLAIN
from pytest_promptfmt.core.task import Dataset, FewShot, FunctionRef, Task
from pytest_promptfmt.systems.task_files import load_tasks
from pytest_promptfmt.tasks import TaskRenderer, render_task
from pytest_promptfmt.tasks.docs import doc_functions
from pytest_promptfmt.tasks.docs.doc_sources import load_docs

FIXTURES = Path(__file__).parents[2] / "fixtures" / "tasks"


def make_task(tmp_path: Path, own: Any = None, **fields: Any) -> Any:
    settings = {
        "name": "arc",
        "path": tmp_path / "tasks.yaml",
        "doc_to_text": "{{question}}",
        "doc_to_target": "answer",
        "dataset": Dataset(training_split="train", test_split="test"),
        "metadata": {"promptfmt": own} if own is not None else {},
    }
    return Task(**{**settings, **fields})


def write_docs(path: Any, *docs: Any) -> Any:
    path.write_text("".join(json.dumps(doc) + "\n" for doc in docs), encoding="utf-8")
    return path


def questions(docs: Any) -> Any:
    return [doc["question"] for doc in docs]


def numbered(word: Any, count: Any) -> Any:
    return [{"question": f"{word} {number}", "answer": "yes"} for number in range(1, count + 1)]


# -- where docs come from ---------------------------------------------------------------------------------------------


def test_docs_written_in_the_yaml_win_over_every_file(tmp_path: Path) -> None:
    write_docs(tmp_path / "tasks.docs.jsonl", *numbered("sidecar", 2))
    docs = load_docs(make_task(tmp_path, {"docs": numbered("inline", 2)}))
    assert questions(docs.evaluated) == ["inline 1", "inline 2"]
    assert docs.origin == "2 from metadata.promptfmt.docs"
    assert docs.columns == ("question", "answer")


def test_metadata_may_name_a_file_beside_the_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_docs(tmp_path / "mine.jsonl", *numbered("mine", 5))
    monkeypatch.chdir(tmp_path.parent)
    docs = load_docs(make_task(tmp_path, {"docs": "mine.jsonl"}))
    assert questions(docs.evaluated) == ["mine 1", "mine 2", "mine 3"]
    assert docs.origin == "3 from mine.jsonl"


def test_metadata_may_give_each_split_its_own_docs(tmp_path: Path) -> None:
    write_docs(tmp_path / "train.jsonl", *numbered("train", 4))
    task = make_task(tmp_path, {"docs": {"train": "train.jsonl", "test": numbered("test", 1)}}, num_fewshot=2)
    docs = load_docs(task)
    assert questions(docs.evaluated) == ["test 1"]
    assert questions(docs.fewshot) == [f"train {n}" for n in (1, 2, 3, 4)]
    assert docs.fewshot_origin == "4 from train.jsonl"


def test_key_fewshot_gives_demonstrations_whatever_the_split(tmp_path: Path) -> None:
    own = {"docs": {"fewshot": numbered("shown", 1), "test": numbered("test", 1)}}
    docs = load_docs(make_task(tmp_path, own, num_fewshot=1))
    assert questions(docs.fewshot) == ["shown 1"]


def test_sidecar_called_like_the_task_wins_over_one_called_like_the_file(tmp_path: Path) -> None:
    write_docs(tmp_path / "tasks.docs.jsonl", *numbered("file", 1))
    write_docs(tmp_path / "arc.docs.jsonl", *numbered("task", 1))
    assert load_docs(make_task(tmp_path)).origin == "1 from arc.docs.jsonl"


def test_sidecars_may_be_given_for_each_split(tmp_path: Path) -> None:
    write_docs(tmp_path / "tasks.docs.test.jsonl", *numbered("test", 1))
    write_docs(tmp_path / "tasks.docs.train.jsonl", *numbered("train", 2))
    docs = load_docs(make_task(tmp_path, num_fewshot=1))
    assert (docs.origin, docs.fewshot_origin) == ("1 from tasks.docs.test.jsonl", "2 from tasks.docs.train.jsonl")


def test_sidecar_for_demonstrations(tmp_path: Path) -> None:
    write_docs(tmp_path / "tasks.docs.jsonl", *numbered("test", 1))
    write_docs(tmp_path / "tasks.docs.fewshot.jsonl", *numbered("shown", 3))
    docs = load_docs(make_task(tmp_path, num_fewshot=1))
    assert questions(docs.fewshot) == ["shown 1", "shown 2", "shown 3"]


def local_dataset(data_files: Any, **splits: Any) -> Any:
    return Dataset(path="json", kwargs={"data_files": data_files}, **(splits or {"test_split": "test"}))


def test_local_data_files_are_found_from_the_working_directory_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    for folder in (home, here):
        folder.mkdir()
        write_docs(folder / "x.jsonl", *numbered(folder.name, 1))
    task = make_task(home, dataset=local_dataset({"test": "x.jsonl"}))
    monkeypatch.chdir(here)
    docs = load_docs(task)
    assert (questions(docs.evaluated), docs.origin) == (["here 1"], "1 from ../here/x.jsonl")
    (here / "x.jsonl").unlink()
    docs = load_docs(task)
    assert (questions(docs.evaluated), docs.origin) == (["home 1"], "1 from x.jsonl")


def test_data_files_may_be_lists_and_globs(tmp_path: Path) -> None:
    for name in ("b-2", "b-1", "a"):
        write_docs(tmp_path / f"{name}.jsonl", *numbered(name, 1))
    docs = load_docs(make_task(tmp_path, dataset=local_dataset({"test": ["a.jsonl", "b-*.jsonl"]})), count=9)
    assert questions(docs.evaluated) == ["a 1", "b-1 1", "b-2 1"]


def test_data_files_are_below_the_data_folder_and_without_them_it_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("home/other", "here/test"):
        (tmp_path / name).parent.joinpath("data").mkdir(parents=True)
        write_docs((tmp_path / name).parent / f"data/{Path(name).name}.jsonl", *numbered(name, 1))
    monkeypatch.chdir(tmp_path / "here")
    for files, expected in (({"data_files": {"test": "other.jsonl"}}, "home/other 1"), ({}, "here/test 1")):
        dataset = Dataset(path="json", kwargs={"data_dir": "data", **files}, test_split="test")
        assert questions(load_docs(make_task(tmp_path / "home", dataset=dataset)).evaluated) == [expected]


def test_bare_data_files_are_the_train_split(tmp_path: Path) -> None:
    write_docs(tmp_path / "x.jsonl", *numbered("x", 1))
    assert load_docs(make_task(tmp_path, dataset=local_dataset("x.jsonl", test_split="train"))).evaluated
    with pytest.raises(DocsError, match="uses the split 'test', but data_files has only train"):
        load_docs(make_task(tmp_path, dataset=local_dataset("x.jsonl")))


def test_dataset_path_may_be_a_folder_whose_file_names_tell_the_split(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    write_docs(folder / "arc-test.jsonl", *numbered("test", 1))
    write_docs(folder / "arc-train.jsonl", *numbered("train", 3))
    dataset = Dataset(path="./data", training_split="train", test_split="test")
    docs = load_docs(make_task(tmp_path, dataset=dataset, num_fewshot=1))
    assert (docs.origin, docs.fewshot_origin) == ("1 from data/arc-test.jsonl", "3 from data/arc-train.jsonl")


def test_dataset_path_may_be_a_file(tmp_path: Path) -> None:
    write_docs(tmp_path / "x.jsonl", *numbered("x", 1))
    docs = load_docs(make_task(tmp_path, dataset=Dataset(path="x.jsonl", test_split="test")))
    assert docs.origin == "1 from x.jsonl"


@pytest.mark.parametrize("path", ["cais/mmlu", "super_glue", "hf://datasets/x/y", "https://example.org/x", "a\0b", ""])
def test_datasets_that_are_not_local_are_never_fetched(tmp_path: Path, path: Any) -> None:
    docs = load_docs(make_task(tmp_path, dataset=Dataset(path=path, test_split="test")))
    assert docs.origin == "2 synthetic"


def test_remote_data_files_are_never_fetched(tmp_path: Path) -> None:
    dataset = local_dataset({"test": "https://example.org/x.jsonl"})
    assert load_docs(make_task(tmp_path, dataset=dataset)).origin == "2 synthetic"


def test_folder_called_like_a_dataset_of_the_hub_is_not_taken_for_it(tmp_path: Path) -> None:
    (tmp_path / "copa").mkdir()
    (tmp_path / "copa" / "settings.json").write_text("{}")
    assert load_docs(make_task(tmp_path, dataset=Dataset(path="copa", test_split="test"))).origin == "2 synthetic"


def test_count_limits_what_is_evaluated_but_not_the_pool(tmp_path: Path) -> None:
    write_docs(tmp_path / "tasks.docs.test.jsonl", *numbered("test", 9))
    write_docs(tmp_path / "tasks.docs.train.jsonl", *numbered("train", 9))
    docs = load_docs(make_task(tmp_path), count=4, num_fewshot=2)
    assert (len(docs.evaluated), len(docs.fewshot)) == (4, 9)


def test_count_below_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DocsError, match="the number of docs is 0"):
        load_docs(make_task(tmp_path), count=0)


def test_long_files_are_read_no_further_than_needed(tmp_path: Path) -> None:
    path = write_docs(tmp_path / "tasks.docs.jsonl", *numbered("x", 3))
    with path.open("a") as file:
        file.write("this is no JSON\n")
    assert len(load_docs(make_task(tmp_path)).evaluated) == 3


# -- demonstrations ---------------------------------------------------------------------------------------------------


def test_no_shots_need_no_pool(tmp_path: Path) -> None:
    docs = load_docs(make_task(tmp_path))
    assert (docs.fewshot, docs.fewshot_origin) == ((), "none needed")


def test_task_that_says_zero_shots_keeps_them(tmp_path: Path) -> None:
    assert load_docs(make_task(tmp_path, num_fewshot=0), num_fewshot=5).fewshot == ()


def test_synthetic_pool_has_one_more_than_the_shots_and_differs_from_the_evaluated_docs(tmp_path: Path) -> None:
    docs = load_docs(make_task(tmp_path), num_fewshot=3)
    assert questions(docs.fewshot) == [f"«shot question {n}»" for n in (1, 2, 3, 4)]
    assert docs.fewshot_origin == "4 synthetic"


def test_synthetic_pool_does_not_depend_on_the_count(tmp_path: Path) -> None:
    task = make_task(tmp_path, num_fewshot=2)
    assert load_docs(task, count=1).fewshot == load_docs(task, count=7).fewshot


@pytest.mark.parametrize(
    ("splits", "used"),
    [
        ({"training_split": "train", "validation_split": "dev", "test_split": "test"}, "train"),
        ({"validation_split": "dev", "test_split": "test"}, "dev"),
        ({"training_split": "train", "fewshot_split": "dev", "test_split": "test"}, "dev"),
    ],
)
def test_pool_follows_lm_evals_order_of_splits(tmp_path: Path, splits: Any, used: Any) -> None:
    for split in ("train", "dev", "test"):
        write_docs(tmp_path / f"tasks.docs.{split}.jsonl", *numbered(split, 2))
    docs = load_docs(make_task(tmp_path, dataset=Dataset(**splits)), num_fewshot=1)
    assert docs.fewshot_origin == f"2 from tasks.docs.{used}.jsonl"


def test_pool_that_is_too_small_for_the_evaluated_docs_is_topped_up(tmp_path: Path) -> None:
    write_docs(tmp_path / "tasks.docs.jsonl", *numbered("test", 3))
    docs = load_docs(make_task(tmp_path, dataset=Dataset(test_split="test")), num_fewshot=5)
    assert questions(docs.fewshot)[:4] == ["test 1", "test 2", "test 3", "«shot question 1»"]
    assert docs.fewshot_origin == "3 from tasks.docs.jsonl, 3 synthetic"


def test_samples_of_the_task_are_the_pool(tmp_path: Path) -> None:
    docs = load_docs(make_task(tmp_path, fewshot=FewShot(samples=numbered("mine", 2))), num_fewshot=1)
    assert (questions(docs.fewshot), docs.fewshot_origin) == (["mine 1", "mine 2"], "2 from fewshot_config.samples")


def test_samples_may_be_a_function(tmp_path: Path) -> None:
    docs = load_docs(make_task(tmp_path, fewshot=FewShot(samples=lambda: numbered("made", 2))), num_fewshot=1)
    assert questions(docs.fewshot) == ["made 1", "made 2"]


def test_few_shot_split_wins_over_samples(tmp_path: Path) -> None:
    write_docs(tmp_path / "tasks.docs.dev.jsonl", *numbered("dev", 2))
    fewshot = FewShot(split="dev", samples=numbered("mine", 2))
    assert questions(load_docs(make_task(tmp_path, fewshot=fewshot), num_fewshot=1).fewshot) == ["dev 1", "dev 2"]


# -- functions --------------------------------------------------------------------------------------------------------


def test_process_docs_gets_a_dataset_and_its_docs_are_used(tmp_path: Path) -> None:
    pytest.importorskip("datasets")

    def keep_even(dataset: Any) -> Any:
        return dataset.filter(lambda doc: doc["question"][-1] in "02468").map(
            lambda doc: {"loud": doc["question"] + "!"}
        )

    task = make_task(tmp_path, {"docs": numbered("x", 9)}, dataset=Dataset(test_split="test", process_docs=keep_even))
    docs = load_docs(task)
    assert [doc["loud"] for doc in docs.evaluated] == ["x 2!", "x 4!", "x 6!"]
    assert docs.columns == ("question", "answer", "loud")


def test_process_docs_may_return_a_list(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    dataset = Dataset(test_split="test", process_docs=lambda found: [{"question": doc["answer"]} for doc in found])
    assert questions(load_docs(make_task(tmp_path, {"docs": numbered("x", 2)}, dataset=dataset)).evaluated) == [
        "yes",
        "yes",
    ]


def test_what_process_docs_draws_from_a_generator_of_its_module_is_the_same_each_time(tmp_path: Path) -> None:
    code = (
        "import random\n\nrng = random.Random(42)\n\ndef shuffled(found):\n    rows = [*found]\n    rng.shuffle(rows)\n"
    )
    (tmp_path / "drawing.py").write_text(f"{code}    return rows\n", "utf-8")
    text = "task: a\ntest_split: test\ndoc_to_text: '{{question}}'\nprocess_docs: !function drawing.shuffled\n"
    (tmp_path / "a.yaml").write_text(f"{text}dataset_path: nowhere/docs\n", "utf-8")
    write_docs(tmp_path / "a.docs.jsonl", *numbered("x", 9))
    [task] = load_tasks(tmp_path / "a.yaml", allow_code=True)
    first, second = (questions(load_docs(task, count=9, num_fewshot=0).evaluated) for _ in range(2))
    assert first == second != questions(numbered("x", 9))


def test_a_question_that_draws_from_a_generator_of_its_module_is_the_same_for_each_profile_and_run(
    tmp_path: Path,
) -> None:
    code = "import random\nimport sys\n\nrng = random.Random(42)\nrandom.seed(7)\n\n"
    code += "class Lazy:\n    def __getattribute__(self, name):\n        raise ImportError(name)\n\n"
    code += "sys.modules['promptfmt_lazy'] = lazy = Lazy()\n\n"
    code += "def text(doc):\n    return f'{doc[\"question\"]} {rng.random()} {random.random()}'\n"
    (tmp_path / "asking.py").write_text(code, "utf-8")
    text = "task: a\ntest_split: test\ndoc_to_text: !function asking.text\ndoc_to_target: '{{answer}}'\n"
    (tmp_path / "a.yaml").write_text(f"{text}dataset_path: nowhere/docs\n", "utf-8")
    write_docs(tmp_path / "a.docs.jsonl", *numbered("x", 3))
    [task] = load_tasks(tmp_path / "a.yaml", allow_code=True)
    docs = load_docs(task)
    del sys.modules["promptfmt_lazy"]
    renderer = TaskRenderer(task, docs)
    seen = [[each.prompts[0].text for each in renderer.instances(one)] for one in (PLAIN, PLAIN)]
    seen.append([each.prompts[0].text for each in render_task(task, docs)])
    assert seen[0] == seen[1] == seen[2]
    assert len(set(seen[0])) == 3


def test_process_docs_may_draw_from_a_generator_without_a_state(tmp_path: Path) -> None:
    code = "import random\n\nrng = random.SystemRandom()\n\ndef shuffled(found):\n    return rng.sample([*found], 9)\n"
    (tmp_path / "drawing.py").write_text(code, "utf-8")
    text = "task: a\ntest_split: test\ndoc_to_text: '{{question}}'\nprocess_docs: !function drawing.shuffled\n"
    (tmp_path / "a.yaml").write_text(f"{text}dataset_path: nowhere/docs\n", "utf-8")
    write_docs(tmp_path / "a.docs.jsonl", *numbered("x", 9))
    [task] = load_tasks(tmp_path / "a.yaml", allow_code=True)
    found = load_docs(task, count=9, num_fewshot=0).evaluated
    assert sorted(questions(found)) == sorted(questions(numbered("x", 9)))


def test_process_docs_of_the_demonstrations_may_differ(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    task = make_task(
        tmp_path,
        {"docs": {"test": numbered("x", 1), "train": numbered("y", 2)}},
        fewshot=FewShot(split="train", process_docs=lambda found: [{"question": "processed"}]),
    )
    docs = load_docs(task, num_fewshot=1)
    assert (questions(docs.evaluated), questions(docs.fewshot)) == (["x 1"], ["processed"])


def test_process_docs_is_not_applied_to_synthetic_docs(tmp_path: Path) -> None:
    def fail(found: Any) -> None:
        raise AssertionError

    assert load_docs(make_task(tmp_path, dataset=Dataset(test_split="test", process_docs=fail))).evaluated


def test_process_docs_that_raises_is_told_with_position_and_cause(tmp_path: Path) -> None:
    pytest.importorskip("datasets")

    def broken(found: Any) -> Any:
        return found[0]["no such column"]

    position = Position(tmp_path / "tasks.yaml", 7, 1)
    task = make_task(
        tmp_path,
        {"docs": numbered("x", 2)},
        dataset=Dataset(test_split="test", process_docs=broken),
        locate=lambda keys: position if keys == ("process_docs",) else None,
    )
    with pytest.raises(DocsError, match="process_docs raised KeyError") as caught:
        load_docs(task)
    assert caught.value.position == position
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("made", [[], ["no doc"], None])
def test_process_docs_with_a_useless_result_is_told(tmp_path: Path, made: Any) -> None:
    pytest.importorskip("datasets")
    dataset = Dataset(test_split="test", process_docs=lambda found: made)
    with pytest.raises(DocsError, match="process_docs"):
        load_docs(make_task(tmp_path, {"docs": numbered("x", 2)}, dataset=dataset))


def test_process_docs_that_may_not_run_is_asked_for(tmp_path: Path) -> None:
    reference = FunctionRef("utils", "prepare", tmp_path, Position(tmp_path / "tasks.yaml", 3))
    task = make_task(tmp_path, {"docs": numbered("x", 2)}, dataset=Dataset(test_split="test", process_docs=reference))
    with pytest.raises(CodeNotAllowedError, match=r"utils\.prepare"):
        load_docs(task)


def test_process_docs_that_hangs_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setattr(doc_functions, "FUNCTION_SECONDS", 0.2)

    def endless(found: Any) -> None:
        while True:
            pass

    task = make_task(tmp_path, {"docs": numbered("x", 2)}, dataset=Dataset(test_split="test", process_docs=endless))
    with pytest.raises(LimitExceededError, match="process_docs"):
        load_docs(task)


def test_process_docs_without_datasets_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    task = make_task(tmp_path, {"docs": numbered("x", 2)}, dataset=Dataset(test_split="test", process_docs=list))
    with pytest.raises(DocsError, match=r"pytest-promptfmt\[datasets\]"):
        load_docs(task)


def test_custom_dataset_is_called_with_metadata_and_arguments(tmp_path: Path) -> None:
    seen = {}

    def custom(**arguments: Any) -> Any:
        seen.update(arguments)
        return {"test": numbered("made", 4)}

    dataset = Dataset(test_split="test", custom=custom, kwargs={"size": 3})
    metadata = {"version": 1, "promptfmt": {"docs": "custom_dataset"}}
    docs = load_docs(make_task(tmp_path, dataset=dataset, metadata=metadata))
    assert docs.origin == "3 from custom_dataset"
    assert (seen["version"], seen["size"], seen["config_source"]) == (1, 3, str(tmp_path / "tasks.yaml"))


def test_custom_dataset_is_not_called_unless_asked_for(tmp_path: Path) -> None:
    def custom(**arguments: Any) -> None:
        raise AssertionError

    task = make_task(tmp_path, dataset=Dataset(test_split="test", custom=custom))
    assert load_docs(task).origin == "2 synthetic"


def test_custom_dataset_gives_the_demonstrations_too(tmp_path: Path) -> None:
    splits = {"test": numbered("x", 2), "train": numbered("shot", 4)}
    dataset = Dataset(test_split="test", training_split="train", custom=lambda **_: splits)
    docs = load_docs(make_task(tmp_path, {"docs": "custom_dataset"}, dataset=dataset), num_fewshot=2)
    assert (docs.origin, docs.fewshot_origin) == ("2 from custom_dataset", "4 from custom_dataset")


@pytest.mark.parametrize("result", [{"tset": []}, None, 3])
def test_custom_dataset_without_the_split_is_told(tmp_path: Path, result: Any) -> None:
    dataset = Dataset(test_split="test", custom=lambda **_: result)
    with pytest.raises(DocsError, match="returns no split 'test'"):
        load_docs(make_task(tmp_path, {"docs": "custom_dataset"}, dataset=dataset))


def test_custom_dataset_that_may_not_run_gives_way_to_synthetic_docs(tmp_path: Path) -> None:
    reference = FunctionRef("utils", "load", tmp_path, Position(tmp_path / "tasks.yaml", 3))
    docs = load_docs(make_task(tmp_path, dataset=Dataset(test_split="test", custom=reference)))
    assert docs.origin == "2 synthetic"


# -- what users get wrong ---------------------------------------------------------------------------------------------


def test_missing_file_is_told_with_the_closest_name(tmp_path: Path) -> None:
    write_docs(tmp_path / "arc.docs.jsonl", *numbered("x", 1))
    with pytest.raises(DocsError, match=r"missing docs file: .*arc\.doc\.jsonl") as caught:
        load_docs(make_task(tmp_path, {"docs": "arc.doc.jsonl"}))
    assert caught.value.hint == "did you mean 'arc.docs.jsonl'?"


def test_missing_data_file_is_told(tmp_path: Path) -> None:
    write_docs(tmp_path / "rivers.jsonl", *numbered("x", 1))
    with pytest.raises(DocsError, match=r"river\.jsonl") as caught:
        load_docs(make_task(tmp_path, dataset=local_dataset({"test": "river.jsonl"})))
    assert caught.value.hint == "did you mean 'rivers.jsonl'?"


def test_path_that_is_clearly_local_must_exist(tmp_path: Path) -> None:
    with pytest.raises(DocsError, match="nowhere"):
        load_docs(make_task(tmp_path, dataset=Dataset(path="./nowhere", test_split="test")))


def test_misspelt_split_is_told(tmp_path: Path) -> None:
    with pytest.raises(DocsError, match="no split 'tset'; it has train, test, fewshot") as caught:
        load_docs(make_task(tmp_path, {"docs": {"tset": numbered("x", 1)}}))
    assert caught.value.hint == "did you mean 'test'?"


@pytest.mark.parametrize("docs", [[], "empty.jsonl", {"test": []}])
def test_empty_docs_are_told(tmp_path: Path, docs: Any) -> None:
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(DocsError, match="no docs: "):
        load_docs(make_task(tmp_path, {"docs": docs}))


@pytest.mark.parametrize("docs", [3, 1.5, True, {"test": 3}, {"test": {"a": 1}}])
def test_docs_that_are_neither_list_nor_file_are_told(tmp_path: Path, docs: Any) -> None:
    with pytest.raises(DocsError, match="give a list of docs or a file"):
        load_docs(make_task(tmp_path, {"docs": docs}))


@pytest.mark.parametrize("doc", ["text", 3, None, ["a"], {1: "a"}, {True: "a"}])
def test_docs_that_are_no_mappings_of_columns_are_told(tmp_path: Path, doc: Any) -> None:
    with pytest.raises(DocsError, match=r"doc 2 of metadata\.promptfmt\.docs"):
        load_docs(make_task(tmp_path, {"docs": [{"question": "x", "answer": "y"}, doc]}))


@pytest.mark.parametrize(
    "name", ["a\0b.jsonl", "x" * 5000 + ".jsonl", "/", ".", "docs.xlsx", "/dev/zero", "folder.jsonl"]
)
def test_hostile_file_names_are_refused(tmp_path: Path, name: Any) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(DocsError):
        load_docs(make_task(tmp_path, {"docs": name}))


@pytest.mark.parametrize("data_files", [3, {"test": 3}, {"test": [3]}, [""], {"test": ""}])
def test_odd_data_files_are_told(tmp_path: Path, data_files: Any) -> None:
    with pytest.raises(DocsError, match="data_files"):
        load_docs(make_task(tmp_path, dataset=local_dataset(data_files)))


@pytest.mark.parametrize("path", ["~nobody-here/x.jsonl", "x" * 5000 + ".jsonl", "../" * 50 + "x.csv"])
def test_hostile_dataset_paths_are_refused(tmp_path: Path, path: Any) -> None:
    with pytest.raises(DocsError):
        load_docs(make_task(tmp_path, dataset=Dataset(path=path, test_split="test")))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_named_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(DocsError, match="not a regular file"):
        load_docs(make_task(tmp_path, {"docs": "pipe.jsonl"}))


@pytest.mark.parametrize("name", ["a/b", "a\0b", "x" * 5000, ".", ".."])
def test_task_names_that_are_no_file_names_have_no_sidecar(tmp_path: Path, name: Any) -> None:
    assert load_docs(make_task(tmp_path, name=name)).origin == "2 synthetic"


# -- values -----------------------------------------------------------------------------------------------------------

MIXED = [{"question": "a", "answer": 1, "day": "2020-01-01"}, {"question": "b", "answer": 1.5, "more": "x"}]


def test_values_are_taken_as_they_stand(tmp_path: Path) -> None:
    docs = load_docs(make_task(tmp_path, {"docs": MIXED}))
    assert docs.evaluated == tuple(MIXED)
    assert docs.columns == ("question", "answer", "day", "more")


def test_normalize_arrow_gives_what_datasets_would(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    path = write_docs(tmp_path / "x.jsonl", *MIXED)
    expected = list(datasets.Dataset.from_json(str(path), cache_dir=str(tmp_path / "cache")))
    docs = load_docs(make_task(tmp_path, {"docs": MIXED, "normalize": "arrow"}))
    assert list(docs.evaluated) == expected
    assert docs.evaluated[0]["answer"] == 1.0
    assert docs.evaluated[1]["day"] is None


def test_normalize_arrow_without_datasets_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DocsError, match=r"pytest-promptfmt\[datasets\]"):
        load_docs(make_task(tmp_path, {"docs": MIXED, "normalize": "arrow"}))


def test_unknown_normalisation_is_told(tmp_path: Path) -> None:
    with pytest.raises(DocsError, match="write raw"):
        load_docs(make_task(tmp_path, {"docs": MIXED, "normalize": "arow"}))


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_task_of_the_gallery_has_docs(path: Any) -> None:
    for task in load_tasks(path):
        docs = load_docs(task)
        assert docs.evaluated
        assert docs.columns
