"""Log-likelihoods and generations equal those of lm-eval 0.4.13's own HFLM on the same model and requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_promptfmt.core.prompt import Request
from pytest_promptfmt.models import open_model
from pytest_promptfmt.models.model import Ask, AskedQuestion, ModelOptions, with_ids
from pytest_promptfmt.models.transformers import TINY_FOLDER

pytestmark = pytest.mark.parity

pytest.importorskip("torch", reason="running a model needs torch, of the extra `model`")
pytest.importorskip("accelerate", reason="lm-eval's HFLM needs accelerate")
huggingface = pytest.importorskip("lm_eval.models.huggingface", reason="needs the parity dependency group")

WORDS = ["river", "lamp", "goat", "window", "paper", "stone", "cloud", "harbour", "engine", "violin"]


@pytest.fixture(scope="module")
def theirs() -> Any:
    return huggingface.HFLM(pretrained=str(TINY_FOLDER), device="cpu", dtype="float32", batch_size=8, max_length=2048)


@pytest.fixture(scope="module")
def ours() -> Any:
    return open_model("tiny", ModelOptions(device="cpu"))


def contexts() -> list[str]:
    made = []
    for number, word in enumerate(WORDS * 5):
        options = "\n".join(f"{label}. {WORDS[(number * 3 + at) % 10]}" for at, label in enumerate("ABCD"))
        question = f"Question: Which one is the {word}?\n" * (number % 4 + 1)
        made.append(
            question
            + options
            + ("\nAnswer:", "\nAnswer: ", "\n\nAnswer:\n", "<|im_end|>\n<|im_start|>assistant\n")[number % 4]
        )
    return made


def with_their_requests(asks: list[Ask], make: Callable[[Ask], tuple[Any, ...]]) -> list[Any]:
    from lm_eval.api.instance import Instance

    kind: Any = "loglikelihood" if asks[0].continuation is not None else "generate_until"
    return [
        Instance(request_type=kind, doc={}, arguments=make(ask), idx=number, metadata=("t", number, 1))
        for number, ask in enumerate(asks)
    ]


def ids_for(model: Any, asks: list[Ask]) -> list[Ask]:
    request = Request(kind="generate_until", index=0)
    return [
        one.ask
        for one in with_ids(
            [AskedQuestion(ask=ask, doc=0, request=request) for ask in asks], model.tokenizer, split="lm-eval"
        )
    ]


def test_log_likelihoods_are_hflms(theirs: Any, ours: Any) -> None:
    asks = [
        Ask(context=context, continuation=continuation)
        for context in contexts()
        for continuation in (" A", " B", "C", " river stone violin")
    ]
    wanted = theirs.loglikelihood(
        with_their_requests(asks, lambda ask: (ask.context, ask.continuation)), disable_tqdm=True
    )
    assert len(asks) == 200
    for ask, got, (total, greedy) in zip(asks, ours.loglikelihood(ids_for(ours, asks)), wanted, strict=True):
        assert got.total == pytest.approx(total, abs=1e-4 * len(got.logprobs)), ask
        assert got.is_greedy == greedy, ask


def test_generations_are_hflms(theirs: Any, ours: Any) -> None:
    asks = [Ask(context=context, stop=("\n\n", "river"), max_tokens=16) for context in contexts()]
    arguments = {"until": ["\n\n", "river"], "max_gen_toks": 16, "do_sample": False}
    wanted = theirs.generate_until(
        with_their_requests(asks, lambda ask: (ask.context, dict(arguments))), disable_tqdm=True
    )
    got = [answer.text for answer in ours.generate(ids_for(ours, asks))]
    assert got == wanted


@pytest.mark.parametrize("tokens_over", [-2, -1, 0, 1, 2, 40])
def test_rows_about_as_long_as_the_model_are_cut_as_hflm_cuts_them(theirs: Any, ours: Any, tokens_over: int) -> None:
    """One token more or less of context is what an error by one would show in."""
    context = " river" * (2048 + tokens_over - 3) + "\nAnswer:"
    asks = [Ask(context=context, continuation=text) for text in (" A", " lamp stone", " river lamp stone violin")]
    wanted = theirs.loglikelihood(
        with_their_requests(asks, lambda ask: (ask.context, ask.continuation)), disable_tqdm=True
    )
    for ask, got, (total, greedy) in zip(asks, ours.loglikelihood(ids_for(ours, asks)), wanted, strict=True):
        assert got.total == pytest.approx(total, abs=1e-4 * len(got.logprobs)), ask.continuation
        assert got.is_greedy == greedy
