"""What answers show about a task, with the bundled model and with models of transformers that are made for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rule_examples import write_example

from pytest_promptfmt import load_tasks
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.models.model_answers import ModelAnswers
from pytest_promptfmt.rules.documentation import documentation_of
from pytest_promptfmt.rules.rule_registry import known_rules
from pytest_promptfmt.tasks.functions import bind_scoring

pytest.importorskip("torch", reason="running a model needs torch, of the extra `model`")

Judge = Callable[..., ModelAnswers]
Codes = Callable[[ModelAnswers], set[str]]

DOCS = [{"question": "Which one is the river?", "choices": ["river", "lamp"], "answer": 0}]
RULES = {code: check for code, check in known_rules().items() if check.scope == "model"}


def choice(text: str) -> Task:
    keys = {"task": "asked", "test_split": "test", "output_type": "multiple_choice", "doc_to_text": text}
    [task] = load_tasks({**keys, "doc_to_choice": "choices", "doc_to_target": "answer"})
    return task


def example(folder: Path, text: str) -> Task:
    write_example(text, folder)
    [task] = load_tasks(folder / "example.yaml", allow_code=True)
    return bind_scoring(task, trusted=lambda _file: True)


@pytest.fixture
def model_of(llama3_like: str) -> Callable[[str], str]:
    """Return a function that names the model that an example needs: the bundled one has no BOS."""
    return lambda code: llama3_like if code == "PF652" else "tiny"


@pytest.mark.parametrize("code", RULES)
def test_the_example_of_a_rule_triggers_it(
    code: str, tmp_path: Path, judge: Judge, codes: Codes, model_of: Callable[[str], str]
) -> None:
    task = example(tmp_path, documentation_of(RULES[code]).example)
    assert code in codes(judge(task, model=model_of(code)))


@pytest.mark.parametrize("code", RULES)
def test_the_silent_example_of_a_rule_is_silent(
    code: str, tmp_path: Path, judge: Judge, codes: Codes, model_of: Callable[[str], str]
) -> None:
    task = example(tmp_path, documentation_of(RULES[code]).silent)
    assert code not in codes(judge(task, model=model_of(code)))


@pytest.mark.parametrize(
    ("begins", "doubled"), [("", False), ("<|begin_of_text|>", False), ("<|begin_of_text|>" * 2, True)]
)
def test_two_bos_are_seen(llama3_like: str, judge: Judge, codes: Codes, begins: str, doubled: bool) -> None:
    judged = judge(choice(f"{begins}{{{{question}}}}"), DOCS, model=llama3_like)
    assert ("PF652" in codes(judged)) == doubled
    assert judged.mass is not None
    assert 0 < judged.mass < 1


def test_a_row_that_loses_its_beginning_is_seen(llama3_like: str, judge: Judge, codes: Codes, tmp_path: Path) -> None:
    folder = Path(llama3_like.removeprefix("hf:"))
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(
        config.replace('"max_position_embeddings": 2048', '"max_position_embeddings": 8')
    )
    judged = judge(choice("{{question}} {{question}} {{question}}"), DOCS, model=f"hf:{tmp_path}")
    assert "PF651" in codes(judged)


def test_what_is_better_when_lower_is_no_score(judge: Judge) -> None:
    keys = {"task": "last", "test_split": "test", "output_type": "loglikelihood", "doc_to_text": "{{question}}"}
    metrics: list[dict[str, Any]] = [
        {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False},
        {"metric": "acc"},
    ]
    [task] = load_tasks({**keys, "doc_to_target": "{{choices[0]}}", "metric_list": metrics})
    assert judge(task, DOCS).score in (0.0, 1.0)
    [alone] = load_tasks({**keys, "doc_to_target": "{{choices[0]}}", "metric_list": metrics[:1]})
    assert judge(alone, DOCS).score is None
