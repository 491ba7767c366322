"""A limit that ends while it is being lifted ends in its own error or in none, never in a bare interruption."""

from __future__ import annotations

import re

from pytest_promptfmt.core.errors import LimitExceededError
from pytest_promptfmt.core.limits import time_limit

PATTERN = re.compile(r"\s+$")


def test_limits_that_end_just_when_they_are_lifted_leave_nothing_behind() -> None:
    text = " " * 900 + "!"
    stopped = 0
    for step in range(1500):
        try:
            with time_limit(0.0005 + step * 1e-6, "the match"):
                PATTERN.search(text)
        except LimitExceededError:
            stopped += 1
    assert 0 <= stopped <= 1500
