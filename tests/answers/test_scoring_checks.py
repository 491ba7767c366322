"""Scorer checks: what is wrong with gold answers, choices, metrics and stop sequences, and silence where nothing is."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from pytest_promptfmt.answers.scorer_checks import check_scorer
from pytest_promptfmt.answers.scorer_findings import ScorerFinding
from pytest_promptfmt.core.task import Task, TaskDocs
from pytest_promptfmt.systems.renderer import TaskRenderer


def findings(
    docs: Sequence[Mapping[str, Any]],
    *,
    few_shot: int | None = None,
    pool: Sequence[Mapping[str, Any]] | None = None,
    **fields: Any,
) -> list[ScorerFinding]:
    task = Task(name="t", **{"doc_to_text": "{{question}}", "doc_to_target": "{{answer}}", **fields})
    given = TaskDocs.in_memory(docs, pool)
    instances = tuple(TaskRenderer(task, given).instances())
    shown = tuple(TaskRenderer(task, given, num_fewshot=few_shot).instances()) if few_shot else ()
    return check_scorer(task, instances, few_shot=shown)


def names(found: Iterable[ScorerFinding]) -> list[str]:
    return sorted({finding.name for finding in found})


CHOICES: dict[str, Any] = {"output_type": "multiple_choice", "doc_to_choice": "{{choices}}"}


def choice_doc(answer: Any, choices: Sequence[str] = ("red", "green", "blue")) -> dict[str, Any]:
    return {"question": "Which?", "choices": list(choices), "answer": answer}


def test_a_sound_task_is_silent() -> None:
    assert findings([choice_doc(0), choice_doc(2)], **CHOICES) == []
    generated = [{"question": "6 * 7?", "answer": "42"}, {"question": "Who?", "answer": "Ada"}]
    assert findings(generated, generation_kwargs={"until": ["\n"]}) == []


@pytest.mark.parametrize("answer", [5, "3", "yellow", [0, 7]])
def test_a_gold_answer_outside_the_choices_is_told(answer: Any) -> None:
    found = findings([choice_doc(1), choice_doc(answer)], **{**CHOICES, "doc_to_target": "answer"})
    assert names(found) == ["gold-outside-choices"]


def test_a_function_that_reads_a_column_no_template_names_crashes_on_real_docs_alone() -> None:
    def process_results(doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, float]:
        return {"acc": float(doc["labels"][max(range(len(results)), key=lambda index: results[index][0])])}

    task = Task(name="t", doc_to_text="{{question}}", doc_to_target=0, process_results=process_results, **CHOICES)
    instances = tuple(TaskRenderer(task, TaskDocs.in_memory([choice_doc(0)])).instances())
    assert names(check_scorer(task, instances)) == ["scorer-crashes"]
    assert check_scorer(task, instances, synthetic=True) == []


def test_the_pattern_of_the_guide_that_forgets_a_blank_is_told() -> None:
    # Seed 004, pattern 1: candidates with a leading space, the truth without one.
    docs = [choice_doc("green", [" red", " green"])]
    found = findings(docs, **{**CHOICES, "doc_to_target": "answer"})
    assert names(found) == ["gold-differs-by-a-blank"]
    assert "' green' differs from it only by blanks" in found[0].message


def test_a_gold_answer_in_other_letter_case_is_told() -> None:
    found = findings([choice_doc("Green")], **{**CHOICES, "doc_to_target": "answer"})
    assert names(found) == ["gold-differs-by-case"]


def test_a_negative_gold_answer_is_told() -> None:
    assert names(findings([choice_doc(0), choice_doc(-1)], **CHOICES)) == ["gold-outside-choices"]


def test_choices_that_are_alike_or_blank_are_told() -> None:
    assert names(findings([choice_doc(0, ["red", "blue", "blue"])], **CHOICES)) == ["duplicate-choices"]
    assert "empty-choice" in names(findings([choice_doc(0, ["red", " "])], **CHOICES))


def test_a_scorer_that_crashes_is_told_before_the_model_runs() -> None:
    def scorer(doc: Mapping[str, Any], _results: Any) -> dict[str, float]:
        return {"acc": doc["mc2_targets"]["labels"][0]}

    found = findings([choice_doc(0)], process_results=scorer, metric_list=[{"metric": "acc"}], **CHOICES)
    assert names(found) == ["scorer-crashes"]
    assert "KeyError: 'mc2_targets'" in found[0].message


def test_a_scorer_that_takes_the_wrong_choice_is_told() -> None:
    def scorer(doc: Mapping[str, Any], results: Sequence[tuple[float, bool]]) -> dict[str, float]:
        best = max(range(len(results)), key=lambda index: results[index][0])
        return {"acc": float(best == (doc["answer"] + 1) % 3)}

    found = findings([choice_doc(0)], process_results=scorer, metric_list=[{"metric": "acc"}], **CHOICES)
    assert "gold-does-not-win" in names(found)


def test_a_scorer_that_counts_ties_as_right_is_told() -> None:
    def generous(doc: Mapping[str, Any], results: Sequence[tuple[float, bool]]) -> dict[str, float]:
        scores = [score for score, _ in results]
        return {"acc": float(scores[doc["answer"]] == max(scores))}

    def strict(doc: Mapping[str, Any], results: Sequence[tuple[float, bool]]) -> dict[str, float]:
        scores = [score for score, _ in results]
        return {"acc": float(doc["answer"] == scores.index(max(scores)))}

    docs = [choice_doc(0), choice_doc(2)]
    found = findings(docs, process_results=generous, **CHOICES)
    assert [(one.name, one.message.partition(":")[0]) for one in found] == [("tie-counts-as-right", "doc 2")]
    assert findings(docs, process_results=strict, **CHOICES) == []


def test_a_scorer_that_underflows_is_told() -> None:
    def weighed(shift: bool) -> Any:
        def scorer(doc: Mapping[str, Any], results: Sequence[tuple[float, bool]]) -> dict[str, float]:
            highest = max(score for score, _ in results) if shift else 0.0
            weights = [math.exp(score - highest) for score, _ in results]
            total = sum(weights)
            return {"mass": weights[doc["answer"]] / total if total else math.nan}

        return scorer

    assert names(findings([choice_doc(1)], process_results=weighed(shift=False), **CHOICES)) == ["underflow"]
    assert findings([choice_doc(1)], process_results=weighed(shift=True), **CHOICES) == []


@pytest.mark.parametrize("metric", ["acc_norm", "acc_bytes"])
def test_a_blank_that_all_choices_begin_with_counts_as_length(metric: str) -> None:
    told: dict[str, Any] = {**CHOICES, "target_delimiter": "", "metric_list": [{"metric": metric}]}
    spaced = [f" {choice}" for choice in ("red", "green", "blue")]
    for gold in range(3):
        found = findings([choice_doc(gold, spaced)], **told)
        assert names(found) == ["blank-counts-as-length"]
        assert metric in found[0].message
    for silent in (["red", "green", "blue"], [" A", " B"], [" red", "green"]):
        assert findings([choice_doc(1, silent)], **told) == []
    assert findings([choice_doc(1, spaced)], **{**told, "metric_list": [{"metric": "acc"}]}) == []


def test_mutual_information_with_several_golds_is_told() -> None:
    found = findings(
        [choice_doc([0, 1])],
        **{**CHOICES, "doc_to_target": "answer", "metric_list": [{"metric": "acc_mutual_info"}]},
    )
    assert names(found) == ["scorer-crashes"]
    assert found[0].hint == "acc_mutual_info takes one gold answer"


def exact(**arguments: Any) -> list[dict[str, Any]]:
    return [{"metric": "exact_match", **arguments}]


def test_arguments_that_the_metric_does_not_take_are_told() -> None:
    found = findings([{"question": "?", "answer": "yes"}], metric_list=exact(weight_by_size=True))
    assert "metric-arguments" in names(found)
    assert "scorer-crashes" in names(found)


def test_a_gold_answer_that_normalises_to_nothing_is_told() -> None:
    found = findings([{"question": "Which operator?", "answer": "+"}], metric_list=exact(ignore_punctuation=True))
    assert "gold-normalises-to-nothing" in names(found)


def test_options_that_normalise_alike_are_told() -> None:
    docs = [{"question": "Which?\nA. one\nB. two\nAnswer:", "answer": "A"}]
    assert "gold-normalises-to-nothing" in names(findings(docs, metric_list=exact(regexes_to_ignore=["[AB]"])))
    alike = [{"question": "?", "choices": ["Yes!", "yes"], "answer": 0}]
    found = findings(
        alike,
        doc_to_choice="{{choices}}",
        doc_to_target="answer",
        metric_list=exact(ignore_case=True, ignore_punctuation=True),
    )
    assert names(found) == ["another-choice-wins", "choices-normalise-alike"]


def test_a_guess_in_place_of_a_missing_answer_is_told() -> None:
    class Guess:
        def apply(self, resps: Any, docs: Any) -> list[str]:
            return [random.choice("ABCD") for _ in resps]

    pipeline = [{"name": "guess", "filter": [{"function": Guess}]}]
    before = random.getstate()
    found = findings([{"question": "?", "answer": "yes"}], filter_list=pipeline)
    assert names(found) == ["random-fallback"]
    assert random.getstate() == before


SAMPLES = [
    {"question": "Question: 2 + 2?", "answer": "2 and 2 is 4. The answer is 4"},
    {"question": "Question: 3 + 4?", "answer": "3 and 4 is 7. The answer is 7"},
    {"question": "Question: 4 + 4?", "answer": "4 and 4 is 8. The answer is 8"},
]
COT: dict[str, Any] = {"num_fewshot": 2, "pool": SAMPLES}
SUM = [{"question": "Question: 1 + 1?", "answer": "2"}]


def test_a_stop_sequence_that_cuts_a_demonstration_is_told() -> None:
    found = findings(SUM, generation_kwargs={"until": [".", "Question:"]}, **COT)
    assert names(found) == ["stop-in-demonstration"]
    assert re.search(r"cuts an answer that the prompt shows, to '\d and \d is \d'", found[0].message)


def test_a_stop_sequence_within_the_gold_answer_is_told() -> None:
    docs = [{"question": "Where?", "answer": "St. Louis"}]
    assert names(findings(docs, generation_kwargs={"until": ["."]})) == ["stop-in-gold"]


@pytest.mark.parametrize(
    ("until", "name"),
    [
        ([["</s>"], "\n\n"], "stop-is-no-text"),
        (["\\n"], "stop-never-fires"),
        (["Q:", "</s>"], "no-stop-before-next-question"),
    ],
)
def test_stop_sequences_that_stop_nothing_are_told(until: list[Any], name: str) -> None:
    assert name in names(findings(SUM, generation_kwargs={"until": until}, **COT))


def test_what_no_stop_sequence_ends_is_told_alike_for_all_data() -> None:
    told = set()
    for topic in ("rivers", "stars"):
        pool = [{"question": f"How many {topic} are {number}?", "answer": str(number)} for number in range(3)]
        asked: dict[str, Any] = {"doc_to_text": "Question: {{question}}\nAnswer:", "pool": pool, "num_fewshot": 2}
        told |= {finding.message for finding in findings(SUM, generation_kwargs={"until": ["</s>"]}, **asked)}
    assert told == {"none of the stop sequences ['</s>'] is in what follows an answer, '\\n\\nQuestion: …'"}


def test_a_stop_sequence_of_another_width_is_told_with_the_reason() -> None:
    docs = [{"question": "问题：1 + 1?", "answer": "2"}, {"question": "问题：2 + 2?", "answer": "4"}]
    docs += [{"question": "问题：3 + 3?", "answer": "6"}]
    found = findings(docs, few_shot=2, generation_kwargs={"until": ["问题:", "</s>"]})
    assert names(found) == ["no-stop-before-next-question"]
    assert found[0].hint is not None
    assert "width" in found[0].hint
    assert findings(docs, few_shot=2, generation_kwargs={"until": ["问题："]}) == []
