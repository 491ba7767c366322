"""The archetype tokenizers: built from our own text, read as they are, with the traps of their families."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from pytest_promptfmt.profiles import ARCHETYPES, TokenizerError, load_tokenizer
from pytest_promptfmt.profiles.tokenizer_sources import archetype_folder

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_archetypes.py"


def shown(name: str, text: str, *, add_special_tokens: bool = False) -> list[str]:
    tokenizer = load_tokenizer(f"archetype:{name}")
    return [tokenizer.visible(token) for token in tokenizer.encode(text, add_special_tokens=add_special_tokens).ids]


@pytest.mark.skipif(not version("tokenizers").startswith("0.23."), reason="another version may write other bytes")
def test_rebuilding_gives_the_committed_files(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(SCRIPT), str(tmp_path)], check=True)
    for name in ARCHETYPES:
        for file in ("tokenizer.json", "tokenizer_config.json"):
            committed = (archetype_folder(name) / file).read_bytes()
            assert (tmp_path / name / file).read_bytes() == committed, f"{name}/{file}"


@pytest.mark.parametrize("name", ARCHETYPES)
def test_archetype_is_small_and_read_as_it_is(name: str) -> None:
    tokenizer = load_tokenizer(f"archetype:{name}")
    assert tokenizer.is_archetype
    assert tokenizer.loader.startswith("tokenizers ")
    assert sum(file.stat().st_size for file in archetype_folder(name).iterdir()) < 40_000


def test_mistyped_archetype_is_answered_with_the_name_that_was_meant() -> None:
    with pytest.raises(TokenizerError, match="did you mean 'bytelevel-llama3'"):
        load_tokenizer("archetype:bytelevel-lama3")


@pytest.mark.parametrize(("name", "text", "tokens"), [
    ("bytelevel-gpt2", " A", ["␣A"]),
    ("bytelevel-gpt2", "(A", ["(", "A"]),
    ("bytelevel-llama3", "(A", ["(A"]),
    ("bytelevel-llama3", "Answer:A", ["Answer", ":A"]),
    ("bytelevel-llama3", "Answer:\nA", ["Answer", ":⏎", "A"]),
    ("bytelevel-llama3", "365", ["365"]),
    ("bytelevel-qwen", "365", ["3", "6", "5"]),
    ("sentencepiece-llama2", "A", ["␣A"]),
    ("sentencepiece-llama2", " A", ["␣A"]),
    ("sentencepiece-llama2", "\nA", ["␣", "<0x0A>", "A"]),
    ("sentencepiece-llama2-legacy", " A", ["␣", "␣A"]),
    ("sentencepiece-llama2-legacy", "</s>x", ["</s>", "␣x"]),
    ("sentencepiece-llama2", "</s>x", ["</s>", "x"]),
    ("sentencepiece-llama2-legacy", "<|assistant|>\n A", ["<|assistant|>", "␣A"]),
    ("sentencepiece-gemma", "A", ["A"]),
    ("sentencepiece-gemma", " A.", ["␣A."]),
    ("sentencepiece-gemma", "\n\nA", ["⏎⏎", "A"]),
    ("unigram-t5", "a\nb", ["␣a", "␣b"]),
    ("unigram-t5", "{", ["␣", "<unk>"]),
    ("wordpiece-bert", "Yes", ["yes"]),
    ("wordpiece-bert", "caf\u00e9", ["cafe"]),
])  # fmt: skip
def test_archetype_has_the_trap_of_its_family(name: str, text: str, tokens: list[str]) -> None:
    assert shown(name, text) == tokens
