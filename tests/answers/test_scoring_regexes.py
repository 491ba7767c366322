"""Regexes that backtrack without end are stopped within their budget, in any thread, and the run goes on."""

from __future__ import annotations

import re
import signal
import threading
import time

import pytest

from pytest_promptfmt.core.errors import LimitExceededError, ScoringError
from pytest_promptfmt.systems.lm_eval.scoring import regexes
from pytest_promptfmt.systems.lm_eval.scoring.regexes import within_budget

# Patterns of the shapes that were measured in shipped extractors (spec, peers.md 5.4), with inputs that hurt them.
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
        within_budget(re.findall, pattern, text, what=f"filter on {name}", seconds=0.2)
    assert within_budget(re.findall, "a", "banana", what="the next one") == ["a"] * 3


def in_a_thread(pattern: str, text: str) -> list[object]:
    results: list[object] = []

    def work() -> None:
        try:
            results.append(within_budget(re.findall, pattern, text, what="the filter", seconds=1.0))
        except Exception as error:
            results.append(type(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return results


def test_outside_the_main_thread_a_worker_process_is_ended_instead() -> None:
    assert in_a_thread("[0-9]+", "42 and 7") == [["42", "7"]]
    assert in_a_thread(*ATTACKS["nested quantifiers"]) == [LimitExceededError]
    assert in_a_thread("[0-9]+", "after it") == [[]]
    assert in_a_thread("(", "broken") == [re.error]


def test_without_signals_a_worker_process_is_ended_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regexes, "_worker", regexes._Worker())
    monkeypatch.delattr(signal, "setitimer")  # as on Windows
    pattern, text = ATTACKS["nested quantifiers"]
    with pytest.raises(LimitExceededError, match=r"the filter did not finish within 0\.2 s of processor"):
        within_budget(re.findall, pattern, text, what="the filter", seconds=0.2)
    assert within_budget(re.findall, "a", "banana", what="the next one") == ["a"] * 3
    with pytest.raises(LimitExceededError, match=r"work did not finish within 0\.2 s"):
        within_budget(sum, range(40_000_000), what="work", seconds=0.2)


def test_time_in_which_nothing_is_done_is_not_counted() -> None:
    assert within_budget(time.sleep, 0.5, what="sleep", seconds=0.1) is None
    with pytest.raises(LimitExceededError, match=r"sleep did not finish within 0\.2 s"):
        within_budget(time.sleep, 10, what="sleep", seconds=0.01)


def test_what_cannot_travel_to_the_worker_is_told() -> None:
    results: list[object] = []

    def work() -> None:
        try:
            within_budget(lambda: 1, what="a lambda")
        except ScoringError as error:
            results.append(error.hint)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == ["run it in the main thread, or define the function at the top level of a module"]
