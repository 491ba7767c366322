"""Ends process groups with all that they started; as a program, those that it watches as soon as its input ends.

A line of the input has the number of a group to watch, or, negative, of one to forget, and its network, 0 for a shared
one. The program imports nothing of this package: it starts in milliseconds, and holds no copy of its owner's memory.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress


def end_group(group: int, *, network: int = 0, is_over: bool) -> None:
    """Kill every process of a group, those below its leader, and those in its `network` (0: it shares that of others).

    The leader is waited for, unless that `is_over` already.
    """
    if not is_over:
        _send(os.kill, group, signal.SIGSTOP)  # it starts no more processes
        _end_each(lambda: _below(group))
    _send(os.killpg, group, signal.SIGKILL)
    if not is_over:
        with suppress(OSError):
            os.waitpid(group, 0)
    if network:
        _end_each(lambda: (int(name) for name in os.listdir("/proc") if name.isdigit() and network_of(name) == network))


def network_of(process: str) -> int:
    """Return the number of the network namespace of a process (a number, or `self`), 0 if unknown."""
    try:
        return os.stat(f"/proc/{process}/ns/net").st_ino
    except OSError:
        return 0


def _end_each(find: Callable[[], Iterable[int]]) -> None:
    """Kill the processes that `find` returns until it finds no others."""
    ended: set[int] = set()
    while found := set(find()) - ended:
        for process in found:
            _send(os.kill, process, signal.SIGKILL)
        ended |= found


def _send(send: Callable[[int, int], None], number: int, which: signal.Signals) -> None:
    with suppress(OSError):  # it has ended
        send(number, which)


def _below(process: int) -> Iterator[int]:
    """Yield the processes that a process started, and those that they started; none where the system does not list."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/children", encoding="utf-8") as children:
                started = children.read().split()
            for child in map(int, started):
                yield child
                yield from _below(child)


def _watch() -> None:
    groups: dict[int, int] = {}
    for number, network in (map(int, line.split()) for line in sys.stdin):
        if number > 0:
            groups[number] = network
        else:
            groups.pop(-number, None)
    for group in groups:
        _send(os.kill, group, signal.SIGSTOP)
    for group, network in groups.items():
        end_group(group, network=network, is_over=False)


if __name__ == "__main__":
    _watch()
