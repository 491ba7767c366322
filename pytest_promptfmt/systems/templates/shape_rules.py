"""Rules about what a template fails on, refuses, or writes differently for shapes that mean the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from pytest_promptfmt.core.finding import Family, Finding, Severity
from pytest_promptfmt.profiles.probe_conversations import Conversation
from pytest_promptfmt.profiles.template_trial import Rendering, TemplateTrial
from pytest_promptfmt.profiles.trial_evidence import excerpt, first_difference, missing, place_printed, python_in
from pytest_promptfmt.rules.chat_templates import trial_of
from pytest_promptfmt.rules.rule_registry import rule
from pytest_promptfmt.rules.rule_views import finding
from pytest_promptfmt.study import Study
from pytest_promptfmt.systems.templates.template_subjects import template_rule

_NEAR: Final = 8
"""Characters before JSON text in which a key shows that it is the value of one."""


@rule("PF430", "template-does-not-compile", severity=Severity.ERROR, family=Family.CHAT)
def template_does_not_compile(study: Study | TemplateTrial) -> Iterator[Finding]:
    """Report a chat template that does not compile.

    Why: Every request to a model with such a template fails. Often, someone pasted the template into a JSON file
    without escaping its quotes.

    Fix: correct the syntax at the line shown.

    Real: unsloth's Qwen2.5 and text-generation-webui's Airoboros, each with an unescaped quote.
    """
    trial = trial_of(study)
    if trial is not None and trial.syntax_error is not None:
        broken = trial.syntax_error
        yield finding("the template does not compile", broken.error or "", trial.place(broken.line))


@template_rule("PF431", "template-fails", severity=Severity.ERROR)
def template_fails(trial: TemplateTrial) -> Iterator[Finding]:
    """Report conversations for which a template raises an error. PF432 reports the errors of `raise_exception`.

    Why: Clients may send tool call arguments as JSON text, contents that are null, contents that are lists of parts,
    and tools without a description. If the template fails on any of them, the client gets an internal server error.

    Fix: test the type of a value before you use it (`is string`, `is defined`), or refuse the conversation with
    `raise_exception`.

    Real: QwenLM Qwen3 #1894, GLM-5 #158, mlx-lm #1065 (arguments as JSON text); Qwen3 (content null).
    """
    for conversation, stopped in _stops(trial):
        if stopped.error is not None and not (conversation.continue_final_message and stopped.line is None):
            is_meant = "tools" not in conversation.shapes and _is_only_for_tools(trial)
            is_text = "arguments_text" in trial.given[conversation.name].shapes  # which servers parse
            severity = Severity.INFO if is_meant or is_text or _TOKEN.search(stopped.error) else None
            message, place = f"the template fails on {_cause(trial, conversation)}", trial.place(stopped.line)
            found = conversation.finding(message, stopped.error, place, severity)
            lacks_name = _NAME.search(stopped.error) is not None
            yield replace(found, do="use only filters and tests that Jinja has" if lacks_name else found.do)
    if trial.takes_only_parts:
        message, made = "the template accepts message contents only as lists of parts, not as text", trial.as_text
        saw = made.error or f"{trial.conversations[_SIMPLEST].units[0].text!r} is not in the prompt"
        place = trial.place_of("['text']", ".text", "content") if made.line is None else trial.place(made.line)
        is_refused = trial.kinds & {"images", "sound"} and made.text is None
        severity = Severity.INFO if is_refused else Severity.WARNING
        yield trial.conversations[_SIMPLEST].finding(message, saw, place, severity)


_TOKEN: Final = re.compile(r"'\w+_token' is undefined")
"""A failure for want of a special token, which comes with a tokenizer or processor."""

_NAME: Final = re.compile(r"No (?:filter|test) named ")


def _cause(trial: TemplateTrial, conversation: Conversation) -> str:
    """Return what a template stops at: the conversation, with the shape of arguments if JSON text is rendered."""
    other = dict(conversation.relaxations).get(frozenset({"arguments"})) if conversation.same_as else None
    needs_both = other is not None and trial.stopped(other) is None
    return f"{conversation.about} and arguments as mappings" if needs_both else conversation.about


def _stops(trial: TemplateTrial) -> Iterator[tuple[Conversation, Rendering]]:
    """Yield the conversations that a template does not render though it renders the simpler ones, and how it stops."""
    for name, conversation in trial.sent.items():
        if name in trial.hidden_failures:
            yield trial.hidden_failures[name]
        elif (stopped := trial.stopped(conversation)) is not None:
            bases = [trial.sent[each.name] for each in trial.bases(conversation) if each.name in trial.sent]
            if _is_only_for_tools(trial) and conversation.tools:
                bases = [base for base in bases if base.tools]
            if all(trial.stopped(base) is None for base in bases):
                yield conversation, stopped


def _is_only_for_tools(trial: TemplateTrial) -> bool:
    """Return whether a template fails on the simplest conversation, but not there with tools: it is sent only these."""
    asked = trial.stopped(trial.sent[_SIMPLEST]) if _SIMPLEST in trial.sent else None
    if asked is None or "tools-many" not in trial.conversations:
        return False
    many = trial.conversations["tools-many"]
    return trial.render(many, many.states[-1])[2:4] != asked[2:4]


@template_rule("PF432", "template-refuses", severity=Severity.ERROR)
def template_refuses(trial: TemplateTrial) -> Iterator[Finding]:
    """Report conversations that a template refuses with `raise_exception`.

    Why: A refusal is often a documented limit of a model, such as alternating roles. In this case, the finding is an
    info. A refusal is a mistake in three cases: the template accepts the same conversation in another shape; it accepts
    a tool result, but not the answer after it; or it has a branch for system messages, but refuses one because roles do
    not alternate. The finding is a warning if the template has no branch for system messages, and refuses a system
    message with a reason that does not mention system messages: this reason is misleading.

    Fix: accept the conversation, or document that the model does not support it.

    Real: axolotl's Mistral v1 (system messages); Mistral 7B v0.3 (empty lists of tool calls).
    """
    for conversation, stopped in _stops(trial):
        if stopped.refusal is not None:
            yield conversation.finding(
                f"the template refuses {conversation.about}",
                stopped.refusal,
                trial.place(stopped.line),
                _severity_of_refusal(trial, conversation, stopped),
            )


_SIMPLEST: Final = "question"
_LOOP: Final = ("tool", "assistant")
_WRITTEN: Final = {"result": Severity.ERROR, "call-long-id": Severity.WARNING}
"""Results, and calls with another id, of calls that a template writes; servers of such a model may give short ids."""
_IMAGE: Final = "image-system"
_WITH_SYSTEM: Final = ("system", "system-alone-with-question")


def _severity_of_refusal(trial: TemplateTrial, conversation: Conversation, stopped: Rendering) -> Severity:
    """Return an error for what a host or every chat sends, and for what the template refuses by accident."""
    if conversation.same_as:
        return Severity.ERROR if conversation.mildest() is Severity.ERROR else Severity.INFO
    *asked, answer = conversation.messages
    base = trial.conversations.get(conversation.base or "")
    if base is not None and list(base.messages) == asked and (asked[-1]["role"], answer["role"]) == _LOOP:
        return Severity.ERROR
    if conversation.name in _WRITTEN and base is not None:
        return _WRITTEN[conversation.name]
    if conversation.name == _SIMPLEST and any(trial.whole(each) is not None for each in trial.given.values()):
        return Severity.ERROR  # others need contents of their own shape, such as those of translators
    if conversation.name == _IMAGE and all(trial.whole(trial.conversations[each]) for each in ("image", "system")):
        return Severity.WARNING  # each is taken without the other
    if conversation.name not in _WITH_SYSTEM or re.search(r"(?<!optional )system", stopped.refusal or "", re.I):
        return Severity.INFO
    is_meant = re.search(r"raise_exception\([^)]*(?<!optional )system", trial.source, re.I) is not None
    is_written = re.search(r"['\"]system['\"]", trial.source) is not None
    if is_meant:
        return Severity.INFO
    return Severity.ERROR if is_written else Severity.WARNING  # the message blames something else


def _spaceless(text: str) -> str:
    return "".join(text.split())


@template_rule("PF436", "shape-changes-prompt", severity=Severity.WARNING)
def shape_changes_prompt(trial: TemplateTrial) -> Iterator[Finding]:
    """Report a conversation whose prompt changes if a client sends the same content in another shape.

    Why: The same content can be a text, or a list with one text part. Tool call arguments can be a mapping or JSON
    text. If there are no tool calls, `tool_calls` can be missing or an empty list. Servers and SDKs choose the
    shape, not the user. The finding is an info for shapes that few of them send: arguments as JSON text, an empty list
    of tools. It is also an info if a tool result is a list of parts, and the template writes the list.

    Fix: use the same macro for both forms of the content.

    Real: LFM2 and GigaChat 3 (user messages as parts), Apriel 1.5 (arguments as JSON text).
    """

    def twin(conversation: Conversation) -> str:
        """Return the prompt of the other shape, empty where it is the same or another rule tells why it differs."""
        other = trial.conversations[conversation.same_as] if conversation.same_as else conversation
        text, given = trial.whole(conversation), trial.whole(other)
        is_told = given is None or text in (None, given) or missing(trial, conversation) != missing(trial, other)
        if is_told or python_in(trial, conversation) or _is_encoded_twice(trial, conversation):
            return ""
        return given or ""

    for conversation in trial.simplest(twin):
        text, other = trial.whole(conversation) or "", twin(conversation)
        is_space, at = _spaceless(text) == _spaceless(other), first_difference(text, other)
        yield conversation.finding(
            f"the {'whitespace' if is_space else 'text'} of the prompt differs between {conversation.about} and the"
            " same content in its usual form",
            f"{excerpt(text, at)!r}; {conversation.same_as!r}: {excerpt(other, at)!r}",
            place_printed(trial, conversation, at),
            Severity.INFO if is_space or _WHOLE & conversation.shapes else None,
        )


_WHOLE: Final = {"no_result_name", "result_parts", "arguments_text", "empty_tools"}
"""Shapes whose text is complete by itself, and those that few clients send."""


def _is_encoded_twice(trial: TemplateTrial, conversation: Conversation) -> bool:
    text = trial.whole(conversation)
    twin = trial.whole(trial.conversations[conversation.same_as]) if conversation.same_as else None
    return text is not None and twin is not None and text.count('\\"') > twin.count('\\"')


@template_rule("PF438", "arguments-encoded-twice", severity=Severity.WARNING)
def arguments_encoded_twice(trial: TemplateTrial) -> Iterator[Finding]:
    r"""Report tools and tool call arguments that are encoded as JSON a second time.

    Why: The OpenAI API sends arguments as JSON text. If a template uses `tojson` on this text, the result is a JSON
    string with a backslash before each quotation mark. If a template does so with arguments or tools that are mappings,
    the finding is a warning. It is an info if the template writes the JSON text as the value of a key, or if the client
    sent JSON text, because this may be the model's own format. For the same reason, a letter that is written as
    `\u0441` is an info.

    Fix: use `tojson` only once, and only for values that are not text: `{{ value if value is string else value | tojson
    }}`.

    Real: Llama 3.1, functionary 3.1, Mistral Nemo.
    """
    for conversation in list(trial.simplest(lambda each: _is_encoded_twice(trial, each)))[:1]:
        text = trial.whole(conversation) or ""
        at = text.find(chr(92) + chr(34))
        yield conversation.finding(
            "arguments that are already JSON text are encoded as JSON again",
            excerpt(text, at),
            place_printed(trial, conversation, at, "arguments"),
            Severity.INFO,
        )
    escaped = trial.text("call-unicode-argument") or ""
    if "\\u0441" in escaped.lower():
        found = trial.conversations["call-unicode-argument"].finding(
            "arguments with non-ASCII letters are written as escapes",
            excerpt(escaped, escaped.lower().find(chr(92) + "u0441")),
            trial.place_of("ensure_ascii", "arguments"),
            Severity.INFO,
        )
        yield replace(found, do="write the letters themselves, with `ensure_ascii=False`")
    for conversation, what in trial.attributed(lambda each: frozenset(_quoted(trial, each))):
        text, at = trial.whole(conversation) or "", _quoted(trial, conversation)[what]
        yield conversation.finding(
            f"{what} are encoded as JSON twice in a conversation with {conversation.about}",
            excerpt(text, at),
            place_printed(trial, conversation, at, "tojson", "arguments"),
            Severity.INFO if _KEY.search(text[max(at - _NEAR, 0) : at]) else None,
        )


_KEY: Final = re.compile(r'": ?"')
"""The key of a value that is JSON text, as in OpenAI's API: parsers read such calls."""


def _quoted(trial: TemplateTrial, conversation: Conversation) -> dict[str, int]:
    """Return what is inside JSON text though it was given as data, with a place of it."""
    text, base = trial.whole(conversation), trial.conversations.get(conversation.base or "")
    functions = [call["function"] for message in conversation.messages for call in message.get("tool_calls") or ()]
    given = [each["arguments"] for each in functions if isinstance(each.get("arguments"), dict)]
    if text is None or len(given) < len(functions) or '\\"' not in text:
        return {}
    usual = (trial.whole(base) if base is not None else None) or ""
    data = {"arguments": given, "tools": [tool["function"] for tool in conversation.tools or ()]}
    signs = {what: [f'\\"{key}\\"' for each in own for key in each] for what, own in data.items()}
    found = {what: [each for each in own if text.count(each) > usual.count(each)] for what, own in signs.items()}
    return {what: text.rfind(own[0]) for what, own in found.items() if own}
