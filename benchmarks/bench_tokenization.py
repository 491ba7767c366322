"""What a tokenizer costs: text to ids against `tokenizers` itself and AutoTokenizer, and the start of a process.

    python benchmarks/bench_tokenization.py [FOLDER ...] [--rounds 7]

FOLDER is a tokenizer for AutoTokenizer; without one, an archetype under the name of a class that transformers rebuilds.
Throughput is the best of the rounds, in processor time of one core. The second start of a process must import neither
transformers nor torch: exit code 1 when it does.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pytest_promptfmt.profiles import load_tokenizer
from pytest_promptfmt.profiles.encoding import encode_pairs
from pytest_promptfmt.profiles.tokenizer_sources import archetype_folder

HEAVY = ("transformers", "torch", "huggingface_hub")
PROMPTS = [
    f"The following are multiple choice questions about topic {number}.\n\nQuestion: Which of the following numbers is "
    f"larger than {number * 7}?\nA. {number}\nB. {number + 1}\nC. {number * 8}\nD. none of them\nAnswer:"
    for number in range(1000)
]

START = """
import json, sys, time
began = time.perf_counter()
from pytest_promptfmt.profiles import load_tokenizer
count = len(load_tokenizer(sys.argv[1]).ids("Answer: A"))
print(json.dumps([time.perf_counter() - began, sorted(set(sys.argv[2:]) & set(sys.modules))]))
"""


def microseconds(rounds: int, items: int, call: Callable[[], object]) -> float:
    """Return the processor time of one item in the fastest round."""
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        call()
        best = min(best, time.process_time() - began)
    return best / items * 1e6


def starts(folder: Path, cache: str) -> list[tuple[float, list[str]]]:
    """Return the seconds from the first import to the first ids, and the heavy modules, of two processes."""
    command = [sys.executable, "-c", START, str(folder), *HEAVY]
    environment = {**os.environ, "PROMPTFMT_CACHE_DIR": cache}
    runs = [subprocess.run(command, env=environment, check=True, capture_output=True, text=True) for _ in range(2)]
    return [json.loads(run.stdout) for run in runs]


def throughput(folder: Path, rounds: int) -> None:
    """Print what one prompt costs in each way of encoding it."""
    ours = load_tokenizer(folder)
    backend: Any = ours.backend
    pairs = [(prompt, f" {letter}") for prompt in PROMPTS for letter in "ABCD"]
    ways: dict[str, tuple[int, Callable[[], object]]] = {
        "tokenizers: encode(text).ids": (len(PROMPTS), lambda: [backend.encode(text).ids for text in PROMPTS]),
        "ours: ids(text)": (len(PROMPTS), lambda: [ours.ids(text) for text in PROMPTS]),
        "tokenizers: encode, ids, tokens, offsets": (
            len(PROMPTS),
            lambda: [(e.ids, e.tokens, e.offsets) for e in map(backend.encode, PROMPTS)],
        ),
        "ours: encode(text)": (len(PROMPTS), lambda: [ours.encode(text) for text in PROMPTS]),
        "ours: encode_pairs, one choice": (len(pairs), lambda: encode_pairs(ours, pairs)),
    }
    if not os.environ.get("WITHOUT_TRANSFORMERS"):
        from transformers import AutoTokenizer

        theirs = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        ways["transformers: tokenizer(texts)"] = (len(PROMPTS), lambda: theirs(PROMPTS))
    for name, (items, call) in ways.items():
        print(f"  {name:42} {microseconds(rounds, items, call):7.1f} us")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args(arguments)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    imported: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["PROMPTFMT_CACHE_DIR"] = cache = str(Path(scratch) / "cache")
        folders = given.folders
        if not folders:
            folders = [Path(shutil.copytree(archetype_folder("sentencepiece-llama2"), Path(scratch) / "llama2-like"))]
            settings = json.loads((folders[0] / "tokenizer_config.json").read_text("utf-8"))
            settings["tokenizer_class"] = "LlamaTokenizer"
            (folders[0] / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
        for folder in folders:
            (first, _), (second, modules) = starts(folder, cache)
            print(f"{folder.name}: first load {first:.2f} s, second {second:.2f} s, heavy imports: {modules or 'none'}")
            imported += modules
            throughput(folder, given.rounds)
    return 1 if imported else 0


if __name__ == "__main__":
    sys.exit(main())
