"""Task classes put to the bundled model: each sample is scored by its own truth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt import load_tasks
from pytest_promptfmt.models.model import Ask, Likelihood
from pytest_promptfmt.models.model_answers import ModelAnswers
from pytest_promptfmt.tasks.functions import bind_scoring

pytest.importorskip("torch", reason="running a model needs torch, of the extra `model`")
pytest.importorskip("pytest_promptfmt.systems.eval_framework", reason="without the system there are no task classes")

Judge = Callable[..., ModelAnswers]
Codes = Callable[[ModelAnswers], set[str]]
AskedAlone = Callable[..., list[list[tuple[Any, Likelihood]]]]

CLASSES = """
OPTIONS = [("river", "lamp"), ("stone", "paper"), ("goat", "cloud")]

class Lettered:
    RESPONSE_TYPE = "loglikelihoods"
    METRICS = ["AccuracyLoglikelihood", "ProbabilityMass"]

    def _get_instruction_text(self, item):
        first, other = OPTIONS[item["number"]]
        return f"Question: Which one is the {first}?\\nA. {first}\\nB. {other}\\nAnswer:"

    def _get_ground_truth(self, item):
        return [" A"]

    def _get_possible_completions(self, item):
        return [" A", " B"]


class EachOption(Lettered):
    def _create_samples(self, item, index, subject):
        for option in OPTIONS[item["number"]]:
            yield {
                "messages": [{"role": "user", "content": f"Is it {option}? "}],
                "ground_truth": [" yes"] if option in "rivergoat" else [" no"],
                "possible_completions": [" yes", " no"],
            }


class Yields:
    RESPONSE_TYPE = "loglikelihoods"
    METRICS = ["AccuracyLoglikelihood"]

    def iterate_samples(self, num_samples=None):
        for number in range(3):
            yield from EachOption()._create_samples({"number": number}, 0, "")


class Written:
    RESPONSE_TYPE = "completion"
    METRICS = ["AccuracyCompletion"]

    def iterate_samples(self, num_samples=None):
        for first, other in OPTIONS:
            text = f"Question: Which one is the {first}?\\nA. {first}\\nB. {other}\\nAnswer:"
            yield {"id": 0, "messages": [{"role": "user", "content": text}], "ground_truth": "A"}

    def get_max_tokens(self):
        return 2

    def post_process_generated_completion(self, completion_text, sample=None):
        return completion_text.strip()[:1]
"""


def class_task(folder: Path, name: str) -> Any:
    (folder / "asked_classes.py").write_text(CLASSES, "utf-8")
    docs = "" if name in ("Yields", "Written") else "docs: [{number: 0}, {number: 1}, {number: 2}]\n"
    (folder / f"{name}.yaml").write_text(f"class: asked_classes:{name}\ntask: {name}\n{docs}", "utf-8")
    [task] = load_tasks(folder / f"{name}.yaml", allow_code=True)
    return bind_scoring(task, trusted=lambda _file: True)


@pytest.mark.parametrize("name", ["Lettered", "EachOption", "Yields"])
def test_the_score_of_a_class_is_the_share_of_its_questions_whose_gold_is_likeliest(
    judge: Judge, codes: Codes, asked_alone: AskedAlone, tmp_path: Path, name: str
) -> None:
    task = class_task(tmp_path, name)
    asked = asked_alone(list(task.render()))
    judged = judge(task)
    assert not codes(judged)
    best = [max(one, key=lambda pair: pair[1].total)[0] for one in asked]
    assert judged.score == pytest.approx(sum(request.gold for request in best) / len(best))
    assert len(best) == (6 if name == "EachOption" else 3)


def test_completions_of_yielded_samples_are_read_and_scored(tiny: Any, judge: Judge, tmp_path: Path) -> None:
    task = class_task(tmp_path, "Written")
    texts = [one.prompts[0].text for one in task.render()]
    asks = [Ask(context=text, context_ids=tiny.tokenizer.ids(text), max_tokens=2) for text in texts]
    written = list(tiny.generate(asks))
    judged = judge(task)
    assert judged.score == pytest.approx(sum(one.text.strip()[:1] == "A" for one in written) / 3)
    assert judged.extraction == sum(one.text.strip()[:1] in "AB" for one in written) / 3
