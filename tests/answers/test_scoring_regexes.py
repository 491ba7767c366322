"""What backtracks without end is stopped within its budget; what takes long because the text is long is not."""

from __future__ import annotations

import re
import threading
import time
from functools import partial

import pytest
from hypothesis import given, settings, strategies as st

from pytest_promptfmt.core.errors import LimitExceededError
from pytest_promptfmt.tasks.scoring.budget import within_budget

# Patterns of the shapes that were measured in shipped extractors, with inputs that hurt them.
ATTACKS = {
    "three blank-capable runs": (r"(?i)^ANSWER\s*:\s*([A-Za-z\d ,]+)\s*(?:$|\n)", "ANSWER:" + " " * 4000 + "!"),
    "leading dot star": (r".*[aA]nswer:\s*([A-J])", "answer:" * 16_000),
    "lookahead with dot star": (r"(?s)\b[A-J]\b(?!.*\b[A-J]\b)", "A " * 20_000 + "words " * 20_000),
    "think blocks": (r"(?s)<think>.*?</think>", "<think>" * 40_000),
    "newline runs": (r"\n+\s*$", "\n" * 60_000 + "!"),
    "nested quantifiers": (r"\\boxed\{(?:[^{}]+|\{[^{}]*\})*\}", r"\boxed{" + "a" * 40),
}


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_a_pattern_that_backtracks_is_stopped(name: str) -> None:
    pattern, text = ATTACKS[name]
    with pytest.raises(LimitExceededError, match=f"filter on {name} did not finish within 0.2 s"):
        within_budget(partial(re.findall, pattern), text, what=f"filter on {name}", seconds=0.2)
    assert within_budget(partial(re.findall, "a"), "banana", what="the next one") == ["a"] * 3


def work_on(text: str) -> int:
    """Return the number of characters, after the same work for each of them."""
    return sum(len([*range(400)]) > 0 for _ in text)


def test_work_that_grows_as_the_text_does_may_take_longer_than_the_budget() -> None:
    text = "word " * 20_000
    began = time.process_time()
    assert work_on(text) == len(text)
    took = time.process_time() - began
    assert within_budget(work_on, text, what="counting", seconds=took / 4) == len(text)


def pairs(text: str) -> int:
    """Return how many pairs of characters are equal, after looking at each pair."""
    return sum(one == other for one in text for other in text)


def test_where_nothing_is_interrupted_too_slow_is_said_all_the_same() -> None:
    def run() -> None:
        for size in (2_500, 10):
            try:
                found.append(within_budget(pairs, "ab" * size, what="the pairs", seconds=1))
            except LimitExceededError as error:
                found.append(error.message)

    found: list[object] = []
    thread = threading.Thread(target=run)  # limits hold in the main thread alone
    thread.start()
    thread.join()
    assert found == ["the pairs: the processor time grows too fast with the length of the text", 200]


def test_work_that_grows_too_fast_is_too_slow_also_when_it_ends_in_time() -> None:
    # Far more than the tenth of the budget from which growth is requested, and less than the budget.
    with pytest.raises(LimitExceededError, match="the pairs: the processor time grows too fast with the length"):
        within_budget(pairs, "ab" * 1500, what="the pairs", seconds=1)


def test_time_in_which_nothing_is_done_is_not_counted() -> None:
    assert within_budget(lambda _: time.sleep(0.5), "x", what="sleep", seconds=0.1) is None


@given(st.text(max_size=200))
@settings(max_examples=50)
def test_what_a_quick_call_gives_or_raises_comes_through(text: str) -> None:
    assert within_budget(str.upper, text, what="upper") == text.upper()
    with pytest.raises(KeyError):
        within_budget({}.__getitem__, text, what="a look-up")


def test_what_is_no_text_is_scored_as_it_is() -> None:
    assert within_budget(len, ["a", "b"], what="a list") == 2


def test_a_call_that_takes_long_once_is_not_refused() -> None:
    calls = []

    def work(text: str) -> int:
        calls.append(len(text))
        return pairs("ab" * 1500) if len(calls) == 1 else pairs(text)

    assert within_budget(work, "ab" * 500, what="the pairs", seconds=2) == pairs("ab" * 1500)
