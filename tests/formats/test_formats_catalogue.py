"""The catalogue of formats, in the terminal and in the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_promptfmt.formats import known_formats
from pytest_promptfmt.formats.builtin import BUILTIN_FORMATS
from pytest_promptfmt.formats.catalogue import describe, markdown, sample
from pytest_promptfmt.formats.literature import LITERATURE_FORMATS
from pytest_promptfmt.systems.eval_framework.class_formats import EVAL_FRAMEWORK_FORMATS

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"


def test_documentation_shows_every_format_as_it_renders() -> None:
    page = PAGE.read_text("utf-8")
    assert markdown(BUILTIN_FORMATS) in page
    assert markdown(LITERATURE_FORMATS) in page
    assert markdown(EVAL_FRAMEWORK_FORMATS) in page


def test_documentation_names_every_axis_and_value() -> None:
    from pytest_promptfmt.formats import AXES

    page = PAGE.read_text("utf-8")
    for axis in AXES.values():
        assert f"| `{axis.name}` | {axis.summary} | {', '.join(f'`{value}`' for value in axis.values)} |" in page


def test_documentation_names_every_field() -> None:
    from pytest_promptfmt.formats.format import PROMPT_FIELDS

    page = PAGE.read_text("utf-8")
    assert not [name for name in PROMPT_FIELDS if f"| `{name}` |" not in page]


@pytest.mark.parametrize("name", known_formats())
def test_description_shows_a_sample_with_the_answer(name: str) -> None:
    layout = known_formats()[name]
    lines = list(describe(layout))
    assert lines[0] == name
    shown = "\n".join(line.removeprefix("  | ") for line in lines if line.startswith("  | "))
    assert shown == sample(layout)
    assert "What is the capital of France?" in shown


def test_sample_of_mcqa_is_the_one_of_the_document() -> None:
    assert sample(known_formats()["mcqa"]) == (
        "Question: What is the capital of France?\nA. Berlin\nB. Madrid\nC. Paris\nD. London\nAnswer: C"
    )
