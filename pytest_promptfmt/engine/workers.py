"""Worker processes: jobs run there, in order, under limits of the operating system.

A job is a row of numbers that `run` understands; its result is what JSON can hold. A worker is a copy of this process
as it was when the worker was started, so that it knows what those numbers stand for. Processor time is limited, never
the time that passes: a verdict does not depend on how busy the machine is. A job that ends its worker is run again
number by number, each in a new worker, which shows the guilty one; the others keep their results.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import selectors
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pytest_promptfmt.engine.plan import Job, Plan
from pytest_promptfmt.engine.processes import (
    Inbox,
    Reaper,
    Resident,
    data_bytes,
    end_group,
    forked,
    limit_memory,
    limit_processor_time,
    receive,
    send,
    worked_seconds,
)

_QUEUED: Final = 2
"""Jobs that a worker has before it: the next is there when one is done."""

_IDLE: Final = 0.01
"""The part of the time in which a job works that only waits: one that asks over and over uses a little."""

_TRIES: Final = 2
"""How often a job of one number is tried again whose worker ended for no reason that is known."""

_OUT_OF_MEMORY: Final = b"MemoryError"
"""Where a result mentions it, code may have caught it, and gone on with less."""

_LOOK_SECONDS: Final = 0.5
"""How often it is looked whether workers are alive and at work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a worker may use.

    `processor` is in seconds for each number of a job, `memory` in bytes that a worker may hold besides what it
    began with, `waiting` in seconds
    with next to no processor time used. One that holds more than `retire` bytes besides that after a job is replaced.
    """

    processor: float = 60.0
    memory: int = 2**30
    waiting: float = 30.0
    retire: int = 3 * 2**28


Reason = Literal["processor", "memory", "waiting", "ended"]


@dataclass(frozen=True, slots=True)
class Lost:
    """What became of a number that ended its worker: over one of the limits, or by ending the process itself.

    `status` is the exit status of the worker, negative for the number of a signal; `limit` is in the unit of the limit.
    """

    reason: Reason
    status: int = 0
    limit: float = 0


@dataclass(slots=True, eq=False)
class _Worker:
    """One worker process as its owner sees it: `given` are its jobs, the first of them under way."""

    pid: int
    jobs: int
    results: int
    inbox: Inbox = field(default_factory=Inbox)
    given: deque[Job] = field(default_factory=deque)
    group: int | None = None
    done: int = 0
    since: float = 0.0
    worked: float | None = None
    baseline: float | None = None
    status: int | None = None

    def begin(self) -> None:
        """Take note that the next job begins now."""
        self.since, self.worked, self.baseline = time.monotonic(), None, None

    def has_ended(self) -> bool:
        """Return whether the process is gone; its exit status is then known."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None


class Pool:
    """Up to `count` workers that run jobs; results are kept until they are asked for.

    `run` is called in a worker with the numbers of a job and returns its results, one for each; `prepare` is called
    once at the start of each worker. Numbers are asked for in their order; `ahead` is how far beyond the last that was
    asked for a job may begin.
    """

    def __init__(
        self,
        run: Callable[[Job], Sequence[Any]],
        *,
        count: int,
        limits: Limits,
        prepare: Callable[[], None] = lambda: None,
        ahead: int = 2048,
    ) -> None:
        self._run = run
        self._prepare = prepare
        self._count = count
        self._limits = limits
        self._ahead = ahead
        self._owner = os.getpid()
        self._plan = Plan()
        self._asked = 0
        self._results: dict[int, Any] = {}
        self._known: set[int] = set()
        self._ended: Counter[int] = Counter()
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self._reaper: Reaper | None = None
        self._looked = 0.0
        atexit.register(self.close)

    def plan(self, jobs: Iterable[Job]) -> None:
        """Have these jobs done after those planned before; they have much in common, best done by one worker."""
        group = [*jobs]
        self._plan.add(group)
        self._known.update(itertools.chain.from_iterable(group))

    def result(self, number: int) -> Any:
        """Return the result of a number, or a `Lost`; a number that was not planned is a job of its own.

        Each can be asked for once. Raises OSError where no process can be started.
        """
        if number not in self._known:
            self._plan.put_back((number,))
        self._asked = number
        while number not in self._results:
            self._give()
            self._wait()
        self._give()
        self._known.discard(number)
        return self._results.pop(number)

    def close(self) -> None:
        """End every worker with all that it started. Nothing can be asked afterwards."""
        atexit.unregister(self.close)
        if os.getpid() != self._owner:
            return
        for worker in [*self._workers]:
            self._end(worker)
        self._plan.clear()
        if self._reaper is not None:
            self._reaper.close()
            self._reaper = None
        self._selector.close()

    # -- giving jobs out -----------------------------------------------------------------------------------------------

    def _give(self) -> None:
        """Give waiting jobs to workers that have room, and start workers while there is work for them."""
        before = self._asked + self._ahead
        while self._plan.has_any(before):
            free = min(self._workers, key=lambda worker: len(worker.given), default=None)
            if (free is None or free.given) and len(self._workers) < self._count:
                free = self._start()
            if free is None or len(free.given) >= _QUEUED:
                return
            others = {worker.group for worker in self._workers if worker is not free}
            job, free.group = self._plan.take(free.group, others, before)
            self._hand(free, job)

    def _hand(self, worker: _Worker, job: Job) -> None:
        if not worker.given:
            worker.begin()
        worker.given.append(job)
        with suppress(OSError):  # it has ended, which is seen when its results are read
            send(worker.jobs, job)

    def _start(self) -> _Worker:
        if self._reaper is None:
            self._reaper = Reaper()
        jobs_read, jobs_write = os.pipe()
        results_read, results_write = os.pipe()
        others = [pipe for worker in self._workers for pipe in (worker.jobs, worker.results)]

        def begin() -> None:
            if self._reaper is not None:
                self._reaper.leave()
            for pipe in (jobs_write, results_read, *others):
                os.close(pipe)
            self._work(jobs_read, results_write)

        pid = forked(begin)
        os.close(jobs_read)
        os.close(results_write)
        self._reaper.watch(pid)
        worker = _Worker(pid, jobs_write, results_read)
        self._workers.append(worker)
        self._selector.register(results_read, selectors.EVENT_READ, worker)
        return worker

    # -- in a worker ---------------------------------------------------------------------------------------------------

    def _work(self, jobs: int, results: int) -> None:
        limits = self._limits
        limit_memory(data_bytes() + limits.memory)  # what the process holds that it is a copy of is nobody's fault
        resident = Resident()
        before = resident.bytes()
        self._prepare()
        is_first = True
        while True:
            try:
                job: Job = tuple(receive(jobs))
            except EOFError:
                return
            limit_processor_time(limits.processor * len(job))
            try:
                found: Any = list(self._run(job))
            except MemoryError:
                found = None
            is_full = resident.bytes() - before > limits.retire
            send(results, [found, is_first, is_full])
            is_first = False

    # -- results -------------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Take what workers have sent, and look after those that say nothing."""
        for key, _ in self._selector.select(_LOOK_SECONDS):
            self._read(key.data)
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            for worker in [*self._workers]:
                self._look_after(worker, now)

    def _read(self, worker: _Worker) -> None:
        try:
            content = os.read(worker.results, 1 << 20)
            messages = [(json.loads(written), written) for written in worker.inbox.add(content)]
        except (OSError, ValueError):  # nothing more, or nothing that a worker says
            content, messages = b"", []
        for message, written in messages:
            if not worker.given or not _is_result(message, worker.given[0]):
                content = b""  # code of a task wrote to the pipe of its worker
                break
            found, was_first, is_full = message
            job = worker.given.popleft()
            worker.begin()
            if found is None or (not was_first and _OUT_OF_MEMORY in written):
                # Whatever ran in this worker before may be why: only a new one tells.
                self._replace(worker, [job] if was_first else [], Lost("memory", limit=self._limits.memory))
                if not was_first:
                    self._plan.put_back(job)
                return
            self._results.update(zip(job, found, strict=True))
            worker.done += 1
            if is_full:
                self._replace(worker, [], None)
                return
        if not content:
            self._gone(worker)

    def _look_after(self, worker: _Worker, now: float) -> None:
        """Notice a worker that has ended while others hold its pipe open, or that waits for something for too long."""
        if worker.has_ended():
            self._read_rest(worker)
            return
        if not worker.given or now - worker.since < self._limits.waiting:
            return
        worked = worked_seconds(worker.pid)
        if worked is not None:
            worker.baseline = worked if worker.baseline is None else worker.baseline
            job, limit = worker.given[0], self._limits.processor
            if worked - worker.baseline > limit * len(job):  # it holds off the signal of the operating system
                self._replace(worker, [worker.given.popleft()], Lost("processor", limit=limit))
                return
        if worked is not None and (worker.worked is None or worked - worker.worked > _IDLE * (now - worker.since)):
            worker.since, worker.worked = now, worked
            return
        self._replace(worker, [worker.given.popleft()], Lost("waiting", limit=self._limits.waiting))

    def _read_rest(self, worker: _Worker) -> None:
        """Read what a worker that has ended had still sent, then let it go."""
        os.set_blocking(worker.results, False)
        while worker in self._workers:
            self._read(worker)

    def _gone(self, worker: _Worker) -> None:
        """Take the job under way from a worker that has ended."""
        patience = time.monotonic() + _LOOK_SECONDS
        while not worker.has_ended() and time.monotonic() < patience:
            time.sleep(0.001)  # it has closed its pipe, which is the last that it does
        status = worker.status or 0
        lost = Lost("processor", status, self._limits.processor) if status == -signal.SIGXCPU else Lost("ended", status)
        self._replace(worker, [worker.given.popleft()] if worker.given else [], lost)

    def _replace(self, worker: _Worker, guilty: Sequence[Job], lost: Lost | None) -> None:
        """End a worker; its jobs go to others: those that were `guilty` of its end one number at a time."""
        again = [*worker.given]
        self._end(worker)
        for job in reversed(again):
            self._plan.put_back(job)
        for job in guilty:
            if len(job) == 1 and self._is_proved(job[0], lost):
                self._results[job[0]] = lost
                continue
            for number in reversed(job):
                self._plan.put_back((number,))

    def _is_proved(self, number: int, lost: Lost | None) -> bool:
        """Return whether a job of one number is why its worker ended; else it is tried again."""
        if lost is None or lost.reason != "ended":
            return True
        self._ended[number] += 1
        return self._ended[number] > _TRIES

    def _end(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        self._selector.unregister(worker.results)
        for pipe in (worker.jobs, worker.results):
            os.close(pipe)
        end_group(worker.pid, is_over=worker.status is not None)
        if self._reaper is not None:
            with suppress(OSError):
                self._reaper.forget(worker.pid)


def _is_result(message: Any, job: Job) -> bool:
    """Return whether a message is the result of a job: of each of its numbers, or None."""
    if not isinstance(message, list) or len(message) != 3:
        return False
    found = message[0]
    return found is None or (isinstance(found, list) and len(found) == len(job))
