"""Questions per second of `hf:` on one model, side by side with lm-eval's HFLM and with a naive loop.

    python benchmarks/bench_models.py [--model FOLDER] [--device cpu] [--dtype float32] [--batch-size 16] [--docs 60]

All three answer the same log-likelihoods (four labels and four texts after each of the prompts) and generations in
turn, in one process, and must agree. Printed are median seconds and ratios. Without a model the bundled one is taken;
`--random SIZE` makes a Llama of about so many million weights instead, to see that batches fill a device.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from model_questions import MAX_TOKENS, STOP, questions, random_llama, with_tokens

from pytest_promptfmt.models import open_model
from pytest_promptfmt.models.model import Ask, ModelOptions
from pytest_promptfmt.models.transformers import TINY_FOLDER


def naive_likelihoods(model: Any, asks: list[Ask]) -> list[float]:
    totals = []
    with torch.inference_mode():
        for ask in asks:
            ids = torch.tensor([[*ask.context_ids, *ask.continuation_ids]], device=model.device)
            logprobs = model(ids[:, :-1]).logits[0].float().log_softmax(-1)[len(ask.context_ids) - 1 :]
            wanted = torch.tensor(ask.continuation_ids, device=model.device)
            totals.append(float(logprobs.gather(1, wanted.unsqueeze(1)).sum()))
    return totals


def naive_texts(model: Any, tokenizer: Any, asks: list[Ask]) -> list[str]:
    texts = []
    with torch.inference_mode():
        for ask in asks:
            ids = torch.tensor([ask.context_ids], device=model.device)
            out = model.generate(ids, do_sample=False, max_new_tokens=MAX_TOKENS, pad_token_id=0)
            text = tokenizer.decode(out[0, len(ask.context_ids) :].tolist(), skip_special_tokens=True)
            texts.append(text.split(STOP)[0])
    return texts


def side_by_side(
    runs: dict[str, Callable[[], Any]], rounds: int, device: str
) -> tuple[dict[str, float], dict[str, Any]]:
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    answers: dict[str, Any] = {}
    for _ in range(rounds):
        for name, run in runs.items():
            began = time.perf_counter()
            answers[name] = run()
            if device.startswith("cuda"):
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(times) for name, times in seconds.items()}, answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=str(TINY_FOLDER))
    parser.add_argument("--random", type=int, metavar="MILLIONS")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--docs", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = options.model
    if options.random:
        folder = tempfile.mkdtemp()
        random_llama(options.random, Path(folder))
    batch = ModelOptions(device=options.device, dtype=options.dtype, batch_size=options.batch_size)
    ours: Any = open_model(f"hf:{folder}", batch)
    theirs: Any = HFLM(
        pretrained=folder, device=options.device, dtype=options.dtype, batch_size=options.batch_size, max_length=2048
    )
    scored, written = (with_tokens(asks, ours.tokenizer) for asks in questions(options.docs))
    pairs = [Instance("loglikelihood", {}, (ask.context, ask.continuation), at) for at, ask in enumerate(scored)]
    limits = {"until": [STOP], "max_gen_toks": MAX_TOKENS, "do_sample": False}
    prompts = [Instance("generate_until", {}, (ask.context, dict(limits)), at) for at, ask in enumerate(written)]

    likelihoods, totals = side_by_side(
        {
            "hf": lambda: [answer.total for answer in ours.loglikelihood(scored)],
            "HFLM": lambda: [total for total, _ in theirs.loglikelihood(pairs, disable_tqdm=True)],
            "naive": lambda: naive_likelihoods(ours._model, scored),
        },
        options.rounds,
        options.device,
    )
    texts_in, texts = side_by_side(
        {
            "hf": lambda: [answer.text for answer in ours.generate(written)],
            "HFLM": lambda: theirs.generate_until(prompts, disable_tqdm=True),
            "naive": lambda: naive_texts(ours._model, ours.tokenizer, written),
        },
        options.rounds,
        options.device,
    )
    worst = max(abs(a - b) for a, b in zip(totals["hf"], totals["HFLM"], strict=True))
    alike = sum(a == b for a, b in zip(texts["hf"], texts["HFLM"], strict=True))
    print(f"largest difference of a log-likelihood to HFLM {worst:.1e} nats; texts alike {alike} of {len(written)}")
    for what, count, seconds in (
        ("log-likelihoods", len(scored), likelihoods),
        ("generations", len(written), texts_in),
    ):
        shown = ", ".join(f"{name} {count / value:,.0f}/s" for name, value in seconds.items())
        ratios = [f"{seconds[name] / seconds['hf']:.1f}x {name}" for name in ("HFLM", "naive")]
        print(f"{what}: {shown}; hf is {', '.join(ratios)}")


if __name__ == "__main__":
    main()
