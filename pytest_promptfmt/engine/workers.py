"""Worker processes: jobs run there, in order, under limits of the operating system.

A job is a row of numbers that `run` understands; its result is JSON. A worker is a copy of this process, made when the
worker starts, so it knows which work the numbers name. Processor time is limited, never wall time: a verdict does not
depend on how busy the machine is. When a worker ends during a job, the numbers of the job run again one by one, each in
a new worker, which shows the guilty one; the others keep their results.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import selectors
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pytest_promptfmt.engine.confinement import adopt_orphans
from pytest_promptfmt.engine.plan import Job, Plan
from pytest_promptfmt.engine.processes import (
    Inbox,
    Limits,
    MemoryUse,
    Reaper,
    drop_descriptors,
    forked,
    hidden,
    limit_memory,
    limit_processor_time,
    pipe,
    receive,
    sealed_sender,
    send,
    uninterrupted,
    used_seconds,
)
from pytest_promptfmt.engine.reaper import end_group, network_of

_QUEUED: Final = 2
"""Jobs given to a worker at a time: the next is there when one is done."""

_AHEAD: Final = 2048
"""How far beyond the last requested number a job may begin."""

_IDLE: Final = 0.01
"""The share of processor time up to which a job counts as waiting: polling uses a little."""

_STARVED: Final = 0.5
"""The share of time from which a job that waits for a processor does not count as waiting: others use all of them."""

_TRIES: Final = 2
"""How often a job of one number is tried again when its worker ended for an unknown reason, or could not start."""

_KEY_BYTES: Final = 32

_OUT_OF_MEMORY: Final = b"MemoryError"
"""In a result: code may have caught the error and continued with less memory."""

_LOOK_SECONDS: Final = 0.5
"""The time between two checks whether workers are alive and at work."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The result of a number that ended its worker: over one of the limits, or by ending the process itself.

    `forged`: something else arrived than the result of the worker. `status` is the exit status of the worker, negative
    for the number of a signal, or `errno` for one that was `unstarted`; `limit` is in the unit of the limit.
    """

    reason: Literal["processor", "memory", "waiting", "ended", "forged", "unstarted"]
    status: int = 0
    limit: float = 0


@dataclass(slots=True, eq=False)
class _Worker:
    """One worker process as its owner sees it: `given` are its jobs, the first of them under way.

    `network` is the number of its own network, 0 if it shares that of its owner, None until it is ready.
    """

    pid: int
    jobs: int
    results: int
    inbox: Inbox
    given: deque[Job] = field(default_factory=deque)
    group: int | None = None
    network: int | None = None
    since: float = 0.0
    active: float | None = None
    baseline: float | None = None
    status: int | None = None

    def begin(self) -> None:
        """Note that the next job begins now."""
        self.since, self.active, self.baseline = time.monotonic(), None, None

    def has_ended(self) -> bool:
        """Return whether the process has ended; its exit status is then known."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None


@dataclass(frozen=True, slots=True)
class _Work:
    """The work of every worker: `prepare` is called once, then `run` for each job, under the limits."""

    run: Callable[[Job], Sequence[Any]]
    prepare: Callable[[], None]
    limits: Limits

    def serve(self, jobs: int, send_result: Callable[[Any], None]) -> None:
        """Do the jobs that arrive on a pipe, and send their results, until it is closed."""
        limits, own = self.limits, os.getpid()
        memory = MemoryUse()
        limit_memory(memory.data() + limits.memory)  # the data of the copied process does not count
        before = memory.resident()
        self.prepare()
        send_result(network_of("self"))
        done = 0
        while True:
            try:
                job: Job = tuple(receive(jobs))
            except EOFError:
                return
            limit_processor_time(limits.processor * len(job))
            try:
                found: Any = list(self.run(job))
            except MemoryError:
                found = None
            if os.getpid() != own:
                return  # a process that code of the job forked, and that came back here
            done += 1
            is_full = done >= limits.jobs or memory.resident() - before > limits.retire
            send_result([job, found, done == 1, is_full])


class Pool:
    """Up to `count` workers that run jobs; results are kept until they are requested.

    `run` is called in a worker with the numbers of a job and returns its results, one for each; `prepare` is called
    once at the start of each worker. Numbers are requested in their order.
    """

    def __init__(
        self,
        run: Callable[[Job], Sequence[Any]],
        *,
        count: int,
        limits: Limits,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self._work = _Work(run, prepare, limits)
        self._count = count
        self._owner = os.getpid()
        self._plan = Plan()
        self._asked = -1
        self._results: dict[int, Any] = {}
        self._ended: Counter[int] = Counter()
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self._reaper: Reaper | None = None
        self._looked = 0.0
        atexit.register(self.close)

    def plan(self, jobs: Iterable[Job]) -> None:
        """Let these jobs run after those planned before, by one worker if possible: they have much in common."""
        self._plan.add(jobs)

    def result(self, number: int) -> Any:
        """Return the result of a number, or a `Lost`, which is not kept; waits for it and raises as `wait_for`."""
        if self._asked != number:
            self.wait_for(number)
        return self._results.pop(number)

    def wait_for(self, number: int) -> None:
        """Wait for the result of a number, once for each; one that was not planned is a separate job.

        Raises OSError where no process can be started. A signal may end it while it waits, without a loss of results.
        """
        self._plan.request(number)
        self._asked = number
        while number not in self._results:
            with uninterrupted():
                self._give()
            ready = self._selector.select(_LOOK_SECONDS)
            with uninterrupted():
                self._look([key.data for key, _ in ready])
        with uninterrupted():
            self._give()

    def finished(self) -> Mapping[int, Any]:
        """Return the results that were not returned yet, by number, as far as workers have sent them."""
        with suppress(OSError):
            for key, _ in self._selector.select(0):
                self._read(key.data)
        return dict(self._results)

    def close(self) -> None:
        """End every worker and all processes that it started. Nothing can be requested afterwards."""
        atexit.unregister(self.close)
        if os.getpid() != self._owner:
            return
        for worker in [*self._workers]:
            self._end(worker)
        if self._reaper is not None:
            self._reaper.close()
            self._reaper = None
        self._selector.close()

    # -- giving jobs out -----------------------------------------------------------------------------------------------

    def _give(self) -> None:
        """Give waiting jobs to workers that have room, and start workers while there is work for them."""
        before = self._asked + _AHEAD
        while self._plan.has_any(before):
            free = min(self._workers, key=lambda worker: len(worker.given), default=None)
            if (free is None or free.given) and len(self._workers) < self._count:
                free = self._started() or free
            if free is None or len(free.given) >= _QUEUED:
                return
            others = {worker.group for worker in self._workers if worker is not free}
            job, free.group = self._plan.take(free.group, others, before)
            if not free.given:
                free.begin()
            free.given.append(job)
            with suppress(OSError):  # the worker has ended, which is noticed when its results are read
                send(free.jobs, job)

    def _started(self) -> _Worker | None:
        """Return a new worker; None where the system allows no more, and there are others. Raises OSError else."""
        for tries_left in range(_TRIES, -1, -1):
            try:
                return self._start()
            except OSError:
                if self._workers:
                    self._count = len(self._workers)
                    return None
                if not tries_left:
                    raise
                time.sleep(_LOOK_SECONDS)  # another process may end
        return None

    def _start(self) -> _Worker:
        if self._reaper is None:
            self._reaper = Reaper()
        key = secrets.token_bytes(_KEY_BYTES)

        def begin() -> None:
            if self._reaper is not None:
                self._reaper.leave()
            jobs, results = hidden(jobs_read), hidden(results_write)
            drop_descriptors(but=(jobs, results))
            adopt_orphans()
            self._work.serve(jobs, sealed_sender(results, key))

        with ExitStack() as opened:
            jobs_read, jobs_write = pipe(opened)
            results_read, results_write = pipe(opened)
            pid = forked(begin)
            opened.pop_all()
        os.close(jobs_read)
        os.close(results_write)
        self._reaper.watch(pid)
        worker = _Worker(pid, jobs_write, results_read, Inbox(key))
        self._workers.append(worker)
        self._selector.register(results_read, selectors.EVENT_READ, worker)
        return worker

    # -- results -------------------------------------------------------------------------------------------------------

    def _look(self, ready: Iterable[_Worker]) -> None:
        """Read the results that workers have sent, and check on workers that are silent."""
        for each in ready:
            self._read(each)
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            for worker in [*self._workers]:
                self._look_after(worker, now)

    def _read(self, worker: _Worker) -> None:
        try:
            content = os.read(worker.results, 1 << 20)
        except OSError:  # nothing more
            content = b""
        try:
            for written in worker.inbox.add(content):
                self._take(worker, written)
                if worker not in self._workers:
                    return
        except ValueError:  # code of a task wrote to the pipe of its worker
            self._replace(worker, [worker.given.popleft()] if worker.given else [], Lost("forged"))
            return
        if not content:
            self._gone(worker)

    def _take(self, worker: _Worker, written: bytes) -> None:
        """Take one message of a worker; raises ValueError for anything but the result of its job."""
        message = json.loads(written)
        if worker.network is None:
            worker.network = 0 if message == network_of("self") else int(message)
            if self._reaper is not None:
                self._reaper.watch(worker.pid, worker.network)
            return
        if not worker.given or not _is_result(message, worker.given[0]):
            raise ValueError("not the result of the job")
        _, found, was_first, is_full = message
        job = worker.given.popleft()
        worker.begin()
        if found is None or (not was_first and _OUT_OF_MEMORY in written):
            # Earlier jobs of this worker may have caused it: a new worker shows whether they did.
            self._replace(worker, [job] if was_first else [], Lost("memory", limit=self._work.limits.memory))
            if not was_first:
                self._plan.put_back(job)
            return
        self._results.update(zip(job, found, strict=True))
        if is_full:
            self._replace(worker, [], None)

    def _look_after(self, worker: _Worker, now: float) -> None:
        """End a worker that has ended while others hold its pipe open, or that waits for something for too long."""
        if worker.has_ended():
            os.set_blocking(worker.results, False)
            while worker in self._workers:  # its last results
                self._read(worker)
            return
        limits = self._work.limits
        if not worker.given or now - worker.since < limits.waiting:
            return
        used = used_seconds(worker.pid)
        if used is not None:
            worked, delayed = used
            worker.baseline = worked if worker.baseline is None else worker.baseline
            if worked - worker.baseline > limits.processor * len(worker.given[0]):  # it blocks the system's signal
                self._replace(worker, [worker.given.popleft()], Lost("processor", limit=limits.processor))
                return
            active = worked + delayed * _IDLE / _STARVED
            if worker.active is None or active - worker.active > _IDLE * (now - worker.since):
                worker.since, worker.active = now, active
                return
        self._replace(worker, [worker.given.popleft()], Lost("waiting", limit=limits.waiting))

    def _gone(self, worker: _Worker) -> None:
        """Take the current job from a worker that has ended."""
        patience = time.monotonic() + _LOOK_SECONDS
        while not worker.has_ended() and time.monotonic() < patience:
            time.sleep(0.001)  # it has closed its pipe, the last thing that it does
        status = worker.status or 0
        lost = Lost("ended", status) if worker.network is not None else Lost("unstarted")
        if status == -signal.SIGXCPU:
            lost = Lost("processor", status, self._work.limits.processor)
        self._replace(worker, [worker.given.popleft()] if worker.given else [], lost)

    def _replace(self, worker: _Worker, guilty: Sequence[Job], lost: Lost | None) -> None:
        """End a worker; its jobs go to others: those that may be `guilty` of its end one number at a time."""
        self._end(worker)
        for job in reversed(worker.given):
            self._plan.put_back(job)
        for job in guilty:
            if len(job) == 1 and self._is_proved(job[0], lost):
                self._results[job[0]] = lost
                continue
            for number in reversed(job):
                self._plan.put_back((number,))

    def _is_proved(self, number: int, lost: Lost | None) -> bool:
        """Return whether a job of one number is the reason why its worker ended; else it is tried again."""
        if lost is None or lost.reason not in ("ended", "forged", "unstarted"):
            return True
        self._ended[number] += 1
        return self._ended[number] > _TRIES

    def _end(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        self._selector.unregister(worker.results)
        # Before its pipe is closed: a worker that ends by itself leaves orphans that it adopted.
        end_group(worker.pid, network=worker.network or 0, is_over=worker.status is not None)
        for end in (worker.jobs, worker.results):
            os.close(end)
        if self._reaper is not None:
            with suppress(OSError):
                self._reaper.forget(worker.pid)


def _is_result(message: Any, job: Job) -> bool:
    """Return whether a message is the result of a job: of each of its numbers, or None."""
    if not isinstance(message, list) or len(message) != 4 or message[0] != [*job]:
        return False
    found = message[1]
    return found is None or (isinstance(found, list) and len(found) == len(job))
