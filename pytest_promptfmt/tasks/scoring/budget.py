"""Trying users' filters and metrics on many texts: a time budget for each call, and a cache of what plain values gave.

A call is too slow if its time grows too fast with the length of the text, on any machine. Many tasks read and score
alike, and synthetic docs have the same answers: a value that depends on plain values only is cached under all of them.
Nothing is cached that depends on code of a task.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

from pytest_promptfmt.core.errors import LimitExceededError
from pytest_promptfmt.core.limits import time_limit

BUDGET_SECONDS: Final = 0.5
"""The processor time that one filter pipeline has for one completion, before the growth of its time is measured."""

_WATCHED: Final = 0.025
"""The part of the budget from which on a call is compared with work that is known."""

_NOTICED: Final = 12
"""How often that work has to fit into a call per second of its budget, so that its growth is measured."""

_TRIES: Final = 3
_CERTAINLY: Final = 3
"""How many times as long as needed a call takes that is long without another try."""

_KNOWN_WORK: Final = re.compile(".*#")
_KNOWN_TEXT: Final = "7" * 5_000

_PATIENCE: Final = 20
"""How many budgets a call has if its time grows slowly."""

_MEASURABLE_SECONDS: Final = 0.004
_TIMED_SECONDS: Final = 0.05
"""Shorter calls are repeated up to this total: some systems count processor time in steps of 4 ms."""

_REPEATS: Final = 12
_FIRST_BITS: Final = 4
"""The first text that is timed has at most so many binary digits in its length, each next one is twice as long."""

_DOUBLINGS: Final = 3
"""Over how many doublings time is measured at most."""

_KEPT_AT_END: Final = 8
"""Of a shortened text the end is kept: it is where a match fails that then backtracks."""

_MOST_GROWTH: Final = 1.5
"""The power of the length that time may grow with: 1 for work per character, 2 for work per pair."""

T = TypeVar("T")


def within_budget(
    call: Callable[[Any], T], text: Any, least: list[float] | None = None, *, what: str, seconds: float = BUDGET_SECONDS
) -> T:
    """Return `call(text)`; raises LimitExceededError for one that is too slow, else what the call raises.

    Inputs that are not text cannot be scaled, so they get the longer time limit. Where limits do not hold
    (`apply_here` of core/limits.py) the call is not ended, but still refused if its time grows too fast.
    `least` is for calls of one kind: the time for a few characters, measured once for all of them.
    """
    if not isinstance(text, str):
        with time_limit(seconds * _PATIENCE, what):
            return call(text)
    began = time.process_time()
    try:
        with time_limit(seconds, what):
            value = call(text)
    except LimitExceededError:
        if _grows_too_fast(call, text, seconds):
            raise
        with time_limit(seconds * _PATIENCE, what):
            return call(text)
    took = time.process_time() - began
    is_watched = took > seconds * _WATCHED
    least = [] if least is None else least
    if is_watched and _is_long(call, text, seconds, took, least) and _grows_too_fast(call, text, seconds):
        raise LimitExceededError(f"{what}: the processor time grows too fast with the length of the text")
    return value


def require_speed(patterns: Sequence[str], text: str, what: str) -> None:
    """Raise LimitExceededError where patterns are too slow for a text out of which they are taken one by one.

    Many tasks have the same patterns: those are tried once on the same text.
    """
    problem = _slowness(tuple(patterns), text)
    if problem is not None:
        raise LimitExceededError(f"{what}{problem}")


@lru_cache(maxsize=1_024)
def _slowness(patterns: tuple[str, ...], text: str) -> str | None:
    def strip(text: str) -> None:
        for pattern in patterns:
            text = re.sub(pattern, "", text)

    try:
        within_budget(strip, text, what="")
    except LimitExceededError as error:
        return error.message
    except Exception:  # noqa: BLE001, RUF100  # the metric raises the same, with its place
        pass
    return None


def _is_long(call: Callable[[str], object], text: str, seconds: float, took: float, least: list[float]) -> bool:
    """Return whether a call takes long next to work that is known, which a slow or busy machine slows as well.

    One that took very long at first is not called again, and one that takes as long for a few characters is not long.
    """
    if not least:
        least.append(_once(call, _shortened(text, min(1 << _FIRST_BITS, len(text) // 4)), seconds))
    if took < 2 * least[0]:
        return False

    def long_enough() -> float:
        return seconds * _NOTICED * _once(_KNOWN_WORK.search, _KNOWN_TEXT, seconds)

    if took > _CERTAINLY * long_enough():
        return True
    return all(_once(call, text, seconds) > long_enough() for _ in range(_TRIES))


def _grows_too_fast(call: Callable[[str], object], text: str, seconds: float) -> bool:
    """Return whether the time of a call grows with a higher power of the length than `_MOST_GROWTH`.

    Over as many doublings as can be measured: the longer the way, the further apart lie what grows as it should and
    what does not.
    """
    most = seconds * 2**_DOUBLINGS
    times: list[float] = []
    for halvings in range(max(len(text).bit_length() - _FIRST_BITS, 1), -1, -1):
        took = _time_of(call, _shortened(text, len(text) >> halvings), most)
        times = [*times, took] if times or took >= _MEASURABLE_SECONDS else []
        if took >= seconds or len(times) > _DOUBLINGS:
            break
    if len(times) < 2:  # out of nothing over the budget, or never long
        return bool(times) and times[0] >= seconds
    return times[-1] > times[0] * 2 ** (_MOST_GROWTH * (len(times) - 1))


def _time_of(call: Callable[[str], object], text: str, seconds: float) -> float:
    """Return the processor time of a call, at most the budget: the mean of some where one is short."""
    times = [_once(call, text, seconds)]
    while sum(times) < _TIMED_SECONDS and len(times) < _REPEATS:
        times.append(_once(call, text, seconds))
    return sum(times) / len(times)


def _once(call: Callable[[str], object], text: str, seconds: float) -> float:
    """Return the processor time of one call, at most the budget; what the call raises does not count."""
    began = time.process_time()
    try:
        with time_limit(seconds, "a shortened text"):
            call(text)
    except LimitExceededError:
        return seconds
    except Exception:  # noqa: BLE001, RUF100  # the call with the whole text raises it
        pass
    return time.process_time() - began


def _shortened(text: str, length: int) -> str:
    """Return the beginning and the end of a text, `length` characters together."""
    if length >= len(text):
        return text
    kept = min(_KEPT_AT_END, length // 2)
    return text[: length - kept] + text[len(text) - kept :]


_MOST_DEPTH: Final = 20
_OVERHEAD: Final = 300
"""How many characters an entry counts in addition to its texts."""


def plain_key(value: Any, depth: int = 0) -> Hashable | None:
    """Return what is equal for values that are equal and of equal types, part by part; None for any other object.

    Plain are texts, numbers, truth values, null, and lists, tuples and mappings of them; no subclasses.
    """
    kind = type(value)
    if kind is str:
        return value  # type: ignore[no-any-return]
    if kind is int or kind is bool or value is None:
        return kind, value
    if kind is float:
        return kind, repr(value)  # 0.0 and -0.0 are equal, and NaN is not equal to itself
    if (kind is not list and kind is not tuple and kind is not dict) or depth > _MOST_DEPTH:
        return None
    parts = [plain_key(part, depth + 1) for part in ([*value, *value.values()] if kind is dict else value)]
    return None if None in parts else (kind, *parts)


class ValueCache(Generic[T]):
    """Values by their keys. `most` is the number of characters that both may hold together; then all is forgotten.

    Values are shared by all who ask, and must not be changed by them.
    """

    def __init__(self, most: int) -> None:
        self._most, self._held = most, 0
        self._values: dict[Hashable, T] = {}

    def get(self, key: Hashable) -> T | None:
        """Return the value of a key; None where it is not known."""
        return self._values.get(key)

    def keep(self, key: Hashable, value: T, characters: int) -> T:
        """Return a value that is kept from now on; `characters` is the length of the texts in it and in its key."""
        if self._held + characters + _OVERHEAD > self._most:
            self._values.clear()
            self._held = 0
        self._held += characters + _OVERHEAD
        self._values[key] = value
        return value
