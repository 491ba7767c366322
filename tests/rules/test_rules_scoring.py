"""Rules about scoring: what is wrong with gold answers, choices, metrics and stops, and silence where nothing is."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from linting import linted, study_of

from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.finding import Reported
from pytest_promptfmt.core.task import Dataset, Task
from pytest_promptfmt.rules.linter import check_scoring
from pytest_promptfmt.rules.rule_registry import known_rules
from pytest_promptfmt.rules.rule_selection import Selection
from pytest_promptfmt.systems.task_files import load_tasks

SELECTION = Selection(rules={code: rule for code, rule in known_rules().items() if rule.is_builtin})

# What a rule about docs, choices or stops says already is not said by a rule about scoring as well.
ABOUT_SCORING = ("PF003", "PF109", "PF6", "PF70", "PF902", "PF902", "PF903", "PF910")


def findings(
    docs: Sequence[Mapping[str, Any]], *, pool: Any = None, synthetic: bool = False, **fields: Any
) -> list[Reported]:
    """Return what a whole run says of how a task with these docs is scored: its lint item and its item `scoring`."""
    given = TaskDocs.in_memory(docs, pool)
    if synthetic:
        given = replace(given, kind="synthetic")
    dataset = Dataset(given=lambda _count, _shots: given)
    task = Task(
        name="t",
        dataset=dataset,
        **{"doc_to_text": "{{question}}", "doc_to_target": "{{answer}}", **fields},
    )
    study = study_of(task)
    assert study.failure is None, study.failure
    found = list(linted(study, SELECTION).findings)
    before = random.getstate()
    found += check_scoring(study, SELECTION, is_linted=True).findings
    assert random.getstate() == before
    return [finding for finding in found if finding.code.startswith(ABOUT_SCORING)]


def codes(found: Iterable[Reported]) -> list[str]:
    return sorted({finding.code for finding in found})


CHOICES: dict[str, Any] = {"output_type": "multiple_choice", "doc_to_choice": "{{choices}}"}


def choice_doc(answer: Any, choices: Sequence[str] = ("red", "green", "blue")) -> dict[str, Any]:
    return {"question": "Which?", "choices": list(choices), "answer": answer}


def test_a_guess_in_place_of_a_missing_answer_is_reported() -> None:
    class Guess:
        def apply(self, resps: Any, docs: Any) -> list[str]:
            return [random.choice("ABCD") for _ in resps]

    pipeline = [{"name": "guess", "filter": [{"function": Guess}]}]
    assert codes(findings([{"question": "?", "answer": "yes"}], filter_list=pipeline)) == ["PF608"]


def test_an_answer_of_which_exact_match_ignores_everything_is_one_finding() -> None:
    docs = [{"question": "Which?\nA. one\nB. two\nAnswer:", "answer": "A"}]
    assert codes(findings(docs, metric_list=exact(regexes_to_ignore=["[AB]"]))) == ["PF601"]


def test_an_option_that_is_a_part_of_the_gold_answer_and_counts_as_right_is_reported() -> None:
    def scored(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
        return {"within": float(bool(results[0]) and results[0] in doc["choices"][doc["answer"]])}

    docs = [{"question": "?", "choices": ["un", "unfair"], "answer": 1}]
    metric = [{"metric": "within", "aggregation": "mean", "higher_is_better": True}]
    given: dict[str, Any] = {
        "process_results": scored,
        "metric_list": metric,
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "answer",
    }
    assert codes(findings(docs, **given)) == ["PF605"]


def test_a_sound_task_is_silent() -> None:
    assert findings([choice_doc(0), choice_doc(2)], **CHOICES) == []
    generated = [{"question": "6 * 7?", "answer": "42"}, {"question": "Who?", "answer": "Ada"}]
    assert findings(generated, generation_kwargs={"until": ["\n"]}) == []


@pytest.mark.parametrize("answer", [5, -1, "3", "yellow", [0, 7]])
def test_a_gold_answer_outside_the_choices_is_one_finding(answer: Any) -> None:
    sound = choice_doc([1] if isinstance(answer, list) else 1)
    found = findings([sound, choice_doc(answer)], **{**CHOICES, "doc_to_target": "answer"})
    assert [finding.code for finding in found] == ["PF701"]


def test_a_gold_answer_that_forgets_a_space_is_reported_with_the_choice_that_is_meant() -> None:
    # The guide of eval-framework, pattern 1: candidates with a leading space, the truth without one.
    (found,) = findings([choice_doc("green", [" red", " green"])], **{**CHOICES, "doc_to_target": "answer"})
    assert (found.code, "' green' differs only in spaces" in found.do) == ("PF701", True)


def test_a_gold_answer_in_other_letter_case_is_reported_with_the_choice_that_is_meant() -> None:
    (found,) = findings([choice_doc("Green")], **{**CHOICES, "doc_to_target": "answer"})
    assert (found.code, "'green' differs only in letter case" in found.do) == ("PF701", True)


def test_a_gold_index_that_is_text_is_reported_with_the_filter_that_makes_it_a_number() -> None:
    (found,) = findings([choice_doc("1")], **{**CHOICES, "doc_to_target": "answer"})
    assert (found.code, "write 1|int" in found.do) == ("PF701", True)


def test_choices_that_are_the_same_or_empty_are_one_finding() -> None:
    assert [one.code for one in findings([choice_doc(0, ["red", "blue", "blue"])], **CHOICES)] == ["PF705"]
    assert [one.code for one in findings([choice_doc(0, ["red", " "])], **CHOICES)] == ["PF704"]


def test_a_function_that_reads_a_column_no_template_names_fails_on_real_docs_alone() -> None:
    def process_results(doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, float]:
        return {"acc": float(doc["labels"][max(range(len(results)), key=lambda index: results[index][0])])}

    given: dict[str, Any] = {**CHOICES, "process_results": process_results}
    assert codes(findings([choice_doc(0)], **given)) == ["PF109"]
    assert findings([choice_doc(0)], synthetic=True, **given) == []


def test_a_scorer_that_crashes_is_one_finding() -> None:
    def scorer(doc: Mapping[str, Any], _results: Any) -> dict[str, float]:
        return {"acc": doc["mc2_targets"]["labels"][0]}

    (found,) = findings([choice_doc(0)], process_results=scorer, metric_list=[{"metric": "acc"}], **CHOICES)
    assert (found.code, "KeyError: 'mc2_targets'" in found.saw) == ("PF109", True)


def test_a_scorer_that_crashes_on_an_empty_completion_alone_is_reported() -> None:
    def scorer(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
        return {"exact_match": float(results[0].split()[0] == doc["answer"])}

    found = {one.code: one.saw for one in findings([{"question": "?", "answer": "yes"}], process_results=scorer)}
    assert "IndexError" in found["PF604"]
    assert set(found) == {"PF604"}


def test_a_scorer_that_takes_the_wrong_choice_is_reported() -> None:
    def scorer(doc: Mapping[str, Any], results: Sequence[tuple[float, bool]]) -> dict[str, float]:
        best = max(range(len(results)), key=lambda index: results[index][0])
        return {"acc": float(best == (doc["answer"] + 1) % 3)}

    found = findings([choice_doc(0)], process_results=scorer, metric_list=[{"metric": "acc"}], **CHOICES)
    assert "PF605" in codes(found)


@pytest.mark.parametrize(("names", "expected"), [(("known",), ["PF605"]), (("known", "exact"), [])])
def test_a_scorer_that_takes_the_gold_of_any_doc_is_reported_without_a_stricter_one(
    names: Sequence[str], expected: list[str]
) -> None:
    def scored(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
        answer = results[0].strip(" .\n")
        values = {"known": answer in ("iron", "tin"), "exact": answer == doc["answer"]}
        return {name: float(values[name]) for name in names}

    docs = [{"question": "?", "answer": gold} for gold in ("iron", "tin")]
    metrics = [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in names]
    assert codes(findings(docs, process_results=scored, metric_list=metrics)) == expected


@pytest.mark.parametrize(("synthetic", "code"), [(False, "PF109"), (True, "PF604")])
def test_mutual_information_with_several_golds_is_one_finding_whatever_the_docs_are(synthetic: bool, code: str) -> None:
    (found,) = findings(
        [choice_doc([0, 1])],
        synthetic=synthetic,
        **{**CHOICES, "doc_to_target": "answer", "metric_list": [{"metric": "acc_mutual_info"}]},
    )
    assert (found.code, found.do) == (code, "use one gold answer: acc_mutual_info does not support several")


def exact(**arguments: Any) -> list[dict[str, Any]]:
    return [{"metric": "exact_match", **arguments}]


def test_arguments_that_the_metric_does_not_take_are_one_finding() -> None:
    found = findings([{"question": "?", "answer": "yes"}], metric_list=exact(weight_by_size=True))
    assert [one.code for one in found] == ["PF109"]


def test_an_empty_gold_answer_is_reported() -> None:
    assert codes(findings([{"question": "Who?", "answer": " "}])) == ["PF601"]


def test_a_gold_answer_that_normalises_to_nothing_is_reported_and_not_what_follows_from_it() -> None:
    found = findings([{"question": "Which operator?", "answer": "+"}], metric_list=exact(ignore_punctuation=True))
    assert [one.code for one in found] == ["PF601"]


SAMPLES = [
    {"question": "Question: 2 + 2?", "answer": "2 and 2 is 4. The answer is 4"},
    {"question": "Question: 3 + 4?", "answer": "3 and 4 is 7. The answer is 7"},
    {"question": "Question: 4 + 4?", "answer": "4 and 4 is 8. The answer is 8"},
]
COT: dict[str, Any] = {"num_fewshot": 2, "pool": SAMPLES}
SUM = [{"question": "Question: 1 + 1?", "answer": "2"}]


def test_a_stop_sequence_that_cuts_an_example_is_one_finding() -> None:
    found = findings(SUM, generation_kwargs={"until": [".", "Question:"]}, **COT)
    assert [one.code for one in found] == ["PF903"]


@pytest.mark.parametrize(("answer", "stop"), [("St. Louis", "."), ("Louis", "Louis")])
def test_a_stop_sequence_within_the_gold_answer_is_one_finding(answer: str, stop: str) -> None:
    docs = [{"question": "Where?", "answer": answer}]
    assert [one.code for one in findings(docs, generation_kwargs={"until": [stop]})] == ["PF903"]


@pytest.mark.parametrize(
    ("until", "found"),
    [
        ([["</s>"], "\n\n"], ["PF902"]),
        (["\\n"], ["PF902"]),
        (["Q:", "</s>"], ["PF910"]),
        (["</s>"], ["PF910"]),
        (["<|eot_id|>"], ["PF910"]),
        (["is 7", "is 8", "is 4"], ["PF903"]),
    ],
)
def test_stop_sequences_that_stop_nothing_are_reported_by_one_rule_each(until: list[Any], found: list[str]) -> None:
    assert codes(findings(SUM, generation_kwargs={"until": until}, **COT)) == found


@pytest.mark.parametrize(
    ("stop", "pattern", "severity"),
    [
        ("</s>", "", "error"),
        ("</s>", r"answer is (\d+)", "warning"),
        ("</s>", r"answer is \d+\s+Question: (\d+)|answer is (\d+)", "error"),
        ("<|eot_id|>", "", "info"),
    ],
)
def test_generating_on_is_as_bad_as_what_filters_read_then(stop: str, pattern: str, severity: str) -> None:
    steps = [{"function": "regex", "regex_pattern": pattern}, {"function": "take_first"}]
    given: dict[str, Any] = {"filter_list": [{"name": "x", "filter": steps}]} if pattern else {}
    found = findings(SUM, generation_kwargs={"until": [stop]}, **COT, **given)
    assert [str(one.severity) for one in found if one.code == "PF910"] == [severity]


def test_a_stop_that_ends_the_answers_of_examples_is_enough() -> None:
    pool = [{**sample, "answer": f"{sample['answer']}\n[/ANSWER]"} for sample in SAMPLES]
    found = findings(SUM, generation_kwargs={"until": ["[/ANSWER]"]}, num_fewshot=2, pool=pool)
    assert "PF910" not in codes(found)


def test_a_scorer_that_counts_ties_as_right_is_reported() -> None:
    def generous(doc: Mapping[str, Any], results: Sequence[tuple[float, bool]]) -> dict[str, float]:
        scores = [score for score, _ in results]
        return {"acc": float(scores[doc["answer"]] == max(scores))}

    def last_of_equals(doc: Mapping[str, Any], results: Sequence[tuple[float, bool]]) -> dict[str, float]:
        order = sorted(range(len(results)), key=lambda index: results[index][0])
        return {"acc": float(order[-1] == doc["answer"])}

    docs = [choice_doc(1), choice_doc(2)]
    assert codes(findings(docs, process_results=generous, **CHOICES)) == ["PF605"]
    assert findings(docs, process_results=last_of_equals, **CHOICES) == []


def test_an_empty_completion_is_right_where_a_doc_has_nothing_to_find() -> None:
    def names(text: str) -> set[str]:
        return {each for each in text.split(", ") if each.istitle()}

    def same(references: Sequence[str], predictions: Sequence[str]) -> float:
        return float(names(references[0]) == names(predictions[0]))

    metric = [{"metric": same, "aggregation": "mean", "higher_is_better": True}]
    docs = [{"question": "Who?", "answer": "none"}, {"question": "Who?", "answer": "Ann, Bo"}]
    assert not [one for one in findings(docs, metric_list=metric) if "empty" in one.message]


def test_a_metric_of_the_task_may_need_more_than_synthetic_docs_hold(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text(
        "import json\n\ndef fits(references, predictions):\n    return float(json.loads(references[0]) == 1)\n", "utf-8"
    )
    (tmp_path / "t.yaml").write_text(
        "task: t\ntest_split: test\ndataset_path: d\noutput_type: generate_until\ndoc_to_text: '{{schema}}'\n"
        "doc_to_target: '{{schema}}'\nmetric_list: [{metric: !function helper.fits, aggregation: mean}]\n",
        "utf-8",
    )
    [task] = load_tasks(tmp_path / "t.yaml")
    assert not check_scoring(study_of(task, tmp_path), SELECTION, is_linted=True).findings


def test_what_no_stop_sequence_ends_is_the_same_finding_for_all_data() -> None:
    seen = set()
    for topic in ("rivers", "stars"):
        pool = [{"question": f"How many {topic} are {number}?", "answer": str(number)} for number in range(3)]
        asked: dict[str, Any] = {"doc_to_text": "Question: {{question}}\nAnswer:", "pool": pool, "num_fewshot": 2}
        found = findings(SUM, generation_kwargs={"until": ["</s>"]}, **asked)
        seen |= {(one.message, one.saw) for one in found}
    ((_, saw),) = seen
    assert saw == r"until has '</s>', but after an answer comes '\n\nQuestion: …'"


def test_a_stop_sequence_of_another_width_is_reported_with_the_reason() -> None:
    docs = [{"question": "问题：1 + 1?", "answer": "2"}, {"question": "问题：2 + 2?", "answer": "4"}]
    docs += [{"question": "问题：3 + 3?", "answer": "6"}]
    (found,) = findings(docs, num_fewshot=2, generation_kwargs={"until": ["问题:", "</s>"]})
    assert (found.code, "width" in found.do) == ("PF910", True)
    assert findings(docs, num_fewshot=2, generation_kwargs={"until": ["问题："]}) == []


@pytest.mark.parametrize(
    ("name", "reads", "expected"),
    [("refused", False, []), ("acc", False, ["PF605"]), ("refused", True, ["PF605"])],
)
def test_a_rate_is_no_scorer_that_forgets_the_gold_answer(name: str, reads: bool, expected: list[str]) -> None:
    def scored(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
        is_known = "answer" in doc or not reads
        return {name: float(is_known and any(word in results[0] for word in ("cannot", "sorry")))}

    docs = [{"question": "?", "answer": "I cannot help"}, {"question": "!", "answer": "sorry, no"}]
    metric = [{"metric": name, "aggregation": "mean", "higher_is_better": True}]
    assert codes(findings(docs, process_results=scored, metric_list=metric)) == expected


def test_a_limit_of_words_is_a_rate_although_short_answers_all_keep_it() -> None:
    def process_results(doc: Any, results: Any) -> dict[str, Any]:
        return {"short": float(len(results[0].split()) <= 5)}

    docs = [{"text": "The mill burnt down.", "short": "Mill burnt"}, {"text": "Ida sold it.", "short": "Ida sold"}]
    metric = [{"metric": "short", "aggregation": "mean", "higher_is_better": True}]
    task: dict[str, Any] = {"doc_to_text": "{{text}}\nShorter:", "doc_to_target": "{{short}}"}
    assert codes(findings(docs, process_results=process_results, metric_list=metric, **task)) == []


@pytest.mark.parametrize(("shots", "expected"), [(0, []), (1, ["PF605"])])
def test_a_target_that_code_does_not_read_matters_where_few_shot_examples_show_it(
    shots: int, expected: list[str]
) -> None:
    def process_results(doc: Any, results: Any) -> dict[str, Any]:
        return {"acc": float(results[0].strip() == doc["result"])}

    docs = [{"q": "5 + 6?", "why": "Five more.", "result": "11"}, {"q": "7 x 2?", "why": "Twice it.", "result": "14"}]
    metric = [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]
    task: dict[str, Any] = {"doc_to_text": "{{q}} Answer:", "doc_to_target": "{{why}}", "num_fewshot": shots}
    found = findings(docs, process_results=process_results, metric_list=metric, **task)
    assert [code for code in codes(found) if code == "PF605"] == expected


@pytest.mark.parametrize(("reads", "expected"), [("int", []), ("first", ["PF605"])])
def test_a_number_written_in_another_way_is_no_wrong_answer(reads: str, expected: list[str]) -> None:
    def process_results(doc: Any, results: Any) -> dict[str, Any]:
        digits = re.findall(r"\d+", results[0])
        said = digits[0] if digits else "none"
        is_right = said.isdigit() and int(said if reads == "int" else said[0]) == doc["count"]
        return {"acc": float(is_right)}

    docs = [{"question": "How many legs has a snake?", "count": 0}, {"question": "A bird?", "count": 2}]
    task: dict[str, Any] = {"doc_to_text": "{{question}} Answer:", "doc_to_target": "{{count}}"}
    found = findings(docs, process_results=process_results, metric_list=[{"metric": "acc"}], **task)
    assert [code for code in codes(found) if code == "PF605"] == expected


@pytest.mark.parametrize(("compares", "expected"), [("set", ["PF605"]), ("list", [])])
def test_the_words_of_the_prompt_in_their_order_are_no_answer(compares: str, expected: list[str]) -> None:
    made = {"set": set, "list": list}[compares]

    def scored(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
        return {"acc": float(made(results[0].strip().split(", ")) == made(doc["answer"].split(", ")))}

    docs = [
        {"question": words, "answer": ", ".join(sorted(words.split(", ")))} for words in ("fig, apple", "moss, fern")
    ]
    metric = [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]
    assert codes(findings(docs, process_results=scored, metric_list=metric)) == expected
