"""Limits of processor time interrupt what does not end, nest, and leave nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from slices import needs

from pytest_promptfmt.core.errors import LimitExceededError
from pytest_promptfmt.core.limits import are_applied, go_offline, time_limit

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")


def spin() -> None:
    while True:
        pass


def spin_and_swallow() -> None:
    while True:
        try:
            spin()
        except BaseException:
            if time.process_time() > spin_and_swallow.until:  # type: ignore[attr-defined]
                raise


def limited(work, seconds: float = 0.05) -> None:  # type: ignore[no-untyped-def]
    with time_limit(seconds, "the work"):
        work()


def test_a_run_is_offline_unless_the_user_has_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_promptfmt.core.limits._set_here", set())
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE"):
        monkeypatch.setenv(name, "0")
    monkeypatch.delenv("HF_DATASETS_OFFLINE")
    go_offline()
    assert [os.environ[name] for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")] == ["0", "1"]


def test_an_endless_loop_ends_with_a_message_that_names_the_work_and_the_limit() -> None:
    with pytest.raises(LimitExceededError, match=r"the work did not finish within 0\.05 s of processor time"):
        limited(spin)


def test_a_swallowed_interruption_comes_again() -> None:
    spin_and_swallow.until = time.process_time() + 0.15  # type: ignore[attr-defined]
    with pytest.raises(LimitExceededError):
        limited(spin_and_swallow)


def test_an_interruption_that_is_swallowed_for_good_still_counts() -> None:
    def swallow() -> None:
        try:
            spin()
        except BaseException:
            return

    with pytest.raises(LimitExceededError):
        limited(swallow)


def test_an_interruption_turned_into_another_error_is_kept_as_the_cause() -> None:
    def translate() -> None:
        try:
            spin()
        except BaseException:
            raise ValueError("mine") from None

    with pytest.raises(LimitExceededError) as caught:
        limited(translate)
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_backtracking_regular_expression_ends() -> None:
    with pytest.raises(LimitExceededError):
        limited(lambda: re.match(r"(a+)+$", "a" * 60 + "b"))


def test_errors_and_results_of_quick_work_pass_through() -> None:
    with pytest.raises(KeyError), time_limit(5, "x"):
        raise KeyError("k")
    with time_limit(5, "x"):
        value = 1
    assert value == 1


def test_time_in_which_nothing_is_done_does_not_count() -> None:
    with time_limit(0.05, "x"):
        time.sleep(0.2)


@pytest.mark.parametrize("seconds", [0, float("inf")])
def test_zero_and_infinity_mean_no_limit(seconds: float) -> None:
    with time_limit(seconds, "x"):
        time.sleep(0.01)


def test_an_inner_limit_leaves_the_outer_one_running() -> None:
    def inner_then_more() -> None:
        with pytest.raises(LimitExceededError, match="inner"), time_limit(0.05, "inner"):
            spin()
        spin()

    with pytest.raises(LimitExceededError, match="outer"), time_limit(0.2, "outer"):
        inner_then_more()


def test_an_outer_limit_ends_an_inner_block_with_more_time() -> None:
    with pytest.raises(LimitExceededError, match="outer"), time_limit(0.05, "outer"), time_limit(5, "inner"):
        spin()


def test_no_timer_stays_behind() -> None:
    with time_limit(5, "x"):
        pass
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)


def test_limits_hold_in_the_main_thread_alone() -> None:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(are_applied()))
    thread.start()
    thread.join()
    assert found == [False]
    assert are_applied()


NOTEBOOK = """
import re, signal
from pytest_promptfmt.core.limits import are_applied, time_limit
with time_limit(0.01, "x"):
    sum(range(3_000_000))
assert not are_applied()
assert signal.getsignal(signal.SIGPROF) == signal.SIG_DFL
"""


CHECKED = """
import signal
from pytest_promptfmt import check_template
from pytest_promptfmt.profiles import conversation
conversation._TEMPLATE_SECONDS = 0.2
slow = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{{ messages }}"
assert "did not finish within" in check_template(slow)[0].saw
assert signal.getsignal(signal.SIGPROF) == signal.SIG_DFL
signal.signal(signal.SIGPROF, own := lambda *_: None)
assert check_template("{{ messages[0].content }}")
assert signal.getsignal(signal.SIGPROF) is own
"""


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(NOTEBOOK, id="a limit"),
        pytest.param(CHECKED, id="check_template", marks=needs("templates")),
    ],
)
def test_nothing_is_interrupted_in_a_process_that_did_not_ask_for_limits(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_limits_that_end_just_when_they_are_lifted_leave_nothing_behind() -> None:
    pattern, text = re.compile(r"\s+$"), " " * 900 + "!"
    for step in range(1500):
        try:
            with time_limit(0.0005 + step * 1e-6, "the match"):
                pattern.search(text)
        except LimitExceededError:
            continue
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)
