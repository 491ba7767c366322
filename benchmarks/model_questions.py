"""Questions for the benchmarks of models, and a random model of a size of one's own; needs no lm-eval."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from pytest_promptfmt.core.prompt import Request
from pytest_promptfmt.models.model import Ask, AskedQuestion, with_ids
from pytest_promptfmt.models.transformers import TINY_FOLDER

WORDS = ["river", "lamp", "goat", "window", "paper", "stone", "cloud", "harbour", "engine", "violin"]
STOP = "\n\n"
MAX_TOKENS = 16


def questions(docs: int) -> tuple[list[Ask], list[Ask]]:
    contexts = []
    for number in range(docs):
        options = "\n".join(f"{label}. {WORDS[(number * 3 + at) % 10]}" for at, label in enumerate("ABCD"))
        shots = f"Question: Which one is the {WORDS[number % 10]}?\n{options}\nAnswer: B\n\n" * (number % 4)
        asked = f"Question: Which one of number {number} is the {WORDS[number % 10]}?"  # no prompt is there twice
        contexts.append(f"{shots}{asked}\n{options}\nAnswer:")
    continuations = [
        " A",
        " B",
        " C",
        " D",
        *(f" the {word} of the {other}" for word, other in zip(WORDS[:4], WORDS[4:8], strict=True)),
    ]
    scored = [Ask(context=context, continuation=text) for context in contexts for text in continuations]
    return scored, [Ask(context=context, stop=(STOP,), max_tokens=MAX_TOKENS) for context in contexts]


def random_llama(millions: int, folder: Path) -> None:
    hidden = 2048 if millions > 300 else 768 if millions > 30 else 256
    layers = max(1, round(millions * 1e6 / (12 * hidden * hidden)))
    config = LlamaConfig(
        vocab_size=1280,
        hidden_size=hidden,
        intermediate_size=hidden * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    models: Any = AutoModelForCausalLM
    model = models.from_config(config)
    print(f"random Llama: {sum(weight.numel() for weight in model.parameters()) / 1e6:.0f} million weights")
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((TINY_FOLDER / name).read_bytes())


def with_tokens(asks: Sequence[Ask], tokenizer: Any) -> list[Ask]:
    request = Request(kind="generate_until", index=0)
    asked = [AskedQuestion(ask=ask, doc=0, request=request) for ask in asks]
    return [one.ask for one in with_ids(asked, tokenizer, split="lm-eval")]
