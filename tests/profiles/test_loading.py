"""Where tokenizers come from, when transformers is asked, what is kept, and what a user is told when it fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.profiles import (
    TokenizerError,
    frozen_tokenizers,
    load_tokenizer,
    tokenizer_loader,
    tokenizer_sources,
)
from pytest_promptfmt.profiles.tokenizer import Facts
from pytest_promptfmt.profiles.tokenizer_freezing import explained
from pytest_promptfmt.profiles.tokenizer_json import facts_if_verbatim, refuse_unbounded
from pytest_promptfmt.profiles.tokenizer_sources import MAX_FILE_BYTES, archetype_folder, find_source

needs_transformers_5 = pytest.mark.skipif(
    int(version("transformers").partition(".")[0]) < 5,
    reason="transformers 4 rebuilds another pipeline, and has another error for an unknown class",
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("PROMPTFMT_CACHE_DIR", str(folder))
    monkeypatch.setattr(tokenizer_loader, "_loaded", {})
    return folder


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    """A folder that AutoTokenizer would read as it stands."""
    return Path(shutil.copytree(archetype_folder("bytelevel-gpt2"), tmp_path / "my-model"))


def change(file: Path, **values: Any) -> None:
    content = json.loads(file.read_text("utf-8")) if file.exists() else {}
    file.write_text(json.dumps({**content, **values}), "utf-8")


def run_python(code: str, *arguments: object) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], check=True, capture_output=True, text=True, encoding="utf-8"
    )
    return run.stdout


@pytest.mark.parametrize("name", ["mine.model", "mine.tiktoken", "tokenizer.json", "tekken.json"])
def test_a_folder_with_one_file_of_a_tokenizer_is_its_source(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("{}", "utf-8")
    assert find_source(tmp_path).has == {name}


def test_a_folder_without_files_of_a_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "README.md").touch()
    with pytest.raises(TokenizerError, match="there are no tokenizer files in"):
        find_source(tmp_path)


# What is loaded how ---------------------------------------------------------------------------------------------------


def test_file_that_auto_tokenizer_would_read_as_it_is_needs_no_transformers(
    gpt2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")  # transformers would be asked in another process
    tokenizer = load_tokenizer(gpt2)
    assert tokenizer.loader.startswith("tokenizers ")
    assert tokenizer.name == "my-model"
    assert tokenizer.ids("Answer: A") == load_tokenizer("archetype:bytelevel-gpt2").ids("Answer: A")


@needs_transformers_5
def test_class_that_rebuilds_the_pipeline_is_asked_once_and_then_frozen(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(archetype_folder("sentencepiece-llama2-legacy"), tmp_path / "llama"))
    change(folder / "tokenizer_config.json", tokenizer_class="LlamaTokenizer")
    code = """
import sys
from pytest_promptfmt.profiles import load_tokenizer
tokenizer = load_tokenizer(sys.argv[1])
print(tokenizer.loader, [tokenizer.piece(token) for token in tokenizer.ids(" A")])
print([tokenizer.piece(token) for token in tokenizer.raw_ids[" A"]])
print(sorted({"transformers", "torch", "huggingface_hub", "subprocess"} & set(sys.modules)))
"""
    first, *_ = run_python(code, folder).splitlines()
    second, raw, imported = run_python(code, folder).splitlines()
    assert "LlamaTokenizer" in first
    assert first.endswith("['<s>', '\u2581A']")
    assert raw == "['<s>', '\u2581', '\u2581A']"  # the file itself says two blanks
    assert second == first
    assert imported == "[]"


def test_what_is_frozen_changes_with_the_files(gpt2: Path, own_cache: Path) -> None:
    load_tokenizer(gpt2)
    digest = load_tokenizer(gpt2).facts.digest
    change(gpt2 / "tokenizer_config.json", pad_token="<|endoftext|>")
    again = load_tokenizer(gpt2)
    assert again.special_tokens["pad_token"] == "<|endoftext|>"
    assert again.facts.digest != digest
    assert len(list((own_cache / "tokenizers").iterdir())) == 2


def test_tokenizer_is_loaded_once_in_a_process(gpt2: Path) -> None:
    assert load_tokenizer(gpt2) is load_tokenizer(gpt2)


def test_damaged_frozen_copy_is_made_anew(gpt2: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = load_tokenizer(gpt2).ids("Answer: A")
    (kept,) = (own_cache / "tokenizers").iterdir()
    (kept / "tokenizer.json").write_text("{", "utf-8")
    monkeypatch.setattr(tokenizer_loader, "_loaded", {})
    assert load_tokenizer(gpt2).ids("Answer: A") == ids
    assert json.loads((kept / "tokenizer.json").read_text("utf-8"))["model"]["type"] == "BPE"


def test_nothing_is_kept_where_caches_are_switched_off(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTFMT_CACHE_DIR", "")
    assert load_tokenizer(gpt2).ids("A")


def test_workers_that_need_the_same_tokenizer_make_it_once(tmp_path: Path) -> None:
    made = []

    def work() -> None:
        with frozen_tokenizers.turn(tmp_path / "key", 60):
            if not frozen_tokenizers.is_usable(tmp_path / "key"):
                made.append(1)
                time.sleep(0.2)
                (tmp_path / "key").mkdir()
                facts = Facts(class_name="X", loader="x", digest="0")
                (tmp_path / "key" / "facts.json").write_text(
                    frozen_tokenizers.facts_as_json(facts, in_python=True), "utf-8"
                )

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert made == [1]
    assert [entry.name for entry in tmp_path.iterdir()] == ["key"]


def test_mark_of_a_process_that_died_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    (tmp_path / "key.making").touch()
    os.utime(tmp_path / "key.making", (0, 0))
    with frozen_tokenizers.turn(tmp_path / "key", 60):
        assert (tmp_path / "key.making").stat().st_mtime > 0
    assert not (tmp_path / "key.making").exists()


@pytest.mark.parametrize(
    "says",
    [
        {"tokenizer_class": "GPT2Tokenizer"},
        {"auto_map": {"AutoTokenizer": ["x.X", None]}},
        {"add_prefix_space": True},
        {"split_special_tokens": True},
        {"image_token": "<image>"},
        {"pad_token": "<pad>"},
        {"pad_token": {"content": "<|endoftext|>", "__type": "AddedToken"}},
        {"extra_special_tokens": ["<new>"]},
        {"extra_special_tokens": {"image_token": "<|endoftext|>"}},
        {"added_tokens_decoder": {}},
        {"added_tokens_decoder": {"7": {"content": "x"}}},
    ],
    ids=lambda says: next(iter(says)),
)
def test_anything_that_could_change_the_tokenizer_ends_the_proof(gpt2: Path, says: dict[str, Any]) -> None:
    tokenizer = json.loads((gpt2 / "tokenizer.json").read_text("utf-8"))
    config = json.loads((gpt2 / "tokenizer_config.json").read_text("utf-8"))
    files = frozenset({"tokenizer.json", "tokenizer_config.json"})
    assert facts_if_verbatim(files, tokenizer, config, None) is not None
    assert facts_if_verbatim(files, tokenizer, {**config, **says}, None) is None
    assert facts_if_verbatim(files | {"config.json"}, tokenizer, config, None) is None


def test_a_vocabulary_for_which_the_pre_tokenizer_may_change_ends_the_proof(gpt2: Path) -> None:
    tokenizer = json.loads((gpt2 / "tokenizer.json").read_text("utf-8"))
    files, added = frozenset({"tokenizer.json"}), len(tokenizer["added_tokens"])
    pieces = {f"piece {number}": number for number in range(100_000 - added)}
    largest = {**tokenizer, "model": {**tokenizer["model"], "vocab": pieces}}
    larger = {**tokenizer, "model": {**tokenizer["model"], "vocab": {**pieces, "one more": len(pieces)}}}
    assert facts_if_verbatim(files, largest, {}, None) is not None
    assert facts_if_verbatim(files, larger, {}, None) is None


def test_file_beside_its_config_stands_for_the_folder_and_alone_for_itself(gpt2: Path, tmp_path: Path) -> None:
    assert find_source(gpt2 / "tokenizer.json").folder == find_source(gpt2).folder
    assert load_tokenizer(gpt2 / "tokenizer.json").special_tokens["bos_token"] == "<|endoftext|>"
    shutil.copy(gpt2 / "tokenizer.json", tmp_path / "mine.json")
    assert load_tokenizer(tmp_path / "mine.json").special_tokens.get("bos_token") is None
    assert load_tokenizer(tmp_path / "mine.json").name == "mine.json"


def test_hugging_face_id_is_found_in_the_local_cache(
    gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "hub" / "models--some--model"
    shutil.copytree(gpt2, repository / "snapshots" / "abc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc", "ascii")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert load_tokenizer("some/model").name == "some/model"
    assert load_tokenizer("some/model@abc").ids("A") == load_tokenizer("some/model").ids("A")
    with pytest.raises(TokenizerError, match="did you mean 'some/model'"):
        load_tokenizer("some/modle")
    with pytest.raises(TokenizerError, match="to download it, use --promptfmt-download"):
        load_tokenizer("other/thing")


# What fails, and how it is told ---------------------------------------------------------------------------------------


def message(source: Path | str) -> str:
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(source)
    return str(caught.value)


def test_truncated_file_is_told_with_its_line(gpt2: Path) -> None:
    text = (gpt2 / "tokenizer.json").read_text("utf-8")
    (gpt2 / "tokenizer.json").write_text(text[: len(text) // 2], "utf-8")
    told = message(gpt2)
    assert "tokenizer.json:1:" in told
    assert "ends too early" in told


@pytest.mark.parametrize(
    "content", [b"MZ\x90\x00\xff", b"[1, 2]", b"", b'{"a": ' * 100_000, b"{}", b'{"model": {}}', b"9" * 9999]
)
def test_file_that_is_no_tokenizer_is_named(gpt2: Path, content: bytes) -> None:
    (gpt2 / "tokenizer.json").write_bytes(content)
    assert "tokenizer.json" in message(gpt2)


def bpe_content(**changes: Any) -> dict[str, Any]:
    content = json.loads((archetype_folder("bytelevel-gpt2") / "tokenizer.json").read_text("utf-8"))
    return {**content, **changes}


def replacing(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


DOUBLING = replacing({"String": "A"}, "AA")
AROUND = {
    "type": "TemplateProcessing",
    "single": [*[{"SpecialToken": {"id": "<s>", "type_id": 0}}] * 50, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [1] * 50, "tokens": ["a"] * 50}},
}
UNKNOWN = {**AROUND, "special_tokens": {}}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"normalizer": {"type": "Sequence", "normalizers": [DOUBLING] * 40}},
            "the normalizer of the tokenizer makes texts more than",
        ),
        (
            {"normalizer": replacing({"Regex": "x*"}, "B" * 200)},
            "the normalizer of the tokenizer makes texts more than 100 times",
        ),
        (
            {"normalizer": {"type": "Prepend", "prepend": "x" * 1001}},
            "the normalizer of the tokenizer puts more than 1,000 characters",
        ),
        (
            {"decoder": {"type": "Sequence", "decoders": [DOUBLING] * 40}},
            "the decoder of the tokenizer makes texts more than 100 times",
        ),
        ({"post_processor": AROUND}, "the tokenizer puts more than 1,000 tokens around each text"),
    ],
)
def test_file_that_would_make_endless_texts_is_refused_before_it_is_used(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(bpe_content(**changes)), "utf-8")
    assert message(tmp_path).startswith(f"{tmp_path / 'tokenizer.json'}: {says}")


@pytest.mark.parametrize(
    ("archetype", "changes", "says"),
    [
        ("bytelevel-gpt2", {"dropout": 0.1}, "the tokenizer skips merges at random (dropout 0.1)"),
        ("bytelevel-gpt2", {"vocab": {"a": 0, "b": 2**24}, "merges": []}, "the tokenizer has the id 16,777,216"),
        (
            "bytelevel-gpt2",
            {"vocab": {"a": 0, "b": 7, "c": 7}, "merges": []},
            "two tokens of the tokenizer, 'b' and 'c', have",
        ),
        ("wordpiece-bert", {"max_input_chars_per_word": 10_001}, "the tokenizer allows words of 10,001 characters"),
        (
            "unigram-t5",
            {"vocab": [["<unk>", 0.0], ["a" * 1001, -1.0]], "unk_id": 0},
            "the tokenizer has a piece of more than",
        ),
    ],
)
def test_model_that_would_take_endless_time_or_give_other_ids_each_time_is_refused(
    tmp_path: Path, archetype: str, changes: dict[str, Any], says: str
) -> None:
    folder = Path(shutil.copytree(archetype_folder(archetype), tmp_path / "model"))
    content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    change(folder / "tokenizer.json", model={**content["model"], **changes})
    assert message(folder).startswith(f"{folder / 'tokenizer.json'}: {says}")


@pytest.mark.parametrize(
    "content",
    [
        {"normalizer": replacing({"String": "A"}, "B" * 100)},
        {"normalizer": {"type": "Prepend", "prepend": "x" * 1000}},
        {"post_processor": {**AROUND, "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}] * 20}},
        {"model": {"vocab": {"a": 0, "b": 2**24 - 1}}},
        {"model": {"vocab": [["<unk>", 0.0], ["a" * 1000, -1.0]]}},
        {"model": {"max_input_chars_per_word": 10_000}},
    ],
)
def test_what_is_at_a_limit_is_not_refused(content: dict[str, Any]) -> None:
    refuse_unbounded(content, Path("tokenizer.json"))


def test_growth_of_real_normalizers_is_none_of_this(tmp_path: Path) -> None:
    steps = [replacing({"Regex": "[\u201c\u201d]"}, '"'), {"type": "Prepend", "prepend": "\u2581"}] * 10
    changed = bpe_content(normalizer={"type": "Sequence", "normalizers": [*steps, {"type": "NFKC"}]})
    (tmp_path / "tokenizer.json").write_text(json.dumps(changed), "utf-8")
    assert load_tokenizer(tmp_path).ids("A")


@pytest.mark.parametrize(
    "changes",
    [
        {"post_processor": UNKNOWN},
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}},
    ],
)
def test_library_that_gives_up_inside_gives_an_error_like_any_other(tmp_path: Path, changes: dict[str, Any]) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(bpe_content(**changes)), "utf-8")
    tokenizer = load_tokenizer(tmp_path)
    with pytest.raises(TokenizerError, match="cannot encode 'aaaaaaaaaaaaaaaaaaaa'"):
        tokenizer.ids("a" * 60 + "!")


def test_template_that_is_no_utf_8_is_told_with_its_byte(gpt2: Path) -> None:
    (gpt2 / "chat_template.jinja").write_bytes(b"{{ \xff }}")
    assert message(gpt2).endswith("chat_template.jinja: not UTF-8 at byte 3")


def test_huge_file_is_refused_before_it_is_read(gpt2: Path) -> None:
    os.truncate(gpt2 / "tokenizer.json", 1_000_000_000)  # a hole: takes no room on the disk
    assert "a file of 1,000 MB is too large for a tokenizer" in message(gpt2)
    assert MAX_FILE_BYTES < 1_000_000_000


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_named_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    told: list[str] = []
    thread = threading.Thread(target=lambda: told.append(message(tmp_path)), daemon=True)
    thread.start()
    thread.join(timeout=900)
    assert "not a regular file" in told[0]


def test_link_to_nothing_is_refused_and_a_folder_of_that_name_is_no_file(gpt2: Path) -> None:
    files = find_source(gpt2).files
    (gpt2 / "spiece.model").mkdir()
    assert find_source(gpt2).files == files
    (gpt2 / "added_tokens.json").symlink_to("nowhere")
    assert "added_tokens.json: No such file" in message(gpt2)


def test_missing_path_is_answered_with_its_neighbour(gpt2: Path) -> None:
    assert "did you mean 'my-model'" in message(gpt2.parent / "my-modle")
    assert "did you mean 'tokenizer.json'" in message(gpt2 / "tokeniser.json")


@pytest.mark.parametrize("source", ["", "  ", "x" * 5000 + "/y", "~nobody-of-that-name/x", "a\x00b"])
def test_name_that_can_be_no_place_is_an_error_like_any_other(source: str) -> None:
    assert "tokenizer" in message(source)


def test_bare_name_of_an_archetype_is_answered_with_its_prefix() -> None:
    assert "did you mean 'archetype:unigram-t5'" in message("unigram-t5")


def test_folder_without_tokenizer_files_says_what_one_has(tmp_path: Path) -> None:
    assert "there are no tokenizer files in" in message(tmp_path)


def test_code_of_a_model_is_neither_run_nor_asked_for(gpt2: Path, tmp_path: Path) -> None:
    change(gpt2 / "tokenizer_config.json", auto_map={"AutoTokenizer": ["mine.Mine", None]}, tokenizer_class="Mine")
    (gpt2 / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n", "utf-8")
    assert "needs Python code of the model, but promptfmt never runs such code" in message(gpt2)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("kind", "lacks"), [("MarianTokenizer", "source.spm"), ("LlamaTokenizer", "tokenizer.model")])
def test_class_without_its_vocabulary_says_which_files_are_missing(tmp_path: Path, kind: str, lacks: str) -> None:
    change(tmp_path / "tokenizer_config.json", tokenizer_class=kind)
    told = message(tmp_path)
    assert lacks in told or "sentencepiece" in told


@pytest.mark.parametrize(
    ("file", "says", "package", "extra"),
    [
        ("tokenizer.model", "tiktoken is required to read a tiktoken file", "sentencepiece", "sentencepiece"),
        ("tekken.json", "MistralConverter requires the mistral-common library", "mistral-common", "mistral"),
        ("tiktoken.model", "`tiktoken` is required", "tiktoken", "tiktoken"),
        ("tiny.gguf", "Could not import module 'read_gguf_metadata'", "torch", "gguf"),
        ("tiny.gguf", "Please install torch and gguf>=0.10.0 to load a GGUF checkpoint in PyTorch.", "gguf", "gguf"),
    ],
)
def test_package_that_is_missing_is_named_with_the_extra_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, says: str, package: str, extra: str
) -> None:
    (tmp_path / file).write_bytes(b"x")
    monkeypatch.setattr(frozen_tokenizers, "installed", lambda name: None if name == package else "1.0")
    told = str(explained(find_source(tmp_path / file), "ImportError", says))
    assert f"loading this tokenizer needs the package {package}, which is not installed" in told
    assert f"pytest-promptfmt[{extra}]" in told


@needs_transformers_5
def test_folder_without_a_vocabulary_says_so(tmp_path: Path) -> None:
    change(tmp_path / "tokenizer_config.json", tokenizer_class="NoSuchClass")
    assert "transformers finds no vocabulary in the tokenizer" in message(tmp_path)


def test_load_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(tmp_path / "tokenizer_config.json", tokenizer_class="ByT5Tokenizer")
    monkeypatch.setattr("pytest_promptfmt.profiles.tokenizer_freezing.TIMEOUT_SECONDS", 0.05)
    assert "did not load the tokenizer within 0.05 s" in message(tmp_path)


def test_tokenizer_written_in_python_works_without_being_frozen(tmp_path: Path) -> None:
    change(tmp_path / "tokenizer_config.json", tokenizer_class="ByT5Tokenizer")
    tokenizer = load_tokenizer(tmp_path)
    assert "Python" in tokenizer.loader
    assert tokenizer.decode(tokenizer.ids("caf\u00e9")) == "caf\u00e9</s>"
    assert tokenizer.ids("", add_special_tokens=False) == ()


def test_unrelated_large_data_in_the_folder_is_left_alone(gpt2: Path) -> None:
    (gpt2 / "train.json").touch()
    os.truncate(gpt2 / "train.json", 2 * tokenizer_sources.MAX_FILE_BYTES)
    assert load_tokenizer(gpt2).ids("A")
    os.truncate(gpt2 / "tokenizer.json", tokenizer_sources.MAX_FILE_BYTES)
    assert {"tokenizer.json"} == {file.name for file in find_source(gpt2).files} & {"train.json", "tokenizer.json"}


def test_what_does_not_load_is_tried_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Path] = []
    make = tokenizer_loader._make

    def counted(source: tokenizer_sources.Source, made: Path, digest: str) -> None:
        tried.append(made)
        make(source, made, digest)

    monkeypatch.setattr(tokenizer_loader, "_make", counted)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(archetype_folder("wordpiece-bert") / "tokenizer.json", tmp_path / name)
    messages = []
    for _ in range(3):
        with pytest.raises(TokenizerError) as caught:
            load_tokenizer(tmp_path)
        messages.append(str(caught.value))
    assert len(tried) == 1
    assert len(set(messages)) == 1
    shutil.copyfile(archetype_folder("wordpiece-bert") / "tokenizer_config.json", tmp_path / "tokenizer_config.json")
    assert load_tokenizer(tmp_path).ids("the answer")
