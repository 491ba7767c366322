"""`promptfmt convert`: proof, refusals with the difference, and files that stay as they are."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pytest_promptfmt.cli import app
from pytest_promptfmt.formats import laid_out
from pytest_promptfmt.formats.template import TemplateFactory
from pytest_promptfmt.systems.task_files import load_tasks

# The layout of seed 001's migration guide, in a file of ours.
CHOICES = r"A. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\nD. {{choices[3]}}"
TASK = f"""\
# Which city?
task: capitals   # the name
test_split: test
output_type: multiple_choice  # log-likelihoods
doc_to_text: "{{{{question.strip()}}}}\\n{CHOICES}\\nAnswer:"
doc_to_choice: ["A", "B", "C", "D"]
doc_to_target: answer   # a number
metadata:
    version: 1.0
"""
DOCS = [
    {"question": f"Capital of {country}?", "choices": ["Bergen", "Oslo", "Rome", "Quito"], "answer": answer}
    for country, answer in (("Norway", 1), ("Italy", 2), ("Ecuador", 3), ("Vestland", 0))
]


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "capitals.yaml"
    path.write_bytes(TASK.encode())
    (tmp_path / "capitals.docs.jsonl").write_text("".join(f"{json.dumps(doc)}\n" for doc in DOCS), "utf-8")
    return path


def promptfmt(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def changed_lines(before: str, after: str) -> tuple[list[str], list[str]]:
    old, new = before.splitlines(), after.splitlines()
    return [line for line in old if line not in new], [line for line in new if line not in old]


def test_docs_in_the_tree_of_docs_prove_a_conversion(task: Path) -> None:
    task.with_name("pytest.ini").write_text("[pytest]\npromptfmt_docs_dir = docs\n", "utf-8")
    (task.parent / "docs").mkdir()
    task.with_name("capitals.docs.jsonl").rename(task.parent / "docs" / "capitals.docs.jsonl")
    result = promptfmt("convert", "capitals.yaml", "--to", "mcq")
    assert result.exit_code == 0
    assert "(tested with these docs: 4 from capitals.docs.jsonl" in result.stderr


def test_migration_guide_turns_a_handwritten_layout_into_a_template(task: Path) -> None:
    result = promptfmt("convert", "capitals.yaml", "--to", "mcq", "--write")
    assert result.exit_code == 0
    assert "stays the same (tested with these docs: 4 from capitals.docs.jsonl, with 0 and 2 shots)" in result.stderr
    layout = TASK.splitlines()[4:6]
    assert changed_lines(TASK, task.read_text()) == (layout, ["template: mcq"])
    assert result.stdout.startswith("--- capitals.yaml\n+++ capitals.yaml (converted)\n@@")


def test_templates_go_there_and_back_byte_for_byte(task: Path) -> None:
    promptfmt("convert", "capitals.yaml", "--to", "mcq", "--write")
    mcq = task.read_bytes()
    result = promptfmt("convert", "capitals.yaml", "--to", "cloze", "--write")
    assert result.exit_code == 0
    assert "the prompts change" in result.stderr
    assert b'template:\n    template_type: cloze\n    choice_delimiter: "\\n"\n' in task.read_bytes()
    promptfmt("convert", "capitals.yaml", "--to", "mcq", "--write")
    assert task.read_bytes() == mcq


@pytest.mark.parametrize("style", ["create_gpqa_style", "create_numbered_style", "create_mmlu_style"])
def test_handwritten_layout_of_each_style_becomes_its_template(task: Path, style: str) -> None:
    template = getattr(TemplateFactory, style)()
    text, choices = template.get_doc_to_text(), template.get_doc_to_choice()
    layout = "\n".join(TASK.splitlines()[4:6])
    task.write_text(TASK.replace(layout, f"doc_to_text: {json.dumps(text)}\ndoc_to_choice: {json.dumps(choices)}"))
    assert promptfmt("convert", "capitals.yaml", "--to", "mcq", "--write").exit_code == 0
    [made] = load_tasks(task)
    assert laid_out(made)[0].doc_to_choice == choices
    assert (
        TemplateFactory.from_dict({"template_type": "mcq"} if style == "create_mmlu_style" else made.config["template"])
        == template
    )


def test_pure_cloze_keeps_its_choices(task: Path) -> None:
    layout = "\n".join(TASK.splitlines()[4:6])
    task.write_text(TASK.replace(layout, 'doc_to_text: "{{question.strip()}} ______"\ndoc_to_choice: choices'))
    assert promptfmt("convert", "capitals.yaml", "--to", "cloze", "--write").exit_code == 0
    assert "template:\n    template_type: cloze\n    show_choices: false\ndoc_to_choice: choices\n" in task.read_text()


def test_question_that_is_not_stripped_is_no_template(task: Path) -> None:
    task.write_text(TASK.replace("question.strip()", "question"))
    result = promptfmt("convert", "capitals.yaml", "--to", "mcq")
    assert result.exit_code == 1
    assert "the prompt of 'capitals' would change" in result.stderr


def test_handwritten_layout_becomes_a_format_and_comments_stay(task: Path) -> None:
    result = promptfmt("convert", "capitals.yaml", "--format", "mcqa", "--write")
    assert result.exit_code == 0
    assert (
        task.read_text()
        == """\
# Which city?
task: capitals   # the name
test_split: test
# log-likelihoods
doc_to_text: "{{question.strip()}}"
doc_to_choice: choices
formats:
    type: mcqa
    question_prefix: null
doc_to_target: answer   # a number
metadata:
    version: 1.0
"""
    )


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_literature_and_own_formats_are_known(task: Path, newline: str) -> None:
    page = TASK.replace("{{question", "Question: {{question")
    task.write_bytes(page.replace("\n", newline).encode())
    (task.parent / "formats").mkdir()
    (task.parent / "formats" / "house.yaml").write_text('type: mcqa\nquestion_prefix: "Question: "\n')
    result = promptfmt("convert", "capitals.yaml", "--format", "house", "--stdout")
    assert result.exit_code == 0
    assert f"formats: house{newline}" in result.stdout_bytes.decode()
    result = promptfmt("convert", "capitals.yaml", "--format", "lm_eval_2023")
    assert result.exit_code == 1
    assert "+Choices: A. Bergen\n" in result.stderr
    assert "description uses the column 'topic'" in promptfmt("convert", "capitals.yaml", "--format", "helm").stderr
    assert promptfmt("convert", "capitals.yaml", "--format", "hous").stderr.endswith("did you mean 'house'?\n")


def test_handwritten_prompt_of_the_literature_gets_its_name(task: Path) -> None:
    header = 'description: "The following are multiple choice questions (with answers) about {{topic}}.\\n\\n"\n'
    task.write_text(TASK + header)
    topics = "".join(f"{json.dumps({**doc, 'topic': 'geography'})}\n" for doc in DOCS)
    (task.parent / "capitals.docs.jsonl").write_text(topics, "utf-8")
    assert promptfmt("convert", "capitals.yaml", "--format", "mmlu_single_space", "--write").exit_code == 0
    assert "\nformats: mmlu_single_space\n" in task.read_text()
    assert task.read_text().endswith(header)


def test_refusal_shows_the_difference_and_writes_nothing(task: Path) -> None:
    task.write_text(TASK.replace("B. ", "B) "))
    before = task.read_bytes()
    for target in (("--to", "mcq"), ("--format", "mcqa"), ("--to", "cloze")):
        result = promptfmt("convert", "capitals.yaml", *target, "--write")
        assert result.exit_code == 1
        assert result.stdout == ""
        assert result.stderr.startswith("capitals.yaml:5:1: the prompt of 'capitals' would change, first in doc 1:\n")
        assert "-B) Oslo\n" in result.stderr
        assert "nothing was converted" in result.stderr
    assert "Try --to mcq first, and then --to cloze" in result.stderr
    assert task.read_bytes() == before


def test_without_docs_the_proof_says_that_docs_were_made_up(task: Path) -> None:
    (task.parent / "capitals.docs.jsonl").unlink()
    result = promptfmt("convert", "capitals.yaml", "--to", "mcq")
    assert result.exit_code == 0
    assert "(tested with these docs: 20 synthetic, with 0 and 2 shots)" in result.stderr
    assert "made from the templates" in result.stderr


def test_layout_in_an_included_file_is_refused_with_its_line(task: Path) -> None:
    (task.parent / "_base").write_text(TASK.replace("task: capitals   # the name\n", ""))
    task.write_text("include: _base\ntask: capitals\n")
    result = promptfmt("convert", "capitals.yaml", "--format", "mcqa", "--write")
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "_base:4:1: doc_to_text is in this file, which capitals.yaml includes, so it cannot be converted\n"
    )
    assert task.read_text() == "include: _base\ntask: capitals\n"


def test_key_that_would_be_removed_may_not_stand_in_an_included_file(task: Path) -> None:
    (task.parent / "_base").write_text("test_split: test\noutput_type: multiple_choice\n")
    task.write_text(TASK.replace("output_type: multiple_choice  # log-likelihoods\n", "include: _base\n"))
    result = promptfmt("convert", "capitals.yaml", "--format", "mcqa")
    assert result.stderr.startswith("_base:2:1: output_type is in this file")


def test_keys_from_a_merge_or_written_twice_are_refused(task: Path) -> None:
    lines = TASK.splitlines(keepends=True)
    task.write_text("metadata: &m\n  " + "  ".join(lines[4:6]) + "<<: *m\n" + "".join(lines[1:4] + lines[6:7]))
    result = promptfmt("convert", "capitals.yaml", "--to", "mcq")
    assert (result.exit_code, "comes from a merge" in result.stderr) == (1, True)
    task.write_text(TASK + lines[4])
    result = promptfmt("convert", "capitals.yaml", "--to", "mcq")
    assert (result.exit_code, "doc_to_text is written twice" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("group: many\ntask: [one, two]\n", "group.yaml:1: the group 'many' has no prompt layout to convert"),
        ("task: c\nclass: !function u.C\n", "group.yaml:1: the class 'c' has no prompt layout to convert"),
        ("steps: [1]\n", "group.yaml: this file defines no task"),
        ("task: a\ndoc_to_text: [\n", "group.yaml:"),
        ("{task: a, doc_to_text: '{{q}}', template: mcq, doc_to_target: a}\n", "are not on separate lines"),
        ("task: a\ntemplate: mcq\ndoc_to_target: a\n---\ntask: b\n", "group.yaml:4:1"),
        (
            "task: a\nformats: mcqa\ndoc_to_text: q\ndoc_to_choice: c\ndoc_to_target: a\n",
            "already has a format or template",
        ),
        ("task: a\ntemplate: generation\ndoc_to_target: a\n", "cannot be converted to 'cloze'"),
    ],
)
def test_files_that_cannot_be_converted_are_told_in_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "group.yaml").write_text(page)
    result = promptfmt("convert", "group.yaml", "--to", "cloze", "--write")
    assert result.exit_code == 1
    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert (tmp_path / "group.yaml").read_text() == page


def test_missing_file_folder_and_other_encodings_are_told(task: Path) -> None:
    assert "did you mean 'capitals.yaml'?" in promptfmt("convert", "capital.yaml", "--to", "mcq").stderr
    assert "this is a folder" in promptfmt("convert", ".", "--to", "mcq").stderr
    task.write_bytes(TASK.encode("utf-16"))
    assert "the file cannot be read: not UTF-8 at byte" in promptfmt("convert", "capitals.yaml", "--to", "mcq").stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "missing --to or --format"),
        (("--to", "mcq", "--format", "mcqa"), "missing --to or --format"),
        (("--to", "mcqa"), "or --format mcqa"),
        (("--to", "mcq", "--write", "--stdout"), "exclude each other"),
        (("--tu", "mcq"), "unknown option --tu\n  hint: did you mean '--to'?"),
    ],
)
def test_wrong_use_exits_with_2(task: Path, arguments: tuple[str, ...], says: str) -> None:
    result = promptfmt("convert", "capitals.yaml", *arguments)
    assert result.exit_code == 2
    assert says in result.stderr


def test_nothing_to_change_is_said(task: Path) -> None:
    promptfmt("convert", "capitals.yaml", "--to", "mcq", "--write")
    result = promptfmt("convert", "capitals.yaml", "--to", "mcq", "--write")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "capitals.yaml: nothing to change\n"


def test_only_write_writes_and_link_and_mode_stay(task: Path) -> None:
    link = task.parent / "link.yaml"
    link.symlink_to(task)
    task.chmod(0o640)
    promptfmt("convert", "link.yaml", "--to", "mcq")
    assert task.read_text() == TASK
    printed = promptfmt("convert", "link.yaml", "--to", "mcq", "--stdout").stdout
    assert task.read_text() == TASK
    assert promptfmt("convert", "link.yaml", "--to", "mcq", "--write").exit_code == 0
    assert link.is_symlink()
    assert task.read_text() == printed
    assert stat.S_IMODE(task.stat().st_mode) == 0o640
    assert sorted(path.name for path in task.parent.iterdir()) == ["capitals.docs.jsonl", "capitals.yaml", "link.yaml"]


def test_code_runs_only_when_allowed(task: Path) -> None:
    (task.parent / "wording.py").write_text("def keep(docs):\n    return docs\n")
    task.write_text(TASK + "process_docs: !function wording.keep\n")
    refused = promptfmt("convert", "capitals.yaml", "--to", "mcq")
    assert refused.exit_code == 1
    assert "--allow-code" in refused.stderr
    pytest.importorskip("datasets")
    assert promptfmt("convert", "capitals.yaml", "--to", "mcq", "--allow-code").exit_code == 0


def test_control_characters_of_a_prompt_do_not_reach_the_terminal(task: Path) -> None:
    task.write_text(TASK.replace("B. ", "\\e[31mB) "))
    refused = promptfmt("convert", "capitals.yaml", "--to", "mcq")
    assert "\x1b" not in refused.stderr
    assert refused.exit_code == 1


def _commands() -> list[list[str]]:
    script = Path(sysconfig.get_path("scripts")) / ("promptfmt.exe" if os.name == "nt" else "promptfmt")
    return [[sys.executable, "-m", "pytest_promptfmt"], *([[str(script)]] if script.exists() else [])]


@pytest.mark.parametrize("command", _commands(), ids=lambda command: Path(command[-1]).name)
def test_command_runs_as_a_process_in_any_encoding(task: Path, command: list[str]) -> None:
    task.write_text(TASK.replace("Which city?", "Which city – 😀?"), "utf-8")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "NO_COLOR": "1"}

    def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*command, "convert", "capitals.yaml", *arguments], env=environment, capture_output=True, timeout=900
        )

    done = run("--to", "mcq", "--stdout")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# Which city – 😀?\n".encode())
    refused = run("--format", "nothing")
    assert (refused.returncode, refused.stdout) == (1, b"")
    assert refused.stderr.startswith(b"unknown format 'nothing'")
    assert run("--to", "x").returncode == 2
