"""`promptfmt compare`: two templates or tokenizers, and what changes."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import forked_runs
import pytest

from pytest_promptfmt.core.errors import SourceError
from pytest_promptfmt.core.profile import builtin_template
from pytest_promptfmt.profiles.tokenizer_sources import archetype_folder
from pytest_promptfmt.systems.templates.template_files import read_gguf

CHATML = builtin_template("chatml")


def compare(folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    return forked_runs.run("pytest_promptfmt", "compare", *names, folder=folder)


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
    assert lines[0].endswith("conversations differ")
    assert lines[1].startswith("  question, ")
    assert "new: PF442 error: finished answers begin differently from the generation prompt" in lines


def test_folders_are_compared_by_template_and_tokens(tmp_path: Path) -> None:
    for name, archetype in (("one", "bytelevel-qwen"), ("two", "bytelevel-llama3")):
        shutil.copytree(archetype_folder(archetype), tmp_path / name)
        (tmp_path / name / "chat_template.jinja").write_text(CHATML, "utf-8")
    done = compare(tmp_path, "one", "two")
    assert done.returncode == 1
    assert "texts differ" in done.stdout
    (tmp_path / "one" / "chat_template.jinja").unlink()
    assert "texts differ" in compare(tmp_path, "one", "two").stdout


def test_what_cannot_be_compared_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "old.jinja").write_text(CHATML, "utf-8")
    (tmp_path / "notes.json").write_text("{}", "utf-8")
    missing, empty = compare(tmp_path, "old.jinja", "nothing.jinja"), compare(tmp_path, "old.jinja", "notes.json")
    assert (missing.returncode, empty.returncode) == (2, 1)
    assert "no such file or folder: nothing.jinja" in missing.stderr
    assert "there is no chat template in notes.json" in empty.stderr
    assert "Traceback" not in missing.stderr + empty.stderr


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def write_gguf(path: Path, tokens: Sequence[str], numbers: Mapping[str, int]) -> None:
    """Write the metadata that a converter would: template, pieces, ids of special tokens, and whether BOS is added."""
    pairs = [
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, len(tokens)) + b"".join(map(text, tokens)),
        text("tokenizer.ggml.token_type") + struct.pack("<IIQ", 9, 5, len(tokens)) + bytes(4 * len(tokens)),
        *(text(f"tokenizer.ggml.{key}_token_id") + struct.pack("<II", 4, number) for key, number in numbers.items()),
        text("tokenizer.ggml.add_bos_token") + struct.pack("<I?", 7, False),
        text("tokenizer.chat_template") + struct.pack("<I", 8) + text(CHATML),
    ]
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs)) + b"".join(pairs))


def test_the_tokenizer_in_a_gguf_file_is_compared_with_that_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(archetype_folder("bytelevel-llama3"), folder)
    (folder / "chat_template.jinja").write_text(CHATML, "utf-8")
    data: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    ids = data["model"]["vocab"] | {each["content"]: each["id"] for each in data["added_tokens"]}
    tokens = sorted(ids, key=ids.__getitem__)
    special = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    numbers = {key: ids[special[f"{key}_token"]] for key in ("bos", "eos")}
    write_gguf(tmp_path / "same.gguf", [*tokens, "[PAD7]"], numbers)
    assert compare(tmp_path, "model", "same.gguf").stdout.splitlines() == [
        "bos_token is not added to a text now, but was added before"
    ]
    write_gguf(tmp_path / "other.gguf", [*tokens[:-2], "swapped", tokens[-1]], {**numbers, "eos": 0})
    said = compare(tmp_path, "model", "other.gguf").stdout
    assert f"1 of {len(tokens)} tokens of the vocabulary differ" in said
    assert f"eos_token: {special['eos_token']!r} becomes {tokens[0]!r}" in said
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "same.gguf").read_bytes()[:200])
    assert "cannot be read" in compare(tmp_path, "model", "cut.gguf").stderr


@pytest.mark.parametrize(
    "value",
    [
        struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 50_000,
        struct.pack("<IIQQ", 9, 8, 1, 2**64 - 1),
        struct.pack("<IQ", 8, 2**40),
        struct.pack("<I", 99),
    ],
)
def test_metadata_made_to_break_its_reader_is_one_message(tmp_path: Path, value: bytes) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("tokenizer.odd") + value)
    with pytest.raises(SourceError, match="the metadata of this GGUF file cannot be read"):
        read_gguf(path)


def test_a_number_where_the_tokens_should_be_is_no_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    pair = text("tokenizer.ggml.tokens") + struct.pack("<II", 4, 7)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair)
    metadata = read_gguf(path)
    assert metadata is not None
    assert not metadata.tokens
