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

    Why: the description of a task becomes the system message. If a template refuses it, lm-eval 0.4.13 drops it, and
    only logs a warning. The model then never gets the instructions of the task. Reported as info if the system text
    becomes part of the first user turn.

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
    """Report a chat template that refuses the turns of a task, with and without the system message.

    Why: many templates require that user and assistant alternate. If a task has two questions in a row, or begins with
    an answer, the evaluation stops before its first request. Few-shot examples without answers give two questions in a
    row. The finding is an info if PF806 names the cause.

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
    """Report a chat template that strips the indentation at the start of a message; other whitespace is an info.

    Why: a question that begins with indented code loses the indentation of its first line only, which changes its
    meaning. A newline at the end of a message is lost as well, mostly without harm.

    Fix: begin and end messages with a visible character.

    Real: llama.cpp tests its templates with padded messages for this reason; vllm #20717.
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
    """Report a message whose text the chat template changes, apart from outer whitespace.

    Why: templates may drop, escape, split or replace text. The prompt then differs from the snapshot of the plain text.

    Fix: in the chat template, remove the filter or split that changes the text.

    Real: chat templates of idefics3 and llava-next drop contents that are plain text; functionary escapes.
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
    """Report a control token of the model in the data; in the task's own text it is a warning.

    Why: a model does not read `<|im_end|>` in a question as text. The token ends the turn, and the model may read the
    rest as another role. Tokenizers encode such texts as control tokens anywhere, also without a chat template.

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
    """Report few-shot examples whose reasoning in `<think>` tags is removed by the chat template.

    Why: the few-shot examples are meant to show how to reason, but then show only answers.

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
    """Report a `gen_prefix` that is not where the model's own answer would begin.

    Why: the prefix is added as the start of the last answer. Some templates write an empty `<think>` block before
    it, or omit the generation prompt. Others strip the space at its end, which is reported as info.

    Fix: turn this text off with a template argument, or remove `gen_prefix`.

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
