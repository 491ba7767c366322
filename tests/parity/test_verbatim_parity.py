"""Whatever the proof calls verbatim is what AutoTokenizer makes of the folder: ids, special tokens, decoding."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings, strategies as st

from pytest_promptfmt.profiles import tokenizer_loader
from pytest_promptfmt.profiles.tokenizer_json import NAMED_TOKENS
from pytest_promptfmt.profiles.tokenizer_sources import ARCHETYPES, archetype_folder, find_source

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.parity

EXAMPLES = 400 if os.environ.get("PROMPTFMT_PARITY") == "all" else 25
TEXTS = [
    "",
    " A",
    "Answer: A\n",
    "a  b",
    "caf\u00e9 \U0001f600",
    "x.</s> y <s>z",
    "[SEP] <|im_end|>\n <bos>a",
    "don 't !",
    "\x00",
]
FLAGS = ("lstrip", "rstrip", "normalized", "special", "single_word")


@st.composite
def folders(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a tokenizer.json and a tokenizer_config.json that may or may not change what it means."""
    folder = archetype_folder(draw(st.sampled_from(ARCHETYPES)))
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    added = tokenizer["added_tokens"]
    if draw(st.booleans()):
        token = draw(st.sampled_from(added))
        flag = draw(st.sampled_from(FLAGS))
        token[flag] = not token[flag]
    if draw(st.integers(0, 3)) == 0:
        tokenizer["post_processor"] = None
    if draw(st.integers(0, 3)) == 0:
        tokenizer["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    if draw(st.integers(0, 5)) == 0:
        tokenizer["padding"] = {
            "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>",
        }  # fmt: skip
    contents = st.sampled_from([*(token["content"] for token in added), "A", "<new>"])
    config: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {},
            optional={
                **dict.fromkeys(NAMED_TOKENS, contents),
                "tokenizer_class": st.sampled_from(["TokenizersBackend", "PreTrainedTokenizerFast", None]),
                "clean_up_tokenization_spaces": st.booleans(),
                "model_max_length": st.just(4),
                "padding_side": st.just("left"),
                "extra_special_tokens": st.lists(contents, max_size=2),
                "additional_special_tokens": st.lists(contents, max_size=2),
                "chat_template": st.just("{{ messages }}"),
                "added_tokens_decoder": st.just(
                    {str(token["id"]): {key: value for key, value in token.items() if key != "id"} for token in added}
                ),
            },
        )
    )
    return tokenizer, {key: value for key, value in config.items() if value is not None}


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(folders())
def test_what_is_called_verbatim_is_what_auto_tokenizer_makes(
    content: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        for name, values in zip(("tokenizer.json", "tokenizer_config.json"), content, strict=True):
            (Path(scratch) / name).write_text(json.dumps(values), "utf-8")
        source = find_source(Path(scratch))
        facts = tokenizer_loader._facts_if_verbatim(source)
        event("verbatim" if facts else "asks transformers")
        if facts is None:
            return
        ours = tokenizer_loader._tokenizer(source, Path(scratch) / "tokenizer.json", facts)
        theirs = transformers.AutoTokenizer.from_pretrained(scratch, local_files_only=True, trust_remote_code=False)
        for text in TEXTS:
            for specials in (True, False):
                ids = theirs(text, add_special_tokens=specials)["input_ids"]
                assert list(ours.ids(text, add_special_tokens=specials)) == ids, text
                assert ours.decode(ids) == theirs.decode(ids), text
                assert ours.decode(ids, skip_special_tokens=True) == theirs.decode(ids, skip_special_tokens=True)
        assert dict(ours.special_tokens) == theirs.special_tokens_map
        assert ours.all_special_ids == set(theirs.all_special_ids)
        assert ours.facts.class_name == type(theirs).__name__
        assert ours.chat_templates == ({"default": theirs.chat_template} if theirs.chat_template else {})
