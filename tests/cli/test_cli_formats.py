"""`promptfmt formats`: built-ins, literature and users' own, each with its sample, scorer and source."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import forked_runs
import pytest
from typer.testing import CliRunner, Result

from pytest_promptfmt.cli import app
from pytest_promptfmt.formats import known_formats


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def promptfmt(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def add_format(folder: Path, name: str, page: str) -> None:
    (folder / "formats").mkdir(exist_ok=True)
    (folder / "formats" / f"{name}.yaml").write_text(page, "utf-8")


def test_every_known_format_is_shown_once_under_its_origin() -> None:
    lines = promptfmt("formats").stdout.splitlines()
    names = [line.split()[0] for line in lines]
    assert [name for name in names if name in known_formats()] == list(known_formats())
    assert lines.index("built in:") < names.index("mcqa") < lines.index("from the literature:") < names.index("helm")


def test_sample_scorer_notes_and_source_are_shown() -> None:
    shown = promptfmt("formats", "generate", "mmlu").stdout
    assert "\nA. Berlin\n" in shown
    assert "The scorer `first_token` extracts the label at the start of the response" in shown
    assert "\nThe following are multiple choice questions (with answers) about  geography.\n" in shown
    assert "Source: Hendrycks et al." in shown
    assert "`cloze`" not in shown


def test_own_formats_beside_the_tasks_are_listed(folder: Path) -> None:
    add_format(folder, "house", 'type: mcqa\nquestion_prefix: "Q: "\nsummary: Ours.\n')
    assert promptfmt("formats").stdout.endswith(f"from formats:\n  {'house':<24}  Ours.\n")
    assert "\nQ: What is the capital of France?\n" in promptfmt("formats", "house", "--tasks", str(folder)).stdout
    (folder / "elsewhere").mkdir()
    assert "house" not in promptfmt("formats", "--tasks", "elsewhere").stdout


def test_own_format_that_replaces_a_built_in_one_is_told_apart(folder: Path) -> None:
    add_format(folder, "mcqa", 'question_prefix: "Q: "\n')
    [entry] = json.loads(promptfmt("formats", "mcqa", "--json").stdout)
    assert entry["origin"] == "from formats"
    assert entry["sample"].startswith("Q: ")


def test_json_has_all_that_a_program_needs() -> None:
    entries = json.loads(promptfmt("formats", "--json").stdout)
    assert [entry["name"] for entry in entries] == list(known_formats())
    by_name = {entry["name"]: entry for entry in entries}
    assert by_name["mcqa"]["sample"].endswith("\nAnswer: C")
    assert by_name["mcqa"]["scorer"] is None
    assert by_name["generate"]["scorer"]["name"] == "first_token"
    assert by_name["mmlu"]["citation"].startswith("Hendrycks")
    assert by_name["mmlu"]["origin"] == "from the literature"
    assert by_name["cot"]["fields"]["output_type"] == "generate_until"


def test_format_with_a_scorer_mapping_is_data_too(folder: Path) -> None:
    add_format(folder, "house", 'type: generate\nscorer: {type: regex, regex_pattern: "x(.)"}\n')
    [entry] = json.loads(promptfmt("formats", "house", "--json").stdout)
    assert entry["fields"]["scorer"]["regex_pattern"] == "x(.)"


def test_formats_of_installed_packages_are_listed(folder: Path) -> None:
    (folder / "lab_formats.py").write_text(
        "from pytest_promptfmt import Format\nlab = Format(name='lab', summary='The lab.', question_prefix='L: ')\n"
    )
    info = folder / "lab_formats-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lab-formats\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pytest_promptfmt.formats]\nlab = lab_formats:lab\n")
    environment = {**os.environ, "PYTHONPATH": str(folder), "NO_COLOR": "1"}
    done = forked_runs.run("pytest_promptfmt", "formats", "lab", environment=environment)
    assert done.stdout.startswith("### `lab`\n\nThe lab.\n\n```text\nL: What is"), done.stderr
    listed = forked_runs.run("pytest_promptfmt", "formats", environment=environment).stdout
    assert listed.rpartition("from installed packages:\n")[2].split() == ["lab", "The", "lab."]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("mcqq",), 2, "did you mean 'mcqa'?"),
        (("--tasks", "nowhere"), 2, "no such folder: nowhere"),
    ],
)
def test_wrong_use_is_one_message(arguments: tuple[str, ...], code: int, says: str) -> None:
    result = promptfmt("formats", *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert says in result.stderr


def test_broken_own_format_is_told_with_its_line(folder: Path) -> None:
    add_format(folder, "house", "type: mcqa\nquestion_prefx: x\n")
    result = promptfmt("formats")
    assert result.exit_code == 1
    assert result.stderr.startswith("formats/house.yaml:2")
    assert "did you mean 'question_prefix'?" in result.stderr


def test_control_characters_of_an_own_format_do_not_reach_the_terminal(folder: Path) -> None:
    add_format(folder, "house", 'type: mcqa\nquestion_prefix: "\\e[31mQ: "\n')
    shown = promptfmt("formats", "house").stdout
    assert "\x1b" not in shown
    assert "\\x1b[31mQ: " in shown


def test_help_names_every_command_and_loads_no_heavy_package() -> None:
    code = (
        "import sys\nfrom pytest_promptfmt.cli import main\nsys.argv = ['promptfmt', '--help']\n"
        "try:\n    main()\nexcept SystemExit as done:\n    assert not done.code\n"
        "assert not {'transformers', 'torch', 'datasets', 'jinja2', 'pytest', 'syrupy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in ("convert", "formats"))
