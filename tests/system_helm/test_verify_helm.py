"""`promptfmt verify` of HELM files: our requests against those of HELM's own adapters, by method."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from promptfmt_command import promptfmt

from pytest_promptfmt.systems.helm.adapter_spec import METHODS

ROOT = Path(__file__).parents[2]
PYTHON = sys.executable if find_spec("helm") else os.environ.get("PROMPTFMT_HELM_PYTHON")
needs_helm = pytest.mark.skipif(not PYTHON, reason="PROMPTFMT_HELM_PYTHON names no interpreter with crfm-helm")


def write_files(folder: Path, *methods: str, **spec: object) -> None:
    """Write a file for each method, with docs to ask and docs to draw shots from."""
    asked = [{"input": f"Which is {n}?\n", "references": ["talc", "beryl", "opal"], "correct": [n % 3]} for n in (1, 2)]
    shots = [{"input": f"Was {n}?", "references": ["zinc", "lead", "iron"], "correct": [n % 3]} for n in range(9)]
    for method in methods:
        own = {"method": method, "max_train_instances": 3, "num_train_trials": 2, "instructions": "Answer.", **spec}
        (folder / f"{method}.json").write_text(json.dumps({"adapter_spec": own}), "utf-8")
        docs = (
            [{**doc, "messages": [{"role": "user", "content": "Hi"}]} for doc in asked] if method == "chat" else asked
        )
        for name, rows in ((f"{method}.docs.jsonl", docs), (f"{method}.docs.train.jsonl", shots)):
            (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def verify(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [str(PYTHON), "-m", "pytest_promptfmt", "verify", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parity
@needs_helm
def test_the_requests_of_each_method_are_those_of_helm(tmp_path: Path) -> None:
    write_files(tmp_path, *METHODS, substitutions=[{"source": "Which", "target": "What"}], stop_sequences=["\n"])
    done = verify(tmp_path, "--profile", "plain", "--profile", "chat-chatml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("helm ")
    assert f"{len(METHODS)} tasks, " in done.stdout
    assert done.stdout.rstrip().endswith("requests compared, all equal")


@pytest.mark.parity
@needs_helm
def test_prompts_are_cut_as_helm_cuts_them(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: number for number, word in enumerate(["?", "Answer", "Which", "Was", "is", "Input", "Output", ":"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    write_files(tmp_path, "generation", max_tokens=5)
    path = tmp_path / "generation.json"
    window = {"max_request_length": 40, "tokenizer": str(tmp_path / "tokenizer.json")}
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), "promptfmt": {"window": window}}), "utf-8")
    done = verify(tmp_path, "--profile", "plain")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 task, 4 requests compared, all equal" in done.stdout


@pytest.mark.parity
@needs_helm
def test_shots_that_only_recorded_prompts_have_are_not_compared() -> None:
    done = verify(ROOT / "fixtures/helm/oceans", "--profile", "plain")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "oceans: the shots are only in recorded prompts" in done.stdout


def test_a_checkout_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkout/src/helm").mkdir(parents=True)
    (tmp_path / "checkout/src/helm/__init__.py").touch()
    write_files(tmp_path, "generation")
    done = promptfmt(tmp_path, "verify", "--helm", "checkout", "--profile", "plain", "generation.json")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "not compared, 1 task: generation: HELM cannot be imported: ModuleNotFoundError" in done.stdout


def test_a_folder_without_helm_is_refused(tmp_path: Path) -> None:
    write_files(tmp_path, "generation")
    done = promptfmt(tmp_path, "verify", "--helm", ".")
    assert done.returncode == 2
    assert "has no folder helm" in done.stderr
