"""Jobs in worker processes: order, limits, guilt, and nothing left behind. Real processes, real limits."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.engine import workers
from pytest_promptfmt.engine.processes import CAN_FORK, Limits, uninterrupted
from pytest_promptfmt.engine.workers import Lost, Pool

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="worker processes need fork")

Made = Callable[..., Pool]


@pytest.fixture
def pool() -> Iterator[Made]:
    made: list[Pool] = []

    def make(run: Callable[[int], Any], *, count: int = 2, **limits: Any) -> Pool:
        def run_all(job: tuple[int, ...]) -> Sequence[Any]:
            return [run(number) for number in job]

        made.append(Pool(run_all, count=count, limits=Limits(**limits)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_results_come_by_number_in_any_order_of_asking(pool: Made) -> None:
    jobs = pool(lambda number: number * number)
    jobs.plan((first, first + 1) for first in range(0, 40, 2))
    asked = [7, 0, 39, *(n for n in range(40) if n not in (7, 0, 39))]
    assert [jobs.result(number) for number in asked] == [number * number for number in asked]


def test_a_number_that_was_not_planned_runs_when_it_is_asked_for(pool: Made) -> None:
    assert pool(lambda number: number + 1).result(4) == 5


def test_a_signal_that_comes_before_a_block_leaves_no_signal_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    before, change = signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.pthread_sigmask

    def interrupted(how: int, mask: Sequence[int]) -> object:
        found = change(how, mask)
        if how == signal.SIG_BLOCK and mask:  # as if the handler of an earlier signal ran now
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(signal, "pthread_sigmask", interrupted)
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        pass
    assert change(signal.SIG_BLOCK, ()) == before


def test_results_that_nobody_requested_are_there_when_a_run_is_cut(pool: Made) -> None:
    jobs = pool(lambda number: number * 2, count=1)
    jobs.plan([(0, 1, 2)])
    assert jobs.result(1) == 2
    assert jobs.finished() == {0: 0, 2: 4}


def test_jobs_run_in_other_processes_than_this_one(pool: Made) -> None:
    jobs = pool(lambda _: os.getpid())
    jobs.plan([(1,), (2,)])
    assert os.getpid() not in {jobs.result(1), jobs.result(2)}


@pytest.mark.slow
def test_a_job_that_works_without_end_is_killed_and_the_others_keep_their_results(pool: Made) -> None:
    def run(number: int) -> int:
        while number == 2:
            pass
        return number

    jobs = pool(run, processor=1.0)
    jobs.plan([(1, 2, 3), (4,)])
    assert [jobs.result(number) for number in (1, 3, 4)] == [1, 3, 4]
    lost = jobs.result(2)
    assert isinstance(lost, Lost)
    assert lost.reason == "processor"


def test_a_job_that_ends_its_process_is_found_by_running_its_numbers_alone(pool: Made) -> None:
    def run(number: int) -> int:
        if number == 1:
            os._exit(3)
        return number

    jobs = pool(run)
    jobs.plan([(0, 1, 2)])
    assert jobs.result(1) == Lost("ended", 3)
    assert (jobs.result(0), jobs.result(2)) == (0, 2)


def test_memory_has_an_absolute_ceiling_whoever_ran_before(pool: Made) -> None:
    kept: list[bytearray] = []

    def run(number: int) -> int:
        size = {0: 150, 1: 150, 2: 600}.get(number, 0) * 2**20
        kept.append(bytearray(b"x") * size)  # is never given back
        return number

    jobs = pool(run, count=1, memory=400 * 2**20, retire=2**40)
    jobs.plan([(0,), (1,), (2,), (3,)])
    assert [jobs.result(number) for number in (0, 1, 3)] == [0, 1, 3]
    lost = jobs.result(2)
    assert isinstance(lost, Lost)
    assert lost.reason == "memory"


def test_a_worker_that_holds_much_is_replaced_after_its_job(pool: Made) -> None:
    kept = []

    def run(number: int) -> int:
        kept.append(bytearray(b"x") * 2**27)
        return os.getpid()

    jobs = pool(run, count=1, retire=2**26)
    jobs.plan([(0,), (1,)])
    assert jobs.result(0) != jobs.result(1)


def test_a_worker_that_has_done_many_jobs_is_replaced(pool: Made) -> None:
    jobs = pool(lambda _number: os.getpid(), count=1, jobs=2)
    jobs.plan([(number,) for number in range(4)])
    first, second, third, fourth = (jobs.result(number) for number in range(4))
    assert first == second != third == fourth


def test_a_worker_that_is_started_late_has_as_much_memory_as_the_first(pool: Made) -> None:
    def run(number: int) -> int:
        if number == 1:
            os._exit(1)
        return len(bytearray(2**27))

    jobs = pool(run, count=1, memory=2**28)
    assert jobs.result(0) == 2**27
    mine = bytearray(b"x") * 2**28  # what its owner takes meanwhile is in the next worker, too
    assert isinstance(jobs.result(1), Lost)
    assert jobs.result(2) == 2**27
    assert mine


def test_a_job_that_only_waits_is_ended(pool: Made) -> None:
    def run(number: int) -> int:
        if number == 1:
            time.sleep(3600)
        return number

    jobs = pool(run, waiting=0.6)
    jobs.plan([(0, 1)])
    lost = jobs.result(1)
    assert isinstance(lost, Lost)
    assert lost.reason == "waiting"
    assert jobs.result(0) == 0


def test_a_job_that_works_is_not_taken_for_one_that_waits(pool: Made) -> None:
    def run(number: int) -> int:
        end = time.process_time() + 1.5
        while time.process_time() < end:
            pass
        return number

    assert pool(run, waiting=0.6, processor=60.0).result(1) == 1


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at /proc")
def test_a_job_that_holds_off_the_signal_of_its_limit_is_killed_all_the_same(pool: Made) -> None:
    def run(number: int) -> int:
        signal.signal(signal.SIGXCPU, signal.SIG_IGN)
        while number == 1:
            pass
        return number

    jobs = pool(run, processor=1.0, waiting=0.5)
    jobs.plan([(0,), (1,), (2,)])
    assert [jobs.result(number) for number in (0, 2)] == [0, 2]
    lost = jobs.result(1)
    assert isinstance(lost, Lost)
    assert lost.reason == "processor"


def test_a_job_that_waits_for_a_busy_processor_is_not_taken_for_one_that_waits(
    pool: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(number: int) -> int:
        time.sleep(2)
        return number

    monkeypatch.setattr(workers, "used_seconds", lambda _group: (0.0, time.monotonic()))
    assert pool(run, waiting=0.6).result(1) == 1


def test_a_worker_that_ends_before_it_begins_is_started_again(tmp_path: Path) -> None:
    def prepare() -> None:
        with (tmp_path / "starts").open("a") as file:
            file.write(".")
        if (tmp_path / "starts").stat().st_size < 3:
            os._exit(1)

    jobs = Pool(lambda job: [*job], count=1, limits=Limits(), prepare=prepare)
    assert jobs.result(1) == 1
    jobs.close()


def test_the_workers_that_the_system_allows_do_all_jobs(pool: Made) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(number for number in range(4096) if _is_open(number))
    jobs = pool(lambda number: number, count=64)
    jobs.plan((number,) for number in range(100))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 20, limits[1]))
        assert [jobs.result(number) for number in range(100)] == [*range(100)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def pipes() -> set[int]:
    found = set()
    for number in range(3, 4096):
        with contextlib.suppress(OSError):
            if stat.S_ISFIFO(os.fstat(number).st_mode):
                found.add(number)
    return found


@pytest.mark.parametrize("forged", [b"\x00\x00\x00\x02[]", b"\x00\x00\x00\x01x", b"\xff\xff\xff\xff"])
def test_what_a_job_writes_to_the_pipe_of_its_worker_is_no_result(pool: Made, forged: bytes) -> None:
    known = pipes()

    def run(number: int) -> int:
        if number == 1:
            for pipe in pipes() - known:
                with contextlib.suppress(OSError):
                    os.write(pipe, forged)
        return number

    jobs = pool(run)
    jobs.plan([(0,), (1,), (2,)])
    assert [jobs.result(number) for number in (0, 2)] == [0, 2]
    assert isinstance(jobs.result(1), Lost)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def gone(pids: Sequence[int]) -> bool:
    deadline = time.monotonic() + 900
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(is_alive, pids))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at /proc")
def test_children_of_a_job_end_with_the_pool(pool: Made) -> None:
    def run(_: int) -> int:
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]).pid

    jobs = pool(run)
    child = jobs.result(0)
    assert is_alive(child)
    jobs.close()
    assert gone([child])


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at /proc")
def test_a_process_without_a_parent_in_a_session_of_its_own_ends_with_the_pool(pool: Made, tmp_path: Path) -> None:
    def run(_: int) -> int:
        started = tmp_path / "pid"
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                (tmp_path / "new").write_text(str(os.getpid()), "utf-8")
                (tmp_path / "new").rename(started)
                time.sleep(3600)
            os._exit(0)
        os.wait()
        while not started.exists():
            time.sleep(0.01)
        return int(started.read_text("utf-8"))

    jobs = pool(run)
    child = jobs.result(0)
    assert is_alive(child)
    jobs.close()
    assert gone([child])


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at /proc")
def test_a_child_that_holds_the_pipe_does_not_hide_that_its_worker_ended(pool: Made) -> None:
    def run(number: int) -> int:
        if number == 0 and os.fork() == 0:
            time.sleep(3600)
        if number == 0:
            os._exit(4)
        return number

    jobs = pool(run)
    jobs.plan([(0, 1)])
    assert jobs.result(0) == Lost("ended", 4)
    assert jobs.result(1) == 1


OWNER = """
import os, signal, sys, time, subprocess
from pytest_promptfmt.engine.processes import Limits
from pytest_promptfmt.engine.workers import Pool
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored
def run(job):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]).pid
    return [[os.getpid(), child] for _ in job]
pool = Pool(run, count=2, limits=Limits())
print(*pool.result(0), *pool.result(1), flush=True)
time.sleep(3600)
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_when_the_owner_is_ended(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as owner:
        assert owner.stdout is not None
        started = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(started) == 4
        owner.send_signal(number)
        owner.wait()
    assert gone(started)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at /proc")
def test_a_killed_worker_costs_no_result(pool: Made) -> None:
    jobs = pool(lambda number: [number, os.getpid()])
    jobs.plan((number,) for number in range(60))
    for number in range(60):
        found, worker = jobs.result(number)
        assert found == number
        if number % 10 == 0:
            with contextlib.suppress(ProcessLookupError):  # it sent this result before it was killed for another one
                os.kill(worker, signal.SIGKILL)
