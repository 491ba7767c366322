"""Tokenizers encode as AutoTokenizer of transformers 5 does, and pairs are split as lm-eval 0.4.13 splits them.

The archetypes and one real tokenizer by default; `PROMPTFMT_PARITY=all` compares every tokenizer of the collection.
"""

from __future__ import annotations

import ast
import csv
import os
import re
import shutil
from functools import cache
from itertools import islice, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_promptfmt.core.errors import TokenizerError
from pytest_promptfmt.core.profile import Split
from pytest_promptfmt.profiles import ARCHETYPES, Tokenizer, load_tokenizer, tokenizer_loader
from pytest_promptfmt.profiles.encoding import encode_pairs
from pytest_promptfmt.profiles.tokenizer_sources import archetype_folder

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.parity

COMPARES_ALL = os.environ.get("PROMPTFMT_PARITY") == "all"
REAL = Path(__file__).parents[3] / "shared" / "data" / "tokenizers"
FACTS = list(csv.DictReader((REAL / "FACTS.csv").open(encoding="utf-8"))) if REAL.is_dir() else []
# What a loader of AutoTokenizer needs beyond transformers itself.
NEEDS = {"mistral-v1": ("sentencepiece", "google.protobuf"), "mistral-tekken": ("mistral_common", "tiktoken")}
LOADABLE = [row["tokenizer"] for row in FACTS if row["loader"] == "auto" and not row["error"]]
CHOSEN = LOADABLE if COMPARES_ALL else [name for name in LOADABLE if name == "phi3-mini"]

MARKS = [
    "</s>",
    "<s>",
    "<|endoftext|>",
    "<|im_end|>",
    "<|assistant|>",
    "[INST]",
    "<think>",
    "[SEP]",
    "<bos>",
    "<|eot_id|>",
]
LEADS = ["", " ", "  ", "\n", "\t", "\r\n", "\n\n", "\u00a0", *MARKS]
CORES = [
    "A", "(A)", "B.", "Answer: A", "Answer:", "True", "yes", "12", "1,234.5", "don't we'll", "caf\u00e9", "cafe\u0301",
    "\ufb01ne \u00bd \uff21", "\u4f60\u597d", "\U0001f600\u200d\U0001f4bb", "\u0391\u03b2", "\u05e9\u05dc\u05d5\u05dd",
    "a\u200bb\ufeff", "def f(x):\n    return {x: ~x}", "a  b   c", "x" * 70, "user@example.org/?q=1&amp;",
    "Question: Why?\nA. one\nB. two\n\nAnswer:", "\x00\x07", "STRASSE stra\u00dfe",
]  # fmt: skip
TAILS = ["", " ", "\n", " x", "A"]
PROBES = ["", *MARKS, *map("".join, product(LEADS, CORES, TAILS))]

SEAMS = [
    "Answer:", "Answer: ", "Answer:\n", "Q: 1+1\nA:", "(", "The best answer is ", "Ans", "Sum is 1", "x\xa0\t\n",
    "\u4f60",
]  # fmt: skip
STARTS = [
    "", " ", "Question: Why?\nA. a\n", "<s>", "</s>", "<bos>", "<|begin_of_text|>", "<|im_start|>user\nHi<|im_end|>\n",
]  # fmt: skip
CONTEXTS = ["", "[INST] Why? [/INST]", "a</s>", "<s>[INST] x [/INST] ", *map("".join, product(STARTS, SEAMS))]
CONTINUATIONS = [
    "A", " A", "  A", "\nA", "A)", "(A", "A.", " True", "yes", "12", "2", "wer", " the river",
    "\u597d", "\U0001f600", "</s>",
]  # fmt: skip


def auto_tokenizer(folder: Path, **options: Any) -> Any:
    return transformers.AutoTokenizer.from_pretrained(
        str(folder), trust_remote_code=False, local_files_only=True, **options
    )


@cache
def theirs(folder: Path) -> Any:
    return auto_tokenizer(folder)


def needs_installed(name: str) -> None:
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("frozen")


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_loader, "_loaded", {})


def assert_same(ours: Tokenizer, theirs: Any) -> int:
    for specials in (True, False):
        expected = theirs(PROBES, add_special_tokens=specials)["input_ids"]
        for text, ids, encoding in zip(
            PROBES, expected, [ours.encode(each, add_special_tokens=specials) for each in PROBES], strict=True
        ):
            assert list(encoding.ids) == ids, (ours.name, text, specials)
            assert ours.decode(ids) == theirs.decode(ids), (ours.name, text)
    assert dict(ours.special_tokens) == theirs.special_tokens_map
    assert ours.all_special_ids == set(theirs.all_special_ids)
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        assert ours.special_tokens.get(name) == getattr(theirs, name)
        assert ours.id_of_named(name) == getattr(theirs, f"{name}_id")
    return len(PROBES)


@pytest.mark.parametrize("name", ARCHETYPES)
def test_archetype_read_as_it_is_equals_auto_tokenizer(name: str) -> None:
    assert assert_same(load_tokenizer(f"archetype:{name}"), theirs(archetype_folder(name))) >= 500


@pytest.mark.parametrize("name", CHOSEN)
def test_real_tokenizer_equals_auto_tokenizer_at_first_and_when_frozen(
    name: str, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_installed(name)
    first = load_tokenizer(REAL / name, cache_dir=cache_dir)
    assert assert_same(first, theirs(REAL / name)) >= 500
    monkeypatch.setattr(tokenizer_loader, "_loaded", {})
    monkeypatch.setattr(tokenizer_loader, "_make", None)  # whoever makes anything now fails
    frozen = load_tokenizer(REAL / name, cache_dir=cache_dir)
    assert frozen is not first
    assert assert_same(frozen, theirs(REAL / name)) >= 500
    assert (frozen.loader, frozen.facts.digest, frozen.facts.class_name) == (
        first.loader,
        first.facts.digest,
        first.facts.class_name,
    )
    template = theirs(REAL / name).chat_template
    assert frozen.chat_templates == ({} if template is None else {"default": template})


@pytest.mark.parametrize(
    "row", [row for row in FACTS if not row["error"]], ids=lambda row: f"{row['tokenizer']}-{row['loader']}"
)
def test_observed_tokens_are_those_of_the_collection(row: dict[str, str], cache_dir: Path, tmp_path: Path) -> None:
    if row["tokenizer"] not in CHOSEN and not COMPARES_ALL:
        pytest.skip("PROMPTFMT_PARITY=all looks at every tokenizer")
    needs_installed(row["tokenizer"])
    source = REAL / row["tokenizer"]
    if row["loader"] == "raw":
        shutil.copy(source / "tokenizer.json", tmp_path)
        source = tmp_path / "tokenizer.json"
    tokenizer = load_tokenizer(source, cache_dir=cache_dir)

    def pieces(text: str) -> list[str]:
        return list(tokenizer.encode(text, add_special_tokens=False).tokens)

    compared = 0
    for column, tokens in row.items():
        if column.startswith("tok '"):
            assert " ".join(pieces(ast.literal_eval(column.removeprefix("tok ")))) == tokens, column
            compared += 1
    assert compared == 23
    assert [len(pieces(" A")), len(pieces("A"))] == [int(row['n(" A")']), int(row['n("A")'])]
    hi = list(tokenizer.encode("hi").tokens)
    if row["auto_prefix"].startswith("wrap:"):
        assert " ".join(hi) == row["auto_prefix"].removeprefix("wrap:")
    elif not row["auto_prefix"].startswith("\u2581"):  # a raw file may glue its prefix to the first blank
        assert "".join(hi[: len(hi) - len(pieces("hi"))]) == row["auto_prefix"]
    for character in ast.literal_eval(f"[{','.join(row['unk'].split())}]"):
        assert (
            tokenizer.id_of_named("unk_token") in tokenizer.ids(character, add_special_tokens=False)
            or row["loader"] == "raw"
        )
    lossy = [ast.literal_eval(f"({pair.replace('->', ', ', 1)})") for pair in row["lossy"].split("; ") if pair]
    assert len(lossy) == int(row["n_lossy"])
    assert {text: tokenizer.round_trip(text) for text, _ in lossy} == dict(lossy)
    for mark in row["special_in_text"].split():
        assert tokenizer.id_of(mark) in tokenizer.ids(f"a {mark} b", add_special_tokens=False), mark


def test_what_cannot_be_loaded_is_explained(cache_dir: Path) -> None:
    if not REAL.is_dir():
        pytest.skip("the collection of real tokenizers is not here")
    with pytest.raises(TokenizerError, match="needs Python code of the model") as caught:
        load_tokenizer(REAL / "chatglm3", cache_dir=cache_dir)
    assert "chatglm3" in str(caught.value)
    with pytest.raises(TokenizerError, match=r"transformers cannot load the tokenizer|needs the package") as caught:
        load_tokenizer(REAL / "marian-nmt", cache_dir=cache_dir)
    assert re.search(r"missing files: source\.spm|sentencepiece", str(caught.value))


# lm-eval ------------------------------------------------------------------------------------------------------------


def hflm_methods() -> dict[str, Any]:
    """Return HFLM.tok_encode and prefix_token_id from lm-eval's own source, whose module would import torch."""
    import lm_eval
    from lm_eval.models import utils

    source = Path(lm_eval.__file__).parent / "models" / "huggingface.py"
    tree = ast.parse(source.read_text("utf-8"))
    (model,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "HFLM")
    wanted = [node for node in model.body if getattr(node, "name", None) in ("tok_encode", "prefix_token_id")]
    future = [ast.ImportFrom("__future__", [ast.alias("annotations")], 0)]
    module = ast.fix_missing_locations(ast.Module([*future, *wanted], type_ignores=[]))
    namespace = dict(vars(utils))
    exec(compile(module, str(source), "exec"), namespace)
    return {name: namespace[name] for name in ("tok_encode", "prefix_token_id")}


def lm_eval_pairs(
    tokenizer: Any, pairs: list[tuple[str, str]], backend: str, add_bos_token: bool | None, prefix_token_id: int | None
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return what TemplateLM.loglikelihood hands to the model."""
    from lm_eval.api.model import TemplateLM

    stub = SimpleNamespace(
        tokenizer=tokenizer, backend=backend, add_bos_token=add_bos_token, custom_prefix_token_id=prefix_token_id
    )
    methods = hflm_methods()
    stub.prefix_token_id = methods["prefix_token_id"].fget(stub)
    stub.tok_encode = methods["tok_encode"].__get__(stub)
    stub._encode_pair = TemplateLM._encode_pair.__get__(stub)
    stub._loglikelihood_tokens = lambda requests, disable_tqdm: requests
    requests = [SimpleNamespace(args=pair) for pair in pairs]
    encoded = TemplateLM.loglikelihood(stub, requests, disable_tqdm=True)
    return [(tuple(context), tuple(continuation)) for _, context, continuation in encoded]


@pytest.mark.parametrize("backend", ["causal", "seq2seq"])
@pytest.mark.parametrize("name", [*(f"archetype:{name}" for name in ARCHETYPES), *CHOSEN])
def test_pairs_are_split_as_lm_eval_splits_them(name: str, backend: str, cache_dir: Path) -> None:
    pytest.importorskip("lm_eval")
    needs_installed(name)
    is_real = not name.startswith("archetype:")
    folder = REAL / name if is_real else archetype_folder(name.removeprefix("archetype:"))
    ours = load_tokenizer(folder if is_real else name, cache_dir=cache_dir)
    # Without BOS and EOS, HFLM must be told a prefix token.
    prefix = 0 if not {"bos_token", "eos_token"} & ours.special_tokens.keys() else None
    for add_bos_token in (None, True, False) if ours.special_tokens.get("bos_token") else (None, False):
        options = {} if add_bos_token is None else {"add_bos_token": add_bos_token}
        tokenizer = auto_tokenizer(folder, **options) if options else theirs(folder)
        every = 1 if COMPARES_ALL and add_bos_token is None else 7
        pairs = list(islice(product(CONTEXTS, CONTINUATIONS), 0, None, every))
        split: Split = "lm-eval" if backend == "causal" else "pairwise"
        encoded = encode_pairs(ours, pairs, split=split, add_bos_token=add_bos_token, prefix_token_id=prefix)
        expected = lm_eval_pairs(tokenizer, pairs, backend, add_bos_token, prefix)
        for pair, got, wanted in zip(pairs, encoded, expected, strict=True):
            assert (got.context_ids, got.continuation_ids) == wanted, (name, pair, add_bos_token)
