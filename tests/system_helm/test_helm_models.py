"""HELM tasks put to a model: references scored by the token or ranked one by one, labels within their budget."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt import load_tasks
from pytest_promptfmt.core.finding import Finding
from pytest_promptfmt.core.profile import PLAIN
from pytest_promptfmt.core.prompt import Instance
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.rules.rule_registry import known_rules

pytest.importorskip("torch", reason="running a model needs torch, of the extra `model`")
models = pytest.importorskip("pytest_promptfmt.models", reason="without models none can be asked")
running = pytest.importorskip("pytest_promptfmt.models.model_run")

OPTIONS = models.ModelOptions(device="cpu")
RULES = [rule for rule in known_rules().values() if rule.scope == "model"]


@pytest.fixture(scope="module")
def tiny() -> Any:
    return models.open_model("tiny", OPTIONS)


def judged(task: Task) -> Any:
    run = running.ModelRun("tiny", device="cpu")
    return run.judged(task, list(task.render()), profile=PLAIN, profile_id="plain")


def findings(result: Any) -> list[Finding]:
    return [finding for rule in RULES for finding in rule.function(result)]


def helm_task(folder: Path, method: str, **spec: Any) -> Task:
    references = [
        {"output": {"text": text}, "tags": ["correct"] if text == "lamp" else []} for text in ("river", "lamp")
    ]
    states = [
        {"instance": {"input": {"text": text}, "references": references, "split": "test"}}
        for text in ("Which one is the lamp?", "Find the lamp.")
    ]
    adapter = {"method": method, "max_train_instances": 0, "num_outputs": 1, "temperature": 0, **spec}
    path = folder / "asked.json"
    path.write_text(json.dumps({"adapter_spec": adapter, "request_states": states}), "utf-8")
    [task] = load_tasks(path)
    return task


def by_token(tiny: Any, instance: Instance) -> Iterator[float]:
    """Yield the log-likelihood of each reference, divided by its tokens, as the model itself gives it."""
    for request in instance.requests:
        whole = tiny.tokenizer.ids(f"{request.context}{request.continuation}")
        size = len(tiny.tokenizer.ids(request.context))
        ask = models.Ask(context="", continuation="x", context_ids=whole[:size], continuation_ids=whole[size:])
        answer = next(iter(tiny.loglikelihood([ask])))
        yield answer.total / len(answer.logprobs)


def test_separate_references_are_scored_by_the_token(tiny: Any, tmp_path: Path) -> None:
    task = helm_task(tmp_path, "multiple_choice_separate_original", output_prefix=" ", output_suffix="")
    means = [tuple(by_token(tiny, instance)) for instance in task.render()]
    assert judged(task).score == sum(lamp > river for river, lamp in means) / 2


def test_each_reference_that_is_ranked_has_its_own_answer(tmp_path: Path) -> None:
    task = helm_task(tmp_path, "ranking_binary", output_prefix="Answer: ", max_tokens=1)
    golds = [request.doc["answer"] for instance in task.render() for request in instance.requests if request.doc]
    assert golds == ["No", "Yes", "No", "Yes"]
    assert not findings(judged(task))


def test_a_budget_of_a_label_is_there_to_be_used_up(tmp_path: Path) -> None:
    task = helm_task(tmp_path, "multiple_choice_joint", output_prefix="Answer: ", max_tokens=1)
    own = replace(task, metadata={"promptfmt": {**task.own_metadata, "model": {"stops": 1.0, "extraction": 0.0}}})
    result = judged(own)
    assert not findings(result)
    assert [one.tokens for one in result.questions] == [(1,), (1,)]
