"""Rules about the text that a chat template adds to any conversation, and about its turns. Run once per profile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.profiles.profile_loading import LoadedProfile
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import finding

_SAID: Final = 80


@rule("PF401", "default-system-text", severity=Severity.WARNING, family=Family.CHAT, scope="template")
def default_system_text(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template that adds a default system text if there is no system message.

    Why: every task without a description then gets instructions that are in no task file, and a task with a description
    does not. This changes answers: one model followed the requested format in 1 of 18 answers with its default text,
    and in 10 of 18 without it.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        {% if messages[0].role != 'system' %}<|im_start|>system
        You are a patient and friendly helper.<|im_end|>
        {% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
        {{ m.content }}<|im_end|>
        {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: chatml}}

    Fix: give the profile a `system_instruction`.

    Real: aprender #3990, lmdeploy PR #3475, LlamaFactory PR #10772.
    """
    facts = loaded.facts
    if facts is not None and facts.default_system and not loaded.profile.system_instruction:
        yield finding(
            "the chat template adds a default system text",
            facts.default_system[:_SAID],
            loaded.place_of(re.split(r"[.!?,]", facts.default_system)[0][:30]),
        )


@rule("PF402", "date-in-prompt", severity=Severity.WARNING, family=Family.CHAT, scope="template")
def date_in_prompt(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template that writes today's date; as info one that writes a fixed date.

    Why: this plugin fixes the clock, a real run does not. Its prompts change every day, and with them its
    results and everything that is cached by prompt.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        Today is {{ strftime_now('%d %B %Y') }}.
        {% for m in messages %}{{ m.role }}: {{ m.content }}
        {% endfor %}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja, template_args: {date_string: 26 July 2024}}}
        # file: mine.jinja
        Today is {{ date_string or strftime_now('%d %B %Y') }}.
        {% for m in messages %}{{ m.role }}: {{ m.content }}
        {% endfor %}

    Fix: set the date with a template argument if the template has one (`date_string` in Llama's), both in the profile
    and in the real run.

    Real: sglang #3296, text-generation-webui PR #6692, llama.cpp #12729.
    """
    facts = loaded.facts
    if facts is None:
        return
    if facts.follows_clock:
        yield finding(
            "the chat template writes today's date, so prompts change every day",
            ", ".join(facts.dates),
            loaded.place_of("strftime_now"),
        )
    elif facts.dates and not loaded.profile.template_args:
        yield finding(
            "the chat template writes a fixed date",
            ", ".join(facts.dates),
            loaded.place_of(facts.dates[0]),
            severity=Severity.INFO,
            do="set the date with a template argument or `clock`, or remove it from the template",
        )


@rule("PF403", "reasoning-cut-from-history", severity=Severity.INFO, family=Family.CHAT, scope="template")
def reasoning_cut_from_history(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template that removes `<think>…</think>` from earlier answers.

    Why: templates of reasoning models drop earlier reasoning. Few-shot examples with reasoning in these tags
    lose it, and the text of an earlier turn differs from what the model wrote.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        {% for m in messages %}{{ m.role }}: {{ m.content.split('</think>')[-1] }}
        {% endfor %}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: chatml}}

    Fix: write reasoning that the model must see without these tags.

    Real: ollama #10448, verl #6854, prime-rl #1334.
    """
    facts = loaded.facts
    if facts is not None and not facts.keeps_think:
        yield finding("the chat template removes <think>…</think> from earlier answers", at=loaded.place_of("</think>"))


@rule("PF404", "answer-begins-elsewhere", severity=Severity.WARNING, family=Family.CHAT, scope="template")
def answer_begins_elsewhere(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template whose finished answers do not begin as the generation prompt ends.

    Why: few-shot examples are rendered as finished answers. If the generation prompt ends differently, for example with
    `<think>`, the model must continue from text that no example shows. Reported as info if only whitespace
    differs.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        {% for m in messages %}{{ m.role }}: {{ m.content }}
        {% endfor %}{% if add_generation_prompt %}assistant: <think>
        {% endif %}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: chatml}}

    Fix: use the template's own switch (`enable_thinking: false`) in `template_args`, or put the few-shot examples into
    one turn with `fewshot_as_turns: false`.

    Real: tinker-cookbook PR #142, TRL PR #3522 and most templates of reasoning models.
    """
    facts = loaded.facts
    if facts is None or facts.answer in ("fits", "refused"):
        return
    if facts.answer == "gap":
        is_blank = not facts.answer_gap.strip()
        what = "whitespace" if is_blank else "text"
        yield finding(
            f"finished answers begin with {what} that the generation prompt lacks",
            facts.answer_gap,
            loaded.place(),
            severity=Severity.INFO if is_blank else None,
            do=_against(facts.answer_gap),
        )
        return
    yield finding(
        "finished answers do not begin as the generation prompt ends",
        (facts.generation_prompt or "")[-_SAID:],
        loaded.place_of("add_generation_prompt"),
        do=_against(facts.generation_prompt or ""),
    )


def _against(text: str) -> str:
    if "think" in text.casefold():
        return "turn it off with a template argument, such as enable_thinking: false"
    return "use the model's own template, or put few-shot examples into one turn (fewshot_as_turns: false)"


@rule("PF405", "history-rewritten", severity=Severity.INFO, family=Family.CHAT, scope="template")
def history_rewritten(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template that changes earlier turns when the conversation continues.

    Why: a longer conversation should begin with the text of the shorter one. Otherwise an engine cannot
    reuse its cache, and the last turn has a different layout than the turns before it.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        {% for m in messages %}{{ m.role }}{{ '!' if loop.last else ':' }} {{ m.content }}
        {% endfor %}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: chatml}}

    Fix: remove from the template what it does only to the last turn (`loop.last`).

    Real: verifiers PR #476, ART #726.
    """
    facts = loaded.facts
    if facts is not None and not facts.keeps_prefix:
        yield finding(
            "the chat template changes earlier turns when the conversation continues", at=loaded.place_of("loop.last")
        )


@rule("PF410", "answer-not-closed", severity=Severity.INFO, family=Family.CHAT, scope="template")
def answer_not_closed(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template that writes no end token after a finished answer.

    Why: a model trained on such text does not learn to stop. In few-shot examples, only the marker of the next turn
    ends an answer. In an evaluation this matters if stop sequences rely on an end token.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        {% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: chatml}}

    Fix: end answers with the end token in the template.

    Real: axolotl PR #2710, #1608; TRL PR #6044.
    """
    facts = loaded.facts
    if facts is not None and facts.answer != "refused" and not facts.closes_answer:
        yield finding("no end token after a finished answer", facts.answer_end, loaded.place())
