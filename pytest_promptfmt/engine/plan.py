"""Jobs that wait for a worker, in the order in which they will be asked for.

Those of one group have much in common, which a worker that had one of them knows already: it gets the others, too, as
long as there is something else to do for the rest.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterable, Iterator

Job = tuple[int, ...]
"""The numbers of a job, in the order in which they run."""


class Plan:
    """Groups of jobs; what is put back comes before all of them."""

    def __init__(self) -> None:
        self._back: deque[Job] = deque()
        self._groups: dict[int, deque[Job]] = {}
        self._ids = itertools.count()

    def add(self, jobs: Iterable[Job]) -> None:
        """Add a group behind the others."""
        group = deque(jobs)
        if group:
            self._groups[next(self._ids)] = group

    def put_back(self, job: Job) -> None:
        """Have a job done before all others."""
        self._back.appendleft(job)

    def has_any(self, before: int) -> bool:
        """Return whether a job waits that was put back or begins below a number."""
        return bool(self._back or next(self._begun(before), None) is not None)

    def take(self, group: int | None, others: Collection[int | None], before: int) -> tuple[Job, int | None]:
        """Return the next job for a worker and the group that this worker has from now on.

        It is one of its own `group`, else of the first that none of `others` has, else the first of all, which leaves
        the worker without a group. Only those that begin below `before` are looked at; one must be there.
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

    def clear(self) -> None:
        """Forget every job."""
        self._back.clear()
        self._groups.clear()

    def _begun(self, before: int) -> Iterator[int]:
        return (group for group, jobs in itertools.takewhile(lambda each: each[1][0][0] < before, self._groups.items()))
