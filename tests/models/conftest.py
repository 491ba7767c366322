"""The models that the tests run: real ones, made or loaded once."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.core.prompt import Request
from pytest_promptfmt.models.asking import Asked, with_ids
from pytest_promptfmt.models.base import Ask
from pytest_promptfmt.models.tiny import FOLDER

needs_torch = "running a model needs torch, of the extra `model`"


@pytest.fixture(scope="session")
def tiny() -> Any:
    pytest.importorskip("torch", reason=needs_torch)
    from pytest_promptfmt.models import open_model
    from pytest_promptfmt.models.base import ModelOptions

    return open_model("tiny", ModelOptions(device="cpu"))


@pytest.fixture(scope="session")
def asked() -> Callable[..., list[Ask]]:
    """Return a function that gives questions their ids."""

    def make(tokenizer: Any, asks: list[Ask]) -> list[Ask]:
        request = Request(kind="generate_until", index=0)
        whole = [Asked(ask=ask, doc=0, request=request) for ask in asks]
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
    """Return the root of a server of the tiny model, a process of its own; `/v1` below it works."""
    pytest.importorskip("torch", reason=needs_torch)
    pytest.importorskip("openai", reason="a server is asked through openai, of the extra `server`")
    command = [sys.executable, str(Path(__file__).with_name("server.py")), str(FOLDER)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.kill()
