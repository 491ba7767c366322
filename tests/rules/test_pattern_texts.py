"""The shortest text around the group of a pattern is one that the pattern matches, and stays short."""

from __future__ import annotations

import re

import pytest

from pytest_promptfmt.rules.patterns import written_around


@pytest.mark.parametrize(
    ("pattern", "answer"),
    [
        (r"answer is \(?([A-J])\)?", "B"),
        (r"(?i)(?:final|last) answer: *(\d+)", "12"),
        (r"#### (-?[0-9.]+)", "-7"),
        (r"[^\d]{3}\s+<(\w+)>", "word"),
        (r"\$\\boxed\{(.+?)\}\$", "x"),
    ],
)
def test_a_pattern_reads_the_answer_out_of_the_text_written_around_it(pattern: str, answer: str) -> None:
    form = written_around(pattern)
    assert form is not None
    found = re.search(pattern, form.format(answer))
    assert found is not None
    assert found[1] == answer


@pytest.mark.parametrize("pattern", ["(", "(a)(b", "no group", "(a)" * 700])
def test_other_patterns_have_no_such_text(pattern: str) -> None:
    assert written_around(pattern) is None


def test_repeats_of_repeats_stay_short() -> None:
    pattern = "(x)" + "(?:" * 100 + "a" + "){8}" * 100
    assert len(written_around(pattern) or "") <= 2100
