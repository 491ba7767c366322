"""Tasks that read, score and ask alike share the verdicts of their phrasings; any difference that counts is seen."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_promptfmt.answers import phrasing_verdicts
from pytest_promptfmt.answers.battery import try_phrasings
from pytest_promptfmt.answers.phrasing_verdicts import Matrix
from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.task import FewShot, Task
from pytest_promptfmt.study.scoring import ExpectedCompletion, Scoring
from pytest_promptfmt.tasks import ValueCache
from pytest_promptfmt.tasks.renderer import TaskRenderer

DOCS = [
    {"question": "What is the capital of France?", "choices": ["Berlin", "Madrid", "Paris"], "answer": "C"},
    {"question": "And of Spain?", "choices": ["Berlin", "Madrid", "Paris"], "answer": "B"},
]
LABEL = {"function": "regex", "regex_pattern": r"answer is \(?([A-C])"}
MATCH = {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
KEYS: dict[str, Any] = {
    "name": "one",
    "doc_to_text": "{{question}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\nAnswer:",
    "doc_to_target": "{{answer}}",
    "generation_kwargs": {"until": ["</s>"]},
    "filter_list": [{"name": "x", "filter": [LABEL, {"function": "take_first"}]}],
    "metric_list": [MATCH],
}
OTHERS: dict[str, dict[str, Any]] = {
    "the question": {"doc_to_text": 'Say "The answer is X".\n{{question}}\nA. a\nB. b\nC. c\n'},
    "the description": {"description": "Answer with the letter only.\n"},
    "the target": {"doc_to_target": "{{choices[0]}}"},
    "a filter": {"filter_list": [{"name": "x", "filter": [{"function": "take_first"}]}]},
    "the name of a pipeline": {"filter_list": [{"name": "y", "filter": [LABEL, {"function": "take_first"}]}]},
    "an argument of a filter": {
        "filter_list": [{"name": "x", "filter": [{**LABEL, "group_select": -1}, {"function": "take_first"}]}]
    },
    "no filter": {"filter_list": None},
    "an argument of a metric": {"metric_list": [{**MATCH, "ignore_case": True, "ignore_punctuation": True}]},
    "stops": {"generation_kwargs": {"until": ["\n", "."]}},
    "the end of reasoning": {"metadata": {"promptfmt": {"think_end_token": "answer"}}},
    "a gen prefix": {"gen_prefix": "The answer is"},
    "the delimiter of targets": {"target_delimiter": "\n"},
    "shots": {"num_fewshot": 1},
    "targets of shots": {"fewshot": FewShot(doc_to_target="So it is {{answer}}.")},
}


def scoring(docs: TaskDocs | None = None, **keys: Any) -> Scoring:
    task, docs = Task(**{**KEYS, **keys}), docs or TaskDocs.in_memory(DOCS)
    return Scoring(task=task, docs=docs, instances=tuple(TaskRenderer(task, docs).instances()))


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phrasing_verdicts, "_known", ValueCache[Matrix](10**7))


@pytest.mark.usefixtures("alone")
def test_tasks_that_are_alike_but_for_their_names_share_the_verdicts() -> None:
    assert try_phrasings(scoring()) is try_phrasings(scoring(name="two", metadata={"version": 3}))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("other", OTHERS)
def test_a_difference_is_seen(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = try_phrasings(scoring()), try_phrasings(scoring(**OTHERS[other]))
    assert second is not first
    monkeypatch.setattr(phrasing_verdicts, "_known", ValueCache[Matrix](10**7))
    assert second == try_phrasings(scoring(**OTHERS[other]))


@pytest.mark.usefixtures("alone")
def test_docs_of_another_kind_are_tried_apart() -> None:
    made = TaskDocs.in_memory(DOCS)
    synthetic = TaskDocs(
        evaluated=made.evaluated,
        fewshot=made.fewshot,
        columns=made.columns,
        origin="2 synthetic",
        fewshot_origin="none needed",
        kind="synthetic",
    )
    assert try_phrasings(scoring()) is not try_phrasings(scoring(synthetic))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    "keys",
    [
        {"process_results": lambda doc, results: {"acc": doc["answer"] in results[0]}},
        {"filter_list": [{"name": "x", "filter": [{"function": "multi_choice_regex"}, {"function": "take_first"}]}]},
        {"metric_list": [{"metric": lambda predictions, references: 1.0, "aggregation": "mean"}]},
    ],
    ids=["code that scores", "a filter that reads the doc", "a metric of the task"],
)
def test_nothing_is_shared_that_depends_on_code_or_docs(keys: dict[str, Any]) -> None:
    assert try_phrasings(scoring(**keys)) is not try_phrasings(scoring(**keys))


@pytest.mark.usefixtures("alone")
def test_completions_of_the_author_are_tried() -> None:
    own = ExpectedCompletion(id="mine", completion="The answer is (C).", expected="C")
    assert "mine" in [row.id for row in try_phrasings(scoring(), expected=[own]).rows]
    assert "mine" not in [row.id for row in try_phrasings(scoring()).rows]
