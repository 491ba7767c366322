"""The closing sections of a run: which lines they have, and after how many they only count."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_promptfmt.core.outcome import Outcome
from pytest_promptfmt.results.run_result import RunResult
from pytest_promptfmt.results.terminal import sections
from pytest_promptfmt.results.wording import LINES, NAMES, PLACES


def lines_of(title: str, *outcomes: Outcome, verbosity: int = 0) -> list[str]:
    result = RunResult(rootdir=Path.cwd(), outcomes=outcomes)
    return dict(sections(result, verbosity=verbosity)).get(title, [])


def test_figures_are_a_table_of_which_the_first_rows_are_shown() -> None:
    rows = [
        Outcome(task=f"t{number}", file="t.yaml", figures=(("task", f"t{number}"), ("model", "m"), ("acc", "0.5")))
        for number in range(LINES + 1)
    ]
    whole = lines_of("prompt model", *rows[:-1])
    assert whole[:2] == ["task  model  acc", "t0    m      0.5"]
    assert len(whole) == LINES + 1
    cut = lines_of("prompt model", *rows)
    assert cut == [*whole, "… and 1 more rows; -v lists them all"]
    assert len(lines_of("prompt model", *rows, verbosity=1)) == LINES + 2
    assert not lines_of("prompt model", Outcome(task="a", file="a.yaml"))


def changed(number: int, key: str) -> Outcome:
    return Outcome(task=f"t{number}", file="t.yaml", profile="plain", category="changed", key=key, title=f"title {key}")


def test_a_change_of_many_tasks_names_the_first_ones() -> None:
    outcomes = [changed(number, "one") for number in range(NAMES + 2)]
    first, names = lines_of("prompt formats", *outcomes)
    assert first == f"changed, {NAMES + 2} tests of {NAMES + 2} tasks: title one"
    assert names == "    " + ", ".join(f"t{number}" for number in range(NAMES)) + " and 2 more"
    assert f"t{NAMES + 1}" in lines_of("prompt formats", *outcomes, verbosity=1)[1]
    assert lines_of("prompt formats", changed(0, "one")) == ["changed, 1 test of 1 task: title one"]


@pytest.mark.parametrize(("more", "told"), [(0, []), (3, ["… and 3 more problems; -v lists them all"])])
def test_the_first_distinct_problems_are_listed(more: int, told: list[str]) -> None:
    outcomes = [changed(number, f"{number:02}") for number in range(LINES + more)]
    lines = lines_of("prompt formats", *outcomes)
    assert len(lines) == LINES + len(told)
    assert lines[LINES:] == told
    assert len(lines_of("prompt formats", *outcomes, verbosity=1)) == LINES + more


def test_skipped_items_have_a_reason_with_its_causes_and_what_makes_them_run() -> None:
    def skipped(number: int, title: str, cause: str = "", remedy: str = "") -> Outcome:
        made = Outcome(task=f"t{number}", file="t.yaml", category="skipped", title=title)
        return (
            made
            if not cause
            else Outcome.from_json({**made.to_json(), "detail": cause, "key": cause, "remedy": remedy})
        )

    few = [skipped(1, "no docs")]
    many = [skipped(number, "a package", f"package p{number}", "pip install it") for number in range(2, 7)]
    lines = lines_of("prompt formats", *few, *many)
    assert lines[0] == "skipped, 5 tests: a package; pip install it"
    assert lines[1 : 1 + PLACES] == [f"    package p{number}, 1 task" for number in (2, 3, 4, 5)]
    assert lines[1 + PLACES :] == ["    … and 1 more", "skipped, 1 test: no docs"]


def test_media_that_are_not_rendered_are_told_once_for_their_keys() -> None:
    outcomes = [Outcome(task=f"t{number}", file="t.yaml", unseen="doc_to_image") for number in range(2)]
    assert lines_of("prompt formats", *outcomes) == [
        "images or audio of doc_to_image are not tested, only the text next to them, in 2 tasks: t0, t1"
    ]
