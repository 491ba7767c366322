"""What answers say about a task, with models of transformers that are made for it."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt import load_tasks
from pytest_promptfmt.core.profile import PLAIN
from pytest_promptfmt.models.base import Ask, Generation, Likelihood, ModelOptions
from pytest_promptfmt.models.running import ModelRun, ModelSettings
from pytest_promptfmt.systems.lm_eval.functions import bind_scoring

pytest.importorskip("torch", reason="running a model needs torch, of the extra `model`")

DOCS = [{"question": "Which one is the river?", "choices": ["river", "lamp"], "answer": 0}]


@pytest.fixture(scope="module")
def llama3_like(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a random model with a tokenizer that puts BOS before every text."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM, LlamaConfig

    folder = tmp_path_factory.mktemp("llama3")
    archetype = resources.files("pytest_promptfmt") / "data" / "tokenizers" / "bytelevel-llama3"
    for file in archetype.iterdir():
        if file.name.endswith(".json"):
            (folder / file.name).write_bytes(file.read_bytes())
    config = LlamaConfig(
        vocab_size=Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size(),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    torch.manual_seed(0)
    models: Any = AutoModelForCausalLM
    models.from_config(config).save_pretrained(folder)
    return f"hf:{folder}"


@pytest.mark.parametrize(
    ("begins", "doubled"), [("", False), ("<|begin_of_text|>", False), ("<|begin_of_text|>" * 2, True)]
)
def test_two_bos_are_seen(llama3_like: str, begins: str, doubled: bool) -> None:
    [task] = load_tasks(
        {
            "task": "begins",
            "test_split": "test",
            "output_type": "multiple_choice",
            "doc_to_text": f"{begins}{{{{question}}}}",
            "doc_to_choice": "choices",
            "doc_to_target": "answer",
        }
    )
    run = ModelRun(ModelSettings(model=llama3_like, options=ModelOptions(device="cpu")))
    judged = run.judged(task, list(task.render(DOCS)), profile=PLAIN, profile_id="plain")
    titles = {problem.title for problem in judged.problems}
    assert ("the prompt begins with two BOS tokens" in titles) == doubled
    assert judged.docs == 1
    assert judged.mass is not None
    assert 0 < judged.mass < 1


def test_a_row_that_loses_its_beginning_is_seen(llama3_like: str, tmp_path: Path) -> None:
    folder = Path(llama3_like.removeprefix("hf:"))
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(
        config.replace('"max_position_embeddings": 2048', '"max_position_embeddings": 8')
    )
    [task] = load_tasks(
        {
            "task": "long",
            "test_split": "test",
            "output_type": "multiple_choice",
            "doc_to_text": "{{question}} {{question}} {{question}}",
            "doc_to_choice": "choices",
            "doc_to_target": "answer",
        }
    )
    run = ModelRun(ModelSettings(model=f"hf:{tmp_path}", options=ModelOptions(device="cpu")))
    judged = run.judged(task, list(task.render(DOCS)), profile=PLAIN, profile_id="plain")
    assert "the model got other ids than the prompt has" in {problem.title for problem in judged.problems}


# -- tasks that are no YAML

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


class Told:
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
    docs = "" if name in ("Yields", "Told") else "docs: [{number: 0}, {number: 1}, {number: 2}]\n"
    (folder / f"{name}.yaml").write_text(f"class: asked_classes:{name}\ntask: {name}\n{docs}", "utf-8")
    [task] = load_tasks(folder / f"{name}.yaml", allow_code=True)
    return bind_scoring(task, trusted=lambda _file: True)


def answers(tiny: Any, instances: list[Any]) -> list[list[tuple[Any, Likelihood]]]:
    """Return, for each question that is asked, its requests with the model's own answers, asked one by one."""
    found: list[list[tuple[Any, Likelihood]]] = []
    for instance in instances:
        by_prompt: dict[int, list[tuple[Any, Likelihood]]] = {}
        for request in instance.requests:
            whole = tiny.tokenizer.ids(f"{request.context}{request.continuation}")
            size = len(tiny.tokenizer.ids(request.context))
            ask = Ask(context="", continuation="x", context_ids=whole[:size], continuation_ids=whole[size:])
            by_prompt.setdefault(request.prompt, []).append((request, next(iter(tiny.loglikelihood([ask])))))
        found += by_prompt.values()
    return found


@pytest.mark.parametrize("name", ["Lettered", "EachOption", "Yields"])
def test_the_score_of_a_class_is_the_share_of_its_questions_whose_gold_is_likeliest(
    tiny: Any, tmp_path: Path, name: str
) -> None:
    task = class_task(tmp_path, name)
    instances = list(task.render())
    asked = answers(tiny, instances)
    run = ModelRun(ModelSettings(model="tiny", options=ModelOptions(device="cpu")))
    judged = run.judged(task, instances, profile=PLAIN, profile_id="plain")
    assert not judged.problems
    best = [max(one, key=lambda pair: pair[1].total)[0] for one in asked]
    assert judged.score == pytest.approx(sum(request.gold for request in best) / len(best))
    assert len(best) == (6 if name == "EachOption" else 3)


def test_completions_of_yielded_samples_are_read_and_scored(tmp_path: Path) -> None:
    task = class_task(tmp_path, "Told")
    instances = list(task.render())
    run = ModelRun(ModelSettings(model="tiny", options=ModelOptions(device="cpu")))
    asks = [Ask(context=one.prompts[0].text, max_tokens=2) for one in instances]
    tokenizer: Any = run.model.tokenizer
    with_ids = [
        Ask(context=ask.context, context_ids=tokenizer.ids(ask.context), max_tokens=ask.max_tokens) for ask in asks
    ]
    written = [answer for answer in run.model.generate(with_ids) if isinstance(answer, Generation)]
    judged = run.judged(task, instances, profile=PLAIN, profile_id="plain")
    assert judged.score == pytest.approx(sum(one.text.strip()[:1] == "A" for one in written) / 3)
    assert judged.extraction == sum(one.text.strip()[:1] in "AB" for one in written) / 3


def test_what_is_better_when_lower_is_no_score() -> None:
    keys = {"task": "last", "test_split": "test", "output_type": "loglikelihood", "doc_to_text": "{{question}}"}
    metrics = [{"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False}, {"metric": "acc"}]
    [task] = load_tasks({**keys, "doc_to_target": "{{choices[0]}}", "metric_list": metrics})
    run = ModelRun(ModelSettings(model="tiny", options=ModelOptions(device="cpu")))
    judged = run.judged(task, list(task.render(DOCS)), profile=PLAIN, profile_id="plain")
    assert judged.score in (0.0, 1.0)
    [alone] = load_tasks({**keys, "doc_to_target": "{{choices[0]}}", "metric_list": metrics[:1]})
    assert run.judged(alone, list(alone.render(DOCS)), profile=PLAIN, profile_id="plain").score is None
