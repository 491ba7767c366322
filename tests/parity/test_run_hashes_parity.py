"""The digests in the sample files of lm-eval 0.4.13, made by its own evaluator, are made again for every sample."""

import json
from pathlib import Path

import pytest

from pytest_promptfmt.answers.run_samples import read_run

pytestmark = pytest.mark.parity

lm_eval = pytest.importorskip("lm_eval", reason="needs the parity dependency group")

DOCS = [
    {
        "question": f"Wört {number}\t«{number / 7}»",
        "choices": ["ä", None, number],
        "answer": number % 3,
        "w": 10.0**-number,
    }
    for number in range(40)
]
TASK = """\
task: hashed
dataset_path: json
dataset_kwargs: {data_files: {test: docs.jsonl, train: docs.jsonl}}
test_split: test
fewshot_split: train
num_fewshot: 2
output_type: multiple_choice
doc_to_text: "{{question}}\\n"
doc_to_choice: ["A", "B", "C"]
doc_to_target: answer
"""


def test_every_hash_of_a_real_run_is_reproduced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks import TaskManager

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    Path("docs.jsonl").write_text("".join(json.dumps({**doc, "choices": str(doc["choices"])}) + "\n" for doc in DOCS))
    Path("tasks").mkdir()
    Path("tasks/hashed.yaml").write_text(TASK)
    tracker = EvaluationTracker(output_path="out")
    manager = TaskManager(include_path="tasks", include_defaults=False)
    results = lm_eval.simple_evaluate(
        model="dummy", tasks=["hashed"], task_manager=manager, log_samples=True, bootstrap_iters=0
    )
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    tracker.save_results_samples(task_name="hashed", samples=samples["hashed"])
    run = read_run(tmp_path / "out")
    found = run.tasks["hashed"]
    assert (len(found.samples), found.checked, found.wrong) == (40, 120, ())
    assert found.digest == run.facts["task_hashes"]["hashed"]
