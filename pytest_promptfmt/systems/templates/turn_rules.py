"""Rules about turns: what stays of them later, whether a text can imitate them, how they end, and their reasoning."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from pytest_promptfmt.core.finding import Finding, Severity
from pytest_promptfmt.profiles.probe_conversations import Conversation, State
from pytest_promptfmt.profiles.template_facts import template_facts
from pytest_promptfmt.profiles.template_trial import PLACEHOLDERS, TemplateTrial
from pytest_promptfmt.profiles.trial_evidence import excerpt, holds, last_answer, missing, think_balance
from pytest_promptfmt.profiles.turn_layout import ANSWER, LATER, QUESTION, THOUGHT, layout_of
from pytest_promptfmt.rules.rule_views import finding, info, warning
from pytest_promptfmt.systems.templates.template_subjects import template_rule


@template_rule("PF448", "whitespace-by-turn", severity=Severity.WARNING)
def whitespace_by_turn(trial: TemplateTrial) -> Iterator[Finding]:
    """Report whitespace that is kept around texts in some turns, but removed in others, or is changed inside texts.

    Why: The same question then has different tokens in the first turn and in later ones. Code and tables need the line
    breaks and spaces inside them. If only user texts keep whitespace, and answers do not, the finding is an info.

    Fix: strip the contents of all messages, or of none.

    Real: Granite Guardian 3.0, which strips all user texts except one.
    """
    if (changed := _changed_inside(trial)) is not None:
        yield warning(
            "the template changes line breaks, spaces or quotation marks inside a text",
            changed,
            trial.place_of("replace", "split"),
        )
    facts, text = template_facts(trial), trial.text("whitespace") or ""
    if facts.user == "kept" and facts.assistant in ("stripped", "changed"):
        message, do = "whitespace is removed around answers, but kept around user texts", "write answers unchanged"
        yield info(message, excerpt(text, text.find(ANSWER)), trial.place_of("trim", "strip"), do=do)
    for role in ("user", "assistant"):
        given = (str(each["content"]) for each in trial.conversations["whitespace"].messages if each["role"] == role)
        contents = [content for content in given if content.strip() in text]  # lost texts are what another rule reports
        kept = [content in text for content in contents]
        if len(set(kept)) > 1:
            lost = contents[kept.index(False)].strip()
            yield finding(
                f"whitespace around {role} texts is kept in some turns and removed in others",
                f"kept in {sum(kept)} of {len(kept)} turns, removed in {excerpt(text, text.find(lost))}",
                trial.place_of("trim", "strip"),
            )


def _changed_inside(trial: TemplateTrial) -> str | None:
    """Return a prompt that has the words of a text, but other whitespace or quotes between them."""
    names = {"user": "second-question", "assistant": "second-question", "tool": "call-finished"}
    for role, name in names.items():
        plain = trial.conversations[name]
        messages = [{**each, "content": _CODE} if each["role"] == role else each for each in plain.messages]
        text = trial.finished(replace(plain, name="code", messages=messages)) or "" if name in trial.sent else ""
        first, last = text.find(_CODE.split()[0]), text.find(_CODE.split()[-1])
        if 0 <= first < last and not holds(text, _CODE):
            return excerpt(text, first, last)
    return None


_CODE: Final = 'melting(ore):\n\n    return  "ore"\t# molten\n\n\nmelted(tin)'


# -- imitated turns, end tokens ----------------------------------------------------------------------------------------

_FORGED: Final = {
    "a user message": ("second-question", 0, QUESTION, LATER),
    "a tool result": ("call-finished", 2, "Mostly copper with tin.", "Sample seven is bronze."),
}
"""Texts that imitate turns: the imitated conversation, the message, and the first and last text that it holds."""


@template_rule("PF460", "turns-can-be-forged", severity=Severity.INFO)
def turns_can_be_forged(trial: TemplateTrial) -> Iterator[Finding]:
    """Report templates in which the text of a single message can look like several turns.

    Why: For example, a tool result contains a web page. The text of this page can then look like turns of the user, the
    model or the system. The finding is an info, because a server can refuse control tokens in texts. If only
    words separate the turns, no server can recognize such a text, but the finding is an info, too.

    Fix: separate turns with control tokens, and encode contents with `split_special_tokens=True`.

    Real: transformers #29279 and PR #47386; the papers ChatBug and ChatInject.
    """
    found = {what: between for what in _FORGED if (between := _forged(trial, what)) is not None}
    if found:
        first = next(iter(found.values()))
        yield finding(
            f"{' or '.join(found)} can contain text that looks like further turns",
            f"{excerpt(first)!r} in a message ends its turn and begins another turn",
            trial.place_of("content"),
        )


def _forged(trial: TemplateTrial, what: str) -> str | None:
    """Return what a text has to hold to give the prompt of a longer conversation; None where it gives another one."""
    name, number, first, last = _FORGED[what]
    genuine = trial.conversations.get(name)
    if genuine is None or (genuine.tools and not trial.mentions("tool_call")):
        return None
    text = trial.finished(genuine)
    if text is None or text.count(first) != 1 or text.count(last) != 1:
        return None
    between = text.partition(first)[2].partition(last)[0]
    messages = [*genuine.messages[:number], {**genuine.messages[number], "content": first + between + last}]
    forged = Conversation(name=f"forged {name}", about=what, messages=messages, tools=genuine.tools)
    made = trial.finished(forged)
    # The end of the last turn is that of another role.
    return between if made is not None and made.startswith(text[: text.find(last) + len(last)]) else None


@template_rule("PF461", "end-token-unlike-tokenizer", severity=Severity.ERROR)
def end_token_unlike_tokenizer(trial: TemplateTrial) -> Iterator[Finding]:
    """Report answers that end with a token at which generation does not stop.

    Why: Generation stops at the `eos_token_id` of `generation_config.json`. If the model was trained to write another
    token at the end of an answer, the model continues with a user turn. Without `generation_config.json`, generation
    stops at the tokenizer's `eos_token`. In this case, the finding is a warning.

    Fix: add the token that closes an answer to `eos_token_id` in `generation_config.json`, or set the tokenizer's
    `eos_token` to it.

    Real: chandra-ocr-2, open-r1 PR #663 (`generation_config.json`); Phi-3's tokenizer (`<|endoftext|>`) with a template
    that ends answers with `<|end|>`.
    """
    text = trial.text("answer")
    if text is None or ANSWER not in text:
        return
    known = trial.profile.special_tokens
    eos, tail = known.get("eos_token"), text.rpartition(ANSWER)[2]
    closing, stops = trial.marker.search(tail), trial.options.stop_ids
    if closing is None or (trial.tokenizer is not None and trial.tokenizer.id_of(closing[0]) is None):
        return  # PF413 reports that template and tokenizer belong to different models
    ends = {trial.added_tokens.get(each) for each in trial.markers(tail)}
    if stops and None not in ends and not ends.intersection(stops):
        message, do = "generation_config.json does not stop at the end of an answer", f"add the id of {closing[0]}"
        saw = f"{closing[0]} ends an answer, but eos_token_id is {', '.join(map(str, sorted(stops)))}"
        yield finding(message, saw, trial.place_of(closing[0]), do=f"{do} to its eos_token_id")
    elif eos and eos not in tail and not PLACEHOLDERS.items() <= known.items() and not stops:
        message, saw = (
            "answers do not end with the tokenizer's eos_token",
            f"{closing[0]} ends an answer, but eos_token is {eos}",
        )
        yield warning(message, saw, trial.place_of(closing[0]))


# -- reasoning ---------------------------------------------------------------------------------------------------------

EMPTY_THOUGHT: Final = re.compile(r"<([a-z_:]*think[a-z_]*)>\s*</\1>")


_OPENED: Final = re.compile(r"<[a-z_:]*think[a-z_]*>")


@template_rule("PF446", "reasoning-tags", severity=Severity.WARNING)
def reasoning_tags(trial: TemplateTrial) -> Iterator[Finding]:
    """Report missing or unbalanced reasoning tags, lost reasoning, and empty blocks of reasoning.

    Why: If a prompt has two blocks of reasoning, or a block that is not closed, it is unlike all prompts that the model
    saw. The finding is an info in two cases: the last answer loses its reasoning, so a model cannot learn it; or
    earlier answers have empty blocks, which teach a model not to reason. If a tool result removes the reasoning of its
    call, the model loses its plan in the middle of a task.

    Fix: split the content at the closing tag, and write exactly one block of reasoning.

    Real: TRL's Qwen3 templates (an empty block before a completion which has only the closing tag of its reasoning).
    """
    if not trial.mentions("think>", "reasoning", "thinking"):
        return

    def faults(conversation: Conversation) -> frozenset[str]:
        if last_answer(conversation) is None or conversation.continue_final_message:
            return frozenset()
        base = trial.conversations.get(conversation.base or "")
        said, usual = _said(trial, conversation), think_balance(_said(trial, base)) if base is not None else {}
        opened = think_balance(trial.text("question", generation_prompt=True) or "")
        return frozenset(
            name
            for name, count in think_balance(said).items()
            if count not in (0, usual.get(name, 0)) and f"/{name}>" in trial.source
            if f"<{name}>" in said or opened.get(name, 0) > 0  # else the caller's text is passed on as it is
        )

    layout, off = layout_of(trial), trial.text("thinking-off", generation_prompt=True) or ""
    headers = [
        layout.header or "",
        *(text.partition(QUESTION)[2].partition(ANSWER)[0] for text in (off, layout.longer or "")),
    ]
    for conversation, name in trial.attributed(faults):
        text = trial.whole(conversation) or ""
        yield conversation.finding(
            f"reasoning tags are unbalanced or doubled in a conversation with {conversation.about}",
            excerpt(text, max(text.rfind(f"</{name}>"), text.rfind(f"<{name}>"))),
            trial.place_of(f"</{name}>"),
            # A lone closing tag may be the mark of no reasoning.
            Severity.INFO
            if any(each.rstrip().endswith(f"</{name}>") and f"<{name}>" not in each for each in headers)
            else None,
        )
    if trial.mentions("reasoning_content", "reasoning", "thinking"):
        yield from _lost_reasoning(trial)
        yield from _earlier_reasoning(trial)
    begun = trial.sent.get("reasoning-prefill")
    if begun is not None:
        text = trial.whole(begun) or ""
        before, given, _ = text.partition(begun.units[0].text)[2].partition(str(begun.messages[-1]["content"]))
        if given and _OPENED.search(before):
            message = "the template opens reasoning before a partial answer that already opens it"
            place = trial.place_of("<think>")
            yield begun.finding(message, excerpt(text, text.rfind(given)), place, Severity.INFO)
    history = (trial.text("turns") or "").rpartition("Does gold tarnish?")[0]
    empty = EMPTY_THOUGHT.search(history)
    if empty is not None:
        yield info(
            "earlier answers get an empty block of reasoning",
            excerpt(history, empty.start(), empty.end()),
            trial.place_of(empty[0][:7]),
            do="write the block only if the answer has reasoning",
        )


def _said(trial: TemplateTrial, conversation: Conversation) -> str:
    """Return a finished prompt after the first text of its conversation: what is before may explain the tags."""
    text, first = trial.finished(conversation) or "", next((unit.text for unit in conversation.units), "")
    return text.partition(first)[2] if first else text


def _earlier_reasoning(trial: TemplateTrial) -> Iterator[Finding]:
    """Yield that reasoning of earlier answers stays, an info, or that it cannot be switched off."""
    kept = all(THOUGHT in (trial.text(name) or "") for name in ("reasoning", "reasoning-earlier"))
    on, plain = (trial.text(name, generation_prompt=True) for name in ("thinking-on", "reasoning-earlier"))
    off, asked = (trial.text(name, generation_prompt=True) for name in ("thinking-off", "question"))
    place = trial.place_of("enable_thinking", "reasoning_content", "</think>")
    if kept:
        message, do = "the reasoning of earlier answers stays in the prompt", "compare it with the training prompts"
        yield info(message, at=place, do=do)
    if trial.mentions("enable_thinking") and off and (off, on) == (asked, plain):
        yield warning("the argument enable_thinking changes nothing", at=place, do="test it with `is defined`")


def _lost_reasoning(trial: TemplateTrial) -> Iterator[Finding]:
    for conversation in trial.simplest(lambda each: each.name in _LAST and "reasoning" in missing(trial, each)):
        message = f"the reasoning of the last answer is lost in a conversation with {conversation.about}"
        place = trial.place_of("reasoning_content", "</think>")
        yield conversation.finding(message, f"{THOUGHT!r} is not in the prompt", place, Severity.INFO)
    called = trial.sent.get("reasoning-call")
    thought = next((unit.text for unit in called.units if unit.kind == "reasoning"), "") if called is not None else ""
    if called is not None and thought:
        thinks = replace(called, template_args={"enable_thinking": True, "thinking": True})
        before, after = trial.finished(thinks, 2) or "", trial.render(thinks, State(count=3)).text
        if thought in before and after is not None and thought not in after:
            message, place = "a tool result removes the reasoning of its call", trial.place_of("reasoning_content")
            yield called.finding(message, excerpt(before, before.find(thought)), place, Severity.WARNING)


_LAST: Final = ("reasoning", "reasoning-call", "reasoning-in-content", "reasoning-loop")
"""Conversations whose last answer has reasoning."""
