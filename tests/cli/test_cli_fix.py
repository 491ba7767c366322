"""`promptfmt fix`: the difference on stdout, what it changes on stderr, and exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pytest_promptfmt.cli import app
from pytest_promptfmt.cli.output import print_lines, styled

TASK = """\
task: metals
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{question}}\\nAnswer: "   # a space too many
doc_to_choice: "{{choices}}"
doc_to_target: answer
metadata: {promptfmt: {docs: [{question: Which rusts, choices: [iron, gold], answer: 0}]}}
"""


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n", "utf-8")
    (tmp_path / "metals.yaml").write_text(TASK, "utf-8")
    return tmp_path / "metals.yaml"


def promptfmt(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_lines_of_any_length_are_left_to_the_terminal_to_break(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_lines([styled("+" + " word" * 30, "green")])
    assert capsys.readouterr().out == "+" + " word" * 30 + "\n"


def test_the_difference_is_shown_and_nothing_written(task: Path) -> None:
    result = promptfmt("fix")
    assert result.exit_code == 1
    assert '-doc_to_text: "Question: {{question}}\\nAnswer: "   # a space too many\n' in result.stdout
    assert '+doc_to_text: "Question: {{question}}\\nAnswer:"   # a space too many\n' in result.stdout
    assert "metals.yaml: PF201; the prompts of metals change\n" in result.stderr
    assert "1 finding in 1 file can be fixed with --write\n" in result.stderr
    assert task.read_text() == TASK


def test_write_fixes_and_then_nothing_is_left(task: Path) -> None:
    task.chmod(0o640)
    result = promptfmt("fix", ".", "--write")
    assert result.exit_code == 0
    assert "fixed 1 finding in 1 file\n" in result.stderr
    assert task.read_text() == TASK.replace('Answer: "', 'Answer:"')
    assert task.stat().st_mode & 0o777 == 0o640
    again = promptfmt("fix")
    assert (again.exit_code, again.stdout) == (0, "")
    assert "there are no findings with an automatic fix" in again.stderr


def test_only_the_selected_rules_are_fixed(task: Path) -> None:
    assert promptfmt("fix", "--select", "PF203").exit_code == 0
    assert promptfmt("fix", "--select", "PF2").exit_code == 1
    assert promptfmt("fix", "--select", "PF2xx").exit_code == 2
