"""Every built-in conversation renders as transformers 5.23 renders it, refusals and the mask of training included."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from pytest_promptfmt.core.data_tables import data_table
from pytest_promptfmt.core.profile import CHAT_TEMPLATES, builtin_template
from pytest_promptfmt.profiles.probe_conversations import Conversation, State, builtin_conversations
from pytest_promptfmt.profiles.template_trial import PLACEHOLDERS, Rendering, TemplateTrial, lone_profile

pytest.importorskip("transformers", minversion="5.23", reason="older ones give null keys to templates")
chat_template_utils = pytest.importorskip("transformers.utils.chat_template_utils")

pytestmark = pytest.mark.parity

SHARED = Path(__file__).parents[3] / "shared" / "data" / "chat_templates"
SOUND = data_table("rule_cases", "systems/templates")["PF430"]["template_does_not_compile"]["silent"]
FILES = sorted(SHARED.glob("*.jinja"))


class FrozenClock(datetime):
    at = datetime(2024, 7, 26, 12)

    @classmethod
    def now(cls, tz: Any = None) -> FrozenClock:
        return cls(cls.at.year, cls.at.month, cls.at.day, 12)


@pytest.fixture(autouse=True)
def frozen_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template_utils, "datetime", FrozenClock)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0}, unk_token="<unk>")),
        **PLACEHOLDERS,
    )


def theirs(tokenizer: Any, source: str, conversation: Conversation, state: State) -> tuple[str, str]:
    FrozenClock.at = conversation.clock or datetime(2024, 7, 26, 12)
    try:
        text = tokenizer.apply_chat_template(
            list(conversation.messages[: state.count]),
            chat_template=source,
            tokenize=False,
            tools=conversation.tools,
            documents=conversation.documents,
            add_generation_prompt=state.generation_prompt,
            continue_final_message=state.continues,
            **conversation.template_args,
        )
    except Exception as error:
        return type(error).__name__, ""
    return "text", text


def ours(rendering: Rendering) -> tuple[str, str]:
    if rendering.text is not None:
        return "text", rendering.text
    if rendering.refusal is not None:
        return "TemplateError", ""
    return (rendering.error or "").partition(":")[0], ""


def states(trial: TemplateTrial) -> Iterator[tuple[Conversation, State]]:
    for conversation in trial.conversations.values():
        for state in conversation.states:
            yield conversation, state
        yield conversation, State(count=len(conversation.messages), generation_prompt=False)


def differences(tokenizer: Any, source: str) -> list[str]:
    # transformers drops what is null, and passes text on as text.
    known = {name: replace(each, keep_null=False) for name, each in builtin_conversations().items()}
    trial = TemplateTrial(lone_profile(source), known)
    trial.__dict__["takes_only_parts"] = False
    found = []
    for conversation, state in states(trial):
        expected = theirs(tokenizer, source, conversation, state)
        got = ours(trial.render(conversation, state))
        if got != expected:
            found.append(f"{conversation.name} {state}: {expected!r:.200} {got!r:.200}")
    return found


@pytest.mark.parametrize("name", CHAT_TEMPLATES)
def test_every_conversation_renders_as_transformers_does(name: str, tokenizer: Any) -> None:
    assert differences(tokenizer, builtin_template(name)) == []


@pytest.mark.skipif(not FILES, reason="the templates of ../shared/data are not at hand")
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * bool(n % 10)) for n, path in enumerate(FILES)],
)
def test_real_templates_render_as_transformers_does(path: Path, tokenizer: Any) -> None:
    assert differences(tokenizer, path.read_bytes().decode()) == []


def test_the_mask_is_that_of_transformers() -> None:
    source = SOUND.partition("\n")[2]
    trial = TemplateTrial(lone_profile(source))
    for name in ("turns", "call-finished", "reasoning-each-turn", "parallel"):
        conversation = trial.conversations[name]
        rendering = trial.render(trial.conversations[name], trial.conversations[name].finished)
        texts, masks = chat_template_utils.render_jinja_template(
            conversations=[list(conversation.messages)],
            tools=list(conversation.tools) if conversation.tools is not None else None,
            chat_template=source,
            return_assistant_tokens_mask=True,
            **PLACEHOLDERS,
        )
        assert rendering.text == texts[0]
        assert list(rendering.mask) == [tuple(span) for span in masks[0]]
