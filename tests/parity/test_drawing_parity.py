"""Tasks whose code draws at random have the prompts and requests of lm-eval: docs, shots and questions."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest
from test_release_parity import RELEASES, package_of

from pytest_promptfmt import load_tasks
from pytest_promptfmt.core.release import release_of
from pytest_promptfmt.tasks import load_docs, render_task

pytest.importorskip("lm_eval")

pytestmark = pytest.mark.parity

STEP = 1 if os.environ.get("PROMPTFMT_PARITY") == "all" else 11
"""Every eleventh of 448 tasks."""

CODE = """
import random

import numpy
from datasets import Dataset

rng = random.Random(42)
state = numpy.random.RandomState(7)
generator = numpy.random.default_rng(7)


def _shuffled(rows, shuffle):
    rows = [{**row} for row in rows]
    for row in rows:
        row["options"] = [*row["options"]]
        shuffle(row["options"])
    shuffle(rows)
    return Dataset.from_list(rows)


def by_module(rows):
    return _shuffled(rows, rng.shuffle)


def by_python(rows):
    return _shuffled(rows, random.shuffle)


def by_state(rows):
    return _shuffled(rows, state.shuffle)


def by_generator(rows):
    return _shuffled(rows, generator.shuffle)


def _mapped(row, generator):
    return {"options": generator.sample(row["options"], 4)}


def _mapped_by_module(row):
    return _mapped(row, rng)


def _mapped_by_python(row):
    return _mapped(row, random)


def by_module_in_map(rows):
    return rows.map(_mapped_by_module)


def by_python_in_map(rows):
    return rows.map(_mapped_by_python).filter(lambda row: len(row["question"]) > 1)


def text_by_module(doc):
    return f"{doc['question']} {rng.random()} {' '.join(doc['options'])}"


def text_by_python(doc):
    return f"{doc['question']} {random.random()} {' '.join(doc['options'])}"


def text_by_numpy(doc):
    return f"{doc['question']} {numpy.random.rand()} {' '.join(doc['options'])}"
"""
MANY_IMPORTS = ("0.4.3", "0.4.4", "0.4.5", "0.4.7", "0.4.8", "0.4.9", "0.4.10", "0.4.11")
"""Releases that import a module again for each function, so that each has generators of its own: not followed."""

SEEDING = f"{CODE}\nrandom.seed(5)\nnumpy.random.seed(5)\nHINT = random.random()\n"
PROCESS = ("module", "python", "state", "generator", "module_in_map", "python_in_map")
TEXTS = ("'{{question}} {{options}}'", *(f"!function CODE.text_by_{each}" for each in ("module", "python", "numpy")))
SPLITS = {
    "two": "training_split: train\ntest_split: test\n",
    "one": "test_split: test\n",
    "same": "training_split: train\nvalidation_split: train\n",
    "own": "test_split: test\nfewshot_config: {split: train, process_docs: !function CODE.by_python}\n",
}


def write_tasks(folder: Path) -> None:
    """Write tasks for all ways to draw."""
    for split in ("train", "test"):
        rows = [{"question": f"{split} {n}?", "options": [f"{split}{n}{each}" for each in "abcd"]} for n in range(9)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (folder / "drawing.py").write_text(CODE, "utf-8")
    (folder / "seeding.py").write_text(SEEDING, "utf-8")
    files = json.dumps({each: str(folder / f"{each}.jsonl") for each in ("train", "test")})
    ways = product(enumerate((None, *PROCESS)), enumerate(TEXTS), SPLITS.items(), (0, 2), ("drawing", "seeding"))
    for (way, process), (kind, text), (place, splits), shots, code in islice(ways, 0, None, STEP):
        if process is None and place == "own":
            continue  # without shots, few-shot docs are not processed only to draw what they draw
        name = f"{code}_{way}_{kind}_{place}_{shots}"
        lines = [
            f"task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {files}}}\nnum_fewshot: {shots}",
            f"doc_to_text: {text}\ndoc_to_target: '{{{{options[0]}}}}'\noutput_type: generate_until",
            *([f"process_docs: !function CODE.by_{process}"] if process else []),
            splits,
        ]
        (folder / f"{name}.yaml").write_text("\n".join(lines).replace("CODE", code), "utf-8")


def ours(file: Path, version: str) -> list[Any]:
    [task] = load_tasks(file, allow_code=True)
    task = task.following(release_of(version))
    docs = load_docs(task, count=3)
    return [[list(each.arguments) for each in one.requests] for one in render_task(task, docs)]


def compare(folder: Path, version: str, environment: dict[str, str]) -> None:
    write_tasks(folder)
    script = Path(__file__).with_name("drawing_side.py")
    command = [sys.executable, str(script), str(folder)]
    ran = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    theirs = json.loads(ran.stdout.splitlines()[-1])
    assert len(theirs) > 400 // STEP
    assert None not in theirs.values(), ran.stderr[-3000:]
    if version in MANY_IMPORTS:
        theirs = {name: each for name, each in theirs.items() if re.match(r"[a-z]+_[012346]_0_", name)}
    differing = [name for name, requests in theirs.items() if ours(folder / f"{name}.yaml", version) != requests]
    assert not differing


def test_what_code_of_tasks_draws_is_what_it_draws_in_lm_eval(tmp_path: Path) -> None:
    compare(tmp_path, "0.4.13", {})


@pytest.mark.slow
@pytest.mark.parametrize("version", RELEASES)
def test_what_code_of_tasks_draws_is_what_it_draws_in_a_release(tmp_path: Path, version: str) -> None:
    compare(tmp_path, version, {"PYTHONPATH": str(package_of(version).parent)})
