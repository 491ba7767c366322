"""What profiles with tokenizers cost: `pytest --promptfmt` on one small task, and the encoding of many prompts.

    python benchmarks/bench_profiles.py [--tokenizers FOLDER FOLDER FOLDER] [--rounds 5]

The first run starts with an empty cache folder, so a tokenizer that transformers has to load is loaded and frozen in
it; the later ones read what it left. Without --tokenizers the archetypes are taken, which transformers never sees. Wall
seconds, and processor seconds with those of child processes. Exit code 1 when a later run imported transformers or
torch.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pytest_promptfmt.profiles import load_tokenizer
from pytest_promptfmt.profiles.encoding import encode_pairs

ARCHETYPES = ("archetype:bytelevel-qwen", "archetype:sentencepiece-llama2", "archetype:unigram-t5")
HEAVY = ("transformers", "torch", "tokenizers")
PROMPTS = 2_000

TASK = """
task: capitals
dataset_path: example/capitals
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_choice: choices
doc_to_target: answer
metadata: {promptfmt: {docs: [{question: "What is the capital of Norway?", choices: [Bergen, Oslo], answer: 1}]}}
"""

LIST_MODULES = """
import json, sys

def pytest_unconfigure(config):
    with open("modules.json", "w") as file:
        json.dump(sorted(name for name in sys.modules if "." not in name), file)
"""


def run(project: Path, *options: str) -> tuple[float, float, set[str]]:
    """Return the wall and processor seconds of one run, and the top-level modules it had loaded at its end."""
    environment = {**os.environ, "PROMPTFMT_CACHE_DIR": str(project / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "pytest", "-q", "--promptfmt", "capitals.yaml", *options]
    done = subprocess.run(command, cwd=project, env=environment, check=False, capture_output=True, text=True)
    after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return seconds, processor, set(json.loads((project / "modules.json").read_text("utf-8")))


def medians(runs: list[tuple[float, float, set[str]]]) -> str:
    """Return the median wall and processor seconds in words."""
    wall = statistics.median(seconds for seconds, _, _ in runs)
    processor = statistics.median(seconds for _, seconds, _ in runs)
    return f"median {wall:.2f} s wall, {processor:.2f} s processor ({len(runs)} runs)"


def throughput(source: str) -> tuple[float, float]:
    """Return the prompts per second of `encode_pairs`, and of the bare backend for the same ids."""
    tokenizer = load_tokenizer(source)
    backend = tokenizer.backend
    pairs = [
        (f"Question: What is {number} + 1?\nA. {number}\nB. {number + 1}\nAnswer:", f" {letter}")
        for number in range(PROMPTS // 2)
        for letter in "AB"
    ]
    began = time.process_time()
    encode_pairs(tokenizer, pairs)
    ours = time.process_time() - began
    began = time.process_time()
    for context, continuation in pairs:
        _ids = backend.encode(context + continuation).ids, backend.encode(context).ids
    bare = time.process_time() - began
    return len(pairs) / ours, len(pairs) / bare


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizers", nargs="+", default=list(ARCHETYPES))
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    sources = [source if ":" in source else str(Path(source).absolute()) for source in arguments.tokenizers]
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        profiles = "".join(f"  model{n}: {{tokenizer: {json.dumps(source)}}}\n" for n, source in enumerate(sources, 1))
        (project / "promptfmt.yaml").write_text(f"profiles:\n{profiles}lint: false\n", "utf-8")
        (project / "pytest.ini").write_text("[pytest]\n", "utf-8")
        (project / "capitals.yaml").write_text(TASK, "utf-8")
        (project / "conftest.py").write_text(LIST_MODULES, "utf-8")
        first, processor, modules = run(project, "--snapshot-update")
        heavy = ", ".join(sorted(modules.intersection(HEAVY))) or "nothing heavy"
        print(f"first run: {first:.2f} s wall, {processor:.2f} s processor, imports {heavy}")
        later = [run(project) for _ in range(arguments.rounds)]
        loaded = set().union(*(found for _, _, found in later)).intersection(HEAVY)
        print(f"later runs: {medians(later)}, import {', '.join(sorted(loaded)) or 'nothing heavy'}")
        plain = [run(project, "--promptfmt-profile", "plain") for _ in range(arguments.rounds)]
        print(f"plain alone: {medians(plain)}")
    for source in sources:
        ours, bare = throughput(source)
        name = source.rpartition("/")[2]
        print(f"{name}: {ours:,.0f} pairs/s, the backend alone for context and whole each time {bare:,.0f} pairs/s")
    return int(bool(loaded - {"tokenizers"}))


if __name__ == "__main__":
    sys.exit(main())
