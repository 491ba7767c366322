"""What a tokenizer of ours says about a text: ids, pieces, offsets, and how pairs are split at their seam."""

from __future__ import annotations

import pytest
from hypothesis import example, given, strategies as st

from pytest_promptfmt.core.profile import SPLITS, Split
from pytest_promptfmt.profiles import ARCHETYPES, Tokenizer, TokenizerError, load_tokenizer
from pytest_promptfmt.profiles.encoding import PairEncoder, digest_of_ids, encode_pairs
from pytest_promptfmt.profiles.tokenizer import MAX_CHARACTERS

BYTE_LEVEL = [name for name in ARCHETYPES if name.startswith("bytelevel")]
LOSSLESS = ["bytelevel-gpt2", "bytelevel-llama3", "sentencepiece-gemma"]

ODD = ["A", " ", "\n", "\r", "\t", "\xa0", "\u0301", "(", "0", "\x00", "</s>", "<bos>", "<think>", "\u4f60", "Answer"]
TEXTS = st.lists(st.characters(codec="utf-8") | st.sampled_from(ODD), max_size=25).map("".join)


def archetype(name: str) -> Tokenizer:
    return load_tokenizer(f"archetype:{name}")


def shown(tokenizer: Tokenizer, ids: tuple[int, ...]) -> list[str]:
    return [tokenizer.visible(token) for token in ids]


@pytest.mark.parametrize("name", ARCHETYPES)
@example(text="▁")
@given(text=TEXTS)
def test_offsets_lie_in_the_text_in_its_order_and_leave_no_letter_out(name: str, text: str) -> None:
    tokenizer = archetype(name)
    encoding = tokenizer.encode(text, add_special_tokens=False)
    assert len(encoding.ids) == len(encoding.tokens) == len(encoding.offsets) == len(encoding)
    assert all(0 <= start <= end <= len(text) for start, end in encoding.offsets)
    starts = [start for start, _ in encoding.offsets]
    assert starts == sorted(starts)
    if name in LOSSLESS:
        covered = {at for start, end in encoding.offsets for at in range(start, end)}
        assert covered == set(range(len(text)))
        # SentencePiece keeps a space as ▁ and gives both back as a space.
        spaces = "▁" if name.startswith("sentencepiece") else " "
        assert tokenizer.decode(encoding.ids) == text.replace(spaces, " ")


@pytest.mark.parametrize("name", BYTE_LEVEL)
@given(text=TEXTS)
def test_pieces_of_byte_level_tokens_spell_the_text(name: str, text: str) -> None:
    tokenizer = archetype(name)
    ids = tokenizer.ids(text, add_special_tokens=False)
    spelled = b"".join(
        tokenizer.added_tokens[token].content.encode() if token in tokenizer.added_tokens
        else tokenizer.alphabet.bytes_of(tokenizer.piece(token) or "")
        for token in ids
    )  # fmt: skip
    assert spelled.decode() == tokenizer.decode(ids)


@given(text=TEXTS)
def test_ids_are_those_of_the_encoding(text: str) -> None:
    tokenizer = archetype("sentencepiece-llama2")
    assert tokenizer.ids(text) == tokenizer.encode(text).ids


@pytest.mark.parametrize("name", ARCHETYPES)
def test_lone_surrogate_is_a_located_error(name: str) -> None:
    with pytest.raises(TokenizerError, match=r"lone surrogate U\+D83D at character 6, .*'Hello\\ud83d!'"):
        archetype(name).encode("Hello\ud83d!")


@pytest.mark.parametrize("name", ARCHETYPES)
def test_nul_is_text_like_any_other(name: str) -> None:
    tokenizer = archetype(name)
    assert tokenizer.ids("a\x00b", add_special_tokens=False)


def test_text_beyond_the_limit_is_refused_with_its_length() -> None:
    with pytest.raises(TokenizerError, match="6,000,001 characters is too long"):
        archetype("bytelevel-gpt2").ids("x" * (MAX_CHARACTERS + 1))


@pytest.mark.parametrize(("name", "text", "tokens"), [
    ("bytelevel-gpt2", " a\tb\n", ["␣a", "⇥", "b", "⏎"]),
    ("bytelevel-gpt2", "\U0001f600", ["⟨F0⟩", "⟨9F⟩", "⟨98⟩", "⟨80⟩"]),
    ("bytelevel-gpt2", "\u200b", ["⟨E2⟩", "⟨80⟩", "⟨8B⟩"]),
    ("bytelevel-qwen", "<|im_start|>", ["<|im_start|>"]),
    ("sentencepiece-gemma", " a\n\u4f60", ["␣a", "⏎", "<0xE4>", "<0xBD>", "<0xA0>"]),
    ("unigram-t5", "a~", ["␣a", "<unk>"]),
    ("wordpiece-bert", "stars", ["star", "##s"]),
])  # fmt: skip
def test_tokens_are_shown_with_their_blanks_and_bytes(name: str, text: str, tokens: list[str]) -> None:
    tokenizer = archetype(name)
    assert shown(tokenizer, tokenizer.ids(text, add_special_tokens=False)) == tokens


def test_id_that_no_token_has_is_shown_as_such() -> None:
    assert archetype("bytelevel-gpt2").visible(10**6) == "⟨no token 1000000⟩"


@pytest.mark.parametrize(("name", "text", "lost"), [
    ("bytelevel-gpt2", " A\r\n caf\u00e9 \u4f60 </s>", None),
    ("bytelevel-qwen", "cafe\u0301", "caf\u00e9"),
    ("sentencepiece-llama2", "A b", None),
    ("sentencepiece-llama2", " A", "A"),
    ("unigram-t5", "a\nb", "a b"),
    ("wordpiece-bert", "Caf\u00e9", "cafe"),
])  # fmt: skip
def test_round_trip_shows_what_is_lost(name: str, text: str, lost: str | None) -> None:
    assert archetype(name).round_trip(text) == (text if lost is None else lost)


# Pairs ----------------------------------------------------------------------------------------------------------------


def pair(name: str, context: str, continuation: str, split: str = "lm-eval") -> tuple[list[str], list[str], bool]:
    tokenizer = archetype(name)
    (encoded,) = encode_pairs(tokenizer, [(context, continuation)], split=split)  # type: ignore[arg-type]
    return shown(tokenizer, encoded.context_ids), shown(tokenizer, encoded.continuation_ids), encoded.merged


@pytest.mark.parametrize(("name", "context", "continuation", "scored", "merged"), [
    ("bytelevel-gpt2", "Answer:", " A", ["␣A"], False),
    ("bytelevel-gpt2", "Answer: ", "A", ["␣A"], False),
    ("bytelevel-gpt2", "Answer: ", " A", ["␣", "␣A"], False),
    ("bytelevel-gpt2", "Answer:", "A", ["A"], False),
    ("bytelevel-gpt2", "Sum is 1", "2", [], True),
    ("bytelevel-llama3", "Answer:", "A", [], True),
    ("bytelevel-llama3", "(", "A", [], True),
    ("bytelevel-llama3", "Answer:\n", "A", ["A"], True),  # the line break went into ":⏎" and is not scored
    ("sentencepiece-llama2", "Answer:\n", "A", ["<0x0A>", "A"], False),
    ("sentencepiece-llama2", "", "A", ["␣A"], False),
    ("sentencepiece-gemma", "Answer:\n", "A", ["⏎", "A"], False),
])  # fmt: skip
def test_seam_of_the_family(name: str, context: str, continuation: str, scored: list[str], merged: bool) -> None:
    assert pair(name, context, continuation)[1:] == (scored, merged)


def test_bos_that_the_template_wrote_is_not_doubled() -> None:
    context, _, _ = pair("bytelevel-llama3", "<|begin_of_text|>Hi", " A")
    assert context.count("<|begin_of_text|>") == 1
    assert pair("bytelevel-llama3", "Hi", " A")[0][0] == "<|begin_of_text|>"


def test_continuation_that_starts_with_the_prefix_token_brings_its_own_context() -> None:
    assert pair("bytelevel-llama3", "", "<|begin_of_text|>A") == (["<|begin_of_text|>"], ["A"], False)


def test_pairwise_encodes_the_continuation_by_itself() -> None:
    assert pair("sentencepiece-llama2", "Answer:\n", "A")[1] == ["<0x0A>", "A"]
    assert pair("sentencepiece-llama2", "Answer:", "A", "pairwise")[1] == ["␣A"]
    assert pair("unigram-t5", "Answer:", "A", "pairwise") == (["␣Answer", ":", "</s>"], ["␣A"], False)


def test_empty_context_without_a_prefix_token_is_an_error() -> None:
    with pytest.raises(TokenizerError, match="no BOS or EOS"):
        pair("wordpiece-bert", "", "A")


@given(first=st.lists(st.tuples(TEXTS, TEXTS)), second=st.lists(st.tuples(TEXTS, TEXTS)), split=st.sampled_from(SPLITS))
def test_pairs_that_were_asked_for_before_come_out_the_same(
    first: list[tuple[str, str]], second: list[tuple[str, str]], split: Split
) -> None:
    tokenizer = archetype("bytelevel-llama3")
    encode = PairEncoder(tokenizer, split)
    assert encode(first) == encode_pairs(tokenizer, first, split=split)
    assert encode([*second, *first, *second]) == encode_pairs(tokenizer, [*second, *first, *second], split=split)


def test_pair_is_encoded_once_for_all_who_look_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = archetype("bytelevel-llama3")
    encoded: list[str] = []
    ids = tokenizer.ids

    def counted(text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        encoded.append(text)
        return ids(text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(tokenizer, "ids", counted)
    encode = PairEncoder(tokenizer)
    encode([("Answer:", " A")])
    encode([("Answer:", " A"), ("Answer:", " B"), ("Answer:", " B")])
    assert encoded.count("Answer: A") == encoded.count("Answer: B") == 1


def test_mistyped_split_is_answered() -> None:
    with pytest.raises(TokenizerError, match="did you mean 'pairwise'"):
        pair("bytelevel-gpt2", "a", "b", "pair-wise")


def test_digest_tells_ids_apart() -> None:
    assert digest_of_ids([1, 23]) == digest_of_ids((1, 23))
    assert len({digest_of_ids(ids) for ids in ([], [1], [1, 2], [12], [2, 1])}) == 5
