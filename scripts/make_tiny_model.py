"""Train the model of `pytest_promptfmt/models/tiny` and write its files: `python scripts/make_tiny_model.py FOLDER`.

A Llama of two layers and some 360,000 weights learns, from the text of `tiny_corpus.py`, to answer in the form that a
prompt requests. Needs the extra `model`, and some five minutes of one core; CI never does it, the files are committed.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from tiny_corpus import END_OF_TURN, Example, examples
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 1250
SPECIAL = ("<|endoftext|>", "<|im_start|>", END_OF_TURN)
TOKENS_PER_BATCH = 3072
PROMPT_WEIGHT = 0.05
"""Of the loss on the prompt, beside that on the answers."""


def train_tokenizer(texts: Sequence[str]) -> Tokenizer:
    """Return a byte-level BPE of its own for the texts, with the tokens of ChatML."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, batch: Sequence[Example]) -> list[tuple[list[int], list[float]]]:
    """Return the ids of each example and how much each counts in the loss."""
    encoded = []
    for example, encoding in zip(
        batch, tokenizer.encode_batch([example.prompt + example.answer for example in batch]), strict=True
    ):
        answers = (*example.shown, (len(example.prompt), len(example.prompt) + len(example.answer)))
        weights = [
            1.0 if any(start < end and begin >= start and stop <= end for start, end in answers) else PROMPT_WEIGHT
            for begin, stop in encoding.offsets
        ]
        encoded.append((encoding.ids, weights))
    return encoded


def batches(
    encoded: Sequence[tuple[list[int], list[float]]], draw: random.Random
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield padded ids and weights for ever, examples of like length together."""
    while True:
        order = sorted(range(len(encoded)), key=lambda at: len(encoded[at][0]) + 24 * draw.random())
        groups: list[list[int]] = []
        longest = 0
        for at in order:
            longest = max(longest, len(encoded[at][0]))
            if not groups or (len(groups[-1]) + 1) * longest > TOKENS_PER_BATCH:
                groups.append([])
                longest = len(encoded[at][0])
            groups[-1].append(at)
        draw.shuffle(groups)
        for group in groups:
            rows = [encoded[at] for at in group]
            width = max(len(ids) for ids, _ in rows)
            yield (
                torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in rows]),
                torch.tensor([weights + [0.0] * (width - len(weights)) for _, weights in rows]),
            )


def accuracy(model: LlamaForCausalLM, tokenizer: Tokenizer, held_out: Sequence[Example]) -> float:
    """Return how often the first token of the answer is the likeliest."""
    right = 0
    with torch.inference_mode():
        for example in held_out:
            ids = tokenizer.encode(example.prompt).ids
            wanted = tokenizer.encode(example.prompt + example.answer).ids[len(ids)]
            right += int(model(torch.tensor([ids])).logits[0, -1].argmax()) == wanted
    return right / len(held_out)


def main() -> None:
    """Train and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--examples", type=int, default=40_000)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    texts = list(examples(options.examples, options.seed))
    tokenizer = train_tokenizer([example.prompt + example.answer for example in texts[:20_000]])
    encoded = encode(tokenizer, texts)
    held_out = list(examples(240, options.seed + 1_000_000))
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=96,
            intermediate_size=288,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.token_to_id(END_OF_TURN),
            pad_token_id=tokenizer.token_to_id(SPECIAL[0]),
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, step / 100, 3 - 3 * step / options.steps)
    )
    began = time.process_time()
    for step, (ids, weights) in enumerate(batches(encoded, random.Random(options.seed)), start=1):
        logits = model(ids).logits[:, :-1]
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        loss = (losses * weights[:, 1:]).sum() / weights[:, 1:].sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 250 == 0 or step == options.steps:
            right = accuracy(model, tokenizer, held_out)
            print(
                f"step {step}: loss {loss.item():.3f}, right {right:.3f}, {time.process_time() - began:.0f} s",
                flush=True,
            )
        if step % 1000 == 0 or step == options.steps:
            write(model, tokenizer, options.folder)
        if step == options.steps:
            break


def write(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Write weights, configuration and tokenizer as AutoTokenizer and AutoModelForCausalLM read them."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    facts = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TURN,
        "pad_token": SPECIAL[0],
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
