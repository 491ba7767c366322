"""What lm-eval 0.4.13 accepts as a task, and what its groups override, against our reading of the same files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.core.errors import SourceError
from pytest_promptfmt.core.task import locate_nowhere
from pytest_promptfmt.systems.task_files import read_task_file
from pytest_promptfmt.tasks.task_config import task_from_config
from pytest_promptfmt.tasks.task_index import TaskIndex

pytest.importorskip("lm_eval")
pytestmark = pytest.mark.parity

BASE = {
    "task": "t",
    "doc_to_text": "{{q}}",
    "doc_to_target": "{{a}}",
    "test_split": "test",
    "output_type": "generate_until",
}
DOCS = [{"q": "x", "a": "y", "question": "x"}, {"q": "z", "a": "y", "question": "z"}]

ACCEPTED: list[dict[str, Any]] = [
    {},
    {"description": None},
    {"description": False},
    {"doc_to_target": True},
    {"num_fewshot": None},
    {"num_fewshot": True},
    {"generation_kwargs": {"temperature": "0.5"}},
    {"fewshot_config": None},
    {"fewshot_config": {"fewshot_indices": [1], "sampler": "first_n"}},
    {"fewshot_config": {"split": None, "gen_prefix": None, "doc_to_choice": None}},
    {"process_results": "text"},
    {"unsafe_code": "yes"},
    {"tag": "x"},
    {"repeats": 3},
    {"filter_list": [{"name": "x", "filter": [{"function": "take_first"}]}]},
    {"filter_list": None, "metric_list": None, "generation_kwargs": None},
]
REFUSED: list[dict[str, Any]] = [
    {"output_type": "multiple_choise"},
    {"output_type": "greedy_until"},
    {"doc_to_txt": "x"},
    {"fewshot_config": {"num_fewshot": 1}},
    {"fewshot_config": ["x"]},
    {"fewshot_config": {"samples": "x"}},
    {"fewshot_config": {"samples": [{"q": "x"}], "sampler": "frist_n"}},
    {"fewshot_config": {"samples": [{"q": "x"}], "sampler": None}},
    {"generation_kwargs": ["max_gen_toks"]},
    {"generation_kwargs": {"temperature": "hot"}},
    {"metric_list": ["acc"]},
    {"metric_list": [{"aggregation": "mean"}]},
    {"filter_list": [{"name": "x"}]},
    {"filter_list": [{"filter": []}]},
    {"filter_list": [{"name": "x", "filter": ["take_first"]}]},
    {"doc_to_text": ["x"]},
    {"doc_to_text": 1.5},
    {"doc_to_target": {"x": 1}},
    {"doc_to_choice": 5},
    {"process_docs": "utils.f"},
    {"use_prompt": "qa-basic"},
    {"use_prompt": "qa-basic:nothing"},
    {"use_prompt": "a:b:c"},
    {"include": "x"},
]


def built_by_lm_eval(keys: dict[str, Any]) -> Any:
    import datasets
    from lm_eval.api.task import ConfigurableTask

    def custom_dataset(**_kwargs: Any) -> dict[str, Any]:
        return {"test": datasets.Dataset.from_list(DOCS)}

    # the loader is handed a fresh copy: lm-eval writes into the mappings it is given
    config = json.loads(json.dumps({**BASE, **keys}))
    return ConfigurableTask(config={**config, "custom_dataset": custom_dataset})


@pytest.mark.parametrize("keys", ACCEPTED, ids=str)
def test_what_lm_eval_builds_is_accepted(keys: dict[str, Any]) -> None:
    built_by_lm_eval(keys)
    task_from_config({**BASE, **keys}, path=None, locate=locate_nowhere)


@pytest.mark.parametrize("keys", REFUSED, ids=str)
def test_what_lm_eval_cannot_build_is_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011  # lm-eval raises whatever comes
        built_by_lm_eval(keys)
    with pytest.raises(SourceError):
        task_from_config({**BASE, **keys}, path=None, locate=locate_nowhere)


def test_a_built_in_prompt_gives_the_mappings_that_lm_eval_renders_with() -> None:
    theirs = built_by_lm_eval({"use_prompt": "qa-basic:q-newline-a"})
    ours = task_from_config({**BASE, "use_prompt": "qa-basic:q-newline-a"}, path=None, locate=locate_nowhere)
    assert ours.doc_to_text == ours.doc_to_target == theirs.prompt


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("task: [inner]", "num_fewshot: 2\ntask: [leaf]"),
        ("num_fewshot: 3\ntask: [inner]", "num_fewshot: 2\ntask: [leaf]"),
        ("num_fewshot: 3\ntask: [inner]", "num_fewshot: 2\ntask: [{task: leaf, num_fewshot: 4}]"),
        ("task: [{group: inner, num_fewshot: 5}]", "num_fewshot: 2\ndescription: i\ntask: [leaf]"),
        (
            "num_fewshot: 3\ntask: [{group: inner, num_fewshot: 5}]",
            "description: i\ntask: [{task: leaf, num_fewshot: 4}]",
        ),
        ("num_fewshot: 3\ndescription: o\ntask: [{group: new, num_fewshot: 6, task: [leaf]}]", "task: [leaf]"),
        ("description: o\ntask: [tagged]", "task: [leaf]"),
        ("description: o\ntask: [{task: leaf, fewshot_config: {sampler: first_n}}, leaf]", "task: [leaf]"),
    ],
)
def test_overrides_of_groups_give_the_config_that_lm_eval_builds(outer: str, inner: str, tmp_path: Path) -> None:
    from lm_eval.tasks import TaskManager

    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in DOCS))
    leaf = {**BASE, "task": "leaf", "tag": "tagged", "dataset_path": "json", "num_fewshot": 1}
    leaf["dataset_kwargs"] = {"data_files": {"test": str(tmp_path / "docs.jsonl")}}
    (tmp_path / "leaf.yaml").write_text(json.dumps(leaf))
    (tmp_path / "outer.yaml").write_text(f"group: outer\n{outer}\n")
    (tmp_path / "inner.yaml").write_text(f"group: inner\n{inner}\n")
    theirs = TaskManager(include_path=str(tmp_path), include_defaults=False).load("outer")["tasks"]["leaf"].config
    # What the outer group takes over as it is, the inner group's own file defines.
    files = [read_task_file(tmp_path / f"{name}.yaml", TaskIndex([tmp_path])) for name in ("inner", "outer")]
    tasks = [task for file in files if file is not None for task in file.tasks]
    ours: Mapping[str, Any] = tasks[-1].config if tasks else leaf
    for key in ("num_fewshot", "description"):
        assert ours.get(key, {"description": ""}.get(key)) == theirs[key]
    assert (ours.get("fewshot_config") or {}).get("sampler", "default") == theirs["fewshot_config"].sampler
