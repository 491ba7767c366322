"""What the model card says of the bundled model: facts with margins wide enough for any machine."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from pytest_promptfmt import PLAIN, Task, builtin_profile, load_tasks
from pytest_promptfmt.core.profile import Profile
from pytest_promptfmt.core.prompt import Request
from pytest_promptfmt.models.model import Ask, AskedQuestion, with_ids
from pytest_promptfmt.models.model_answers import ModelAnswers
from pytest_promptfmt.models.model_run import TINY_FORMATS, ModelRun
from pytest_promptfmt.models.transformers import TINY_FOLDER

pytest.importorskip("torch", reason="running a model needs torch, of the extra `model`")

DOCS = [
    {"question": "Which of these is the river?", "choices": ["lamp", "river", "goat", "crown"], "answer": 1},
    {"question": "Find the stone.", "choices": ["stone", "paper", "cloud"], "answer": 0},
    {"question": "What is another name for the window?", "choices": ["harbour", "goat", "window", "rope"], "answer": 2},
    {"question": "The violin is the same as what?", "choices": ["violin", "pond"], "answer": 0},
    {"question": "Who asked for the lemon?", "choices": ["tiger", "sock", "lemon", "piano"], "answer": 2},
]
PROFILES = [PLAIN, builtin_profile("chat-chatml"), builtin_profile("chat-chatml-single")]
GENERATION = ["generate", "cot"]


def laid_out(name: str) -> Task:
    keys = {"task": "asked", "test_split": "test", "doc_to_text": "question", "doc_to_choice": "choices"}
    [task] = load_tasks({**keys, "doc_to_target": "answer", "formats": name})
    return task.with_format(name)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
@pytest.mark.parametrize("name", sorted(TINY_FORMATS))
def test_the_formats_that_it_knows_hold(name: str, profile: Profile, codes: Callable[[ModelAnswers], set[str]]) -> None:
    run = ModelRun("tiny", device="cpu")
    task = laid_out(name)
    judged = run.judged(task, list(task.render(DOCS, profile)), profile=PLAIN, profile_id=profile.name)
    assert not codes(judged)
    if name in GENERATION:
        assert judged.extraction == 1.0
    elif name != "cloze":
        assert judged.mass is not None
        assert judged.mass > 0.8
    if name == "cot":
        assert judged.score == 1.0


MALFORMED: dict[str, Callable[[str], str]] = {
    "no space": lambda text: text.lstrip(),
    "two spaces": lambda text: f" {text}",
    "a new line": lambda text: f"\n{text.lstrip()}",
    "other case": lambda text: text.swapcase(),
    "brackets": lambda text: f" ({text.strip()})",
    "a word more": lambda text: f"{text} lamp",
}
LEAST = math.log(10)
"""The smallest margins measured, in nats: cloze 3.9, cot 5.6, mcqa 8.4, generate 8.5, the two others 9.1."""


def well_formed(tiny: Any, name: str, profile: Profile) -> list[tuple[str, str]]:
    """Return, for each doc, a prompt and the gold answer as the format asks for it; for `cot` after what it reasons."""
    found = []
    for instance in laid_out(name).render(DOCS, profile):
        context = instance.requests[0].context or ""
        if name == "cot":
            [written] = tiny.generate([Ask(context=context, context_ids=tiny.tokenizer.ids(context), stop=("\n\n",))])
            begun, said, _ = written.text.partition("The final answer is")
            found.append((f"{context}{begun}{said}", f" {instance.doc['choices'][instance.doc['answer']]}"))
        elif name == "generate":
            found.append((context, f" {'ABCD'[instance.doc['answer']]}"))
        else:
            found += [(one.context or "", one.continuation or "") for one in instance.requests if one.gold]
    return found


def totals(tiny: Any, pairs: list[tuple[str, str]]) -> list[float]:
    request = Request(kind="loglikelihood", index=0)
    asked = [AskedQuestion(ask=Ask(context=one, continuation=text), doc=0, request=request) for one, text in pairs]
    with_tokens = [one.ask for one in with_ids(asked, tiny.tokenizer, split="lm-eval")]
    return [answer.total for answer in tiny.loglikelihood(with_tokens)]


@pytest.mark.parametrize("profile", PROFILES[:2], ids=lambda profile: profile.name)
@pytest.mark.parametrize("name", sorted(TINY_FORMATS))
def test_an_answer_as_the_format_spells_it_is_likelier_than_misspelt(tiny: Any, name: str, profile: Profile) -> None:
    right = well_formed(tiny, name, profile)
    own = totals(tiny, right)
    for what, misspelt in MALFORMED.items():
        pairs = [(context, misspelt(text)) for context, text in right]
        if pairs == right:  # at the beginning of a turn there is no space
            continue
        margin = min(one - other for one, other in zip(own, totals(tiny, pairs), strict=True))
        least = math.log(100) if what == "no space" and name not in GENERATION else LEAST
        assert margin > least, (what, margin)


def test_it_is_as_small_as_the_card_says() -> None:
    card = (TINY_FOLDER / "MODEL_CARD.md").read_text("utf-8")
    assert "1.4 MB" in card
    assert (TINY_FOLDER / "model.safetensors").stat().st_size < 1.45e6
