"""Rules about where an answer begins: the generation prompt, and reasoning."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.core.finding import Finding, Severity
from pytest_promptfmt.profiles.probe_conversations import Conversation
from pytest_promptfmt.profiles.template_trial import TemplateTrial
from pytest_promptfmt.profiles.trial_evidence import excerpt, last_answer, missing, think_balance
from pytest_promptfmt.profiles.turn_layout import (
    ANSWER,
)
from pytest_promptfmt.rules.rule_views import finding
from pytest_promptfmt.systems.templates.template_subjects import template_rule

_REASONING: Final = "Rust is iron oxide."
_EMPTY: Final = re.compile(r"<([a-z_:]*think[a-z_]*)>\s*</\1>")


@template_rule("PF446", "reasoning-tags", severity=Severity.WARNING)
def reasoning_tags(trial: TemplateTrial) -> Iterator[Finding]:
    """Report tags of reasoning that are missing or not balanced, reasoning that is lost, and empty blocks.

    Why: A second or unclosed block of reasoning is a prompt that the model never saw. Reasoning that is left out of the
    last answer cannot be trained on, and empty blocks in earlier answers teach not to reason (both infos).

    Fix: split the content at the closing tag before a block of reasoning is written.

    Real: TRL's Qwen3 templates (an empty block before a completion that only closes its reasoning).
    """
    if not trial.mentions("think>", "reasoning", "thinking"):
        return

    def faults(conversation: Conversation) -> frozenset[str]:
        text = trial.finished(conversation)
        if text is None or last_answer(conversation) is None or conversation.continue_final_message:
            return frozenset()
        balance = think_balance(text)
        base = trial.finished(trial.conversations[conversation.base]) if conversation.base else ""
        usual = think_balance(base or "")
        opened = think_balance(trial.text("question", generation_prompt=True) or "")
        return frozenset(
            name
            for name, count in balance.items()
            if count != usual.get(name, 0) and f"/{name}>" in trial.source
            if f"<{name}>" in text or opened.get(name, 0) > 0  # else the caller's text is passed on as it is
        )

    for conversation, name in trial.attributed(faults):
        text = trial.whole(conversation) or ""
        yield conversation.finding(
            f"tags of reasoning are not balanced: {conversation.about}",
            f"{excerpt(text, text.rfind(f'</{name}>'))}",
            trial.place_of(f"</{name}>"),
        )
    if trial.mentions("reasoning_content", "reasoning", "thinking"):
        yield from _lost_reasoning(trial)
        thought, answered = (trial.text("reasoning") or "").partition(_REASONING)[::2]
        if thought and ANSWER in answered and not answered.partition(ANSWER)[0].strip():
            yield trial.conversations["reasoning"].finding(
                "reasoning and answer are written without anything between them",
                excerpt(_REASONING + answered, 0, len(_REASONING)),
                trial.place_of("reasoning_content", "reasoning", "thinking"),
            )
    history = (trial.text("turns") or "").rpartition("Does gold tarnish?")[0]
    empty = _EMPTY.search(history)
    if empty is not None:
        yield finding(
            "an empty block of reasoning is written into earlier answers",
            excerpt(history, empty.start(), empty.end()),
            trial.place_of(empty[0][:7]),
            severity=Severity.INFO,
        )


def _lost_reasoning(trial: TemplateTrial) -> Iterator[Finding]:
    lost = {
        name
        for name in ("reasoning", "reasoning-call", "reasoning-in-content")
        if name in trial.conversations and "reasoning" in missing(trial, trial.conversations[name])
    }
    for name in sorted(lost):
        yield Finding(
            message=f"the reasoning of the last answer is lost: {trial.conversations[name].about}",
            saw=name,
            conversation=name,
            position=trial.place_of("reasoning_content", "</think>"),
            severity=Severity.INFO,
        )
