"""Rules about what a chat template does to the messages of one task."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from jinja2.exceptions import TemplateError

from pytest_promptfmt.core.prompt import Message, Span
from pytest_promptfmt.rules import Family, Finding, ProfileView, Severity, rule
from pytest_promptfmt.rules.fewshot import answer_in_user_turn
from pytest_promptfmt.rules.rule_views import around, finding, info

_INDENTED: Final = re.compile(r"[\r\n]*(?:[ ]{2,}|\t)(?=\S)")
_SHOWN: Final = 60


@rule("PF421", "system-text-lost", severity=Severity.ERROR, family=Family.CHAT, scope="profile")
def system_text_lost(view: ProfileView) -> Iterator[Finding]:
    """Report a system text that is missing in the prompt, because the chat template refuses or drops it.

    Why: the description of a task becomes the system message. If a template refuses system messages, lm-eval 0.4.13
    drops the message, and only logs a warning. The model then never gets the instructions of the task. If the template
    puts the system text into the first user turn, the finding is an info.

    Fix: put the instruction into `doc_to_text`, or use a template that supports system messages.

    Real: lm-evaluation-harness #2069; unsloth #334; TGI #3198.
    """
    facts = view.facts
    if facts is None:
        return
    for instance, prompt in view.prompts[:1]:
        for message in prompt.messages[:1]:
            said = message.text.strip()
            if message.role != "system" or not said:
                continue
            keys = ("description",) if any(span.origin.part == "description" for span in message.content) else ()
            if said in prompt.text:
                if facts.system == "merged":
                    yield info(
                        "the chat template has no separate turn for the system text",
                        at=keys,
                        do="nothing to fix: the chat template puts the system text into the first user turn",
                    )
                continue
            refuses = "refuses system messages, so lm-eval drops them"
            how = refuses if facts.system == "refused" else "drops the system text"
            yield finding(f"the chat template {how}", message.text[:_SHOWN], keys, instance)


@rule("PF422", "turns-refused", severity=Severity.ERROR, family=Family.CHAT, scope="profile")
def turns_refused(view: ProfileView) -> Iterator[Finding]:
    """Report a chat template that refuses the turns of a task, even without the system message.

    Why: many templates require that user turns and assistant turns alternate. If a prompt has two questions in a row,
    or begins with an answer, the evaluation stops before its first request. Few-shot examples without answers are such
    questions in a row. If PF806 already names the cause, the finding is an info.

    Fix: give each few-shot example an answer, or put the examples into one turn with `fewshot_as_turns: false`.

    Real: lm-evaluation-harness #2069; adk-python #1373.
    """
    cause = view.failure.__cause__ if view.failure is not None else None
    if type(cause) is not TemplateError:  # what `raise_exception` raises; other failures have their own message
        return
    yield finding(
        "the chat template refuses the turns of this task",
        str(cause)[:_SHOWN],
        "fewshot_config" if view.study.shots else "doc_to_text",
        severity=Severity.INFO if any(answer_in_user_turn(view.study)) else None,
    )


@rule("PF423", "whitespace-stripped", severity=Severity.WARNING, family=Family.CHAT, scope="profile")
def whitespace_stripped(view: ProfileView) -> Iterator[Finding]:
    """Report a chat template that removes the indentation at the start of a message.

    Why: if a question begins with indented code, only its first line loses the indentation. This changes the meaning of
    the code. If other whitespace at the start or end of a message is removed, the finding is an info: this is mostly
    harmless.

    Fix: begin and end each message with a visible character.

    Real: llama.cpp, whose tests of templates have messages with whitespace around them; vllm #20717.
    """
    facts = view.facts
    if facts is None:
        return
    fates: Mapping[str, str] = {"user": facts.user, "assistant": facts.assistant}
    for instance, prompt in view.prompts:
        for message in prompt.messages:
            text = message.text
            if fates.get(message.role) != "stripped" or text == text.strip() or not text.strip():
                continue
            if text in prompt.text:
                continue  # not of this message
            is_code = _INDENTED.match(text) is not None and "\n" in text.strip()
            yield finding(
                "the chat template strips the indentation of a message's first line"
                if is_code
                else "the chat template strips whitespace at the ends of messages",
                text[:_SHOWN] if is_code or text[0].isspace() else text[-_SHOWN // 2 :],
                _key_of(message.content if text[0].isspace() else message.content[::-1]),
                instance,
                severity=None if is_code else Severity.INFO,
            )
            return


@rule("PF424", "text-altered", severity=Severity.ERROR, family=Family.CHAT, scope="profile")
def text_altered(view: ProfileView) -> Iterator[Finding]:
    """Report a message whose text the chat template drops or changes. Whitespace around the text is ignored.

    Why: a template can drop, escape, split or replace text. The model then gets another text than the one in the
    snapshot without a chat template.

    Fix: in the chat template, remove the filter or the `split` that changes the text.

    Real: idefics3 and llava-next, whose chat templates drop contents that are plain text; functionary, which escapes
    text.
    """
    facts = view.facts
    if facts is None or facts.user == "dropped":
        if facts is not None and view.prompts:
            yield _altered(view.prompts[0][1].messages[-1], view.prompts[0][0].index)
        return
    for instance, prompt in view.prompts:
        for message in prompt.messages:
            said = message.text.strip()
            if message.role == "system" or said in prompt.text or "</think>" in said:
                continue
            yield _altered(message, instance.index)
            return


def _altered(message: Message, doc: int) -> Finding:
    what = f"the chat template drops or changes a text of the {message.role}"
    return finding(what, f"not in the prompt: {message.text.strip()[:_SHOWN]}", _key_of(message.content), doc)


@rule("PF425", "control-tokens-in-text", severity=Severity.ERROR, family=Family.CHAT, scope="profile")
def control_tokens_in_text(view: ProfileView) -> Iterator[Finding]:
    """Report data that contain a control token of the model. In the task's own text, the finding is a warning.

    Why: to a model, `<|im_end|>` in a question is not text. It ends the turn, and the model may take the rest of the
    question for another role's turn. Tokenizers encode such a text as a control token everywhere, even without a chat
    template.

    Fix: drop such docs in `process_docs`, or insert a space into the token.

    Real: transformers #29279 and PR #47386; vllm PR #31735; the papers ChatBug and ChatInject.
    """
    marks = _control_tokens(view)
    if not marks:
        return
    pattern = re.compile("|".join(re.escape(mark) for mark in sorted(marks, key=len, reverse=True)))
    reported: set[tuple[str, str | None]] = set()
    for instance, prompt in view.prompts:
        at = 0
        for span in prompt.spans:
            found = pattern.search(span.text) if span.origin.part != "chat template" else None
            place = (span.origin.key or "", span.origin.field)
            if found is not None and place not in reported:
                reported.add(place)
                is_data = span.origin.field is not None
                yield finding(
                    f"the {'data contain' if is_data else 'task text contains'} the control token {found[0]!r}",
                    around(span.text, found),
                    span.origin.keys,
                    instance,
                    field=span.origin.field,
                    span=(at + found.start(), at + found.end()),
                    severity=None if is_data else Severity.WARNING,
                    do="" if is_data else "remove the token: the chat template writes control tokens",
                )
            at += len(span.text)


@rule("PF426", "demonstrated-reasoning-cut", severity=Severity.WARNING, family=Family.CHAT, scope="profile")
def demonstrated_reasoning_cut(view: ProfileView) -> Iterator[Finding]:
    """Report a chat template that removes the `<think>` reasoning from the answers of few-shot examples.

    Why: the few-shot examples should show the model how to reason, but their answers then have no reasoning.

    Fix: write the reasoning without the tags, or put the few-shot examples into one turn.

    Real: ollama #10448; TRL PR #3522.
    """
    for instance, prompt in view.prompts[:1]:
        for message in prompt.messages:
            before, mark, _ = message.text.partition("</think>")
            thought = before.rpartition("<think>")[2].strip()
            if message.role == "assistant" and mark and thought and thought not in prompt.text:
                yield finding(
                    "the chat template removes the reasoning of few-shot examples",
                    message.text[:_SHOWN],
                    _key_of(message.content),
                    instance,
                )
                return


@rule("PF427", "begun-answer-changed", severity=Severity.WARNING, family=Family.CHAT, scope="profile")
def begun_answer_changed(view: ProfileView) -> Iterator[Finding]:
    """Report a `gen_prefix` that the chat template does not put where the model's answer begins.

    Why: lm-eval adds the `gen_prefix` as the start of the last answer. Some templates write an empty `<think>` block
    before the prefix, or omit the generation prompt. If a template only removes the space at the end of the prefix, the
    finding is an info.

    Fix: turn off the added text with a template argument, or remove `gen_prefix`.

    Real: transformers #35433, #34462; lm-evaluation-harness PR #2615.
    """
    facts = view.facts
    if facts is None or facts.prefill == "refused":
        return
    for instance, prompt in view.prompts[:1]:
        if not prompt.messages:  # of the installed lm-eval
            return
        last = prompt.messages[-1]
        if last.role != "assistant" or not last.text:
            continue
        if facts.prefill == "differs" or facts.prefill_gap.strip():
            what = "adds text between the generation prompt and" if facts.prefill == "gap" else "does not put"
            where = "" if facts.prefill == "gap" else " after the generation prompt"
            saw = facts.prefill_gap or prompt.text[-_SHOWN:]
            yield finding(f"the chat template {what} gen_prefix{where}", saw, "gen_prefix", instance)
        elif last.text != last.text.rstrip() and facts.prefill_lost:
            yield info(
                "the chat template strips the space at the end of gen_prefix",
                prompt.text[-_SHOWN // 2 :],
                "gen_prefix",
                instance,
                do="end gen_prefix with a visible character",
            )


def _control_tokens(view: ProfileView) -> frozenset[str]:
    """Return the control tokens of this profile: markers of its template, special tokens of its tokenizer."""
    marks = set(view.facts.markers) if view.facts is not None else set()
    if view.tokenizer is not None:
        marks |= {token.content for token in view.tokenizer.added_tokens.values() if token.special}
    return frozenset(mark for mark in marks if mark.strip())


def _key_of(spans: Iterable[Span]) -> tuple[str, ...]:
    return next((span.origin.keys for span in spans if span.origin.key), ())
