"""Task classes made ready for scoring: the metrics they name, and their post-processing as a filter."""

from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt import load_tasks
from pytest_promptfmt.core.errors import ScoringError
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.tasks.functions import bind_scoring
from pytest_promptfmt.tasks.scoring.filters import pipelines_of
from pytest_promptfmt.tasks.scoring.results import questions_of

CLASSES = Path(__file__).parents[2] / "fixtures" / "classes"


def scored(name: str) -> Task:
    (task,) = load_tasks(CLASSES / f"{name}.yaml", allow_code=True)
    return bind_scoring(task, trusted=lambda _file: True)


DOC = {"question": "?", "options": ["an anchor", "a sail"], "letter": "A", "subject": "knots"}


@pytest.mark.parametrize(
    ("likelihoods", "values"),
    [
        ((-1.0, -9.0), {"AccuracyLoglikelihood": 1.0, "AccuracyNormLoglikelihood": 1.0}),
        ((-9.0, -1.0), {"AccuracyLoglikelihood": 0.0, "AccuracyNormLoglikelihood": 0.0}),
        # ten characters against seven: the longer one wins by the character
        ((-8.0, -7.0), {"AccuracyLoglikelihood": 0.0, "AccuracyNormLoglikelihood": 1.0}),
    ],
)
def test_log_likelihoods_are_scored_by_the_metrics_that_the_class_names(
    likelihoods: tuple[float, ...], values: dict[str, float]
) -> None:
    task = scored("whole_answer")
    assert [entry["metric"] for entry in task.metric_list or ()] == list(values)
    assert task.process_results(DOC, [(value, False) for value in likelihoods]) == values


@pytest.mark.parametrize(
    ("completion", "extracted"),
    [("So the answer is (7).", "7"), ("the answer is 5, no, the answer is 6", "6"), ("x", "x")],
)
def test_post_processing_reads_completions_like_a_filter(completion: str, extracted: str) -> None:
    task = scored("knot_counts")
    (pipeline,) = pipelines_of(task)
    assert pipeline.name == "post_process_generated_completion"
    assert pipeline.extract(completion, {"question": "?", "count": "7"}) == extracted


SAMPLES = """
class Message:
    def __init__(self, role, content): self.role, self.content = role, content

class Sample:
    def __init__(self, number, question, truth):
        self.id, self.subject, self.context = number, "s", None
        self.messages = [Message("user", question)]
        self.ground_truth, self.possible_completions = truth, CANDIDATES

class Eval:
    def iterate_samples(self, num_samples=None):
        yield Sample(0, "one?", " a")
        yield Sample(1, "two?", " b")
    def get_max_tokens(self): return 8
    def get_stop_sequences(self): return []

class Policy:
    def extract_answer(self, completion_text, *, context, ground_truth, messages):
        assert [message.role for message in messages] == ["user"]
        return completion_text.rpartition(":")[2]

AccuracyCompletion = type("AccuracyCompletion", (), {})
AccuracyLoglikelihood = type("AccuracyLoglikelihood", (), {})

class Benchmark:
    def create(self, num_fewshot, custom_subjects, custom_hf_revision, seed):
        made = Eval()
        made._answer = Policy()
        return made
    def subjects(self): return ["s"]
    def response_type(self): return KIND
    def metrics(self): return METRICS

benchmark = Benchmark()
"""


def benchmark(folder: Path, kind: str) -> tuple[Task, list[Any]]:
    """Return a composed benchmark made ready for scoring, and the docs of its samples."""
    chooses = kind == "loglikelihoods"
    candidates, metric = ("[' a', ' b']", "AccuracyLoglikelihood") if chooses else ("None", "AccuracyCompletion")
    text = f"{SAMPLES}\nKIND, CANDIDATES, METRICS = {kind!r}, {candidates}, [{metric}]\n"
    (folder / "composed.py").write_text(text, "utf-8")
    (folder / "composed.yaml").write_text("class: composed:benchmark\n", "utf-8")
    (task,) = load_tasks(folder / "composed.yaml", allow_code=True)
    return bind_scoring(task, trusted=lambda _file: True), [instance.doc for instance in task.render()]


def test_each_sample_of_an_object_is_scored_by_its_own_truth(tmp_path: Path) -> None:
    task, docs = benchmark(tmp_path, "loglikelihoods")
    first_is_best = [(-1.0, True), (-2.0, False)]
    values = [task.process_results(doc, first_is_best) for doc in docs]
    assert values == [{"AccuracyLoglikelihood": 1.0}, {"AccuracyLoglikelihood": 0.0}]
    assert [entry["metric"] for entry in task.metric_list or ()] == ["AccuracyLoglikelihood"]


def test_the_answer_policy_of_a_composed_benchmark_reads_completions(tmp_path: Path) -> None:
    task, docs = benchmark(tmp_path, "completion")
    (pipeline,) = pipelines_of(task)
    assert pipeline.extract("I say: b", docs[0]) == " b"
    assert [question.target for question in questions_of(task, docs)] == [" a", " b"]


def test_a_doc_without_a_sample_is_reported(tmp_path: Path) -> None:
    task, _ = benchmark(tmp_path, "completion")
    with pytest.raises(ScoringError, match="but none for the doc") as caught:
        questions_of(task, [{"id": 0}])
    assert "write `doc` as a number" in (caught.value.hint or "")
