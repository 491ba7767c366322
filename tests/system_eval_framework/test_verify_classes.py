"""`promptfmt verify` of task classes: our requests against those of eval-framework's own samples and formatters."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from promptfmt_command import promptfmt

ROOT = Path(__file__).parents[2]
PYTHON = sys.executable if find_spec("eval_framework") else os.environ.get("PROMPTFMT_EVAL_FRAMEWORK_PYTHON")
needs_eval_framework = pytest.mark.skipif(not PYTHON, reason="there is no interpreter with eval-framework")

CLASSES = """
from eval_framework.contract import ResponseType
from eval_framework.tasks.base import BaseTask


class Hooks:
    DATASET_PATH = "generated/rows"
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT = "train"
    SUBJECTS = ["hard", "soft"]
    RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
    METRICS = []
    LANGUAGE = None

    def _get_instruction_text(self, item): return f"Question: {item['question']}\\n"
    def _get_ground_truth(self, item): return f" {item['choices'][item['answer']]}"
    def _get_possible_completions(self, item): return [f" {each}" for each in item["choices"]]
    def _get_cue_text(self, item): return "Answer:"
    def _get_initial_prompt_text(self, item): return f"About {item['subject']} minerals."


class NotDerived(Hooks):
    NAME = "NotDerived"


class Unlocked(Hooks, BaseTask):
    NAME = "Unlocked"


class Minerals(Hooks, BaseTask):
    NAME = "Minerals"
    REVISION_LOCKFILE = None


class Loaded(Minerals):
    NAME = "Loaded"
    SUBJECTS = ["no_subject"]

    def _load_dataset(self, subject):
        found = self._load_hf_dataset(path=self.DATASET_PATH, name=None)
        rows = {split: [{**row, "question": row["question"].upper()} for row in own] for split, own in found.items()}
        self.dataset = self._shuffle_splits(hf_dataset=rows)


class Open(Minerals):
    NAME = "Open"
    FEWSHOT_SPLIT = "test"
    RESPONSE_TYPE = ResponseType.COMPLETION

    def __init__(self, num_fewshot=0):
        super().__init__(num_fewshot)
        self.stop_sequences, self.max_tokens = ["\\n"], 7

    def _get_possible_completions(self, item): return None
"""


def write_classes(folder: Path, *names: str) -> None:
    (folder / "minerals.py").write_text(CLASSES, "utf-8")
    rows = [
        {
            "question": f"Which is {n}?",
            "choices": ["talc", "beryl"],
            "answer": n % 2,
            "subject": ["hard", "soft"][n % 2],
        }
        for n in range(12)
    ]
    for name in names:
        (folder / f"{name}.yaml").write_text(f"class: minerals:{name}\n", "utf-8")
        for split, own in (("test", rows[:6]), ("train", rows[6:])):
            lines = "".join(json.dumps(row) + "\n" for row in own)
            (folder / f"{name}.docs.{split}.jsonl").write_text(lines, "utf-8")


def verify(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    paths = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    command = [str(PYTHON), "-m", "pytest_promptfmt", "verify", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parity
@needs_eval_framework
def test_the_requests_of_classes_are_those_of_eval_framework(tmp_path: Path) -> None:
    write_classes(tmp_path, "Minerals", "Loaded", "Open")
    profiles = ("plain", "formatter-no-strip-concat", "formatter-llama3", "chat-chatml")
    done = verify(tmp_path, *(f"--profile={name}" for name in profiles))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("eval-framework 0.15.4: 3 tasks, ")
    assert done.stdout.rstrip().endswith("requests compared, all equal")


@pytest.mark.parity
@needs_eval_framework
def test_classes_that_cannot_run_there_are_named(tmp_path: Path) -> None:
    write_classes(tmp_path, "Unlocked", "NotDerived")
    done = verify(tmp_path, "--profile", "plain")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "eval-framework raises AttributeError, 1 task: Unlocked" in done.stdout
    assert "not compared, 1 task: NotDerived: NotDerived does not derive from a class of eval-framework" in done.stdout


@pytest.mark.parity
@needs_eval_framework
def test_a_checkout_with_another_formatter_differs(tmp_path: Path) -> None:
    show = "import eval_framework, template_formatting; print(*eval_framework.__path__, *template_formatting.__path__)"
    found = subprocess.run([str(PYTHON), "-c", show], capture_output=True, text=True, check=True)
    for package in found.stdout.splitlines()[-1].split():
        shutil.copytree(package, tmp_path / "checkout/src" / Path(package).name)
    module = tmp_path / "checkout/src/template_formatting/formatter.py"
    text = module.read_text("utf-8")
    assert text.count(r'end_assistant_id="\n\n"') == 1
    module.write_text(text.replace(r'end_assistant_id="\n\n"', r'end_assistant_id="\n#\n"'), "utf-8")
    (tmp_path / "mine").mkdir()
    write_classes(tmp_path / "mine", "Open")
    done = verify(tmp_path / "mine", "--eval-framework", "../checkout", "--profile", "plain")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "unknown cause, 1 task: Open" in done.stdout
    assert "2 shots, doc 1, request 1: prompt, from character" in done.stdout


def test_a_folder_without_eval_framework_is_refused(tmp_path: Path) -> None:
    write_classes(tmp_path, "NotDerived")
    done = promptfmt(tmp_path, "verify", "--eval-framework", ".")
    assert done.returncode == 2
    assert "has no folder eval_framework" in done.stderr
