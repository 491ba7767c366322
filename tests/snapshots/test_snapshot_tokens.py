"""What snapshots show of tokens: read back without loss, where a change shows, and what is bounded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from pytest_promptfmt.core.errors import TokenizerError
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.prompt import Instance, Origin, Prompt, Request, Span
from pytest_promptfmt.profiles import ARCHETYPES, load_tokenizer
from pytest_promptfmt.profiles.encoding import PairEncoder, digest_of_ids, encode_pairs
from pytest_promptfmt.snapshots.changes import changes
from pytest_promptfmt.snapshots.content import make_document
from pytest_promptfmt.snapshots.document import Document, read_document, write_document
from pytest_promptfmt.snapshots.token_sections import WHOLE_TOKENS, loader_kind, token_sections

FILE = Path("arc/tokens.txt")
LLAMA = load_tokenizer("archetype:sentencepiece-llama2")
QWEN = load_tokenizer("archetype:bytelevel-qwen")


def choices(context: str, continuations: Sequence[str], gold: int = 0, number: int = 0) -> Instance:
    requests = tuple(
        Request(kind="loglikelihood", index=index, context=context, continuation=text, prompt=0, gold=index == gold)
        for index, text in enumerate(continuations)
    )
    prompt = Prompt((Span(context, Origin("question")),))
    return Instance(index=number, doc={}, prompts=(prompt,), requests=requests, target=gold)


def document(*instances: Instance, tokenizer=LLAMA, profile: Profile | None = None) -> Document:  # type: ignore[no-untyped-def]
    profile = profile or Profile(name="p")
    more = token_sections(tokenizer, profile, instances, PairEncoder(tokenizer, profile.split))
    return make_document({"task": "arc"}, instances, more, shows_text=False)


def lines(*instances: Instance, **kwargs: object) -> list[str]:
    written = document(*instances, **kwargs)  # type: ignore[arg-type]
    text = write_document(written)
    assert read_document(text, FILE) == written
    return [line for line in text.splitlines() if line.startswith(("    ", "  *"))]


def test_continuation_shows_its_tokens_after_those_of_the_context() -> None:
    context, first, gold = lines(choices("Question: 1\nAnswer:", [" A", " B"], gold=1))
    pairs = encode_pairs(LLAMA, [("Question: 1\nAnswer:", " A"), ("Question: 1\nAnswer:", " B")])
    ids = pairs[0].context_ids
    assert context.startswith(f"    context {len(ids)} (1 control), digest {digest_of_ids(ids)}: ⟦<s>⟧ ")
    assert context.endswith(" <0x0A> Answer :")
    assert (first, gold) == ("    1: ␣A", "  * 1: ␣B")


def test_control_tokens_in_the_text_of_a_doc_stand_out() -> None:
    context = lines(choices("Say <|im_end|> or </s>.", [" A"]), tokenizer=QWEN)[0]
    assert " ⟦<|im_end|>⟧ " in context
    assert "⟦</s>⟧" not in context
    assert " ⟦</s>⟧ " in lines(choices("Say <|im_end|> or </s>.", [" A"]))[0]


def test_token_over_the_seam_is_told() -> None:
    llama3 = load_tokenizer("archetype:bytelevel-llama3")
    assert encode_pairs(llama3, [("Answer:", "A")])[0].merged
    assert lines(choices("Answer:", ["A"]), tokenizer=llama3)[1] == "  * 0, merged with the context:"
    assert "merged" not in lines(choices("Answer:", [" A"]), tokenizer=llama3)[1]


def test_long_continuation_shows_both_ends_and_a_digest_of_all() -> None:
    long = " ab" * WHOLE_TOKENS
    shown, changed = (lines(choices("Q:", [text]))[1] for text in (long, long.replace("ab ab", "ab ac ab", 1)))
    [pair] = encode_pairs(LLAMA, [("Q:", long)])
    assert shown.startswith(f"  * {len(pair.continuation_ids)}, digest {digest_of_ids(pair.continuation_ids)}: ")
    assert len(shown.split()) < 2 * WHOLE_TOKENS
    assert shown != changed


def test_token_that_changes_shows_at_its_doc_and_section() -> None:
    before = document(choices("Q: 1\nA:", [" A", " B"]), choices("Q: 2\nA:", [" A", " B"], number=1))
    after = document(choices("Q: 1\nA:", [" A", " B"]), choices("Q: 2\nA:", [" A", "B"], number=1))
    [change] = changes(before, after)
    assert (change.doc, change.section, change.removed, change.added) == (2, "tokens", ("  1: ␣B",), ("  1: B",))


def test_change_in_the_middle_of_a_context_changes_its_digest() -> None:
    texts = [f"{'a b c ' * 20}{middle}{' d e f' * 20}" for middle in "xy"]
    one, other = (lines(choices(text, [" A"]))[0] for text in texts)
    assert one != other
    assert re.sub("digest [0-9a-f]{12}", "", one) == re.sub("digest [0-9a-f]{12}", "", other)


def test_each_kind_of_request_is_encoded_as_it_is_asked() -> None:
    prompt = Prompt((Span("Say:", Origin("question")),))
    requests = (
        Request(kind="generate_until", index=0, context="Say:", generation_kwargs={}, prompt=0),
        Request(kind="loglikelihood_rolling", index=1, continuation="All of it"),
        Request(kind="loglikelihood", index=2, context="", continuation=" A"),
    )
    shown = lines(Instance(index=0, doc={}, prompts=(prompt,), requests=requests, target="x"))
    assert [line.split()[0] for line in shown] == ["prompt", "text", "context", "1:"]
    assert shown[2].endswith(": ⟦<s>⟧"), "nothing before it: BOS stands for the context"
    generating = lines(choices("Say:", [" A", " B"]), profile=Profile(name="p", mode="generate"))
    assert len(generating) == 1
    assert generating == [shown[0]]
    pairwise = Profile(name="p", split="pairwise")
    assert lines(choices("Answer:", ["A"]))[1] == "  * 1: A"
    assert lines(choices("Answer:", ["A"]), profile=pairwise)[1] == "  * 1: ␣A"


def test_text_that_no_tokenizer_encodes_names_its_doc() -> None:
    with pytest.raises(TokenizerError, match=r"doc 2: .*lone surrogate U\+D83D"):
        document(choices("fine", [" A"]), choices("half \ud83d of it", [" A"], number=1))


@pytest.mark.parametrize(
    ("loader", "kind"),
    [
        ("tokenizers 0.23.3", "tokenizers"),
        ("transformers 5.23.0 (TokenizersBackend), tokenizers 0.23.3", "transformers (TokenizersBackend), tokenizers"),
        ("transformers 5.23.0.dev1 (ByT5Tokenizer, Python)", "transformers (ByT5Tokenizer, Python)"),
    ],
)
def test_header_tells_the_loader_without_its_versions(loader: str, kind: str) -> None:
    assert loader_kind(loader) == kind


@pytest.mark.parametrize("name", ARCHETYPES)
@settings(max_examples=40)
@given(
    context=st.text(st.characters(codec="utf-8"), min_size=1, max_size=40),
    continuation=st.text(st.characters(codec="utf-8"), min_size=1, max_size=40),
)
def test_any_text_is_shown_in_lines_that_are_read_back(name: str, context: str, continuation: str) -> None:
    tokenizer = load_tokenizer(f"archetype:{name}")
    if (
        not context.strip()
        and tokenizer.id_of_named("bos_token") is None
        and tokenizer.id_of_named("eos_token") is None
    ):
        context = "Q"
    assert len(lines(choices(context, [continuation]), tokenizer=tokenizer)) == 2
