"""The models that the tests run: real ones, made or loaded once."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.core.profile import PLAIN
from pytest_promptfmt.core.prompt import Request
from pytest_promptfmt.core.task import Task
from pytest_promptfmt.models.model import Ask, AskedQuestion, Likelihood, with_ids
from pytest_promptfmt.models.model_answers import ModelAnswers
from pytest_promptfmt.models.transformers import TINY_FOLDER
from pytest_promptfmt.rules.rule_registry import known_rules

needs_torch = "running a model needs torch, of the extra `model`"


@pytest.fixture(scope="session")
def tiny() -> Any:
    pytest.importorskip("torch", reason=needs_torch)
    from pytest_promptfmt.models import open_model
    from pytest_promptfmt.models.model import ModelOptions

    return open_model("tiny", ModelOptions(device="cpu"))


@pytest.fixture(scope="session")
def asked() -> Callable[..., list[Ask]]:
    """Return a function that gives questions their ids."""

    def make(tokenizer: Any, asks: list[Ask]) -> list[Ask]:
        request = Request(kind="generate_until", index=0)
        whole = [AskedQuestion(ask=ask, doc=0, request=request) for ask in asks]
        return [one.ask for one in with_ids(whole, tokenizer, split="lm-eval")]

    return make


WORDS = ["river", "lamp", "goat", "window", "paper", "stone", "cloud", "harbour"]


@pytest.fixture(scope="session")
def pairs() -> list[tuple[str, str]]:
    """Return 200 contexts and continuations of many lengths, some contexts asked several times."""
    draw = random.Random(5)
    made: list[tuple[str, str]] = []
    while len(made) < 200:
        question = f"Which one is the {draw.choice(WORDS)}?"
        shown = "\n".join(f"{label}. {draw.choice(WORDS)}" for label in "ABCD"[: draw.randint(2, 4)])
        context = f"Question: {question}\n" * draw.randint(1, 6) + f"{shown}\nAnswer:"
        made += [(context, f" {label}") for label in "ABCD"[: draw.randint(1, 4)]]
        made.append((context, " " + " ".join(draw.choices(WORDS, k=draw.randint(2, 9)))))
    return made[:200]


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """Return the root of a server of the tiny model, a separate process; `/v1` below it works."""
    pytest.importorskip("torch", reason=needs_torch)
    pytest.importorskip("openai", reason="a server is asked through openai, of the extra `server`")
    command = [sys.executable, str(Path(__file__).with_name("server.py")), str(TINY_FOLDER)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.kill()


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
def judge() -> Callable[..., ModelAnswers]:
    """Return a function that puts the docs of a task to a model."""
    pytest.importorskip("torch", reason=needs_torch)
    from pytest_promptfmt.models.model_run import ModelRun

    def judged(task: Task, docs: Iterable[Any] | None = None, *, model: str = "tiny") -> ModelAnswers:
        run = ModelRun(model, device="cpu")
        return run.judged(task, list(task.render(docs)), profile=PLAIN, profile_id="plain")

    return judged


@pytest.fixture(scope="session")
def codes() -> Callable[[ModelAnswers], set[str]]:
    """Return a function that gives the codes of the rules about models that find something."""
    rules = [check for check in known_rules().values() if check.scope == "model"]
    return lambda judged: {rule.code for rule in rules if list(rule.function(judged))}


@pytest.fixture(scope="session")
def asked_alone(tiny: Any) -> Callable[..., list[list[tuple[Any, Likelihood]]]]:
    """Return a function that gives each question's requests with the model's answers, asked one by one."""

    def answers(instances: list[Any]) -> list[list[tuple[Any, Likelihood]]]:
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

    return answers
