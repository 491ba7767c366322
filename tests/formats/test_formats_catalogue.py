"""Formats as the documentation and `promptfmt formats` show them, with samples."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pytest_promptfmt.cli import app
from pytest_promptfmt.cli.explain import sample
from pytest_promptfmt.formats import Format, known_formats

DOCS = Path(__file__).parents[2] / "docs"


def test_documentation_names_every_field() -> None:
    from pytest_promptfmt.formats.format import PROMPT_FIELDS

    page = (DOCS / "formats.md").read_text("utf-8")
    assert not [name for name in PROMPT_FIELDS if f"| `{name}` |" not in page]


@pytest.mark.parametrize("name", known_formats())
def test_description_shows_a_sample_with_the_answer(name: str) -> None:
    shown = CliRunner().invoke(app, ["formats", name]).stdout
    assert shown.startswith(f"### `{name}`\n")
    assert f"```text\n{sample(known_formats()[name])}\n```" in shown
    assert "What is the capital of France?" in shown


def test_sample_of_mcqa_is_the_one_of_the_document() -> None:
    assert sample(known_formats()["mcqa"]) == (
        "Question: What is the capital of France?\nA. Berlin\nB. Madrid\nC. Paris\nD. London\nAnswer: C"
    )


@pytest.mark.parametrize(
    ("labels", "lines"),
    [
        (["yes"], "yes. Paris\nAnswer: yes"),
        (["a", "b"], "a. Paris\nb. London\nAnswer: a"),
        (["a", "b", "c"], "a. Madrid\nb. Paris\nc. London\nAnswer: b"),
    ],
)
def test_sample_has_as_many_choices_as_there_are_labels(labels: list[str], lines: str) -> None:
    format_ = Format(name="short", choice_labels=tuple(labels))
    assert sample(format_) == f"Question: What is the capital of France?\n{lines}"


def test_sample_fills_columns_that_only_this_format_reads() -> None:
    format_ = Format(name="mine", instruction="{{ passage }}\n", choice_labels=None)
    assert sample(format_) == "«passage 1»\nQuestion: What is the capital of France?\nAnswer: Paris"
