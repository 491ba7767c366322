"""Tokenizers out of files that other tools made: GGUF, SentencePiece, tiktoken, mistral-common.

Each is compared with what transformers makes of it; where the package that reads it is missing, the message is.
"""

from __future__ import annotations

import base64
import json
import shutil
import struct
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.profiles import TokenizerError, load_tokenizer
from pytest_promptfmt.profiles.tokenizer_sources import archetype_folder

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.parity

REAL = Path(__file__).parents[3] / "shared" / "data" / "tokenizers"
TEXTS = ["Answer: A", " A", "\n\nB. caf\u00e9", "a  b", "\u4f60 \U0001f600", "x</s> y", ""]


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("frozen")


def assert_same(source: Path | str, theirs: Any, cache_dir: Path) -> None:
    ours = load_tokenizer(source, cache_dir=cache_dir)
    for text in TEXTS:
        for specials in (True, False):
            ids = theirs(text, add_special_tokens=specials)["input_ids"]
            assert list(ours.ids(text, add_special_tokens=specials)) == list(ids), text


def gguf_file(path: Path, values: dict[str, Any]) -> Path:
    """Write a GGUF file, version 3, with metadata and no tensors. Layout: ggml's docs/gguf.md."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def typed(value: Any) -> tuple[int, bytes]:
        if isinstance(value, str):
            return 8, text(value)
        if isinstance(value, float):
            return 6, struct.pack("<f", value)
        if isinstance(value, int):
            return 4, struct.pack("<I", value)
        items = [typed(item) for item in value]
        return 9, struct.pack("<IQ", items[0][0], len(items)) + b"".join(data for _, data in items)

    entries = [(key, typed(value)) for key, value in values.items()]
    body = b"".join(text(key) + struct.pack("<I", kind) + data for key, (kind, data) in entries)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + body)
    return path


def test_gguf_file_of_an_archetype_gives_its_ids(tmp_path: Path, cache_dir: Path) -> None:
    content = json.loads((archetype_folder("bytelevel-gpt2") / "tokenizer.json").read_text("utf-8"))
    vocabulary = sorted(content["model"]["vocab"], key=content["model"]["vocab"].__getitem__)
    end = len(vocabulary)
    file = gguf_file(
        tmp_path / "tiny.gguf",
        {
            "general.architecture": "gpt2",
            "gpt2.context_length": 64,
            "gpt2.embedding_length": 8,
            "gpt2.block_count": 1,
            "gpt2.attention.head_count": 1,
            "gpt2.attention.layer_norm_epsilon": 1e-5,
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": [*vocabulary, "<|endoftext|>"],
            "tokenizer.ggml.token_type": [*(1 for _ in vocabulary), 3],
            "tokenizer.ggml.merges": [" ".join(merge) for merge in content["model"]["merges"]],
            "tokenizer.ggml.bos_token_id": end,
            "tokenizer.ggml.eos_token_id": end,
        },
    )
    missing = [package for package in ("torch", "gguf") if find_spec(package) is None]
    if missing:
        with pytest.raises(TokenizerError, match=f"needs the package {missing[0]}, which is not installed") as told:
            load_tokenizer(file, cache_dir=cache_dir)
        assert "pytest-promptfmt[gguf]" in str(told.value)
        return
    archetype = load_tokenizer("archetype:bytelevel-gpt2")
    # A tokenizer of something else in the same folder changes nothing.
    shutil.copytree(archetype_folder("wordpiece-bert"), tmp_path, dirs_exist_ok=True)
    tokenizer = load_tokenizer(file, cache_dir=cache_dir)
    for text in TEXTS:
        assert tokenizer.ids(text) == archetype.ids(text), text
    assert tokenizer.special_tokens["eos_token"] == "<|endoftext|>"


def test_tiktoken_file_gives_the_ids_of_its_ranks(tmp_path: Path, cache_dir: Path) -> None:
    pytest.importorskip("transformers", minversion="5.3", reason="the extra needs it")
    pytest.importorskip("tiktoken")
    file = tmp_path / "tiny.tiktoken"
    pieces = [bytes([byte]) for byte in range(256)] + [b"An", b"sw", b"er", b"Answ", b"Answer", b" A"]
    lines = [base64.b64encode(piece) + b" " + str(rank).encode() for rank, piece in enumerate(pieces)]
    file.write_bytes(b"\n".join(lines) + b"\n")
    tokenizer = load_tokenizer(file, cache_dir=cache_dir)
    assert tokenizer.ids("Answer: A", add_special_tokens=False) == (260, ord(":"), 261)


@pytest.mark.skipif(not REAL.is_dir(), reason="the collection of real tokenizers is not here")
def test_sentencepiece_file_alone_is_what_transformers_makes_of_it_alone(tmp_path: Path, cache_dir: Path) -> None:
    pytest.importorskip("transformers", minversion="5.3", reason="the extra needs it")
    pytest.importorskip("sentencepiece")
    pytest.importorskip("google.protobuf")
    shutil.copy(REAL / "mistral-v1" / "tokenizer.model", tmp_path / "tokenizer.model")
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True, trust_remote_code=False)
    shutil.copy(REAL / "mistral-v1" / "tokenizer.model", tmp_path / "mine.model")
    assert_same(tmp_path / "mine.model", theirs, cache_dir)


@pytest.mark.skipif(not REAL.is_dir(), reason="the collection of real tokenizers is not here")
def test_file_of_mistral_common_is_read_by_it(tmp_path: Path, cache_dir: Path) -> None:
    pytest.importorskip("transformers", minversion="5.3", reason="the extra needs it")
    file = tmp_path / "tokenizer.model.v1"
    shutil.copy(REAL / "mistral-v1" / "tokenizer.model", file)
    if find_spec("mistral_common") is None:
        with pytest.raises(
            TokenizerError, match="loading this tokenizer needs the package mistral-common, which is not installed"
        ):
            load_tokenizer(f"mistral:{tmp_path}", cache_dir=cache_dir)
        return
    pytest.importorskip("sentencepiece")
    from transformers.tokenization_mistral_common import MistralCommonBackend

    assert_same(f"mistral:{tmp_path}", MistralCommonBackend.from_pretrained(str(tmp_path)), cache_dir)
