"""How answers are read and scored, as lines: what lm-eval assumes is written out, and functions are names."""

from functools import partial
from pathlib import Path

import pytest

from pytest_promptfmt.core.errors import Position
from pytest_promptfmt.core.task import FunctionRef, Task
from pytest_promptfmt.tasks.scoring.results import reading_of, task_reading


class Reader:
    def __init__(self, *_numbers: int, deep: object = None) -> None: ...

    def read(self) -> None:
        """Do nothing."""


def test_what_lm_eval_assumes_is_written_out() -> None:
    assert task_reading(Task(name="one")) == {
        "filter none": "take_first()",
        "metric exact_match": 'aggregation="mean", higher_is_better=true',
        "repeats": "1",
    }
    assert list(task_reading(Task(name="one", output_type="multiple_choice")))[1:3] == ["metric acc", "metric acc_norm"]


def test_functions_are_shown_by_name_and_never_by_address() -> None:
    written = FunctionRef("utils", "score", Path("/somewhere"), Position(Path("task.yaml")))
    steps = [{"function": partial(Reader, 3, deep=[Reader])}, {"function": "custom", "filter_fn": Reader().read}]
    lines = reading_of(
        {
            "filter_list": [{"name": "own", "filter": steps}],
            "metric_list": [{"metric": written, "aggregation": lambda values: values, "extra": object()}],
            "process_results": written,
        }
    )
    assert lines == {
        "filter own": 'Reader(3, deep=["Reader"])() → custom(filter_fn=Reader.read)',
        "metric !function utils.score": "aggregation="
        'test_functions_are_shown_by_name_and_never_by_address.<locals>.<lambda>, extra="<builtins.object>"',
        "repeats": "1",
        "process_results": "!function utils.score",
    }


def test_keys_of_several_types_have_an_order() -> None:
    assert reading_of({"repeats": {"b": {1: 2, None: 3}, 1: "a"}})["repeats"] == '{"1": "a", "b": {"1": 2, "None": 3}}'


@pytest.mark.parametrize("refused", [3, "take_first", [3], [{"name": "x"}], [{"filter": ["take_first"]}]])
def test_what_lm_eval_refuses_stands_as_it_is_written(refused: object) -> None:
    assert any(name.startswith("filter ") for name in reading_of({"filter_list": refused}))
