"""Which scoring functions start processes, and what that means for synthetic docs."""

from __future__ import annotations

import functools
import math
import multiprocessing
import os
import subprocess
import textwrap

import pytest

from pytest_promptfmt.answers.metric_scores import starts_processes


def runs(code: str) -> int:
    return subprocess.run(["true", code], check=False).returncode


def forks() -> int:
    return os.fork()


def through_another(text: str) -> int:
    return runs(textwrap.dedent(text))


def imports_inside() -> object:
    import subprocess as other

    return other


class Sandbox:
    def run(self) -> object:
        return multiprocessing.Process(target=print)


def uses_a_class() -> object:
    return Sandbox().run()


@functools.lru_cache
def kept(code: str) -> int:
    return runs(code)


def counts(text: str) -> float:
    return math.sqrt(len(os.path.basename(text)))


@pytest.mark.parametrize(
    "function",
    [runs, forks, through_another, imports_inside, uses_a_class, kept, functools.partial(through_another, "x")],
)
def test_functions_that_come_to_a_process_are_known(function: object) -> None:
    assert starts_processes(function)


@pytest.mark.parametrize("function", [counts, len, None, "text", textwrap.dedent])
def test_others_and_those_of_libraries_are_not(function: object) -> None:
    assert not starts_processes(function)
