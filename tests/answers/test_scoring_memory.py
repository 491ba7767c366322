"""What is remembered of equal inputs: tasks that differ in anything that matters have verdicts of their own."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pytest_promptfmt.answers import trials
from pytest_promptfmt.answers.completions import Chain
from pytest_promptfmt.answers.metric_scores import aggregated_in_time
from pytest_promptfmt.core.docs import TaskDocs
from pytest_promptfmt.core.errors import LimitExceededError, TooSlowError
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.study.scoring import Scoring
from pytest_promptfmt.tasks.renderer import TaskRenderer
from pytest_promptfmt.tasks.scoring.budget import ValueCache, _shortened, plain_key, within_budget
from pytest_promptfmt.tasks.scoring.results import Question

SCALARS = (
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, -0.0, 1.0, 0.5]) | st.text("01a", max_size=2)
)
PLAIN = st.recursive(
    SCALARS,
    lambda parts: (
        st.lists(parts, max_size=3)
        | st.lists(parts, max_size=3).map(tuple)
        | st.dictionaries(SCALARS, parts, max_size=2)
    ),
    max_leaves=6,
)


def regex(pattern: str = r"(\d)", **more: Any) -> dict[str, Any]:
    return {"function": "regex", "regex_pattern": pattern, **more}


def chain(*filters: Mapping[str, Any], stops: Sequence[str] = (), name: str = "x", **more: Any) -> Chain:
    steps = [*filters, {"function": "take_first"}]
    return Chain(Task(name="t", filter_list=[{"name": name, "filter": steps}], **more), stops)


def read(chain: Chain, raw: str) -> Any:
    (pipeline,) = chain.pipelines
    stages = chain.read(pipeline, raw, {}, "a text")
    return stages.extracted if stages.problem is None else stages.problem


# -- keys --------------------------------------------------------------------------------------------------------------


@given(PLAIN, PLAIN)
def test_keys_are_equal_for_values_that_are_written_alike(one: Any, other: Any) -> None:
    assert plain_key(one) is not None
    assert (plain_key(one) == plain_key(other)) == (repr(one) == repr(other))


def test_objects_have_no_key() -> None:
    class Text(str):
        pass

    itself: list[Any] = []
    itself.append(itself)
    for value in (Text("a"), str.upper, object(), [Text("a")], {"a": [str.upper]}, {Text("a"): 1}, itself):
        assert plain_key(value) is None


def test_a_memory_forgets_before_it_holds_too_much() -> None:
    memory: ValueCache[str] = ValueCache(most=2_000)
    for number in range(50):
        assert memory.keep(number, "v" * 400, 400) == "v" * 400
        assert memory.get(number) == "v" * 400
    assert sum(memory.get(number) is not None for number in range(50)) <= 3


# -- readings ----------------------------------------------------------------------------------------------------------

RAW = "Say <1>, or 2.</think> Then Three 3 and 4. END 5"
READINGS: Sequence[tuple[Mapping[str, Any], Any]] = [
    ({"filters": [regex()]}, "3"),
    ({"filters": [regex(group_select=1)]}, "4"),
    ({"filters": [regex(group_select=-1)]}, "5"),
    ({"filters": [regex(group_select=-1)], "stops": ("END",)}, "4"),
    ({"filters": [regex()], "metadata": {"promptfmt": {"think_end_token": None}}}, "1"),
    ({"filters": [regex(), {"function": "map", "mapping_dict": {"3": "c"}}]}, "c"),
    ({"filters": [regex(), {"function": "map", "mapping_dict": {"3": "d"}}]}, "d"),
    ({"filters": [regex("(no)", fallback="none")]}, "none"),
    ({"filters": [regex("(no)", fallback="nothing")]}, "nothing"),
    ({"filters": [{"function": "lowercase"}, regex("((?i:th)\\w+)")]}, "then"),
    ({"filters": [{"function": "uppercase"}, regex("((?i:th)\\w+)")]}, "THEN"),
    ({"filters": [regex(), {"function": "take_first_k", "k": 2}], "repeats": 2}, "3"),
    ({"filters": [regex(), {"function": "take_first_k", "k": 2}]}, "CRASH: AssertionError: take_first_k needs 2"),
]


@pytest.mark.parametrize("order", [1, -1])
def test_each_pipeline_reads_for_itself_what_others_read_before(order: int) -> None:
    for given_, expected in [*READINGS, *READINGS][::order]:
        task = dict(given_)
        assert str(read(chain(*task.pop("filters"), **task), RAW)).startswith(expected)


def test_what_is_read_by_a_function_is_read_each_time() -> None:
    seen: list[Any] = []

    def noted(responses: Any, docs: Any) -> Any:
        seen.append(docs)
        return responses

    task = chain({"function": "custom", "filter_fn": noted})
    assert [read(task, RAW), read(task, RAW)] == [RAW.partition("</think> ")[2]] * 2
    assert len(seen) == 2


@pytest.mark.parametrize("draws", [False, True])
def test_answers_are_read_at_once_unless_a_filter_draws(draws: bool) -> None:
    """What a filter draws must not depend on how many answers were read before, and how fast."""
    calls: list[int] = []

    def noted(responses: Any, docs: Any) -> Any:
        calls.append(len(responses))
        return [[f"{each[0]}{random.randrange(100) if draws else ''}"] for each in responses]

    task, doc = chain({"function": "custom", "filter_fn": noted}), {"n": 1}
    random.seed(1)
    first = random.random()
    random.seed(1)
    task.expect([("a", doc), ("b", doc)])
    assert random.random() == first
    (pipeline,) = task.pipelines
    assert str(task.read(pipeline, "b", doc, "a text").extracted).startswith("b")
    assert calls == ([2, 1] if draws else [2])


def test_a_list_that_filters_give_is_not_shared() -> None:
    task = Task(name="t", repeats=2, filter_list=[{"name": "x", "filter": [{"function": "take_first_k", "k": 2}]}])
    one, other = Chain(task, ()), Chain(task, ())
    first, second = read(one, "a"), read(other, "a")
    assert first == second == ["a", "a"]
    assert first is not second


def test_a_slow_filter_is_told_and_counted_in_each_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(within_budget, "__kwdefaults__", {"seconds": 0.02})
    texts = [f"{'b' * 40}{number}" for number in range(10)]
    for name in ("one", "two", "one"):
        slow = chain(regex(r"^(?:b+)+c$"), name=name)
        said = [read(slow, text) for text in texts[:9]]
        assert all(
            each.startswith(f"SLOW: applying the filters '{name}' (regex '^(?:b+)+c$') to a text did") for each in said
        )
        with pytest.raises(TooSlowError, match=f"the filters '{name}'.* and 9 more of 10 completions are too slow"):
            read(slow, texts[9])


@pytest.mark.parametrize("length", [600, 20_000])
def test_a_call_whose_time_grows_with_the_length_has_a_longer_limit(length: int) -> None:
    def linear(text: str) -> int:
        until = time.process_time() + 8e-5 * len(text)  # the same on a machine of any speed
        while time.process_time() < until:
            pass
        return 0

    with (
        nullcontext() if length < 1_000 else pytest.raises(LimitExceededError, match=r"within 0\.4 s of processor time")
    ):
        assert within_budget(linear, "x" * length, what="it", seconds=0.02) == 0


@given(st.text("abc", max_size=60), st.integers(0, 80))
def test_a_shortened_text_keeps_its_beginning_and_its_end(text: str, length: int) -> None:
    made = _shortened(text, length)
    assert len(made) == min(length, len(text))
    kept = min(8, len(made) // 2)
    assert text.startswith(made[: len(made) - kept])
    assert text.endswith(made[len(made) - kept :])


def test_a_call_that_takes_as_long_for_any_text_is_not_measured_again_for_each_text() -> None:
    calls = []

    def constant(text: str) -> int:
        calls.append(text)
        until = time.process_time() + 0.02
        while time.process_time() < until:
            pass
        return 0

    least: list[float] = []
    for number in range(10):
        assert within_budget(constant, f"The answer is {number}.", least, what="it", seconds=0.02 * 20) == 0
    assert len(calls) == 11


# -- scores ------------------------------------------------------------------------------------------------------------


def question(target: Any = "a b", **more: Any) -> Question:
    return Question(output_type="generate_until", target=target, **more)


def metric(name: str = "exact_match", **more: Any) -> Sequence[Mapping[str, Any]]:
    return [{"metric": name, **more}]


SCORES: Sequence[tuple[Sequence[Mapping[str, Any]], Question, str, float | None]] = [
    (metric(), question(), "a b", 1),
    (metric(), question(), "A B", 0),
    (metric(), question("A B"), "A B", 1),
    (metric(ignore_case=True), question(), "A B", 1),
    (metric(ignore_punctuation=True), question(), "a b.", 1),
    (metric(regexes_to_ignore=["A"]), question("c"), "Ac", 1),
    (metric(regexes_to_ignore=["B"]), question("c"), "Ac", 0),
    (metric(higher_is_better=False), question(), "a b", -1),
    (metric(), question(0, choices=["a b", "c"]), "a b", 1),
    (metric(), question(1, choices=["a b", "c"]), "a b", 0),
    (metric(), question(1, choices=["c", "a b"]), "a b", 1),
    (metric(), question(["c", "a b"], has_several_targets=True), "a b", 1),
    (metric(), question(1), "1", 1),
    (metric(), question(True), "1", 0),
    (metric(), question(1.0), "1", 0),
    (metric("bypass"), question(), "a b", None),
    ([*metric("bypass"), *metric()], question(), "a b", 1),
    (metric("chrf"), question(), "a b", 100),
    (metric("chrf", aggregation="ter"), question(), "a b", 0),
    (metric(aggregation="chrf"), question(), "a b", 1),
    (metric("chrf", aggregation="ter", higher_is_better=False), question(), "a c", -50),
    (metric("ter"), question(), "c b", -50),
    (metric("ter", higher_is_better=True), question(), "c b", 50),
]


@pytest.mark.parametrize("order", [1, -1])
def test_each_task_scores_for_itself_what_others_scored_before(order: int) -> None:
    pytest.importorskip("sacrebleu", reason="chrF and TER are sacrebleu's")
    for metrics, asked, extracted, expected in [*SCORES, *SCORES][::order]:
        task = chain(metric_list=metrics)
        found = task.score(asked, {}, extracted)
        assert found == (expected if expected is None else pytest.approx(expected)), (metrics, asked, extracted)


@pytest.mark.parametrize("order", [1, -1])
def test_values_are_aggregated_for_each_metric_and_each_value(order: int) -> None:
    pytest.importorskip("sacrebleu", reason="chrF and TER are sacrebleu's")
    cases = [("chrf", "a b", 100), ("ter", "a b", 0), ("ter", "a c", 50), ("ter", "c d", 100)]
    for aggregation, answer, expected in [*cases, *cases][::order]:
        (one,) = chain(metric_list=metric("chrf", aggregation=aggregation)).metrics
        assert aggregated_in_time(one, [("a b", answer)], what="a metric") == pytest.approx(expected)


def test_what_a_function_scores_is_scored_each_time() -> None:
    seen: list[Any] = []

    def noted(doc: Any, results: Any) -> dict[str, float]:
        seen.append(results)
        return {"acc": float(doc["right"] == results[0])}

    task = chain(process_results=noted, metric_list=metric("acc"))
    assert [task.score(question(), {"right": right}, "a") for right in "aba"] == [1, 0, 1]
    assert len(seen) == 3


def test_a_score_that_is_too_slow_counts_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sacrebleu", reason="TER is sacrebleu's")
    monkeypatch.setattr(within_budget, "__kwdefaults__", {"seconds": 0.02})

    def hanging(items: Any) -> float:
        while len(items[0][1]) > 1_000:
            pass
        return 1.0

    task = chain(metric_list=metric("chrf", aggregation=hanging))
    for _ in range(2):
        with pytest.raises(Exception, match="the metrics on words did not finish"):
            task.try_scoring(question(), {}, "so it goes " * 1_000, "the metrics on words")


# -- choices -----------------------------------------------------------------------------------------------------------


def hinted(doc: Mapping[str, Any], results: Any) -> dict[str, float]:
    return {"acc": float(doc["hint"])}


TEXT = {"doc_to_text": "{{q}}", "doc_to_target": "{{gold}}", "doc_to_choice": "{{choices}}"}
CHOICES: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]] = [
    ({}, {"q": "?", "gold": 0, "choices": ["ab", "c"]}),
    ({}, {"q": "?", "gold": 1, "choices": ["ab", "c"]}),
    ({}, {"q": "?", "gold": 0, "choices": [" ab", " c"]}),
    ({}, {"q": "?", "gold": 0, "choices": ["ab", "c", "def"]}),
    ({}, {"q": "?", "gold": [0, 1], "choices": ["ab", "c"]}),
    ({"metric_list": metric("acc")}, {"q": "?", "gold": 0, "choices": ["ab", "c"]}),
    ({"metric_list": metric("acc_mutual_info")}, {"q": "?", "gold": 0, "choices": ["ab", "c"]}),
    ({"doc_to_text": "slot"}, {"slot": 0, "gold": 0, "choices": ["ab", "c"]}),
    ({"doc_to_text": "slot"}, {"slot": 1, "gold": 0, "choices": ["ab", "c"]}),
    (
        {"process_results": hinted, "metric_list": metric("acc")},
        {"q": "?", "gold": 0, "choices": ["ab", "c"], "hint": 0},
    ),
    (
        {"process_results": hinted, "metric_list": metric("acc")},
        {"q": "?", "gold": 0, "choices": ["ab", "c"], "hint": 1},
    ),
]


def tried(keys: Mapping[str, Any], doc: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    task = Task(name="t", output_type="multiple_choice", **{**TEXT, "doc_to_target": "gold", **keys})
    docs = TaskDocs.in_memory([doc])
    scoring = Scoring(task=task, docs=docs, instances=tuple(TaskRenderer(task, docs).instances()))
    (trial,) = trials._trials(scoring).choices
    return [dict(one) for one in (trial.gold_best, trial.other_best, trial.all_equal)]


def test_each_task_tries_its_own_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = []
    for keys, doc in CHOICES:
        monkeypatch.setattr(trials, "_scored_before", ValueCache(0))
        alone.append(tried(keys, doc))
    assert alone[0][0] == {"acc": 1.0, "acc_norm": 1.0}
    monkeypatch.setattr(trials, "_scored_before", ValueCache(1_000_000))
    for order in (1, -1):
        assert [tried(*one) for one in CHOICES[::order]] == alone[::order]
