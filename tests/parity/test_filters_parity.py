"""Every filter and filter pipeline gives what lm_eval 0.4.13's own gives, value for value and error for error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from pytest_promptfmt.core.errors import ScoringError
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.tasks.scoring.filters import FILTERS, pipelines_of

pytest.importorskip("lm_eval")
pytestmark = pytest.mark.parity

PIECES = [
    "A",
    "B",
    "(A)",
    "(C)",
    ": B",
    "Guilty",
    "Guilty of Romance",
    "12",
    "-3.5",
    "#### 42",
    "#### 1,234.",
    " ",
    "\n",
]
PIECES += [
    "the answer is ",
    "The Answer Is (B)",
    "person: Ann",
    "location: ",
    "none",
    " $$ ",
    "$",
    ",",
    "date :",
    "ß",
    "İ",
]
PIECES += ["('dog', 'NOUN')", "('runs', 'VERB')", "。", "“Paris”", "paris", "[invalid]", "", ".", "\u00a0", "é", "per:"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)
VALUES = TEXTS | st.none() | st.integers(-3, 99) | st.lists(TEXTS, max_size=2)
PATTERNS = st.sampled_from(
    [
        r"#### (\-?[0-9\.\,]+)",
        r"(\([A-Z]\))",
        r"([A-D])|(\d+)",
        r"(?<=the answer is )(.*)(?=.)",
        r"\d*",
        "(",
        r"(A)?(B)?",
        r"(?i)answer is\s*\(?([a-d])\)?",
        ".",
        r"\s+",
        r"(?s).*",
    ]
)
FALLBACKS = st.sampled_from(["[invalid]", "", "A", None, 0])
REGEX: dict[str, Any] = {"regex_pattern": PATTERNS, "group_select": st.integers(-2, 2), "fallback": FALLBACKS}
ARGUMENTS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "regex": st.fixed_dictionaries({}, optional=REGEX),
    "multi_choice_regex": st.fixed_dictionaries(
        {},
        optional={
            **REGEX,
            "ignore_case": st.booleans(),
            "ignore_punctuation": st.booleans(),
            "regexes_to_ignore": st.none() | st.lists(PATTERNS, max_size=2),
        },
    ),
    "regex_pos": st.fixed_dictionaries({}, optional=REGEX),
    "map": st.fixed_dictionaries(
        {},
        optional={
            "mapping_dict": st.dictionaries(st.sampled_from(PIECES), st.integers(), max_size=5) | st.just([1]),
            "default_value": FALLBACKS,
        },
    ),
    "take_first_k": st.fixed_dictionaries({}, optional={"k": st.integers(0, 3), "more": st.none()}),
    "remove_whitespace": st.fixed_dictionaries({}, optional={"more": st.none()}),
    "custom": st.fixed_dictionaries(
        {}, optional={"filter_fn": st.just(lambda resps, docs: [[len(docs), *each] for each in resps])}
    ),
}
NO_ARGUMENTS: st.SearchStrategy[dict[str, Any]] = st.sampled_from([{}, {"more": 1}])
DOCS = st.lists(
    st.fixed_dictionaries(
        {}, optional={"choices": st.lists(st.sampled_from([*PIECES, " Paris "]), max_size=5) | st.just([1, 2])}
    ),
    min_size=1,
    max_size=3,
)


@pytest.fixture(autouse=True)
def _small_punctuation_table(monkeypatch: pytest.MonkeyPatch) -> None:
    # lm-eval looks at every character of Unicode in each application, .3 s; those in use here lie below this one.
    from lm_eval.filters import extraction

    monkeypatch.setattr(extraction, "sys", SimpleNamespace(maxunicode=0x3100))


def steps() -> st.SearchStrategy[dict[str, Any]]:
    return st.sampled_from(sorted(FILTERS)).flatmap(
        lambda name: ARGUMENTS.get(name, NO_ARGUMENTS).map(lambda given: {"function": name, **given})
    )


def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    try:
        return "value", call()
    except Exception as error:
        return "error", type(error)


def theirs(pipeline: Sequence[Mapping[str, Any]], responses: list[list[Any]], docs: list[dict[str, Any]]) -> Any:
    from lm_eval.api.instance import Instance
    from lm_eval.filters import build_filter_ensemble

    parts = [(step["function"], {k: v for k, v in step.items() if k != "function"}) for step in pipeline]
    ensemble = build_filter_ensemble("x", parts)
    instances = [Instance("generate_until", doc, (), 0) for doc in docs]
    for instance, repeats in zip(instances, responses, strict=True):
        instance.resps = list(repeats)
    ensemble.apply(instances)
    return [instance.filtered_resps["x"] for instance in instances]


def ours(pipeline: Sequence[Mapping[str, Any]], responses: list[list[Any]], docs: list[dict[str, Any]]) -> Any:
    task = Task(name="t", filter_list=[{"name": "x", "filter": pipeline}])
    return pipelines_of(task)[0].apply(responses, docs)


@pytest.mark.parametrize("name", sorted(FILTERS))
def test_each_filter_gives_what_lm_evals_gives(name: str) -> None:
    @settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(st.data())
    def compare(data: st.DataObject) -> None:
        step = {"function": name, **data.draw(ARGUMENTS.get(name, NO_ARGUMENTS))}
        docs = data.draw(DOCS)
        responses = [data.draw(st.lists(VALUES, max_size=3)) for _ in docs]
        assert outcome(lambda: ours([step], responses, docs)) == outcome(lambda: theirs([step], responses, docs))

    compare()


@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.data())
def test_rows_of_filters_give_what_lm_evals_give(data: st.DataObject) -> None:
    pipeline = data.draw(st.lists(steps(), min_size=1, max_size=4))
    docs = data.draw(DOCS)
    responses = [data.draw(st.lists(TEXTS, min_size=1, max_size=3)) for _ in docs]
    assert outcome(lambda: ours(pipeline, responses, docs)) == outcome(lambda: theirs(pipeline, responses, docs))


def test_the_same_filters_are_registered() -> None:
    import lm_eval.filters  # noqa: F401
    from lm_eval.api.registry import filter_registry

    assert sorted(FILTERS) == sorted(filter_registry)


@pytest.mark.parametrize("name", ["decontaminate", "noop", "regx"])
def test_unknown_filters_are_refused_when_the_task_is_built(name: Any) -> None:
    from lm_eval.api.registry import get_filter

    with pytest.raises(ScoringError, match="unknown filter"):
        pipelines_of(Task(name="t", filter_list=[{"name": "x", "filter": [{"function": name}]}]))
    with pytest.raises(KeyError):
        get_filter(name)
