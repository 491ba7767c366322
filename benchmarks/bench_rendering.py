"""Prompts and requests per doc, side by side with lm-eval: an MMLU-like task with five demonstrations.

    python benchmarks/bench_rendering.py [--docs 300] [--rounds 5] [--require 50]

Both take turns in one process, so that a busy machine slows both, and must give the same requests. Printed are median
processor times per doc: `first five` takes the same demonstrations each time, `random` draws from 1,000 docs.
Exit code 1 when a ratio is below `--require`.
"""

import argparse
import logging
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import datasets
from lm_eval.api.task import ConfigurableTask

from pytest_promptfmt.core.docs import Doc, TaskDocs
from pytest_promptfmt.core.task import locate_nowhere
from pytest_promptfmt.tasks.renderer import render_task
from pytest_promptfmt.tasks.task_config import task_from_config

SHOTS = 5
CONFIG = {
    "task": "mmlu_like",
    "output_type": "multiple_choice",
    "doc_to_text": (
        "{{question.strip()}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\nD. {{choices[3]}}\nAnswer:"
    ),
    "doc_to_choice": ["A", "B", "C", "D"],
    "doc_to_target": "answer",
    "description": "The following are multiple choice questions (with answers) about brewing.\n\n",
    "test_split": "test",
    "fewshot_split": "dev",
    "num_fewshot": SHOTS,
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}


def made_docs(count: int, name: str) -> list[Doc]:
    return [
        {
            "question": f" {name} question {number}: which of these grains needs the longest steeping before malting?",
            "choices": [f"grain number {number + choice}" for choice in range(4)],
            "answer": number % 4,
        }
        for number in range(count)
    ]


def theirs(config: dict[str, Any], test: list[Doc], dev: list[Doc]) -> Callable[[], list[Any]]:
    splits = {"test": datasets.Dataset.from_list(test), "dev": datasets.Dataset.from_list(dev)}
    task = ConfigurableTask(config={**config, "custom_dataset": lambda **_: splits})

    def run() -> list[Any]:
        task.set_fewshot_seed(1234)
        requests = []
        for doc in task.eval_docs:
            context = task.fewshot_context(doc, num_fewshot=SHOTS, gen_prefix=task.doc_to_prefix(doc))
            made = task.construct_requests(doc=doc, ctx=context, metadata=("task", 0, 1))
            requests += [request.args for request in made]
        return requests

    return run


def ours(config: dict[str, Any], test: list[Doc], dev: list[Doc]) -> Callable[[], list[Any]]:
    task = task_from_config(config, path=None, locate=locate_nowhere)
    docs = TaskDocs.in_memory(test, dev)

    def run() -> list[Any]:
        return [request.arguments for instance in render_task(task, docs) for request in instance.requests]

    return run


def measured(run: Callable[[], list[Any]]) -> tuple[float, list[Any]]:
    began = time.process_time()
    result = run()
    return time.process_time() - began, result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--require", type=float, default=0.0)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    test = made_docs(options.docs, "test")
    ratios = []
    for name, sampler, pool in (("first five", "first_n", 5), ("random", "default", 1000)):
        config = {**CONFIG, "fewshot_config": {"sampler": sampler}}
        dev = made_docs(pool, "dev")
        peer, own = theirs(config, test, dev), ours(config, test, dev)
        times: dict[str, list[float]] = {"lm-eval": [], "ours": []}
        for _ in range(options.rounds):
            peer_seconds, expected = measured(peer)
            own_seconds, found = measured(own)
            assert found == expected
            times["lm-eval"].append(peer_seconds / options.docs * 1000)
            times["ours"].append(own_seconds / options.docs * 1000)
        medians = {side: statistics.median(values) for side, values in times.items()}
        ratios.append(medians["lm-eval"] / medians["ours"])
        print(
            f"{name:10}  lm-eval {medians['lm-eval']:.3f} ms per doc, ours {medians['ours']:.3f} ms per doc, "
            f"{ratios[-1]:.0f} times as fast"
        )
    return 0 if min(ratios) >= options.require else 1


if __name__ == "__main__":
    sys.exit(main())
