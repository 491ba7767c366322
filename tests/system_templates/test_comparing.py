"""`promptfmt compare`: two templates or tokenizers, and what changes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from pytest_promptfmt.core.profile import builtin_template
from pytest_promptfmt.tokens.archetypes import archetype_folder

CHATML = builtin_template("chatml")


def compare(folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest_promptfmt", "compare", *names]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_a_change_is_printed_once_with_the_conversations_it_is_in(tmp_path: Path) -> None:
    (tmp_path / "old.jinja").write_text(CHATML, "utf-8")
    (tmp_path / "new.jinja").write_text(CHATML.replace("<|im_start|>assistant", "<|im_start|>model"), "utf-8")
    assert (
        compare(tmp_path, "old.jinja", "old.jinja").stdout,
        compare(tmp_path, "old.jinja", "old.jinja").returncode,
    ) == (
        "no difference\n",
        0,
    )
    done = compare(tmp_path, "old.jinja", "new.jinja")
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert lines[0].endswith("conversations give another prompt")
    assert lines[1].startswith("  question, ")
    assert "new: PF442 error: finished answers begin in another way than the generation prompt" in lines


def test_folders_are_compared_by_template_and_tokens(tmp_path: Path) -> None:
    for name, archetype in (("one", "bytelevel-qwen"), ("two", "bytelevel-llama3")):
        shutil.copytree(archetype_folder(archetype), tmp_path / name)
        (tmp_path / name / "chat_template.jinja").write_text(CHATML, "utf-8")
    done = compare(tmp_path, "one", "two")
    assert done.returncode == 1
    assert "texts have other tokens" in done.stdout
    (tmp_path / "one" / "chat_template.jinja").unlink()
    assert "texts have other tokens" in compare(tmp_path, "one", "two").stdout


def test_what_cannot_be_compared_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "old.jinja").write_text(CHATML, "utf-8")
    (tmp_path / "notes.json").write_text("{}", "utf-8")
    missing, empty = compare(tmp_path, "old.jinja", "nothing.jinja"), compare(tmp_path, "old.jinja", "notes.json")
    assert (missing.returncode, empty.returncode) == (2, 1)
    assert "there is no nothing.jinja" in missing.stderr
    assert "there is no chat template in notes.json" in empty.stderr
    assert "Traceback" not in missing.stderr + empty.stderr
