"""Jobs that wait: each is handed out once, none too early, and those of one group to one worker while that can be."""

from __future__ import annotations

from collections import deque

from hypothesis import given, strategies as st

from pytest_promptfmt.engine.plan import Job, Plan

ALL = 10**9


def plan_of(*sizes: int) -> tuple[Plan, list[list[Job]]]:
    """Return a plan with groups of so many jobs, each of two numbers, and those groups."""
    plan, number = Plan(), 0
    groups: list[list[Job]] = []
    for size in sizes:
        groups.append([(first, first + 1) for first in range(number, number + 2 * size, 2)])
        plan.add(groups[-1])
        number += 2 * size
    return plan, groups


@given(st.lists(st.integers(0, 12), max_size=8), st.lists(st.integers(0, 2)), st.integers(1, 40))
def test_each_job_is_handed_out_once_whoever_asks_and_none_beyond_what_may_begin(
    sizes: list[int], asking: list[int], ahead: int
) -> None:
    plan, groups = plan_of(*sizes)
    jobs = [job for group in groups for job in group]
    turns, has, taken, asked = deque(asking), dict.fromkeys(range(3), None), [], 0
    for _ in jobs:
        while not plan.has_any(asked + ahead):  # whoever asks in order goes on with what has been handed out
            asked += 1
            assert any(asked in job for job in jobs)
        worker = turns.popleft() if turns else 0
        others = {group for each, group in has.items() if each != worker}
        job, has[worker] = plan.take(has[worker], others, asked + ahead)
        assert job[0] < asked + ahead
        taken.append(job)
    assert sorted(taken) == jobs
    assert not plan.has_any(ALL)


def test_each_of_two_workers_keeps_to_a_group_and_helps_with_the_last() -> None:
    plan, (first, second, third) = plan_of(3, 2, 5)
    got: dict[str, list[Job]] = {"a": [], "b": []}
    has: dict[str, int | None] = {"a": None, "b": None}
    for worker in "abababab":
        job, has[worker] = plan.take(has[worker], {group for each, group in has.items() if each != worker}, ALL)
        got[worker].append(job)
    assert got == {"a": [*first, third[1]], "b": [*second, third[0], third[2]]}


def test_a_group_is_left_where_it_goes_too_far_ahead() -> None:
    plan, (first, second) = plan_of(2, 2)
    job, group = plan.take(None, (), 4)
    assert (job, group) == (first[0], 0)
    job, group = plan.take(None, {0}, 4)
    assert (job, group) == (first[1], None), "the second group begins at 4"
    assert not plan.has_any(4)
    assert plan.take(None, {0}, 5)[0] == second[0]


def test_what_is_put_back_comes_first_and_is_never_too_early() -> None:
    plan, _ = plan_of(1)
    plan.put_back((90,))
    assert plan.has_any(0)
    assert plan.take(0, (), 0) == ((90,), 0)
