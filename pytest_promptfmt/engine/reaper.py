"""A program that kills process groups once its owner is gone, however that ended.

It runs by itself and imports nothing of the package: it is there in milliseconds, and keeps no copy of what its owner
holds. Each line that it reads is the number of a group to watch, or, negative, of one to leave alone.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable


def kill_at_end(lines: Iterable[str]) -> None:
    """Kill the groups that are watched when there are no more lines."""
    groups: set[int] = set()
    for number in map(int, lines):
        (groups.add if number > 0 else groups.discard)(abs(number))
    for group in groups:
        try:  # noqa: SIM105  # what contextlib imports takes as long as all of this
            os.killpg(group, signal.SIGKILL)
        except OSError:
            pass  # it has ended by itself


if __name__ == "__main__":
    kill_at_end(sys.stdin)
