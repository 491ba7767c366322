"""`hf:` on a GPU: the bundled model and a random one of a billion weights, in float32 and bfloat16, by batch size.

    python benchmarks/bench_gpu.py [--device cuda] [--millions 1000] [--batch-sizes 1 16 64 256] [--docs 256]

One line for each model, dtype and batch size: log-likelihoods and generations a second, the largest memory, and what
differs from the same model on the CPU in float32 (asked once, about the first 32 prompts): the largest difference of a
log-likelihood per token, and answers that another label or text was read from. `--device cpu` runs the same code
without a GPU, to see that it works.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from model_questions import questions, random_llama, with_tokens

from pytest_promptfmt.models import open_model
from pytest_promptfmt.models.model import ModelOptions
from pytest_promptfmt.models.transformers import TINY_FOLDER

COMPARED = 32


def all_of(ask: Callable[..., Any], asked: Sequence[Any]) -> list[Any]:
    return list(ask(asked))


def seconds_of(run: Callable[[], list[Any]], device: str) -> tuple[float, list[Any]]:
    began = time.perf_counter()
    answers = run()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - began, answers


def largest_memory(device: str) -> str:
    return f"{torch.cuda.max_memory_allocated() / 2**30:.2f} GiB" if device.startswith("cuda") else "-"


def lines(folder: str, name: str, options: argparse.Namespace) -> None:
    reference: Any = open_model(f"hf:{folder}", ModelOptions(device="cpu", dtype="float32"))
    scored, written = (with_tokens(asks, reference.tokenizer) for asks in questions(options.docs))
    few = scored[: COMPARED * 8], written[:COMPARED]
    expected = list(reference.loglikelihood(few[0])), [answer.text for answer in reference.generate(few[1])]
    del reference
    for dtype in ("float32", "bfloat16"):
        for size in options.batch_sizes:
            given = ModelOptions(device=options.device, dtype=dtype, batch_size=size)
            model: Any = open_model(f"hf:{folder}", given)
            list(model.loglikelihood(scored[: size * 8]))  # the first run of a shape loads kernels
            list(model.generate(written[:size]))
            if options.device.startswith("cuda"):
                torch.cuda.reset_peak_memory_stats()
            likelihoods, answers = seconds_of(partial(all_of, model.loglikelihood, scored), options.device)
            generations, texts = seconds_of(partial(all_of, model.generate, written), options.device)
            worst = max(
                abs(one.total - wanted.total) / len(one.logprobs)
                for one, wanted in zip(answers, expected[0], strict=False)
            )
            other = sum(one.text != wanted for one, wanted in zip(texts, expected[1], strict=False))
            print(
                f"{name:<12} {dtype:<9} {size:>5} {len(scored) / likelihoods:>12,.0f} "
                f"{len(written) / generations:>12,.0f} {largest_memory(options.device):>10} {worst:>10.1e} "
                f"{other:>4} of {len(expected[1])}"
            )
            del model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--millions", type=int, default=1000)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--docs", type=int, default=256)
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        sys.exit("torch sees no NVIDIA GPU here: nothing was measured; --device cpu runs the same code on the CPU")
    where = torch.cuda.get_device_name() if options.device.startswith("cuda") else "CPU"
    print(f"{where}, torch {torch.__version__}")
    print("model        dtype     batch log-liks/s  generations/s   memory  nats/token  other texts")
    lines(str(TINY_FOLDER), "tiny", options)
    with tempfile.TemporaryDirectory() as folder:
        random_llama(options.millions, Path(folder))
        lines(folder, f"random {options.millions}M", options)


if __name__ == "__main__":
    main()
