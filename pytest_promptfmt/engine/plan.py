"""The order in which jobs run: waiting jobs, and which of them a worker gets next."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterable, Iterator

Job = tuple[int, ...]
"""The numbers of a job, in the order in which they run."""


class Plan:
    """Groups of waiting jobs, in the order in which their results are requested; jobs that are put back come first.

    Jobs of one group have much in common, which a worker that ran one of them has in memory: it gets the others as
    long as the other workers have something to do.
    """

    def __init__(self) -> None:
        self._back: deque[Job] = deque()
        self._groups: dict[int, deque[Job]] = {}
        self._ids = itertools.count()
        self._planned: set[int] = set()

    def add(self, jobs: Iterable[Job]) -> None:
        """Add a group behind the others."""
        group = deque(jobs)
        if group:
            self._groups[next(self._ids)] = group
            self._planned.update(itertools.chain.from_iterable(group))

    def request(self, number: int) -> None:
        """Add a number that was not planned, or was requested before, as a job that runs before all others."""
        if number in self._planned:
            self._planned.remove(number)
        else:
            self.put_back((number,))

    def put_back(self, job: Job) -> None:
        """Let a job run before all others."""
        self._back.appendleft(job)

    def has_any(self, before: int) -> bool:
        """Return whether a job waits that was put back or begins below a number."""
        return bool(self._back or next(self._begun(before), None) is not None)

    def take(self, group: int | None, others: Collection[int | None], before: int) -> tuple[Job, int | None]:
        """Return the next job for a worker and the group that this worker has from now on.

        It is one of its `group`, else of the first that none of `others` has, else the first of all, which leaves
        the worker without a group. Only jobs that begin below `before` are considered; there must be one.
        """
        if self._back:
            return self._back.popleft(), group
        begun = [*self._begun(before)]
        if group not in begun:
            group = next((each for each in begun if each not in others), None)
        chosen = begun[0] if group is None else group
        jobs = self._groups[chosen]
        job = jobs.popleft()
        if not jobs:
            del self._groups[chosen]
        return job, group

    def _begun(self, before: int) -> Iterator[int]:
        return (group for group, jobs in itertools.takewhile(lambda each: each[1][0][0] < before, self._groups.items()))
