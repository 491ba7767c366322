"""Rules about what a chat template says in any conversation, and how its turns fit together. Said once per profile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pytest_promptfmt.chat.profile_loading import LoadedProfile
from pytest_promptfmt.checks.registry import check
from pytest_promptfmt.core.finding import Family, Finding, Severity

_SAID: Final = 80


@check("PF401", "default-system-text", severity=Severity.WARNING, family=Family.CHAT, scope="template")
def default_system_text(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template that writes a system text of its own when no system message is given.

    Why: every task without a description is then asked under instructions that no task file shows, and a task with one
    is not. Answers change with it: one model kept to the asked format in 1 of 18 answers with its default text, and in
    10 of 18 without.

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
        yield Finding(
            message="the chat template writes a system text of its own when none is given",
            saw=facts.default_system[:_SAID],
            position=loaded.place_of(re.split(r"[.!?,]", facts.default_system)[0][:30]),
        )


@check("PF402", "date-in-prompt", severity=Severity.WARNING, family=Family.CHAT, scope="template")
def date_in_prompt(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template that writes today's date; as info one that writes a fixed date.

    Why: this plugin pins the clock, a real run does not: its prompts differ from one day to the next, and so do its
    results and everything cached by prompt.

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

    Fix: give the date as a template argument where the template takes one (`date_string` in Llama's), in the profile
    and in the real run alike.

    Real: sglang #3296, text-generation-webui PR #6692, llama.cpp #12729.
    """
    facts = loaded.facts
    if facts is None:
        return
    if facts.follows_clock:
        yield Finding(
            message="the chat template writes today's date: a real run has other prompts every day",
            saw=", ".join(facts.dates),
            do="give the date as a template argument where the template takes one, here and in the real run",
            position=loaded.place_of("strftime_now"),
        )
    elif facts.dates and not loaded.profile.template_args:
        yield Finding(
            message="the chat template writes a fixed date",
            saw=", ".join(facts.dates),
            do="know that the model is told this date, whatever the day is",
            position=loaded.place_of(facts.dates[0]),
            severity=Severity.INFO,
        )


@check("PF403", "reasoning-cut-from-history", severity=Severity.INFO, family=Family.CHAT, scope="template")
def reasoning_cut_from_history(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template that cuts `<think>…</think>` out of earlier answers.

    Why: reasoning models are meant to forget what they thought. Demonstrations that show reasoning in such marks are
    then shown without it, and the text of an earlier turn differs from what the model has written.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        {% for m in messages %}{{ m.role }}: {{ m.content.split('</think>')[-1] }}
        {% endfor %}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: chatml}}

    Fix: write reasoning that has to be seen without these marks.

    Real: ollama #10448, verl #6854, prime-rl #1334.
    """
    facts = loaded.facts
    if facts is not None and not facts.keeps_think:
        yield Finding(
            message="the chat template cuts <think>…</think> out of earlier answers",
            position=loaded.place_of("</think>"),
        )


@check("PF404", "answer-begins-elsewhere", severity=Severity.WARNING, family=Family.CHAT, scope="template")
def answer_begins_elsewhere(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template whose finished answers do not begin as the prompt for the next one ends.

    Why: demonstrations are shown in the form of finished answers. When the prompt for an answer ends otherwise, with
    `<think>` for one, the model is asked to go on where no demonstration ever did. As info where only white space
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

    Fix: use the template's own switch (`enable_thinking: false`) in `template_args`, or show demonstrations as text in
    one turn with `fewshot_as_turns: false`.

    Real: tinker-cookbook PR #142, TRL PR #3522 and most templates of reasoning models.
    """
    facts = loaded.facts
    if facts is None or facts.answer in ("fits", "refused"):
        return
    if facts.answer == "gap":
        is_blank = not facts.answer_gap.strip()
        what = "white space" if is_blank else "more text"
        yield Finding(
            message=f"a finished answer has {what} between the generation prompt and its own text",
            saw=facts.answer_gap,
            do=_against(facts.answer_gap),
            position=loaded.place(),
            severity=Severity.INFO if is_blank else None,
        )
        return
    yield Finding(
        message="a finished answer does not begin as the generation prompt ends",
        saw=(facts.generation_prompt or "")[-_SAID:],
        do=_against(facts.generation_prompt or ""),
        position=loaded.place_of("add_generation_prompt"),
    )


def _against(text: str) -> str:
    if "think" in text.casefold():
        return "see whether a template argument turns it off, such as enable_thinking: false"
    return "compare with the model's own template, or show demonstrations in one turn (fewshot_as_turns: false)"


@check("PF405", "history-rewritten", severity=Severity.INFO, family=Family.CHAT, scope="template")
def history_rewritten(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template that writes the beginning of a conversation otherwise once it has gone on.

    Why: a longer conversation should begin with the text of its own beginning. Where it does not, an engine cannot
    reuse what it has computed, and the last turn is laid out otherwise than all before it.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        {% for m in messages %}{{ m.role }}{{ '!' if loop.last else ':' }} {{ m.content }}
        {% endfor %}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: chatml}}

    Fix: look in the template for what it does to the last turn only (`loop.last`).

    Real: verifiers PR #476, ART #726.
    """
    facts = loaded.facts
    if facts is not None and not facts.keeps_prefix:
        yield Finding(
            message="the chat template rewrites earlier turns once the conversation goes on",
            position=loaded.place_of("loop.last"),
        )


@check("PF410", "answer-not-closed", severity=Severity.INFO, family=Family.CHAT, scope="template")
def answer_not_closed(loaded: LoadedProfile) -> Iterator[Finding]:
    r"""Report a chat template that writes no end after a finished answer.

    Why: a model trained on such text does not learn to stop; in demonstrations only the next turn's marker says that an
    answer is over. For evaluation it matters where stop sequences rely on an end token.

    Example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: mine.jinja}}
        # file: mine.jinja
        {% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}

    Silent example:
        # file: promptfmt.yaml
        profiles: {mine: {chat_template: chatml}}

    Fix: close answers with the end token in the template.

    Real: axolotl PR #2710, #1608; TRL PR #6044.
    """
    facts = loaded.facts
    if facts is not None and facts.answer != "refused" and not facts.closes_answer:
        yield Finding(
            message="no token says that a finished answer is over",
            saw=facts.answer_end,
            position=loaded.place(),
        )
