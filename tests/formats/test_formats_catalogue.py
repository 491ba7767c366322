"""The catalogue of formats in the documentation, as `promptfmt docs` writes it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pytest_promptfmt.cli import app
from pytest_promptfmt.cli.explain import sample
from pytest_promptfmt.formats import Format, known_formats

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "formats-catalogue.md"


def write_catalogue(page: Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["docs", "--page", str(page)])
    return result.exit_code, result.stderr


@pytest.mark.parametrize("name", ["formats.md", "formats-catalogue.md"])
def test_catalogue_in_the_documentation_is_up_to_date(tmp_path: Path, name: str) -> None:
    page = Path(shutil.copy(DOCS / name, tmp_path))
    assert write_catalogue(page) == (0, "")
    assert page.read_text("utf-8") == (DOCS / name).read_text("utf-8"), f"run `promptfmt docs --page docs/{name}`"


def test_catalogue_restores_a_section_that_was_edited_and_leaves_the_rest(tmp_path: Path) -> None:
    text = PAGE.read_text("utf-8")
    page = tmp_path / "formats.md"
    page.write_text("# Mine\n\n" + text.replace("### `mmlu`\n", "### `mlmu`\n"), "utf-8")
    assert write_catalogue(page) == (0, "")
    assert page.read_text("utf-8") == "# Mine\n\n" + text


def test_page_without_a_section_is_refused_and_not_written(tmp_path: Path) -> None:
    page = tmp_path / "formats.md"
    page.write_text("# Mine\n", "utf-8")
    code, says = write_catalogue(page)
    assert code == 2
    assert "formats.md: the page has no section to write" in says
    assert "<!-- promptfmt docs: NAME -->" in says
    assert "names are built in, " in says
    assert page.read_text("utf-8") == "# Mine\n"
    page.write_text(PAGE.read_text("utf-8").replace("docs: built in", "docs: bulit in"), "utf-8")
    assert "formats.md: unknown section 'bulit in'" in write_catalogue(page)[1]
    assert "there is no page" in write_catalogue(tmp_path / "other.md")[1]


def test_docs_without_anything_to_write_is_refused() -> None:
    result = CliRunner().invoke(app, ["docs"])
    assert (result.exit_code, "missing FOLDER or --page" in result.stderr) == (2, True)


def test_documentation_names_every_field() -> None:
    from pytest_promptfmt.formats.format import PROMPT_FIELDS

    page = (DOCS / "formats.md").read_text("utf-8")
    assert not [name for name in PROMPT_FIELDS if f"| `{name}` |" not in page]


@pytest.mark.parametrize("name", known_formats())
def test_description_shows_a_sample_with_the_answer(name: str) -> None:
    lines = CliRunner().invoke(app, ["formats", name]).stdout.splitlines()
    assert lines[1] == name
    shown = "\n".join(line.removeprefix("  | ") for line in lines if line.startswith("  | "))
    assert shown == sample(known_formats()[name])
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
