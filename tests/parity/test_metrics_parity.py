"""Metrics, aggregations and output types score as lm_eval 0.4.13's own code, value for value, error for error."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from pytest_promptfmt.core.task import OutputType, Task
from pytest_promptfmt.tasks.scoring.metrics import AGGREGATIONS, DEFAULT_METRICS, METRICS, metrics_of
from pytest_promptfmt.tasks.scoring.results import Question, process_results

pytest.importorskip("lm_eval")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),
]
MANY = settings(max_examples=1200, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
SOME = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)

TEXTS = st.sampled_from(
    ["A", "a", " A", "A ", "(A)", "The cat.", "42", "4,2", "", "B\n", "A\0", "Ünïcode", "７"]
) | st.text(max_size=8)
NUMBERS = st.floats(-50, 0).map(lambda number: round(number, 3)) | st.just(-1.0) | st.just(float("-inf"))


def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    try:
        return "value", plain(call())
    except Exception as error:
        return "error", type(error)


def plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return "nan" if math.isnan(value) else float(f"{value:.12g}")
    return value


def theirs(task: Task, question: Question, results: Any) -> Any:
    from lm_eval.api.registry import get_metric
    from lm_eval.api.task import ConfigurableTask

    entries = task.metric_list or [{"metric": name} for name in DEFAULT_METRICS[task.output_type]]
    own = ("metric", "aggregation", "higher_is_better", "hf_evaluate")
    stand_in = SimpleNamespace(
        config=SimpleNamespace(process_results=None, doc_to_choice=question.choices),
        OUTPUT_TYPE=question.output_type,
        _metric_fn_list={entry["metric"]: get_metric(entry["metric"]) for entry in entries},
        _metric_fn_kwargs={
            entry["metric"]: {key: value for key, value in entry.items() if key not in own} for entry in entries
        },
        _aggregation_list={},
        _higher_is_better={},
        doc_to_target=lambda _doc: question.target,
        doc_to_choice=lambda _doc: question.choices,
        doc_to_text=lambda _doc: question.text,
        multiple_target=len(question.target) if question.has_several_targets else 0,
        multiple_input=len(question.choices) if question.has_several_inputs else 0,
        count_words=ConfigurableTask.count_words,
        count_bytes=ConfigurableTask.count_bytes,
    )
    return ConfigurableTask.process_results(stand_in, {}, results)


def compare(output_type: OutputType, metric_list: Any, question: Question, results: Any) -> None:
    task = Task(name="t", output_type=output_type, metric_list=metric_list)
    expected = outcome(lambda: theirs(task, question, results))
    assert outcome(lambda: process_results(metrics_of(task), question, results)) == expected


def entries(names: list[str], arguments: st.SearchStrategy[dict[str, Any]] | None = None) -> Any:
    one = st.builds(
        lambda name, given: {"metric": name, **given}, st.sampled_from(names), arguments or st.just(dict[str, Any]())
    )
    return st.none() | st.lists(one, min_size=1, max_size=4)


EXACT = st.fixed_dictionaries(
    {},
    optional={
        "ignore_case": st.booleans(),
        "ignore_punctuation": st.booleans(),
        "ignore_numbers": st.booleans(),
        "regexes_to_ignore": st.lists(st.sampled_from([",", r"\$", "(?s).*#### ", r"\.$", "("]), max_size=2),
        "weight_by_size": st.just(True),
    },
)


@MANY
@given(st.data())
def test_generated_answers_score_as_in_lm_eval(data: st.DataObject) -> None:
    names = ["exact_match", "bleu", "chrf", "chrf++", "ter", "bypass", "acc", "f1"]
    metric_list = data.draw(entries(names, EXACT | st.just({})))
    several = data.draw(st.booleans())
    choices = data.draw(st.none() | st.lists(TEXTS, min_size=1, max_size=4))
    target = data.draw(
        st.lists(TEXTS, min_size=1, max_size=3) if several else TEXTS | st.integers(-2, 5) | st.floats(0, 9)
    )
    question = Question(output_type="generate_until", target=target, choices=choices, has_several_targets=several)
    result = data.draw(TEXTS | st.lists(TEXTS, max_size=2) | st.integers(0, 9))
    compare("generate_until", metric_list, question, [result])


@MANY
@given(st.data())
def test_multiple_choice_scores_as_in_lm_eval(data: st.DataObject) -> None:
    names = ["acc", "acc_norm", "acc_bytes", "f1", "mcc", "exact_match", "brier_score", "likelihood", "acc_mutual_info"]
    metric_list = data.draw(entries(names))
    choices = data.draw(st.lists(TEXTS, min_size=1, max_size=5))
    several = data.draw(st.booleans())
    index = st.integers(-2, 6)
    target = data.draw(st.lists(index, min_size=1, max_size=3) if several else index | TEXTS)
    inputs = not several and data.draw(st.booleans())
    count = len(choices) * (2 if data.draw(st.booleans()) else 1)
    results = [data.draw(st.tuples(NUMBERS, st.booleans())) for _ in range(count)]
    question = Question(
        output_type="multiple_choice",
        target=target,
        text=data.draw(index),
        choices=choices,
        has_several_targets=several,
        has_several_inputs=inputs,
    )
    compare("multiple_choice", metric_list, question, results)


@SOME
@given(st.data())
def test_log_likelihoods_score_as_in_lm_eval(data: st.DataObject) -> None:
    question = Question(output_type="loglikelihood", target=data.draw(TEXTS))
    metric_list = data.draw(entries(["acc", "perplexity", "bypass"]))
    compare("loglikelihood", metric_list, question, [data.draw(st.tuples(NUMBERS, st.booleans()))])


@SOME
@given(st.data())
def test_rolling_log_likelihoods_score_as_in_lm_eval(data: st.DataObject) -> None:
    question = Question(output_type="loglikelihood_rolling", target=data.draw(TEXTS | st.text(max_size=40)))
    metric_list = data.draw(entries(["word_perplexity", "byte_perplexity", "bits_per_byte", "acc"]))
    compare("loglikelihood_rolling", metric_list, question, [data.draw(NUMBERS)])


PROBABILITIES = st.lists(st.floats(0, 1).map(lambda number: round(number, 3)), min_size=3, max_size=3)
SENTENCES = st.lists(st.sampled_from(["the", "cat", "sat", "on", "mats", ".", "ein", "犬"]), max_size=7).map(" ".join)
ITEMS: dict[str, st.SearchStrategy[Any]] = {
    "bypass": st.integers(),
    "nanmean": st.floats(-5, 5) | st.just(math.nan),
    "mean": st.floats(-5, 5) | st.integers(0, 1),
    "median": st.integers(-9, 9),
    "perplexity": st.floats(-5, 5),
    "weighted_perplexity": st.tuples(st.floats(-50, 0), st.integers(0, 9)),
    "bits_per_byte": st.tuples(st.floats(-50, 0), st.integers(0, 9)),
    "f1": st.tuples(st.integers(0, 1), st.integers(0, 1)) | st.tuples(st.integers(-1, 2), st.integers(0, 1)),
    "matthews_corrcoef": st.tuples(st.integers(0, 2), st.integers(0, 2)),
    "bleu": st.tuples(SENTENCES, SENTENCES),
    "chrf": st.tuples(SENTENCES | st.lists(SENTENCES, min_size=1, max_size=2), SENTENCES),
    "chrf++": st.tuples(SENTENCES, SENTENCES | SENTENCES.map(lambda text: [text])),
    "ter": st.tuples(SENTENCES, SENTENCES),
    "brier_score": st.tuples(st.integers(-4, 3), PROBABILITIES),
}


@pytest.mark.parametrize("name", sorted(AGGREGATIONS))
def test_aggregations_give_what_lm_evals_give(name: str) -> None:
    from lm_eval.api.registry import get_aggregation

    @SOME
    @given(st.lists(ITEMS[name], max_size=6))
    def check(items: list[Any]) -> None:
        assert outcome(lambda: AGGREGATIONS[name](items)) == outcome(lambda: get_aggregation(name)(items))

    check()


@SOME
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 2), st.integers(0, 1)), max_size=6))
def test_multirc_questions_score_as_in_lm_eval(rows: list[tuple[bool, int, int, int]]) -> None:
    from lm_eval.api.registry import get_metric

    items = [(right, {"idx": {"paragraph": p, "question": q}, "label": label}) for right, p, q, label in rows]
    assert outcome(lambda: METRICS["acc_all"].function(items)) == outcome(lambda: get_metric("acc_all")(items))


def test_the_same_metrics_and_aggregations_are_registered() -> None:
    import lm_eval.api.metrics  # noqa: F401
    from lm_eval.api import registry

    assert sorted(METRICS) == sorted(registry.metric_registry)
    assert sorted(AGGREGATIONS) == sorted(registry.aggregation_registry)
    for name, metric in METRICS.items():
        assert registry.is_higher_better(name) == metric.higher_is_better
        by_name = registry.get_aggregation(metric.aggregation)
        assert registry.get_metric_aggregation(name) is by_name, name
    for output_type, names in DEFAULT_METRICS.items():
        assert list(names) == registry.DEFAULT_METRIC_REGISTRY[output_type]
