"""Time limits interrupt what does not end, and leave the timers of others as they were."""

from __future__ import annotations

import re
import signal
import threading
import time

import pytest

from pytest_promptfmt.core.errors import LimitExceededError
from pytest_promptfmt.core.limits import time_limit

posix = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")


def spin() -> None:
    while True:
        pass


def spin_and_swallow() -> None:
    while True:
        try:
            spin()
        except BaseException:
            if time.monotonic() > spin_and_swallow.until:  # type: ignore[attr-defined]
                raise


def in_thread(work) -> BaseException | None:  # type: ignore[no-untyped-def]
    """Return what `work` raised when run in a thread that is not the main one."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    return raised[0] if raised else None


def limited(work, seconds: float = 0.05) -> None:  # type: ignore[no-untyped-def]
    with time_limit(seconds, "the work"):
        work()


def test_endless_loop_ends_with_a_message_that_names_the_work_and_the_limit() -> None:
    with pytest.raises(LimitExceededError, match=r"the work did not finish within 0\.05 s"):
        limited(spin)


def test_endless_loop_in_another_thread_ends_too() -> None:
    assert isinstance(in_thread(lambda: limited(spin)), LimitExceededError)


def test_swallowed_interruption_comes_again() -> None:
    spin_and_swallow.until = time.monotonic() + 0.15  # type: ignore[attr-defined]
    with pytest.raises(LimitExceededError):
        limited(spin_and_swallow)


def test_swallowed_interruption_comes_again_in_another_thread() -> None:
    spin_and_swallow.until = time.monotonic() + 0.15  # type: ignore[attr-defined]
    assert isinstance(in_thread(lambda: limited(spin_and_swallow)), LimitExceededError)


def test_interruption_that_is_swallowed_for_good_still_counts() -> None:
    def swallow() -> None:
        try:
            spin()
        except BaseException:
            return

    with pytest.raises(LimitExceededError):
        limited(swallow)
    assert isinstance(in_thread(lambda: limited(swallow)), LimitExceededError)


def test_interruption_turned_into_another_error_is_kept_as_the_cause() -> None:
    def translate() -> None:
        try:
            spin()
        except BaseException:
            raise ValueError("mine") from None

    with pytest.raises(LimitExceededError) as caught:
        limited(translate)
    assert isinstance(caught.value.__cause__, ValueError)


def test_backtracking_regular_expression_ends() -> None:
    with pytest.raises(LimitExceededError):
        limited(lambda: re.match(r"(a+)+$", "a" * 60 + "b"))


def test_errors_and_results_of_quick_work_pass_through() -> None:
    with pytest.raises(KeyError), time_limit(5, "x"):
        raise KeyError("k")
    with time_limit(5, "x"):
        value = 1
    assert value == 1
    assert isinstance(in_thread(lambda: limited(lambda: {"a": 1}["k"], 5)), KeyError)


def hoard() -> None:
    kept = []
    while True:
        kept.append(bytearray(b"x") * 1_000_000)


def test_work_that_takes_more_and_more_memory_ends_with_a_message_that_says_how_much() -> None:
    def limited_hoard() -> None:
        with time_limit(30, "the work", memory=2**26):
            hoard()

    with pytest.raises(LimitExceededError, match="the work took more than 64 MB of memory"):
        limited_hoard()
    assert isinstance(in_thread(limited_hoard), LimitExceededError)


@posix
def test_memory_is_still_watched_while_an_inner_limit_runs() -> None:
    def inner_hoard() -> None:
        with time_limit(30, "inner"):
            hoard()

    with pytest.raises(LimitExceededError, match="outer took more"), time_limit(30, "outer", memory=2**26):
        inner_hoard()


@posix
def test_time_is_up_as_ever_where_memory_is_watched() -> None:
    with pytest.raises(LimitExceededError, match="did not finish"), time_limit(0.3, "the work", memory=2**40):
        spin()
    with time_limit(5, "the work", memory=2**40):
        time.sleep(0.3)


@pytest.mark.parametrize("seconds", [0, float("inf")])
def test_zero_and_infinity_mean_no_limit(seconds: float) -> None:
    with time_limit(seconds, "x"):
        time.sleep(0.01)


@posix
def test_inner_limit_leaves_the_outer_one_running() -> None:
    def inner_then_more() -> None:
        with pytest.raises(LimitExceededError, match="inner"), time_limit(0.05, "inner"):
            spin()
        spin()

    with pytest.raises(LimitExceededError, match="outer"), time_limit(0.2, "outer"):
        inner_then_more()


@posix
def test_outer_limit_ends_an_inner_block_with_more_time() -> None:
    with pytest.raises(LimitExceededError, match="outer"), time_limit(0.05, "outer"), time_limit(5, "inner"):
        spin()


@posix
def test_timer_and_handler_of_others_are_put_back_with_the_time_they_had_left() -> None:
    rang: list[int] = []

    def handler(number: int, frame: object) -> None:
        rang.append(number)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 30)
        with time_limit(5, "x"):
            time.sleep(0.02)
        left, interval = signal.getitimer(signal.ITIMER_REAL)
        assert 0 < left < 30
        assert interval == 0
        assert signal.getsignal(signal.SIGALRM) is handler
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with time_limit(5, "x"):
            while not rang:
                time.sleep(0.005)
        assert rang == [signal.SIGALRM]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@posix
def test_no_timer_stays_behind() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with time_limit(5, "x"):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) is before
